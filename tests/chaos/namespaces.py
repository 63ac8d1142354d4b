"""Quotas of namespaces under chaos, and what is surely in them at a moment.

owner-ann            pods in namespaces that never leave it: each of them was admitted
owner-bob            pods in namespaces that are labelled and unlabelled: what comes in with a label was not admitted
allocation.owner-cat core ResourceQuotas: each namespace counts with its largest

Of owner-bob a pod counts here only if its namespace had the label for longer than any replica may be behind when its
creation was sent, and has it still.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec

from common.quota import resources
from common.quota.resources import ResourceList
from devcluster import objects
from devcluster.controlplane import ApiServer
from devcluster.install import IN_FLIGHT_WINDOW, Installation
from devcluster.load import parse_refusal
from devcluster.manifests import Manifest, apply
from tests.chaos.quotas import HOSTS, Quota, cluster_of, key
from tests.chaos.truth import Holdings, Metadata, Observer, Sized, Thing

BEHIND = 35.0  # seconds: labels that a replica decides by may be 25 s old, and a request takes its time
QUOTA_LABEL = "counted-by"  # of objects, so that each observer follows its own
_FILL_AT_MOST = 300
_TRIES = 120
_PAUSE = 0.5
_RELEASED_SECONDS = IN_FLIGHT_WINDOW + 15.0  # two looks for evidence, and time to make them


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
        async with _Filling(installed) as filling:
            inside = quota.namespaces[0]
            largest = {}
            for name in quota.limit.clusters:
                found = (await observers[name].recount()).get(inside, {})
                largest[cluster_of(name)] = found.get("requests.cpu", 0) // 10**9 if quota.promises else 0
            wrong += await filling.fill(quota, inside, largest)
    return wrong


class _Filling:
    def __init__(self, installed: Installation) -> None:
        self._sessions = {cluster: installed.cluster(cluster).session() for cluster in HOSTS}
        self._lost_at = float("-inf")  # when a try was last not decided

    async def __aenter__(self) -> _Filling:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for session in self._sessions.values():
            await session.close()

    async def fill(self, quota: NamespaceQuota, inside: str, largest: dict[str, int]) -> list[str]:
        refused: set[str] = set()
        for number, cluster in zip(range(_FILL_AT_MOST), itertools.cycle(HOSTS)):
            cpu = str(largest[cluster] + 1)
            status, message = await self._create(cluster, quota, inside, f"fill-{number}", cpu)
            if status in (201, 409):
                refused.clear()
                largest[cluster] += 1 if quota.promises else 0
            elif status == 403 and (said := parse_refusal(message)) is not None and said.adds_up:
                refused.add(cluster)
            else:
                return [f"filling {quota.name} in {cluster}: {status} {message}"]
            if len(refused) == len(HOSTS):
                left = self._lost_at + _RELEASED_SECONDS - time.monotonic()
                if left <= 0:
                    return []
                await asyncio.sleep(left)  # a try that was admitted and came to nothing keeps what it took until then
                refused.clear()
        return [f"filling {quota.name} never ends"]

    async def _create(self, cluster: str, quota: NamespaceQuota, inside: str, name: str, cpu: str) -> tuple[int, str]:
        status, message = 0, ""
        for _ in range(_TRIES):
            try:
                path = quota.path(inside)
                async with self._sessions[cluster].post(path, json=body(quota, name, cpu)) as answer:
                    status, message = answer.status, str((await answer.json()).get("message", ""))
            except (aiohttp.ClientError, TimeoutError) as error:
                status, message = 0, repr(error)
            if status in (201, 403, 409):
                break
            self._lost_at = time.monotonic()
            await asyncio.sleep(_PAUSE)
        return status, message
