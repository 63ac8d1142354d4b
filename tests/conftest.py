"""Which tests run in one process: those of a file, and those that share what takes long to start."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(TESTS)
        group = path.parent if path.parent.name == "installed" else path
        item.add_marker(pytest.mark.xdist_group(str(group)))
