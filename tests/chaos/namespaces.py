"""Quotas of namespaces under chaos, and what is surely in them at a moment.

owner-ann            pods in namespaces that never leave it: each of them was admitted
owner-bob            pods in namespaces that are labelled and unlabelled: what comes in with a label was not admitted
allocation.owner-cat core ResourceQuotas: each namespace counts with its largest

Of owner-bob a pod counts here only if its namespace had the label for longer than any replica may be behind when its
creation was sent, and has it still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec

from common.quota import resources
from common.quota.resources import ResourceList
from devcluster import objects
from devcluster.controlplane import ApiServer
from devcluster.install import Installation
from devcluster.manifests import Manifest, apply
from tests.chaos import filling
from tests.chaos.filling import Ask, Asked, End
from tests.chaos.quotas import HOSTS, Quota, cluster_of, key
from tests.chaos.truth import Holdings, Metadata, Observer, Sized, Thing

BEHIND = 35.0  # seconds: labels that a replica decides by may be 25 s old, and a request takes its time
QUOTA_LABEL = "counted-by"  # of objects, so that each observer follows its own
_TRIES = 120
_PAUSE = 0.5


class NamespaceQuota(Quota):
    """`namespaces`: their names, in each user cluster. `moves`: they come and go."""

    def __init__(self, name: str, owner: str, quota: Mapping[str, str], *, moves: bool = False, promises: bool = False):
        super().__init__(name, "namespaces", owner, quota, tuple(key(name, cluster) for cluster in HOSTS))
        self.namespaces = [f"{owner}-{number}" for number in (1, 2, 3)]
        self.moves = moves
        self.promises = promises

    @property
    def labels(self) -> Mapping[str, str]:
        return {"owner": self.subject}

    @property
    def manifest(self) -> Manifest:
        selector = {"matchLabels": self.labels}
        if self.promises:
            name = self.name.partition(".")[2]
            hard = {"hard": dict(self.quota)}
            return objects.named("ResourceQuotaAllocation", name, selector=selector, allocation=hard)
        subject = {"kind": "namespaces", "selector": selector}
        return objects.named("ResourceQuota", self.name, subject=subject, quota=dict(self.quota))

    @property
    def plural(self) -> str:
        return "resourcequotas" if self.promises else "pods"

    def path(self, namespace: str) -> str:
        return f"/api/v1/namespaces/{namespace}/{self.plural}"


ANN = NamespaceQuota("owner-ann", "ann", {"pods": "24", "requests.cpu": "32"})
BOB = NamespaceQuota("owner-bob", "bob", {"pods": "12"}, moves=True)
CAT = NamespaceQuota("allocation.owner-cat", "cat", {"requests.cpu": "24"}, promises=True)
NAMESPACED = (ANN, BOB, CAT)


class Amounts(msgspec.Struct, frozen=True):
    amounts: ResourceList


class _Container(msgspec.Struct):
    resources: dict[str, dict[str, str]]


class _PodSpec(msgspec.Struct):
    containers: list[_Container]


class Pod(msgspec.Struct):
    metadata: Metadata
    spec: _PodSpec

    @property
    def size(self) -> Sized:
        """Nothing once its deletion has begun, as core counts: it has no grace. It stays where whoever deleted it gave
        up between the two writes of an API server."""
        if self.metadata.deletion_timestamp is not None:
            return Amounts({})
        return size_of_pod(self.spec.containers[0].resources["requests"]["cpu"])


class _CoreQuotaSpec(msgspec.Struct):
    hard: dict[str, str]


class CoreQuota(msgspec.Struct):
    metadata: Metadata
    spec: _CoreQuotaSpec

    @property
    def size(self) -> Sized:
        return size_of_quota(self.spec.hard["requests.cpu"])


_pod = msgspec.json.Decoder(Pod)
_core_quota = msgspec.json.Decoder(CoreQuota)


def decoder_of(quota: NamespaceQuota) -> msgspec.json.Decoder[Any]:
    return _core_quota if quota.promises else _pod


def size_of_pod(cpu: str) -> Sized:
    return Amounts(resources.parse({"pods": "1", "requests.cpu": cpu}))


def size_of_quota(cpu: str) -> Sized:
    return Amounts(resources.parse({"requests.cpu": cpu}))


def body(quota: NamespaceQuota, name: str, cpu: str) -> Manifest:
    metadata = {"name": name, "labels": {QUOTA_LABEL: quota.name}}
    if quota.promises:
        return {"metadata": metadata, "spec": {"hard": {"requests.cpu": cpu}}}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": metadata, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}


class Membership:
    """Since when namespaces surely are what their quota selects. `asked`: when the creation of an object was sent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.asked: dict[str, float] = {}  # by name
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}  # by cluster and namespace

    def made(self, cluster: str, namespace: str) -> None:
        """Before any quota was there."""
        self._since[cluster, namespace] = self._clock() - BEHIND

    def enters(self, cluster: str, namespace: str) -> None:
        self._since.setdefault((cluster, namespace), self._clock())

    def leaves(self, cluster: str, namespace: str) -> None:
        """Or may."""
        self._since.pop((cluster, namespace), None)

    def sends(self, name: str) -> None:
        self.asked[name] = self._clock()

    def admitted(self, cluster: str, namespace: str, name: str) -> bool:
        since = self._since.get((cluster, namespace))
        return since is not None and self.asked.get(name, 0.0) >= since + BEHIND


