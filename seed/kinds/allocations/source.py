"""What the leader counts of Allocations in the master's own cluster: a source per project, fed by one watch cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from common.api.types import ALLOCATIONS, Allocation
from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.runtime.unexpected import contained, kept_task
from seed.cache.quotas import QuotaCache
from seed.kinds.allocations.totals import AllocationTotals
from seed.model import source_key
from seed.model.consumer import Consumer
from seed.model.source_key import SourceKey
from seed.usage.shared_informers import SharedInformers, SharedInformerSource
from seed.usage.source import Generation, Taken, UsageSource


class ProjectAllocations(SharedInformerSource):
    """One project's Allocations."""

    def __init__(self, caches: AllocationSources, project: str) -> None:
        super().__init__(caches)
        self.key = SourceKey.of_project(source_key.ALLOCATIONS, project)
        self.consumer = Consumer(project)
        self.totals = AllocationTotals()
        self._sources = caches

    async def generation(self, namespaced_name: str, uid: str) -> Generation:
        found = await self._sources.find(namespaced_name)
        if found is None:
            return None
        return found.metadata.generation if found.metadata.uid == uid else Taken.TAKEN


class AllocationSources(SharedInformers, Mapping[str, UsageSource]):
    """The sources by key; any project's is made when it is first asked for. `run()` it while this replica leads.

    There are none but in the master's own cluster: only there are Allocations, and nothing is asked elsewhere. The
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
        self._cluster = cluster
        self._quota_cache = quota_cache
        self._on_change = on_change
        self._on_state = on_state
        self._sources: dict[str, ProjectAllocations] = {}  # by project
        self._reflector = Reflector(cluster, ALLOCATIONS, on_change=self._changed)
        self._reported = False  # that the first list is complete

    def __getitem__(self, key: str) -> ProjectAllocations:
        asked = SourceKey(key)
        if asked.kind != source_key.ALLOCATIONS or not self._quota_cache.in_cluster:
            raise KeyError(key)
        return self._of(asked.project)

    def __iter__(self) -> Iterator[str]:
        return (source.key for source in self._sources.values())

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        return [self._reflector]

    async def run(self) -> None:
        await self._quota_cache.wait_in_cluster()
        following = asyncio.create_task(self._reflector.run(), name="Allocations")
        first = kept_task("first list of Allocations", self._first)
        try:
            while True:
                self._judge()
                await asyncio.sleep(1)
        finally:
            for task in (following, first):
                task.cancel()
            await asyncio.gather(following, first, return_exceptions=True)

    async def find(self, namespaced_name: str) -> Allocation | None:
        """By a consistent read. Raises ApiError."""
        namespace, _, name = namespaced_name.partition("/")
        return await self._cluster.find(ALLOCATIONS, name, namespace)

    def _of(self, project: str) -> ProjectAllocations:
        source = self._sources.get(project)
        if source is None:
            source = self._sources[project] = ProjectAllocations(self, project)
        return source

    def _changed(self, change: Change[Allocation]) -> None:
        """An object that was made again under its name is two changes, and a project cannot be changed."""
        if change.new is not None:
            source = self._of(change.new.spec.project)
            self._on_change(source, source.totals.put(change.new))
        elif change.old is not None:
            source = self._of(change.old.spec.project)
            self._on_change(source, source.totals.remove(change.old.metadata.uid))

    async def _first(self) -> None:
        await self._reflector.synced.wait()
        self._judge()

    def _judge(self) -> None:
        changed = self._look()
        news = self.counted and not self._reported
        self._reported = self.counted
        if news or changed:
            for source in list(self._sources.values()):
                with contained("allocations", source.key):
                    if news:
                        self._on_change(source, True)
                    self._on_state(source)
