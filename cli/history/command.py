"""Shows the history of a quota: changes of its limits and who made them, changes of its conditions, refusals,
and peaks of use."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec

from cli import denials, quotas, reading, terminal
from cli.connection import add_cluster, add_namespace, connected
from cli.history import timeline, use
from cli.history.timeline import Entry
from cli.history.use import Part, Peak
from cli.outcome import DONE, STALE, Failed, Printed
from cli.seeds import fleet
from cli.terminal import Column, add_output
from common.api.types import SEEDS
from common.quota.names import in_order
from common.runtime.flags import duration
from master.quotas import staleness

HELP = "show the history of a quota: limits, conditions, refusals, peaks of use"
EXAMPLES = """\
examples:
  seedquota history project-alpha
  seedquota history project-alpha --seed eu-1 --seed us-1   # with what was refused there
  seedquota history project-alpha --prometheus http://127.0.0.1:9090 --since 7d   # with peaks of use
  kubectl port-forward -n monitoring svc/prometheus-operated 9090                 # before, if it is in a cluster

SeedQuota keeps no record of its own. What is shown is what others keep. The API server keeps the last write of each
program that wrote limits, and Events for an hour unless it is told otherwise. Prometheus keeps what it scraped. Users
are in the API server's audit log alone. The last lines say what is not known.
Exit status: 0 done, 1 failed, 3 a part could not be read.
"""
_USERS = "the user behind a write: the API server's audit log has it, if there is one"
_BEFORE = "limits of before: an Event LimitsChanged has them, for an hour unless the API server keeps Events for longer"


class History(msgspec.Struct, frozen=True, rename="camel"):
    """`use` is None where Prometheus was not asked, or could not be."""

    items: Sequence[Entry]
    use: Sequence[Part] | None
    not_known: Sequence[str]


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=quotas.NAMED)
    add_cluster(parser)
    parser.add_argument(
        "--since",
        type=_seconds,
        default=24 * 3600.0,
        metavar="DURATION",
        help="age of the oldest entry, such as 12h or 7d [default 24h]",
    )
    fleet.add_seeds(parser, "show refusals there")
    add_namespace(parser)
    parser.add_argument(
        "--prometheus",
        type=_url,
        metavar="URL",
        help="URL of a Prometheus, to show peaks of use; not set: peaks are not shown",
    )
    add_output(parser, "table", "wide", "json", "yaml")
    parser.set_defaults(run=run)


def _seconds(raw: str) -> float:
    days, is_days, more = raw.partition("d")
    try:
        if is_days and not more and days.isascii() and days.isdecimal() and len(days) < 5:
            return int(days) * 86400.0
        return duration(raw)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{raw!r} is not a duration such as 30m, 12h or 7d") from None


def _url(raw: str) -> str:
    parts = urlsplit(raw)
    if parts.username is not None:
        raise argparse.ArgumentTypeError("a URL with a password is seen by others: use kubectl port-forward")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{raw!r} is not a URL such as http://127.0.0.1:9090")
    return raw


async def run(options: argparse.Namespace) -> Printed:
    now = datetime.now(UTC)
    missing: list[str] = []
    async with connected(options, "master") as master:
        quota = await quotas.the_one(master, options.name)
        name = quota.metadata.name
        managed = await reading.one(master, timeline.MANAGED, name)
        events = await reading.if_possible(master, denials.EVENTS, "Events about the quota", missing)
        asked = fleet.chosen(options, await reading.every(master, SEEDS)) if fleet.is_asked(options) else []
        found, failed = await fleet.ask(master, asked, options.namespace, denials.events_of)
    missing += [f"refusals on {seed}: {why}" for seed, why in failed.items()]
    refused = {seed: denials.of_quota(there, quota.metadata, now, options.since) for seed, there in found.items()}
    used = None
    if options.prometheus:
        try:
            used = await use.parts(options.prometheus, name, now, options.since)
        except Failed as error:
            missing.append(f"use over time: {error}")
    entries = [
        *timeline.of_quota(quota),
        *(timeline.of_writers(managed) if managed is not None else ()),
        *timeline.of_events(events or (), quota),
        *timeline.of_refusals(refused),
    ]
    unasked = [] if asked else ["refusals: --seed NAME asks a seed, --all-seeds all of them"]
    unasked += [] if options.prometheus else ["use over time: --prometheus names where the metrics are"]
    try:
        history = History(timeline.ordered(entries, now, options.since), used, [*missing, *unasked, _BEFORE, _USERS])
    except ValueError as error:
        raise Failed(f"a time cannot be read: {error}") from None
    status = STALE if missing else DONE
    if options.output in ("json", "yaml"):
        return Printed(reading.written(msgspec.to_builtins(history), options.output), status)
    return Printed(text(history, now, None if options.output == "wide" else terminal.width()), status)


def text(history: History, now: datetime, most: int | None) -> str:
    blocks = [_entries(history.items, now, most)]
    if history.use is not None:
        blocks.append(_peaks(history.use, most))
    blocks.append(terminal.not_known(history.not_known, most))
    return "\n\n".join(blocks)


def _entries(entries: Sequence[Entry], now: datetime, most: int | None) -> str:
    if not entries:
        return "nothing is known of that time"
    columns = [
        Column("TIME", [_short(each.time) for each in entries]),
        Column("AGE", [staleness.age(each.time, now) for each in entries], goes=1),
        Column("WHAT", [each.what for each in entries]),
        Column("DETAIL", [_detail(each, now) for each in entries]),
    ]
    return terminal.fit(columns, most)[0]


def _detail(entry: Entry, now: datetime) -> str:
    return f"{entry.count} since {staleness.age(entry.since, now)}: {entry.detail}" if entry.since else entry.detail


def _short(time: str) -> str:
    """To the second, in UTC."""
    then = datetime.fromisoformat(time)
    return then.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _peaks(parts: Sequence[Part], most: int | None) -> str:
    if not parts:
        return "Prometheus has no metrics of this quota in that time"
    names = in_order({name: None for part in parts for name in part.resources})
    columns = [
        Column("FROM", [part.start for part in parts]),
        Column("TO", [part.end for part in parts], goes=len(names) + 1),
        *(
            Column(f"PEAK {name if '/' in name else name.upper()}", [_peak(part.resources, name) for part in parts], at)
            for at, name in enumerate(names)
        ),
        Column("REFUSED", ["?" if part.refusals is None else f"~{part.refusals}" for part in parts]),
    ]
    table, left_out = terminal.fit(columns, most)
    if left_out:
        table += "\n" + terminal.wrapped(f"not shown for lack of room: {', '.join(left_out)}; see -o wide", most)
    return table


def _peak(found: Mapping[str, Peak], name: str) -> str:
    """As used/limit; of a limit that was changed the least and the most."""
    peak = found.get(name)
    if peak is None:
        return "?"
    limit = peak.least if peak.least == peak.most else f"{peak.least}..{peak.most}"
    return f"{peak.used}/{limit or '?'}"