class NamespaceHoldings(Holdings):
    """Of one quota in one user cluster."""

    def __init__(
        self,
        on_change: Callable[[], None],
        quota: NamespaceQuota,
        cluster: str,
        membership: Membership,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(on_change, clock)
        self.quota = quota
        self.cluster = cluster
        self._membership = membership

    def namespace_of(self, name: str) -> str:
        return self._machines[name].metadata.namespace

    def look(self) -> None:
        """Labels have moved."""
        self._recount()

    def _total(self, there: list[tuple[Thing, ResourceList]]) -> dict[str, int]:
        admitted = [
            (thing.metadata.namespace, amounts)
            for thing, amounts in there
            if self._membership.admitted(self.cluster, thing.metadata.namespace, thing.metadata.name)
        ]
        return resources.total(counted(self.quota, admitted).values())


def counted(quota: NamespaceQuota, there: list[tuple[str, ResourceList]]) -> dict[str, ResourceList]:
    """By namespace. `there`: what has that amount, and in which namespace."""
    found: dict[str, ResourceList] = {}
    together = resources.maximum if quota.promises else resources.add
    for namespace, amounts in there:
        found[namespace] = together(found.get(namespace, {}), amounts)
    return found


class NamespaceObserver(Observer):
    def __init__(self, server: ApiServer, holdings: NamespaceHoldings) -> None:
        quota = holdings.quota
        labels = f"{QUOTA_LABEL}={quota.name}"
        super().__init__(server, holdings, f"/api/v1/{quota.plural}", decoder_of(quota), labels)
        self._quota = quota

    async def recount(self) -> dict[str, ResourceList]:
        """What each namespace that is selected counts with."""
        things, version = await self._list()
        self.holdings.listed(things, version)
        selector = {"labelSelector": ",".join(f"{name}={value}" for name, value in self._quota.labels.items())}
        async with self._session.get("/api/v1/namespaces", params=selector, raise_for_status=True) as answer:
            selected = {item["metadata"]["name"] for item in (await answer.json())["items"]}
        there = [(thing.metadata.namespace, thing.size.amounts) for thing in things]
        return {name: found for name, found in counted(self._quota, there).items() if name in selected}


async def install(installed: Installation, membership: Membership) -> None:
    """All user clusters take part, and have their namespaces."""
    for cluster in HOSTS:
        for quota in NAMESPACED:
            manifests: list[Manifest] = []
            for name in quota.namespaces:
                manifests.append({**objects.namespace(name), "metadata": {"name": name, "labels": dict(quota.labels)}})
                metadata = {"name": "default", "namespace": name}
                manifests.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
                membership.made(cluster, name)
            await apply(installed.cluster(cluster), manifests)
    path = "/apis/seedquota.io/v1alpha1/namespaces/{project}/userclusters/{name}"
    for cluster, seed in HOSTS.items():
        project = "beta" if cluster == "user-3" else "alpha"
        async with installed.cluster(seed).session() as session:
            patch = {"spec": {"namespaceQuotas": "Enabled"}}
            headers = {"Content-Type": "application/merge-patch+json"}
            where = path.format(project=project, name=cluster)
            async with session.patch(where, json=patch, headers=headers, raise_for_status=True):
                pass


# After the storm -----------------------------------------------------------------------------------------------------


def room(quota: NamespaceQuota, used: ResourceList) -> int:
    """How many pods of one cpu still fit, or how much more may be promised."""
    free = resources.subtract(quota.limit.amounts, used)
    unit = (size_of_quota("1") if quota.promises else size_of_pod("1")).amounts
    return min(max(amount, 0) // unit[name] for name, amount in free.items())


async def fill(installed: Installation, observers: Mapping[str, Observer]) -> list[str]:
    """Until each cluster has been refused since the last was admitted. Returns answers that were wrong."""
    wrong = []
    for quota in NAMESPACED:
        inside = quota.namespaces[0]
        async with AsyncExitStack() as stack:
            by: dict[str, Ask] = {}
            for name in quota.limit.clusters:
                found = (await observers[name].recount()).get(inside, {})
                largest = found.get("requests.cpu", 0) // 10**9 if quota.promises else 0
                session = await stack.enter_async_context(installed.cluster(cluster_of(name)).session())
                by[cluster_of(name)] = _Filler(session, quota, inside, largest).ask
            wrong += await filling.fill(quota.name, by)
    return wrong


class _Filler:
    """Of one quota in one namespace of a cluster. `largest`: the cpu of its largest core ResourceQuota."""

    def __init__(self, session: aiohttp.ClientSession, quota: NamespaceQuota, inside: str, largest: int) -> None:
        self._session = session
        self._quota = quota
        self._inside = inside
        self._largest = largest
        self._made = 0

    async def ask(self) -> Asked:
        name, said = f"fill-{self._made}", ""
        for lost in range(_TRIES):
            status, said = await self._create(name, str(self._largest + 1))
            if status in (201, 409):
                self._made += 1
                self._largest += 1 if self._quota.promises else 0
                return Asked(End.MADE, lost, "")
            if status == 403:
                return Asked(filling.refusal(said), lost, said)
            await asyncio.sleep(_PAUSE)
        return Asked(End.WRONG, _TRIES, f"{status} {said}")

    async def _create(self, name: str, cpu: str) -> tuple[int, str]:
        try:
            path = self._quota.path(self._inside)
            async with self._session.post(path, json=body(self._quota, name, cpu)) as answer:
                return answer.status, str((await answer.json()).get("message", ""))
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, repr(error)
