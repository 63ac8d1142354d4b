"""A watch cache of one kind of objects in namespaces, in whichever version an API server serves it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.api_discovery import find_namespaced
from common.kube.client.errors import ApiError, NotFound
from common.kube.client.meta import Object, OwnerReference
from common.kube.client.resource import Resource
from common.kube.controller.reflector import Reflector, moment
from common.kube.controller.store import Change
from common.quota.object_names import GroupResource
from common.runtime.pieces import in_pieces
from common.runtime.waiting import within
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator
from seed.kinds.namespaces.evaluators.object_count import NOT_READ, Numbered, NumberedMeta
from seed.kinds.namespaces.evaluators.pods import Pod, PodMeta
from seed.kinds.namespaces.evaluators.resource_quotas import CoreQuota
from seed.kinds.namespaces.evaluators.services import Service

log = logging.getLogger(__name__)

LOOK_AGAIN = 10.0  # seconds until it is asked again whether a kind is served that was not
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # ... while that cannot be told
CHECK_EVERY = 1.0  # seconds between two looks whether a kind that is followed is still served
MOST = 256 * 2**20  # bytes that one kind of one cluster may take: its tenants write them
EMPTY, OF_ENCODED = 1000, 3  # bytes that an object takes, and those for each byte of its shortest form
BY_NAMESPACE = "namespace"

DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    Object,
    metadata_only=True,
)

_DEFINED = "it is not served, but CustomResourceDefinition {} is there, and its objects may be: serve it again"
_LEFT = "it is not served any more, and what served it may have its objects still: serve it again"

_encoder = msgspec.msgpack.Encoder()


class _CountedPodMeta(PodMeta, frozen=True, kw_only=True):
    labels: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}labels")
    annotations: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}annotations")
    owner_references: tuple[OwnerReference, ...] = msgspec.field(default=(), name=f"{NOT_READ}ownerReferences")
    finalizers: tuple[str, ...] = msgspec.field(default=(), name=f"{NOT_READ}finalizers")


class CountedPod(Pod, frozen=True, kw_only=True):
    """A pod without what does not count: there may be very many."""

    metadata: _CountedPodMeta


class CountedQuota(CoreQuota, frozen=True, kw_only=True):
    metadata: NumberedMeta


class CountedService(Service, frozen=True, kw_only=True):
    metadata: NumberedMeta


class Unread(Object, frozen=True, kw_only=True):
    """Stands for an object that cannot be read: it is there, and what it uses is not known."""


_TYPES: dict[type[Object], type[Object]] = {
    Object: Numbered,
    Pod: CountedPod,
    CoreQuota: CountedQuota,
    Service: CountedService,
}


class OtherVersion(NotFound):
    """The kind is served, and not in the version in which alone it can be read: API servers do not ask about it."""


async def find_kind(cluster: Cluster, evaluator: NamespacedEvaluator[Any]) -> Resource[Any] | None:
    """How it is served, by the API server's discovery. None does not prove that there are no objects of it: they stay
    when it is served no more, and come back with it. Raises ApiError, and OtherVersion."""
    wanted, version = evaluator.resource, evaluator.version
    known = (version,) if version else evaluator.versions
    found = await find_namespaced(cluster, wanted.group, wanted.resource, known)
    if found is None:
        return None
    if version and found.version != version:
        text = f"{wanted} are not served as {version}, but as {found.version}: name that version in the quota"
        raise OtherVersion(404, "NotFound", text)
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


async def is_defined(cluster: Cluster, kind: GroupResource) -> bool:
    """Whether a CustomResourceDefinition of it is there, by a consistent read. Raises ApiError.

    An API server removes a definition only after all objects of it.
    """
    if "." not in kind.group:
        return False  # a definition has a domain as its group
    return await cluster.find(DEFINITIONS, str(kind)) is not None


def weigh(subject: Object) -> int:
    """About the bytes that it takes here."""
    return EMPTY + OF_ENCODED * len(_encoder.encode(subject))


class KindInformer:
    """`run()` it. It answers as a Reflector does: `synced`, `error`, `live`, `listed_from`, and calls `on_state`.

    A kind that is served no more keeps what was listed last, until it is proven that its objects are gone: then
    `on_change` is called for each, as deleted, and that stands for a list that brought nothing. The proof is that its
    definition is gone, if it had one while it was served. A kind without one was built in, or another server's, and
    may have its objects still. Of a kind that was not served since this began, it is not known which of both it was:
    without a definition it has nothing, as far as is known here (`unseen`).
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
        self.unseen = False
        self.is_other_version = False  # it is served, and not asked about
        self._defined: bool | None = None  # by a definition, while it was served; None: that is not known
        self._nothing_from = 0  # the moment at which it was asked last and nothing was there; 0: something may be
        self._error: str | None = None  # why it is not known whether it is served, or that it is not
        self._error_status = 0
        self._wake = asyncio.Event()

    @property
    def synced(self) -> bool:
        return bool(self._nothing_from) or self._was_listed

    @property
    def _was_listed(self) -> bool:
        return self._reflector is not None and self._reflector.synced.is_set()

    @property
    def error(self) -> str | None:
        reflector = self._reflector
        return self._error or ((reflector.error or reflector.untaken) if reflector is not None else None)

    @property
    def error_status(self) -> int:
        if self._error or self._reflector is None:
            return self._error_status
        return 200 if self._reflector.error is None and self._reflector.untaken else self._reflector.error_status

    @property
    def live(self) -> bool:
        if self._error is not None:
            return False
        return bool(self._nothing_from) or (self._reflector is not None and self._reflector.live)

    @property
    def listed_from(self) -> int:
        if self._nothing_from:
            return self._nothing_from
        return self._reflector.listed_from if self._reflector is not None else 0

    def objects(self, namespace: str) -> Iterable[Any]:
        """They may change while they are read: see `Store.each_by_index`."""
        return self._reflector.store.each_by_index(BY_NAMESPACE, namespace) if self._reflector is not None else ()

    def number(self, namespace: str) -> int:
        return self._reflector.store.number(BY_NAMESPACE, namespace) if self._reflector is not None else 0

    def get(self, key: str) -> Any:
        return self._reflector.store.get(key) if self._reflector is not None else None

    def relist(self) -> None:
        """Asks for a fresh list now."""
        if self._reflector is not None:
            self._reflector.relist()
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        pause, demanded = FIRST_PAUSE, False
        while True:
            self._wake.clear()
            asked = moment()
            try:
                resource = await find_kind(self._cluster, self._evaluator)
                defined = resource is None and await is_defined(self._cluster, self.resource)
            except ApiError as error:
                self.is_other_version = isinstance(error, OtherVersion)
                self._say(error.message, error.status)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause, self.is_other_version = FIRST_PAUSE, False
            if resource is not None:
                self._say(None)
                await self._follow(resource)
                continue
            if defined or self._may_be_left():
                self._say(_DEFINED.format(self.resource) if defined else _LEFT, 404)
            else:
                await self._is_absent(asked, demanded=demanded)
            demanded = await within(self._wake, LOOK_AGAIN)

    async def is_gone(self) -> bool:
        """Whether it is proven that nothing of a kind that is not served is there. Raises ApiError."""
        return bool(self._defined) and not await is_defined(self._cluster, self.resource)

    async def _follow(self, resource: Resource[Any]) -> None:
        """Until it is not served any more, as far as its list tells."""
        before, self.served = self._reflector, resource
        reflector = self._reflector = Reflector(
            self._cluster,
            resource,
            indexes={BY_NAMESPACE: lambda found: [found.metadata.namespace]},
            on_change=self._on_change,
            on_state=self._followed,
            known=before.store if before is not None else None,
            unread=lambda broken: Unread(metadata=broken.metadata),
        )
        log.info("kind is counted", extra={"cluster": self._cluster.name, "kind": str(self.resource)})
        running = asyncio.create_task(reflector.run(), name=f"{self.resource} of {self._cluster.name}")
        learned, learn_at = False, 0.0
        try:
            while reflector.error is None or reflector.error_status != 404:
                if not learned and time.monotonic() >= learn_at:
                    learn_at = time.monotonic() + LOOK_AGAIN
                    learned = await self._learn(reflector)
                await asyncio.sleep(CHECK_EVERY)
        finally:
            self.served = None
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _learn(self, reflector: Reflector[Any]) -> bool:
        """Whether it has a definition. That it has none is only true of what is served."""
        served = reflector.synced.is_set()
        try:
            defined = await is_defined(self._cluster, self.resource)
        except ApiError:
            return False
        if defined or served:
            self._defined = defined
        return defined or served

    def _followed(self) -> None:
        if self._was_listed:
            self._nothing_from, self.unseen = 0, False
        self._on_state()

    def _may_be_left(self) -> bool:
        return not self._defined and self._reflector is not None and len(self._reflector.store) > 0

    async def _is_absent(self, asked: int, *, demanded: bool) -> None:
        first = not self._nothing_from
        if first:
            self.unseen = not (self._defined or self._was_listed)
        await self._drop()
        self._nothing_from = asked
        self._say(None)
        if first or demanded:
            self._on_state()

    def _say(self, error: str | None, status: int = 0) -> None:
        if error != self._error:
            self._error, self._error_status = error, status
            self._on_state()

    async def _drop(self) -> None:
        """What is told as deleted is not there any more, also for who looks meanwhile."""
        reflector = self._reflector
        if reflector is None:
            return
        log.info("kind is not served any more", extra={"cluster": self._cluster.name, "kind": str(self.resource)})
        async for key in in_pieces(reflector.store.keys()):
            if (gone := reflector.store._remove(key)) is not None:
                self._on_change(Change(gone, None))
        self._reflector = None
