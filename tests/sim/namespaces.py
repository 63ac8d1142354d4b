"""A user cluster with namespaces, and the watches of its labels and pods that the schedule brings on, each by itself.

They take the place of the reflectors of cluster_objects.py and cache.py in seed/kinds/namespaces; what is made of what
they bring is the real code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from common.api.labels import PROJECT_LABEL
from common.kube.client.errors import ApiError
from common.kube.client.meta import Object, ObjectMeta, object_key
from common.kube.client.resource import Listing
from common.kube.controller.reflector import moment
from common.kube.controller.store import Change, Store
from common.quota import object_names
from common.quota.object_names import PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS, GroupResource
from common.quota.resources import ResourceList
from seed.kinds.namespaces.cache import NAMESPACES, LabelledMeta, Namespace
from seed.kinds.namespaces.evaluators import resource_quotas
from seed.kinds.namespaces.evaluators.namespaced import Counting, NamespacedEvaluator, Terms
from seed.kinds.namespaces.evaluators.resource_quotas import CoreQuota, CoreQuotaSpec
from seed.kinds.namespaces.kind_informer import BY_NAMESPACE
from tests.sim.servers import PARTICIPANT, TENANTS, Machine, Source, away, uid_of

if TYPE_CHECKING:
    from tests.sim.loop import Clock
    from tests.sim.namespace_side import NamespaceReplica


FoundT = TypeVar("FoundT")

SLOW = 0.15  # of the lists
TAKES = (0.5, 2.0, 6.0)  # seconds


class Pod(Object, frozen=True, kw_only=True):
    """Any object that costs: how a real pod's size is computed is not simulated."""

    resources: ResourceList


class PodEvaluator(Counting[Pod]):
    resource = PODS
    type = Pod

    def usage(self, subject: Pod, now: float) -> dict[str, int]:
        return dict(subject.resources)


class ClaimEvaluator(PodEvaluator):
    """Another kind, which uses memory beside the pods."""

    resource = RESOURCE_CLAIMS


PODS_EVALUATOR = PodEvaluator()
CLAIMS_EVALUATOR = ClaimEvaluator()

_counted = object_names.counted
_has_claims = [False]


def with_claims(found: bool) -> None:
    """Whether the world has them."""
    _has_claims[0] = found


def counted(name: str) -> tuple[GroupResource, ...]:
    return (PODS, RESOURCE_CLAIMS) if name == "memory" and _has_claims[0] else _counted(name)


def evaluator_of(kind: GroupResource) -> NamespacedEvaluator[Any] | None:
    found = {PODS: PODS_EVALUATOR, RESOURCE_CLAIMS: CLAIMS_EVALUATOR, RESOURCE_QUOTAS: resource_quotas.EVALUATOR}
    return found.get(kind)


def evaluators_of(terms: Terms) -> dict[GroupResource, NamespacedEvaluator[Any]]:
    return {kind: evaluator for kind in terms.kinds if (evaluator := evaluator_of(kind)) is not None}


def pod(name: str, namespace: str, size: ResourceList, generation: int) -> Pod:
    """Its resourceVersion counts its own writes: it is compared with nothing else."""
    meta = ObjectMeta(name=name, namespace=namespace, uid=uid_of(name), resource_version=str(generation or ""))
    return Pod(metadata=meta, resources=size)


def core_quota(name: str, namespace: str, size: ResourceList, generation: int) -> CoreQuota:
    """Amounts are in nanos everywhere here."""
    meta = ObjectMeta(name=name, namespace=namespace, uid=uid_of(name), resource_version=str(generation or ""))
    return CoreQuota(metadata=meta, spec=CoreQuotaSpec(hard={found: f"{amount}n" for found, amount in size.items()}))


def namespace(name: str, labels: Collection[str]) -> Namespace:
    """A label that is the name of one of TENANTS says that it is of that project."""
    found = dict((PROJECT_LABEL, label) if label in TENANTS else (label, "") for label in sorted(labels))
    return Namespace(metadata=LabelledMeta(name=name, uid=name, labels=found))


Make = Callable[[str, str, ResourceList, int], Object]
"""Of its name, namespace, size and generation."""


class Kind:
    """What an API server has of one kind, and every change of it."""

    def __init__(self) -> None:
        self.present: dict[str, Object] = {}
        self.log: list[tuple[str, Object | None]] = []
        self.times: list[float] = []  # when each was

    def write(self, key: str, value: Object | None, now: float) -> None:
        if value is None:
            del self.present[key]
        else:
            self.present[key] = value
        self.log.append((key, value))
        self.times.append(now)


