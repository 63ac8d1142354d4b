"""Which sources there are in namespaces: one for each quota that limits objects, in each cluster that it covers.

They share the connection to their cluster, and what is listed through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from common.kube.client.api_client import Cluster
from common.quota.account import Account
from common.quota.object_names import GroupResource
from common.quota.resources import ResourceList
from common.runtime.unexpected import contained, kept_task
from common.runtime.waiting import first_of
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.kinds.namespaces.cluster_objects import ClusterObjects
from seed.kinds.namespaces.source import NamespacedSource
from seed.kinds.namespaces.terms import terms_of
from seed.model.quota import Quota
from seed.model.selected_namespaces import Exempt
from seed.model.source_key import OWN_API_SERVER, SourceKey
from seed.usage.source import KnownAccounts, Problem, UsageSource


class NamespacedSources(Mapping[str, UsageSource]):
    """The sources by key. `run()` it while this replica leads, and `follow` each cluster that is connected."""

    def __init__(
        self,
        seed: Cluster,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        accounts: KnownAccounts,
        *,
        on_change: Callable[[UsageSource, bool], None],
        on_state: Callable[[UsageSource], None],
        unreached: Callable[[str], Problem | None],
    ) -> None:
        self._seed = seed
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._accounts = accounts
        self._on_change = on_change
        self._on_state = on_state
        self._unreached = unreached
        self._sources: dict[str, NamespacedSource] = {}
        self._by_cluster: dict[str, dict[str, NamespacedSource]] = {}  # by key
        self._objects: dict[str, ClusterObjects] = {}  # of the clusters that are connected
        self._names: dict[str, frozenset[str]] = {}  # by quota name: what it limits, or was granted
        self._asked: set[str] = set()  # names of quotas whose accounts are needed and were not there
        self._wake = asyncio.Event()

    def __getitem__(self, key: str) -> NamespacedSource:
        return self._sources[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    async def run(self) -> None:
        """Until cancelled."""
        stops = [
            self._quota_cache.on_spec(lambda _name: self._wake.set()),
            self._quota_cache.on_members(lambda _name: self._wake.set()),
            self._cluster_cache.on_participants(self._wake.set),
            self._accounts.on_account(self._account_changed),
        ]
        own = kept_task("namespaces", lambda: self.follow(OWN_API_SERVER, self._seed), "the seed")
        try:
            while True:
                self._wake.clear()
                self._adjust()
                await self._wake.wait()
        finally:
            for stop in stops:
                stop()
            own.cancel()
            await asyncio.gather(own, return_exceptions=True)
            for source in self._sources.values():
                source.end()
            self._sources.clear()
            self._by_cluster.clear()

    async def follow(self, key: str, cluster: Cluster) -> None:
        """Counts through this connection while the cluster takes part; until cancelled."""
        changed = asyncio.Event()
        stop = self._cluster_cache.on_participants(changed.set)
        try:
            while True:
                changed.clear()
                if not self._cluster_cache.takes_part(key):
                    await changed.wait()
                    continue
                exempt = self._cluster_cache.exempt(key)
                objects = ClusterObjects(key, cluster, lambda: self.look(key), exempt=exempt)
                self._objects[key] = objects
                self._connection_changed(key)
                try:
                    ended = await first_of(objects.run(), self._until_left(key, exempt))
                    ended.result()
                finally:
                    if self._objects.get(key) is objects:
                        del self._objects[key]
                        self._connection_changed(key)
        finally:
            stop()

    def unserved(self, cluster: str) -> frozenset[GroupResource]:
        """The kinds that are served there, and not in the version that a quota names."""
        objects = self._objects.get(cluster)
        informers = objects.informers.values() if objects is not None else ()
        return frozenset(informer.resource for informer in informers if informer.is_other_version)

    def look(self, cluster: str) -> None:
        """What can be listed there may have changed."""
        for source in list(self._by_cluster.get(cluster, {}).values()):
            with contained("namespaces", source.key):
                source.look()

    async def _until_left(self, key: str, exempt: Exempt) -> None:
        """Or until other namespaces are exempt."""
        changed = asyncio.Event()
        stop = self._cluster_cache.on_participants(changed.set)
        try:
            while self._cluster_cache.takes_part(key) and self._cluster_cache.exempt(key) == exempt:
                changed.clear()
                await changed.wait()
        finally:
            stop()

    def _connection_changed(self, cluster: str) -> None:
        for source in list(self._by_cluster.get(cluster, {}).values()):
            quota = self._quota_cache.quota(source.consumer.quota)
            with contained("namespaces", source.key):
                if quota is not None:
                    self._want(source, quota)

    def _adjust(self) -> None:
        wanted: set[str] = set()
        quotas = self._quota_cache.object_quotas()
        for quota in quotas:
            keys = [SourceKey.of_namespaces(quota.key.uid, cluster) for cluster in self._cluster_cache.covered(quota)]
            wanted.update(keys)
            with contained("namespaces", quota.name):
                self._names[quota.name] = frozenset(quota.limits) | frozenset(self._accounts.granted(quota))
            for key in keys:
                with contained("namespaces", key):
                    self._want(self._sources.get(key) or self._made(key, quota), quota)
        for unwanted in self._sources.keys() - wanted:
            source = self._sources.pop(unwanted)
            del self._by_cluster[source.cluster][unwanted]
            with contained("namespaces", unwanted):
                source.end()
        known = {quota.name for quota in quotas}
        self._names = {name: names for name, names in self._names.items() if name in known}

    def _made(self, key: SourceKey, quota: Quota) -> NamespacedSource:
        source = NamespacedSource(
            quota,
            key.cluster,
            on_change=self._on_change,
            on_state=self._on_state,
            unreached=self._unreached,
            had=self._had,
        )
        self._sources[key] = source
        self._by_cluster.setdefault(key.cluster, {})[key] = source
        return source

    def _want(self, source: NamespacedSource, quota: Quota) -> None:
        selector = self._cluster_cache.selector(quota, source.cluster)
        source.want(quota, terms_of(quota, self._accounts.granted(quota)), selector, self._objects.get(source.cluster))

    def _had(self, quota: Quota, source: SourceKey) -> ResourceList | None:
        used = self._accounts.used(quota, source)
        if used is None:
            self._asked.add(quota.name)
        return used

    def _account_changed(self, name: str, account: Account | None) -> None:
        if name in self._asked:
            self._asked.discard(name)
            self._wake.set()
        names = self._names.get(name)
        if names is not None and account is not None and not account.granted.keys() <= names:
            self._wake.set()
