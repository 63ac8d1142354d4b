"""Shows recent refusals, from the Events of a seed or of a user cluster."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from cli import reading, terminal
from cli.connection import add_cluster, connected
from cli.outcome import DONE, STALE, Failed, Printed
from cli.seeds import fleet
from cli.terminal import Column, add_output, seconds
from common.api.labels import UID_LABEL
from common.api.types import SEEDS, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from master.quotas import staleness

REASONS = ("QuotaExceeded", "QuotaUnavailable", "MachineNotSized", "SeedLost", "UnknownProject")
CONTROLLER = "seedquota.io/webhook"

HELP = "show recent refusals"
EXAMPLES = """\
examples:
  seedquota denials --context seed-1            # of all user clusters of a seed
  seedquota denials --context c1 --since 10m    # in a user cluster, by MachineSet
  seedquota denials --seed eu-1 --seed us-1     # of seeds that the master knows
  seedquota denials --context seed-1 -n alpha --reason QuotaExceeded -o wide

API servers keep Events for an hour, unless they are told otherwise. Many refusals of one object are one Event: its note
is that of the first, its count that of all. Refusals of objects in namespaces make no Events. You need the right to
list events.events.k8s.io.
Exit status: 0 done, 1 failed, 3 a seed of --seed could not be asked.
"""


class _Series(msgspec.Struct, rename="camel"):
    count: int = 1
    last_observed_time: str = ""


class _Regarding(msgspec.Struct):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(Object, frozen=True, kw_only=True):
    reason: str = ""
    note: str = ""
    event_time: str | None = None
    reporting_controller: str = ""
    regarding: _Regarding = msgspec.field(default_factory=_Regarding)
    series: _Series | None = None


EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True, Event)


class Denied(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was refused about one object. `last` and `first` are times, `count` how often in between. `seed` is empty
    where it is not known."""

    last: str
    first: str
    count: int
    reason: str
    object: str
    message: str
    seed: str = ""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=seconds,
        default=3600.0,
        metavar="DURATION",
        help="age of the oldest refusal that is shown [default 1h]",
    )
    parser.add_argument("--reason", choices=REASONS, help="only refusals for this reason; not set: all")
    parser.add_argument("-n", "--namespace", help="only in this namespace; not set: all")
    add_cluster(parser, "a seed or a user cluster; with --seed of the master cluster")
    fleet.add_seeds(parser, "show its refusals")
    fleet.add_master_namespace(parser)
    add_output(parser, "table", "wide", "json", "yaml")
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> Printed:
    now = datetime.now(UTC)
    async with connected(options, "cluster") as cluster:
        events, failed = await (_of_seeds if fleet.is_asked(options) else _of_one)(cluster, options)
    try:
        found = ordered(
            msgspec.structs.replace(each, seed=seed)
            for seed, there in events.items()
            for each in denials(there, now, options.since, options.reason)
        )
    except ValueError as error:
        raise Failed(f"an Event cannot be read: {error}") from None
    status = STALE if failed else DONE
    if options.output in ("json", "yaml"):
        plain: dict[str, object] = {"items": found, "notKnown": failed}
        return Printed(reading.written(plain, options.output), status)
    most = terminal.width()
    blocks = [table(found, now, most, wide=options.output == "wide")]
    return Printed("\n\n".join([*blocks, *([terminal.not_known(failed, most)] if failed else [])]), status)


async def _of_one(cluster: Cluster, options: argparse.Namespace) -> tuple[dict[str, list[Event]], list[str]]:
    events = await reading.every(cluster, EVENTS, options.namespace)
    if not any(event.reporting_controller == CONTROLLER for event in events):
        await _refuse_master(cluster)
    return {"": events}, []


async def _of_seeds(master: Cluster, options: argparse.Namespace) -> tuple[dict[str, list[Event]], list[str]]:
    """By seed."""

    async def question(_: Seed, seed: Cluster) -> list[Event]:
        return await reading.every(seed, EVENTS, options.namespace)

    seeds = fleet.chosen(options, await reading.every(master, SEEDS))
    found, failed = await fleet.ask(master, seeds, options.master_namespace, question)
    return found, [f"refusals on {seed}: {why}" for seed, why in failed.items()]


async def events_of(_: Seed, seed: Cluster) -> list[Event]:
    return await reading.every(seed, EVENTS)


async def _refuse_master(cluster: Cluster) -> None:
    """Raises Failed where nobody writes such Events: that there are none would be no answer."""
    try:
        seeds = await reading.every(cluster, SEEDS)
    except (Failed, ApiError):
        return  # a user cluster has none
    if seeds and not any(UID_LABEL in seed.metadata.labels or seed.spec.in_cluster for seed in seeds):
        raise Failed(
            f"{cluster.server} is the master, and refusals are Events of seeds and user clusters: --context names one, "
            "--seed a seed"
        )


def denials(events: Sequence[Event], now: datetime, since: float, reason: str | None) -> list[Denied]:
    """The last first. Raises ValueError."""
    found = []
    for event in events:
        if event.reporting_controller != CONTROLLER or event.reason not in ((reason,) if reason else REASONS):
            continue
        first = event.event_time or event.metadata.creation_timestamp or ""
        last = event.series.last_observed_time if event.series is not None else first
        if first and staleness.seconds_since(last, now) <= since:
            about = event.regarding
            name = "/".join(filter(None, (about.kind.lower(), about.namespace, about.name)))
            count = event.series.count if event.series is not None else 1
            found.append(Denied(last, first, count, event.reason, name, event.note))
    return ordered(found)


def ordered(found: Iterable[Denied]) -> list[Denied]:
    """The last first."""
    return sorted(found, key=lambda each: (each.last, each.object), reverse=True)


def of_quota(events: Sequence[Event], quota: ObjectMeta, now: datetime, since: float = math.inf) -> list[Denied]:
    """Those that this quota refused, and not an earlier one of its name. One about a size, a project or a seed is of no
    quota. Raises ValueError."""
    if quota.creation_timestamp:
        since = min(since, staleness.seconds_since(quota.creation_timestamp, now))
    starts = (f"exceeded quota: {quota.name}, ", f"quota {quota.name} cannot decide")
    return [each for each in denials(events, now, since, None) if each.message.startswith(starts)]


def without_quota(denied: Denied, name: str) -> Denied:
    """Shorter, for where all are of one quota."""
    message = denied.message.removeprefix(f"exceeded quota: {name}, ").removeprefix(f"quota {name} ")
    return msgspec.structs.replace(denied, message=message)


def table(found: Sequence[Denied], now: datetime, most: int | None, *, wide: bool = False) -> str:
    """`wide` is as wide as it needs to be. The seed has a column where there are several."""
    if not found:
        return "nothing was refused"
    columns = [
        Column("LAST", [staleness.age(each.last, now) for each in found]),
        Column("FIRST", [staleness.age(each.first, now) for each in found], goes=2),
        Column("COUNT", [str(each.count) for each in found], goes=1),
        Column("REASON", [each.reason for each in found]),
        Column("OBJECT", [each.object for each in found]),
        Column("MESSAGE", [each.message for each in found]),
    ]
    if len({each.seed for each in found}) > 1:
        columns.insert(-1, Column("SEED", [each.seed for each in found]))
    return terminal.fit(columns, None if wide else most)[0]
