"""The Organizations of the master's own cluster, by which an Allocation is in the right namespace."""

from __future__ import annotations

from common.api.types import ORGANIZATIONS, Organization
from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import Reflector
from seed.cache.quotas import QuotaCache


class OrganizationCache:
    """Every replica keeps one. In another cluster than the master's nothing is watched, and none is known."""

    def __init__(self, cluster: Cluster, quota_cache: QuotaCache) -> None:
        self._quota_cache = quota_cache
        self._reflector = Reflector(cluster, ORGANIZATIONS)

    def get(self, name: str) -> Organization | None:
        return self._reflector.store.get(name)

    async def run(self) -> None:
        await self._quota_cache.wait_in_cluster()
        await self._reflector.run()
