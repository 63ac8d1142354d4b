from __future__ import annotations

from pathlib import Path

import pytest

from devcluster import isolation, node

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = node.missing() if isolation.is_inside() else "a real node is started by `make e2e`"
    for item in items:
        if why and item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason=why))
