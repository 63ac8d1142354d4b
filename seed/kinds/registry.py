"""The kinds that are counted. One row registers a kind; what it needs is in its folder."""

from __future__ import annotations

from typing import Final

from seed.kinds.allocations.kind import ALLOCATIONS
from seed.kinds.clusters.kind import CLUSTERS
from seed.kinds.kind import Kind
from seed.kinds.machines.kind import MACHINES
from seed.kinds.namespaces.kind import NAMESPACES

KINDS: Final[tuple[Kind, ...]] = (
    MACHINES,
    ALLOCATIONS,
    CLUSTERS,
    NAMESPACES,
)

OF_PROJECTS: Final = tuple(kind.of_projects for kind in KINDS if kind.of_projects is not None)
