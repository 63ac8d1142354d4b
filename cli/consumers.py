"""Shows who uses a quota. The largest amounts are first."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from cli import figures, quotas, reading, terminal
from cli.connection import add_cluster, add_namespace, connected
from cli.outcome import DONE, STALE, Failed, Printed
from cli.seeds import fleet, on_seed
from cli.terminal import Column, add_output
from common.api.types import PROJECTS, SEEDS, UserCluster
from common.kube.client.api_client import Cluster
from common.quota import resources
from common.quota.names import in_order
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, spec_quota
from master.quotas import staleness

_EXAMPLES = """\
examples:
  seedquota consumers project-alpha               # by seed
  seedquota consumers project-alpha --seed eu-1   # of that seed by user cluster, too
  seedquota consumers owner-ann                   # of kind namespaces: by cluster and namespace

Of seeds it is what is counted and reserved; of user clusters what was counted last. Clusters themselves are counted by
project and not in a user cluster.
Exit status: 0 done, 1 failed, 3 a figure may be out of date.
"""


class Consumer(msgspec.Struct, frozen=True, rename="camel"):
    """`kind` is seed, cluster or namespace. `as_of` is empty where the quota's status does not say it, `seed` where it
    is not of a cluster."""

    kind: str
    name: str
    used: dict[str, str]
    as_of: str = ""
    seed: str = ""


def declare(commands: Any) -> None:
    parser = commands.add_parser(
        "consumers",
        help="show who uses how much of a quota",
        description=__doc__,
        epilog=_EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME", help=quotas.NAMED)
    add_cluster(parser)
    fleet.add_seeds(parser, "show its user clusters")
    add_namespace(parser)
    add_output(parser, "table", "wide", "json", "yaml")
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> Printed:
    now = datetime.now(UTC)
    async with connected(options, "master") as master:
        quota = await quotas.the_one(master, options.name)
        seeds = await reading.every(master, SEEDS)
        asked = fleet.chosen(options, seeds)
        projects = await projects_of(master, quota) if asked else set()
        clusters, away = await on_seed.clusters_of(master, asked, options.namespace, projects)
    silence = staleness.silence_of_master(seeds, now)
    try:
        found = consumers(quota, clusters)
    except QuantityError as error:
        raise Failed(f"a use of {options.name} cannot be read: {error}") from None
    stale = [*(each.text(now) for each in staleness.stale_of(quota, silence)), *away]
    status = STALE if stale else DONE
    if options.output in ("json", "yaml"):
        plain: dict[str, object] = {"items": found, "omitted": _omitted(quota), "stale": stale}
        return Printed(reading.written(plain, options.output), status)
    most = None if options.output == "wide" else terminal.width()
    return Printed(text(found, _omitted(quota), stale, now, most), status)


async def projects_of(master: Cluster, quota: MasterQuota) -> set[str]:
    """Whose clusters it counts. Raises Failed, also for a quota that counts namespaces."""
    kind, _, name = figures.subject_of(quota).partition("/")
    if kind == "project":
        return {name}
    if kind != "organization":
        raise Failed(f"seedquota/{quota.metadata.name} counts namespaces: ask without --seed")
    return {each.metadata.name for each in await reading.every(master, PROJECTS) if each.spec.organization == name}


def consumers(quota: MasterQuota, clusters: Mapping[str, Sequence[UserCluster]]) -> list[Consumer]:
    """Of each kind the largest first. `clusters`: by seed. Raises QuantityError."""
    limits = resources.parse(quota.status.hard or spec_quota(quota))

    def shown(
        kind: str, name: str, used: Mapping[str, str | int], as_of: str = "", seed: str = ""
    ) -> tuple[float, Consumer]:
        amounts = resources.only(resources.parse(used), in_order(limits))
        return _share(amounts, limits), Consumer(kind, name, resources.render(amounts), as_of, seed)

    status = quota.status
    by_kind = [
        [shown("seed", each.name, each.local_usage, each.last_report_time) for each in status.seeds],
        [
            shown("cluster", each.metadata.key, each.status.resource_usage, each.status.last_count_time, seed)
            for seed, there in clusters.items()
            for each in there
        ],
        [shown("namespace", f"{each.cluster}/{each.namespace}", each.used) for each in status.namespaces],
    ]
    return [
        one
        for found in by_kind
        for _, one in sorted(found, key=lambda each: (-each[0], each[1].name))
        if any(amount != "0" for amount in one.used.values())
    ]


def _share(used: ResourceList, limits: ResourceList) -> float:
    """Of the limit of which it has most."""
    return max((amount / limits[name] for name, amount in used.items() if limits[name]), default=0.0)


def _omitted(quota: MasterQuota) -> dict[str, int]:
    found = {"seeds": quota.status.seeds_omitted, "namespaces": quota.status.namespaces_omitted}
    return {kind: count for kind, count in found.items() if count}


def text(
    found: Sequence[Consumer], omitted: Mapping[str, int], stale: Sequence[str], now: datetime, most: int | None
) -> str:
    if not found:
        return "nobody uses it"
    lines = table(found, now, most, "-o wide")
    lines += [f"and {count} more {kind}" for kind, count in omitted.items()]
    if stale:
        lines.append(terminal.wrapped(f"May be out of date: {', '.join(stale)}", most, "  "))
    return "\n".join(lines)


def table(found: Sequence[Consumer], now: datetime, most: int | None, wide: str) -> list[str]:
    """`wide`: what shows the columns for which there is no room. The seed has a column where there are several."""
    names = in_order({name: None for each in found for name in each.used})
    columns = [
        Column("CONSUMER", [f"{each.kind}/{each.name}" for each in found]),
        *(
            Column(name if "/" in name else name.upper(), [each.used.get(name, "") for each in found], number)
            for number, name in enumerate(names, 1)
        ),
    ]
    if len({each.seed for each in found if each.seed}) > 1:
        columns.append(Column("SEED", [each.seed for each in found]))
    if any(each.kind == "cluster" for each in found):
        ages = [staleness.age(each.as_of, now) if each.kind == "cluster" else "" for each in found]
        columns.append(Column("COUNTED", ages))
    said, left_out = terminal.fit(columns, most)
    lines = [said]
    if left_out:
        lines.append(terminal.wrapped(f"not shown for lack of room: {', '.join(left_out)}; see {wide}", most))
    return lines
