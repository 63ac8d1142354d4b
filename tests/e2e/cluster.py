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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from devcluster import binaries, images, load, manifests
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.ingress import Controller
from devcluster.isolation import Machine
from devcluster.load import Size
from devcluster.node import Node
from devcluster.objects import CHARTS
from devcluster.processes import ProcessGroup
from tests.running import running

T = TypeVar("T")
Json = dict[str, Any]

NAMESPACE = "seedquota"
REPOSITORY, TAG = "seedquota.test/seedquota", "e2e"
# A machine that is busy with other things is no fault of what is tested: what hangs is still seen, later.
PATIENT = {"webhook__timeoutSeconds": 10, "inFlightWindow": "12s"}
IMAGE = {"image__repository": REPOSITORY, "image__tag": TAG}
PLENTY = "100000"
SMALL = Size("1", "1Gi", "1Gi")
_TRIES = 10  # client-go's
_TENANTS, _MACHINES, _PAUSE_SECONDS = 4, 4000, 0.1
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    status: int
    message: str
    retry_after: float = 0.0
    at: str = ""  # by the clock of the pods' logs

    @property
    def decided(self) -> bool:
        return self.status == 201 or (self.status == 403 and "exceeded quota" in self.message)


@dataclass
class Load:
    """Machines that were asked for, as client-go does it: again if the answer says when, and in no other case.

    An API server that does not reach the webhook answers without a time: that request is lost.
    """

    answers: list[Answer] = field(default_factory=list)
    repeated: int = 0

    async def ask(self, machines: Machines) -> None:
        for _ in range(_TRIES):
            answer = await machines.create()
            if answer.decided or not answer.retry_after:
                break
            self.repeated += 1
            await asyncio.sleep(answer.retry_after)
        self.answers.append(answer)

    def none_lost(self) -> str:
        lost = [answer for answer in self.answers if not answer.decided]
        assert lost == [], f"{len(lost)} of {len(self.answers)}: {lost[:3]}"
        assert len(self.answers) > 20
        return f"{len(self.answers)} requests, none lost, {self.repeated} asked again"


