"""Makes a Project of ours for each of Kubermatic's on the master, so that quotas find their subject.

Whoever wants it in an organization makes it himself before: what is there is left as it is. Ours goes when theirs is
gone, not when Kubermatic's API is.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, NotFound
from common.kube.client.meta import Object, ObjectMeta
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.discovery import FollowedKind, Served
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.store import Change
from master.cache.informers import Caches, changed_name
from master.cache.objects import PROJECTS, Named

log = logging.getLogger(__name__)

LABEL = "seedquota.io/kubermatic"  # "true" on a Project that was made here
THEIRS = "projects"
MAX_DISPLAY_NAME = 128
TIMEOUT = 30.0  # seconds for one project


class KubermaticSpec(msgspec.Struct, frozen=True):
    name: str = ""


class KubermaticProject(Object, frozen=True, kw_only=True):
    """Its name is the id that Clusters are labelled with, its spec.name is for people."""

    spec: KubermaticSpec = KubermaticSpec()


class KubermaticProjects:
    """`run` works until cancelled; the caches are synced."""

    def __init__(self, cluster: Cluster, caches: Caches, *, on_reconcile: ReconcileHook | None = None) -> None:
        self._cluster = cluster
        self._caches = caches
        self._served = Served(cluster)
        self._controller: Controller[str] = Controller(
            "kubermatic-projects", self._reconcile, timeout=TIMEOUT, on_reconcile=on_reconcile
        )

        def changed(change: Change[KubermaticProject]) -> None:
            self._controller.queue.add(changed_name(change))

        wanted = FollowedKind(
            "kubermatic.k8c.io", "Project", ("v1",), KubermaticProject, on_change=changed, namespaced=False
        )
        self._following = Following(cluster, self._served, {THEIRS: wanted})

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._served.run(), name="CRDs")
                group.create_task(self._following.run(), name="Projects of Kubermatic")
                group.create_task(self._review(), name="first look at Projects of Kubermatic")
                group.create_task(self._controller.run())
        finally:
            ends()

    async def _review(self) -> None:
        """Theirs may have gone while nobody looked."""
        await self._following.wait_settled()
        for project in self._caches.projects.store.values():
            if project.metadata.labels.get(LABEL):
                self._controller.queue.add(project.metadata.name)

    def _changed(self, plural: str, change: Change[Object]) -> None:
        if plural == "projects" and (change.old is None or change.new is None):
            self._controller.queue.add(changed_name(change))

    async def _reconcile(self, name: str) -> None:
        reflector, resource = self._following.get(THEIRS), self._following.resource(THEIRS)
        if reflector is None or resource is None or not reflector.synced.is_set():
            return
        theirs: KubermaticProject | None = reflector.store.get(name)
        ours = self._caches.projects.store.get(name)
        if theirs is not None and ours is None:
            await self._make(theirs)
        elif theirs is None and ours is not None and ours.metadata.labels.get(LABEL):
            try:
                await self._cluster.get(resource, name)
            except NotFound:
                await self._remove(ours)

    async def _make(self, theirs: KubermaticProject) -> None:
        made = Named(
            metadata=ObjectMeta(name=theirs.metadata.name, labels={LABEL: "true"}),
            spec={"displayName": theirs.spec.name[:MAX_DISPLAY_NAME]},
        )
        try:
            await self._cluster.create(PROJECTS, made)
        except AlreadyExists:
            return  # the watch will show it
        log.info("project made for one of Kubermatic", extra={"project": made.metadata.name})

    async def _remove(self, ours: Named) -> None:
        try:
            metadata = ours.metadata
            await self._cluster.delete(
                PROJECTS, metadata.name, uid=metadata.uid, resource_version=metadata.resource_version
            )
        except NotFound:
            return
        log.info("project deleted with the one of Kubermatic", extra={"project": ours.metadata.name})
