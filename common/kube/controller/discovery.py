"""Which kinds an API server serves, and a watch cache of each that is wanted, for as long as it is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, Unavailable
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.controller.reflector import Change, IndexFunction, Reflector

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


class CrdNames(msgspec.Struct, frozen=True):
    kind: str = ""
    plural: str = ""


class CrdVersion(msgspec.Struct, frozen=True):
    name: str
    served: bool = False
    storage: bool = False


class CrdSpec(msgspec.Struct, frozen=True):
    group: str = ""
    names: CrdNames = CrdNames()
    versions: list[CrdVersion] = []


class CrdCondition(msgspec.Struct, frozen=True):
    type: str
    status: str


class CrdStatus(msgspec.Struct, frozen=True):
    conditions: list[CrdCondition] | None = None  # null until somebody looked at it first


class Crd(Object, frozen=True, kw_only=True):
    spec: CrdSpec = CrdSpec()
    status: CrdStatus = CrdStatus()

    @property
    def established(self) -> bool:
        return any(found.type == "Established" and found.status == "True" for found in self.status.conditions or ())


CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, Crd)


@dataclass(frozen=True)
class Wanted(Generic[T]):
    """A kind to follow where it is served. `versions`: those that are known, the best first; else the stored one."""

    group: str
    kind: str
    versions: tuple[str, ...]
    type: type[T]
    on_change: Callable[[Change[T]], None] | None = None
    indexes: Mapping[str, IndexFunction[T]] = field(default_factory=dict)
    namespaced: bool = True

    def served_as(self, crd: Crd, now: Resource[T] | None) -> Resource[T] | None:
        """`now`: as what it is followed, which does not change while that is served."""
        if (crd.spec.group, crd.spec.names.kind) != (self.group, self.kind) or not crd.established:
            return None
        served = {version.name: version.storage for version in crd.spec.versions if version.served}
        if now is not None and now.version in served and now.plural == crd.spec.names.plural:
            return now
        known = [name for name in self.versions if name in served]
        version = next(iter(known or sorted(served, key=lambda name: not served[name])), None)
        if version is None:
            return None
        return Resource(self.group, version, crd.spec.names.plural, self.kind, self.namespaced, self.type)


class Served:
    """The CRDs of one API server. `run()` it; `on_change` is told that something may be served differently now."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._listeners: list[Callable[[], None]] = []
        self.crds = Reflector(
            cluster,
            CRDS,
            indexes={"kind": lambda crd: [f"{crd.spec.names.kind}.{crd.spec.group}"]},
            on_change=self._changed,
        )

    async def run(self) -> None:
        await self.crds.run()

    def find(self, wanted: Wanted[T], now: Resource[T] | None = None) -> Resource[T] | None:
        found = (
            wanted.served_as(crd, now) for crd in self.crds.store.by_index("kind", f"{wanted.kind}.{wanted.group}")
        )
        return next((resource for resource in found if resource is not None), None)

    async def find_for_proof(self, crd: str, wanted: Wanted[T], now: Resource[T] | None) -> Resource[T] | None:
        """None proves that the cluster serves no such kind. Raises ApiError."""
        self.check_listed()
        resource = self.find(wanted, now)
        if resource is None:
            await self.check_unserved(crd)
        return resource

    def check_listed(self) -> None:
        """Raises Unavailable while it is not known what is served."""
        if not self.crds.synced.is_set():
            raise Unavailable(0, "Unavailable", self.crds.error or "CRDs are not listed yet")

    async def check_unserved(self, crd: str) -> None:
        """That a kind is not found here does not prove that there is nothing of it. Raises ApiError."""
        try:
            found = await self._cluster.find(CRDS, crd)
        except Forbidden:
            return  # who may not read CRDs is not asked about their objects
        if found is not None and found.established:
            raise Unavailable(0, "Unavailable", f"{crd} are not followed yet")

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Returns how to stop listening."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _changed(self, _change: Change[Crd]) -> None:
        for listener in tuple(self._listeners):
            listener()


class Following:
    """Watch caches of the wanted kinds that are served. `run()` it.

    A kind that is not served any more has no objects: they are told as gone. One that moves to another version of its
    API has the same.
    """

    def __init__(self, cluster: Cluster, served: Served, wanted: Mapping[str, Wanted[Any]]) -> None:
        self._cluster = cluster
        self._served = served
        self._wanted = wanted
        self._resources: dict[str, Resource[Any]] = {}
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    def get(self, name: str) -> Reflector[Any] | None:
        return self._reflectors.get(name)

    def resource(self, name: str) -> Resource[Any] | None:
        return self._resources.get(name)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        return list(self._reflectors.values())

    async def wait_settled(self) -> None:
        """Until all that is served has been listed. What we may not read counts as not served, and is logged."""
        await _listed(self._served.crds)
        self._adjust()
        for reflector in self.reflectors:
            await _listed(reflector)

    async def run(self) -> None:
        stop = self._served.on_change(self._wake.set)
        try:
            while True:
                self._wake.clear()
                self._adjust()
                await self._wake.wait()
        finally:
            stop()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _adjust(self) -> None:
        for name, wanted in self._wanted.items():
            resource = self._served.find(wanted, self._resources.get(name))
            if resource != self._resources.get(name):
                self._follow(name, wanted, resource)

    def _follow(self, name: str, wanted: Wanted[Any], resource: Resource[Any] | None) -> None:
        before = self._reflectors.pop(name, None)
        if before is not None:
            self._tasks.pop(name).cancel()
        known = before.store.values() if before is not None else []
        if resource is None:
            del self._resources[name]
            log.info("kind is not followed any more", extra={"kind": wanted.kind})
            tell = wanted.on_change
            for gone in known:
                if tell is not None:
                    tell(Change(gone, None))
            return
        log.info("kind is followed", extra={"kind": wanted.kind, "version": resource.api_version})
        reflector = Reflector(self._cluster, resource, indexes=wanted.indexes, on_change=wanted.on_change, known=known)
        self._resources[name], self._reflectors[name] = resource, reflector
        self._tasks[name] = asyncio.create_task(reflector.run(), name=f"{resource.plural}.{resource.group}")


async def _listed(reflector: Reflector[Any]) -> None:
    while not reflector.synced.is_set() and reflector.error_status not in (403, 404):
        with suppress(TimeoutError):
            await reflector.wait_synced(0.2)
