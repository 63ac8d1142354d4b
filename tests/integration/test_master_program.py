"""seedquota-master on real API servers; the seeds' programs are played by the test through the same API."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from cli.__main__ import run as seedquota
from cli.seeds.rights import ACCOUNT as ON_SEED
from cli.seeds.rights import KINDS as RIGHTS
from cli.seeds.rights import objects as rights_on_seed
from common.api.cluster_identity import KUBE_SYSTEM, NAMESPACES
from common.api.convert import grant_from_wire, ledger_from_wire, report_to_wire
from common.api.core import SECRETS
from common.api.labels import LEDGER_ANNOTATION, MANAGED_BY_LABEL, MASTER_ANNOTATION, SEED_MANAGER, UID_LABEL
from common.api.ledger_types import MASTER_LEDGERS
from common.api.types import ACCEPT_CLUSTER_ANNOTATION, RESOURCE_QUOTAS, SEED_COPIES, SEEDS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, NotFound, Unauthorized, Unavailable
from common.kube.client.service_account import LIFE, read, request_token
from common.kube.controller.leader_election import LEASES, MICRO_TIME, Lease
from common.kube.controller.reflector import Reflector
from common.quota import account as accounts
from common.quota import escrow, fencing, resources
from common.quota.account import Account
from common.runtime import waiting
from common.runtime.metrics import build_version
from devcluster import manifests
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.network import free_port
from devcluster.objects import rights
from devcluster.patience import Deadline, is_busy, patient_timeout
from devcluster.processes import ProcessGroup
from master.cache.objects import MASTER_QUOTAS, PROJECTS, QUOTA_COPIES, QUOTA_SETTINGS, MasterQuota, QuotaCopy
from master.manager import LEASE, Master
from master.quotas import controller, publish_delay
from master.quotas.ledger_store import Ledgers, ledger_name
from master.seeds import kubeconfig_secret
from master.seeds import link as seed_link
from seed.registration.configuration import WEBHOOK_CONFIGURATIONS
from tests.unit.fake_api_server import within

pytestmark = pytest.mark.integration

CHARTS = Path(__file__).parents[2] / "charts"
NAMESPACE = "seedquota"
NOWHERE = "https://127.0.0.1:9"
USER = "seedquota-master"
EPOCH = 1
AGES_EVERY = 120.0  # seconds: what is not answered at once is looked at again after four fifths of that, or later
FIRST_PAUSE, LONGEST_PAUSE = 0.03, 0.25  # seconds between looks
AGES_AGO = {"lastTransitionTime": "2026-01-01T00:00:00Z"}


class World:
    """The servers, an admin's client for each, and the master's program while it runs."""

    prefix = "mp"  # of the servers' names, on a control plane that other files have, too

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.admin: dict[str, Cluster] = {}
        self.requests: list[tuple[str, str]] = []
        self._running: list[tuple[asyncio.Task[None], Cluster]] = []

    def server(self, name: str) -> ApiServer:
        return self.plane.cluster(f"{self.prefix}-{name}")

    @property
    def master(self) -> Cluster:
        return self.admin["master"]

    async def add_server(self, name: str) -> None:
        await self.plane.start([f"{self.prefix}-{name}"])
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        file = "master" if name == "master" else "master-on-seed"
        crds = manifests.load(CHARTS / "crds")
        await manifests.apply(self.server(name), [*crds, namespace, *rights(file, USER)])
        self.admin[name] = await Cluster.from_kubeconfig(self.server(name).kubeconfig(), name=name)

    async def add_secret(self, name: str, kubeconfig: str) -> None:
        data = {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}
        await self.master.apply(
            SECRETS, {"metadata": {"name": name, "namespace": NAMESPACE}, "data": data}, manager="test"
        )

    async def add_seed(self, name: str, *, server: str | None = None, state: str = "Active") -> None:
        if server is not None:
            await self.add_secret(name, self.server(server).kubeconfig(USER))
        spec: dict[str, object] = {"kubeconfigSecretRef": {"name": name}, "state": state}
        if state == "Lost":
            spec["confirmLost"] = "its machines are gone"
        await self.master.apply(SEEDS, {"metadata": {"name": name}, "spec": spec}, manager="test")

    async def start_master(self, connection: type[Cluster] = Cluster, *, duration: int = 15) -> Master:
        """`duration`: in seconds, of its lease."""
        cluster = await connection.from_kubeconfig(
            self.server("master").kubeconfig(USER),
            name="master",
            on_request=lambda verb, plural, _status, _seconds: self.requests.append((verb, plural)),
        )
        identity = secrets.token_hex(4)
        lease = Lease(cluster, NAMESPACE, LEASE, identity, duration=duration, renew_deadline=duration * 2 / 3)
        master = Master(cluster, NAMESPACE, identity, lease=lease)
        self._running.append((asyncio.create_task(master.run()), cluster))
        return master

    async def stop_master(self, most: int | None = None) -> None:
        """All of them, or the first so many."""
        running, self._running = self._running[:most], [] if most is None else self._running[most:]
        for task, cluster in running:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cluster.close()

    async def quota(self, name: str) -> MasterQuota:
        return await self.master.get(MASTER_QUOTAS, name)

    async def copy(self, seed: str, name: str) -> QuotaCopy:
        return await self.admin[seed].get(QUOTA_COPIES, name)

    async def cluster_uid(self, server: str) -> str:
        return (await self.admin[server].get(NAMESPACES, KUBE_SYSTEM)).metadata.uid

    async def ledger(self, name: str) -> escrow.MasterLedger:
        found = await self.master.get(MASTER_LEDGERS, ledger_name((await self.quota(name)).metadata.uid), NAMESPACE)
        assert found.grants is not None
        return ledger_from_wire(found.grants)

    async def apply_quota(self, name: str, project: str = "", **limits: str) -> MasterQuota:
        spec = {"subject": {"kind": "project", "name": project or name}, "quota": limits}
        return await self.master.apply(MASTER_QUOTAS, {"metadata": {"name": name}, "spec": spec}, manager="test")

    async def clean(self) -> None:
        await self.stop_master()
        for cluster in self.admin.values():
            for resource in (SEEDS, QUOTA_SETTINGS, MASTER_QUOTAS, PROJECTS):
                for found in (await cluster.list(resource)).items:
                    await cluster.delete(resource, found.metadata.name)
            for ledger in (await cluster.list(MASTER_LEDGERS, NAMESPACE)).items:
                await cluster.delete(MASTER_LEDGERS, ledger.metadata.name, NAMESPACE)
        for secret in (await self.master.list(SECRETS, NAMESPACE)).items:
            await self.master.delete(SECRETS, secret.metadata.name, NAMESPACE)


@pytest_asyncio.fixture(scope="module")
async def servers(control_plane: ControlPlane) -> AsyncIterator[World]:
    world = World(control_plane)
    await asyncio.gather(*(world.add_server(name) for name in ("master", "eu-1", "us-1")))
    yield world
    for cluster in world.admin.values():
        await cluster.close()
    for name in ("master", "eu-1", "us-1"):
        await world.server(name).kill()


@pytest_asyncio.fixture
async def world(servers: World) -> AsyncIterator[World]:
    yield servers
    await servers.clean()


async def until(condition: Callable[[], Awaitable[object]], timeout: float = 30.0) -> None:
    """Until the condition holds; its last value or error is in the failure."""
    last: object = None
    pause = FIRST_PAUSE
    deadline = Deadline(timeout)
    while not deadline.passed():
        try:
            last = await condition()
        except NotFound as error:
            last = error
        else:
            if last:
                return
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, LONGEST_PAUSE)
    raise AssertionError(f"not within {timeout} s; last: {last!r}")


def condition(status: object, kind: str) -> tuple[str, str, str]:
    conditions = msgspec.to_builtins(status).get("conditions", [])
    for found in conditions:
        if found["type"] == kind:
            return found["status"], found["reason"], found.get("message", "")
    return "", "", ""


class FakeSeed:
    """A seed's leader: keeps an account by the pure functions, reads the copy, publishes reports, gives back."""

    def __init__(self, world: World, seed: str, quota: str) -> None:
        self.cluster = world.admin[seed]
        self.quota = quota
        self.account = fencing.fence(Account(incarnation=secrets.token_hex(4), epoch=EPOCH), secrets.token_hex(4))
        self.obeys = True
        self.knows: int | None = None  # the generation of the copy that it says all replicas have
        self._changed = asyncio.Event()
        self._copies = Reflector(self.cluster, QUOTA_COPIES, on_change=lambda _change: self._changed.set())
        self._task = asyncio.create_task(waiting.first_of(self._copies.run(), self._run()))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def publish(self) -> None:
        self.account = msgspec.structs.replace(self.account, sequence=self.account.sequence + 1)
        said = msgspec.structs.replace(report_to_wire(escrow.report(self.account)), enforced_generation=self.knows)
        status = {"account": said}
        with suppress(NotFound):
            await self.cluster.apply(
                RESOURCE_QUOTAS, {"metadata": {"name": self.quota}, "status": status}, SEED_MANAGER, "status"
            )

    async def use(self, **amounts: str) -> None:
        self.account = accounts.count(self.account, EPOCH, "c1", resources.parse(amounts), {})
        await self.publish()

    async def ask(self, **amounts: str) -> int:
        need = resources.parse(amounts)
        self.account = accounts.ask(self.account, need, need, need, self.account.ask.number)
        await self.publish()
        return self.account.ask.number

    async def _run(self) -> None:
        await self.publish()
        while True:
            await waiting.within(self._changed, LONGEST_PAUSE)  # `obeys` may have changed, too
            self._changed.clear()
            copy = self._copies.store.get(self.quota)
            if copy is None:
                continue
            grant = grant_from_wire(copy.status.grant)
            before = self.account
            if not copy.status.account.incarnation:
                await self.publish()
            if fencing.answers(before, grant):
                self.account = fencing.reopen(before, EPOCH, grant)
            elif fencing.needs_fence(before, grant):
                self.account = fencing.fence(before, secrets.token_hex(4))
            else:
                self.account = accounts.receive(before, grant)
                if self.obeys:
                    self.account = accounts.give_back(self.account, grant.recall)
            if self.account != before:
                await self.publish()


