"""A quota on the master, Machines on the seeds: real processes on real API servers, also while they are killed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from common.quota import resources
from devcluster.install import GROUP_PATH, Installation, Program, quota
from devcluster.load import Attempt, Outcome, Size, Tenant, fill, parse_refusal, storm, unjustified
from devcluster.manifests import apply
from devcluster.observe import Overshoot, QuotaWatch, latencies, percentile, quota_on

pytestmark = pytest.mark.integration

MACHINES = 400
CLIENTS = 32
SMALLEST = Size("1", "1Gi", "1Gi")
SETTLED_SECONDS = 45.0
FILL_AT_MOST = 2000

_names = (f"whole-way-{number}" for number in itertools.count(1))


@pytest_asyncio.fixture(scope="module")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    """Two replicas of each seed's agent are installed, and one runs until a test wants both."""
    async with Installation(tmp_path_factory.mktemp("sq"), replicas=2) as installed:
        await asyncio.gather(*(program.stop() for program in others(installed)))
        yield installed


def others(installed: Installation) -> list[Program]:
    return [program for name, program in installed.programs.items() if name.endswith("-b")]


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


class Field:
    """One quota over the installation's user clusters, which are empty at first, and what happens to it."""

    def __init__(self, installed: Installation, name: str, limits: dict[str, str], tenants: list[Tenant]) -> None:
        self.installed = installed
        self.name = name
        self.limits = resources.parse(limits)
        self.tenants = tenants
        self.overshoot = Overshoot(tenants, SMALLEST)
        self.watch = QuotaWatch(installed.master, name)

    async def storm(
        self, sizes: list[Size], beside: Callable[[list[Attempt]], Coroutine[None, None, None]]
    ) -> list[Attempt]:
        """All of them at once, with `beside` running meanwhile; it sees the attempts as they end."""
        seen: list[Attempt] = []
        counting = asyncio.create_task(self.overshoot.watch())
        meddling = asyncio.create_task(beside(seen))
        try:
            attempts = await storm(self.tenants, sizes, CLIENTS, seen.append)
            await asyncio.wait_for(meddling, SETTLED_SECONDS)
        finally:
            meddling.cancel()
            counting.cancel()
            await asyncio.gather(meddling, counting, return_exceptions=True)
        await self.overshoot.look()
        return attempts

    async def quiet(self) -> None:
        """Until nothing is reserved that is not counted, and master and seeds show what exists."""
        await self.watch.until(lambda view: not any(resources.parse(view.reserved).values()), SETTLED_SECONDS)
        await self.overshoot.look()
        used = resources.only(self.overshoot.used, self.limits)
        await self.watch.until(lambda view: resources.only(view.used, self.limits) == used, SETTLED_SECONDS)
        for seed in self.installed.seeds:
            async with asyncio.timeout(SETTLED_SECONDS):
                while (
                    resources.only((await quota_on(self.installed.cluster(seed), self.name)).used, self.limits) != used
                ):
                    await asyncio.sleep(0.1)

    async def clear(self) -> None:
        for tenant in self.tenants:
            await tenant.delete(await tenant.machines())


@asynccontextmanager
async def field(installed: Installation, limits: dict[str, str]) -> AsyncIterator[Field]:
    name = next(_names)
    async with AsyncExitStack() as stack:
        clusters = installed.user_clusters.values()
        tenants = [await stack.enter_async_context(Tenant(installed.cluster(cluster))) for cluster in clusters]
        opened = Field(installed, name, limits, tenants)
        await opened.clear()
        await apply(installed.master, [quota(name, installed.project, limits)])
        await installed.enforced(name)
        await stack.enter_async_context(opened.watch)
        await opened.overshoot.limit(opened.limits)
        try:
            yield opened
        finally:
            async with installed.master.session() as session:
                await session.delete(f"{GROUP_PATH}/resourcequotas/{name}", raise_for_status=True)
            await opened.clear()


async def nothing(_attempts: list[Attempt]) -> None:
    return


async def the_limit_held_and_every_refusal_was_right(opened: Field, attempts: list[Attempt]) -> None:
    assert opened.overshoot.count == 0, opened.overshoot.worst
    outcomes = Counter(attempt.outcome for attempt in attempts)
    assert outcomes.keys() == {Outcome.ADMITTED, Outcome.REFUSED}, [
        (attempt.status, attempt.tries, attempt.message)
        for attempt in attempts
        if attempt.outcome not in (Outcome.ADMITTED, Outcome.REFUSED)
    ]
    assert not unjustified(attempts, opened.limits, {})
    for attempt in attempts:
        if attempt.outcome is Outcome.REFUSED:
            refusal = parse_refusal(attempt.message)
            assert refusal is not None
            assert refusal.quota == opened.name
            assert refusal.limited == resources.only(opened.limits, refusal.limited)


