"""Sources of what is counted on the seed itself: one for each project, all fed by the same watch caches."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from common.kube.controller.reflector import Reflector
from common.runtime.unexpected import contained
from seed.model.consumer import Consumer
from seed.model.source_key import SourceKey
from seed.usage.shared_informers import SharedInformers, SharedInformerSource
from seed.usage.source import Generation, Usage, UsageSource

TotalsT = TypeVar("TotalsT", bound=Usage)


class ProjectSource(SharedInformerSource, Generic[TotalsT]):
    """What one project has of a kind."""

    def __init__(self, sources: ProjectSources[TotalsT], project: str, totals: TotalsT) -> None:
        super().__init__(sources)
        self.key = SourceKey.of_project(sources.kind, project)
        self.consumer = Consumer(project)
        self.totals = totals
        self._sources = sources

    async def generation(self, namespaced_name: str, uid: str) -> Generation:
        return await self._sources.generation(self.consumer.project, namespaced_name, uid)


class ProjectSources(SharedInformers, Mapping[str, UsageSource], Generic[TotalsT]):
    """The sources by key; any project's is made when it is first asked for. `run()` it while this replica leads."""

    def __init__(
        self,
        kind: str,
        totals: Callable[[], TotalsT],
        *,
        on_change: Callable[[UsageSource, bool], None],
        on_state: Callable[[UsageSource], None],
    ) -> None:
        self.kind = kind
        self._totals = totals
        self._on_change = on_change
        self._on_state = on_state
        self._sources: dict[str, ProjectSource[TotalsT]] = {}  # by project
        self._reported: list[Reflector[Any]] = []  # whose lists were all complete when the sources were called

    @abstractmethod
    async def run(self) -> None: ...

    @abstractmethod
    async def generation(self, project: str, namespaced_name: str, uid: str) -> Generation:
        """As UsageSource's, of what the project has."""

    def __getitem__(self, key: str) -> ProjectSource[TotalsT]:
        asked = SourceKey(key)
        if asked.kind != self.kind:
            raise KeyError(key)
        return self._of(asked.project)

    def __iter__(self) -> Iterator[str]:
        return (source.key for source in self._sources.values())

    def __len__(self) -> int:
        return len(self._sources)

    def _of(self, project: str) -> ProjectSource[TotalsT]:
        source = self._sources.get(project)
        if source is None:
            source = self._sources[project] = ProjectSource(self, project, self._totals())
        return source

    async def _judge_beside(self, *tasks: asyncio.Task[None]) -> None:
        """Until cancelled, and the tasks with it."""
        try:
            while True:
                self._judge()
                await asyncio.sleep(1)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _judge(self) -> None:
        changed = self._look()
        # What counting dropped because a list was not complete yet is made good, also that of a kind that came later.
        news = self.counted and self._reported != self.reflectors
        if news:
            self._reported = list(self.reflectors)
        if news or changed:
            for source in list(self._sources.values()):
                with contained(self.kind, source.key):
                    if news:
                        self._on_change(source, True)
                    self._on_state(source)
