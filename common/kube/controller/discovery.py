"""Which kinds an API server serves, and a watch cache of each that is wanted, for as long as it is served."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, Unavailable
from common.kube.client.meta import Object
from common.kube.client.resource import Broken, Resource
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change, IndexFunction
from common.runtime.listeners import Listeners

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
class FollowedKind(Generic[T]):
    """A kind to follow where it is served. `versions`: those that are known, the best first; else the stored one.
    `unread`: see Reflector."""

    group: str
    kind: str
    versions: tuple[str, ...]
    type: type[T]
    on_change: Callable[[Change[T]], None] | None = None
    indexes: Mapping[str, IndexFunction[T]] = field(default_factory=dict)
    namespaced: bool = True
    unread: Callable[[Broken], T] | None = None

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
    """The CRDs of one API server. `run()` it; `on_change` is called when something may be served differently."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._listeners: Listeners[[]] = Listeners()
        self.crds = Reflector(
            cluster,
            CRDS,
            indexes={"kind": lambda crd: [f"{crd.spec.names.kind}.{crd.spec.group}"]},
            on_change=self._changed,
        )

    async def run(self) -> None:
        await self.crds.run()

    def find(self, wanted: FollowedKind[T], now: Resource[T] | None = None) -> Resource[T] | None:
        found = (
            wanted.served_as(crd, now) for crd in self.crds.store.by_index("kind", f"{wanted.kind}.{wanted.group}")
        )
        return next((resource for resource in found if resource is not None), None)

    def find_defined(self, wanted: FollowedKind[T], now: Resource[T] | None) -> Resource[T] | None:
        """As what to follow a kind that is defined and not served: its objects may be there. `now`: as what it
        was followed last."""
        if now is not None and self.crds.store.get(f"{now.plural}.{now.group}") is not None:
            return now
        for crd in self.crds.store.by_index("kind", f"{wanted.kind}.{wanted.group}"):
            if crd.established and crd.spec.versions:
                names = [version.name for version in crd.spec.versions]
                version = next((name for name in wanted.versions if name in names), names[0])
                return Resource(
                    wanted.group, version, crd.spec.names.plural, wanted.kind, wanted.namespaced, wanted.type
                )
        return None

    async def find_for_proof(self, crd: str, wanted: FollowedKind[T], now: Resource[T] | None) -> Resource[T] | None:
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
        return self._listeners.add(listener)

    def _changed(self, _change: Change[Crd]) -> None:
        self._listeners.call()
