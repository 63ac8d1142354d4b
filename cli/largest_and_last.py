"""The largest consumers of a quota and its last denials, as far as they are known where a command runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from cli import consumers, denials, figures, quotas, reading
from cli.consumers import Consumer
from cli.denials import Denied, Event
from cli.outcome import Failed
from cli.seeds import fleet, on_seed
from common.api.conditions import count
from common.api.types import USER_CLUSTERS, Seed, UserCluster
from common.kube.client.api_client import Cluster
from common.quota import object_names, resources
from common.quota.names import OF_NO_CLUSTER
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, SeedUsage, spec_quota

SHOWN = 10
NAMED = 5  # seeds or clusters in one line

_OF_NAMESPACES = (
    "denials: those of objects in namespaces make no Events; `seedquota history {quota} --prometheus URL` shows how "
    "many there were"
)
_BEYOND = (
    "the rest of the use on {seeds}, which no UserCluster has: what is being created, Allocations, clusters of "
    "Kubermatic or Cluster API"
)


class Told(msgspec.Struct):
    """What seeds told, by their names. What could not be read of a seed that the user named is in `failed`; of the seed
    in the master's own cluster, which is read unasked, in `not_read`."""

    clusters: dict[str, list[UserCluster]] = {}
    refused: dict[str, list[Denied]] = {}
    failed: list[str] = []
    not_read: list[str] = []


class LargestAndLast(msgspec.Struct, frozen=True):
    """The first of each, and how many others there are; None: they are not known. `asked_*`: the seeds that told.
    `not_known`: what is missing, and what would show it."""

    consumers: Sequence[Consumer] | None = None
    more_consumers: int = 0
    denials: Sequence[Denied] | None = None
    more_denials: int = 0
    asked_consumers: Sequence[str] = ()
    asked_denials: Sequence[str] = ()
    not_known: Sequence[str] = ()


class _OfSeed(msgspec.Struct):
    """Of one seed. None: it could not be read, and `missing` says why."""

    clusters: list[UserCluster] | None
    events: list[Event] | None
    missing: list[str]


async def ask(
    master: Cluster, quota: MasterQuota, seeds: Sequence[Seed], named: Sequence[Seed], namespace: str, now: datetime
) -> Told:
    """`named`: the seeds that the user wants to be asked. `namespace`: of their Secrets. Raises Failed."""
    told = Told()
    here = [each for each in seeds if each.spec.in_cluster and each not in named] if counts_clusters(quota) else []
    try:
        projects = await consumers.projects_of(master, quota) if named or here else set()
    except Failed as error:
        if named:
            raise
        told.not_read += [f"user clusters and denials on {each.metadata.name}: {error}" for each in here]
        return told
    wanted = {each.metadata.name for each in named}
    answers, failed = await fleet.ask(master, [*named, *here], namespace, _read)
    told.failed += [on_seed.unreachable(name, why) for name, why in failed.items()]
    for name, answer in answers.items():
        (told.failed if name in wanted else told.not_read).extend(answer.missing)
        if answer.clusters is not None:
            told.clusters[name] = [each for each in answer.clusters if each.spec.project in projects]
        if answer.events is not None:
            try:
                told.refused[name] = of_events(answer.events, quota, name, now)
            except ValueError as error:
                told.failed.append(f"denials on {name}: an Event cannot be read: {error}")
    return told


async def _read(seed: Seed, cluster: Cluster) -> _OfSeed:
    name, missing = seed.metadata.name, list[str]()
    clusters = await reading.if_possible(cluster, USER_CLUSTERS, f"user clusters on {name}", missing)
    events = await reading.if_possible(cluster, denials.EVENTS, f"denials on {name}", missing)
    return _OfSeed(clusters, events, missing)


def of_events(events: Sequence[Event], quota: MasterQuota, seed: str, now: datetime) -> list[Denied]:
    """Raises ValueError."""
    return [msgspec.structs.replace(each, seed=seed) for each in denials.of_quota(events, quota.metadata, now)]


def counts_clusters(quota: MasterQuota) -> bool:
    return figures.subject_of(quota).partition("/")[0] in quotas.SUBJECTS


def known(quota: MasterQuota, told: Told, most: int | None = SHOWN) -> LargestAndLast:
    """`most` of each; None: all. Raises QuantityError."""
    users = consumers.consumers(quota, told.clusters)
    refused = denials.ordered(each for found in told.refused.values() for each in found)
    of_clusters = counts_clusters(quota)
    not_known = [*told.failed, *told.not_read]
    if of_clusters:
        not_known += [*_not_asked(quota, told), *not_counted(quota, told.clusters)]
    else:
        not_known.append(_OF_NAMESPACES.format(quota=quota.metadata.name))
    return LargestAndLast(
        consumers=users[:most] if told.clusters or quota.status.namespaces or not of_clusters else None,
        more_consumers=len(users) - len(users[:most]) + quota.status.namespaces_omitted,
        denials=refused[:most] if told.refused else None,
        more_denials=len(refused) - len(refused[:most]),
        asked_consumers=sorted(told.clusters),
        asked_denials=sorted(told.refused),
        not_known=not_known,
    )


def _not_asked(quota: MasterQuota, told: Told) -> list[str]:
    asked = told.clusters.keys() | told.refused.keys()
    listed = {each.name for each in quota.status.seeds}
    others = [each.name for each in quota.status.seeds if each.name not in asked]
    omitted = max(quota.status.seeds_omitted - len(asked - listed), 0)
    if asked and not others and not omitted:
        return []
    where = f" on {_some(others, omitted)}" if others or omitted else ""
    return [f"user clusters and denials{where}: --seed NAME asks one, --all-seeds all of them"]


def not_counted(quota: MasterQuota, clusters: Mapping[str, Sequence[UserCluster]]) -> list[str]:
    """What these clusters, by seed, do not tell of the use of Machines. Raises QuantityError."""
    limits = resources.parse(quota.status.hard or spec_quota(quota))
    new = [each.metadata.key for there in clusters.values() for each in there if not each.status.last_count_time]
    beyond = [each.name for each in quota.status.seeds if each.name in clusters and _beyond(each, clusters, limits)]
    found = [f"what {_some(sorted(new))} uses: it was not counted yet"] if new else []
    return [*found, _BEYOND.format(seeds=_some(beyond))] if beyond else found


def _beyond(line: SeedUsage, clusters: Mapping[str, Sequence[UserCluster]], limits: ResourceList) -> bool:
    """Clusters themselves are counted by project. Of what a cluster has, the seed counts what the quota limits."""
    counted: ResourceList = {}
    for each in clusters[line.name]:
        counted = resources.add(counted, resources.parse(each.status.resource_usage))
    used = resources.parse(line.local_usage)
    elsewhere = OF_NO_CLUSTER | object_names.of_objects(limits)  # what is in namespaces is among the consumers
    names = limits.keys() - elsewhere
    return any(amount > counted.get(name, 0) for name, amount in used.items() if name in names)


def _some(names: Sequence[str], omitted: int = 0) -> str:
    """The first ones, and how many others there are."""
    if not names:
        return count(omitted, "more seed")
    more = len(names) - len(names[:NAMED]) + omitted
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more else "")