class NamespacedCluster(Source):
    """A user cluster's API server. What `machines` has are its objects, as the rest of the simulation knows them."""

    has_machines = False

    def __init__(self, key: str, seed: str, clock: Clock, make: Make) -> None:
        """`make`: an object that costs, as it is stored there."""
        super().__init__(key, seed, PARTICIPANT)
        self.labels = Kind()
        self.objects = Kind()
        self.claims = Kind()
        self.claimed: set[str] = set()  # names of objects that are claims
        self.unlistable: set[GroupResource] = set()
        self._make = make
        self.participates = True
        self.inside: dict[str, str] = {}  # by name of a pod: its namespace
        self.filling = ""  # the namespace that all is created in
        self._clock = clock

    def write(self, old: Machine | None, new: Machine | None) -> None:
        super().write(old, new)
        of = new or old
        assert of is not None, "a change has an object before or after"
        name = of.metadata.key
        inside = self.inside[name]
        found = self._make(name, inside, new.resources, new.metadata.generation) if new is not None else None
        (self.claims if name in self.claimed else self.objects).write(object_key(inside, name), found, self._clock.now)

    def of_kind(self, kind: object) -> Kind:
        return self.claims if kind == RESOURCE_CLAIMS else self.objects

    def label(self, name: str, labels: Collection[str] | None) -> None:
        """None deletes the namespace."""
        self.labels.write(name, namespace(name, labels) if labels is not None else None, self._clock.now)

    def labelled(self, name: str) -> Mapping[str, str]:
        found = self.labels.present.get(name)
        return found.metadata.labels if found is not None else {}

    def labelled_since(self, name: str, since: float) -> list[Mapping[str, str]]:
        """All labels that the namespace had at any moment since it was made; none when it was gone."""
        found: list[Mapping[str, str]] = []
        for (key, value), at in zip(self.labels.log, self.labels.times, strict=True):
            if key != name:
                continue
            if at <= since:
                found.clear()
            found.append(value.metadata.labels if value is not None else {})
        return found