@asynccontextmanager
async def fake_seeds(world: World, quota: str, *names: str) -> AsyncIterator[list[FakeSeed]]:
    seeds = [FakeSeed(world, name, quota) for name in names]
    try:
        await until(lambda: _true(all(not seed.account.fenced for seed in seeds)))
        yield seeds
    finally:
        for seed in seeds:
            await seed.stop()


@asynccontextmanager
async def two_seeds(world: World) -> AsyncIterator[list[FakeSeed]]:
    """eu-1 and us-1 of a master, with a quota of 10 CPUs."""
    await world.start_master()
    for seed in ("eu-1", "us-1"):
        await world.add_seed(seed, server=seed)
    await world.apply_quota("alpha", cpu="10")
    await until(lambda: world.copy("us-1", "alpha"))
    async with fake_seeds(world, "alpha", "eu-1", "us-1") as found:
        yield found


async def _true(value: object) -> object:
    return value


def held(seed: FakeSeed) -> dict[str, str]:
    return resources.render({name: amount for name, amount in accounts.held(seed.account).items() if amount})


async def test_quota_and_project_are_copied_to_every_seed_and_follow_every_change(world: World) -> None:
    await world.start_master()
    for seed in ("eu-1", "us-1"):
        await world.add_seed(seed, server=seed)
    await world.master.create(PROJECTS, {"metadata": {"name": "alpha"}, "spec": {"displayName": "Alpha"}})
    quota = await world.apply_quota("alpha", cpu="64", memory="256Gi")

    async def copied() -> bool:
        copies = [await world.copy(seed, "alpha") for seed in ("eu-1", "us-1")]
        projects = [await world.admin[seed].get(PROJECTS, "alpha") for seed in ("eu-1", "us-1")]
        return all(
            copy.spec == quota.spec
            and copy.metadata.labels[UID_LABEL] == quota.metadata.uid
            and copy.status.hard == {"cpu": "64", "memory": "256Gi"}
            for copy in copies
        ) and all(project.spec == {"displayName": "Alpha"} for project in projects)

    await until(copied)
    await world.apply_quota("alpha", cpu="32")

    async def updated() -> bool:
        copies = [await world.copy(seed, "alpha") for seed in ("eu-1", "us-1")]
        return all(copy.spec["quota"] == {"cpu": "32"} and copy.status.hard == {"cpu": "32"} for copy in copies)

    await until(updated)

    # Drift: the spec, the label and our part of the status are put right; a deleted copy is made again.
    us = world.admin["us-1"]
    await us.merge_patch(QUOTA_COPIES, "alpha", {"spec": {"quota": {"cpu": "999"}}})
    await us.merge_patch(QUOTA_COPIES, "alpha", {"metadata": {"labels": {UID_LABEL: None}}})
    await us.merge_patch(
        QUOTA_COPIES, "alpha", {"status": {"hard": None, "globalUsage": {"cpu": "5"}}}, subresource="status"
    )
    await world.admin["eu-1"].delete(QUOTA_COPIES, "alpha")
    await until(updated)

    async def drift_gone() -> bool:
        copy = await world.copy("us-1", "alpha")
        return copy.metadata.labels.get(UID_LABEL) == quota.metadata.uid and copy.status.global_usage == {"cpu": "0"}

    await until(drift_gone)

    # What somebody else made on a seed is not ours to delete.
    await us.create(PROJECTS, {"metadata": {"name": "foreign"}, "spec": {}})
    await world.master.delete(MASTER_QUOTAS, "alpha")
    await world.master.delete(PROJECTS, "alpha")

    async def gone() -> bool:
        counts = [len((await world.admin[seed].list(QUOTA_COPIES)).items) for seed in ("eu-1", "us-1")]
        ledgers = (await world.master.list(MASTER_LEDGERS, NAMESPACE)).items
        return counts == [0, 0] and not ledgers

    await until(gone)
    await until(lambda: _names(us, ["foreign"]))


async def _names(cluster: Cluster, names: list[str]) -> bool:
    return [found.metadata.name for found in (await cluster.list(PROJECTS)).items] == names


