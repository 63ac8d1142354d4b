"""The namespaces of the clusters that take part, and which quotas count each of them.

Every replica keeps this for admission. The leader counts by watch caches of its own (cluster_objects.py): it has to
list them anew when counting demands it.

For admission:

- `select(cluster, namespace)` answers from memory: the quotas, and whether that is known. It is not known of a
  namespace that the watch has not brought, or that is being deleted, nor while the watch proves nothing. `read` asks
  the API server instead.
- A reservation of what is admitted is of the source `SourceKey.of_namespaces(quota.key.uid, cluster)`; its `object` is
  `object_in_namespace(resource, namespace, name)`; its `generation` is 0 for what is created, and for an update
  `generation_after(old.metadata)` (seed/model/reserved_object.py). Its amount is what the write adds to that quota,
  which differs from quota to quota.
- `cluster` is the UserCluster's key, or OWN_API_SERVER for the seed's own API server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from common.api.cluster_identity import KUBE_SYSTEM, is_another
from common.api.core import SECRETS, kubeconfig_text
from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Unavailable
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.meta import Object, ObjectMeta, OwnerReference
from common.kube.client.reach import DEFAULT, Reach
from common.kube.client.resource import Resource
from common.kube.controller.reflector import PROMPT_SECONDS, Reflector
from common.kube.controller.store import Change
from common.quota import object_names
from common.runtime.listeners import Listeners
from common.runtime.unexpected import kept_task
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.cache.replicas import FRESH
from seed.kinds.namespaces.evaluators.object_count import NOT_READ
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.model.selected_namespaces import EVERY, ByLabel, picks

log = logging.getLogger(__name__)

LOOK_EVERY = 10.0  # seconds between two looks whether the kubeconfig has changed, while its connection does not work
TIMEOUT = 5.0  # ... for one request: a read may be waited for by an admission
MOST = 128 * 2**20  # bytes that the namespaces of one cluster may take: its tenants write their labels
# Bytes that one takes with all that is kept for it, and each of its labels' texts beside its characters. Each is looked
# at again and again: 32,000 of them take milliseconds. Kubernetes is tested with 10,000.
EMPTY, OF_TEXT = 4096, 60


class LabelledMeta(ObjectMeta, frozen=True, kw_only=True):
    """Without what may be long and nobody needs."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}annotations")
    owner_references: tuple[OwnerReference, ...] = msgspec.field(default=(), name=f"{NOT_READ}ownerReferences")
    finalizers: tuple[str, ...] = msgspec.field(default=(), name=f"{NOT_READ}finalizers")


class Namespace(Object, frozen=True, kw_only=True):
    metadata: LabelledMeta


def weigh(namespace: Namespace) -> int:
    """About the bytes that it takes here."""
    labels = namespace.metadata.labels
    return EMPTY + sum(len(name) + len(value) + 2 * OF_TEXT for name, value in labels.items())


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, Namespace, most=MOST, weigh=weigh, metadata_only=True)


class Selection(NamedTuple):
    """`known`: False while the cache may be behind; then `quotas` may lack some, or have one too many. `awaited`: the
    project that the namespace is of, if what limits that has not come from the master yet. `project`: that which its
    label names, in a cluster with namespaces of several."""

    quotas: list[Quota]
    known: bool
    awaited: str = ""
    project: str = ""


class _Watched:
    """One cluster. `reflector` is that of the latest connection, None before the first."""

    def __init__(self, user_cluster: UserCluster | None) -> None:
        self.user_cluster = user_cluster
        self.cluster: Cluster | None = None
        self.reflector: Reflector[Namespace] | None = None
        self.error = "not connected yet"
        self.task: asyncio.Task[None] | None = None

    def usable(self, now: float) -> bool:
        """Nothing that had happened a while ago is missing, and it is the cluster that the UserCluster stands for."""
        reflector = self.reflector
        if reflector is None or not reflector.synced.is_set() or now - reflector.proven_at > FRESH:
            return False
        return not self._is_another(reflector.store.get(KUBE_SYSTEM))

    def check_same(self) -> None:
        """Raises Unavailable where the kubeconfig leads to another cluster than the one that is counted."""
        if self.reflector is not None and self._is_another(self.reflector.store.get(KUBE_SYSTEM)):
            raise Unavailable(0, "ClusterChanged", "the kubeconfig leads to another cluster")

    def _is_another(self, kube_system: Namespace | None) -> bool:
        of = self.user_cluster
        return (
            of is not None
            and kube_system is not None
            and is_another(of, of.status.cluster_uid, kube_system.metadata.uid)
        )


