"""Keys of clusters of other APIs that count as user clusters: no UserCluster has such a name."""

from __future__ import annotations

from common.kube.client.meta import object_key

HOSTED = "cluster.x-k8s.io:"  # begins the name of a Cluster of Cluster API
KUBERMATIC = "kubermatic.k8c.io:"  # ... and of a Cluster of Kubermatic, which is reached by its kubeconfig


def hosted_key(namespace: str, name: str) -> str:
    return object_key(namespace, HOSTED + name)


def plain_name(name: str) -> str:
    """The name that the cluster has in its own API."""
    return name.removeprefix(HOSTED).removeprefix(KUBERMATIC)


def is_hosted(key: str) -> bool:
    return key.partition("/")[2].startswith(HOSTED)


def is_of_kubermatic(key: str) -> bool:
    return key.partition("/")[2].startswith(KUBERMATIC)
