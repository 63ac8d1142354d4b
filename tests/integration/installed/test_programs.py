"""Bad days of our own programs: killed, stopped and started again while Machines are created."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from common.quota import resources
from devcluster.load import Attempt, Outcome, Size, fill, machine, storm, unjustified
from devcluster.observe import Overshoot
from tests.integration.installed.site import MACHINES, NAMESPACE, QUOTA, SMALL, Answer, Json, Site, cpus, until
from tests.unit.fake_api_server import within

pytestmark = pytest.mark.integration

LIMIT = cpus(120)
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/seedquota-seed"
SIZES = [Size("1", "1Gi", "1Gi"), Size("2", "2Gi", "1Gi"), Size("4", "4Gi", "1Gi")]


def sizes(count: int = 140) -> list[Size]:
    """Together about twice the limit."""
    chosen = random.Random(1)
    return [chosen.choice(SIZES) for _ in range(count)]


async def some_of(attempts: list[Attempt], count: int) -> None:
    while len(attempts) < count:
        await asyncio.sleep(0.01)


async def proves_exact(site: Site, overshoot: Overshoot, attempts: list[Attempt]) -> None:
    """No refusal was wrong, nothing stays reserved, and what is left can be used to the last unit."""
    limits = resources.parse(LIMIT)
    assert Counter(attempt.outcome for attempt in attempts if attempt.outcome is Outcome.FAILED) == {}
    assert [a for a in attempts if a.outcome is Outcome.UNAVAILABLE] == []
    assert unjustified(attempts, limits, {}) == []
    await site.reserves_nothing("seed-1", "seed-2", seconds=60)
    await overshoot.look()
    left = overshoot.room()
    more = await fill(site.tenants, SMALL, left + 10)
    assert [a.message for a in more if a.outcome not in (Outcome.ADMITTED, Outcome.REFUSED)] == []
    await overshoot.look()
    assert overshoot.room() == 0
    assert resources.only(overshoot.used, limits) == limits
    await site.uses(LIMIT)
    await site.reserves_nothing("seed-1", "seed-2")


async def leader(site: Site) -> str:
    spec = (await site.get("seed-1", LEASE))["spec"]
    assert spec.get("holderIdentity"), "nobody leads"
    return str(spec["holderIdentity"]).removeprefix("seedquota-")


async def test_an_agent_killed_in_a_storm_loses_and_overdraws_nothing(site: Site) -> None:
    await site.quota(LIMIT)
    attempts: list[Attempt] = []
    async with site.no_overshoot(LIMIT) as overshoot:
        storming = asyncio.create_task(storm(site.tenants, sizes(), 16, attempts.append))
        await some_of(attempts, 25)
        await site.kill(site.program("seed-1"))
        await asyncio.sleep(0.3)
        await site.start(site.program("seed-1"))
        await storming
        await proves_exact(site, overshoot, attempts)


async def test_with_two_replicas_the_leader_can_be_killed_in_a_storm(site: Site) -> None:
    await site.quota(LIMIT)
    await site.start(site.program("seed-1-b"))
    attempts: list[Attempt] = []
    try:
        async with site.no_overshoot(LIMIT) as overshoot:
            storming = asyncio.create_task(storm(site.tenants, sizes(), 16, attempts.append))
            await some_of(attempts, 25)
            killed = await leader(site)
            await site.kill(site.program(killed))
            await storming

            async def succeeded() -> None:
                assert await leader(site) != killed

            await until(succeeded, 30)
            await proves_exact(site, overshoot, attempts)
    finally:
        await keep_first(site)


async def test_a_leader_that_is_stopped_hands_over_at_once_and_no_create_fails(site: Site) -> None:
    await site.quota(LIMIT)
    await site.start(site.program("seed-1-b"))
    attempts: list[Attempt] = []
    try:
        async with site.no_overshoot(LIMIT) as overshoot:
            storming = asyncio.create_task(storm(site.tenants, sizes(), 16, attempts.append))
            await some_of(attempts, 25)
            stopped = await leader(site)
            await site.stop(site.program(stopped))

            async def succeeded() -> None:
                assert await leader(site) != stopped

            async with within(3):
                await until(succeeded, 30)
            await storming
            assert sum(attempt.lost for attempt in attempts) == 0
            await proves_exact(site, overshoot, attempts)
    finally:
        await keep_first(site)


async def keep_first(site: Site) -> None:
    """The second replica rests again, the first one runs."""
    first, second = site.program("seed-1"), site.program("seed-1-b")
    if first in site.down:
        await site.start(first)
    await site.stop(second)


async def test_a_master_killed_while_capacity_is_asked_for_loses_and_overdraws_nothing(site: Site) -> None:
    await site.quota(LIMIT)
    attempts: list[Attempt] = []
    async with site.no_overshoot(LIMIT) as overshoot:
        storming = asyncio.create_task(storm(site.tenants, sizes(), 16, attempts.append))
        for count in (20, 50):
            await some_of(attempts, count)
            await site.kill(site.program("master"))
            await asyncio.sleep(0.2)
            await site.start(site.program("master"))
        await storming
        await proves_exact(site, overshoot, attempts)


async def test_the_masters_api_server_can_restart_while_capacity_is_asked_for(site: Site) -> None:
    await site.quota(LIMIT)
    attempts: list[Attempt] = []
    async with site.no_overshoot(LIMIT) as overshoot:
        storming = asyncio.create_task(storm(site.tenants, sizes(), 16, attempts.append))
        await some_of(attempts, 25)
        await site.kill(site.server("master"))
        await asyncio.sleep(0.5)
        await site.start(site.server("master"))
        await storming
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


async def test_a_clean_run_logs_nothing_above_info(site: Site) -> None:
    before = site.positions()
    await site.quota(LIMIT)
    async with site.no_overshoot(LIMIT) as overshoot:
        attempts = await storm(site.tenants, sizes(), 16)
        await proves_exact(site, overshoot, attempts)
    await site.delete("master", f"resourcequotas/{QUOTA}")
    await site.clean()

    def stands_out(line: Json) -> bool:
        return line["level"] not in ("debug", "info") or "exception" in line

    assert [line for line in site.said(before) if stands_out(line)] == []


async def test_while_no_agent_runs_machines_lose_finalizers_and_go_but_none_grows(site: Site) -> None:
    """User-1 asks seed-1, of which one replica runs."""
    await site.quota(cpus(3))
    body = machine("going", SMALL)
    body["metadata"] = {"name": "going", "finalizers": ["example.com/cloud"]}
    assert (await site.call("user-1", "POST", MACHINES, body)).status == 201
    await site.uses(cpus(1))
    path = f"{MACHINES}/going"

    async def grows(cpu: int) -> Answer:
        size = {"spec": {"providerSpec": {"value": {"cloudProviderSpec": {"cpu": str(cpu)}}}}}
        return await site.call("user-1", "PATCH", path, size)

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
