from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devcluster import docker, isolation, node
from tests.e2e.cluster import Explained

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    of_nodes = node.missing() if isolation.is_inside() else "a real node is started by `make e2e`"
    for item in items:
        if item.path.is_relative_to(HERE):
            why = docker.missing() if item.path.name == "test_containers.py" else of_nodes
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest_asyncio.fixture(autouse=True)
async def explained(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Of each cluster that a failed test has: what its pods are and said."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        for each in request.node.funcargs.values():
            if isinstance(each, Explained):
                await each.explain()
