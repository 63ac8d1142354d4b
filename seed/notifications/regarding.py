"""The object that an Event about a user cluster is on. Pure."""

from __future__ import annotations

from common.api.labels import API_VERSION
from common.api.types import UserCluster
from common.kube.controller.events import Regarding
from seed.cache import kubermatic_objects as kubermatic
from seed.machines import cluster_api
from seed.model.cluster_key import HOSTED, KUBERMATIC, is_hosted, is_of_kubermatic


def regarding(cluster: UserCluster) -> Regarding:
    """The UserCluster itself, or the Cluster of another API that takes the place of one."""
    of = cluster.metadata
    if is_hosted(of.key):
        api_version, kind = f"{cluster_api.GROUP}/{cluster_api.VERSIONS[0]}", "Cluster"
    elif is_of_kubermatic(of.key):
        api_version, kind = f"{kubermatic.GROUP}/{kubermatic.VERSIONS[0]}", "Cluster"
    else:
        api_version, kind = API_VERSION, "UserCluster"
    return Regarding(
        api_version=api_version,
        kind=kind,
        namespace=of.namespace,
        name=of.name.removeprefix(HOSTED).removeprefix(KUBERMATIC),
        uid=of.uid,
    )
