"""Allocations over HTTP, each durable in etcd and admitted by the webhook. Beside them: bare objects, a bare route."""

from __future__ import annotations

import asyncio
import json
import os
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
from devcluster.install import Installation
from devcluster.objects import API, CHARTS, named, namespace
from devcluster.observe import api_writes
from tests.bench.load import UID, Task, in_process
from tests.bench.serving import cpu_seconds, serving, tell

ORGANIZATION, PROJECT = "bench", "bench"
PATH = f"/api/v1/organizations/{ORGANIZATION}/projects/{PROJECT}/allocations"
CLIENTS = 64  # each a user of its own, since each user has a rate
ARRAY = 100
LIMIT = 10**9
TAKES_UP = 3.0  # seconds: an API server holds back creations of a type younger than 2 s

Send = Callable[[int], Awaitable[int]]
"""By a client's number: sends one request and returns how many allocations it made."""


@dataclass(frozen=True)
class Site:
    installed: Installation
    sessions: list[aiohttp.ClientSession]

    def cpu(self) -> list[float]:
        """Seconds of the API server, etcd, the master, the agent that admits, and the clients, which are here."""
        programs = self.installed.programs
        servers = self.installed.master, self.installed.etcd_of("seed-1"), programs["seedquota-master"]
        pids = *(server.pid for server in (*servers, programs["seedquota-seed-1"])), os.getpid()
        return [cpu_seconds(pid) for pid in pids]


async def allocations(seconds: float) -> None:
    print("allocations on one organization over HTTP, each durable in etcd and admitted by the webhook")
    print("                                             CPU us of each allocation                     API")
    print(
        "clients  in one   made/s   p50 ms   p99 ms   API server  etcd  master  agent  clients  writes",
        flush=True,
    )
    async with _site() as site:
        for clients in (1, 16, CLIENTS):
            await _line(site, clients, 1, seconds)
        await _line(site, 8, ARRAY, seconds)
        await _bare_objects(site, seconds)
        async with serving("echo", site.installed.master) as echo:
            url = f"https://127.0.0.1:{echo.port}/echo"
            load = await _load(CLIENTS, seconds, _echoes(site, url))
            print(f"{CLIENTS:>7} {load.line}  a bare aiohttp route")


async def _line(site: Site, clients: int, several: int, seconds: float) -> None:
    servers = [site.installed.master]
    before, written = site.cpu(), await api_writes(servers)
    load = await _load(clients, seconds, _allocates(site, several))
    made = max(load.made, 1)
    writes = sum((await api_writes(servers) - written).values()) / made
    spent = [(late - early) / made * 1e6 for early, late in zip(before, site.cpu(), strict=True)]
    print(
        f"{clients:>7} {several:>7} {load.line} {spent[0]:>12.0f} {spent[1]:>5.0f} {spent[2]:>7.0f} {spent[3]:>6.0f}"
        f" {spent[4]:>8.0f} {writes:>7.2f}",
        flush=True,
    )


async def _bare_objects(site: Site, seconds: float) -> None:
    """The same objects, created at an API server that asks no webhook and tells nobody."""
    [user_cluster] = site.installed.user_clusters.values()
    server, etcd = site.installed.cluster(user_cluster), site.installed.etcd_of("seed-1")
    crds = [crd for crd in manifests.load(CHARTS / "crds") if crd["metadata"]["name"] == "allocations.seedquota.io"]
    await manifests.apply(server, [*crds, namespace(f"org-{ORGANIZATION}")])
    await asyncio.sleep(TAKES_UP)
    annotations = {
        "seedquota.io/display-name": "unused",
        "seedquota.io/created-by": "bench",
        "seedquota.io/request": "0" * 16,
    }
    whose = {"organization": ORGANIZATION, "project": PROJECT}
    body = {
        "apiVersion": API,
        "kind": "Allocation",
        "metadata": {"name": UID.decode(), "annotations": annotations},
        "spec": {**whose, **_one()["spec"], "id": UID.decode()},
    }
    path = f"/apis/{API}/namespaces/org-{ORGANIZATION}/allocations"
    pids = server.pid, etcd.pid
    before = [cpu_seconds(pid) for pid in pids]
    result = await in_process(
        Task(
            targets=[(server.port, path)],
            ca=server.ca,
            body=json.dumps(body),
            clients=16,
            seconds=seconds,
            token=server.tokens["admin"],
        )
    )
    spent = [(cpu_seconds(pid) - early) / max(result.allowed, 1) * 1e6 for pid, early in zip(pids, before, strict=True)]
    rate = Load(result.allowed, result.seconds, result.p50_ms, result.p99_ms)
    print(f"{16:>7} {1:>7} {rate.line} {spent[0]:>12.0f} {spent[1]:>5.0f}  the same objects, without SeedQuota")
    tell(result)


@dataclass(frozen=True)
class Load:
    made: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def line(self) -> str:
        return f"{self.made / self.seconds:>8.0f} {self.p50_ms:>8.1f} {self.p99_ms:>8.1f}"


async def _load(clients: int, seconds: float, send: Send) -> Load:
    made, latencies = 0, []
    begun = time.perf_counter()
    end = begun + seconds

    async def work(number: int) -> None:
        nonlocal made
        while (started := time.perf_counter()) < end:
            count = await send(number)
            made += count
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*map(work, range(clients)))
    took = time.perf_counter() - begun
    latencies.sort()
    p50, p99 = (latencies[len(latencies) * part // 100] * 1000 for part in (50, 99))
    return Load(made, took, p50, p99)


def _one() -> Any:
    resources = [{"type": "servers", "committed": 1}]
    return {"spec": {"kind": "server", "id": str(uuid.uuid4()), "resources": resources}}


def _allocates(site: Site, several: int) -> Send:
    async def send(number: int) -> int:
        body = _one() if several == 1 else [_one() for _ in range(several)]
        async with site.sessions[number].post(f"{site.installed.api_url}{PATH}", json=body) as answer:
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
            try:
                site = Site(installed, sessions)
                await _ready(site)
                yield site
            finally:
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
