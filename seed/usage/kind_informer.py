"""A watch cache of one kind of objects in namespaces, in whichever version an API server serves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.api_discovery import find_namespaced
from common.kube.client.errors import ApiError
from common.kube.client.meta import Object, ObjectMeta, OwnerReference
from common.kube.client.resource import Resource
from common.kube.controller.reflector import Reflector, moment
from common.kube.controller.store import Change
from common.quota.object_names import RESOURCE_CLAIMS, GroupResource
from common.runtime.waiting import within
from seed.evaluators import resource_claims
from seed.evaluators.namespaced import NamespacedEvaluator
from seed.evaluators.pods import Pod, PodMeta
from seed.evaluators.resource_quotas import CoreQuota

log = logging.getLogger(__name__)

LOOK_AGAIN = 10.0  # seconds until it is asked again whether a kind is served that was not
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # ... while that cannot be told
CHECK_EVERY = 1.0  # seconds between two looks whether a kind that is followed is still served
MOST = 256 * 2**20  # bytes that one kind of one cluster may take: its tenants write them
EMPTY, OF_ENCODED = 1000, 3  # bytes that an object takes, and those for each byte of its shortest form
BY_NAMESPACE = "namespace"
NOT_READ = "-"  # no field of an object has this name

_encoder = msgspec.msgpack.Encoder()
_KNOWN = {RESOURCE_CLAIMS: resource_claims.VERSIONS}


class _NumberedMeta(ObjectMeta, frozen=True, kw_only=True):
    """Without what may be long and says nothing about a number of objects."""

    labels: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}labels")
    annotations: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}annotations")
    owner_references: list[OwnerReference] = msgspec.field(default_factory=list, name=f"{NOT_READ}ownerReferences")


class Numbered(Object, frozen=True, kw_only=True):
    """An object of which only the number counts."""

    metadata: _NumberedMeta


class _CountedPodMeta(PodMeta, frozen=True, kw_only=True):
    labels: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}labels")
    annotations: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}annotations")
    owner_references: list[OwnerReference] = msgspec.field(default_factory=list, name=f"{NOT_READ}ownerReferences")


class CountedPod(Pod, frozen=True, kw_only=True):
    """A pod without what does not count: there may be very many."""

    metadata: _CountedPodMeta


class CountedQuota(CoreQuota, frozen=True, kw_only=True):
    metadata: _NumberedMeta


_TYPES: dict[type[Object], type[Object]] = {Object: Numbered, Pod: CountedPod, CoreQuota: CountedQuota}


async def find_kind(cluster: Cluster, evaluator: NamespacedEvaluator[Any]) -> Resource[Any] | None:
    """How it is served, by the API server's discovery. None proves that there are no objects of it. Raises ApiError."""
    wanted = evaluator.resource
    found = await find_namespaced(cluster, wanted.group, wanted.resource, _KNOWN.get(wanted, ()))
    if found is None:
        return None
    return Resource(
        wanted.group,
        found.version,
        wanted.resource,
        found.kind,
        True,
        _TYPES.get(evaluator.type, evaluator.type),
        most=MOST,
        weigh=weigh,
        metadata_only=evaluator.type is Object,
    )


def weigh(subject: Object) -> int:
    """About the bytes that it takes here."""
    return EMPTY + OF_ENCODED * len(_encoder.encode(subject))


class KindInformer:
    """`run()` it. What is not served has no objects: then `on_change` is called for each that there was, as deleted.

    It answers as a Reflector does: `synced`, `error`, `live`, `listed_from`; `on_state` is called as a Reflector's. That
    a kind is not served stands for a list of it that brought nothing.
    """

    def __init__(
        self,
        cluster: Cluster,
        evaluator: NamespacedEvaluator[Any],
        on_change: Callable[[Change[Any]], None],
        on_state: Callable[[], None],
    ) -> None:
        self.resource: GroupResource = evaluator.resource
        self._cluster = cluster
        self._evaluator = evaluator
        self._on_change = on_change
        self._on_state = on_state
        self.served: Resource[Any] | None = None  # as what it is followed
        self._reflector: Reflector[Any] | None = None
        self._unserved_from = 0  # the moment at which it was asked and the answer was that it is not served; 0: it is
        self._error: str | None = None  # of that question
        self._error_status = 0
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()

    @property
    def synced(self) -> bool:
        return bool(self._unserved_from) or (self._reflector is not None and self._reflector.synced.is_set())

    @property
    def error(self) -> str | None:
        return self._error or (self._reflector.error if self._reflector is not None else None)

    @property
    def error_status(self) -> int:
        return self._error_status if self._error or self._reflector is None else self._reflector.error_status

    @property
    def live(self) -> bool:
        return bool(self._unserved_from) or (self._reflector is not None and self._reflector.live)

    @property
    def listed_from(self) -> int:
        if self._unserved_from:
            return self._unserved_from
        return self._reflector.listed_from if self._reflector is not None else 0

    def objects(self, namespace: str) -> list[Any]:
        return self._reflector.store.by_index(BY_NAMESPACE, namespace) if self._reflector is not None else []

    def get(self, key: str) -> Any:
        return self._reflector.store.get(key) if self._reflector is not None else None

    def relist(self) -> None:
        """Asks for a fresh list now."""
        if self._reflector is not None:
            self._reflector.relist()
        self._wake.set()

    async def next_list(self, timeout: float) -> None:
        """Until another list is complete, but not longer."""
        reflector = self._reflector
        if reflector is None:
            await within(self._answered, timeout)
            return
        try:
            await reflector.wait_listed(reflector.lists_completed + 1, timeout)
        except TimeoutError:
            return

    async def run(self) -> None:
        """Until cancelled."""
        pause = FIRST_PAUSE
        while True:
            self._wake.clear()
            asked = moment()
            try:
                resource = await find_kind(self._cluster, self._evaluator)
            except ApiError as error:
                self._error, self._error_status = error.message, error.status
                self._on_state()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            self._error, pause = None, FIRST_PAUSE
            self._on_state()
            if resource is not None:
                await self._follow(resource)
                continue
            self._drop()
            self._unserved_from = asked
            self._answered.set()
            self._answered = asyncio.Event()
            self._on_state()
            await within(self._wake, LOOK_AGAIN)

    async def _follow(self, resource: Resource[Any]) -> None:
        """Until it is not served any more, as far as its list tells."""
        before, self.served = self._reflector, resource
        reflector = self._reflector = Reflector(
            self._cluster,
            resource,
            indexes={BY_NAMESPACE: lambda found: [found.metadata.namespace]},
            on_change=self._on_change,
            on_state=self._followed,
            known=before.store.values() if before is not None else (),
        )
        log.info("kind is counted", extra={"cluster": self._cluster.name, "kind": str(self.resource)})
        running = asyncio.create_task(reflector.run(), name=f"{self.resource} of {self._cluster.name}")
        try:
            while reflector.error is None or reflector.error_status != 404:
                await asyncio.sleep(CHECK_EVERY)
        finally:
            self.served = None
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _followed(self) -> None:
        if self._reflector is not None and self._reflector.synced.is_set():
            self._unserved_from = 0
        self._on_state()

    def _drop(self) -> None:
        reflector, self._reflector = self._reflector, None
        if reflector is None:
            return
        log.info("kind is not served any more", extra={"cluster": self._cluster.name, "kind": str(self.resource)})
        for gone in reflector.store.values():
            self._on_change(Change(gone, None))
