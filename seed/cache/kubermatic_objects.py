"""Kubermatic's Clusters, `kubermatic.k8c.io/v1`, and which user cluster of ours each of them is. Pure.

Only what its public API says: they are cluster-scoped, a label names the project, and the Secret with the admin's
kubeconfig is in the namespace of the control plane. Their cloud accounts: seed/providers/cloud_account.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from common.api.types import ACCEPT_CLUSTER_ANNOTATION, SecretRef, UserCluster, UserClusterSpec
from common.kube.client.meta import Object, ObjectMeta, object_key
from seed.model.cluster_key import KUBERMATIC
from seed.providers.cloud_account import AccountedCluster, CloudSpec, Datacenter, KubermaticSeed, account_of

GROUP = "kubermatic.k8c.io"
VERSIONS = ("v1",)
PROJECT_LABEL = "project-id"
KUBECONFIG = SecretRef(name="admin-kubeconfig", key="kubeconfig")


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel"):
    namespace_name: str = ""


class ClusterSpec(msgspec.Struct, frozen=True):
    cloud: CloudSpec = CloudSpec()


class Cluster(Object, frozen=True, kw_only=True):
    spec: ClusterSpec = ClusterSpec()
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


def datacenters_of(seeds: Iterable[KubermaticSeed]) -> dict[str, Datacenter]:
    """By name, which is unique among all Seeds. One that two Seeds describe differently is left out."""
    found: dict[str, Datacenter] = {}
    ambiguous: set[str] = set()
    for seed in seeds:
        for name, datacenter in seed.spec.datacenters.items():
            if found.setdefault(name, datacenter) != datacenter:
                ambiguous.add(name)
    return {name: datacenter for name, datacenter in found.items() if name not in ambiguous}


def user_cluster_of(cluster: Cluster, datacenters: Mapping[str, Datacenter]) -> UserCluster | None:
    """It has no labels: members of the project write them in Kubermatic, and must not choose what limits them."""
    project = project_of(cluster)
    if not project:
        return None
    name, namespace, cloud = cluster.metadata.name, namespace_of(cluster), cluster.spec.cloud
    metadata = ObjectMeta(
        name=KUBERMATIC + name,
        namespace=namespace,
        uid=cluster.metadata.uid,
        creation_timestamp=cluster.metadata.creation_timestamp,
        annotations=_accepted(cluster),
    )
    spec = UserClusterSpec(project=project, kubeconfig_secret_ref=KUBECONFIG)
    account = account_of(name, namespace, cloud, datacenters.get(cloud.dc))
    if account is None:
        return UserCluster(metadata=metadata, spec=spec)
    return AccountedCluster(metadata=metadata, spec=spec, account=account)
