"""How the sources that accounts count are named."""

from __future__ import annotations

from common.kube.client.meta import object_key

HOSTED = "cluster.x-k8s.io:"  # begins the name of a Cluster that counts as a user cluster; no UserCluster has such

CLUSTER_API = "cluster-api"  # the seed's own API server, which is asked about the Machines of all of these


def hosted_key(namespace: str, name: str) -> str:
    return object_key(namespace, HOSTED + name)


def is_hosted(key: str) -> bool:
    return key.partition("/")[2].startswith(HOSTED)


KUBERMATIC = "kubermatic.k8c.io:"  # ... and of a Cluster of Kubermatic, which is reached by its kubeconfig


def is_of_kubermatic(key: str) -> bool:
    return key.partition("/")[2].startswith(KUBERMATIC)


_CLUSTERS_OF = "clusters:"  # begins the key of a source that no UserCluster can have: theirs have a namespace


def clusters_key(project: str) -> str:
    """The source of the project's clusters themselves, where each of the others is the source of one's Machines."""
    return _CLUSTERS_OF + project


def project_of_key(key: str) -> str | None:
    """Whose clusters the source is of, None for one of Machines."""
    return key.removeprefix(_CLUSTERS_OF) if key.startswith(_CLUSTERS_OF) else None
