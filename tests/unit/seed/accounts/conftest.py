from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.unit.seed.accounts.test_usage_writer import Leading, leading


@pytest_asyncio.fixture
async def leader(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leading]:
    async with leading(monkeypatch) as made:
        yield made
