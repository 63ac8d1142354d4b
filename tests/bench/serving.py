"""Servers of `tests.bench.server`, each in a process of its own, and the load that is put on them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from common.api.labels import UID_LABEL
from devcluster import manifests
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.objects import namespace
from tests.bench import server
from tests.bench.load import Result, Task, in_process
from tests.bench.review import REVIEW

CRDS = Path(__file__).parents[2] / "charts" / "crds"
_WARMING = 1.0  # seconds: connections, caches, the API server's own


@dataclass(frozen=True)
class Served:
    """`paths`: one for each user cluster."""

    pid: int
    port: int
    ca: str
    paths: list[str]

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    @property
    def ca_bundle(self) -> str:
        """As a webhook configuration has it."""
        return base64.b64encode(self.ca.encode()).decode()


def cpu_seconds(pid: int) -> float:
    """In user and kernel: says more on a noisy machine than the clock does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def seed_api(clusters: int = 1) -> AsyncIterator[ApiServer]:
    """A seed's API server with one quota over so many user clusters; it is gone with the block."""
    async with ControlPlane() as plane:
        await plane.start(["seed"])
        api = plane.cluster("seed")
        await manifests.apply(api, [*manifests.load(CRDS), *_objects(clusters)])
        await asyncio.sleep(2.5)  # an API server holds back creations of a type younger than 2 s
        yield api


@asynccontextmanager
async def serving(kind: str, api: ApiServer, *, leads: bool = True, redis_url: str = "") -> AsyncIterator[Served]:
    """`kind` is admission, echo or allow. Of several replicas for one account, one leads; it must be the first."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.server",
        kind,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdin is not None and process.stdout is not None
    facts = server.Facts(kubeconfig=api.kubeconfig("admin"), leads=leads, redis_url=redis_url)
    process.stdin.write(facts.line())
    try:
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {kind} server did not start")
        yield Served(pid=process.pid, **json.loads(line))
    finally:
        process.stdin.close()
        await process.wait()


async def load(servers: Sequence[Served], clients: int, seconds: float) -> Result:
    """Clients spread over all servers and all user clusters."""
    return await in_process(
        Task(
            targets=[(served.port, path) for path in servers[0].paths for served in servers],
            ca=servers[0].ca,
            body=json.dumps(REVIEW),
            clients=clients,
            seconds=seconds,
        )
    )


async def warm(servers: Sequence[Served], clients: int) -> None:
    await load(servers, clients, _WARMING)


def tell(result: Result) -> None:
    if result.failed or result.denied:
        print(f"         {result.denied} denied, {result.failed} failed: not a figure of admissions alone", flush=True)
    if result.failure:
        print(f"         the first to fail was told: {result.failure}", flush=True)


def _objects(clusters: int) -> list[manifests.Manifest]:
    """One quota, and a project that it limits, with so many user clusters."""
    quota: manifests.Manifest = {
        "apiVersion": "seedquota.io/v1alpha1",
        "kind": "ResourceQuota",
        "metadata": {"name": "bench", "labels": {UID_LABEL: "00000000-0000-0000-0000-00000000be0c"}},
        "spec": {"subject": {"kind": "project", "name": "bench"}, "quota": {"cpu": "1G", "memory": "1Ei"}},
    }
    found = [namespace(server.NAMESPACE), quota]
    for number in range(clusters):
        own = f"bench-{number}"
        found += [
            namespace(own),
            {
                "apiVersion": "seedquota.io/v1alpha1",
                "kind": "UserCluster",
                "metadata": {"name": own, "namespace": own},
                "spec": {"project": "bench"},
            },
        ]
    return found
