"""docs/how-to/seeds.md: what its commands print is what the page shows. And the tables of all commands."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from common.api.labels import MANAGED_BY_LABEL
from devcluster.install import NAMESPACE, Installation
from tests.how_to import CONFIRMATION, is_shown
from tests.integration import tables
from tests.integration.installed.site import CLUSTERS, MACHINES, WINDOW, Site, cpus, until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGE = "seeds.md"


class Named(Installation):
    """With the page's names of seeds."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, in_flight_window=WINDOW)
        self.seeds = ["eu-1", "eu-2"]
        self.user_clusters = {"eu-1": "user-1", "eu-2": "user-2"}


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Named(tmp_path) as installed:
        site = Site(installed)
        for name in ("master", *installed.seeds):
            (tmp_path / f"{name}-admin.yaml").write_text(site.server(name).kubeconfig())
        yield site
        await site.close()


async def prints_what_is_shown(site: Site, command: str, *, seed: str = "eu-2") -> None:
    """`command` is the page's, about `seed` in place of its eu-2. `...` stands for anything."""
    arguments = command.replace("eu-2", seed).split()[1:]
    directory = site.installed.directory
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli", *arguments],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "KUBECONFIG": str(directory / "master-admin.yaml"),
        },
        input=f"{CONFIRMATION}\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    is_shown(done.stdout, PAGE, command)


async def test_every_table_fits_terminals_and_a_seed_is_added_drained_and_removed_and_another_one_is_lost(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: the tables are of an installation in which nothing else has happened."""
    with monkeypatch.context() as patched:
        await tables.fit_terminals(site, tmp_path, patched)
    await site.clean()
    remove = "seedquota seed remove eu-2 --seed-kubeconfig eu-2-admin.yaml"
    for seed in site.installed.seeds:
        label = {"metadata": {"labels": {MANAGED_BY_LABEL: "seedquota"}}}
        await site.patch("master", f"/api/v1/namespaces/{NAMESPACE}/secrets/{seed}", label)
        await prints_what_is_shown(site, "seedquota seed add eu-2 --seed-kubeconfig eu-2-admin.yaml", seed=seed)
    await site.quota(cpus(4) | {"memory": "16Gi"})
    await site.admitted("user-1")
    await site.admitted("user-2", 2)
    await site.uses(cpus(3) | {"memory": "3Gi"})
    await prints_what_is_shown(site, "seedquota seed drain eu-2")
    await until(partial(prints_what_is_shown, site, "seedquota seed list"), 60)
    await prints_what_is_shown(site, remove)
    await prints_what_is_shown(site, "seedquota seed lost eu-2 --dry-run")
    for found in await site.items("user-2", MACHINES):
        await site.delete("user-2", f"{MACHINES}/{found['metadata']['name']}")
    await site.delete("eu-2", f"{CLUSTERS}/user-2")

    async def holds_nothing() -> None:
        await site.uses(cpus(1) | {"memory": "1Gi"})
        await prints_what_is_shown(site, remove)
        assert {each["metadata"]["name"] for each in await site.items("master", "seeds")} == {"eu-1"}

    await until(holds_nothing, 60)
    await site.kill(site.program("eu-1"), site.server("eu-1"))
    await prints_what_is_shown(site, "seedquota seed lost eu-2", seed="eu-1")
    await prints_what_is_shown(site, "seedquota seed remove eu-2", seed="eu-1")
    assert await site.items("master", "seeds") == []
