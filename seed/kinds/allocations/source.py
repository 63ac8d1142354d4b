"""What the leader counts of Allocations in the master's own cluster: a source per project, fed by one watch cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from common.api.types import ALLOCATIONS, Allocation
from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from seed.cache.quotas import QuotaCache
from seed.kinds.allocations.totals import AllocationTotals
from seed.model import source_key
from seed.usage.project_sources import ProjectSource, ProjectSources
from seed.usage.source import Generation, Taken, UsageSource


class AllocationSources(ProjectSources[AllocationTotals]):
    """There are none but in the master's own cluster: only there are Allocations, and nothing is asked elsewhere. The
    organization of a project cannot change, so its Allocations count where those of its project do.
    """

    def __init__(
        self,
        cluster: Cluster,
        quota_cache: QuotaCache,
        *,
        on_change: Callable[[UsageSource, bool], None],
        on_state: Callable[[UsageSource], None],
    ) -> None:
        super().__init__(source_key.ALLOCATIONS, AllocationTotals, on_change=on_change, on_state=on_state)
        self._cluster = cluster
        self._quota_cache = quota_cache
        self._reflector = Reflector(cluster, ALLOCATIONS, on_change=self._changed, on_state=self._judge)

    def __getitem__(self, key: str) -> ProjectSource[AllocationTotals]:
        if not self._quota_cache.in_cluster:
            raise KeyError(key)
        return super().__getitem__(key)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        return [self._reflector]

    async def run(self) -> None:
        await self._quota_cache.wait_in_cluster()
        await self._judge_beside(asyncio.create_task(self._reflector.run(), name="Allocations"))

    async def generation(self, _project: str, namespaced_name: str, uid: str) -> Generation:
        namespace, _, name = namespaced_name.partition("/")
        found = await self._cluster.find(ALLOCATIONS, name, namespace)
        if found is None:
            return None
        return found.metadata.generation if found.metadata.uid == uid else Taken.TAKEN

    def _changed(self, change: Change[Allocation]) -> None:
        """An object that was made again under its name is two changes, and a project cannot be changed."""
        if change.new is not None:
            source = self._of(change.new.spec.project)
            self._on_change(source, source.totals.put(change.new))
        elif change.old is not None:
            source = self._of(change.old.spec.project)
            self._on_change(source, source.totals.remove(change.old.metadata.uid))
