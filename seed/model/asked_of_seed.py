"""What the seed's own API server asks about: told once for a whole seed, not of a source. No source has such a key."""

from __future__ import annotations

from seed.model.cluster_key import is_hosted

CLUSTER_API = "cluster-api"  # Machines of all Clusters of Cluster API
ALLOCATIONS = "Allocations"
CLUSTERS = "clusters"


def asked_about(cluster: str) -> str:
    """By which key it is told whether Machines of this cluster are checked: its own, or that of all Clusters of Cluster
    API."""
    return CLUSTER_API if is_hosted(cluster) else cluster
