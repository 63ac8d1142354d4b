from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devcluster.install import Installation
from tests.integration.installed.site import WINDOW, Site


@pytest_asyncio.fixture(scope="package")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """One for each half of what is here, since it takes its time to start. Whoever changes it puts it back.

    Two replicas of each seed's agent are installed, and one runs: most bad days are one replica's.
    """
    directory = tmp_path_factory.mktemp("installed")
    resting = ["seedquota-seed-1-b", "seedquota-seed-2-b"]
    async with Installation(directory, replicas=2, resting=resting, in_flight_window=WINDOW) as installed:
        site = Site(installed)
        site.down.update(installed.programs[name] for name in resting)
        site.said_at_the_start = site.said({})
        await site.remember()
        yield site
        await site.left_nothing()
        await site.close()


@pytest_asyncio.fixture(scope="module", autouse=True)
async def left_as_found(installation: Site) -> AsyncIterator[None]:
    """After all other fixtures of a file: also what one of them left that failed in the middle is put back."""
    yield
    await installation.clean()


@pytest_asyncio.fixture
async def site(installation: Site) -> AsyncIterator[Site]:
    """The installation, whole and empty. Whatever a test breaks, no program may fail in a way it does not expect."""
    async with installation.emptied() as site:
        yield site
