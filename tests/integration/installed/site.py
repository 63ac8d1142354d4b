"""What the bad days share: one installation, ways to break its parts, and ways to see what becomes of that."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from common.quota import resources
from devcluster import install, load, manifests
from devcluster.install import GROUP_PATH, NAMESPACE, Installation
from devcluster.load import Size, Tenant, machine
from devcluster.objects import API
from devcluster.observe import Overshoot, QuotaView, quota_on
from devcluster.patience import Deadline
from seed.accounts.capacity import FRESH
from tests.integration.installed.declared import Declared, delete
from tests.running import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from devcluster.controlplane import ApiServer
    from devcluster.servers import Server

T = TypeVar("T")
Json = dict[str, Any]

PROJECT = "alpha"
QUOTA = "project-alpha"
SMALL = Size("1", "1Gi", "1Gi")
WINDOW = 5.0  # seconds, the agents' in-flight window
MACHINES = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines"
LEDGERS = f"{GROUP_PATH}/namespaces/{NAMESPACE}/quotaledgers"
CLUSTERS = f"namespaces/{PROJECT}/userclusters"
BREAK_GLASS = {"Impersonate-User": "ann", "Impersonate-Group": "seedquota:break-glass"}

_FIRST_PAUSE, _LONGEST_PAUSE = 0.03, 0.25  # between looks: soon is seen soon, and a long wait costs the servers little
_LATE_AT_MOST = 3  # times in a row that no webhook answers in time: more is no busy machine
_UNDECIDED_SECONDS = 60.0
_KEPT_SECONDS = 60.0  # by then nothing is reserved any more for what was answered late
_POLICIES_SECONDS = 90.0
_numbers = itertools.count(1)


async def until(
    check: Callable[[], Awaitable[T]],
    seconds: float,
    *,
    first_pause: float = _FIRST_PAUSE,
    longest_pause: float = _LONGEST_PAUSE,
) -> T:
    """What the check returns as soon as it does not fail; its last failure when the time is up."""
    deadline = Deadline(seconds)
    pause = first_pause
    while True:
        try:
            return await check()
        except (AssertionError, LookupError, aiohttp.ClientError, TimeoutError):
            if deadline.passed():
                raise
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, longest_pause)


def cpus(count: int) -> dict[str, str]:
    return {"cpu": str(count)}


class Answer:
    """An API server's answer to one request."""

    def __init__(self, status: int, body: Json, warnings: list[str]) -> None:
        self.status = status
        self.body = body
        self.warnings = warnings

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def is_late(self) -> bool:
        """An API server waited for a webhook for as long as it does, and stored nothing: the machine may be busy."""
        return self.status == 500 and "context deadline exceeded" in self.message

    @property
    def is_too_early(self) -> bool:
        """An API server finds the definitions that its policies refer to some time after they were made."""
        return self.status == 422 and "failed to find resource referenced by paramKind" in self.message

    @property
    def causes(self) -> list[Json]:
        return list(self.body.get("details", {}).get("causes", ()))

    def __repr__(self) -> str:
        return f"{self.status} {self.message}"


