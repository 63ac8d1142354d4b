"""When an account forgets a source: only on proof by consistent reads (rule 4.4)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from common.api.types import PROJECTS, SEED_COPIES, USER_CLUSTERS, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.quota import account as accounts
from common.quota.account import Account, Reservation
from common.runtime.unexpected import contained
from seed.accounts.account_write import write
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountHandle, AccountRegistry
from seed.cache.clusters import ClusterCache
from seed.model.cluster_key import is_hosted, is_of_kubermatic
from seed.model.quota import NAMESPACES, Quota, is_shared, takes_part
from seed.model.source_key import OWN_API_SERVER, SourceKey

log = logging.getLogger(__name__)


class SourceRemoval:
    def __init__(
        self,
        cluster: Cluster,
        cluster_cache: ClusterCache,
        registry: AccountRegistry,
        leader: Accounts,
        find_hosted: Callable[[str], Awaitable[UserCluster | None]] | None,
    ) -> None:
        """`find_hosted`: for keys of ClusterCache's `hosted`, by a consistent read. Raises ApiError."""
        self._cluster = cluster
        self._cluster_cache = cluster_cache
        self._registry = registry
        self._accounts = leader
        self._find_hosted = find_hosted

    async def forget(self, handle: AccountHandle, quota: Quota, account: Account) -> None:
        """Forgets sources whose cluster is gone, or of another subject."""
        counted = set(self._registry.source_keys(quota))
        for key in map(SourceKey, accounts.sources(account) - counted):
            gone, known = False, accounts.of_source(account, key)
            with contained("evidence", f"{key} for {quota.name}"), suppress(ApiError):
                gone = not await self._belongs(key, quota)
            if gone:
                await self._forget(handle, quota, key, known)
        for key in counted - set(self._cluster_cache.source_keys(quota)):
            if key.project and account.used.get(key) == {}:
                await write(handle, quota, _forgetting_nothing(self._accounts.term, key.text))

    async def _forget(
        self, handle: AccountHandle, quota: Quota, key: SourceKey, known: Mapping[str, Reservation]
    ) -> None:
        """The proof is about the source, and the quota, as they were. It may belong to the quota again: then the leader
        may have counted it since, or a replica, which may know that sooner, may have admitted something."""
        forgotten, term = False, self._accounts.term

        def change(account: Account) -> tuple[Account, None]:
            nonlocal forgotten
            news = any(known.get(uid) != kept for uid, kept in accounts.of_source(account, key).items())
            forgotten = not news and key not in self._registry.source_keys(self._registry.quota_cache.latest(quota))
            return accounts.forget_source(account, term, key.text) if forgotten else account, None

        if await write(handle, quota, change) and forgotten:
            log.info("source forgotten", extra={"quota": quota.name, "cluster": key})

    async def _belongs(self, key: SourceKey, quota: Quota) -> bool:
        """By consistent reads. A missing Project is no proof: it may be put back. Raises ApiError."""
        if key.quota:
            return await self._is_covered(key.cluster, quota)
        project = key.project
        if not project:
            cluster = await self._find(key)
            if cluster is None or not quota.picks(cluster):
                return False
            project = cluster.spec.project
        return await self._is_of(project, quota)

    async def _is_of(self, project: str, quota: Quota) -> bool:
        if quota.kind == "organization":
            found = await self._cluster.find(PROJECTS, project)
            return found is None or found.spec.organization == quota.subject
        return quota.subject == project

    async def _is_covered(self, cluster: str, quota: Quota) -> bool:
        """Whether the quota counts namespaces there. A missing Seed is no proof, as a missing Project is none."""
        if not quota.counts_objects:
            return False
        if cluster == OWN_API_SERVER:
            seed = await self._cluster.find(SEED_COPIES, self._cluster.name)
            return seed is None or (seed.spec.namespace_quotas == "Enabled" and quota.clusters is None)
        found = await self._find(cluster)
        if found is None or not takes_part(found) or not quota.picks(found):
            return False
        return quota.kind == NAMESPACES or is_shared(found) or await self._is_of(found.spec.project, quota)

    async def _find(self, key: str) -> UserCluster | None:
        """None where it is proven that there is none. Raises ApiError."""
        if self._find_hosted is not None and (is_hosted(key) or is_of_kubermatic(key)):
            return await self._find_hosted(key)
        namespace, _, name = key.partition("/")
        return await self._cluster.find(USER_CLUSTERS, name, namespace)


def _forgetting_nothing(term: int, source: str) -> Callable[[Account], tuple[Account, None]]:
    """Of a source that uses nothing: only that it was counted."""

    def change(account: Account) -> tuple[Account, None]:
        reserved = accounts.of_source(account, source)
        return account if account.used.get(source) or reserved else accounts.forget_source(account, term, source), None

    return change
