"""SeedQuota installed on real control planes: a master, seeds with a user cluster each, and the programs as processes.

Nothing here has more rights than in production: the programs act as users whose rights are `charts/rbac` alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from devcluster.balancer import Balancer
from devcluster.controlplane import REQUEST_TIMEOUT_SECONDS, ApiServer, ControlPlane
from devcluster.manifests import MACHINE_CRDS, Manifest, apply, load
from devcluster.network import Link, Traffic, free_port
from devcluster.objects import API, CHARTS, named, namespace, project, rights, secret
from devcluster.patience import Deadline
from devcluster.processes import ProcessGroup
from devcluster.servers import Etcd, Server
from seed.providers import PROVIDERS

NAMESPACE = "seedquota"
GROUP_PATH = f"/apis/{API}"
MASTER = "master"
MASTER_USER = "seedquota-master"
SEED_USER = "seedquota-seed"

IN_FLIGHT_WINDOW = REQUEST_TIMEOUT_SECONDS + 2.0  # by then an admitted Machine is stored or never will be
LEASE_SECONDS = 5  # what a killed agent is missed for before its successor leads
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.1  # four ask at a time, of servers that have much to do
_SUFFIXES = ("", "-b", "-c")
_COMMON = ("--log-format=json", "--drain-delay=0s", f"--namespace={NAMESPACE}")  # flags of all programs


NETWORKS = "SEEDQUOTA_USER_CLUSTER_NETWORKS", "127.0.0.0/8"
"""User clusters are on this machine, too. Releases that do not know the flag do not mind its variable."""

ENVIRONMENT = ("env", "=".join(NETWORKS))


class NotReadyError(Exception):
    """What should come about did not within its time. The message says what is missing."""


class Program(Server):
    """One process of seedquota-master or seedquota-seed. `start`, `stop`, `kill`, `pause` and `resume` it at will."""

    poll_seconds = 0.1

    def __init__(self, name: str, arguments: Sequence[str], directory: Path, group: ProcessGroup) -> None:
        self.health = f"http://127.0.0.1:{free_port()}"
        address = self.health.removeprefix("http://")
        self._started = [sys.executable, "-m", *arguments, f"--health-address={address}"]
        super().__init__(name, [*ENVIRONMENT, *self._started], directory, group)

    def run_from(self, source: Path | None) -> None:
        """From its next start on, the program is the one whose source is in that directory; None: this repository's."""
        chosen = [] if source is None else ["env", f"--chdir={source}", f"PYTHONPATH={source}"]
        self._command = [*ENVIRONMENT, *chosen, *self._started]

    async def _ready(self) -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.health}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


