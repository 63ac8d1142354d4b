from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from common.quota import blocks
from seed.ledger import own_block
from tests.unit.seed_world import SeedWorld, seed_world


@pytest.fixture(autouse=True)
def one_write_for_each(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests tell what becomes of a write. What is admitted without one has tests of its own (marked `blocks`)."""
    if request.node.get_closest_marker("blocks") is None:
        monkeypatch.setattr(own_block, "BEGINS", 1_000_000)
        monkeypatch.setattr(blocks, "TAKEN_AFTER", 0.0)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[SeedWorld]:
    async with seed_world() as made:
        yield made
