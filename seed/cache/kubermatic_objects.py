"""Kubermatic's Clusters, `kubermatic.k8c.io/v1`, and which user cluster of ours each of them is. Pure.

Only what its public API says: they are cluster-scoped, a label names the project, and the Secret with the admin's
kubeconfig is in the namespace of the control plane.
"""

from __future__ import annotations

import msgspec

from common.api.types import ACCEPT_CLUSTER_ANNOTATION, SecretRef, UserCluster, UserClusterSpec
from common.kube.client.meta import Object, ObjectMeta, object_key
from seed.cache.source_keys import KUBERMATIC

GROUP = "kubermatic.k8c.io"
VERSIONS = ("v1",)
PROJECT_LABEL = "project-id"
KUBECONFIG = SecretRef(name="admin-kubeconfig", key="kubeconfig")


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel"):
    namespace_name: str = ""


class Cluster(Object, frozen=True, kw_only=True):
    status: ClusterStatus = ClusterStatus()


def project_of(cluster: Object) -> str:
    """Empty if it has none."""
    return cluster.metadata.labels.get(PROJECT_LABEL, "")


def namespace_of(cluster: Cluster) -> str:
    """Of its control plane; the name is given before the namespace is there."""
    return cluster.status.namespace_name or f"cluster-{cluster.metadata.name}"


def key_of(cluster: Cluster) -> str:
    return object_key(namespace_of(cluster), KUBERMATIC + cluster.metadata.name)


def _accepted(cluster: Cluster) -> dict[str, str]:
    """Of its annotations only the one that is for us: the others change often."""
    accepted = cluster.metadata.annotations.get(ACCEPT_CLUSTER_ANNOTATION)
    return {ACCEPT_CLUSTER_ANNOTATION: accepted} if accepted is not None else {}


def user_cluster_of(cluster: Cluster) -> UserCluster | None:
    project = project_of(cluster)
    if not project:
        return None
    return UserCluster(
        metadata=ObjectMeta(
            name=KUBERMATIC + cluster.metadata.name,
            namespace=namespace_of(cluster),
            uid=cluster.metadata.uid,
            creation_timestamp=cluster.metadata.creation_timestamp,
            annotations=_accepted(cluster),
        ),
        spec=UserClusterSpec(project=project, kubeconfig_secret_ref=KUBECONFIG),
    )
