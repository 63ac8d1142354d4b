"""Who uses a quota: the largest first. Pure, but for the projects of an organization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from cli import figures, reading, terminal
from cli.outcome import Failed
from cli.terminal import Column
from common.api.types import PROJECTS, UserCluster
from common.kube.client.api_client import Cluster
from common.quota import resources
from common.quota.names import in_order
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, spec_quota
from master.quotas import staleness


class Consumer(msgspec.Struct, frozen=True, rename="camel"):
    """`kind` is cluster, namespace or project. Of a namespace, `as_of` is empty; so is `seed` of one that the quota's
    status names."""

    kind: str
    name: str
    used: dict[str, str]
    as_of: str = ""
    seed: str = ""
    project: str = ""


async def projects_of(master: Cluster, quota: MasterQuota) -> set[str]:
    """Whose clusters it counts. Raises Failed, also for a quota that counts namespaces."""
    kind, _, name = figures.subject_of(quota).partition("/")
    if kind == "project":
        return {name}
    if kind != "organization":
        raise Failed(f"seedquota/{quota.metadata.name} counts namespaces: ask without --seed")
    return {each.metadata.name for each in await reading.every(master, PROJECTS) if each.spec.organization == name}


def consumers(
    quota: MasterQuota, clusters: Mapping[str, Sequence[UserCluster]], namespaces: Sequence[Consumer] | None = None
) -> list[Consumer]:
    """Of each kind the largest first. `clusters`: by seed. `namespaces`: all of them; None: those that the quota's
    status names. Raises QuantityError."""
    limits = resources.parse(quota.status.hard or spec_quota(quota))

    def limited(used: Mapping[str, str | int]) -> dict[str, str]:
        return resources.render(resources.only(resources.parse(used), in_order(limits)))

    of_clusters = [
        Consumer(
            "cluster",
            each.metadata.key,
            limited(each.status.resource_usage),
            each.status.last_count_time,
            seed,
            each.spec.project,
        )
        for seed, there in clusters.items()
        for each in there
    ]
    if namespaces is None:
        namespaces = [
            Consumer("namespace", f"{each.cluster}/{each.namespace}", limited(each.used), project=each.project)
            for each in quota.status.namespaces
        ]
    return [*ordered(of_clusters, limits), *ordered(namespaces, limits)]


def by_project(found: Sequence[Consumer], limits: ResourceList) -> list[Consumer]:
    """The sums of each project; what is of none is summed, too. Raises QuantityError."""
    sums: dict[str, ResourceList] = {}
    for each in found:
        sums[each.project] = resources.add(sums.get(each.project, {}), resources.parse(each.used))
    shown = (
        Consumer("project", name or "-", resources.render(resources.only(used, in_order(limits))), project=name)
        for name, used in sums.items()
    )
    return ordered(shown, limits)


def ordered(found: Iterable[Consumer], limits: ResourceList) -> list[Consumer]:
    """The largest first, without those that use nothing. Raises QuantityError."""
    shares = ((_share(resources.parse(each.used), limits), each) for each in found)
    return [
        one
        for _, one in sorted(shares, key=lambda each: (-each[0], each[1].name, each[1].seed))
        if any(amount != "0" for amount in one.used.values())
    ]


def _share(used: ResourceList, limits: ResourceList) -> float:
    """Of the limit of which it has most."""
    return max((amount / limits[name] for name, amount in used.items() if limits[name]), default=0.0)


def table(found: Sequence[Consumer], now: datetime, most: int | None, wide: str) -> list[str]:
    """`wide`: what shows the columns for which there is no room. Seed and project have a column where there are
    several."""
    names = in_order({name: None for each in found for name in each.used})
    columns = [
        Column("CONSUMER", [f"{each.kind}/{each.name}" for each in found]),
        *(
            Column(name if "/" in name else name.upper(), [each.used.get(name, "") for each in found], number)
            for number, name in enumerate(names, 1)
        ),
    ]
    if len({each.project for each in found if each.kind != "project"}) > 1:
        columns.append(Column("PROJECT", [each.project or "-" for each in found]))
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
