"""Which cluster a kubeconfig leads to, known by the uid of that cluster's namespace kube-system. Pure.

A Seed and a UserCluster stand for one cluster each. Its uid is recorded in their status.
"""

from __future__ import annotations

from common.api.types import ACCEPT_CLUSTER_ANNOTATION
from common.kube.client.meta import Object
from common.kube.client.resource import Resource

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, Object)
KUBE_SYSTEM = "kube-system"
CHANGED = "ClusterChanged"
DUPLICATE = "DuplicateCluster"


def is_another(of: Object, recorded: str, found: str) -> bool:
    """Whether `found` is not the cluster that is `recorded`, and no admin has accepted it. Empty: none is recorded."""
    return recorded not in ("", found) and of.metadata.annotations.get(ACCEPT_CLUSTER_ANNOTATION) != found


def order(of: Object) -> tuple[str, str]:
    """Of several that lead to one cluster the least stands for it: the one that was made first."""
    return of.metadata.creation_timestamp or "", of.metadata.key
