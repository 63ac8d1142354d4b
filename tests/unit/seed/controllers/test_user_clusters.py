"""What the leader runs through the connection to a user cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from seed.controllers.user_clusters import UserClusters


async def test_a_user_cluster_whose_machines_are_the_seeds_own_has_no_namespaces_of_its_own() -> None:
    """Or what is kept for those of the seed would be removed as left over."""
    user_clusters = UserClusters.__new__(UserClusters)
    await user_clusters._follow_beside(cast(Any, SimpleNamespace(on_seed=True)), cast(Any, None))