class Site:
    def __init__(self, installed: Installation) -> None:
        self.installed = installed
        self.down: set[Server] = set()
        self.said_at_the_start: list[Json] = []
        self._refused_at = 0.0
        self._declared: Declared | None = None
        self.late = 0  # answers that an API server did not wait for, and that were asked for again
        self._late_at = float("-inf")
        self._sessions = {server.name: server.session() for server in installed.clusters()}
        self._sessions |= {seed: self._sessions[installed.cluster(seed).name] for seed in installed.seeds}
        self.tenants = [Tenant(installed.cluster(name)) for name in installed.user_clusters.values()]
        self.one, self.two = self.tenants[0], self.tenants[-1]

    async def close(self) -> None:
        for session in set(self._sessions.values()):
            await session.close()
        for tenant in self.tenants:
            await tenant.__aexit__(None, None, None)

    def add(self, server: ApiServer) -> None:
        """One that is no part of the installation."""
        self._sessions[server.name] = server.session()

    # Breaking and mending -------------------------------------------------------------------------------------

    def server(self, name: str) -> ApiServer:
        return self.installed.cluster(name)

    def session(self, name: str) -> aiohttp.ClientSession:
        return self._sessions[name]

    def program(self, name: str) -> install.Program:
        return self.installed.programs[f"seedquota-{name}"]

    async def kill(self, *servers: Server) -> None:
        self.down.update(servers)
        await asyncio.gather(*(server.kill() for server in servers))

    async def stop(self, *servers: Server) -> None:
        self.down.update(servers)
        await asyncio.gather(*(server.stop() for server in servers))

    async def start(self, *servers: Server) -> None:
        async def one(server: Server) -> None:
            await server.start()
            self.down.discard(server)

        await asyncio.gather(*map(one, servers))

    @asynccontextmanager
    async def patient(self, *names: str) -> AsyncIterator[None]:
        """These agents run with a lease that would expire after 60 s. The API servers of their seeds wait long for the
        webhook, so that what they do not reach is lost, and what a busy machine answers late is not."""
        programs = [self.program(name) for name in names]
        commands = {program: program._command for program in programs}
        ran = [program for program in programs if program not in self.down]
        await self.stop(*ran)
        for program, command in commands.items():
            program._command = [*command, "--lease-duration=60", "--webhook-timeout=20", "--in-flight-window=20s"]
        try:
            await self.start(*programs)
            yield
        finally:
            await self.stop(*programs)
            for program, command in commands.items():
                program._command = command
            await self.start(*ran)

    async def start_all(self) -> None:
        """Whatever a test took down. Second replicas rest."""
        resting = [program for name, program in self.installed.programs.items() if name.endswith("-b")]
        await self.start(*(server for server in self.down if server not in resting))

    # Asking ---------------------------------------------------------------------------------------------------

    async def call(
        self,
        cluster: str,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        **parameters: str,
    ) -> Answer:
        """`path` is absolute, or below our API group."""
        path = path if path.startswith("/") else f"{GROUP_PATH}/{path}"
        sent = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        sent.update(headers or {})
        late, deadline = 0, time.monotonic() + _POLICIES_SECONDS
        while True:
            async with self._sessions[cluster].request(
                method, path, json=body, headers=sent, params=parameters
            ) as answer:
                found = Answer(answer.status, await answer.json(), answer.headers.getall("Warning", []))
            if found.is_late:
                self.late += 1
                self._late_at = time.monotonic()
                late += 1
                if late < _LATE_AT_MOST:
                    continue
            if not found.is_too_early or time.monotonic() > deadline:
                return found
            await asyncio.sleep(_LONGEST_PAUSE)

    async def get(self, cluster: str, path: str) -> Json:
        answer = await self.call(cluster, "GET", path)
        assert answer.status == 200, f"{cluster} {path}: {answer}"
        return answer.body

    async def items(self, cluster: str, path: str) -> list[Json]:
        return list((await self.get(cluster, path))["items"])

    async def patch(self, cluster: str, path: str, patch: Json) -> Json:
        answer = await self.call(cluster, "PATCH", path, patch)
        assert answer.status == 200, answer
        return answer.body

    async def delete(self, cluster: str, path: str) -> None:
        answer = await self.call(cluster, "DELETE", path)
        assert answer.status in (200, 202, 404), answer

    async def create(self, cluster: str, size: Size = SMALL, **parameters: str) -> Answer:
        """One Machine, tried once."""
        return await self.call(cluster, "POST", MACHINES, machine(f"single-{next(_numbers)}", size), **parameters)

    async def asked(self, cluster: str, size: Size = SMALL, **parameters: str) -> Answer:
        """One Machine, until somebody decides."""
        return await self.decided(cluster, machine(f"single-{next(_numbers)}", size), **parameters)

    async def decided(self, cluster: str, body: object, **parameters: str) -> Answer:
        """A Machine, until somebody decides."""
        return await self.decision(cluster, "POST", MACHINES, body, **parameters)

    async def decision(self, cluster: str, method: str, path: str, body: object = None, **parameters: str) -> Answer:
        """As `call`, again while nobody can decide, as a client does: on a busy machine that may take seconds."""
        deadline = Deadline(_UNDECIDED_SECONDS)
        while (answer := await self.call(cluster, method, path, body, **parameters)).status == 503:
            if deadline.passed():
                break
            await asyncio.sleep(_LONGEST_PAUSE)
        return answer

    async def that_fits(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer to what there is room for. It is asked for again where an API server did not wait for an answer
        lately: what that one has reserved is kept for a while, though nothing came of it."""
        while (answer := await ask()).status == 403 and time.monotonic() < self._late_at + _KEPT_SECONDS:
            await asyncio.sleep(_LONGEST_PAUSE)
        return answer

    async def admitted(self, cluster: str, count: int = 1, size: Size = SMALL) -> list[str]:
        """So many Machines, which must all be admitted. Their names.

        An answer of the master may refuse others for a moment (protocol.md, 3), although another seed has since
        freed what it said was used.
        """
        await asyncio.sleep(self._refused_at + FRESH - time.monotonic())
        names = []
        for _ in range(count):
            answer = await self.that_fits(partial(self.asked, cluster, size))
            assert answer.status == 201, answer
            names.append(str(answer.body["metadata"]["name"]))
        return names

    async def refused(self, cluster: str, size: Size = SMALL) -> Answer:
        """A Machine that must be refused for good, with numbers that add up."""
        answer = await self.asked(cluster, size)
        assert answer.status == 403, answer
        refusal = load.parse_refusal(answer.message)
        assert refusal is not None and refusal.adds_up, answer
        self._refused_at = time.monotonic()
        return answer

    # Our objects ----------------------------------------------------------------------------------------------

    async def apply(self, cluster: str, *objects: manifests.Manifest) -> None:
        await manifests.apply(self.server(cluster), objects)

    async def quota(
        self, quota: Mapping[str, str], name: str = QUOTA, *, kind: str = "project", subject: str = PROJECT
    ) -> None:
        """Applies a quota; returns when it is in force everywhere."""
        await self.apply("master", quota_manifest(quota, name, kind=kind, subject=subject))
        await self.installed.enforced(name, 60)

    async def project(self, **spec: str) -> None:
        """Makes the project again, since what it belongs to cannot change. Returns when every seed has the new one."""
        await self.delete("master", f"projects/{PROJECT}")
        await self.apply("master", named("Project", PROJECT, **spec))

        async def everywhere() -> None:
            for seed in self.installed.seeds:
                assert (await self.get(seed, f"projects/{PROJECT}")).get("spec", {}) == spec

        await until(everywhere, 30)

    async def view(self, name: str = QUOTA, cluster: str = "master") -> QuotaView:
        return await quota_on(self.server(cluster), name)

    async def condition(self, cluster: str, path: str, kind: str) -> tuple[str, str, str]:
        """Its status, reason and message; empty ones where there is none yet."""
        status = (await self.get(cluster, path)).get("status", {})
        for found in status.get("conditions", ()):
            if found["type"] == kind:
                return found["status"], found["reason"], found["message"]
        return "", "", ""

    async def comes(
        self, cluster: str, path: str, kind: str, status: str, reason: str = "", *texts: str, seconds: float = 30
    ) -> str:
        """Waits for a condition with this status and reason, whose message has all the texts. The message."""

        async def holds() -> str:
            found = await self.condition(cluster, path, kind)
            assert found[0] == status, f"{cluster} {path} {kind}: {found}"
            assert reason in ("", found[1]), f"{cluster} {path} {kind}: {found}"
            assert all(text in found[2] for text in texts), f"{cluster} {path} {kind}: {found}"
            return found[2]

        return await until(holds, seconds)

    async def uses(self, used: Mapping[str, str], name: str = QUOTA, *, seconds: float = 30) -> QuotaView:
        """Waits until the quota's globalUsage says so and nothing is reserved any more."""
        wanted = resources.parse(used)

        async def holds() -> QuotaView:
            view = await self.view(name)
            assert resources.only(view.used, wanted) == wanted, view.used
            assert not view.reserved, view.reserved
            return view

        return await until(holds, seconds)

    async def ledger(self, cluster: str, name: str = QUOTA) -> Json:
        kind = "grants" if cluster == "master" else "account"
        ledgers = await self.items(cluster, LEDGERS)
        found = [ledger for ledger in ledgers if ledger["quota"]["name"] == name and kind in ledger]
        assert len(found) == 1, f"{len(found)} ledgers of {name} on {cluster}"
        return found[0]

    async def reserves_nothing(self, *seeds: str, name: str = QUOTA, seconds: float = 30) -> None:
        """Waits until no account holds a reservation."""

        async def holds() -> None:
            for seed in seeds:
                account = (await self.ledger(seed, name))["account"]
                assert not account.get("reservations"), f"{seed}: {account['reservations']}"
                assert not account.get("reserved"), f"{seed}: {account['reserved']}"

        await until(holds, seconds)

    async def settled(self, seconds: float = 60) -> None:
        """Waits until every seed and every user cluster is as it should be."""

        async def holds() -> None:
            for path, cluster in (
                *((f"seeds/{seed}", "master") for seed in self.installed.seeds),
                *((f"{CLUSTERS}/{name}", seed) for seed, name in self.installed.user_clusters.items()),
            ):
                for found in (await self.get(cluster, path))["status"]["conditions"]:
                    assert found["status"] == "True", f"{cluster} {path}: {found}"

        await until(holds, seconds)

    async def ready(self, seconds: float = 60) -> None:
        """Waits until every program that runs says so: a replica that was cut off refuses until it knows what is
        new."""

        async def holds() -> None:
            async with aiohttp.ClientSession() as session:
                for name, program in self.installed.programs.items():
                    with suppress(aiohttp.ClientConnectorError):  # other tests have stopped some
                        async with session.get(f"{program.health}/readyz") as answer:
                            assert answer.status == 200, f"{name}: {await answer.text()}"

        await until(holds, seconds)

    @asynccontextmanager
    async def no_overshoot(self, limit: Mapping[str, str]) -> AsyncIterator[Overshoot]:
        """Counts the Machines again and again while the block runs: there must never be too many."""
        overshoot = Overshoot(self.tenants, SMALL)
        await overshoot.limit(resources.parse(limit))
        async with running(overshoot.watch()):
            yield overshoot
        await overshoot.look()
        assert overshoot.worst == {}

    @asynccontextmanager
    async def emptied(self) -> AsyncIterator[Site]:
        """For one test. Afterwards all works again and is empty, and no program failed in a way it does not expect."""
        before = self.positions()
        yield self
        await self.clean()
        failures = [line for line in self.said(before) if line["level"] not in ("debug", "info", "warning")]
        assert failures == [], failures

    # Cleaning up, and what the programs said ------------------------------------------------------------------

    def positions(self) -> dict[str, int]:
        return {name: program.log.stat().st_size for name, program in self._logs()}

    def said(self, since: Mapping[str, int]) -> list[Json]:
        """What all programs logged since. Anything that is not one of their own lines has the level `raw`."""
        lines: list[Json] = []
        for name, program in self._logs():
            with program.log.open("rb") as log:
                log.seek(since.get(name, 0))
                for line in log.read().decode(errors="replace").splitlines():
                    try:
                        lines.append({"program": name, **json.loads(line)})
                    except ValueError:
                        lines.append({"program": name, "level": "raw", "message": line})
        return lines

    def _logs(self) -> Iterable[tuple[str, install.Program]]:
        return [(name, program) for name, program in self.installed.programs.items() if program.log.exists()]

    async def remember(self) -> None:
        """What is declared now, `clean` puts back."""
        self._declared = await Declared.in_(self)

    async def clean(self) -> None:
        """All that was broken works again, no quota and no Machine is left, and nothing of them."""
        await self.start_all()
        if self._declared is not None:
            await until(self._declared.put_back, 60)
        await until(self._delete_everything, 60)
        await self.settled()

        async def holds() -> None:
            ledgers = await self.items("master", LEDGERS)  # of a seed that is in the master's cluster as well
            left = [(found["metadata"]["name"], found["quota"]["name"]) for found in ledgers if "grants" in found]
            assert left == []
            for cluster in self.installed.seeds:
                assert await self.items(cluster, "resourcequotas") == [], cluster
            for seed, name in self.installed.user_clusters.items():
                assert (await self.get(seed, f"{CLUSTERS}/{name}"))["status"]["machines"] == 0

        await until(holds, 60)

    async def _delete_everything(self) -> None:
        for allocation in await self.items("master", "resourcequotaallocations"):
            await self.delete("master", f"resourcequotaallocations/{allocation['metadata']['name']}")
        for quota in await self.items("master", "resourcequotas"):
            await self.delete("master", f"resourcequotas/{quota['metadata']['name']}")
        for tenant in self.tenants:
            for found in await self.items(tenant.name, MACHINES):
                await delete(self, tenant.name, f"{MACHINES}/{found['metadata']['name']}", found)

    async def left_nothing(self) -> None:
        """Waits until the seeds have dropped the ledgers of all quotas that are gone."""

        async def holds() -> None:
            for seed in self.installed.seeds:
                assert await self.items(seed, LEDGERS) == [], seed

        await until(holds, 60)


def quota_manifest(
    quota: Mapping[str, str], name: str = QUOTA, *, kind: str = "project", subject: str = PROJECT
) -> manifests.Manifest:
    return {
        "apiVersion": API,
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": {"subject": {"kind": kind, "name": subject}, "quota": dict(quota)},
    }


def named(kind: str, name: str, **spec: object) -> manifests.Manifest:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