async def the_rest_can_be_filled_exactly_from_either_seed(opened: Field) -> None:
    await opened.quiet()
    assert opened.overshoot.room() > 0, "the storm must leave something"
    attempts = await fill(opened.tenants, SMALLEST, FILL_AT_MOST)
    await opened.overshoot.look()
    assert opened.overshoot.room() == 0
    assert opened.overshoot.count == 0
    refused = [attempt for attempt in attempts if attempt.outcome is not Outcome.ADMITTED]
    assert {attempt.outcome for attempt in refused} == {Outcome.REFUSED}
    assert {attempt.cluster for attempt in refused} >= {tenant.name for tenant in opened.tenants}
    await opened.quiet()


async def test_a_storm_fills_the_limit_exactly_and_the_logs_stay_calm(installation: Installation) -> None:
    sizes = mixed_sizes(MACHINES)
    async with field(installation, half_of(sizes)) as opened:
        attempts = await opened.storm(sizes, nothing)
        await the_limit_held_and_every_refusal_was_right(opened, attempts)
        admitted = sum(attempt.outcome is Outcome.ADMITTED for attempt in attempts)
        assert MACHINES // 3 < admitted < MACHINES * 2 // 3
        assert not any(attempt.lost for attempt in attempts)
        await the_rest_can_be_filled_exactly_from_either_seed(opened)
    assert installation.complaints() == []


async def test_the_master_shows_a_new_machine_soon(installation: Installation) -> None:
    limits = {"cpu": "100", "memory": "100Gi", "storage": "100Gi"}
    async with field(installation, limits) as opened:
        seconds, attempts = await latencies(opened.tenants[0], opened.watch, SMALLEST, 20)
        assert len(seconds) == 20, attempts[-1].message
        p50, slowest = percentile(seconds, 50), max(seconds)
        print(f"\nMachine sent to master's globalUsage: p50 {p50 * 1000:.0f} ms, slowest {slowest * 1000:.0f} ms")
        assert p50 < 1


async def test_agents_killed_in_a_storm_lose_nothing_and_come_back(installation: Installation) -> None:
    sizes = mixed_sizes(MACHINES)

    async def kill_each_in_turn(attempts: list[Attempt]) -> None:
        for number, seed in enumerate(installation.seeds, 1):
            while len(attempts) < MACHINES * number // 8:
                await asyncio.sleep(0.01)
            agent = installation.programs[f"seedquota-{seed}"]
            await agent.kill()
            await agent.start()

    async with field(installation, half_of(sizes)) as opened:
        attempts = await opened.storm(sizes, kill_each_in_turn)
        await the_limit_held_and_every_refusal_was_right(opened, attempts)
        assert any(attempt.lost for attempt in attempts), "the kill must have been felt"
        await the_rest_can_be_filled_exactly_from_either_seed(opened)


def killing(program: Program, seconds: float) -> Callable[[list[Attempt]], Coroutine[None, None, None]]:
    """In the middle of a storm, for so long."""

    async def kill(attempts: list[Attempt]) -> None:
        while len(attempts) < MACHINES // 8:
            await asyncio.sleep(0.01)
        await program.kill()
        await asyncio.sleep(seconds)
        await program.start()

    return kill


async def test_the_master_killed_in_a_storm_is_waited_for(installation: Installation) -> None:
    sizes = mixed_sizes(MACHINES)
    async with field(installation, half_of(sizes)) as opened:
        attempts = await opened.storm(sizes, killing(installation.programs["seedquota-master"], 1))
        await the_limit_held_and_every_refusal_was_right(opened, attempts)
        await the_rest_can_be_filled_exactly_from_either_seed(opened)


async def test_two_replicas_of_each_agent_share_one_account(installation: Installation) -> None:
    sizes = mixed_sizes(MACHINES)
    await asyncio.gather(*(program.start() for program in others(installation)))
    one = installation.programs["seedquota-seed-1"]  # it may lead or not; the other serves on
    async with field(installation, half_of(sizes)) as opened:
        attempts = await opened.storm(sizes, killing(one, 2))
        await the_limit_held_and_every_refusal_was_right(opened, attempts)
        await the_rest_can_be_filled_exactly_from_either_seed(opened)
