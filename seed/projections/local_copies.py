"""The LocalResourceQuotas of all clusters that are followed: which of them may have changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from common.kube.client.api_client import Cluster
from common.quota import account as accounts
from common.quota.account import Account
from common.runtime.unexpected import contained, kept_task
from seed.accounts.registry import AccountRegistry
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.projections import local_quota
from seed.projections.cluster_copies import ClusterCopies
from seed.projections.copies import EVERY
from seed.projections.local_quota import KnownQuota
from seed.projections.namespace_copies import NamespaceCopies, Selection
from seed.projections.pace import Pace
from seed.usage.source import UsageSource

IN_NAMESPACES_PER_SECOND = 25  # writes in namespaces, in all clusters together


class SourceOfCluster(UsageSource, Protocol):
    @property
    def on_seed(self) -> bool:
        """The seed itself holds this cluster's Machines."""

    @property
    def namespace(self) -> str:
        """Where copies are in that cluster."""


class LocalCopies:
    """`run()` it while this replica leads. The seed's own Machines have none; its namespaces have."""

    def __init__(
        self, quota_cache: QuotaCache, cluster_cache: ClusterCache, registry: AccountRegistry, *, enabled: bool
    ) -> None:
        """Not `enabled`: what is in the clusters is removed."""
        self.enabled = enabled
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._registry = registry
        self._pace = Pace()
        self._pace_in_namespaces = Pace(IN_NAMESPACES_PER_SECOND)
        self._copies: dict[str, ClusterCopies] = {}  # by the key of the user cluster
        self._in_namespaces: dict[str, NamespaceCopies] = {}  # by the key of the cluster
        self._changed: set[str] = set()  # quotas
        self._recounted: set[str] = set()  # clusters, of what is in namespaces
        self._master_seen = False

    async def run(self) -> None:
        """Until cancelled."""
        ends = (
            self._quota_cache.on_quota(self._changed.add),
            self._registry.on_account(self._account_changed),
            self._cluster_cache.on_participants(lambda: self._recounted.update(self._in_namespaces)),
        )
        try:
            while True:
                await asyncio.sleep(EVERY)
                self._wake()
        finally:
            for end in ends:
                end()

    def of(self, key: str) -> ClusterCopies | None:
        """None while the user cluster is not connected, or is the seed itself."""
        return self._copies.get(key)

    def in_namespaces(self, key: str) -> NamespaceCopies | None:
        """None while the cluster is not connected."""
        return self._in_namespaces.get(key)

    def source_changed(self, key: str) -> None:
        """The user cluster is followed now, or no more."""
        if (copies := self._copies.get(key)) is not None:
            copies.reached()
        if (in_namespaces := self._in_namespaces.get(key)) is not None:
            in_namespaces.reached()

    def counted_in_namespaces(self, cluster: str) -> None:
        """Something else is counted there than before, or in other namespaces."""
        self._recounted.add(cluster)

    async def keep_in_namespaces(
        self,
        key: str,
        cluster: Cluster,
        sources: Mapping[str, UsageSource],
        on_state: Callable[[], None] = lambda: None,
    ) -> None:
        """Through this connection, until cancelled. `sources`: what is counted in namespaces, by key."""
        copies = NamespaceCopies(
            key,
            cluster,
            lambda: self._selections(key, sources),
            self._pace_in_namespaces,
            enabled=self.enabled,
            on_state=on_state,
        )
        self._in_namespaces[key] = copies
        try:
            await copies.run()
        finally:
            if self._in_namespaces.get(key) is copies:
                del self._in_namespaces[key]

    def follow(
        self, source: SourceOfCluster, cluster: Cluster, on_state: Callable[[], None]
    ) -> asyncio.Task[None] | None:
        """Through this connection, until the task is cancelled. None for the seed's own Machines."""
        if source.on_seed:
            return None
        copies = ClusterCopies(
            source.key,
            cluster,
            source.namespace,
            lambda: self._known(source),
            self._pace,
            enabled=self.enabled,
            on_state=on_state,
        )
        self._copies[source.key] = copies

        async def keep() -> None:
            try:
                await copies.run()
            finally:
                if self._copies.get(source.key) is copies:
                    del self._copies[source.key]

        return kept_task("local copies", keep, source.key)

    def _known(self, source: SourceOfCluster) -> Iterator[KnownQuota]:
        for quota in self._registry.quotas_of(source.consumer):
            in_namespaces = SourceKey.of_namespaces(quota.key.uid, source.key)
            yield self._known_of(quota, (source.key, in_namespaces), source.current)

    def _known_of(self, quota: Quota, sources: Sequence[str], followed: bool) -> KnownQuota:
        handle, seen = self._registry.get(quota), self._quota_cache.master_seen_at
        return KnownQuota(
            quota=quota,
            account=handle.writer.account if handle is not None else None,
            sources=sources,
            followed=followed,
            master_silent=time.monotonic() - seen if seen is not None else None,
        )

    def _selections(self, cluster: str, sources: Mapping[str, UsageSource]) -> Iterator[Selection]:
        for quota in self._quota_cache.object_quotas():
            if not self._cluster_cache.covers(quota, cluster):
                continue
            key = SourceKey.of_namespaces(quota.key.uid, cluster)
            source = sources.get(key)
            known = self._known_of(quota, (key,), source is not None and source.current)
            counted = source.in_namespaces if source is not None else None
            names = counted.namespaces if counted is not None else None
            here = None
            if counted is not None and names is not None and known.account is not None:
                reserved = accounts.of_source(known.account, key)
                totals = counted.totals
                used = local_quota.by_namespace(totals.by_namespace, reserved, totals.seen(reserved))
                here = {name: used.get(name, {}) for name in names}
            yield Selection(local=local_quota.desired(known), here=here, master_silent=known.master_silent or 0.0)

    def _account_changed(self, quota: str, _account: Account | None) -> None:
        self._changed.add(quota)

    def _wake(self) -> None:
        if self._master_seen != (self._quota_cache.master_seen_at is not None):
            self._master_seen = True
            for copies in self._copies.values():
                copies.wake()
            self._recounted.update(self._in_namespaces)
        changed = list(self._changed)
        self._changed.clear()
        for name in changed:
            with contained("local copies", name):
                self._wake_for(name)
        for key in self._recounted:
            if (in_namespaces := self._in_namespaces.get(key)) is not None:
                in_namespaces.wake()
        self._recounted.clear()

    def _wake_for(self, name: str) -> None:
        """Those that show the quota, also where it counts nothing any more, and those that are to show it."""
        quota = self._quota_cache.quota(name)
        showing = {key for key, copies in self._copies.items() if copies.shows(name)}
        if quota is None:
            self._recounted.update(key for key, copies in self._in_namespaces.items() if copies.shows(name))
        for key in self._registry.source_keys(quota) if quota is not None else ():
            showing.add(key.cluster)
            if key.quota:
                self._recounted.add(key.cluster)
        for cluster in showing & self._copies.keys():
            self._copies[cluster].wake()
