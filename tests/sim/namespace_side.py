"""A replica of the seed's program where quotas count namespaces: the real sources, cache of labels and admission."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import seed.kinds.namespaces.cache
from common.kube.client.api_client import Cluster
from common.kube.controller.leader_election import Term
from common.quota import resources
from common.quota.resources import ResourceList
from seed.admission.admitter import Admission
from seed.admission.refusal import Refusal
from seed.admission.types import Confirm, Request, Verdict
from seed.kinds.namespaces.admission import NamespacedAdmission
from seed.kinds.namespaces.cache import NamespaceCache, Selection, _Watched
from seed.kinds.namespaces.cluster_objects import QuotaNamespaces
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator, Write, used
from seed.kinds.namespaces.evaluators.resource_quotas import largest, promised
from seed.kinds.namespaces.source import NamespacedSource
from seed.kinds.namespaces.sources import NamespacedSources
from seed.model.quota import Quota
from tests.sim import namespaces, seed_side
from tests.sim.namespaces import PODS_EVALUATOR, ClusterClient, LabelWatch, NamespacedCluster, Watch
from tests.sim.seed_side import Leader, Replica, UsageSource


class _CachedLabels(LabelWatch):
    """What admission knows of the namespaces of a cluster: the schedule brings it in place of the reflector's watch."""

    def __init__(self, client: ClusterClient, watched: _Watched) -> None:
        super().__init__(client, on_change=lambda _change: None)
        self._watched = watched
        assert watched.reflector is not None, "made with it"
        watched.reflector.store = self.store

    def heard(self) -> None:
        reflector, replica = self._watched.reflector, self._replica
        assert reflector is not None, "made with it"
        reflector.synced.set()
        reflector.proven_at = max(reflector.proven_at, replica.by_its_clock(self.proven()))


class _Asked:
    """Which quotas the cache named for one request, and by which client more is read for it."""

    def __init__(self, client: ClusterClient, came: float) -> None:
        self.quotas: list[Quota] = []
        self.decided = came  # when that began, or the request came, by the replica's clock
        self.client = client


class _Asking:
    """The cache, as all requests to a replica have it. `of`: the request of each task."""

    def __init__(self, cache: NamespaceCache) -> None:
        self.of: dict[asyncio.Task[Any], _Asked] = {}
        self._cache = cache

    def select(self, cluster: str, namespace: str) -> Selection:
        found = self._cache.select(cluster, namespace)
        self._asked.quotas = list(found.quotas)
        return found

    async def read(self, cluster: str, namespace: str) -> Selection:
        found = await self._cache.read(cluster, namespace)
        self._asked.quotas = list(found.quotas)
        return found

    def connection(self, cluster: str) -> Cluster:
        self._cache.connection(cluster)  # raises what it raises
        return cast("Cluster", self._asked.client)

    @property
    def _asked(self) -> _Asked:
        task = asyncio.current_task()
        assert task is not None, "a request is one"
        return self.of[task]


class NamespaceLeader(Leader):
    def __init__(self, replica: NamespaceReplica, term: Term) -> None:
        self._following: dict[str, asyncio.Task[None]] = {}
        super().__init__(replica, term)
        self._tasks.append(replica.loop.create_task(self.namespaces.run()))

    def _followed(self, replica: Replica) -> Mapping[str, UsageSource]:
        view = replica.view
        self.namespaces = NamespacedSources(
            cast("Cluster", seed_side.SeedClient(replica)),
            view.quota_cache,
            view.cluster_cache,
            replica.registry,
            on_change=self._changed,
            on_state=self._state_changed,
            unreached=lambda _cluster: None,
        )
        return cast("Mapping[str, UsageSource]", self.namespaces)

    def listed(self) -> dict[str, int]:
        """Also by source and resource."""
        found: dict[str, int] = {}
        for key, source in self.namespaces._sources.items():
            if source._counted is not None:
                found |= _listed_at(key, source._counted)
        return found

    def counted(self) -> dict[str, NamespacedSource]:
        return {key: source for key, source in self.namespaces._sources.items() if source.counted}

    def follow_clusters(self, replica: Replica) -> None:
        assert isinstance(replica, NamespaceReplica), "made by it"
        there = replica.view.cluster_cache.user_clusters.store.keys()
        clusters = [key for key in there if not replica.sources[key].has_machines]
        for key in clusters:
            if key not in self._following:
                client = cast("Cluster", replica.client(key))
                self._following[key] = replica.loop.create_task(self.namespaces.follow(key, client))
        for key in [key for key in self._following if key not in clusters]:
            self._following.pop(key).cancel()
        replica.loop.run()

    def stop(self) -> None:
        for task in self._following.values():
            task.cancel()
        super().stop()


def _listed_at(key: str, counting: QuotaNamespaces) -> dict[str, int]:
    """A kind that cannot be listed keeps others from nothing."""
    found = {key: cast("Watch", counting.objects.namespaces).listed_at}
    for name in counting.terms.limited:
        kinds = counting.kinds if counting.terms.promises else frozenset(namespaces.counted(name))
        watches = cast("Sequence[Watch]", [each for each in counting.informers if each.resource in kinds])
        found[f"{key} {name}"] = min((watch.listed_at for watch in watches), default=0)
    return found


