"""Which user clusters use most of a quota: what seeds say of theirs, over all seeds. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from common.api import cluster_selector
from common.api.bounded import FewAmounts
from common.api.cluster_selector import ClusterSelector
from common.api.labels import GROUP, VERSION
from common.api.types import Wire
from common.kube.client.meta import Object
from common.kube.client.resource import Resource, weigh
from common.quota import resources
from common.quota.largest import largest
from common.quota.names import OF_NO_CLUSTER
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList
from master.apiserver.route import NAME
from master.apiserver.serializers import AnswerBody, limits_of
from master.cache.objects import MasterQuota

MOST: Final = 100
_LONGEST_TIME: Final = 40
MOST_OF_SEED: Final = 16 * 2**20  # bytes


class _Spec(Wire):
    project: str = ""


class _Status(Wire):
    resource_usage: FewAmounts = {}
    last_count_time: str = ""


class CountedCluster(Object, frozen=True, kw_only=True):
    """A UserCluster, as far as it says what its Machines use."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


COUNTED_CLUSTERS = Resource(
    GROUP, VERSION, "userclusters", "UserCluster", True, CountedCluster, most=MOST_OF_SEED, weigh=weigh
)


class QuotaCluster(AnswerBody, kw_only=True):
    """`cluster`: namespace and name of the UserCluster. `used`: by its Machines, of what the quota limits. `asOf`: when
    they were counted last."""

    seed: str
    cluster: str
    project: str
    used: dict[str, str]
    as_of: str


class QuotaClusters(AnswerBody, kw_only=True):
    """The largest first. `omitted`: how many others there are. `rest`: what the quota uses beyond all of them on the
    seeds that were asked. `notCounted`: how many were not counted yet, or cannot be read. `notAsked`: why no seed, or
    not each one, was asked."""

    items: Annotated[list[QuotaCluster], Meta(max_length=MOST)]
    omitted: int
    rest: dict[str, str]
    not_counted: int
    not_asked: str


def together(
    quota: MasterQuota,
    projects: Collection[str],
    of_seeds: Mapping[str, Sequence[CountedCluster]],
    limit: int,
    not_asked: str,
) -> QuotaClusters:
    """`projects`: whose user clusters the quota counts. Raises QuantityError for a status of the quota that cannot be
    read."""
    selector, limits = _selector(quota), limits_of([quota])
    counted, not_counted = list[tuple[tuple[str, str], ResourceList]](), 0
    known: dict[tuple[str, str], CountedCluster] = {}
    for seed, cluster in _of(projects, selector, of_seeds):
        used = _used(cluster, limits)
        if used is None:
            not_counted += 1
        elif any(used.values()):
            key = (seed, cluster.metadata.key)
            known[key] = cluster
            counted.append((key, used))
    shown = largest(counted, limits, limit)
    total = resources.total(used for _, used in counted)
    lines = [line for line in quota.status.seeds if line.name in of_seeds]
    reported = resources.total(resources.parse(line.local_usage) for line in lines)
    of_clusters = resources.only(reported, limits.keys() - OF_NO_CLUSTER)
    beyond = resources.at_least_zero(resources.subtract(of_clusters, total))
    return QuotaClusters(
        items=[
            QuotaCluster(
                seed=key[0],
                cluster=key[1],
                project=known[key].spec.project,
                used=resources.render(used),
                as_of=known[key].status.last_count_time,
            )
            for key, used in shown
        ],
        omitted=len(counted) - len(shown),
        rest=resources.render({name: amount for name, amount in beyond.items() if amount}),
        not_counted=not_counted,
        not_asked=not_asked,
    )


def _of(
    projects: Collection[str], selector: ClusterSelector | None, of_seeds: Mapping[str, Sequence[CountedCluster]]
) -> Iterator[tuple[str, CountedCluster]]:
    """Those that the quota counts. What claims to be a seed may list what no API server has."""
    for seed, clusters in of_seeds.items():
        for each in clusters:
            namespace, name = each.metadata.namespace, each.metadata.name
            named = NAME.fullmatch(namespace) and NAME.fullmatch(name) and each.spec.project in projects
            if named and (selector is None or cluster_selector.picks(selector, namespace, name, each.metadata.labels)):
                yield seed, each


def _used(cluster: CountedCluster, limits: ResourceList) -> ResourceList | None:
    """None: it was not counted yet, or cannot be read."""
    if not _is_time(cluster.status.last_count_time):
        return None
    try:
        usage = cluster.status.resource_usage
        used = resources.parse({name: usage[name] for name in limits if name in usage})
    except QuantityError:
        return None
    return used if all(amount >= 0 for amount in used.values()) else None


def _is_time(text: str) -> bool:
    """Of RFC 3339, as an agent writes it."""
    try:
        return len(text) <= _LONGEST_TIME and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _selector(quota: MasterQuota) -> ClusterSelector | None:
    subject = quota.spec.get("subject")
    found = subject.get("clusters") if isinstance(subject, dict) else None
    return msgspec.convert(found, ClusterSelector) if found is not None else None
