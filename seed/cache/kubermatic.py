"""What this seed knows of Kubermatic, on every replica: its Clusters, reported to the catalog as user clusters."""

from __future__ import annotations

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster as Connection
from common.kube.controller.discovery import Served, Wanted
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.store import Change
from seed.cache.kubermatic_objects import GROUP, VERSIONS, Cluster, key_of, user_cluster_of
from seed.cache.quotas import Catalog
from seed.cache.source_keys import KUBERMATIC

CLUSTERS = "clusters"


class KubermaticView:
    """`run()` it, beside `served`."""

    def __init__(self, cluster: Connection, catalog: Catalog, served: Served) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._served = served
        self._clusters = Wanted(GROUP, "Cluster", VERSIONS, Cluster, on_change=self._changed, namespaced=False)
        self._following = Following(cluster, served, {CLUSTERS: self._clusters})

    async def run(self) -> None:
        await self._following.run()

    async def wait_settled(self) -> None:
        """Until all that is served was listed."""
        await self._following.wait_settled()

    async def find_hosted(self, key: str) -> UserCluster | None:
        """None where consistent reads prove that no Cluster with a project has this key. Raises ApiError."""
        now = self._following.resource(CLUSTERS)
        resource = await self._served.find_for_proof(f"clusters.{GROUP}", self._clusters, now)
        if resource is None:
            return None
        found = await self._cluster.find(resource, key.partition("/")[2].removeprefix(KUBERMATIC))
        return user_cluster_of(found) if found is not None and key_of(found) == key else None

    def _changed(self, change: Change[Cluster]) -> None:
        before = key_of(change.old) if change.old is not None else ""
        after = key_of(change.new) if change.new is not None else ""
        if before and before != after:
            self._catalog.host(before, None)
        if change.new is not None:
            wanted = user_cluster_of(change.new)
            if wanted != self._catalog.hosted.get(after):
                self._catalog.host(after, wanted)