def summed_anew(source: NamespacedSource) -> ResourceList:
    """What the watches behind its sum have brought, without what was kept from change to change."""
    counted = source._counted
    assert counted is not None, "only what is counted"
    objects = [found for watch in cast("Sequence[Any]", counted.informers) for found in watch.store.values()]
    selected = {
        found.metadata.name
        for found in counted.objects.namespaces.store.values()
        if counted.selects(found.metadata.labels)
    }
    if counted.terms.promises:
        inside: dict[str, list[ResourceList]] = {name: [] for name in selected}
        for found in objects:
            inside.get(found.metadata.namespace, []).append(promised(found, counted.terms.limited))
        return {name: amount for name, amount in resources.total(map(largest, inside.values())).items() if amount}
    counts = (found for found in objects if found.metadata.namespace in selected)
    return resources.total(used(PODS_EVALUATOR, counted.terms, found, 0.0) for found in counts)


class NamespaceReplica(Replica):
    def __init__(self, *arguments: Any) -> None:
        self.watches: list[Watch] = []  # of who leads
        self.labels: dict[str, _CachedLabels] = {}  # by cluster, for admission
        super().__init__(*arguments)
        self._asking = _Asking(self.namespace_cache)
        self._namespaced = NamespacedAdmission(cast("Admission", self), self._asking)
        self.loop.call(self._follow_labels)

    def undecided(self, of: str) -> Verdict | None:
        return self.admission.undecided(of=of)

    async def decide(self, request: Request, *, quotas: list[Quota], confirm: Confirm | None) -> Verdict:
        task = asyncio.current_task()
        assert task is not None, "a request is one"
        self._asking.of[task].decided = self.loop.time()
        return await self.admission.decide(request, quotas=quotas, confirm=confirm)

    def now(self) -> float:
        return self.network._clock.now

    @property
    def rng(self) -> random.Random:
        return self.network._rng

    def by_its_clock(self, at: float) -> float:
        return at * self.loop._rate

    def client(self, key: str) -> ClusterClient:
        source = self.sources[key]
        assert isinstance(source, NamespacedCluster), "there are no others here"
        return ClusterClient(self, source)

    def followed(self) -> list[UsageSource]:
        return cast("list[UsageSource]", [*self.labels.values(), *self.watches])

    def parts(self) -> list[object]:
        leader = self.leader
        led = [leader.namespaces] if isinstance(leader, NamespaceLeader) else []
        own = [self._namespaced, self._asking, self.namespace_cache]
        return [*self.watches, *self.labels.values(), *led, *own, *super().parts()]

    def _begin_watching(self) -> None:
        super()._begin_watching()
        self.namespace_cache = NamespaceCache(cast("Cluster", self.api), self.view.quota_cache, self.view.cluster_cache)

    def _watch(self, upto: int) -> None:
        super()._watch(upto)
        self._follow_labels()

    def _follow_labels(self) -> None:
        wanted = self.namespace_cache._cluster_cache.participants()
        for key in [key for key in self.labels if key not in wanted]:
            del self.labels[key], self.namespace_cache._watched[key]
        for key, cluster in wanted.items():
            if key not in self.labels:
                watched = self.namespace_cache._watched[key] = _Watched(cluster)
                client = self.client(key)
                watched.cluster = cast("Cluster", client)
                watched.reflector = seed.kinds.namespaces.cache.Reflector(  # type: ignore[attr-defined]
                    watched.cluster, seed.kinds.namespaces.cache.NAMESPACES, on_change=lambda _change: None
                )
                self.labels[key] = _CachedLabels(client, watched)

    def _lead(self, term: Term) -> Leader:
        return NamespaceLeader(self, term)

    def ask_in_namespace(
        self,
        key: str,
        evaluator: NamespacedEvaluator[Any],
        write: Write[Any],
        deadline: float,
        heard: Callable[[Refusal | None, list[Quota], float, bool], None],
        on_list: Callable[[], None],
    ) -> asyncio.Task[None]:
        """An API server calls the webhook. `heard` is told the verdict, the quotas that select the namespace, when its
        decision began or, if another call got that before, when it came, and whether that is so. `on_list`: see
        ClusterClient."""
        source = self.sources[key]
        assert isinstance(source, NamespacedCluster), "there are no others here"
        asked = _Asked(ClusterClient(self, source, on_list), self.loop.time())

        async def answer() -> None:
            cluster = self.view.cluster_cache.user_clusters.store.get(key)
            task = asyncio.current_task()
            assert task is not None, "it is one"
            self._asking.of[task] = asked
            try:
                if cluster is not None:
                    verdict = await self._namespaced.decide(cluster, evaluator, write, dry_run=False, deadline=deadline)
                    heard(verdict.refusal, asked.quotas, asked.decided, verdict.repeated)
            finally:
                del self._asking.of[task]

        return self.answers(answer())
