"""In containers: the product's image against the devcluster, and Redis for all that is proven of accounts in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from devcluster import docker, images
from devcluster import redis as redis_program
from devcluster.install import Installation
from devcluster.load import Outcome, Size, Tenant
from devcluster.manifests import apply
from devcluster.objects import quota
from devcluster.processes import ProcessGroup
from devcluster.redis import RedisServer, Settings
from tests.e2e.containers import PRODUCT, REDIS, ProgramContainer, RedisContainer, load
from tests.integration.redis_servers import Rack
from tests.integration.test_redis_store import *  # noqa: F403 (each of its tests, on the servers of this file)

SMALL = Size("1", "1Gi", "1Gi")


@pytest_asyncio.fixture(scope="module")
async def group() -> AsyncIterator[ProcessGroup]:
    opened = ProcessGroup()
    try:
        yield opened
    finally:
        await asyncio.to_thread(opened.close)


@pytest_asyncio.fixture(scope="module")
async def daemon(group: ProcessGroup, tmp_path_factory: pytest.TempPathFactory) -> None:
    if not docker.is_there():
        await docker.Dockerd(tmp_path_factory.mktemp("docker"), group).start()


class ContainerRack(Rack):
    made: list[RedisContainer]

    def make(self, name: str, settings: Settings) -> RedisServer:
        server = RedisContainer(name, self.executable, self.directory, self.group, settings)
        self.made.append(server)
        return server


@pytest_asyncio.fixture(scope="module")
async def redis_image(daemon: None, tmp_path_factory: pytest.TempPathFactory) -> redis_program.Executable:
    found = await redis_program.ensure()
    archive = tmp_path_factory.mktemp("redis") / "image.tar"
    await asyncio.to_thread(images.program, archive, REDIS, found.path, found.libraries)
    await asyncio.to_thread(load, archive)
    return found


@pytest_asyncio.fixture  # type: ignore[no-redef]
async def servers(
    redis_image: redis_program.Executable, group: ProcessGroup, tmp_path: Path
) -> AsyncIterator[ContainerRack]:
    rack = ContainerRack(redis_image, tmp_path, group)
    rack.made = []
    yield rack
    for server in rack.made:
        await server.kill()


async def test_the_image_admits_refuses_and_ends_in_order(
    daemon: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("p")
    archive = directory / "image.tar"
    await asyncio.to_thread(images.product, archive, PRODUCT)
    await asyncio.to_thread(load, archive)
    async with Installation(directory, seeds=1, program=ProgramContainer) as installed:
        programs = list(installed.programs.values())
        try:
            await apply(installed.master, [quota("project-alpha", installed.project, {"cpu": "1"})])
            await installed.enforced("project-alpha", 120)
            async with Tenant(installed.cluster("user-1")) as tenant:
                admitted, refused = await tenant.create(SMALL), await tenant.create(SMALL)
            assert (admitted.outcome, refused.outcome) == (Outcome.ADMITTED, Outcome.REFUSED), refused.message
        finally:
            for program in programs:
                await program.stop()
        assert [(program.name, cast(ProgramContainer, program).exit_status) for program in programs] == [
            ("seedquota-master", 0),
            ("seedquota-seed-1", 0),
        ]
