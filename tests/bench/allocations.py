"""Allocations over HTTP, each durable in etcd and admitted by the webhook, beside a bare aiohttp route."""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from devcluster import manifests
from devcluster.controlplane import ApiServer
from devcluster.install import Installation
from devcluster.objects import CHARTS, named
from tests.bench.serving import serving

ORGANIZATION, PROJECT = "bench", "bench"
PATH = f"/api/v1/organizations/{ORGANIZATION}/projects/{PROJECT}/allocations"
CLIENTS = 64  # each a user of its own, since each user has a rate
ARRAY = 100
LIMIT = 10**9

Send = Callable[[int], Awaitable[int]]
"""By a client's number: sends one request and returns how many allocations it made."""


@dataclass(frozen=True)
class Site:
    master: ApiServer
    url: str
    sessions: list[aiohttp.ClientSession]


async def allocations(seconds: float) -> None:
    print("allocations on one organization: durable allocations a second, beside a bare aiohttp route", flush=True)
    async with _site() as site:
        for clients in (1, 16, CLIENTS):
            await _measure(f"{clients:3d} clients, one in a request", clients, seconds, _allocates(site, 1))
        await _measure(f"{8:3d} clients, {ARRAY} in a request", 8, seconds, _allocates(site, ARRAY))
        async with serving("echo", site.master) as echo:
            url = f"https://127.0.0.1:{echo.port}/echo"
            await _measure(f"{CLIENTS:3d} clients, bare aiohttp route", CLIENTS, seconds, _echoes(site, url))


async def _measure(name: str, clients: int, seconds: float, send: Send) -> None:
    made, latencies = 0, []
    end = time.perf_counter() + seconds

    async def work(number: int) -> None:
        nonlocal made
        while (begun := time.perf_counter()) < end:
            some = await send(number)
            made += some
            latencies.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*map(work, range(clients)))
    took = time.perf_counter() - begun
    latencies.sort()
    p50, p99 = (latencies[len(latencies) * part // 100] * 1000 for part in (50, 99))
    print(f"  {name}: {made / took:6.0f} a second, p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)


def _one() -> Any:
    resources = [{"type": "servers", "committed": 1}]
    return {"spec": {"kind": "server", "id": str(uuid.uuid4()), "resources": resources}}


def _allocates(site: Site, several: int) -> Send:
    async def send(number: int) -> int:
        body = _one() if several == 1 else [_one() for _ in range(several)]
        async with site.sessions[number].post(f"{site.url}{PATH}", json=body) as answer:
            if answer.status == 201:
                return several
            if answer.status != 503:
                raise RuntimeError(await answer.text())
        return 0

    return send


def _echoes(site: Site, url: str) -> Send:
    async def send(number: int) -> int:
        async with site.sessions[number].post(url, json=_one(), ssl=False) as answer:
            await answer.read()
        return 1

    return send


@asynccontextmanager
async def _site() -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="seedquota-bench-") as directory:
        async with Installation(Path(directory), seeds=1, in_cluster=True, api=True) as installed:
            limits = {"servers": str(LIMIT)}
            subject = {"kind": "organization", "name": ORGANIZATION}
            catalogue = [{"name": "servers", "countFrom": "Allocations"}]
            await manifests.apply(
                installed.master,
                [
                    *manifests.load(CHARTS / "rbac" / "api-actors.yaml"),
                    named("QuotaSettings", "default", resources=catalogue),
                    named("Organization", ORGANIZATION),
                    named("Project", PROJECT, organization=ORGANIZATION),
                    named("ResourceQuota", "bench", subject=subject, quota=limits),
                    *(each for number in range(CLIENTS) for each in _user(f"bench-{number}")),
                ],
            )
            await installed.enforced("bench")
            async with installed.master.session() as admin:
                sessions = [await _session(admin, f"bench-{number}") for number in range(CLIENTS)]
            site = Site(installed.master, installed.api_url, sessions)
            await _ready(site)
            yield site
            for session in sessions:
                await session.close()


def _user(name: str) -> list[manifests.Manifest]:
    group = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "seedquota:quota-manager-service"},
            "subjects": [account],
        },
    ]


async def _session(admin: aiohttp.ClientSession, user: str) -> aiohttp.ClientSession:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/default/serviceaccounts/{user}/token"
    async with admin.post(path, json=request) as answer:
        token = (await answer.json())["status"]["token"]
    connector = aiohttp.TCPConnector(ssl=False)
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}, connector=connector)


async def _ready(site: Site) -> None:
    send = _allocates(site, 1)
    async with asyncio.timeout(60):
        while not await send(0):
            await asyncio.sleep(0.5)
