"""Which objects of a seed are clusters of a project, whichever API they are of. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from common.api import labels
from common.kube.client.meta import Object
from common.quota.quantity import UNIT
from seed.cache import kubermatic_objects as kubermatic
from seed.machines import cluster_api

RESOURCE = "clusters"
ONE = {RESOURCE: UNIT}
NOTHING = {RESOURCE: 0}


class OwnedSpec(msgspec.Struct, frozen=True):
    project: str = ""


class Owned(Object, frozen=True, kw_only=True):
    """Any of them: only what tells whose it is. It stands for the cluster that has its namespace and name."""

    spec: OwnedSpec = OwnedSpec()


@dataclass(frozen=True)
class ClusterKind:
    """`project` is empty for a cluster of none."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    project: Callable[[Owned], str]
    namespaced: bool = True

    @property
    def crd(self) -> str:
        """The name of its CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"


def user_clusters() -> ClusterKind:
    return ClusterKind(
        labels.GROUP, "UserCluster", "userclusters", (labels.VERSION,), lambda cluster: cluster.spec.project
    )


def of_cluster_api(label: str) -> ClusterKind:
    return ClusterKind(
        cluster_api.GROUP,
        "Cluster",
        "clusters",
        cluster_api.VERSIONS,
        lambda cluster: cluster_api.project_of(cluster, label),
    )


def of_kubermatic() -> ClusterKind:
    return ClusterKind(
        kubermatic.GROUP, "Cluster", "clusters", kubermatic.VERSIONS, kubermatic.project_of, namespaced=False
    )


def kinds(project_label: str) -> tuple[ClusterKind, ...]:
    """UserClusters come first: they are there on every seed."""
    return user_clusters(), of_cluster_api(project_label), of_kubermatic()
