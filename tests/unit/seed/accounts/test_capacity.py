from __future__ import annotations

import asyncio
import math

import pytest

from common.api.types import WireIdle
from common.quota import account as accounts
from common.quota.account import Account, AccountKey
from seed.accounts.capacity import FRESH, CapacityRequester, MasterAnswer
from seed.ledger.store import StoreUnavailableError
from tests.clock import Clock
from tests.memory_store import MemoryStore
from tests.running import running
from tests.unit.fake_api_server import PATIENCE, eventually
from tests.unit.seed_world import SeedWorld, nanos, seed_world

NAME = "project-alpha"


def shortage_of(world: SeedWorld, clock: Clock | None = None) -> CapacityRequester:
    """One with a clock of its own, told by the test alone; the book's own hears of changes too and has no waiters."""
    return CapacityRequester(world.handle().writer, lambda: world.quota_cache.quota(NAME), clock=clock or Clock())


def answer(world: SeedWorld, requester: CapacityRequester, number: int, **told: object) -> None:
    world.tell(NAME, answered=number, **told)
    requester.quota_changed()


async def test_all_that_wait_ask_together_and_the_master_answers_all(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64")
    requester = shortage_of(world)
    waits = [asyncio.create_task(requester.wait(nanos(need), PATIENCE)) for need in ("cpu=2", "cpu=4", "cpu=8")]
    await world.asked(number=1)
    assert world.account().ask.first == nanos("cpu=2")
    assert world.account().ask.wanted == nanos("cpu=14")
    answer(world, requester, 1, usage="cpu=60", reserved="cpu=2")
    found = await asyncio.gather(*waits)
    assert [(answered.used, answered.reserved) for answered in found] == [(nanos("cpu=60"), nanos("cpu=2"))] * 3


async def test_who_comes_while_an_ask_is_unanswered_waits_for_the_next_one(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64")
    requester = shortage_of(world)
    first = asyncio.create_task(requester.wait(nanos("cpu=2"), PATIENCE))
    await world.asked(number=1)
    second = asyncio.create_task(requester.wait(nanos("cpu=3"), PATIENCE))
    await asyncio.sleep(0.01)
    assert world.account().ask.number == 1
    answer(world, requester, 1, usage="cpu=60")
    await first
    await world.asked(number=2)
    assert world.account().ask.wanted == nanos("cpu=3"), "what was answered is not asked again"
    assert not second.done()
    answer(world, requester, 2, usage="cpu=60")
    await second


async def test_an_older_answer_or_one_for_another_life_answers_nothing(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64")
    requester = shortage_of(world)
    waiting = asyncio.create_task(requester.wait(nanos("cpu=2"), 3))
    await world.asked(number=1)
    answer(world, requester, 0, usage="cpu=64")
    answer(world, requester, 7, usage="cpu=64", account="another life")
    with pytest.raises(TimeoutError):
        await waiting
    assert requester.refuses(nanos("cpu=1")) is None


async def test_an_unanswered_ask_whose_waiters_gave_up_is_asked_again(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64")
    requester = shortage_of(world)
    async with running(requester.wait(nanos("cpu=2"), PATIENCE)):
        await world.asked(number=1)
    waiting = asyncio.create_task(requester.wait(nanos("cpu=3"), PATIENCE))
    await world.asked(number=2)
    answer(world, requester, 2, usage="cpu=1")
    assert isinstance(await waiting, MasterAnswer)


class Held(MemoryStore):
    """Writes wait while `free` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()
        self.waiting = False

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        self.waiting = not self.free.is_set()
        await self.free.wait()
        return await super().save(key, account, version)


async def test_an_ask_whose_waiters_gave_up_while_it_was_written_delays_who_came_meanwhile_by_nothing() -> None:
    store = Held()
    async with seed_world(store) as world:
        await world.quota(limits="cpu=64")
        requester = shortage_of(world)
        store.free.clear()
        async with running(requester.wait(nanos("cpu=2"), 60)):
            await eventually(lambda: store.waiting)
            waiting = asyncio.create_task(requester.wait(nanos("cpu=3"), 60))
            await asyncio.sleep(0)
        store.free.set()
        await world.asked(number=2)
        answer(world, requester, 2, usage="cpu=1")
        assert isinstance(await waiting, MasterAnswer)


async def test_a_fresh_answer_refuses_without_asking_again(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64")
    clock = Clock()
    requester = shortage_of(world, clock)
    assert requester.refuses(nanos("cpu=5")) is None, "nothing was asked yet"
    waiting = asyncio.create_task(requester.wait(nanos("cpu=5"), PATIENCE))
    await world.asked(number=1)
    answer(world, requester, 1, usage="cpu=60")
    await waiting
    clock.now += FRESH
    found = requester.refuses(nanos("cpu=5"))
    assert found is not None
    assert found.used == nanos("cpu=60")
    assert requester.refuses(nanos("cpu=4")) is None, "that would fit"
    clock.now = math.nextafter(clock.now, math.inf)
    assert requester.refuses(nanos("cpu=5")) is None, "the answer is not fresh any more"


async def test_an_answer_refuses_nobody_once_something_was_deleted_here(world: SeedWorld) -> None:
    handle = await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
    requester = shortage_of(world)
    waiting = asyncio.create_task(requester.wait(nanos("cpu=5"), PATIENCE))
    await world.asked(number=1)
    answer(world, requester, 1, usage="cpu=60")
    await waiting
    assert requester.refuses(nanos("cpu=5")) is not None
    await handle.writer.change(lambda account: (accounts.count(account, 1, "alpha/c1", nanos("cpu=10"), {}), None))
    assert requester.refuses(nanos("cpu=5")) is None


async def test_an_answer_that_counts_what_was_deleted_here_before_it_came_refuses_nobody(world: SeedWorld) -> None:
    handle = await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
    waiting = asyncio.create_task(handle.requester.wait(nanos("cpu=5"), PATIENCE))
    await world.asked(number=1)
    await handle.writer.change(lambda account: (accounts.count(account, 1, "alpha/c1", {}, {}), None))
    world.tell(NAME, answered=1, usage="cpu=60")
    await waiting
    assert handle.requester.refuses(nanos("cpu=5")) is None, "the master will know more"


async def test_a_late_answer_that_counts_what_was_deleted_here_refuses_nobody_while_the_next_ask_is_written() -> None:
    store = Held()
    async with seed_world(store) as world:
        handle = await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
        requester = shortage_of(world)
        async with running(requester.wait(nanos("cpu=5"), 60)):
            await world.asked(number=1)
        await handle.writer.change(lambda account: (accounts.count(account, 1, "alpha/c1", nanos("cpu=10"), {}), None))
        store.free.clear()
        waiting = asyncio.create_task(requester.wait(nanos("cpu=55"), 60))
        await eventually(lambda: store.waiting)
        answer(world, requester, 1, usage="cpu=60")
        assert requester.refuses(nanos("cpu=5")) is None, "the master will know more"
        store.free.set()
        await world.asked(number=2)
        answer(world, requester, 2, usage="cpu=10")
        await waiting


async def test_an_answer_refuses_nobody_once_the_limit_was_raised(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64")
    requester = shortage_of(world)
    waiting = asyncio.create_task(requester.wait(nanos("cpu=5"), PATIENCE))
    await world.asked(number=1)
    answer(world, requester, 1, usage="cpu=60")
    await waiting
    world.limit(NAME, {"cpu": "128"})
    assert requester.refuses(nanos("cpu=5")) is None


async def test_an_answer_that_no_other_can_better_is_final_capacity_out_of_reach_or_a_seed_that_drains(
    world: SeedWorld,
) -> None:
    await world.quota(limits="cpu=64")
    requester = shortage_of(world)
    waiting = asyncio.create_task(requester.wait(nanos("cpu=5"), PATIENCE))
    await world.asked(number=1)
    answer(world, requester, 1, unavailable=[WireIdle(seed="us-1", idle={"cpu": "12"}, seconds=420)])
    assert (await waiting).final
    quota = world.quota_cache.quota(NAME)
    assert quota is not None
    (held,) = quota.out_of_reach
    assert (held.seed, held.idle, held.seconds) == ("us-1", nanos("cpu=12"), 420)
    for number, draining in ((2, False), (3, True)):
        waiting = asyncio.create_task(requester.wait(nanos("cpu=5"), PATIENCE))
        await world.asked(number=number)
        answer(world, requester, number, draining=draining, unavailable=[])
        assert (await waiting).final is draining


class Broken(MemoryStore):
    broken = False

    async def save(self, key: AccountKey, *args: object) -> str:
        if self.broken:
            raise StoreUnavailableError("the ledger is away")
        return await super().save(key, *args)  # type: ignore[arg-type]


async def test_an_ask_that_cannot_be_written_fails_those_who_wait_and_nobody_after() -> None:
    store = Broken()
    async with seed_world(store) as world:
        await world.quota(limits="cpu=64")
        requester = shortage_of(world)
        store.broken = True
        with pytest.raises(StoreUnavailableError, match="the ledger is away"):
            await requester.wait(nanos("cpu=5"), PATIENCE)
        store.broken = False
        waiting = asyncio.create_task(requester.wait(nanos("cpu=5"), PATIENCE))
        await world.asked(number=1)
        answer(world, requester, 1)
        await waiting
