"""A cluster with a real node, and what an admin does to it: kubectl, helm, and requests of tenants."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from devcluster import binaries, images, isolation, load, manifests
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.load import Size
from devcluster.manifests import MACHINE_CRDS
from devcluster.node import Node
from devcluster.processes import ProcessGroup

T = TypeVar("T")
Json = dict[str, Any]

NAMESPACE = "seedquota"
REPOSITORY, TAG = "seedquota.test/seedquota", "e2e"
SMALL = Size("1", "1Gi", "1Gi")
_numbers = itertools.count(1)


@dataclass
class Answer:
    status: int
    message: str


@dataclass
class Load:
    """Machines that were asked for again and again, each once."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def lost(self) -> list[Answer]:
        """Those that were not decided."""
        refused = [answer for answer in self.answers if answer.status == 403 and "exceeded quota" in answer.message]
        return [answer for answer in self.answers if answer.status != 201 and answer not in refused]


class Cluster:
    def __init__(self, server: ApiServer, node: Node, directory: Path, programs: Mapping[str, Path]) -> None:
        self.server = server
        self.node = node
        self._programs = programs
        self._directory = directory
        self._kubeconfig = directory / "admin.kubeconfig"
        self._kubeconfig.write_text(server.kubeconfig())

    async def kubectl(self, *arguments: str) -> str:
        return await self._run("kubectl", *arguments)

    async def helm(self, *arguments: str) -> str:
        return await self._run("helm", *arguments)

    async def apply(self, *objects: manifests.Manifest) -> None:
        await manifests.apply(self.server, objects)

    async def get(self, path: str) -> Json:
        async with self.server.session() as session, session.get(path) as answer:
            body: Json = await answer.json()
            assert answer.status == 200, body
            return body

    async def create_machine(self, namespace: str, *, dry_run: bool = False) -> Answer:
        path = f"/apis/cluster.k8s.io/v1alpha1/namespaces/{namespace}/machines{'?dryRun=All' * dry_run}"
        body = load.machine(f"machine-{next(_numbers)}", SMALL)
        async with self.server.session() as session, session.post(path, json=body) as answer:
            return Answer(answer.status, str((await answer.json()).get("message", "")))

    @asynccontextmanager
    async def under_load(self, namespace: str, *, pause: float = 0.1, at_most: int = 2000) -> AsyncIterator[Load]:
        """Two tenants ask for Machines while the block runs."""
        found = Load()

        async def tenant() -> None:
            for _ in range(at_most // 2):
                found.answers.append(await self.create_machine(namespace))
                await asyncio.sleep(pause)

        tenants = [asyncio.create_task(tenant()) for _ in range(2)]
        try:
            yield found
        finally:
            for task in tenants:
                task.cancel()
            await asyncio.gather(*tenants, return_exceptions=True)

    async def rolled_out(self, deployment: str, seconds: int = 120) -> None:
        await self.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{deployment}", f"--timeout={seconds}s")

    async def diagnosis(self) -> str:
        """What pods are and said."""
        parts = [await self.kubectl("get", "pods,events,endpointslices", "-A", "-o", "wide")]
        for log in sorted(self.node.logs.glob("*/*/*.log")):
            parts += [str(log), *(line[:400] for line in log.read_text(errors="replace").splitlines()[-20:])]
        return "\n".join(parts)

    async def _run(self, program: str, *arguments: str) -> str:
        environment = {
            **os.environ,
            "KUBECONFIG": str(self._kubeconfig),
            **{
                f"HELM_{kind}_HOME": str(self._directory / "helm" / kind.lower())
                for kind in ("CACHE", "CONFIG", "DATA")
            },
        }
        running = await asyncio.create_subprocess_exec(
            self._programs[program], *arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        said, problem = await running.communicate()
        assert running.returncode == 0, f"{program} {' '.join(arguments)}: {(problem or said).decode()[-2000:]}"
        return said.decode()


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    """With the Machine API and the product's image on its node."""
    programs = await binaries.ensure(["kubectl", "helm"])
    archive = directory / "product.tar"
    building = asyncio.create_task(asyncio.to_thread(images.product, archive, f"{REPOSITORY}:{TAG}"))
    async with ControlPlane(directory) as plane:
        await plane.start(["one"], controllers=["one"], nodes_reach=isolation.ADDRESS)
        group = ProcessGroup()
        try:
            node = Node(plane.cluster("one"), directory / "node", group)
            await node.start()
            await manifests.apply(plane.cluster("one"), manifests.load(MACHINE_CRDS))
            await building
            await node.load(archive)
            yield Cluster(plane.cluster("one"), node, directory, programs)
        finally:
            await asyncio.to_thread(group.close)


def restricted(name: str) -> Json:
    """A namespace that takes only pods of the strictest of the Pod Security Standards."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


async def until(check: Callable[[], Awaitable[T]], seconds: float) -> T:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


def values(**given: object) -> list[str]:
    """Flags of helm: dotted names with `__`."""
    return [f"--set-json={name.replace('__', '.')}={json.dumps(value)}" for name, value in given.items()]