class ClusterClient:
    """What a replica has for a client of a user cluster's API server."""

    def __init__(
        self,
        replica: NamespaceReplica,
        source: NamespacedCluster,
        on_list: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_list` is called in the moment in which the objects of a namespace are read."""
        self.name = source.key
        self.replica = replica
        self.source = source
        self._on_list = on_list

    async def find(self, _resource: object, name: str) -> Object | None:
        return await self._call(f"get namespace {name}", lambda: self.source.labels.present.get(name))

    async def list(self, resource: object, inside: str, *, field_selector: str = "", limit: int = 0) -> Listing[Object]:
        """There is no second page: `limit` is more than what any namespace has here."""
        if not field_selector:
            return Listing(await self._call(f"list of {inside}", lambda: self._read(inside)), "1", [])
        key = object_key(inside, field_selector.removeprefix("metadata.name="))
        found = await self._call(f"get {key}", lambda: self.source.of_kind(resource).present.get(key))
        return Listing([found] if found is not None else [], "1", [])

    def _read(self, inside: str) -> Sequence[Object]:
        self._on_list()
        return [found for found in self.source.objects.present.values() if found.metadata.namespace == inside]

    async def _call(self, what: str, read: Callable[[], FoundT]) -> FoundT:
        replica = self.replica
        found: FoundT = await replica.network.call(what, replica, self.source, read, away(self.name))
        return found


class Watch:
    """Lists a kind, then hears its changes, as far as the schedule brings them."""

    untaken: str | None = None

    def __init__(
        self,
        client: ClusterClient,
        kind: Kind,
        on_change: Callable[[Change[Any]], None],
        on_state: Callable[[], None],
    ) -> None:
        self.source = client.source
        self.store: Store[Any] = Store({BY_NAMESPACE: lambda found: [found.metadata.namespace]})
        self.at = 0
        self.listing = False
        self.listed_at = 0  # the number of events of the seed's API server when the last complete list began
        self.listed_from = 0  # the moment at which it began
        self.blind_until = 0.0  # it brings nothing
        self.error: str | None = None  # why the last list failed, or the watch broke
        self._on_state = on_state
        self._replica = client.replica
        self._kind = kind
        self._on_change = on_change
        self._outages = -1
        self._wanted = 1
        self._started = 0
        self._done = 0
        self._ended = False  # a list that is under way brings nothing any more

    @property
    def end(self) -> int:
        """How far it may be brought now."""
        return self.at if self._replica.now() < self.blind_until else len(self._kind.log)

    @property
    def wants_list(self) -> bool:
        return not self.listing and (self._wanted > self._done or not self.live)

    @property
    def live(self) -> bool:
        return self._outages == self.source.outages

    @property
    def problem(self) -> str | None:
        return self.error

    error_status = 0

    def relist(self) -> None:
        self._wanted = self._started + 1

    async def run(self) -> None:
        """Until cancelled."""
        self._replica.watches.append(self)
        try:
            await self._replica.loop.create_future()
        finally:
            self._replica.watches.remove(self)
            self._ended = True

    def look(self, upto: int) -> None:
        """Takes a list, if one is wanted; else hears events of the watch."""
        if self.wants_list:
            self._replica.loop.call(self._list_anew)
        else:
            self._replica.loop.call(self._follow, upto)

    def heard(self) -> None:
        """All is told that has come by now."""

    def _list_anew(self) -> None:
        self.listing = True
        self._started += 1
        self._replica.loop.start(self._list(self._started))

    async def _list(self, number: int) -> None:
        source, kind, began = self.source, self._kind, moment()
        try:
            objects, at, listed_at, outages = await self._taken()
        except ApiError as error:
            self.listing = False
            self._is(error.message)
            return
        if self._ended:
            return
        source.between.update(value.metadata.name for _, value in kind.log[self.at : at] if value is not None)
        source.between.difference_update(value.metadata.name for value in objects.values())
        self.listing, self.listed_at, self._outages, self.at = False, listed_at, outages, at
        for key in [key for key in self.store.keys() if key not in objects]:  # noqa: SIM118
            self._apply(key, None)
        for key, value in objects.items():
            if self.store.get(key) != value:
                self._apply(key, value)
        self.listed_from, self._done, self.error = began, number, None
        self.heard()
        self._on_state()

    def _taken(self) -> asyncio.Future[tuple[dict[str, Object], int, int, int]]:
        source, kind, replica = self.source, self._kind, self._replica
        taken = replica.network.call(
            f"list of {source.key}",
            replica,
            source,
            lambda: (dict(kind.present), len(kind.log), len(replica.api.events), source.outages),
            away(source.key),
        )
        if replica.rng.random() < SLOW and not taken.done():  # there are very many
            replica.network.flying[-1].until = replica.now() + replica.rng.choice(TAKES)
        return taken

    def _follow(self, upto: int) -> None:
        if self.listing or not self._done or self._replica.now() < self.blind_until:
            return
        if not self._replica.network.reaches(self._replica.place, self.source):
            self._is("no answer")
            return
        for key, value in self._kind.log[self.at : upto]:
            self._apply(key, value)
        self.at = max(self.at, upto)
        self._is(None)
        self.heard()

    def _is(self, error: str | None) -> None:
        if error != self.error:
            self.error = error
            self._on_state()

    def _apply(self, key: str, value: Object | None) -> None:
        old = self.store.get(key)
        if old is None and value is None:
            return
        if value is None:
            self.store._remove(key)
        else:
            self.store._set(key, value)
        self._on_change(Change(old, value))

    def proven(self) -> float:
        """The time up to which it has brought everything."""
        return self._kind.times[self.at] if self.at < len(self._kind.log) else self._replica.now()


class LabelWatch(Watch):
    """In place of the reflector of a cluster's namespaces."""

    def __init__(
        self,
        cluster: Any,
        _resource: object = NAMESPACES,
        *,
        on_change: Callable[[Change[Any]], None],
        on_state: Callable[[], None] = lambda: None,
        **_options: Any,
    ) -> None:
        super().__init__(cluster, cluster.source.labels, on_change, on_state)
        self.synced = asyncio.Event()

    def heard(self) -> None:
        self.synced.set()


class ObjectWatch(Watch):
    """In place of seed/kinds/namespaces/kind_informer.py: its kind is always served."""

    unseen = False

    def __init__(
        self,
        cluster: Any,
        evaluator: NamespacedEvaluator[Any],
        on_change: Callable[[Change[Any]], None],
        on_state: Callable[[], None],
    ) -> None:
        super().__init__(cluster, cluster.source.of_kind(evaluator.resource), on_change, on_state)
        self.resource = self.served = evaluator.resource
        self._was_refused = False

    @property
    def is_refused(self) -> bool:
        """It cannot be listed, and has tried."""
        return self._was_refused and self.resource in self.source.unlistable

    @property
    def end(self) -> int:
        return self.at if self.is_refused else super().end

    @property
    def wants_list(self) -> bool:
        return super().wants_list and not self.is_refused

    @property
    def problem(self) -> str | None:
        return None if self.is_refused else self.error

    def look(self, upto: int) -> None:
        if not self.is_refused:
            super().look(upto)

    def _list_anew(self) -> None:
        self._was_refused = self.resource in self.source.unlistable
        if self._was_refused:
            self._is("cannot be listed")
        else:
            super()._list_anew()

    @property
    def synced(self) -> bool:
        return bool(self._done)

    def objects(self, inside: str) -> list[Any]:
        return self.store.by_index(BY_NAMESPACE, inside)

    def number(self, inside: str) -> int:
        return self.store.number(BY_NAMESPACE, inside)

    def get(self, key: str) -> Any:
        return self.store.get(key)
