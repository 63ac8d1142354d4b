"""The page and the HTTP API without control planes: CPU of the server for a small read, and the overview of a large
installation.

The server has a thread of its own to be measured by; the client has another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from unittest.mock import patch

import aiohttp
import msgspec

from common.runtime import garbage
from common.server.web_server import WebServer
from master.apiserver import request_limits
from master.apiserver.app import App, refusal
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from master.cache.objects import MasterQuota
from master.page.app import Page
from master.seeds.agent_pages import AgentPages
from tests.stores import fill
from tests.unit.master.apiserver.test_auth import reviewer
from tests.unit.master.page.builders import HEALTHY, quota, seed

SEEDS, QUOTAS, SEEDS_OF_A_QUOTA = 1_000, 10_000, 3
CHANGED = 100  # quotas, between two views
HEADERS = {"Authorization": "Bearer token-of-ann"}


class _Filled(Caches):
    def not_synced(self) -> str | None:
        return None


class _FilledAllocations(AllocationCache):
    def not_synced(self) -> str | None:
        return None


async def page(seconds: float) -> None:
    garbage.begin()  # as the program does
    print("page and HTTP API: CPU of the server's thread, one client")
    async with _serving(1, 1) as (server, _):
        each, cpu, _ = await _read(server, "/api/v2/quotas?limit=1", seconds=seconds)
        print(f"  one quota by the HTTP API      {each * 1000:8.2f} ms  {cpu * 1e6:8.0f} us of CPU")
    async with _serving(SEEDS, QUOTAS) as (server, caches):
        what = f"overview, {SEEDS:,} seeds, {QUOTAS:,} quotas"
        for title in ("the first view", "nothing has changed", f"{CHANGED} quotas have changed"):
            if title.startswith(str(CHANGED)):
                _change(caches, CHANGED)
            took, cpu, size = await _read(server, "/", once=True)
            print(f"  {what}: {title:24} {took * 1000:8.1f} ms  {cpu * 1e3:8.1f} ms of CPU  {size / 1000:6.1f} kB")
        took, cpu, size = await _read(server, "/quotas?q=p77&state=near", once=True)
        print(f"  a search in {QUOTAS:,} quotas       {took * 1000:8.1f} ms  {cpu * 1e3:8.1f} ms of CPU")


@asynccontextmanager
async def _serving(seeds: int, quotas: int) -> AsyncIterator[tuple[WebServer, Caches]]:
    async with reviewer() as cluster:
        caches = _Filled(cluster, "seedquota")
        fill(caches.seeds.store, {f"seed-{n}": seed(f"seed-{n}", *HEALTHY) for n in range(seeds)})
        allocations = _FilledAllocations(cluster)
        app = App(cluster, caches, allocations, AgentPages(caches, "seedquota"), Page(lambda: None).mount)
        found = [_quota(n, seeds) for n in range(quotas)]
        begun = time.thread_time()
        for each in found:
            caches.quotas._put(each)
        if quotas > 1:
            print(f"  {quotas:,} quotas come into the cache {(time.thread_time() - begun) * 1e3:8.1f} ms of CPU")
        server = WebServer(app.application, refusal)
        await server.start("127.0.0.1", 0, None)
        with _unlimited():
            yield server, caches
        await server.stop(0)


def _quota(number: int, seeds: int) -> MasterQuota:
    return quota(
        f"p{number}",
        {"cpu": "64", "memory": "256Gi", "machines": "100"},
        {"cpu": str(number % 64), "memory": f"{number % 250}Gi", "machines": str(number % 90)},
        subject=("project", f"p{number}"),
        seeds=[
            {
                "name": f"seed-{(number + each) % seeds}",
                "state": "Current",
                "localUsage": {"cpu": "1", "memory": "4Gi", "machines": "1"},
                "held": {"cpu": "4", "memory": "16Gi", "machines": "4"},
                "lastReportTime": "2026-11-20T09:59:57Z",
            }
            for each in range(min(SEEDS_OF_A_QUOTA, seeds))
        ],
    )


def _change(caches: Caches, count: int) -> None:
    for found in caches.quotas.store.values()[:count]:
        caches.quotas._put(msgspec.structs.replace(found, status=msgspec.structs.replace(found.status)))


@contextmanager
def _unlimited() -> Iterator[None]:
    with patch.object(request_limits, "PER_SECOND", 1e9), patch.object(request_limits, "BURST", 1e9):
        yield


async def _read(server: WebServer, path: str, *, seconds: float = 0.0, once: bool = False) -> tuple[float, float, int]:
    """Seconds, and seconds of CPU of this thread, for each answer; bytes of the last one."""
    begun = time.thread_time()
    count, took, size = await asyncio.to_thread(asyncio.run, _ask(server.port, path, 0.0 if once else seconds))
    return took / count, (time.thread_time() - begun) / count, size


async def _ask(port: int, path: str, seconds: float) -> tuple[int, float, int]:
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        count, begun = 0, time.monotonic()
        while True:
            async with session.get(f"http://127.0.0.1:{port}{path}", allow_redirects=False) as answer:
                size = len(await answer.read())
                assert answer.status == 200, answer.status
            count += 1
            if (took := time.monotonic() - begun) >= seconds:
                return count, took, size
