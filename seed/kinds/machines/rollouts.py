"""What a Machine that a rollout makes may replace, by consistent reads of the API server that asks.

Asked only where a quota is full and has surge. A rollout whose Machines are refused tries again and again: what was
read is kept for a moment. What was lent is confirmed by a read that begins after that was written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Generic, TypeVar

import msgspec

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound, Unavailable
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.kube.controller.discovery import FollowedKind
from common.quota.resources import ResourceList
from common.runtime.lru import LruByOwner
from seed.cache.cluster_api import View
from seed.cache.user_cluster_clients import Connections
from seed.machines import cluster_api, machine_controller
from seed.machines.cluster_api import ClusterMachine
from seed.machines.deployments import Deployment
from seed.machines.machine_controller import MACHINES, Machine
from seed.machines.rollout import Standing, owner, replaceable
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing.sizer import Sizing

T = TypeVar("T", bound=Object)

KEPT = 0.5  # seconds
MAX_KEPT = 64  # of one user cluster
SEED = "seed"
MOST = 16 * 2**20  # bytes of the MachineSets of a namespace, and of the Machines of one MachineDeployment
TIMEOUT = 5.0  # seconds for all that is read together; who asks has less


class Family(msgspec.Struct, frozen=True):
    """A MachineDeployment with its MachineSets and Machines."""

    deployment: Deployment
    sets: Sequence[ObjectMeta]
    machines: Sequence[Standing]


class Api(msgspec.Struct, Generic[T], frozen=True):
    """One Machine API. `size` of one of its Machines is None where it cannot be told now; it may raise ApiError.

    `server`: whose it is, a user cluster's uid or SEED. An owner's uid is what somebody there wrote: it names nothing
    elsewhere.
    """

    server: str
    connect: Callable[[], AbstractAsyncContextManager[Cluster]]
    machines: Resource[T]
    sets: Resource[Object]
    deployments: Resource[Deployment]
    size: Callable[[T], Awaitable[ResourceList | None]]


class _Reading:
    """A read that has not begun yet serves also those who ask for one that begins now."""

    def __init__(self, api: Api[Any], namespace: str, newer: str) -> None:
        self.asked_at = time.monotonic()
        self.begun = False
        self.task = asyncio.create_task(self._read(api, namespace, newer), name=f"rollout in {namespace}")
        self.task.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())

    @property
    def serves(self) -> bool:
        return time.monotonic() - self.asked_at <= KEPT

    @property
    def serves_now(self) -> bool:
        return not self.begun

    @property
    def failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    async def _read(self, api: Api[Any], namespace: str, newer: str) -> Family | None:
        """Raises ApiError."""
        self.begun = True
        try:
            async with asyncio.timeout(TIMEOUT):
                return await _read_all(api, namespace, newer)
        except TimeoutError:
            raise Unavailable(0, "Timeout", "no answer in time") from None


class Rollouts:
    def __init__(self) -> None:
        self._families: LruByOwner[tuple[str, str], _Reading] = LruByOwner(MAX_KEPT)  # by namespace and MachineSet

    async def replaceable(self, api: Api[T], metadata: ObjectMeta, need: ResourceList, *, anew: bool) -> list[str]:
        """The uids of those that this new Machine may replace, none where it is of no rollout. `anew`: by a read that
        begins after the call. Raises ApiError."""
        newer = owner(metadata, "MachineSet")
        if not newer:
            return []
        family = await asyncio.shield(self._family(api, metadata.namespace, newer, anew=anew))
        return [] if family is None else replaceable(family.deployment, family.sets, family.machines, newer, need)

    def _family(self, api: Api[T], namespace: str, newer: str, *, anew: bool) -> asyncio.Task[Family | None]:
        """One read for all that ask about the MachineSet within a moment; `anew`: at the same time."""
        known = self._families.get(api.server, (namespace, newer))
        if known is not None and not known.failed and (known.serves_now if anew else known.serves):
            return known.task
        reading = _Reading(api, namespace, newer)
        self._families.keep(api.server, (namespace, newer), reading)
        return reading.task


Rolling = Callable[[UserCluster, Machine, ResourceList, bool], Awaitable[Sequence[str]]]
"""What a new Machine that needs so much may replace; with True, by a read that begins after the call. It may raise
ApiError."""


def in_user_clusters(rollouts: Rollouts, connections: Connections, sizing: Sizing) -> Rolling:
    """machine-controller's."""
    group, version = machine_controller.GROUP, machine_controller.VERSION
    machines = replace(MACHINES, most=MOST)
    sets = Resource(group, version, "machinesets", "MachineSet", True, Object, most=MOST)
    deployments = Resource(group, version, "machinedeployments", "MachineDeployment", True, Deployment)

    def rolling(cluster: UserCluster, machine: Machine, need: ResourceList, anew: bool) -> Awaitable[Sequence[str]]:
        async def size(found: Machine) -> ResourceList | None:
            return _size(sizing, cluster, found)

        api = Api(cluster.metadata.uid, lambda: connections.to(cluster), machines, sets, deployments, size)
        return rollouts.replaceable(api, machine.metadata, need, anew=anew)

    return rolling


def in_cluster_api(rollouts: Rollouts, seed: Cluster, view: View, sizing: Sizing) -> Rolling:
    def wanted(kind: str, of: type[T]) -> Resource[T]:
        found = view.served.find(FollowedKind(cluster_api.GROUP, kind, cluster_api.VERSIONS, of))
        if found is None:
            raise NotFound(404, "NotFound", f"no {kind}s are served")
        return found

    async def rolling(cluster: UserCluster, machine: Machine, need: ResourceList, anew: bool) -> Sequence[str]:
        async def size(found: ClusterMachine) -> ResourceList | None:
            return _size(sizing, cluster, await view.find_machine(found))

        api = Api(
            SEED,
            lambda: nullcontext(seed),
            wanted("Machine", ClusterMachine),
            wanted("MachineSet", Object),
            wanted("MachineDeployment", Deployment),
            size,
        )
        return await rollouts.replaceable(api, machine.metadata, need, anew=anew)

    return rolling


def _size(sizing: Sizing, cluster: UserCluster, machine: Machine) -> ResourceList | None:
    try:
        return sizing.counted(cluster.metadata.uid, machine).resources
    except (NotSized, ProviderUnavailable):
        return None


async def _read_all(api: Api[T], namespace: str, newer: str) -> Family | None:
    async with api.connect() as cluster:
        sets = [found.metadata for found in (await cluster.list(api.sets, namespace)).items]
        ours = next((found for found in sets if found.uid == newer), None)
        reference = next((ref for ref in ours.owner_references if ref.controller), None) if ours is not None else None
        if reference is None or reference.kind != "MachineDeployment":
            return None
        deployment = await cluster.get(api.deployments, reference.name, namespace)
        if deployment.metadata.uid != reference.uid:
            return None
        labels = ",".join(f"{key}={value}" for key, value in deployment.labels.items())
        machines = (await cluster.list(api.machines, namespace, label_selector=labels)).items
        standing = [Standing(found.metadata, await _sized(api, found)) for found in machines]
    return Family(deployment, sets, standing)


async def _sized(api: Api[T], machine: T) -> ResourceList | None:
    try:
        return await api.size(machine)
    except ApiError:
        return None
