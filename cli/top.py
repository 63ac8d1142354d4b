"""Shows every quota, how much of each limit is used, and which figures may be out of date."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from cli import figures, quotas, reading, terminal
from cli.connection import add_cluster, connected
from cli.figures import Figures
from cli.outcome import DONE, STALE, Failed, Printed
from cli.terminal import Column, add_output
from common.api.types import PROJECTS, SEEDS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Gone
from common.quota.names import in_order
from common.quota.quantity import QuantityError
from master.cache.objects import MASTER_QUOTAS, MasterQuota
from master.quotas import staleness

PAUSE = 1.0  # seconds between two pictures at least
AGES = 10.0  # seconds after which ages are shown anew
_SUBJECT_GOES = 4  # after three resources: most names of quotas say it, too

DATE = len("2026-12-31")

HELP = "show every quota and how much of it is used"
EXAMPLES = """\
examples:
  seedquota top                                # the fullest first
  seedquota top --over=80 --organization=acme  # what is nearly full
  seedquota top -o wide                        # every resource, however wide
  seedquota top --watch                        # as it changes

Exit status: 0 done, 1 failed, 3 a figure may be out of date (column STALE).
"""


def declare(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser)
    parser.add_argument(
        "--sort", choices=("peak", "name"), default="peak", help="`peak`: the fullest first; or `name` [default peak]"
    )
    parser.add_argument(
        "--over",
        type=_percent,
        metavar="PERCENT",
        help="only quotas of which a resource is used to at least this percentage",
    )
    parser.add_argument(
        "--organization", metavar="NAME", help="only the quotas of this organization and of its projects"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="show every change, until it is interrupted")
    add_output(parser, "table", "wide", "json", "yaml")
    parser.set_defaults(run=run)


def _percent(raw: str) -> int:
    text = raw.removesuffix("%")
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"{raw!r} is no number of percent such as 80")
    return int(text)


async def run(options: argparse.Namespace) -> Printed:
    async with connected(options, "master") as master:
        return await _watch(master, options) if options.watch else (await _look(master, options))[0]


async def _look(master: Cluster, options: argparse.Namespace) -> tuple[Printed, str]:
    """And the version that it is of, to wait for the next."""
    now = datetime.now(UTC)
    listing = await quotas.listing(master)
    wanted = listing.items
    if options.organization is not None:
        wanted = await _of_organization(master, wanted, options.organization)
    silence = await _silence(master, now)
    try:
        found = [figures.of_quota(quota, silence) for quota in wanted]
    except QuantityError as error:
        raise Failed(f"a quota cannot be read: {error}") from None
    found = picked(found, options.sort, options.over)
    status = STALE if any(each.stale for each in found) else DONE
    if options.output in ("json", "yaml"):
        text = reading.written({"items": found}, options.output)
    else:
        text = table(found, now, terminal.width(), wide=options.output == "wide")
    return Printed(text, status), listing.resource_version


async def _watch(master: Cluster, options: argparse.Namespace) -> Printed:
    """Until it is interrupted, which ends it as if it had looked once."""
    status = DONE
    try:
        while True:
            found, version = await _look(master, options)
            status = found.status
            terminal.refresh(found.text)
            await asyncio.sleep(PAUSE)
            await _changed(master, version)
    except asyncio.CancelledError:
        return Printed("", status)


async def _changed(master: Cluster, version: str) -> None:
    """Returns at the first change after `version`, or when ages have to be shown anew."""
    with suppress(TimeoutError, Gone):  # Gone: more has changed than the API server keeps
        async with asyncio.timeout(AGES), master.open_watch(MASTER_QUOTAS, resource_version=version) as stream:
            while (changes := await stream.read()) is not None:
                if any(change.type != "BOOKMARK" for change in changes):
                    return


async def _of_organization(master: Cluster, found: Sequence[MasterQuota], name: str) -> list[MasterQuota]:
    organizations = {each.metadata.name: each.spec.organization for each in await reading.every(master, PROJECTS)}
    subjects = {f"organization/{name}"}
    subjects |= {f"project/{project}" for project, organization in organizations.items() if organization == name}
    chosen = [quota for quota in found if figures.subject_of(quota) in subjects]
    if not chosen and len(subjects) == 1:
        known = {
            each.removeprefix("organization/") for each in map(figures.subject_of, found) if "organization/" in each
        }
        near = quotas.nearest(name, sorted(known | set(organizations.values()) - {""}))
        raise Failed(f"no quota and no project is of organization {name}{f'; did you mean {near}?' if near else ''}")
    return chosen


async def _silence(master: Cluster, now: datetime) -> str:
    """Who may not list Seeds sees what the quotas say."""
    try:
        return staleness.silence_of_master(await reading.every(master, SEEDS), now)
    except Failed:
        return ""


def picked(found: Sequence[Figures], sort: str, over: int | None) -> list[Figures]:
    """What is used of a limit of 0 is the fullest of all."""

    def full(each: Figures) -> float:
        return float("inf") if each.peak.endswith(" over 0") else -1 if each.percent is None else each.percent

    shown = [each for each in found if over is None or full(each) >= over]
    by_name = sorted(shown, key=lambda each: each.name)
    return by_name if sort == "name" else sorted(by_name, key=full, reverse=True)


def table(found: Sequence[Figures], now: datetime, most: int | None, *, wide: bool = False) -> str:
    """`wide` is as wide as it needs to be."""
    if not found:
        return "no quota was found"
    names = in_order({name: None for each in found for name in each.resources})
    ordered = [(number if number < _SUBJECT_GOES else number + 1, name) for number, name in enumerate(names, 1)]
    raised = [each.raised_until if wide else each.raised_until[:DATE] for each in found]
    shown = [
        Column("QUOTA", [each.made_from or each.name for each in found]),
        Column("SUBJECT", [each.subject for each in found], goes=_SUBJECT_GOES),
        Column("PEAK", [each.peak for each in found]),
        *(Column(_head(name), [_cell(each, name) for each in found], number) for number, name in ordered),
        *([Column("RAISED-UNTIL", raised)] if any(raised) else []),
        Column("SEEDS", [each.seeds for each in found]),
        Column("STALE", [_stale(each, now) for each in found]),
    ]
    if wide:
        if any(each.guaranteed for each in found):
            shown.append(Column("GUARANTEED", [each.guaranteed for each in found]))
        shown.append(Column("ENFORCEMENT", [each.enforcement for each in found]))
        shown.append(Column("RESERVED", [_reserved(each) for each in found]))
    text, left_out = terminal.fit(shown, None if wide else most)
    if left_out:
        text += "\n" + terminal.wrapped(f"not shown for lack of room: {', '.join(left_out)}; see -o wide", most)
    return text


def _head(name: str) -> str:
    return name if "/" in name else name.upper()


def _cell(each: Figures, name: str) -> str:
    amounts = each.resources.get(name)
    return f"{amounts.used or '?'}/{amounts.hard}" if amounts is not None else ""


def _reserved(each: Figures) -> str:
    found = {name: amounts.reserved for name, amounts in each.resources.items()}
    return ",".join(f"{name}={amount}" for name, amount in found.items() if amount not in ("", "0"))


def _stale(each: Figures, now: datetime) -> str:
    more = f" +{len(each.stale) - 1}" if len(each.stale) > 1 else ""
    return f"{each.stale[0].text(now)}{more}" if each.stale else ""
