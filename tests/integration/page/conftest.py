"""One whole installation with the page, and a real Chromium that looks at it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from devcluster import chromium
from devcluster.install import Installation
from tests.integration.page.place import Place

expect.set_options(timeout=60_000)  # ms; on a busy machine, Playwright's own 5 s are not enough


@pytest_asyncio.fixture(scope="package")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    directory = tmp_path_factory.mktemp("page")
    async with (
        Installation(directory, seeds=2, organization="acme", api=True, master_replicas=2) as installed,
        Place(installed) as place,
    ):
        await place.prepare()
        yield place


@pytest_asyncio.fixture(scope="package")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    found = chromium.ensure()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found.program, args=[*chromium.FLAGS], env={**os.environ, **found.environment}
        )
        yield browser
        await browser.close()


@pytest.fixture(scope="package")
def shots() -> Path | None:
    """$SCREENSHOTS, where screenshots are kept to be looked at. No test looks at them, so without it there are none."""
    if "SCREENSHOTS" not in os.environ:
        return None
    directory = Path(os.environ["SCREENSHOTS"])
    directory.mkdir(parents=True, exist_ok=True)
    return directory
