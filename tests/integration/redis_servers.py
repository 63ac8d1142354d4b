"""Redis servers for tests, and a generation that a test sets by hand."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from common.runtime import redis_client
from common.runtime.redis_access import RedisAccess, redis_url
from devcluster import redis as servers
from devcluster.binaries import BuildError
from devcluster.network import free_port
from devcluster.processes import ProcessGroup
from devcluster.redis import Executable, RedisServer, Settings
from seed.ledger import redis as redis_store
from seed.ledger.redis import RedisStore
from seed.ledger.store_generation import Held

SEED = "eu-1"


class ByHand:
    """What the marker says, without an API server: tests begin generations when they like."""

    def __init__(self) -> None:
        self.now = Held("generation-1", "")
        self.elsewhere = 0

    def held(self) -> Held:
        return self.now

    def look_again(self) -> None:
        self.elsewhere += 1

    async def begin(self, store: RedisStore, generation: str) -> None:
        """As the leader does: a generation of the primary that answers `store` now."""
        self.now = Held(generation, await store.run_id())
        store.refresh()


async def executable() -> Executable:
    try:
        return await servers.ensure()
    except BuildError as error:
        pytest.skip(f"needs redis-server 7: {error}")


OWN_LIMITS = {
    (module, name): getattr(module, name)
    for module, names in (
        (redis_client, ("SOCKET_TIMEOUT", "CALL_TIMEOUT", "ASK_TIMEOUT")),
        (redis_store, ("CALL_TIMEOUT",)),
    )
    for name in names
}


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no Redis that hangs."""
    for module, name in OWN_LIMITS:
        monkeypatch.setattr(module, name, 5.0)


@contextmanager
def own_limits(*, sockets: bool = False) -> Iterator[None]:
    """The product's, while a Redis does hang. With `sockets` those of new connections, too, which keep them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for (module, name), seconds in OWN_LIMITS.items():
            if sockets or name != "SOCKET_TIMEOUT":
                monkeypatch.setattr(module, name, seconds)
        yield


class Rack:
    """Starts servers that are gone with the test."""

    def __init__(self, executable: Executable, directory: Path, group: ProcessGroup) -> None:
        self.executable = executable
        self.directory = directory
        self.group = group

    def make(self, name: str, settings: Settings) -> RedisServer:
        return RedisServer(name, self.executable, self.directory, self.group, settings)

    async def server(self, name: str, settings: Settings | None = None) -> RedisServer:
        settings = settings or Settings()
        if settings.cluster:  # by itself it takes its port and 10,000, which an outgoing connection may have
            settings = dataclasses.replace(settings, more={**settings.more, "cluster-port": str(free_port())})
        server = self.make(name, settings)
        await server.start()
        return server

    async def sentinel(self, primary: RedisServer) -> servers.Sentinel:
        sentinel = servers.Sentinel("sentinel", self.executable, self.directory, self.group, primary)
        await sentinel.start()
        return sentinel


@asynccontextmanager
async def rack(directory: Path) -> AsyncIterator[Rack]:
    found = await executable()
    async with servers.redis_group() as group:
        yield Rack(found, directory, group)


@asynccontextmanager
async def store_at(
    url: str, generation: ByHand, access: RedisAccess | None = None, *, running: bool = True
) -> AsyncIterator[RedisStore]:
    store = RedisStore(
        redis_url(url), access or RedisAccess(), SEED, held=generation.held, on_elsewhere=generation.look_again
    )
    task = asyncio.create_task(store.run()) if running else None
    try:
        yield store
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await store.close()
