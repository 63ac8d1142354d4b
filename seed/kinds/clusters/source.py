"""What the seed's leader counts of clusters themselves: a source per project, fed by a watch cache of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Malformed
from common.kube.client.resource import Resource, by_name
from common.kube.controller.discovery import FollowedKind, Served
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.runtime.unexpected import kept_task
from seed.kinds.clusters.evaluator import ClusterKind, Owned
from seed.kinds.clusters.totals import ClusterTotals
from seed.model import source_key
from seed.usage.project_sources import ProjectSources
from seed.usage.source import Generation, Taken, UsageSource


class ClusterSources(ProjectSources[ClusterTotals]):
    """Its watch caches are its own: those in seed/cache serve admission, and cannot be listed again when counting
    demands it."""

    def __init__(
        self,
        cluster: Cluster,
        served: Served,
        kinds: tuple[ClusterKind, ...],
        *,
        on_change: Callable[[UsageSource, bool], None],
        on_state: Callable[[UsageSource], None],
    ) -> None:
        """The first of the kinds is there on every seed."""
        super().__init__(source_key.CLUSTERS, ClusterTotals, on_change=on_change, on_state=on_state)
        self._cluster = cluster
        self._served = served
        self._kinds = kinds
        self._settled = False
        first, *others = kinds
        self._always = Resource(first.group, first.versions[0], first.plural, first.kind, True, Owned)
        self._reflector = Reflector(
            cluster, self._always, on_change=lambda change: self._changed(first, change), on_state=self._judge
        )
        self._following = Following(
            cluster,
            served,
            {
                kind.crd: FollowedKind(
                    kind.group,
                    kind.kind,
                    kind.versions,
                    Owned,
                    on_change=self._listener(kind),
                    namespaced=kind.namespaced,
                )
                for kind in others
            },
            on_state=self._judge,
        )

    @property
    def counted(self) -> bool:
        return self._settled and super().counted

    async def run(self) -> None:
        await self._judge_beside(
            asyncio.create_task(self._reflector.run(), name="clusters"),
            kept_task("clusters of other APIs", self._following.run),
            kept_task("first lists of clusters", self._settle),
        )

    async def generation(self, project: str, namespaced_name: str, uid: str) -> Generation:
        """By consistent lists: a name may be of several kinds. None also for a cluster that has moved to another
        project: it is not this one's to count."""
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
                    return found.metadata.generation if kind.project(found) == project else None
                taken = Taken.TAKEN
        return taken

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        return [self._reflector, *self._following.reflectors]

    async def _settle(self) -> None:
        await self._following.wait_settled()
        self._settled = True
        self._judge()

    def _listener(self, kind: ClusterKind) -> Callable[[Change[Owned]], None]:
        return lambda change: self._changed(kind, change)

    def _changed(self, kind: ClusterKind, change: Change[Owned]) -> None:
        before = kind.project(change.old) if change.old is not None else ""
        after = kind.project(change.new) if change.new is not None else ""
        if before == after:
            return  # as most changes of a cluster are
        if change.old is not None and before:
            source = self._of(before)
            self._on_change(source, source.totals.remove(change.old.metadata.uid))
        if change.new is not None and after:
            source = self._of(after)
            source.totals.put(change.new)
            self._on_change(source, False)
