from __future__ import annotations

from dataclasses import dataclass

from devcluster.cluster_api import ClusterApi
from devcluster.install import Installation

SEED = "seed-1"


@dataclass(frozen=True)
class Place:
    """A seed with Cluster API and kinds of an infrastructure provider."""

    installed: Installation
    controllers: ClusterApi
