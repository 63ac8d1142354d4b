from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from devcluster.controlplane import ControlPlane


@pytest_asyncio.fixture(scope="session")
async def control_plane() -> AsyncIterator[ControlPlane]:
    """One etcd for all tests; each starts the API servers that it needs, under names of its own."""
    async with ControlPlane() as plane:
        yield plane