class Machines:
    """What tenants ask for in one namespace."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server = server
        self._path = f"/apis/cluster.k8s.io/v1alpha1/namespaces/{namespace}/machines"

    async def create(self, *, dry_run: bool = False) -> Answer:
        body = load.machine(f"machine-{next(_numbers)}", SMALL)
        path = f"{self._path}{'?dryRun=All' * dry_run}"
        async with self._server.session() as session, session.post(path, json=body) as answer:
            said = await answer.text()
            # An API server that has no time left answers with words.
            is_status = answer.content_type == "application/json"
            message = str(json.loads(said).get("message", "")) if is_status else said
            retry_after = float(answer.headers.get("Retry-After", 0))
            return Answer(answer.status, message, retry_after, datetime.now(UTC).isoformat())

    async def admitted(self) -> None:
        answer = await self.create()
        assert answer.status == 201, answer

    async def refused(self, *, dry_run: bool = False) -> Answer:
        answer = await self.create(dry_run=dry_run)
        assert answer.status == 403 and "exceeded quota" in answer.message, answer
        return answer

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[Load]:
        """Tenants ask for Machines while the block runs, and not for ever."""
        found = Load()

        async def tenant() -> None:
            for _ in range(_MACHINES // _TENANTS):
                await found.ask(self)
                await asyncio.sleep(_PAUSE_SECONDS)

        async with running(*(tenant() for _ in range(_TENANTS))):
            yield found


@runtime_checkable
class Explained(Protocol):
    async def explain(self) -> None: ...


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

    async def install(self, name: str, *, release: str = "", into: str = NAMESPACE, **given: object) -> None:
        """The chart seedquota-NAME; its release has the same name, unless another is given."""
        await self.helm("install", release or f"seedquota-{name}", chart(name), "-n", into, *values(**IMAGE, **given))

    async def everything(self) -> set[str]:
        """Each object of each kind that the API server lists, but for Events: its group, kind, namespace and name."""
        kinds = (await self.kubectl("api-resources", "--verbs=list", "-o", "name")).split()
        columns = "custom-columns=A:.apiVersion,K:.kind,S:.metadata.namespace,N:.metadata.name"
        asked = ",".join(kind for kind in kinds if not kind.startswith(("events", "componentstatuses")))
        lines = (await self.kubectl("get", asked, "-A", "--no-headers", "-o", columns)).splitlines()
        objects = (line.split() for line in lines)
        return {f"{version.partition('/')[0]} {kind} {space} {name}" for version, kind, space, name in objects}

    async def enforced(self, quota: str, seconds: float = 120) -> None:
        async def holds() -> None:
            found = await self.get(f"/apis/seedquota.io/v1alpha1/resourcequotas/{quota}")
            conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
            assert conditions.get("Enforced", {}).get("status") == "True", conditions
            assert conditions["Enforced"].get("observedGeneration") == found["metadata"]["generation"], conditions

        await until(holds, seconds)

    async def restart(self, deployment: str) -> None:
        await self.kubectl("-n", NAMESPACE, "rollout", "restart", f"deployment/{deployment}")
        await self.rolled_out(deployment)

    async def rolled_out(self, deployment: str, seconds: int = 300, *, into: str = NAMESPACE) -> None:
        await self.kubectl("-n", into, "rollout", "status", f"deployment/{deployment}", f"--timeout={seconds}s")

    @asynccontextmanager
    async def forwarded(self, to: str, port: int, remote: int) -> AsyncIterator[None]:
        """`kubectl port-forward` to what is in the namespace of the releases, while the block runs."""
        command = [str(self._programs["kubectl"]), "-n", NAMESPACE, "port-forward", to, f"{port}:{remote}"]
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        forwards = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
        try:
            assert forwards.stdout is not None and b"Forwarding from" in await forwards.stdout.readline()
            yield
        finally:
            forwards.terminate()
            await forwards.communicate()

    async def explain(self) -> None:
        """Prints what pods are and said."""
        parts = [await self.kubectl("get", "pods,events,endpointslices", "-A", "-o", "wide")]
        for log in sorted(self.node.logs.glob("*/*/*.log")):
            parts += [str(log), *(line[:400] for line in log.read_text(errors="replace").splitlines()[-20:])]
        print("\n".join(parts))

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


class Site:
    """Clusters that are started as they are needed; those with a node have the product's image."""

    def __init__(self, plane: ControlPlane, group: ProcessGroup, programs: Mapping[str, Path], image: Path) -> None:
        self.plane = plane
        self._group = group
        self._programs = programs
        self._image = image
        self.clusters: list[Cluster] = []

    async def cluster(self, name: str, machine: Machine, *, own_etcd: bool = False) -> Cluster:
        """With `own_etcd`, its etcd can be restored alone."""
        await self.plane.start([name], controllers=[name], own_etcd=[name] if own_etcd else (), machine=machine)
        server = self.plane.cluster(name)
        node = Node(machine, server, self.plane.directory / machine.name, self._group)
        await node.start()
        await node.load(self._image)
        self.clusters.append(Cluster(server, node, self.plane.directory / name, self._programs))
        return self.clusters[-1]

    async def serve_ingresses(self, cluster: Cluster, machine: Machine) -> None:
        directory = self.plane.directory / f"{machine.name}-ingress"
        await Controller(machine, cluster.server, directory, self._group).start()

    async def explain(self) -> None:
        for cluster in self.clusters:
            await cluster.explain()


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    programs = await binaries.ensure(["kubectl", "helm"])
    image = directory / "product.tar"
    await asyncio.to_thread(images.product, image, f"{REPOSITORY}:{TAG}")
    async with ControlPlane(directory) as plane:
        group = ProcessGroup()
        started = Site(plane, group, programs, image)
        try:
            yield started
        except BaseException:
            await started.explain()
            raise
        finally:
            await asyncio.to_thread(group.close)


def chart(name: str) -> str:
    return str(CHARTS / f"seedquota-{name}")


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
