"""What the seed's own API server asks about: told once for a whole seed, not of a source. No source has such a key."""

from __future__ import annotations

from common.api.labels import ALLOCATIONS_UNCHECKED, CLUSTERS_UNCHECKED

CLUSTER_API = "cluster-api"  # Machines of all Clusters of Cluster API
ALLOCATIONS = ALLOCATIONS_UNCHECKED
CLUSTERS = CLUSTERS_UNCHECKED
