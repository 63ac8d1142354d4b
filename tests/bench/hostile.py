"""A storm by one tenant, through a real API server and past it, while another one of the same seed creates Machines."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
import msgspec

from common.server import connections
from devcluster.controlplane import ApiServer
from devcluster.install import Installation, Program
from devcluster.load import Size, Tenant, machine
from devcluster.observe import percentile
from tests.bench.installed import site

OTHER = "user-2"
SIZE = Size("1", "1Gi", "1Gi")
MACHINES = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-machines"
AT_ONCE = 32  # requests of the storm through the API server, and as many past it
SETTLE_SECONDS = 5.0
_STALL, _MEMORY = "seedquota_event_loop_longest_stall_seconds", "process_resident_memory_bytes"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class _State:
    stall: float
    memory: float


async def hostile(seconds: float) -> None:
    seconds *= 5
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # what the storm loses
    async with site({"cpu": "100000"}, seeds=1) as here:
        installed = here.installed
        await installed.add_user_cluster(OTHER, "seed-1", installed.project)
        agent = next(program for name, program in installed.programs.items() if name.startswith("seedquota-seed-1"))
        async with Tenant(installed.cluster(OTHER)) as other:
            await _p99(other, 2.0)
            before = await _state(agent)
            quiet = await _p99(other, seconds)
            storming = asyncio.create_task(_storm(installed))
            await asyncio.sleep(1.0)
            loud = await _p99(other, seconds)
            during = await _state(agent)
            storming.cancel()
            await asyncio.gather(storming, return_exceptions=True)
        await asyncio.sleep(SETTLE_SECONDS)
        after = await _state(agent)
    print("one tenant's storm of dry runs, large and deep Machines and silent connections, and another's Machines")
    print(f"  the other's p99: {quiet:.0f} ms without it, {loud:.0f} ms with it: {loud / quiet:.1f} times")
    print(f"  the loop's longest stall: {before.stall * 1000:.0f} ms before, {during.stall * 1000:.0f} ms in it")
    print(f"  memory: {_mib(before.memory)} MiB before, {_mib(during.memory)} in it, {_mib(after.memory)} after it")


async def _p99(tenant: Tenant, seconds: float) -> float:
    """Milliseconds from sending a Machine to its answer, by four clients."""
    took: list[float] = []
    end = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < end:
            took.append((await tenant.create(SIZE)).seconds)

    await asyncio.gather(*(client() for _ in range(4)))
    return percentile(sorted(took), 99) * 1000


async def _state(agent: Program) -> _State:
    async with aiohttp.ClientSession() as session, session.get(f"{agent.health}/metrics") as answer:
        text = await answer.text()

    def of(name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    return _State(of(_STALL), of(_MEMORY))


def _mib(size: float) -> int:
    return int(size / 2**20)


async def _storm(installed: Installation) -> None:
    """Until cancelled."""
    server = installed.cluster("user-1")
    url, trusting = await _webhook(server)
    connector = aiohttp.TCPConnector(ssl=trusting, limit=0)
    async with server.session() as through, aiohttp.ClientSession(connector=connector) as past:
        bodies = _bodies()

        async def ask() -> None:
            path = f"{MACHINES}?dryRun=All"
            headers = {"Impersonate-User": "u" * 50_000, "Impersonate-Group": "system:masters"}
            async with through.post(path, data=next(bodies), headers=headers) as answer:
                await answer.read()

        async def send() -> None:
            async with past.post(url, data=_review(next(bodies))) as answer:
                await answer.read()

        async def connect() -> None:
            where = urlsplit(url)
            opened = []
            for number in range(connections.MAX_UNPROVEN_OF_ONE):
                tls = trusting if number % 2 else None
                _, writer = await asyncio.open_connection(where.hostname, where.port, ssl=tls)
                writer.write(b"P" if tls is not None else b"")
                opened.append(writer)
            for writer in opened:
                writer.transport.abort()

        await asyncio.gather(*(_again(work) for work in [ask, send] * AT_ONCE + [connect] * 2))


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            await work()


async def _webhook(server: ApiServer) -> tuple[str, ssl.SSLContext]:
    """Where it is and whom to trust there, as the tenant reads it in its own cluster."""
    async with server.session() as session, session.get(WEBHOOKS) as answer:
        client = (await answer.json())["webhooks"][0]["clientConfig"]
    return client["url"], ssl.create_default_context(cadata=base64.b64decode(client["caBundle"]).decode())


def _bodies() -> Iterator[bytes]:
    kubeconfig = base64.b64encode(_laughs().encode()).decode()
    while True:
        number = next(_numbers)
        plain = machine(f"storm-{number}", SIZE)
        yield msgspec.json.encode(plain)
        other = machine(f"storm-{number}", SIZE)
        value = other["spec"]["providerSpec"]["value"]  # type: ignore[index]
        value["sshPublicKeys"] = [f"{number}" * 100]
        yield msgspec.json.encode(other)
        value["cloudProvider"], value["cloudProviderSpec"] = "kubevirt", _kubevirt(kubeconfig)
        yield msgspec.json.encode(other)
        large = machine(f"storm-{number}", SIZE)
        large["spec"]["junk"] = "x" * 2**20  # type: ignore[index]
        yield msgspec.json.encode(large)
        wide = machine(f"storm-{number}", SIZE)
        wide["metadata"]["labels"] = {f"l{label}": "v" for label in range(20_000)}  # type: ignore[index]
        yield msgspec.json.encode(wide)
        yield msgspec.json.encode(plain)[:-2] + b',"deep":' + b"[" * 5000 + b"]" * 5000 + b"}}"


def _laughs() -> str:
    lines = ["m0: &m0 {k: v}"]
    lines += [f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 9)}]}}" for level in range(1, 12)]
    return "\n".join(lines)


def _kubevirt(kubeconfig: str) -> dict[str, object]:
    vm = {"instancetype": {"name": "u1.nano"}, "template": {"primaryDisk": {"size": "1Gi"}}}
    return {"auth": {"kubeconfig": {"value": kubeconfig}}, "virtualMachine": vm}


def _review(subject: bytes) -> bytes:
    head = b'{"request":{"uid":"r","operation":"CREATE","dryRun":true,"userInfo":{"username":"%b"},"object":'
    return head % (b"u" * 10_000) + subject + b"}}"
