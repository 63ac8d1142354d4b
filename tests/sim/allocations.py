"""Allocations in the master's own cluster, the first seed, and Machines that take what is counted from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from common.api.types import AllocatedResource, Allocation, AllocationSpec, UserCluster
from common.kube.client.meta import Object, ObjectMeta
from common.kube.controller.store import Change
from common.quota.resources import ResourceList
from seed.model import source_key
from seed.model.source_key import SourceKey
from seed.providers.size import Footprint
from tests.sim.loop import Clock
from tests.sim.namespaces import ClusterClient, Kind, Watch
from tests.sim.servers import EVERYBODY, Machine, Source, uid_of
from tests.sim.servers import ObjectMeta as StoredMeta

NAMESPACE = "org"
PROJECT = "a"
KEY = SourceKey.of_project(source_key.ALLOCATIONS, PROJECT)
ALLOCATED = "servers"  # counted from Allocations: the Machines have some, too
LICENCES = "licences"  # ... likewise, and Machines have none
OF_BOTH = "gpu"  # not in the catalogue any more: counted from both sides, but no Allocation may name it
OF_OBJECTS = "disks"  # counted from objects: an Allocation that nobody admitted has some


def of_machines(resources: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in resources.items() if name != ALLOCATED}


def of_allocations(resources: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in resources.items() if name in (ALLOCATED, LICENCES, OF_BOTH)}


class MachinesOfAll(Source):
    """A user cluster whose Machines have something that is counted from Allocations."""

    def write(self, old: Machine | None, new: Machine | None) -> None:
        super().write(old, with_more(new) if new is not None else None)


def with_more(machine: Machine) -> Machine:
    return Machine(machine.metadata, {**machine.resources, ALLOCATED: 2})


class AllocationServer(Source):
    """The API server as far as it has Allocations, of one project."""

    is_cluster = False
    has_machines = False

    def __init__(self, seed: str, clock: Clock, project: str = PROJECT, organization: str = EVERYBODY) -> None:
        super().__init__(SourceKey.of_project(source_key.ALLOCATIONS, project), seed, project)
        self._organization = organization
        self.objects = Kind()
        self._clock = clock

    def write(self, old: Machine | None, new: Machine | None) -> None:
        super().write(old, new)
        of = new or old
        assert of is not None, "a change has an object before or after"
        name = of.metadata.key
        found = self.made(name, new.resources, new.metadata.generation) if new is not None else None
        self.objects.write(f"{NAMESPACE}/{name}", found, self._clock.now)

    def made(self, name: str, size: ResourceList, generation: int) -> Allocation:
        """Some of it is committed, the rest reserved."""
        found = [
            AllocatedResource(type=kind, committed=most // 2, reserved=most - most // 2) for kind, most in size.items()
        ]
        meta = ObjectMeta(name=name, namespace=NAMESPACE, uid=uid_of(name), generation=generation)
        spec = AllocationSpec(
            organization=self._organization, project=self.project, kind="cluster", id=name, resources=found
        )
        return Allocation(metadata=meta, spec=spec)


class AllocationClient(ClusterClient):
    async def find(self, _resource: object, name: str, _namespace: str = "") -> Object | None:
        server: Any = self.source
        return await self._call(f"get {name}", lambda: server.objects.present.get(f"{NAMESPACE}/{name}"))


class AllocationWatch(Watch):
    """In place of the reflector of all Allocations."""

    def __init__(
        self,
        cluster: Any,
        _resource: object,
        *,
        on_change: Callable[[Change[Any]], None],
        on_state: Callable[[], None],
    ) -> None:
        super().__init__(cluster, cluster.source.objects, on_change, on_state)
        self.synced = asyncio.Event()

    def heard(self) -> None:
        self.synced.set()


class SizedMachine(Object, frozen=True, kw_only=True):
    resources: Mapping[str, int]


class MachineEvaluator:
    """Each has its size: how it is computed is not simulated."""

    def is_same(self, old: SizedMachine, new: SizedMachine) -> bool:
        return old.resources == new.resources

    async def admitted(self, cluster: UserCluster, subject: SizedMachine, _deadline: float) -> Footprint:
        return self.counted(cluster, subject)

    def counted(self, _cluster: UserCluster, subject: SizedMachine) -> Footprint:
        return Footprint("fake", subject.resources)

    def least(self, _subject: SizedMachine) -> ResourceList:
        return {}


def machine(name: str, size: ResourceList, generation: int) -> SizedMachine:
    stored = with_more(Machine(StoredMeta(uid_of(name), name, generation), size))
    return SizedMachine(
        metadata=ObjectMeta(name=name, uid=uid_of(name), generation=generation), resources=stored.resources
    )
