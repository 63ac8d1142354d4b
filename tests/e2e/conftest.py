from __future__ import annotations

from pathlib import Path

import pytest

from devcluster import docker, isolation, node

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    of_nodes = node.missing() if isolation.is_inside() else "a real node is started by `make e2e`"
    for item in items:
        if item.path.is_relative_to(HERE):
            why = docker.missing() if item.path.name == "test_containers.py" else of_nodes
            if why:
                item.add_marker(pytest.mark.skip(reason=why))
