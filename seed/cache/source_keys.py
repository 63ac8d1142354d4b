"""How the sources that accounts count are named."""

from __future__ import annotations

from common.api.labels import ALLOCATIONS_UNCHECKED, CLUSTERS_UNCHECKED
from common.kube.client.meta import ObjectMeta, object_key
from common.quota.object_names import GroupResource

HOSTED = "cluster.x-k8s.io:"  # begins the name of a Cluster that counts as a user cluster; no UserCluster has such

CLUSTER_API = "cluster-api"  # the seed's own API server, which is asked about the Machines of all of these
ALLOCATIONS = ALLOCATIONS_UNCHECKED  # ... about Allocations, in the master's own cluster
CLUSTERS = CLUSTERS_UNCHECKED  # ... and about clusters themselves
OF_SEED = (ALLOCATIONS, CLUSTERS)
"""What is told once for a whole seed, not of a source. No source has such a key."""


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


_ALLOCATIONS_OF = "allocations:"


def allocations_key(project: str) -> str:
    """The source of the project's Allocations, in the master's own cluster."""
    return _ALLOCATIONS_OF + project


def is_of_allocations(key: str) -> bool:
    return key.startswith(_ALLOCATIONS_OF)


def project_of_key(key: str) -> str | None:
    """Whose clusters or Allocations the source is of, None for one of Machines."""
    for prefix in (_CLUSTERS_OF, _ALLOCATIONS_OF):
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return None


OWN_API_SERVER = "seed"  # the key of the seed's own API server, as that of a UserCluster is `namespace/name`

_NAMESPACES = "namespaces:"  # begins the key of a source of objects in namespaces


def namespaces_key(quota_uid: str, cluster: str) -> str:
    """The source of what a quota's namespaces of one cluster have. `cluster`: a UserCluster's key, or OWN_API_SERVER.

    It has the quota's uid, since what is counted there differs from quota to quota.
    """
    return f"{_NAMESPACES}{quota_uid}:{cluster}"


def cluster_of_namespaces(key: str) -> str | None:
    """Which cluster the source is in; None for another source."""
    return key.removeprefix(_NAMESPACES).partition(":")[2] if key.startswith(_NAMESPACES) else None


def generation_after(old: ObjectMeta) -> int:
    """What a reservation for an update of the object names as the generation that it makes.

    Most objects in namespaces have no metadata.generation. A resourceVersion does the same: an update is admitted on
    the very version that it changes, and what is stored next has a later one. They are compared as numbers (rule 4.11);
    one that is none is 0, which is before all others.
    """
    return generation_of(old) + 1


def generation_of(metadata: ObjectMeta) -> int:
    version = metadata.resource_version
    return int(version) if version.isascii() and version.isdigit() and len(version) < 19 else 0


def shown(key: str) -> str:
    """The source, for people who read of it beside the quota's name."""
    return cluster_of_namespaces(key) or key


def object_in_namespace(resource: GroupResource, namespace: str, name: str) -> str:
    """What a reservation calls an object of such a source: its kind is needed to look for it."""
    return f"{resource}:{object_key(namespace, name)}"


def parse_object(text: str) -> tuple[GroupResource, str, str]:
    """Resource, namespace, name."""
    kind, _, key = text.partition(":")
    plural, _, group = kind.partition(".")
    namespace, _, name = key.partition("/")
    return GroupResource(plural, group), namespace, name
