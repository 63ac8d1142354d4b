"""The LocalResourceQuotas of all user clusters that are followed: which of them may have changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from common.kube.client.api_client import Cluster
from common.quota.account import Account
from seed.accounts.registry import AccountRegistry
from seed.cache.quotas import QuotaCache
from seed.projections.cluster_copies import EVERY, ClusterCopies
from seed.projections.local_quota import Known
from seed.projections.pace import Pace
from seed.usage.user_cluster import Source


class LocalCopies:
    """`run()` it while this replica leads. The seed's own Machines have none."""

    def __init__(self, quota_cache: QuotaCache, registry: AccountRegistry, *, enabled: bool) -> None:
        """Not `enabled`: what is in the user clusters is removed."""
        self.enabled = enabled
        self._quota_cache = quota_cache
        self._registry = registry
        self._pace = Pace()
        self._copies: dict[str, ClusterCopies] = {}  # by the key of the user cluster
        self._changed: set[str] = set()  # quotas
        self._master_seen = False

    async def run(self) -> None:
        """Until cancelled."""
        ends = self._quota_cache.on_quota(self._changed.add), self._registry.on_account(self._account_changed)
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

    def source_changed(self, key: str) -> None:
        """The user cluster is followed now, or no more."""
        if (copies := self._copies.get(key)) is not None:
            copies.reached()

    def follow(self, source: Source, cluster: Cluster, on_state: Callable[[], None]) -> asyncio.Task[None] | None:
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

        return asyncio.create_task(keep(), name=f"local copies of {source.key}")

    def _known(self, source: Source) -> Iterator[Known]:
        seen = self._quota_cache.master_seen_at
        for quota in self._registry.quotas_of(source.consumer):
            handle = self._registry.get(quota)
            yield Known(
                quota=quota,
                account=handle.writer.account if handle is not None else None,
                source=source.key,
                followed=source.current,
                master_silent=time.monotonic() - seen if seen is not None else None,
            )

    def _account_changed(self, quota: str, _account: Account | None) -> None:
        self._changed.add(quota)

    def _wake(self) -> None:
        if self._master_seen != (self._quota_cache.master_seen_at is not None):
            self._master_seen = True
            for copies in self._copies.values():
                copies.wake()
        changed = list(self._changed)
        self._changed.clear()
        for name in changed:
            quota = self._quota_cache.quota(name)
            if quota is None:
                keys = [key for key, copies in self._copies.items() if copies.shows(name)]
            else:
                keys = self._registry.source_keys(quota)
            for key in keys:
                if (of_key := self._copies.get(key)) is not None:
                    of_key.wake()
