"""Both stores, with one replica of the agent and with two that write the same account."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from common.api.conditions import count
from devcluster import redis
from devcluster.controlplane import ApiServer
from devcluster.observe import api_writes
from devcluster.redis import RedisServer, Settings
from seed.ledger.store_generation import API_SERVER, REDIS
from tests.bench.alone import beside
from tests.bench.plot import Ratios
from tests.bench.serving import load, seed_api, serving, tell, warm

CLIENTS = (1, 32, 128)
REPLICAS = (1, 2)

Cost = Callable[[], Awaitable[int]]
_CALLS = re.compile(r"^cmdstat_fcall(?:_ro)?:calls=(\d+)", re.MULTILINE)


async def stores(seconds: float) -> Ratios:
    print("admissions on one quota by store and replicas; ratio: to one replica with the API server")
    print("cost: writes to the API server, or function calls to Redis, for each admission with its count")
    print("store      replicas clients  admitted/s   p50 ms   p99 ms    cost  ratio")
    peers: dict[int, float] = {}
    ratios: list[tuple[str, float]] = []
    for store in (API_SERVER, REDIS):
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(seed_api())
            url, cost = "", _api_cost(api)
            if store == REDIS:
                server = await stack.enter_async_context(a_redis())
                url, cost = server.url, _redis_cost(server)
            for replicas in REPLICAS:
                ratios += await _measure(store, api, url, cost, replicas, seconds, peers)
    return Ratios("Admissions a second, to one replica with the API server and as many clients", ratios)


async def _measure(
    store: str, api: ApiServer, url: str, cost: Cost, replicas: int, seconds: float, peers: dict[int, float]
) -> list[tuple[str, float]]:
    ratios = []
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(serving("admission", api, leads=number == 0, redis_url=url))
            for number in range(replicas)
        ]
        for clients in CLIENTS:
            await warm(servers, clients)
            before = await cost()
            result = await load(servers, clients, seconds)
            spent = (await cost() - before) / result.requests
            ratio = result.rate / peers.setdefault(clients, result.rate)
            print(
                f"{store:<10} {replicas:>8} {clients:>7} {result.rate:>11.0f} {result.p50_ms:>8.2f}"
                f" {result.p99_ms:>8.2f} {spent:>7.3f} {ratio:>6.2f}",
                flush=True,
            )
            tell(result)
            if clients == 1:
                await beside(result, api, url, seconds / 2)
            ratios.append((f"{store}, {count(replicas, 'replica')}, {count(clients, 'client')}", ratio))
    return ratios


@asynccontextmanager
async def a_redis() -> AsyncIterator[RedisServer]:
    """Keeps every write on disk. Raises BuildError where there is no redis-server."""
    executable = await redis.ensure()
    with tempfile.TemporaryDirectory(prefix="seedquota-bench-") as directory:
        async with redis.redis_group() as group:
            server = RedisServer("ledger", executable, Path(directory), group, Settings(persistence="aof"))
            await server.start()
            yield server


def _api_cost(api: ApiServer) -> Cost:
    async def cost() -> int:
        await asyncio.sleep(0.5)  # the last count is under way
        return (await api_writes([api])).total()

    return cost


def _redis_cost(server: RedisServer) -> Cost:
    async def cost() -> int:
        await asyncio.sleep(0.5)
        said = (await server.command("INFO", "commandstats")).decode()
        return sum(int(calls) for calls in _CALLS.findall(said))

    return cost
