"""What a hostile tenant sends, in a process of its own: `Storm` as JSON on stdin, until it is ended."""

from __future__ import annotations

import asyncio
import base64
import itertools
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp
import msgspec

from common.server import connections
from devcluster.load import Size, machine

SIZE = Size("1", "1Gi", "1Gi")
MACHINES = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines"
AT_ONCE = 32  # requests through the API server, and as many past it
_numbers = itertools.count(1)


class Storm(msgspec.Struct):
    """The API server of the tenant, and the webhook as it is named there. The authorities are PEM."""

    server: str
    server_ca: str
    token: str
    webhook: str
    webhook_ca: str


def named(name: str) -> dict[str, object]:
    """A Machine as API servers send it to webhooks."""
    made = machine(name, SIZE)
    made["metadata"] = {"name": name, "namespace": "kube-system", "uid": name}
    return made


async def _storm(of: Storm) -> None:
    trusting = ssl.create_default_context(cadata=of.webhook_ca)
    way = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=of.server_ca))
    headers = {"Authorization": f"Bearer {of.token}"}
    async with (
        aiohttp.ClientSession(of.server, connector=way, headers=headers) as through,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting, limit=0)) as past,
    ):
        bodies = _bodies()

        async def ask() -> None:
            path = f"{MACHINES}?dryRun=All"
            headers = {"Impersonate-User": "u" * 50_000, "Impersonate-Group": "system:masters"}
            async with through.post(path, data=next(bodies), headers=headers) as answer:
                await answer.read()

        async def send() -> None:
            async with past.post(of.webhook, data=review(next(bodies))) as answer:
                await answer.read()

        async def connect() -> None:
            where = urlsplit(of.webhook)
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


def _bodies() -> Iterator[bytes]:
    kubeconfig = base64.b64encode(_laughs().encode()).decode()
    while True:
        number = next(_numbers)
        plain = named(f"storm-{number}")
        yield msgspec.json.encode(plain)
        other = named(f"storm-{number}")
        value = other["spec"]["providerSpec"]["value"]  # type: ignore[index]
        value["sshPublicKeys"] = [f"{number}" * 100]
        yield msgspec.json.encode(other)
        value["cloudProvider"], value["cloudProviderSpec"] = "kubevirt", _kubevirt(kubeconfig)
        yield msgspec.json.encode(other)
        large = named(f"storm-{number}")
        large["spec"]["junk"] = "x" * 2**20  # type: ignore[index]
        yield msgspec.json.encode(large)
        wide = named(f"storm-{number}")
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


def review(subject: bytes) -> bytes:
    head = b'{"request":{"uid":"r","operation":"CREATE","dryRun":true,"userInfo":{"username":"%b"},"object":'
    return head % (b"u" * 10_000) + subject + b"}}"


if __name__ == "__main__":
    asyncio.run(_storm(msgspec.json.decode(sys.stdin.buffer.read(), type=Storm)))