async def test_a_quota_that_somebody_made_on_a_seed_stops_nothing(world: World, tmp_path: Path) -> None:
    """The program goes on to say that it lives, and serves that seed and the others."""
    us = world.admin["us-1"]
    spec = {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "3"}}
    made = await us.create(QUOTA_COPIES, {"metadata": {"name": "by-hand"}, "spec": spec})
    (kubeconfig := tmp_path / "kubeconfig").write_text(world.server("master").kubeconfig(USER))
    health = f"127.0.0.1:{free_port()}"
    options = (f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", f"--health-address={health}")
    programs = ProcessGroup()
    programs.spawn([sys.executable, "-m", "master", *options], log=tmp_path / "master.log", cwd=CHARTS.parent)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as client:

            async def healthy() -> bool:
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with client.get(f"http://{health}/healthz") as answer:
                        return answer.status == 200
                return False

            await until(healthy)
            for seed in ("eu-1", "us-1"):
                await world.add_seed(seed, server=seed)
            await world.apply_quota("alpha", cpu="64")
            for seed in ("eu-1", "us-1"):
                await until(lambda seed=seed: world.copy(seed, "alpha"))
            for _ in range(30):  # the look at what somebody made may come after the copies
                assert await healthy()
                await asyncio.sleep(0.1)
        assert await world.copy("us-1", "by-hand") == made, "it is not the master's to change"
    finally:
        programs.close()
        await us.delete(QUOTA_COPIES, "by-hand")


async def test_a_quota_is_enforced_when_all_replicas_have_its_copy_as_it_is_now(world: World) -> None:
    await world.start_master()
    await world.add_seed("eu-1", server="eu-1")
    await world.apply_quota("alpha", cpu="64")
    await until(lambda: world.copy("eu-1", "alpha"))

    async def enforced(status: str, reason: str) -> bool:
        quota = await world.quota("alpha")
        observed = {each.observed_generation for each in quota.status.conditions if each.type == "Enforced"}
        return observed == {quota.metadata.generation} and condition(quota.status, "Enforced")[:2] == (status, reason)

    async with fake_seeds(world, "alpha", "eu-1") as (seed,):
        await until(lambda: enforced("True", "AllSeeds"))  # an agent of a release that does not say it
        seed.knows = 0
        await seed.publish()
        await until(lambda: enforced("False", "ReplicasBehind"))
        seed.knows = (await world.copy("eu-1", "alpha")).metadata.generation
        await seed.publish()
        await until(lambda: enforced("True", "AllSeeds"))
        await world.apply_quota("alpha", cpu="32")
        await until(lambda: enforced("False", "ReplicasBehind"))
        seed.knows = (await world.copy("eu-1", "alpha")).metadata.generation
        await seed.publish()
        await until(lambda: enforced("True", "AllSeeds"))


async def test_an_api_server_that_goes_while_a_leader_begins_ends_the_term_and_not_the_program(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas, failures = Ledgers.quotas, 1

    async def first_fails(ledgers: Ledgers) -> dict[str, str]:
        nonlocal failures
        if failures:
            failures -= 1
            raise Unavailable(0, "Unavailable", "list quotaledgers: connection refused")
        return await quotas(ledgers)

    monkeypatch.setattr(Ledgers, "quotas", first_fails)
    await world.start_master()
    await world.add_seed("eu-1", server="eu-1")
    await world.apply_quota("alpha", cpu="64")
    await until(lambda: world.copy("eu-1", "alpha"))
    assert not failures


async def test_broken_seeds_are_named_and_delay_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # What waits for the next look at a broken seed comes too late for `until`.
    monkeypatch.setattr(seed_link, "PROBE_EVERY", 600.0)
    monkeypatch.setattr(seed_link, "RESTART_AFTER", 600.0)
    await world.start_master()
    secret = "apiVersion: v1\nkind: Config\nusers: [{name: u, user: {token: hunter2}}]\n"
    await world.add_secret("broken", secret)
    await world.add_seed("broken")
    await world.add_seed("late")
    await world.add_secret(
        "down", world.server("us-1").kubeconfig(USER).replace(world.server("us-1").url, "https://127.0.0.1:9")
    )
    await world.add_seed("down")
    await world.add_secret("stranger", world.server("us-1").kubeconfig("seedquota-seed"))
    await world.add_seed("stranger")
    await world.add_seed("eu-1", server="eu-1")
    await world.apply_quota("alpha", cpu="64")
    await until(lambda: world.copy("eu-1", "alpha"))

    async def connected(seed: str) -> tuple[str, str, str]:
        return condition((await world.master.get(SEEDS, seed)).status, "Connected")

    async def told() -> bool:
        return [(await connected(seed))[1] for seed in ("broken", "late", "down", "stranger", "eu-1")] == [
            "InvalidKubeconfig",
            "InvalidKubeconfig",
            "Unreachable",
            "Unauthorized",
            "Connected",
        ]

    await until(told)
    assert "secret seedquota/broken" in (await connected("broken"))[2]
    assert "hunter2" not in (await connected("broken"))[2]
    assert (await connected("late"))[2] == "secret seedquota/late does not exist"

    # A Secret that comes later, and one that is put right, are picked up at once.
    await world.add_secret("late", world.server("us-1").kubeconfig(USER))
    await until(lambda: world.copy("us-1", "alpha"))

    async def told_of_its_subject() -> bool:
        return condition((await world.quota("alpha")).status, "Ready")[:2] == ("False", "SubjectNotFound")

    await until(told_of_its_subject)

    # So is another Secret under a connection that works.
    for kubeconfig, reason in (
        (secret, "InvalidKubeconfig"),
        (world.server("eu-1").kubeconfig("seedquota-seed"), "Unauthorized"),
    ):
        await world.add_secret("eu-1", kubeconfig)
        await until(lambda reason=reason: _reason(world, "eu-1", reason))
        await world.add_secret("eu-1", world.server("eu-1").kubeconfig(USER))
        await until(lambda: _reason(world, "eu-1", "Connected"))


async def test_a_kubeconfig_that_leads_to_another_cluster_is_not_followed_before_an_admin_says_so(world: World) -> None:
    await world.start_master()
    await world.add_seed("eu-1", server="eu-1")
    await world.apply_quota("alpha", cpu="10")
    await until(lambda: world.copy("eu-1", "alpha"))
    eu_1, us_1 = [await world.cluster_uid(server) for server in ("eu-1", "us-1")]
    assert (await world.master.get(SEEDS, "eu-1")).status.cluster_uid == eu_1
    async with fake_seeds(world, "alpha", "eu-1") as (old,):
        await old.ask(cpu="6")
        await until(lambda: _true(held(old)))
        await old.use(cpu="6")
        await until(lambda: _uses(world, "6"))
    before = (await world.ledger("alpha")).seeds

    await world.add_secret("eu-1", world.server("us-1").kubeconfig(USER))
    await until(lambda: _reason(world, "eu-1", "ClusterChanged"))
    message = condition((await world.master.get(SEEDS, "eu-1")).status, "Connected")[2]
    assert f"has uid {us_1}, not {eu_1};" in message
    assert (await world.admin["us-1"].list(QUOTA_COPIES)).items == []
    assert await _uses(world, "6")
    assert (await world.ledger("alpha")).seeds == before

    annotation = {"metadata": {"annotations": {ACCEPT_CLUSTER_ANNOTATION: us_1}}}
    await world.master.merge_patch(SEEDS, "eu-1", annotation)
    await until(lambda: world.copy("us-1", "alpha"))
    assert (await world.master.get(SEEDS, "eu-1")).status.cluster_uid == us_1
    assert await _uses(world, "6"), "nobody has counted there yet"
    async with fake_seeds(world, "alpha", "us-1") as (new,):
        await until(lambda: _true(held(new) == {"cpu": "6"}))
        await until(lambda: _uses(world, "0"))
        assert (await world.ledger("alpha")).seeds["eu-1"].account == new.account.incarnation


async def _uses(world: World, cpu: str) -> bool:
    return (await world.quota("alpha")).status.global_usage == {"cpu": cpu}


async def test_a_second_seed_for_one_cluster_is_refused_and_counts_nothing(world: World) -> None:
    await world.start_master()
    await world.add_seed("eu-1", server="eu-1")
    await world.apply_quota("alpha", cpu="10")
    await until(lambda: world.copy("eu-1", "alpha"))
    async with fake_seeds(world, "alpha", "eu-1") as (eu,):
        await eu.use(cpu="3")
        await until(lambda: _uses(world, "3"))
        await world.add_seed("twin", server="eu-1")
        await until(lambda: _reason(world, "twin", "DuplicateCluster"))
        assert "cluster of Seed eu-1," in condition((await world.master.get(SEEDS, "twin")).status, "Connected")[2]
        await eu.use(cpu="4")
        await until(lambda: _uses(world, "4"))
        assert await _reason(world, "eu-1", "Connected")
        twin = (await world.ledger("alpha")).seeds.get("twin")
        assert twin is None or not any(escrow.held(twin).values())


async def _reason(world: World, seed: str, reason: str) -> bool:
    return condition((await world.master.get(SEEDS, seed)).status, "Connected")[1] == reason


async def test_a_seed_with_older_roles_works_and_says_what_it_lacks_and_one_of_another_version_is_not_ready(
    world: World,
) -> None:
    roles = msgspec.to_builtins(rights("master-on-seed", USER))
    roles[0]["rules"] = [rule for rule in roles[0]["rules"] if "namespaces" not in rule["resources"]]
    for rule in roles[0]["rules"]:
        rule["resources"] = [resource for resource in rule["resources"] if resource != "seeds"]
    await manifests.apply(world.server("eu-1"), roles)
    await until(lambda: _is_forbidden(world, "eu-1"))  # API servers learn of rights a moment later

    async def says(kind: str, *expected: str) -> bool:
        found = condition((await world.master.get(SEEDS, "eu-1")).status, kind)
        return found[: len(expected)] == expected

    try:
        await world.add_seed("eu-1", server="eu-1")
        await world.start_master()
        await world.apply_quota("alpha", cpu="64")
        await until(lambda: world.copy("eu-1", "alpha"))

        async def lacks_a_role() -> bool:
            found = condition((await world.master.get(SEEDS, "eu-1")).status, "Synced")
            return found[:2] == ("False", "CopiesOutstanding") and "1 object " in found[2] and "seeds" in found[2]

        await until(lacks_a_role)
        await until(lambda: says("Connected", "True", "Connected"))
        seed = await world.master.get(SEEDS, "eu-1")
        assert "it is not known which cluster this is" in condition(seed.status, "Connected")[2]
        assert seed.status.cluster_uid == ""
    finally:
        await manifests.apply(world.server("eu-1"), rights("master-on-seed", USER))
    await until(lambda: says("Synced", "True"), 60)
    await until(lambda: says("Connected", "True", "Connected", ""))
    assert (await world.master.get(SEEDS, "eu-1")).status.cluster_uid == await world.cluster_uid("eu-1")
    await until(lambda: says("WebhookServing", "Unknown", "NotReported"))
    await until(lambda: says("Ready", "Unknown", "NotReported"))

    serving = {"type": "WebhookServing", "status": "True", "reason": "CanaryDenied", "message": "", **AGES_AGO}
    for version, ready in (("9.0.0", ("False", "VersionSkew")), (build_version(), ("True", "Ready"))):
        status = {"version": version, "clusters": 3, "lastSeenTime": "2026-01-01T00:00:00Z", "conditions": [serving]}
        await world.admin["eu-1"].apply(
            SEED_COPIES, {"metadata": {"name": "eu-1"}, "status": status}, SEED_MANAGER, "status"
        )
        await until(lambda ready=ready: says("Ready", *ready))  # type: ignore[misc]
        seed = await world.master.get(SEEDS, "eu-1")
        assert (seed.status.version, seed.status.clusters) == (version, 3)
        assert await says("WebhookServing", "True", "CanaryDenied")


async def _is_forbidden(world: World, seed: str) -> bool:
    """Whether the master may not see copies of Seeds there."""
    cluster = await Cluster.from_kubeconfig(world.server(seed).kubeconfig(USER), name=seed)
    try:
        await cluster.list(SEED_COPIES)
    except Forbidden:
        return True
    finally:
        await cluster.close()
    return False


async def test_hung_seed_delays_no_other_and_its_idle_capacity_is_out_of_reach(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_link, "REQUEST_TIMEOUT", 60.0)  # who waits for the one that hangs waits for all of it
    async with two_seeds(world) as (eu, us):
        await us.ask(cpu="5")
        await until(lambda: _true(held(us)))
        await us.stop()
        world.server("us-1").pause()
        try:
            await eu.ask(cpu="1")
            async with within(30 if is_busy() else 5):
                await until(lambda: _true(held(eu)))
            number = await eu.ask(cpu="9")

            async def told() -> bool:
                grant = (await world.copy("eu-1", "alpha")).status.grant
                return grant.answered == number and [idle.seed for idle in grant.unavailable] == ["us-1"]

            async with within(30 if is_busy() else 5):
                await until(told)
            await until(lambda: _reason(world, "us-1", "Unreachable"), timeout=60)
        finally:
            world.server("us-1").resume()
        await until(lambda: _reason(world, "us-1", "Connected"), timeout=60)


async def test_one_of_two_masters_leads_and_one_that_loses_the_lease_stops_at_once(world: World) -> None:
    masters = [await world.start_master(duration=90) for _ in range(2)]
    await world.add_seed("eu-1", server="eu-1")
    await until(lambda: _reason(world, "eu-1", "Connected"))
    (leader,) = [master for master in masters if master.leading is not None]
    await world.master.merge_patch(LEASES, LEASE, {"spec": {"holderIdentity": "thief"}}, NAMESPACE)
    async with within(30):  # after 60 s without a renewal it would stop anyway
        await until(lambda: _true(leader.leading is None))
    await world.master.delete(LEASES, LEASE, NAMESPACE)
    await until(lambda: _true(any(master.leading for master in masters)))

    async def serves_the_seed_again() -> bool:
        """It is no other master to itself."""
        (lease,) = [each for each in (await world.master.list(LEASES, NAMESPACE)).items if each.metadata.name == LEASE]
        copy = await world.admin["eu-1"].get(SEED_COPIES, "eu-1")
        return copy.metadata.annotations.get(MASTER_ANNOTATION) == lease.metadata.uid

    await until(serves_the_seed_again)


class Muted(Cluster):
    """While `muted` is set its watches bring nothing, and do not end."""

    muted = False

    @asynccontextmanager
    async def open_watch(self, *arguments: Any, **named: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        async with super().open_watch(*arguments, **named) as stream:
            read = stream.read

            async def silent(*how: Any) -> Any:
                events = await read(*how)
                if self.muted:
                    await asyncio.get_running_loop().create_future()
                return events

            stream.read = silent  # type: ignore[method-assign]
            yield stream


async def test_a_standby_whose_watches_were_silent_takes_nothing_back_when_it_takes_over(world: World) -> None:
    async def set_default(cpu: str) -> None:
        spec = {"defaults": {"project": {"quota": {"cpu": cpu}}}}
        await world.master.apply(QUOTA_SETTINGS, {"metadata": {"name": "default"}, "spec": spec}, manager="test")

    async def limits(*names: str) -> list[object]:
        return [(await world.copy("eu-1", name)).spec["quota"] for name in names]

    async def identities() -> list[object]:
        copies = [(await world.copy("eu-1", name)).metadata.uid for name in QUOTAS]
        return [*copies, *[(await world.ledger(name)).incarnation for name in QUOTAS]]

    QUOTAS = ("alpha", "project-beta", "gamma")
    await world.start_master()
    await world.add_seed("eu-1", server="eu-1")
    await world.master.create(PROJECTS, {"metadata": {"name": "beta"}, "spec": {}})
    await set_default("64")
    await world.apply_quota("alpha", cpu="64")
    await until(lambda: limits("alpha", "project-beta"))
    standby = await world.start_master(Muted)
    await until(lambda: _true(standby.lease.trusted is not None and standby.caches.not_synced() is None))

    Muted.muted = True
    try:
        await set_default("8")
        await world.apply_quota("alpha", cpu="8")
        await world.apply_quota("gamma", cpu="8")
        await world.master.create(PROJECTS, {"metadata": {"name": "gamma"}, "spec": {}})

        async def in_force() -> bool:
            await identities()
            await world.admin["eu-1"].get(PROJECTS, "gamma")
            return await limits(*QUOTAS) == [{"cpu": "8"}] * 3

        await until(in_force)
        before = await identities()
        await world.stop_master(most=1)

        async def took_over() -> bool:
            if standby.leading is None:
                return False
            seeds, quotas = standby.leading
            link, alpha = seeds.links.get("eu-1"), quotas.states.get("alpha")
            connected = link is not None and link.sync is not None and link.connected and link.sync.all_in_sync
            return connected and alpha is not None and alpha.view is not None and alpha.view.seeds[0].synced is True

        await until(took_over)
        assert await in_force()
        assert await identities() == before
    finally:
        Muted.muted = False


async def test_ask_is_granted_recalled_from_others_and_answered_when_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_delay, "ROUND", 600.0)  # too late for `until`: what is not said at once
    monkeypatch.setattr(controller, "AGES_EVERY", AGES_EVERY)
    await world.start_master()
    for seed in ("eu-1", "us-1"):
        await world.add_seed(seed, server=seed)
    await world.master.create(PROJECTS, {"metadata": {"name": "alpha"}, "spec": {}})
    await world.apply_quota("alpha", cpu="10")
    await until(lambda: world.copy("us-1", "alpha"))
    async with fake_seeds(world, "alpha", "eu-1", "us-1") as (eu, us):
        # Granted from the pool, with something to spare.
        await eu.ask(cpu="2")
        await until(lambda: _true(accounts.held(eu.account).get("cpu", 0) >= resources.parse({"cpu": "2"})["cpu"]))
        await eu.use(cpu="2")

        # More than the pool has: what the other holds idle is recalled, and comes here.
        number = await us.ask(cpu="8")
        await until(lambda: _true(held(us) == {"cpu": "8"}))
        assert held(eu) == {"cpu": "2"}
        assert (await world.copy("us-1", "alpha")).status.grant.answered == number
        await us.use(cpu="8")

        async def summed() -> bool:
            return (await world.quota("alpha")).status.global_usage == {"cpu": "10"}

        await until(summed)
        status = (await world.quota("alpha")).status
        assert status.summary.usage == "cpu 10/10"
        assert status.summary.peak == "cpu 100%"
        assert condition(status, "NearLimit")[:2] == ("True", "Full")
        assert condition(status, "Ready")[:2] == ("True", "Enforced")

        # Full: answered at once, with the numbers to refuse by.
        number = await eu.ask(cpu="1")

        async def refused() -> bool:
            grant = (await world.copy("eu-1", "alpha")).status
            return grant.grant.answered == number and grant.global_usage == {"cpu": "10"}

        async with within(AGES_EVERY / 3):
            await until(refused)
        assert held(eu) == {"cpu": "2"}

        # Something was deleted elsewhere: whoever was refused hears it soon.
        await us.use(cpu="4")

        async def heard() -> bool:
            return (await world.copy("eu-1", "alpha")).status.global_usage == {"cpu": "6"}

        await until(heard)

        # Use that nobody admitted is covered and called by its name.
        await eu.use(cpu="9")

        async def over() -> bool:
            status = (await world.quota("alpha")).status
            return condition(status, "Exceeded")[:2] == ("True", "UsageNotAdmitted")

        await until(over)
        await until(lambda: _true(held(eu) == {"cpu": "9"}))


async def test_seed_that_does_not_return_is_reported_as_out_of_reach(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "AGES_EVERY", AGES_EVERY)
    async with two_seeds(world) as (eu, us):
        eu.obeys = False
        await eu.ask(cpu="6")
        await until(lambda: _true(held(eu) == {"cpu": "6"}))
        number = await us.ask(cpu="6")

        async def answered() -> bool:
            grant = (await world.copy("us-1", "alpha")).status.grant
            return grant.answered == number and [idle.seed for idle in grant.unavailable] == ["eu-1"]

        async with within(AGES_EVERY / 3):
            await until(answered)
        assert held(us) == {}
        eu.obeys = True
        await until(lambda: _true(held(eu) != {"cpu": "6"}) if eu.account.returned else us.ask(cpu="6"))


async def test_restarted_master_keeps_what_it_granted(world: World) -> None:
    async with two_seeds(world) as (eu, us):
        await eu.ask(cpu="6")
        await until(lambda: _true(held(eu)))
        await eu.use(cpu="6")
        await world.stop_master()
        before = await world.ledger("alpha")
        await world.start_master()
        await us.ask(cpu="4")
        await until(lambda: _true(held(us) == {"cpu": "4"}))
        after = await world.ledger("alpha")
        assert after.incarnation == before.incarnation
        assert resources.render(escrow.outstanding(after))["cpu"] == "10"

        # Without its ledger the master learns again from the seeds what they hold.
        await world.stop_master()
        await world.master.delete(MASTER_LEDGERS, ledger_name((await world.quota("alpha")).metadata.uid), NAMESPACE)
        await world.start_master()

        async def learned() -> bool:
            ledger = await world.ledger("alpha")
            return not ledger.learning and resources.render(escrow.outstanding(ledger)) == {"cpu": "10"}

        await until(learned)
        learnt = await world.ledger("alpha")
        assert learnt.incarnation != before.incarnation
        await until(lambda: _true(eu.account.master == us.account.master == learnt.incarnation))
        assert (await world.quota("alpha")).metadata.annotations[LEDGER_ANNOTATION] == learnt.incarnation


@asynccontextmanager
async def killed(server: ApiServer) -> AsyncIterator[None]:
    await server.kill()
    try:
        yield
    finally:
        await server.start()


async def test_lost_seed_frees_what_it_held(world: World) -> None:
    async with two_seeds(world) as (eu, us):
        await eu.ask(cpu="8")
        await until(lambda: _true(held(eu)))
        await eu.use(cpu="8")

        async def told() -> bool:
            return (await world.quota("alpha")).status.global_usage == {"cpu": "8"}

        await until(told)
        async with killed(world.server("eu-1")):
            await eu.stop()

            async def kept() -> bool:
                status = (await world.quota("alpha")).status
                return condition(status, "UsageCurrent")[:2] == ("False", "SeedUnreachable") and (
                    status.global_usage == {"cpu": "8"}
                )

            await until(kept)
            message = condition((await world.quota("alpha")).status, "UsageCurrent")[2]
            assert re.fullmatch("eu-1 last reported (less than )?1m ago; its last count is kept", message), message
            await world.stop_master()
            await world.start_master()
            number = await us.ask(cpu="4")

            async def learning() -> bool:
                return (await world.copy("us-1", "alpha")).status.grant.learning

            # Nobody led before it: its ledger may be an older one, and eu-1 may hold more than it says.
            await until(learning)
            await asyncio.sleep(1.0)
            assert held(us) == {} and (await world.copy("us-1", "alpha")).status.grant.answered < number

            # Nor does it know more who has seen this one lead, and comes after it.
            second = await world.start_master()
            await until(lambda: _true(second.lease.trusted is not None))
            await world.stop_master(most=1)
            await until(lambda: _true(second.leading is not None))
            number = await us.ask(cpu="4")
            await asyncio.sleep(2.0)
            assert held(us) == {} and (await world.copy("us-1", "alpha")).status.grant.answered < number
            await world.add_seed("eu-1", state="Lost")
            await until(lambda: _asks_until(us, "4"))


async def test_a_seed_that_is_declared_lost_is_shown_that_if_it_can_be_reached(world: World) -> None:
    await world.start_master()
    await world.add_seed("eu-1", server="eu-1")

    seed = await world.master.get(SEEDS, "eu-1")

    async def shown(state: str) -> bool:
        copy = await world.admin["eu-1"].get(SEED_COPIES, "eu-1")
        return copy.metadata.labels.get(UID_LABEL) == seed.metadata.uid and copy.spec.state == state

    await until(lambda: shown("Active"))
    await world.add_seed("eu-1", state="Lost")
    await until(lambda: shown("Lost"))


async def _asks_until(seed: FakeSeed, cpu: str) -> bool:
    if held(seed).get("cpu") == cpu:
        return True
    await seed.ask(cpu=cpu)
    await asyncio.sleep(0.3)
    return False


async def test_nothing_is_written_while_nothing_changes(world: World) -> None:
    await world.start_master()
    await world.add_seed("eu-1", server="eu-1")
    await world.apply_quota("alpha", cpu="10")
    await until(lambda: world.copy("eu-1", "alpha"))

    def writes() -> list[str]:
        sent = [plural for verb, plural in world.requests if verb not in ("get", "list", "watch")]
        return [plural for plural in sent if plural != "leases"]

    async with fake_seeds(world, "alpha", "eu-1"):
        async with patient_timeout(60):  # until all that follows is written
            while True:
                world.requests.clear()
                await asyncio.sleep(4)
                if not writes():
                    break
        before = (await world.quota("alpha")).metadata.resource_version
        copy = (await world.copy("eu-1", "alpha")).metadata.resource_version
        world.requests.clear()
        await asyncio.sleep(3)
        assert (await world.quota("alpha")).metadata.resource_version == before
        assert (await world.copy("eu-1", "alpha")).metadata.resource_version == copy
        assert writes() == []


class Admin:
    """Whoever runs `seedquota`: with the master's kubeconfig as the current one, and a file for each seed."""

    def __init__(self, world: World, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._directory = directory
        self._capsys = capsys
        self.files = {name: directory / f"{name}.yaml" for name in ("master", "eu-1", "us-1")}
        for name, file in self.files.items():
            file.write_text(world.server(name).kubeconfig())

    async def run(self, *arguments: str) -> tuple[int, str]:
        return await self.ask("seed", *arguments)

    async def ask(self, *arguments: str) -> tuple[int, str]:
        """The exit status, and what was written."""
        status = await asyncio.to_thread(seedquota, arguments)
        said = self._capsys.readouterr()
        return status, said.out + said.err

    async def add(self, name: str, cluster: str = "") -> tuple[int, str]:
        return await self.run("add", name, "--seed-kubeconfig", str(self.files[cluster or name]))


@pytest.fixture
def admin(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin(world, tmp_path, capsys)
    monkeypatch.setenv("KUBECONFIG", str(made.files["master"]))
    return made


async def _kubeconfig_of(world: World, seed: str) -> str:
    return (await world.master.get(SECRETS, seed, NAMESPACE)).data["kubeconfig"].decode()


async def test_seed_add_gives_the_master_what_it_needs_on_the_seed_and_nothing_more(world: World, admin: Admin) -> None:
    status, said = await admin.add("eu-1")
    assert status == 0 and "kubectl wait --for=condition=Ready sqseed/eu-1" in said, said
    await world.start_master()
    await world.apply_quota("alpha", cpu="64")
    await until(lambda: world.copy("eu-1", "alpha"))
    await until(lambda: _reason(world, "eu-1", "Connected"))
    token = await Cluster.from_kubeconfig(await _kubeconfig_of(world, "eu-1"), name="token")
    try:
        for resource, namespace in ((SECRETS, NAMESPACE), (SECRETS, None), (MASTER_LEDGERS, NAMESPACE)):
            with pytest.raises(Forbidden):
                await token.list(resource, namespace)
        with pytest.raises(Forbidden):
            await request_token(token, NAMESPACE, "default", seconds=600)
    finally:
        await token.close()
    life = read((await _kubeconfig_of(world, "eu-1")).partition("token: ")[2].split()[0])
    assert life is not None and (life.namespace, life.account) == (NAMESPACE, "seedquota-master-on-seed")
    assert life.ends - life.issued == LIFE


async def test_seed_add_writes_nothing_where_the_kubeconfig_leads_to_the_wrong_cluster(
    world: World, admin: Admin
) -> None:
    status, said = await admin.add("eu-1", "master")
    assert status == 2 and "spec.inCluster: true" in said, said
    await world.start_master()
    await admin.add("eu-1")
    await until(lambda: _reason(world, "eu-1", "Connected"))
    before = await _kubeconfig_of(world, "eu-1")
    status, said = await admin.add("eu-1", "us-1")
    assert status == 2 and "leads to another cluster than seed eu-1" in said, said
    status, said = await admin.add("us-1", "eu-1")
    assert status == 2 and "this cluster is already the seed eu-1" in said, said
    assert await _kubeconfig_of(world, "eu-1") == before
    assert [seed.metadata.name for seed in (await world.master.list(SEEDS)).items] == ["eu-1"]
    await world.add_secret("us-1", "of somebody else")
    status, said = await admin.add("us-1")
    assert status == 2 and "was not made by this command" in said, said


async def test_a_seed_that_was_deleted_while_it_held_something_is_added_again_as_the_same_cluster_only(
    world: World, admin: Admin
) -> None:
    """Two clusters would admit by what the former one holds."""
    await world.start_master()
    await admin.add("eu-1")
    await world.apply_quota("alpha", cpu="64")
    await until(lambda: world.copy("eu-1", "alpha"))
    async with fake_seeds(world, "alpha", "eu-1") as (seed,):
        await seed.ask(cpu="4")
        await until(lambda: _true(held(seed)))
        await world.master.delete(SEEDS, "eu-1")
        status, said = await admin.add("eu-1", "us-1")
        assert (status, "a Seed eu-1 was deleted, and its cluster still holds:\n  seedquota/alpha: cpu=" in said) == (
            2,
            True,
        )
        assert [found.metadata.name for found in (await world.master.list(SEEDS)).items] == []
        status, said = await admin.add("eu-1")
        assert status == 0, said
        await until(lambda: _reason(world, "eu-1", "Connected"))


async def test_a_token_is_renewed_before_it_ends_without_a_break_of_the_connection(
    world: World, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another token, of an admin or of the master, is used from the next request on."""
    await admin.add("eu-1")
    monkeypatch.setattr(kubeconfig_secret, "LOOK_EVERY", 0.1)
    master = await world.start_master()
    await until(lambda: _reason(world, "eu-1", "Connected"))
    await world.apply_quota("alpha", cpu="64")
    await until(lambda: world.copy("eu-1", "alpha"))
    assert master.leading is not None
    link = master.leading[0].links["eu-1"]
    first, sessions, copies = await _kubeconfig_of(world, "eu-1"), link._sessions, link._there.quotas  # type: ignore[union-attr]

    async def used(text: str) -> bool:
        cluster = link._cluster
        assert cluster is not None
        return (cluster.access.authorization or "?").removeprefix("Bearer ") in text

    async def renewed() -> bool:
        return await _kubeconfig_of(world, "eu-1") != first

    assert await used(first)
    await asyncio.sleep(0.5)
    assert not await renewed(), "it is not due"
    half = SimpleNamespace(time=lambda: time.time() + LIFE / 2 + 60)
    with monkeypatch.context() as later:
        later.setattr(kubeconfig_secret, "time", half)
        await until(renewed)
    await asyncio.sleep(0.3)  # a renewal that was under way
    second = await _kubeconfig_of(world, "eu-1")
    await until(lambda: used(second))
    status, _ = await admin.add("eu-1")
    third = await _kubeconfig_of(world, "eu-1")
    assert status == 0 and third != second
    await until(lambda: used(third))
    await world.apply_quota("beta", cpu="64")
    await until(lambda: world.copy("eu-1", "beta"))
    assert link.connected and link._sessions == sessions and link._there.quotas is copies  # type: ignore[union-attr]
    assert link.renewal.ends is not None and link.renewal.ends > time.time() + LIFE - 600


async def test_a_token_that_nobody_marked_is_not_renewed(
    world: World, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.add("eu-1")
    await world.master.merge_patch(SECRETS, "eu-1", {"metadata": {"labels": {MANAGED_BY_LABEL: None}}}, NAMESPACE)
    before = await _kubeconfig_of(world, "eu-1")
    monkeypatch.setattr(kubeconfig_secret, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(kubeconfig_secret, "time", SimpleNamespace(time=lambda: time.time() + LIFE))
    await world.start_master()
    await until(lambda: _reason(world, "eu-1", "Connected"))
    await asyncio.sleep(0.5)
    assert await _kubeconfig_of(world, "eu-1") == before


async def test_a_seed_is_removed_only_when_it_drains_and_holds_nothing(world: World, admin: Admin) -> None:
    await world.start_master()
    await admin.add("eu-1")
    await world.apply_quota("alpha", cpu="10")
    await until(lambda: world.copy("eu-1", "alpha"))
    token = await Cluster.from_kubeconfig(await _kubeconfig_of(world, "eu-1"), name="token")
    await token.list(PROJECTS)
    status, said = await admin.run("remove", "eu-1")
    assert status == 2 and "seedquota seed drain eu-1" in said, said
    async with fake_seeds(world, "alpha", "eu-1") as (eu,):
        await eu.ask(cpu="6")
        await until(lambda: _true(held(eu)))
        await eu.use(cpu="6")
        status, said = await admin.run("list")
        assert status == 0 and "eu-1   Active" in said and "cpu=6" in said, said
        status, said = await admin.run("list", "-o", "json")
        (listed,) = json.loads(said)["items"]
        assert (listed["name"], listed["holds"], listed["quotas"]) == ("eu-1", "cpu=6", "1")
        status, said = await admin.run("drain", "eu-1")
        assert status == 0 and "seedquota/alpha: cpu=6" in said, said
        status, said = await admin.run("remove", "eu-1")
        assert status == 2 and "still holds:\n  seedquota/alpha: cpu=6" in said, said
        await eu.use(cpu="0")
        eu.account = accounts.give_back(eu.account, resources.parse({"cpu": "6"}))
        await eu.publish()

        async def removed() -> bool:
            return (await admin.run("remove", "eu-1", "--seed-kubeconfig", str(admin.files["eu-1"])))[0] == 0

        of_a_chart = {"metadata": {"annotations": {"meta.helm.sh/release-name": "seedquota-seed"}}}
        await world.admin["eu-1"].merge_patch(RIGHTS["ClusterRole"], ON_SEED, of_a_chart)
        status, said = await admin.run("remove", "eu-1", "--seed-kubeconfig", str(admin.files["us-1"]))
        assert status == 2 and "which is not seed eu-1" in said, said
        status, said = await admin.run("remove", "eu-1", "--kubeconfig", str(admin.files["eu-1"]))
        assert status == 1 and "is a seed, and its Seeds are copies" in said, said
        await until(removed)
    assert (await world.master.list(SEEDS)).items == [] and (await world.master.list(SECRETS, NAMESPACE)).items == []
    assert (await world.quota("alpha")).status.global_usage in ({}, {"cpu": "0"})

    async def ended() -> bool:
        try:
            await token.list(PROJECTS)
        except Unauthorized:
            return True
        except Forbidden:
            return False
        raise AssertionError("it has rights")

    await until(ended)  # an API server believes a token that it has seen for a few seconds more
    await token.close()
    await world.admin["eu-1"].delete(RIGHTS["ClusterRole"], ON_SEED)
    for each in rights_on_seed(NAMESPACE):
        resource = RIGHTS[each["kind"]]
        with pytest.raises(NotFound):
            await world.admin["eu-1"].get(resource, each["metadata"]["name"], each["metadata"].get("namespace"))
    await manifests.apply(world.server("eu-1"), rights("master-on-seed", USER))


async def test_a_seed_is_lost_only_by_the_words_and_what_may_be_exceeded_is_printed(
    world: World, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start_master()
    await admin.add("eu-1")
    await world.apply_quota("alpha", cpu="10")
    await until(lambda: world.copy("eu-1", "alpha"))
    async with fake_seeds(world, "alpha", "eu-1") as (eu,):
        await eu.ask(cpu="6")
        await until(lambda: _true(held(eu)))
    for answer, arguments, code in (("", ("--dry-run",), 0), ("yes", (), 2), ("its machines are gone", (), 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
        assert (await world.master.get(SEEDS, "eu-1")).spec.state == "Active"
        status, said = await admin.run("lost", "eu-1", *arguments)
        assert status == code and "seedquota/alpha: cpu=6" in said, said
    assert (await world.master.get(SEEDS, "eu-1")).spec.state == "Lost"
    status, said = await admin.run("drain", "eu-1")
    assert status == 2 and "no way back" in said, said
    status, said = await admin.run("remove", "eu-1")
    assert status == 0, said
    assert (await world.ledger("alpha")).seeds.get("eu-1") is None


async def test_top_describe_and_doctor_show_a_seed_that_is_away_and_what_it_holds(
    world: World, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start_master()
    for name in ("eu-1", "us-1"):
        await world.add_seed(name, server=name)
    await world.master.create(PROJECTS, {"metadata": {"name": "alpha"}, "spec": {"organization": "acme"}})
    await world.apply_quota("project-alpha", "alpha", cpu="10")
    await until(lambda: world.copy("us-1", "project-alpha"))
    async with fake_seeds(world, "project-alpha", "eu-1", "us-1") as (eu, us):
        for seed in (eu, us):
            await seed.ask(cpu="5")
            await until(lambda seed=seed: _true(held(seed)))
        await us.use(cpu="4")
        await until(lambda: _uses_of(world, "project-alpha", "4"))
        assert (await admin.ask("top", "--organization", "acme"))[0] == 0
        await world.add_secret("us-1", world.server("us-1").kubeconfig(USER).replace(world.server("us-1").url, NOWHERE))
        await until(lambda: _state(world, "project-alpha", "us-1", "Stale"))
    status, said = await admin.ask("top", "-o", "json", "--organization", "acme")
    (found,) = json.loads(said)["items"]
    assert (status, found["percent"], found["stale"][0]["seed"]) == (3, 40, "us-1"), said
    assert found["resources"]["cpu"] == {"used": "4", "hard": "10", "free": "6", "reserved": "0"}
    status, said = await admin.ask("top", "--over=41")
    assert (status, said) == (0, "no quota was found\n")
    for arguments in (("seedquota/project-alpha",), ("project-alpha", "-n", "elsewhere")):  # by ledger, by status
        status, said = await admin.ask("describe", *arguments)
        assert status == 3 and "cpu        4      10     6      0" in said, said
        assert re.search(r"^us-1 +Stale +cpu +4 +5 +1 +\d+[sm]$", said, re.MULTILINE), said
        assert "cure: see the condition Connected of the Seed" in said
    status, said = await admin.ask("describe", "project-alhpa")
    assert status == 1 and "did you mean project-alpha?" in said, said
    for arguments in ((), ("-n", "elsewhere")):  # it finds the namespace of the master itself
        status, said = await admin.ask("doctor", *arguments)
        assert status == 1 and "it holds seedquota/project-alpha (cpu=5)" in said, said
        assert "NoLeader" not in said and "SeveralLead" not in said, said
        assert f"not checked on eu-1: the leader of the agents: there is no Lease {NAMESPACE}/seedquota-seed" in said
        assert "not checked on us-1: the seed itself: cluster seed: get " in said, said
    status, said = await admin.ask("doctor", "--seed", "eu-1", "-o", "json")
    assert status == 1 and not {"Unreachable", "Gone"} & {each["reason"] for each in json.loads(said)["items"]}, said
    status, said = await admin.ask("doctor", "--seed", "eu-2")
    assert (status, "there is no Seed eu-2; did you mean eu-1?" in said) == (1, True), said
    # Of a seed alone: its master is elsewhere.
    status, said = await admin.ask("doctor", "--kubeconfig", str(admin.files["eu-1"]))
    assert status == 1 and "seedquota-seed: NoLeader: no replica leads in any namespace" in said, said
    assert "seedquota-master" not in said and "not checked" not in said, said
    admin.files["master"].write_text(world.server("eu-1").kubeconfig().replace(world.server("eu-1").url, NOWHERE))
    status, said = await admin.ask("doctor")
    assert status == 1 and "nothing can be checked" in said, said


async def led(cluster: Cluster, program: str, namespace: str, ago: float = 0.0) -> None:
    """As a program of this namespace that renewed its Lease so many seconds ago."""
    await manifests_of_namespace(cluster, namespace)
    renewed = (datetime.now(UTC) - timedelta(seconds=ago)).strftime(MICRO_TIME)
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": renewed}
    await cluster.apply(LEASES, {"metadata": {"name": program, "namespace": namespace}, "spec": spec}, "test")


async def manifests_of_namespace(cluster: Cluster, name: str) -> None:
    await cluster.apply(NAMESPACES, {"metadata": {"name": name}}, "test")


@asynccontextmanager
async def registered(cluster: Cluster) -> AsyncIterator[None]:
    """A webhook configuration as agents register it, which asks about nothing that there is."""
    rules = [{"apiGroups": ["none"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nones"]}]
    webhook = {
        "name": "clusters.seedquota.io",
        "clientConfig": {"url": "https://127.0.0.1:9"},
        "rules": rules,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    metadata = {"name": "seedquota-clusters", "labels": {MANAGED_BY_LABEL: "seedquota"}}
    await cluster.apply(WEBHOOK_CONFIGURATIONS, {"metadata": metadata, "webhooks": [webhook]}, "test")
    yield
    await cluster.delete(WEBHOOK_CONFIGURATIONS, "seedquota-clusters")


async def test_doctor_is_right_wherever_the_programs_are_installed_and_were_before(world: World, admin: Admin) -> None:
    """By Leases and webhook configurations as several releases leave them."""
    eu = world.admin["eu-1"]
    await world.add_seed("eu-1", server="eu-1")
    await led(world.master, "seedquota-master", NAMESPACE)
    await manifests_of_namespace(eu, "agents")
    in_agents = [
        {**each, "metadata": {**each["metadata"], "namespace": "agents"}}  # type: ignore[dict-item]
        for each in rights("master-on-seed", USER)
        if each["kind"] in ("Role", "RoleBinding")
    ]
    await manifests.apply(world.server("eu-1"), in_agents)

    async def doctor(*arguments: str) -> tuple[list[str], list[str]]:
        """Reasons of what is wrong with programs and webhooks, and what was not checked."""
        status, said = await admin.ask("doctor", "-o", "json", *arguments)
        found = json.loads(said)
        assert status == (1 if found["items"] else 3 if found["notChecked"] else 0), said
        kinds = ("Lease", "WebhookConfiguration")
        return [each["reason"] for each in found["items"] if each["kind"] in kinds], found["notChecked"]

    alone = ("--kubeconfig", str(admin.files["eu-1"]))
    try:
        async with registered(eu):
            await led(eu, "seedquota-seed", "agents")
            assert (await doctor(*alone))[1][0].startswith("which Seed it is: it has no copy of one")
            copy = {"metadata": {"name": "eu-1", "labels": {UID_LABEL: "x"}}, "spec": {"copyOf": "x"}}
            await eu.apply(SEED_COPIES, copy, "test")
            assert await doctor(*alone) == ([], []), "another namespace than -n, and the webhook is in use"
            assert await doctor("-n", "agents") == ([], []), "the master's account there may read the Lease where it is"
            _, (missing, *_) = await doctor()
            where = f"{NAMESPACE}/seedquota-seed, and you may not list those of other namespaces: -n names another"
            assert missing == f"seed eu-1: the leader of the agents: there is no Lease {where}"
            await led(eu, "seedquota-seed", "before", ago=3600)
            assert await doctor(*alone) == ([], []), "an earlier release left its Lease"
            await led(eu, "seedquota-seed", "before")
            assert await doctor(*alone) == (["SeveralLead"], [])
            for namespace in ("agents", "before"):
                await led(eu, "seedquota-seed", namespace, ago=3600)
            assert await doctor(*alone) == (["NoLeader", "LeftOver"], [])
            # Who may read one namespace only cannot tell that nobody uses the webhook.
            await led(eu, "seedquota-seed", NAMESPACE, ago=3600)
            reasons, missing = await doctor("-n", NAMESPACE)
            assert reasons == ["NoLeader"] and any("an agent may lead in a namespace" in each for each in missing)
        await led(world.master, "seedquota-master", NAMESPACE, ago=3600)
        assert (await doctor())[0] == ["NoLeader", "NoLeader"]
        await led(world.master, "seedquota-master", NAMESPACE)
        await led(world.master, "seedquota-master", "before", ago=3600)
        await led(eu, "seedquota-seed", NAMESPACE)
        assert await doctor() == ([], [])
    finally:
        for cluster, program, namespaces in (
            (world.master, "seedquota-master", ("before", NAMESPACE)),
            (eu, "seedquota-seed", ("agents", "before", NAMESPACE)),
        ):
            for namespace in namespaces:
                with suppress(NotFound):
                    await cluster.delete(LEASES, program, namespace)


@pytest_asyncio.fixture
async def silent_port() -> AsyncIterator[int]:
    """Of a server that takes connections and says nothing."""
    ends = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ends.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    ends.set()
    await server.wait_closed()
    await asyncio.sleep(0.1)  # Python 3.11 does not wait for the connections


async def test_sixty_seeds_are_asked_in_one_run_and_none_that_is_away_hides_another(
    world: World, admin: Admin, silent_port: int
) -> None:
    """Of one real cluster, since a Seed whose cluster nobody recorded may have any."""
    eu = world.admin["eu-1"]
    await led(world.master, "seedquota-master", NAMESPACE)
    await led(eu, "seedquota-seed", NAMESPACE, ago=3600)
    kubeconfig, url = world.server("eu-1").kubeconfig(USER), world.server("eu-1").url
    secrets_of = {
        "seed": kubeconfig,
        "away": kubeconfig.replace(url, NOWHERE),
        "silent": kubeconfig.replace(url, f"https://127.0.0.1:{silent_port}"),
        "limited": world.server("eu-1").kubeconfig("seedquota-seed"),
        "broken": "kubeconfig: none",
        "anchors": f"{kubeconfig}\nx: &x [1]\ny: *x",
    }
    numbers = {"seed": 35, "limited": 1, "away": 8, "silent": 14, "broken": 1, "anchors": 1}
    names = [f"{kind}-{number}" for kind, most in numbers.items() for number in range(most)]
    assert len(names) == 60
    for name in names:
        await world.add_secret(name, secrets_of[name.partition("-")[0]])
        await world.add_seed(name)
    async with within(70):  # 14 that keep silent for 10 s each are asked at once
        status, said = await admin.ask("doctor", "-o", "json")
    found = json.loads(said)
    no_leader = [each["seed"] for each in found["items"] if each["reason"] == "NoLeader"]
    assert status == 1 and sorted(no_leader) == sorted(name for name in names if name.startswith("seed-")), said
    missing = {
        each.partition(":")[0].removeprefix("seed ") for each in found["notChecked"] if "the seed itself" in each
    }
    assert missing == {name for name in names if not name.startswith(("seed-", "limited-"))}, said
    assert "seed limited-0: user clusters: " in said and "the right to list userclusters" in said
    # A bound for all of them together: who was not reached is named, too.
    status, said = await admin.ask("doctor", "-o", "json", "--timeout", "2s")
    late = ("it took too long to answer", "it could not be asked within 2 s")
    away = [each for each in json.loads(said)["notChecked"] if any(why in each for why in late)]
    assert len([each for each in away if each.startswith("seed silent-")]) == 14, said
    status, said = await admin.ask("doctor", "--timeout", "30s")
    assert said.count("not checked on silent-0") == 1 and "seed seed-34:" in said, said
    assert "not checked on anchors-0: the seed itself: " in said and "anchors and aliases are not read here" in said
    await world.master.delete(LEASES, "seedquota-master", NAMESPACE)
    await eu.delete(LEASES, "seedquota-seed", NAMESPACE)


async def test_a_seed_is_not_asked_if_its_secret_leads_to_another_cluster(world: World, admin: Admin) -> None:
    await world.start_master()
    await world.add_seed("eu-1", server="eu-1")
    await world.apply_quota("alpha", cpu="10")
    await until(lambda: world.copy("eu-1", "alpha"))
    assert (await admin.ask("describe", "alpha", "--seed", "eu-1"))[0] == 0
    await world.add_secret("eu-1", world.server("us-1").kubeconfig(USER))
    status, said = await admin.ask("describe", "alpha", "--seed", "eu-1")
    assert status == 3 and "seed eu-1 cannot be asked: the kubeconfig in its Secret leads to another cluster" in said
    status, said = await admin.ask("denials", "--all-seeds")
    assert status == 3 and "refusals on eu-1: the kubeconfig in its Secret leads to another cluster" in said, said


async def test_with_as_every_request_is_of_that_user(world: World, admin: Admin) -> None:
    """By the rights that RBAC gives that user and group, and no others."""
    await world.apply_quota("alpha", cpu="10")
    for arguments in (
        ("top",),
        ("doctor",),
        ("seed", "list"),
        ("describe", "alpha"),
        ("set", "project/alpha", "cpu=1"),
    ):
        status, said = await admin.ask(*arguments, "--as", "jane")
        assert status == 1 and 'User "jane" cannot ' in said, said
    role = {
        "metadata": {"name": "top-readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "seedquota:viewer"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers"}],
    }
    await manifests.apply(world.server("master"), manifests.load(CHARTS / "rbac" / "viewer.yaml"))
    await world.master.apply(RIGHTS["ClusterRoleBinding"], role, "test")

    async def read() -> bool:
        return (await admin.ask("top", "--as", "jane", "--as-group", "others", "--as-group", "readers"))[0] in (0, 3)

    await until(read)
    status, said = await admin.ask("top", "--as-group", "readers")
    assert (status, "--as-group needs --as" in said) == (1, True), said
    await world.master.delete(RIGHTS["ClusterRoleBinding"], "top-readers")
    admin.files["master"].write_text(world.server("master").kubeconfig(USER))
    status, said = await admin.ask("top", "--as", "jane")
    assert status == 1 and "cannot impersonate" in said, said


async def test_who_has_no_rights_is_told_which_is_missing(world: World, admin: Admin) -> None:
    admin.files["master"].write_text(world.server("master").kubeconfig("seedquota-seed"))
    for arguments in (("top",), ("describe", "alpha")):
        status, said = await admin.ask(*arguments)
        assert status == 1 and re.search(r"right to (list|get) resourcequotas.seedquota.io", said), said


async def _uses_of(world: World, quota: str, cpu: str) -> bool:
    return (await world.quota(quota)).status.global_usage.get("cpu") == cpu


async def _state(world: World, quota: str, seed: str, state: str) -> bool:
    return (seed, state) in [(each.name, each.state) for each in (await world.quota(quota)).status.seeds]
