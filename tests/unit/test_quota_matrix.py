"""The matrix of quotas has no hole, names tests that exist, and is what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.tenancy.matrix import OPERATIONS, RESOURCES, SUBJECTS, TABLE, tables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "quota-matrix.md"


def test_every_cell_has_a_row() -> None:
    found = {cell for row in TABLE for cell in row.cells()}
    assert found == {(each, resource, what) for each in SUBJECTS for resource in RESOURCES for what in OPERATIONS}


@pytest.mark.parametrize("test", sorted({test for row in TABLE for test in row.proven_by.values()}))
def test_a_test_that_is_named_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^async def {name}\(", (ROOT / "tests" / "integration" / file).read_text(), re.MULTILINE)


def test_the_page_shows_the_table() -> None:
    shown = PAGE.read_text()
    assert shown[shown.index("## ") :].rstrip() == tables().rstrip(), "python -m tests.integration.tenancy.matrix"
