"""What the seed's leader counts of clusters themselves: a source per project, fed by a watch cache of each kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Malformed
from common.kube.client.resource import Resource, by_name
from common.kube.controller.discovery import Served, Wanted
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.runtime.unexpected import contained, kept_task
from seed.kinds.clusters.evaluator import Kind, Owned
from seed.kinds.clusters.totals import ClusterTotals
from seed.model import source_key
from seed.model.consumer import Consumer
from seed.model.source_key import SourceKey
from seed.usage.shared_informers import SharedInformers, SharedInformerSource
from seed.usage.source import Generation, Taken, UsageSource

log = logging.getLogger(__name__)


class ProjectClusters(SharedInformerSource):
    """One project's clusters."""

    def __init__(self, feed: ClusterSources, project: str) -> None:
        super().__init__(feed)
        self.key = SourceKey.of_project(source_key.CLUSTERS, project)
        self.consumer = Consumer(project)
        self.totals = ClusterTotals()
        self._feed = feed

    async def generation(self, namespaced_name: str, uid: str) -> Generation:
        """None also for a cluster that has moved to another project: it is not this one's to count."""
        found = await self._feed.find(namespaced_name, uid)
        if found is None or isinstance(found, Taken):
            return found
        if found[0] != self.consumer.project:
            return None
        return found[1].metadata.generation


class ClusterSources(SharedInformers, Mapping[str, UsageSource]):
    """The sources by key; any project's is made when it is first asked for. `run()` it while this replica leads.

    Its watch caches are its own: those in seed/cache serve admission, and cannot be listed again when counting demands
    it.
    """

    def __init__(
        self,
        cluster: Cluster,
        served: Served,
        kinds: tuple[Kind, ...],
        *,
        on_change: Callable[[UsageSource, bool], None],
        on_state: Callable[[UsageSource], None],
    ) -> None:
        """The first of the kinds is there on every seed."""
        self._cluster = cluster
        self._served = served
        self._kinds = kinds
        self._on_change = on_change
        self._on_state = on_state
        self._sources: dict[str, ProjectClusters] = {}  # by project
        self._settled = False
        self._reported: list[Reflector[Any]] = []  # whose lists were all complete when the sources were called
        first, *others = kinds
        self._always = Resource(first.group, first.versions[0], first.plural, first.kind, True, Owned)
        self._reflector = Reflector(cluster, self._always, on_change=lambda change: self._changed(first, change))
        self._following = Following(
            cluster,
            served,
            {
                kind.crd: Wanted(
                    kind.group,
                    kind.kind,
                    kind.versions,
                    Owned,
                    on_change=self._listener(kind),
                    namespaced=kind.namespaced,
                )
                for kind in others
            },
        )

    def __getitem__(self, key: str) -> ProjectClusters:
        asked = SourceKey(key)
        if asked.kind != source_key.CLUSTERS:
            raise KeyError(key)
        return self._of(asked.project)

    def __iter__(self) -> Iterator[str]:
        return (source.key for source in self._sources.values())

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def counted(self) -> bool:
        return self._settled and super().counted

    async def run(self) -> None:
        tasks = [
            asyncio.create_task(self._reflector.run(), name="clusters"),
            kept_task("clusters of other APIs", self._following.run),
            kept_task("first lists of clusters", self._settle),
        ]
        try:
            while True:
                self._judge()
                await asyncio.sleep(1)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def find(self, namespaced_name: str, uid: str) -> tuple[str, Owned] | Taken | None:
        """The cluster and its project by consistent lists: a name may be of several kinds. Raises ApiError."""
        namespace, _, name = namespaced_name.rpartition("/")
        taken: Taken | None = None
        for kind in self._kinds:
            if kind.namespaced != bool(namespace):
                continue
            resource = self._always if kind is self._kinds[0] else self._following.resource(kind.crd)
            if resource is None:
                await self._served.check_unserved(kind.crd)
                continue
            listing = await self._cluster.list(resource, namespace or None, field_selector=by_name(name))
            if listing.may_hide(uid):
                raise Malformed(200, "Malformed", f"{resource.kind} {namespaced_name} cannot be read")
            for found in listing.items:
                if found.metadata.uid == uid:
                    return kind.project(found), found
                taken = Taken.TAKEN
        return taken

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        return [self._reflector, *self._following.reflectors]

    async def _settle(self) -> None:
        await self._following.wait_settled()
        self._settled = True
        await self._reflector.synced.wait()
        self._judge()

    def _of(self, project: str) -> ProjectClusters:
        source = self._sources.get(project)
        if source is None:
            source = self._sources[project] = ProjectClusters(self, project)
        return source

    def _listener(self, kind: Kind) -> Callable[[Change[Owned]], None]:
        return lambda change: self._changed(kind, change)

    def _changed(self, kind: Kind, change: Change[Owned]) -> None:
        before = kind.project(change.old) if change.old is not None else ""
        after = kind.project(change.new) if change.new is not None else ""
        if before == after:
            return  # as most changes of a cluster are
        if change.old is not None and before:
            source = self._of(before)
            self._on_change(source, source.totals.remove(change.old))
        if change.new is not None and after:
            source = self._of(after)
            source.totals.add(change.new)
            self._on_change(source, False)

    def _judge(self) -> None:
        changed = self._look()
        # What counting dropped because a kind that came later was not listed yet is made good, too.
        news = self.counted and self._reported != self.reflectors
        if news:
            self._reported = self.reflectors
        if news or changed:
            for source in list(self._sources.values()):
                with contained("clusters", source.key):
                    if news:
                        self._on_change(source, True)
                    self._on_state(source)
