"""Whether the cluster that is about to be created is there already, under another API.

A UserCluster and a Cluster of Cluster API with one namespace, name and project are one cluster.
"""

from __future__ import annotations

from common.api import labels, types
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.client.meta import ObjectMeta
from seed.cache.cluster_api import View
from seed.cache.clusters import ClusterCache
from seed.machines import cluster_api


class DuplicateClusters:
    def __init__(self, cluster: Cluster, cluster_cache: ClusterCache, view: View) -> None:
        self._cluster = cluster
        self._cluster_cache = cluster_cache
        self._view = view

    def known(self, group: str, cluster: ObjectMeta, project: str) -> bool:
        """By what was seen last. `group`: of the one that is created."""
        match group:
            case labels.GROUP:
                found = self._view.user_cluster(cluster.namespace, cluster.name)
            case cluster_api.GROUP:
                found = self._cluster_cache.user_clusters.store.get(cluster.key)
            case _:
                return False
        return found is not None and found.spec.project == project

    async def there(self, group: str, cluster: ObjectMeta, project: str) -> bool:
        """By a consistent read. Raises ApiError."""
        try:
            if group == labels.GROUP:
                found = await self._view.find_user_cluster(cluster.namespace, cluster.name)
            else:
                found = await self._cluster.get(types.USER_CLUSTERS, cluster.name, cluster.namespace)
        except NotFound:
            return False
        return found is not None and found.spec.project == project