class Installation:
    """`async with Installation(directory) as installed:` and all of it runs; it is gone when the block ends.

    `seeds` names the seeds, `user_clusters` the user cluster of each, `programs` every process by name:
    seedquota-master, seedquota-seed-1, and with two replicas also seedquota-seed-1-b. Logs are in `directory`.
    The programs named in `resting` are not started. `in_flight_window` is in seconds. `organization` is the project's,
    if it has one. `seed_flags` gives more flags to the agents of a seed, `user_cluster_spec` more to each
    UserCluster. With `breakable`, the master's cluster and each seed have an etcd of their own, which can be restored
    from a snapshot, and `links`, the master's way to each seed, and `balancers`, that to its webhook, can be cut. With
    `in_cluster`, the first seed is the master's own cluster. With `master_seed`, there is one seed more, which is the
    master's own cluster and has no user cluster.
    With `api`, each replica of the master serves the HTTP API, at its one of `api_urls`, the first one at
    `api_url`. `audited` and `also_served` are for `ControlPlane`.
    `program` makes what runs the programs, if not processes are to do it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seeds: int = 2,
        replicas: int = 1,
        resting: Collection[str] = (),
        master_replicas: int = 1,
        project: str = "alpha",
        organization: str = "",
        in_flight_window: float = IN_FLIGHT_WINDOW,
        seed_flags: Mapping[str, Sequence[str]] = {},
        user_cluster_spec: Mapping[str, object] = {},
        breakable: bool = False,
        in_cluster: bool = False,
        master_seed: bool = False,
        api: bool = False,
        audited: bool = False,
        also_served: Collection[str] = (),
        program: Callable[[str, Sequence[str], Path, ProcessGroup], Program] = Program,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.directory = directory
        self._program = program
        self.project = project
        self.seeds = [f"seed-{number}" for number in range(1, seeds + 1)]
        self.user_clusters = {seed: seed.replace("seed", "user") for seed in self.seeds}
        if master_seed:
            self.seeds.append(f"seed-{seeds + 1}")
        self.programs: dict[str, Program] = {}
        self.links: dict[str, Link] = {}
        self._organization = organization
        self._replicas = replicas
        self._resting = resting
        self._master_replicas = master_replicas
        self._seed_flags = seed_flags
        self._user_cluster_spec = user_cluster_spec
        self._breakable = breakable
        self._in_cluster = self.seeds[-1] if master_seed else self.seeds[0] if in_cluster else None
        self.api_urls = [f"https://127.0.0.1:{free_port()}" for _ in range(master_replicas if api else 0)]
        self.api_url = self.api_urls[0] if api else ""
        self.in_flight_window = in_flight_window
        self._progress = progress
        self._plane = ControlPlane(directory, audited=audited)
        self._also_served = also_served
        self.balancers: dict[str, Balancer] = {}  # of webhooks: of several replicas, or to be cut off

    async def __aenter__(self) -> Self:
        await self._plane.__aenter__()
        self._group = ProcessGroup()
        try:
            await self._install()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def master(self) -> ApiServer:
        return self._plane.cluster(MASTER)

    def cluster(self, name: str) -> ApiServer:
        return self._plane.cluster(self._place(name))

    def clusters(self) -> list[ApiServer]:
        return [self._plane.cluster(name) for name in (MASTER, *self._remote_seeds(), *self.user_clusters.values())]

    def etcd_of(self, name: str) -> Etcd:
        return self._plane.etcd_of(self._place(name))

    def _place(self, name: str) -> str:
        return MASTER if name == self._in_cluster else name

    def _remote_seeds(self) -> list[str]:
        return [seed for seed in self.seeds if seed != self._in_cluster]

    async def kill_replicas(self, seed: str) -> list[Program]:
        """SIGKILL to every replica of the seed's agent. Returns them, to be started again."""
        killed = [program for name, program in self.programs.items() if name.startswith(f"seedquota-{seed}")]
        await asyncio.gather(*(program.kill() for program in killed))
        return killed

    def complaints(self) -> list[str]:
        """Every line above INFO in the programs' logs, and every line that is no log line."""
        logs = [program.log.read_text() for program in self.programs.values() if program.log.exists()]
        return [line for log in logs for line in log.splitlines() if '"level":"info"' not in line]

    async def add_user_cluster(self, name: str, seed: str, project: str) -> None:
        """One more user cluster on a seed, of a project that the master has. Returns when it is counted."""
        await self.start_user_cluster(name)
        await self.connect_user_cluster(name, seed, project)

    async def connect_user_cluster(self, name: str, seed: str, project: str) -> None:
        """The seed is told of one that runs already. Returns when it is counted."""
        await apply(self.cluster(seed), [namespace(project), *self._source(name, project)])
        await self._holds(self.cluster(seed), f"namespaces/{project}/userclusters/{name}", "Ready")

    async def start_user_cluster(self, name: str) -> None:
        """One more, which no seed has been told of."""
        await self._plane.start([name])
        await self._install_user_cluster(name)

    async def enforced(self, quota: str, seconds: float = _READY_SECONDS) -> None:
        """Waits until the quota is in force on every seed and every user cluster asks for each Machine."""
        await self._holds(self.master, f"resourcequotas/{quota}", "Enforced", seconds)
        await asyncio.gather(*(self._webhook_answers(name, seconds) for name in self.user_clusters.values()))

    async def _install(self) -> None:
        seeds = self._remote_seeds()
        names = [MASTER, *seeds, *self.user_clusters.values()]
        self._progress(f"starting {len(names)} API servers")
        own_etcd = [MASTER, *seeds] if self._breakable else ()
        await self._plane.start(names, own_etcd=own_etcd, also_served=self._also_served)
        if self._breakable:
            for seed in seeds:
                link = self.links[seed] = Link(free_port(), self._plane.cluster(seed).port)
                await link.set(Traffic.FORWARDED)
        self._progress("installing SeedQuota")
        crds = load(CHARTS / "crds")
        # What runs waits for what it reads: the programs start beside the rest, and /readyz tells.
        await asyncio.gather(
            self._install_master(crds),
            *(self._install_seed(seed, crds) for seed in self.seeds),
            *(self._install_user_cluster(name) for name in self.user_clusters.values()),
        )
        programs = self._all_programs()
        await asyncio.gather(*(program.start() for program in programs if program.name not in self._resting))
        await self._connected()

    async def collect_garbage(self) -> None:
        """From now on, what is owned goes with its owner in the master's cluster, and a namespace with its objects."""
        await self._plane.start([], controllers=[MASTER])

    async def prepare_master(self, name: str) -> Program:
        """Another cluster for the master: with definitions and roles, and no object of it. Its program, not started."""
        await self._plane.start([name], controllers=[name])
        roles = [*rights("master", MASTER_USER), *load(CHARTS / "rbac" / "master-policy.yaml")]
        await apply(self.cluster(name), [*load(CHARTS / "crds"), namespace(NAMESPACE), *roles])
        program = f"seedquota-{name}"
        self._add(program, ["master", self._kubeconfig(name, MASTER_USER), *_COMMON, f"--identity={program}"])
        return self.programs[program]

    async def _install_master(self, crds: Iterable[Manifest]) -> None:
        seeds = [
            manifest
            for seed in self._remote_seeds()
            for manifest in (
                secret(seed, NAMESPACE, self._way_to(seed)),
                named("Seed", seed, kubeconfigSecretRef={"name": seed}),
            )
        ]
        if self._in_cluster is not None:
            seeds.append(named("Seed", self._in_cluster, inCluster=True))
        projects = [project(self.project, self._organization)]
        if self._organization:
            projects.insert(0, named("Organization", self._organization))
        roles = [*rights("master", MASTER_USER), *load(CHARTS / "rbac" / "master-policy.yaml")]
        if self.api_url:
            given = load(CHARTS / "rbac" / "master-api.yaml")
            roles += [*rights("master-api", MASTER_USER), *(found for found in given if found["kind"] == "Secret")]
            roles += rights("master-client-ca", MASTER_USER, "kube-system")
        await apply(self.master, [*crds, namespace(NAMESPACE), *roles, *seeds, *projects])

    def _way_to(self, seed: str) -> str:
        """The kubeconfig by which the master reaches the seed."""
        port = self.links[seed].port if seed in self.links else None
        return self._plane.cluster(seed).kubeconfig(MASTER_USER, port=port)

    async def _install_seed(self, seed: str, crds: Iterable[Manifest]) -> None:
        await apply(
            self.cluster(seed),
            [
                *crds,
                namespace(NAMESPACE),
                namespace(self.project),
                *rights("seed", SEED_USER),
                *load(CHARTS / "rbac" / "seed-policy.yaml"),
                *rights("master-on-seed" if seed != self._in_cluster else "master-in-cluster", MASTER_USER),
                *(rights("seed-in-cluster", SEED_USER) if seed == self._in_cluster else ()),
                *(self._source(self.user_clusters[seed], self.project) if seed in self.user_clusters else ()),
            ],
        )

    def _source(self, user_cluster: str, project: str) -> list[Manifest]:
        return [
            *rights("seed-namespace", SEED_USER, project),
            secret(user_cluster, project, self._plane.cluster(user_cluster).kubeconfig(SEED_USER)),
            {
                "apiVersion": API,
                "kind": "UserCluster",
                "metadata": {"name": user_cluster, "namespace": project},
                "spec": {"project": project, "kubeconfigSecretRef": {"name": user_cluster}, **self._user_cluster_spec},
            },
        ]

    async def _install_user_cluster(self, name: str) -> None:
        may = [*rights("user-cluster", SEED_USER), *rights("user-cluster-namespaces", SEED_USER)]
        await apply(self._plane.cluster(name), [*load(MACHINE_CRDS), *may])

    def _all_programs(self) -> list[Program]:
        kubeconfig = self._kubeconfig(MASTER, MASTER_USER)
        for number, suffix in enumerate(_SUFFIXES[: self._master_replicas]):
            name = f"seedquota-master{suffix}"
            api = []
            if self.api_urls:
                address = self.api_urls[number].removeprefix("https://")
                history = self.directory / f"{name}.sqlite"
                api = [f"--api-address={address}", "--api-names=127.0.0.1", f"--history-file={history}"]
            self._add(name, ["master", kubeconfig, *_COMMON, f"--identity={name}", *api])
        for seed in self.seeds:
            ports = [free_port() for _ in range(self._replicas)]
            url = f"https://127.0.0.1:{ports[0]}"
            if self._replicas > 1 or self._breakable:
                balancer = self.balancers[seed] = Balancer(ports)
                url = f"https://127.0.0.1:{balancer.port}"
            for suffix, port in zip(_SUFFIXES, ports, strict=False):
                name = f"seedquota-{seed}{suffix}"
                arguments = [
                    "seed",
                    self._kubeconfig(seed, SEED_USER),
                    *_COMMON,
                    f"--seed-name={seed}",
                    f"--identity={name}",
                    f"--lease-duration={LEASE_SECONDS}",
                    f"--webhook-address=127.0.0.1:{port}",
                    f"--webhook-url={url}",
                    f"--in-flight-window={self.in_flight_window:g}s",
                    "--user-cluster-break-glass=on",
                    f"--providers={','.join(PROVIDERS)}",
                    *self._seed_flags.get(seed, ()),
                ]
                self._add(name, arguments)
        return list(self.programs.values())

    def _add(self, name: str, arguments: Sequence[str]) -> None:
        self.programs[name] = self._program(name, arguments, self.directory, self._group)

    def _kubeconfig(self, cluster: str, user: str) -> str:
        path = self.directory / self._place(cluster) / f"{user}.kubeconfig"
        path.write_text(self.cluster(cluster).kubeconfig(user))
        return f"--kubeconfig={path}"

    async def _connected(self) -> None:
        """Waits until the master has every seed and every user cluster is counted."""
        clusters = f"namespaces/{self.project}/userclusters"
        await asyncio.gather(
            *(self._holds(self.master, f"seeds/{seed}", "Connected") for seed in self.seeds),
            *(
                self._holds(self.cluster(seed), f"{clusters}/{name}", "Ready")
                for seed, name in self.user_clusters.items()
            ),
        )

    async def _holds(self, server: ApiServer, path: str, kind: str, seconds: float = _READY_SECONDS) -> None:
        async with server.session() as session:
            missing = partial(_condition, session, f"{GROUP_PATH}/{path}", kind)
            await self._until(f"{path} on {server.name} is {kind}", missing, seconds)

    async def _webhook_answers(self, name: str, seconds: float) -> None:
        """A Machine that cannot be sized is refused as soon as the API server asks and somebody answers."""
        probe = {
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": "Machine",
            "metadata": {"generateName": "probe-"},
            "spec": {"providerSpec": {"value": {"cloudProvider": "no-such-cloud"}}},
        }
        path = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines?dryRun=All"

        async def missing() -> str:
            async with session.post(path, json=probe) as answer:
                return "" if answer.status == 422 else f"{answer.status}: {(await answer.text())[:300]}"

        async with self._plane.cluster(name).session() as session:
            await self._until(f"the webhook answers {name}", missing, seconds)

    async def _until(self, what: str, missing: Callable[[], Awaitable[str]], seconds: float = _READY_SECONDS) -> None:
        deadline = Deadline(seconds)
        while why := await missing():
            if deadline.passed():
                raise NotReadyError(f"after {seconds:g} s not yet: {what} ({why}); logs are in {self.directory}")
            await asyncio.sleep(_POLL_SECONDS)

    async def _close(self) -> None:
        for balancer in self.balancers.values():
            await balancer.close()
        for link in self.links.values():
            await link.close()
        await asyncio.to_thread(self._group.close)
        await self._plane.__aexit__(None, None, None)


async def _condition(session: aiohttp.ClientSession, path: str, kind: str) -> str:
    """Why the object's condition is not True; empty if it is."""
    async with session.get(path) as answer:
        body = await answer.json()
    if answer.status != 200:
        return str(body.get("message"))
    conditions = body.get("status", {}).get("conditions", ())
    for condition in conditions:
        if condition["type"] == kind:
            if condition.get("observedGeneration", body["metadata"]["generation"]) != body["metadata"]["generation"]:
                return f"{kind} of an older generation"
            return "" if condition["status"] == "True" else f"{condition['reason']}: {condition['message']}"
    return f"no condition {kind} yet"
