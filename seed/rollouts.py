"""What a Machine that a rollout makes replaces, by consistent reads of the API server that asks.

Asked only where a quota is full and has surge. A rollout whose Machines are refused tries again and again: what was
read is kept for a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from common.kube.client import Cluster
from common.kube.errors import ApiError
from common.kube.meta import Object, ObjectMeta
from common.kube.resource import Resource
from common.resources import ResourceList
from seed.machines.rollout import Deployment, Standing, owner, replaceable

T = TypeVar("T", bound=Object)

KEPT = 0.5  # seconds
MAX_KEPT = 256


class Family(msgspec.Struct, frozen=True):
    """A MachineDeployment with its MachineSets and Machines."""

    deployment: Deployment
    sets: Sequence[ObjectMeta]
    machines: Sequence[Standing]


class Api(msgspec.Struct, Generic[T], frozen=True):
    """One Machine API. `size` of one of its Machines is None where it cannot be told now. It may raise ApiError."""

    cluster: Cluster
    machines: Resource[T]
    sets: Resource[Object]
    deployments: Resource[Deployment]
    size: Callable[[T], Awaitable[ResourceList | None]]


class Rollouts:
    def __init__(self) -> None:
        self._families: OrderedDict[str, tuple[float, asyncio.Task[Family | None]]] = OrderedDict()

    async def replaceable(self, api: Api[T], metadata: ObjectMeta, need: ResourceList) -> list[str]:
        """The uids of those that this new Machine may replace, none where it is of no rollout. Raises ApiError."""
        newer = owner(metadata, "MachineSet")
        if not newer:
            return []
        family = await self._family(api, metadata, newer)
        return [] if family is None else replaceable(family.deployment, family.sets, family.machines, newer, need)

    async def _family(self, api: Api[T], metadata: ObjectMeta, newer: str) -> Family | None:
        """One read for all that ask about the MachineSet at once; their number cannot be counted on, so each read is
        older than the account that decides who replaces whom."""
        now = time.monotonic()
        known = self._families.get(newer)
        if known is None or now - known[0] > KEPT or _failed(known[1]):
            reading = asyncio.create_task(
                _read(api, metadata.namespace, newer), name=f"rollout of {metadata.namespace}"
            )
            reading.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
            self._families[newer] = known = (now, reading)
            self._families.move_to_end(newer)
            if len(self._families) > MAX_KEPT:
                self._families.popitem(last=False)
        return await asyncio.shield(known[1])


def _failed(task: asyncio.Task[Family | None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _read(api: Api[T], namespace: str, newer: str) -> Family | None:
    sets = [found.metadata for found in (await api.cluster.list(api.sets, namespace)).items]
    ours = next((found for found in sets if found.uid == newer), None)
    reference = next((ref for ref in ours.owner_references if ref.controller), None) if ours is not None else None
    if reference is None or reference.kind != "MachineDeployment":
        return None
    deployment = await api.cluster.get(api.deployments, reference.name, namespace)
    if deployment.metadata.uid != reference.uid:
        return None
    labels = ",".join(f"{key}={value}" for key, value in deployment.spec.selector.match_labels.items())
    machines = (await api.cluster.list(api.machines, namespace, label_selector=labels)).items
    return Family(
        deployment,
        [found for found in sets if owner(found, "MachineDeployment") == reference.uid],
        [Standing(found.metadata, await _sized(api, found)) for found in machines],
    )


async def _sized(api: Api[T], machine: T) -> ResourceList | None:
    try:
        return await api.size(machine)
    except ApiError:
        return None
