"""Owners of refused Machines on real API servers: what they are told, and that they are woken when there is room."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from cli.__main__ import run
from devcluster.load import machine
from tests.integration.installed.site import CLUSTERS, MACHINES, QUOTA, SMALL, Json, Site, cpus, until
from tests.unit.fake_api_server import within

pytestmark = pytest.mark.integration

GROUP = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"
FREED = "seedquota.io/capacity-freed"
WAKING = 15.0  # seconds: nobody tries again here, so one that is not woken at once waits for half a minute or more
TELLING = 60.0  # an Event that could not be written is written again after half of that
THIRD = "user-3"  # beside user-1 on the first seed
_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module")
async def three(installation: Site) -> AsyncIterator[Site]:
    installed = installation.installed
    try:
        await installed.add_user_cluster(THIRD, "seed-1", "alpha")
        installation.add(installed.cluster(THIRD))
        yield installation
    finally:
        await installation.delete("seed-1", f"{CLUSTERS}/{THIRD}")
        await until(lambda: without_third(installation), 60)
        await installed.cluster(THIRD).kill()


async def without_third(site: Site) -> None:
    assert (await site.call("seed-1", "GET", f"{CLUSTERS}/{THIRD}")).status == 404


@pytest_asyncio.fixture
async def site(three: Site) -> AsyncIterator[Site]:
    before = three.positions()
    await three.quota(cpus(2))
    yield three
    await three.start_all()
    await three.delete("master", f"resourcequotas/{QUOTA}")
    for cluster in ("user-1", "user-2", THIRD):
        for left in await three.items(cluster, MACHINES):
            await three.delete(cluster, f"{MACHINES}/{left['metadata']['name']}")

    async def clean() -> None:
        for seed in three.installed.seeds:
            assert await three.items(seed, "resourcequotas") == []
            for cluster in await three.items(seed, CLUSTERS):
                assert cluster["status"]["machines"] == 0

    await until(clean, 60)
    assert [line for line in three.said(before) if line["level"] not in ("debug", "info", "warning")] == []


class Owned:
    """A MachineSet of a MachineDeployment, without a controller."""

    def __init__(self, site: Site, cluster: str, deployment: Json, machine_set: Json) -> None:
        self.site = site
        self.cluster = cluster
        self.deployment = deployment
        self.set = machine_set
        self.path = f"{GROUP}/machinesets/{machine_set['metadata']['name']}"

    async def create(self) -> tuple[int, str]:
        body = machine(f"{self.set['metadata']['name']}-{next(_numbers)}", SMALL)
        metadata: Any = body["metadata"]
        answer = await self.site.decided(self.cluster, {**body, "metadata": {**metadata, **_owned_by(self.set)}})
        return answer.status, answer.message

    async def freed(self) -> str | None:
        return (await self.site.get(self.cluster, self.path))["metadata"].get("annotations", {}).get(FREED)

    async def woken(self) -> float:
        """In how many seconds it was: soon."""
        started = time.monotonic()

        async def touched() -> None:
            assert await self.freed() is not None

        async with within(WAKING):
            await until(touched, 30)
        return time.monotonic() - started


def _owned_by(owner: Json) -> Json:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    return {"ownerReferences": [reference]}


async def owned(site: Site, cluster: str = "user-1", replicas: int = 5) -> Owned:
    name = f"pool-{next(_numbers)}"

    async def made(kind: str, **metadata: Any) -> Json:
        body = {
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": "kube-system", **metadata},
            "spec": {"replicas": replicas, "template": {"spec": machine(name, SMALL)["spec"]}},
        }
        answer = await site.call(cluster, "POST", f"{GROUP}/{kind.lower()}s", body)
        assert answer.status == 201, answer
        return answer.body

    deployment = await made("MachineDeployment")
    return Owned(site, cluster, deployment, await made("MachineSet", **_owned_by(deployment)))


async def events(site: Site, cluster: str, about: Json, reason: str = "QuotaExceeded") -> list[Json]:
    metadata = about["metadata"]
    listed = await site.items(cluster, EVENTS.format(metadata["namespace"]))
    return [
        found
        for found in listed
        if found["regarding"].get("uid") == metadata["uid"]
        and found["reason"] == reason
        and found["reportingController"] == "seedquota.io/webhook"
    ]


def counted(found: Json) -> int:
    return int(found.get("series", {}).get("count", 1))


async def told_of(pool: Owned) -> float:
    """Waits for the Event of a refusal. In how many seconds it came."""
    started = time.monotonic()

    async def told() -> None:
        assert len(await events(pool.site, pool.cluster, pool.set)) == 1

    await comes(told)
    return time.monotonic() - started


async def comes(check: Callable[[], Any], seconds: float = TELLING) -> None:
    await until(check, seconds)


async def test_twenty_refusals_are_one_event_on_each_owner(site: Site) -> None:
    pool = await owned(site, THIRD)  # nothing was refused there before
    await site.admitted("user-2", 2)
    user_cluster = await site.get("seed-1", f"{CLUSTERS}/{THIRD}")
    late = site.late  # where the API server did not wait for a refusal, the request is repeated: that counts twice
    for _ in range(20):
        assert (await pool.create())[0] == 403
    most = 20 + site.late - late

    async def told() -> None:
        for cluster, about in (("seed-1", user_cluster), (THIRD, pool.set), (THIRD, pool.deployment)):
            found = await events(site, cluster, about)
            assert [20 <= counted(event) <= most for event in found] == [True], (about["kind"], found)
            event = found[0]
            assert (event["type"], event["regarding"]["kind"]) == ("Warning", about["kind"])
            assert event["note"].startswith(f"exceeded quota: {QUOTA}, requested: cpu=1, used: cpu=2, limited: cpu=2")

    await comes(told)


async def test_a_machine_that_cannot_be_sized_is_told_and_waits_for_nothing(site: Site) -> None:
    pool = await owned(site)
    body = {**machine("unsized", SMALL), "spec": {"providerSpec": {"value": {"cloudProvider": "no-such-cloud"}}}}
    metadata: Any = body["metadata"]
    answer = await site.call("user-1", "POST", MACHINES, {**body, "metadata": {**metadata, **_owned_by(pool.set)}})
    assert answer.status == 422

    async def told() -> None:
        assert len(await events(site, "user-1", pool.deployment, "MachineNotSized")) == 1

    await comes(told)
    assert await pool.freed() is None


async def test_a_raised_limit_wakes_as_many_as_fit_the_longest_waiting_first(site: Site) -> None:
    pools = [await owned(site, cluster) for cluster in ("user-1", "user-1", THIRD)]
    await site.admitted("user-1", 2)
    for pool in pools:
        assert (await pool.create())[0] == 403
    await asyncio.sleep(0.5)
    assert [await pool.freed() for pool in pools] == [None, None, None]
    await site.patch("master", f"resourcequotas/{QUOTA}", {"spec": {"quota": cpus(4)}})
    took = await asyncio.gather(pools[0].woken(), pools[1].woken())
    print(f"\nwoken {max(took):.2f} s after the limit was raised")
    first, third = await pools[0].freed(), await pools[2].freed()
    assert third is None or (first is not None and third > first), "the machine is busy: nobody has taken the room"
    assert [(await pool.create())[0] for pool in pools] == [201, 201, 403]

    async def told() -> None:
        assert [event["type"] for event in await events(site, "user-1", pools[0].set, "CapacityFreed")] == ["Normal"]

    await comes(told)


async def test_a_machine_that_goes_on_another_seed_wakes_who_waits_here(site: Site) -> None:
    pool = await owned(site)
    name, _ = await site.admitted("user-2", 2)
    await site.uses(cpus(2))
    assert (await pool.create())[0] == 403
    await site.delete("user-2", f"{MACHINES}/{name}")
    took = await pool.woken()
    print(f"\nwoken {took:.2f} s after the Machine went")
    assert (await pool.create())[0] == 201


async def test_one_that_has_all_its_machines_or_is_gone_is_not_touched(site: Site) -> None:
    complete, gone, pool = [await owned(site) for _ in range(3)]
    await site.admitted("user-1", 2)
    for waiting in (complete, gone, pool):
        assert (await waiting.create())[0] == 403
    generation = complete.set["metadata"]["generation"]
    status = {"status": {"replicas": 5, "observedGeneration": generation}}
    await site.patch("user-1", f"{complete.path}/status", status)
    await site.delete("user-1", gone.path)
    await site.patch("master", f"resourcequotas/{QUOTA}", {"spec": {"quota": cpus(3)}})
    await pool.woken()
    assert await complete.freed() is None


async def test_a_user_cluster_that_hangs_delays_neither_admission_nor_the_others(site: Site) -> None:
    hanging, before, pool = await owned(site, THIRD), await owned(site), await owned(site)
    await site.admitted("user-1", 2)
    assert (await before.create())[0] == 403
    usual = await told_of(before)
    assert (await hanging.create())[0] == 403
    site.server(THIRD).pause()
    try:
        slowest, late = 0.0, site.late
        for _ in range(10):
            started = time.monotonic()
            assert (await pool.create())[0] == 403
            slowest = max(slowest, time.monotonic() - started)
        print(f"\nslowest refusal {slowest:.2f} s")
        assert site.late - late <= 5, "an API server waits for three seconds, and a busy one now and then"
        # What waits for the one that hangs comes after its timeout of 5 s and a pause of 2 s.
        async with within(5 + usual):
            await told_of(pool)
        await site.patch("master", f"resourcequotas/{QUOTA}", {"spec": {"quota": cpus(5)}})
        await pool.woken()
    finally:
        site.server(THIRD).resume()


async def test_the_agent_that_refused_explains_it_and_so_does_its_log(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    before = site.positions()
    pool = await owned(site)
    await site.admitted("user-2", 2)
    status, message = await pool.create()
    decision = message.rpartition("; decision ")[2]
    urls = [f"--url={site.program(seed).health}" for seed in site.installed.seeds]
    assert status == 403
    assert await asyncio.to_thread(run, ["explain", decision, *urls]) == 0
    said = capsys.readouterr().out
    assert f"said: exceeded quota: {QUOTA}, requested: cpu=1, used: cpu=2, limited: cpu=2" in said
    assert "of alpha/user-1, CREATE by " in said
    assert "replayed: refused: short by cpu=1\n" in said
    assert "fits if cpu=1 is freed or the limit is raised to cpu=3; no machine that needs cpu fits now" in said
    admitted = (await site.items("user-2", MACHINES))[0]["metadata"]["name"]
    assert await asyncio.to_thread(run, ["explain", f"machine/{admitted}", *urls]) == 0
    assert "replayed: admitted\n" in capsys.readouterr().out
    (line,) = [line for line in site.said(before) if line.get("decision") == decision]
    assert (line["cluster"], line["needs"].split(",")[0]) == ("alpha/user-1", "cpu=1")
    assert line["quotas"][0]["limits"] == {"cpu": "2"}


async def test_a_quota_is_told_of_once_for_each_turn_also_by_the_next_master(site: Site) -> None:
    uid = (await site.get("master", f"resourcequotas/{QUOTA}"))["metadata"]["uid"]

    async def reasons() -> list[str]:
        found = await site.items("master", EVENTS.format("default"))
        mine = sorted(event["reason"] for event in found if event["regarding"].get("uid") == uid)
        return [reason for reason in mine if reason != "LimitsChanged"]  # each of these is of one change

    async def are(*wanted: str) -> None:
        async def told() -> None:
            assert await reasons() == list(wanted)

        await until(told, TELLING)

    await site.admitted("user-1", 2)
    await are("NearLimit")
    await site.patch("master", f"resourcequotas/{QUOTA}", {"spec": {"quota": cpus(1)}})
    await are("Exceeded", "NearLimit")
    master = site.program("master")
    await site.kill(master)
    await site.start(master)
    await site.patch("master", f"resourcequotas/{QUOTA}", {"spec": {"quota": cpus(2)}})
    await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "False")
    await are("Exceeded", "NearLimit")
    await site.patch("master", f"resourcequotas/{QUOTA}", {"spec": {"quota": cpus(1)}})
    await are("Exceeded", "Exceeded", "NearLimit")
