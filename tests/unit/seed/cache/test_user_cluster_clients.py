from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec
import pytest

from common.api.core import Secret
from common.api.types import SecretRef, UserCluster, UserClusterSpec
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound, Unauthorized, Unavailable
from common.kube.client.meta import ObjectMeta
from seed.cache import user_cluster_clients as module
from seed.cache.user_cluster_clients import Connections
from tests.running import running
from tests.unit.fake_api_server import PATIENCE, eventually


def kubeconfig(server: str) -> bytes:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    return msgspec.json.encode(config)


class Seed:
    def __init__(self) -> None:
        self.servers: dict[str, str] = {}
        self.reads = 0

    async def get(self, _resource: object, name: str, namespace: str) -> Secret:
        self.reads += 1
        if name not in self.servers:
            raise NotFound(404, "NotFound", f"secret {namespace}/{name}")
        data = {"kubeconfig": kubeconfig(self.servers[name])} if self.servers[name] else {}
        return Secret(metadata=ObjectMeta(name=name, namespace=namespace), data=data)


class World:
    def __init__(self) -> None:
        self.seed = Seed()
        self.connections = Connections(cast(Cluster, self.seed))

    def cluster(self, name: str, server: str | None = "https://127.0.0.1:1") -> UserCluster:
        if server is not None:
            self.seed.servers[name] = server
        metadata = ObjectMeta(name=name, namespace="alpha", uid=f"uid of {name}")
        return UserCluster(
            metadata=metadata, spec=UserClusterSpec(project="alpha", kubeconfig_secret_ref=SecretRef(name=name))
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with running(made.connections.run()):
        await asyncio.sleep(0)
        yield made


async def test_a_connection_is_opened_once_and_used_again(world: World) -> None:
    cluster = world.cluster("c1")
    async with world.connections.to(cluster) as first, world.connections.to(cluster) as second:
        assert first is second and first.server == "https://127.0.0.1:1"
    async with world.connections.to(cluster) as third:
        assert third is first
    assert world.seed.reads == 1


async def test_one_whose_machines_are_on_the_seed_is_reached_there(world: World) -> None:
    cluster = UserCluster(metadata=ObjectMeta(name="c1"), spec=UserClusterSpec(project="alpha"))
    async with world.connections.to(cluster) as found:
        assert cast(object, found) is world.seed


@pytest.mark.parametrize("error", [Unauthorized(401, "Unauthorized", "no"), Unavailable(0, "Unavailable", "away")])
async def test_after_a_failure_the_kubeconfig_is_read_again(world: World, error: ApiError) -> None:
    cluster = world.cluster("c1")
    with pytest.raises(type(error)):
        async with world.connections.to(cluster):
            raise error
    world.cluster("c1", "https://127.0.0.1:2")
    async with world.connections.to(cluster) as found:
        assert found.server == "https://127.0.0.1:2"


async def test_no_more_than_allowed_are_open_and_those_in_use_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    world.connections._places = asyncio.Semaphore(2)
    a, b, c = (world.cluster(name) for name in "abc")
    async with AsyncExitStack() as using:
        first = await using.enter_async_context(world.connections.to(a))
        async with world.connections.to(b):
            waiting = asyncio.create_task(_server(world, c))
            await asyncio.sleep(0.05)
            assert not waiting.done(), "a third waits for a place"
        await waiting
        async with world.connections.to(a) as again:
            assert again is first
    assert world.seed.reads == 3


async def test_one_whose_kubeconfig_takes_long_keeps_no_other_from_being_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = world.cluster("c1"), world.cluster("c2")
    real = Cluster.of_tenant
    begun = asyncio.Event()

    async def of_tenant(text: str, *, name: str, **more: Any) -> Cluster:
        if name == slow.metadata.key:
            begun.set()
            await asyncio.Event().wait()
        return await real(text, name=name, **more)

    monkeypatch.setattr(Cluster, "of_tenant", of_tenant)
    waiting = asyncio.create_task(_server(world, slow))
    await begun.wait()
    assert await asyncio.wait_for(_server(world, other), PATIENCE) == "https://127.0.0.1:1"
    waiting.cancel()


async def _server(world: World, cluster: UserCluster) -> str:
    async with world.connections.to(cluster) as found:
        return found.server


async def test_what_nobody_needs_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.1)
    async with running(world.connections.run()):
        cluster = world.cluster("c1")
        await _server(world, cluster)
        await eventually(lambda: not world.connections._open)
        await _server(world, cluster)
        assert world.seed.reads == 2


async def test_a_secret_that_cannot_be_used_is_named(world: World) -> None:
    with pytest.raises(NotFound):
        await _server(world, world.cluster("missing", None))
    with pytest.raises(Unavailable, match="secret alpha/empty, key kubeconfig"):
        await _server(world, world.cluster("empty", ""))


async def test_a_tenant_whose_api_server_never_answers_keeps_nobody_from_another_s(world: World) -> None:
    hanging, other = world.cluster("hanging"), world.cluster("other")
    release, begun = asyncio.Event(), 0

    async def hang() -> None:
        nonlocal begun
        begun += 1
        async with world.connections.to(hanging):
            await release.wait()

    storm = [asyncio.create_task(hang()) for _ in range(2 * module.MAX_OPEN)]
    await eventually(lambda: begun == len(storm) and "uid of hanging" in world.connections._open)
    assert await asyncio.wait_for(_server(world, other), PATIENCE) == "https://127.0.0.1:1"
    release.set()
    await asyncio.gather(*storm)
    assert not world.connections._turns, "nothing is remembered of who has gone"
