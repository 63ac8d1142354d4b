"""What this seed knows of Kubermatic, on every replica: its Clusters, reported to ClusterCache as user clusters, and
the datacenters of its Seeds, which tell where the clouds of these are."""

from __future__ import annotations

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster as Connection
from common.kube.controller.discovery import FollowedKind, Served
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.store import Change
from seed.cache.clusters import ClusterCache
from seed.cache.kubermatic_objects import GROUP, VERSIONS, Cluster, datacenters_of, key_of, user_cluster_of
from seed.model.cluster_key import KUBERMATIC
from seed.providers.cloud_account import Datacenter, KubermaticSeed

CLUSTERS = "clusters"
SEEDS = "seeds"


class KubermaticView:
    """`run()` it, beside `served`."""

    def __init__(self, cluster: Connection, cluster_cache: ClusterCache, served: Served) -> None:
        self._cluster = cluster
        self._cluster_cache = cluster_cache
        self._served = served
        self._clusters = FollowedKind(GROUP, "Cluster", VERSIONS, Cluster, on_change=self._changed, namespaced=False)
        self._datacenters: dict[str, Datacenter] = {}
        self._seeds: dict[str, KubermaticSeed] = {}
        seeds = FollowedKind(GROUP, "Seed", VERSIONS, KubermaticSeed, on_change=self._seed_changed)
        self._following = Following(cluster, served, {SEEDS: seeds, CLUSTERS: self._clusters})

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
        return user_cluster_of(found, self._datacenters) if found is not None and key_of(found) == key else None

    def _changed(self, change: Change[Cluster]) -> None:
        before = key_of(change.old) if change.old is not None else ""
        after = key_of(change.new) if change.new is not None else ""
        if before and before != after:
            self._cluster_cache.host(before, None)
        if change.new is not None:
            self._report(change.new)

    def _report(self, cluster: Cluster) -> None:
        key, wanted = key_of(cluster), user_cluster_of(cluster, self._datacenters)
        if wanted != self._cluster_cache.hosted.get(key):
            self._cluster_cache.host(key, wanted)

    def _seed_changed(self, change: Change[KubermaticSeed]) -> None:
        if change.old is not None:
            self._seeds.pop(change.old.metadata.key, None)
        if change.new is not None:
            self._seeds[change.new.metadata.key] = change.new
        before, self._datacenters = self._datacenters, datacenters_of(self._seeds.values())
        clusters = self._following.get(CLUSTERS)
        if clusters is not None and self._datacenters != before:
            for cluster in list(clusters.store.values()):
                self._report(cluster)
