"""What the leader runs through the connection to a user cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from seed.controllers.term import Leadership


async def test_a_user_cluster_whose_machines_are_the_seeds_own_has_no_namespaces_of_its_own() -> None:
    """Or what is kept for those of the seed would be removed as left over."""
    leadership = Leadership.__new__(Leadership)
    await leadership._follow_beside(cast(Any, SimpleNamespace(on_seed=True)), cast(Any, None))