class NamespaceCache:
    """`run()` it. `on_change(cluster, change)` is called for each change of a namespace."""

    def __init__(
        self,
        seed: Cluster,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        *,
        reach: Reach = DEFAULT,
    ) -> None:
        self._seed = seed
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._reach = reach
        self._watched: dict[str, _Watched] = {}
        self._listeners: Listeners[[str, Change[Namespace]]] = Listeners()
        self._wake = asyncio.Event()
        self._by_label: ByLabel | None = None  # until a quota's spec changes
        quota_cache.on_spec(self._spec_changed)

    def takes_part(self, cluster: str) -> bool:
        """Whether quotas may count its namespaces, as far as is known here."""
        return self._cluster_cache.takes_part(cluster)

    def select(self, cluster: str, namespace: str) -> Selection:
        """From memory."""
        watched = self._watched.get(cluster)
        reflector = watched.reflector if watched is not None else None
        found = reflector.store.get(namespace) if reflector is not None else None
        if watched is None or found is None:
            return Selection([], known=False)
        # Nothing can be created in a namespace that is being deleted. Who asks about that is in another of its name.
        known = found.metadata.deletion_timestamp is None and watched.usable(time.monotonic())
        return self._selection(cluster, found.metadata.labels, known=known)

    def select_by(self, cluster: str, labels: Mapping[str, str]) -> list[Quota]:
        """The quotas that count a namespace with these labels there, in the order of their names."""
        return self._selection(cluster, labels, known=True).quotas

    def _selection(self, cluster: str, labels: Mapping[str, str], *, known: bool) -> Selection:
        """A quota of kind namespaces is found by one of the labels that it asks for, others by the project that the
        namespace is of."""
        if self._by_label is None:
            quotas = self._quota_cache.namespace_quotas()
            self._by_label = ByLabel((quota.name, quota.selector) for quota in quotas if quota.selector is not None)
        exempt, covers = self._cluster_cache.exempt(cluster), self._cluster_cache.covers
        labelled = (self._quota_cache.quota(name) for name in self._by_label.candidates(labels))
        found = [
            quota
            for quota in labelled
            if quota is not None and quota.selector is not None and picks(quota.selector, labels, exempt)
        ]
        project, awaited = self._cluster_cache.project_in(cluster, labels), ""
        if project and picks(EVERY, labels, exempt):
            consumer = Consumer(project, cluster)
            found += self._quota_cache.quotas_of(consumer)
            awaited = project if self._quota_cache.may_belong(consumer, _limit_objects) else ""
        quotas = sorted((quota for quota in found if covers(quota, cluster)), key=lambda quota: quota.name)
        return Selection(quotas, known, awaited, project if self._cluster_cache.is_shared(cluster) else "")

    def _spec_changed(self, _name: str) -> None:
        self._by_label = None

    def connection(self, cluster: str) -> Cluster:
        """To that very cluster. Raises Unavailable."""
        watched = self._watched.get(cluster)
        if watched is None or watched.cluster is None:
            raise Unavailable(0, "Unavailable", watched.error if watched is not None else f"{cluster} is not followed")
        watched.check_same()
        return watched.cluster

    async def read(self, cluster: str, namespace: str) -> Selection:
        """By a consistent read. A namespace that is not there is in no quota. Raises ApiError."""
        found = await self.connection(cluster).find(NAMESPACES, namespace)
        if found is None:
            return Selection([], known=True)
        return self._selection(cluster, found.metadata.labels, known=True)

    def problem(self, cluster: str) -> str | None:
        """Why nothing is known of its namespaces now."""
        watched = self._watched.get(cluster)
        if watched is None:
            return f"{cluster} is not followed yet"
        if watched.usable(time.monotonic()):
            return None
        return (watched.reflector.error if watched.reflector is not None else None) or watched.error

    def on_change(self, listener: Callable[[str, Change[Namespace]], None]) -> Callable[[], None]:
        """Returns how to stop listening."""
        return self._listeners.add(listener)

    async def run(self) -> None:
        """Until cancelled."""
        stop = self._cluster_cache.on_participants(self._wake.set)
        try:
            while True:
                self._wake.clear()
                await self._adjust()
                await self._wake.wait()
        finally:
            stop()
            for key in list(self._watched):
                await self._end(key)

    async def _adjust(self) -> None:
        wanted = self._cluster_cache.participants()
        for key, watched in list(self._watched.items()):
            if key not in wanted or not _is_same(watched.user_cluster, wanted[key]):
                await self._end(key)
        for key, user_cluster in wanted.items():
            if key not in self._watched:
                watched = self._watched[key] = _Watched(user_cluster)
                watched.task = self._following(key, watched)
            self._watched[key].user_cluster = user_cluster

    def _following(self, key: str, watched: _Watched) -> asyncio.Task[None]:
        return kept_task("namespaces", lambda: self._follow(key, watched), key)

    async def _end(self, key: str) -> None:
        task = self._watched.pop(key).task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self, key: str, watched: _Watched) -> None:
        if watched.user_cluster is None:
            await self._watch(key, watched, self._seed)
            return
        while True:
            try:
                kubeconfig = await self._kubeconfig(watched.user_cluster)
                cluster = await Cluster.of_tenant(kubeconfig, name=key, timeout=TIMEOUT, reach=self._reach)
            except (ApiError, InvalidKubeconfig) as error:
                watched.error = str(error)
                await asyncio.sleep(LOOK_EVERY)
                continue
            watching = asyncio.create_task(self._watch(key, watched, cluster), name=f"watch of namespaces of {key}")
            try:
                await self._until_other(watched, kubeconfig)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                watched.cluster = None
                await cluster.close()

    async def _until_other(self, watched: _Watched, kubeconfig: str) -> None:
        """Returns when the Secret has another kubeconfig. It is only looked at while this one does not work."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            reflector = watched.reflector
            if watched.user_cluster is None or (reflector is not None and reflector.error is None):
                continue
            try:
                if await self._kubeconfig(watched.user_cluster) != kubeconfig:
                    return
            except (ApiError, InvalidKubeconfig) as error:
                watched.error = str(error)

    async def _kubeconfig(self, user_cluster: UserCluster) -> str:
        """Raises ApiError, InvalidKubeconfig."""
        reference, namespace = user_cluster.spec.kubeconfig_secret_ref, user_cluster.metadata.namespace
        assert reference is not None, "a user cluster that takes part has a Secret"
        return kubeconfig_text(await self._seed.get(SECRETS, reference.name, namespace), namespace, reference)

    async def _watch(self, key: str, watched: _Watched, cluster: Cluster) -> None:
        before = watched.reflector
        reflector = Reflector(
            cluster,
            NAMESPACES,
            on_change=lambda change: self._listeners.call(key, change),
            known=before.store if before is not None else None,
            watch_seconds=PROMPT_SECONDS,
        )
        watched.cluster, watched.reflector = cluster, reflector
        await reflector.run()


def _limit_objects(limits: Iterable[str]) -> bool:
    return bool(object_names.of_objects(limits))


def _is_same(known: UserCluster | None, present: UserCluster | None) -> bool:
    if known is None or present is None:
        return known is present
    return (known.metadata.uid, known.spec.kubeconfig_secret_ref) == (
        present.metadata.uid,
        present.spec.kubeconfig_secret_ref,
    )
