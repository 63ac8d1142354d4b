"""A Warning Event on each cluster whose project is unknown. A Cluster of another API has no condition of ours."""

from __future__ import annotations

import asyncio
import logging
import time

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.runtime.unexpected import contained
from seed.admission import projects
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.controllers.warning_events import warn

log = logging.getLogger(__name__)

LOOK_EVERY = 10.0  # seconds; a project that is on its way is there at the second look
TELL_AGAIN = 3000.0  # ... API servers keep an Event for an hour
RETRY = 60.0
AT_ONCE = 32  # Events that are written after one look


class UnknownProjects:
    """`run()` it while this replica leads."""

    def __init__(self, cluster: Cluster, quota_cache: QuotaCache, cluster_cache: ClusterCache) -> None:
        self._cluster = cluster
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._due: dict[str, float] = {}  # by uid of such a cluster: when to tell of it next (monotonic)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look(time.monotonic())
            await asyncio.sleep(LOOK_EVERY)

    async def look(self, now: float) -> None:
        unknown = {cluster.metadata.uid: cluster for cluster in self._unknown()}
        self._due = {uid: self._due.get(uid, now + LOOK_EVERY / 2) for uid in unknown}
        for uid in [uid for uid, due in self._due.items() if due <= now][:AT_ONCE]:
            self._due[uid] = now + RETRY
            with contained("unknown projects", unknown[uid].metadata.key):
                if await self._tell(unknown[uid]):
                    self._due[uid] = now + TELL_AGAIN

    def _unknown(self) -> list[UserCluster]:
        quota_cache, user_clusters = self._quota_cache, self._cluster_cache.user_clusters
        if quota_cache.unknown_projects_allowed or not quota_cache.has_copies:
            return []
        clusters = (*user_clusters.store.values(), *self._cluster_cache.hosted.values())
        return [cluster for cluster in clusters if not quota_cache.knows(cluster.spec.project)]

    async def _tell(self, cluster: UserCluster) -> bool:
        shown = projects.shown(self._quota_cache, cluster)
        written = await warn(self._cluster, cluster, reason=projects.UNKNOWN, note=shown.message, action="Check")
        if written:
            log.warning(shown.message, extra={"cluster": cluster.metadata.key, "reason": shown.reason})
        return written
