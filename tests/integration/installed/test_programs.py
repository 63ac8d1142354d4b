"""Bad days of our own programs: killed, stopped and started again while Machines are created."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from common.quota import resources
from devcluster.load import Attempt, Outcome, Size, fill, machine, parse_refusal, storm, unjustified
from devcluster.observe import Overshoot, QuotaWatch, latencies, percentile
from devcluster.patience import is_busy, patient_timeout
from tests.integration.installed.site import MACHINES, NAMESPACE, QUOTA, SMALL, Answer, Json, Site, cpus, until
from tests.running import running

pytestmark = pytest.mark.integration

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/seedquota-seed"
STORM = 120
CLIENTS = 32
FILL_AT_MOST = 500
QUIET_SECONDS = 60.0
LATE = ("no answer within", "not renewed within")  # an API server, or this machine, had too much to do


def mixed_sizes(count: int) -> list[Size]:
    """Even numbers of cpus and multiples of 4Gi, in many shapes."""
    pick = random.Random(count)
    cpus = pick.choices((4, 6, 8, 12, 16), k=count)
    return [Size(str(cpu), f"{cpu * pick.choice((2, 4, 8))}Gi", f"{pick.randrange(10, 200)}Gi") for cpu in cpus]


def half_of(sizes: list[Size]) -> dict[str, str]:
    """A limit that about half of them fill, and that even numbers alone cannot."""
    gib = 10**9 << 30
    total = resources.total(size.amounts for size in sizes)
    return {
        "cpu": str(total["cpu"] // 10**9 // 4 * 2 + 1),
        "memory": f"{total['memory'] // gib // 8 * 4 + 3}Gi",
        "storage": f"{total['storage'] // gib}Gi",
    }


SIZES = mixed_sizes(STORM)
LIMIT = half_of(SIZES)


@asynccontextmanager
async def storming(
    site: Site, attempts: list[Attempt], clients: int = CLIENTS
) -> AsyncIterator[tuple[Overshoot, asyncio.Task[object]]]:
    """All sizes at once, within the limit at any time, and what ends with the storm. A test that fails ends it, too."""
    async with (
        site.no_overshoot(LIMIT) as overshoot,
        running(storm(site.tenants, SIZES, clients, attempts.append)) as (storm_ends,),
    ):
        yield overshoot, storm_ends


async def some_of(attempts: list[Attempt], count: int) -> None:
    async with patient_timeout(QUIET_SECONDS):
        while len(attempts) < count:
            await asyncio.sleep(0.01)


async def proves_exact(site: Site, overshoot: Overshoot, attempts: list[Attempt]) -> None:
    """Every refusal was right, nothing stays reserved, and what is left can be used to the last unit from each seed."""
    limits = resources.parse(LIMIT)
    outcomes = {attempt.outcome for attempt in attempts}
    gave_up = {Outcome.UNAVAILABLE} if is_busy() else set()  # before anybody could decide
    assert outcomes - gave_up == {Outcome.ADMITTED, Outcome.REFUSED}, [
        (attempt.status, attempt.tries, attempt.message)
        for attempt in attempts
        if attempt.outcome not in (Outcome.ADMITTED, Outcome.REFUSED)
    ]
    assert unjustified(attempts, limits, {}) == []
    for attempt in attempts:
        if attempt.outcome is Outcome.REFUSED:
            refusal = parse_refusal(attempt.message)
            assert refusal is not None
            assert refusal.quota == QUOTA
            assert refusal.limited == resources.only(limits, refusal.limited)
    await shows_what_exists(site, overshoot)
    assert overshoot.room() > 0, "the storm must leave something"
    more = await fill(site.tenants, SMALL, FILL_AT_MOST)
    await overshoot.look()
    assert overshoot.room() == 0
    refused = [attempt for attempt in more if attempt.outcome is not Outcome.ADMITTED]
    assert {attempt.outcome for attempt in refused} == {Outcome.REFUSED}, [attempt.message for attempt in refused]
    assert {attempt.cluster for attempt in refused} == {tenant.name for tenant in site.tenants}
    await shows_what_exists(site, overshoot)


async def shows_what_exists(site: Site, overshoot: Overshoot) -> None:
    """Until nothing is reserved that is not counted, and master and seeds show what there is."""
    await site.reserves_nothing("seed-1", "seed-2", seconds=QUIET_SECONDS)
    await overshoot.look()
    used = resources.only(overshoot.used, resources.parse(LIMIT))
    await site.uses(resources.render(used), seconds=QUIET_SECONDS)

    async def on_seeds() -> None:
        for seed in ("seed-1", "seed-2"):
            assert resources.only((await site.view(cluster=seed)).used, used) == used, seed

    await until(on_seeds, QUIET_SECONDS)


async def leader(site: Site) -> str:
    spec = (await site.get("seed-1", LEASE))["spec"]
    assert spec.get("holderIdentity"), "nobody leads"
    return str(spec["holderIdentity"]).removeprefix("seedquota-")


async def test_agents_killed_in_a_storm_lose_and_overdraw_nothing(site: Site) -> None:
    await site.quota(LIMIT)
    attempts: list[Attempt] = []
    async with storming(site, attempts) as (overshoot, storm_ends):
        for count, seed in ((STORM // 8, "seed-1"), (STORM // 4, "seed-2")):
            await some_of(attempts, count)
            await site.kill(site.program(seed))
            await site.start(site.program(seed))
        await storm_ends
        assert any(attempt.lost for attempt in attempts), "the kill must have been felt"
        await proves_exact(site, overshoot, attempts)


async def test_with_two_replicas_of_each_agent_leaders_and_others_can_be_killed_in_a_storm(site: Site) -> None:
    await site.quota(LIMIT)
    await site.start(site.program("seed-1-b"), site.program("seed-2-b"))
    attempts: list[Attempt] = []
    try:
        async with storming(site, attempts) as (overshoot, storm_ends):
            await some_of(attempts, STORM // 8)
            killed = await leader(site)
            one = site.program("seed-2")  # it may lead or not; the other serves on
            await site.kill(site.program(killed), one)
            await asyncio.sleep(2)
            await site.start(one)
            await storm_ends

            async def succeeded() -> None:
                assert await leader(site) != killed

            await until(succeeded, 30)
            await proves_exact(site, overshoot, attempts)
    finally:
        await keep_first(site)


async def test_a_leader_that_is_stopped_hands_over_and_no_create_fails(site: Site) -> None:
    attempts: list[Attempt] = []
    async with site.patient("seed-1", "seed-1-b"):
        await site.quota(LIMIT)
        async with storming(site, attempts, CLIENTS // 2) as (overshoot, storm_ends):
            await some_of(attempts, STORM // 8)
            stopped = await leader(site)
            asked = datetime.now(UTC)
            await site.stop(site.program(stopped))

            async def succeeded() -> None:
                assert await leader(site) != stopped

            await until(succeeded, 60)
            taken = (await site.get("seed-1", LEASE))["spec"]["acquireTime"]
            assert datetime.fromisoformat(taken) - asked < timedelta(seconds=30), "it did not wait for the lease's end"
            await storm_ends
            assert [attempt for attempt in attempts if attempt.cluster == "user-1" and attempt.lost] == []
            await proves_exact(site, overshoot, attempts)


async def keep_first(site: Site) -> None:
    """The second replicas rest again, the first ones run."""
    await site.start(*(program for program in map(site.program, ("seed-1", "seed-2")) if program in site.down))
    await site.stop(site.program("seed-1-b"), site.program("seed-2-b"))


async def test_a_master_killed_while_capacity_is_asked_for_loses_and_overdraws_nothing(site: Site) -> None:
    await site.quota(LIMIT)
    attempts: list[Attempt] = []
    async with storming(site, attempts) as (overshoot, storm_ends):
        for count, seconds in ((20, 1.0), (STORM // 4, 0.2)):
            await some_of(attempts, count)
            await site.kill(site.program("master"))
            await asyncio.sleep(seconds)
            await site.start(site.program("master"))
        await storm_ends
        await proves_exact(site, overshoot, attempts)


async def test_the_masters_api_server_can_restart_while_capacity_is_asked_for(site: Site) -> None:
    await site.quota(LIMIT)
    attempts: list[Attempt] = []
    async with storming(site, attempts) as (overshoot, storm_ends):
        await some_of(attempts, STORM // 8)
        await site.kill(site.server("master"))
        await asyncio.sleep(0.5)
        await site.start(site.server("master"))
        await storm_ends
        await proves_exact(site, overshoot, attempts)


async def test_an_agent_that_restarts_in_order_does_not_wait_for_the_window_though_the_master_began_anew(
    site: Site,
) -> None:
    """The master has seen no write of the account since it began, and cannot know by that whether it is intact."""
    await site.quota(cpus(3))
    await site.admitted("user-1")
    await site.uses(cpus(1))
    before = site.positions()
    await site.stop(site.program("master"))
    await site.start(site.program("master"))

    async def connected() -> None:
        lines = [line for line in site.said(before) if line["message"] == "seed connected"]
        assert {line["seed"] for line in lines} == {"seed-1", "seed-2"}

    await until(connected, 30)
    await site.stop(site.program("seed-1"))
    await site.start(site.program("seed-1"))

    async def serves() -> None:
        assert (await site.create("user-1")).status == 201

    await until(serves, 30)
    said = [line["message"] for line in site.said(before) if line["program"] == "seedquota-seed-1"]
    assert "account taken over" in said, "nobody else led meanwhile, so it was fenced"
    assert "ledger was lost: recounting" not in said


async def test_the_master_shows_a_new_machine_soon(site: Site) -> None:
    await site.quota({"cpu": "100", "memory": "100Gi", "storage": "100Gi"})
    async with QuotaWatch(site.server("master"), QUOTA) as watch:
        seconds, attempts = await latencies(site.one, watch, SMALL, 20)
    assert len(seconds) == 20, attempts[-1].message
    p50, slowest = percentile(seconds, 50), max(seconds)
    print(f"\nMachine sent to master's globalUsage: p50 {p50 * 1000:.0f} ms, slowest {slowest * 1000:.0f} ms")
    # Each is sent when the last was shown: what only a look every five seconds brings about takes five.
    assert p50 < 2.5, "no event brought it about"


async def test_a_clean_run_logs_nothing_above_info(site: Site) -> None:
    def stands_out(line: Json) -> bool:
        late = is_busy() and any(text in str(line.get("error")) for text in LATE)
        return "exception" in line or (line["level"] not in ("debug", "info") and not late)

    assert [line for line in site.said_at_the_start if stands_out(line)] == []
    async with site.patient("seed-1", "seed-2"):
        before = site.positions()
        await site.quota(LIMIT)
        async with site.no_overshoot(LIMIT) as overshoot:
            attempts = await storm(site.tenants, SIZES, CLIENTS)
            admitted = sum(attempt.outcome is Outcome.ADMITTED for attempt in attempts)
            assert STORM // 3 < admitted < STORM * 2 // 3
            assert not any(attempt.lost for attempt in attempts)
            await proves_exact(site, overshoot, attempts)
        await site.delete("master", f"resourcequotas/{QUOTA}")
        await site.clean()
        assert [line for line in site.said(before) if stands_out(line)] == []


async def test_while_no_agent_runs_machines_lose_finalizers_and_go_but_none_grows(site: Site) -> None:
    """User-1 asks seed-1, of which one replica runs."""
    await site.quota(cpus(3))
    body = machine("going", SMALL)
    body["metadata"] = {"name": "going", "finalizers": ["example.com/cloud"]}
    assert (await site.decided("user-1", body)).status == 201
    await site.uses(cpus(1))
    path = f"{MACHINES}/going"

    async def grows(cpu: int) -> Answer:
        size = {"spec": {"providerSpec": {"value": {"cloudProviderSpec": {"cpu": str(cpu)}}}}}
        return await site.decision("user-1", "PATCH", path, size)

    refused = await grows(4)
    assert refused.status == 403, refused
    assert "requested: cpu=3, used: cpu=1, limited: cpu=3" in refused.message
    assert (await grows(2)).status == 200
    await site.uses(cpus(2))

    await site.kill(site.program("seed-1"))
    assert "failed calling webhook" in (await grows(3)).message
    assert (await site.create("user-1")).status == 500
    await site.patch("user-1", path, {"metadata": {"labels": {"a": "b"}, "annotations": {"example.com/a": "b"}}})
    await site.patch("user-1", f"{path}/status", {"status": {"nodeRef": {"name": "n1"}}})
    await site.delete("user-1", path)
    await site.patch("user-1", path, {"metadata": {"finalizers": None}})
    assert (await site.call("user-1", "GET", path)).status == 404
    await site.start(site.program("seed-1"))
    await site.uses(cpus(0))
