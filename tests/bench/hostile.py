"""A storm by one tenant, through a real API server and past it, while another one of the same seed creates Machines."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import aiohttp
import msgspec

from devcluster.controlplane import ApiServer
from devcluster.install import Installation, Program
from devcluster.load import Tenant
from devcluster.observe import percentile
from tests.bench.installed import site
from tests.bench.storm import SIZE, Storm, named, review

OTHER = "user-2"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-machines"
SETTLE_SECONDS = 5.0
_STALL, _MEMORY, _CPU = (
    "seedquota_event_loop_longest_stall_seconds",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class _State:
    stall: float
    memory: float
    cpu: float


@dataclass(frozen=True)
class _Seen:
    """The other's p99 in milliseconds: of Machines that it creates, and of the webhook's answers by themselves."""

    machines: float
    webhook: float


async def hostile(seconds: float) -> None:
    seconds *= 5
    async with site({"cpu": "100000"}, seeds=1) as here:
        installed = here.installed
        await installed.add_user_cluster(OTHER, "seed-1", installed.project)
        agent = next(program for name, program in installed.programs.items() if name.startswith("seedquota-seed-1"))
        url, ca = await _webhook(installed.cluster(OTHER))
        trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=ca))
        async with Tenant(installed.cluster(OTHER)) as other, aiohttp.ClientSession(connector=trusting) as past:

            async def create() -> float:
                return (await other.create(SIZE)).seconds

            async def ask() -> float:
                started = time.monotonic()
                body = msgspec.json.encode(named(f"asked-{next(_numbers)}"))
                async with past.post(url, data=review(body)) as answer:
                    await answer.read()
                return time.monotonic() - started

            async def see(seconds: float) -> _Seen:
                return _Seen(await _p99(create, 4, seconds / 2), await _p99(ask, 1, seconds / 2))

            await see(4.0)
            quiet = await see(seconds)
            before = await _state(agent)
            async with _storming(installed):
                loud = await see(seconds)
                during = await _state(agent)
        await asyncio.sleep(SETTLE_SECONDS)
        after = await _state(agent)
    print("one tenant's storm of dry runs, large and deep Machines and silent connections, and another's Machines")
    for what, without, with_it in (
        ("the other's p99", quiet.machines, loud.machines),
        ("of the webhook alone", quiet.webhook, loud.webhook),
    ):
        print(f"  {what}: {without:.0f} ms without it, {with_it:.0f} ms with it: {with_it / without:.1f} times")
    print(f"  the loop's longest stall: {before.stall * 1000:.0f} ms before, {during.stall * 1000:.0f} ms in it")
    print(f"  memory: {_mib(before.memory)} MiB before, {_mib(during.memory)} in it, {_mib(after.memory)} after it")
    print(f"  CPU of the replica in it: {(during.cpu - before.cpu) / seconds:.0%} of a core")


async def _p99(ask: Callable[[], Awaitable[float]], clients: int, seconds: float) -> float:
    """Milliseconds."""
    took: list[float] = []
    end = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < end:
            took.append(await ask())

    await asyncio.gather(*(client() for _ in range(clients)))
    return percentile(sorted(took), 99) * 1000


async def _state(agent: Program) -> _State:
    async with aiohttp.ClientSession() as session, session.get(f"{agent.health}/metrics") as answer:
        text = await answer.text()

    def of(name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    return _State(of(_STALL), of(_MEMORY), of(_CPU))


def _mib(size: float) -> int:
    return int(size / 2**20)


@asynccontextmanager
async def _storming(installed: Installation) -> AsyncIterator[None]:
    """In a process of its own: what it costs to send it is no part of what another one waits for."""
    server = installed.cluster("user-1")
    url, ca = await _webhook(server)
    storm = Storm(server=server.url, server_ca=server.ca, token=server.tokens["admin"], webhook=url, webhook_ca=ca)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.storm", stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(storm))
    process.stdin.close()
    try:
        await asyncio.sleep(2.0)
        assert process.returncode is None, "it goes on until it is ended"
        yield
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _webhook(server: ApiServer) -> tuple[str, str]:
    """Where it is and whom to trust there, as the tenant reads it in its own cluster."""
    async with server.session() as session, session.get(WEBHOOKS) as answer:
        client = (await answer.json())["webhooks"][0]["clientConfig"]
    return client["url"], base64.b64decode(client["caBundle"]).decode()
