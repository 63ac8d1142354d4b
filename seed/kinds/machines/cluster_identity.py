"""Which cluster a kubeconfig leads to, by the uid of its namespace kube-system, and which UserCluster stands for it.

What was counted of one cluster must not give way to what another one has. And two UserClusters of one cluster would
take the webhook configuration from each other. The leader keeps this. The first uid that is found is in the status of
the UserCluster. A Cluster of Kubermatic has no status of ours: there each leader starts with the one that it finds.
"""

from __future__ import annotations

import logging

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from common.api.cluster_identity import CHANGED, DUPLICATE, KUBE_SYSTEM, NAMESPACES, is_another, order
from common.api.types import ACCEPT_CLUSTER_ANNOTATION, USER_CLUSTERS, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, Forbidden
from seed.cache.clusters import ClusterCache
from seed.model.cluster_key import is_of_kubermatic
from seed.usage.source import Problem

log = logging.getLogger(__name__)

MANAGER = "seedquota-seed-identity"  # status.clusterUID has a field manager of its own: the rest is applied as a whole
RECORD_ATTEMPTS = 4  # the status has other writers, too


class Identities:
    def __init__(self, seed: Cluster, cluster_cache: ClusterCache) -> None:
        self._seed = seed
        self._cluster_cache = cluster_cache
        self._found: dict[str, str] = {}  # by uid of the UserCluster: where its kubeconfig led last
        self._held: dict[str, str] = {}  # likewise: for which cluster it stands

    @retry(retry=retry_if_exception_type(Conflict), stop=stop_after_attempt(RECORD_ATTEMPTS), reraise=True)
    async def check(self, user_cluster: UserCluster, cluster: Cluster) -> Problem | None:
        """Why the cluster that the kubeconfig leads to must not be followed. Else it is recorded. Raises ApiError."""
        uid = user_cluster.metadata.uid
        found = await _uid_of(cluster)
        self._found[uid] = found
        if not found:
            return None
        if self._holds(user_cluster) != found and not is_of_kubermatic(user_cluster.metadata.key):
            name, namespace = user_cluster.metadata.name, user_cluster.metadata.namespace
            present = await self._seed.find(USER_CLUSTERS, name, namespace)
            if present is None or present.metadata.uid != uid:
                raise Conflict(409, "Conflict", f"UserCluster {namespace}/{name} is gone")
            user_cluster = present
        problem = judge(user_cluster, self._holds(user_cluster), found, self._earlier(user_cluster, found))
        if problem is None:
            await self._hold(user_cluster, found)
        return problem

    def stands_for(self, user_cluster: UserCluster) -> str:
        """The uid of the cluster, empty where it may not be read."""
        return self._held.get(user_cluster.metadata.uid, "")

    def later(self, user_cluster: UserCluster) -> list[str]:
        """The keys of those that must give way to it: they were taken to stand for its cluster."""
        held = self._holds(user_cluster)
        return [
            other.metadata.key
            for other in self._others(user_cluster)
            if held and self._holds(other) == held and order(other) > order(user_cluster)
        ]

    def is_shared(self, uid: str) -> bool:
        """Another UserCluster leads to the same cluster."""
        found = self._found.get(uid)
        others = (other.metadata.uid for other in self._cluster_cache.followed())
        return bool(found) and any(other != uid and self._found.get(other) == found for other in others)

    def forget(self, uid: str) -> None:
        self._found.pop(uid, None)
        self._held.pop(uid, None)

    def _holds(self, user_cluster: UserCluster) -> str:
        return self._held.get(user_cluster.metadata.uid) or user_cluster.status.cluster_uid

    def _earlier(self, user_cluster: UserCluster, found: str) -> UserCluster | None:
        holders = (other for other in self._others(user_cluster) if self._holds(other) == found)
        earlier = (other for other in holders if order(other) < order(user_cluster))
        return min(earlier, key=order, default=None)

    def _others(self, user_cluster: UserCluster) -> list[UserCluster]:
        return [
            other
            for other in self._cluster_cache.followed()
            if other.metadata.uid != user_cluster.metadata.uid and other.spec.kubeconfig_secret_ref is not None
        ]

    async def _hold(self, user_cluster: UserCluster, found: str) -> None:
        metadata = user_cluster.metadata
        if user_cluster.status.cluster_uid != found and not is_of_kubermatic(metadata.key):
            identity = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
            body = {
                "metadata": {**identity, "resourceVersion": metadata.resource_version},
                "status": {"clusterUID": found},
            }
            await self._seed.apply(USER_CLUSTERS, body, manager=MANAGER, subresource="status")
        if self._held.get(metadata.uid) != found:
            log.info("cluster identified", extra={"cluster": metadata.key, "cluster_uid": found})
        self._held[metadata.uid] = found


def judge(user_cluster: UserCluster, held: str, found: str, earlier: UserCluster | None) -> Problem | None:
    """`held`: the uid of the cluster that it stands for, `found`: of the one that its kubeconfig leads to. `earlier`: a
    UserCluster that stands for that one already. Pure."""
    if is_another(user_cluster, held, found):
        return Problem(
            CHANGED,
            f"the kubeconfig leads to another cluster: the uid of namespace kube-system there is {found}, not {held}. "
            "What was counted before stays. Correct the Secret; or, to count the other cluster, set the annotation "
            f"{ACCEPT_CLUSTER_ANNOTATION}: {found}",
        )
    if earlier is not None:
        return Problem(
            DUPLICATE,
            f"the kubeconfig leads to the cluster of {earlier.metadata.key}, which is counted and checked as that: the "
            f"uid of namespace kube-system is {found} for both. Delete one of them, or correct its Secret",
        )
    return None


async def _uid_of(cluster: Cluster) -> str:
    """Empty where it may not be read. Raises ApiError."""
    try:
        return (await cluster.get(NAMESPACES, KUBE_SYSTEM)).metadata.uid
    except Forbidden as error:
        log.warning(
            "which cluster this is cannot be told: the kubeconfig may not get namespace kube-system",
            extra={"cluster": cluster.name, "error": error.message},
        )
        return ""
