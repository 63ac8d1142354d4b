from __future__ import annotations

import asyncio

import pytest

from common.runtime.token_bucket import TokenBucket
from common.server import handshakes
from common.server.fair_queue import FairPlaces, FairQueue
from common.server.handshakes import BURST, PER_SECOND, Handshakes
from tests.unit.fake_api_server import PATIENCE


def test_after_a_quiet_time_so_many_begin_at_once_and_then_so_many_a_second() -> None:
    turns = TokenBucket(PER_SECOND, BURST)
    assert sum(turns.take(1000.0) for _ in range(BURST + 100)) == BURST
    assert sum(turns.take(1000.0 + i / 10_000) for i in range(10_000)) == pytest.approx(PER_SECOND, abs=1)


def test_an_address_with_thousands_of_connections_delays_another_by_one() -> None:
    turns: FairQueue[str] = FairQueue()
    for i in range(5000):
        turns.wait("192.0.2.1", f"flood {i}")
    turns.wait("192.0.2.2", "other")
    assert [turns.next(), turns.next(), turns.next()] == ["flood 0", "other", "flood 1"]


def test_who_leaves_has_no_turn() -> None:
    turns: FairQueue[str] = FairQueue()
    turns.wait("a", "first")
    turns.wait("a", "second")
    turns.wait("b", "third")
    turns.leave("a", "first")
    turns.leave("b", "third")
    turns.leave("b", "third")
    assert turns.next() == "second"
    assert not turns
    with pytest.raises(KeyError):
        turns.next()


async def test_waiting_ones_begin_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "BURST", 2)
    shakes, began = Handshakes(), list[str]()

    async def begin(address: str) -> None:
        await shakes.turn(address)
        began.append(address)

    flood = [asyncio.create_task(begin("flood")) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(begin("other"), *flood)
    assert len(began) == 21
    assert began.index("other") < 6


async def test_one_that_ends_while_it_waits_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "BURST", 1)
    monkeypatch.setattr(
        handshakes, "PER_SECOND", 1
    )  # no turn is given before the others have left, on a slow machine too
    shakes = Handshakes()
    await shakes.turn("a")
    waiting = [asyncio.create_task(shakes.turn("a")) for _ in range(50)]
    await asyncio.sleep(0)
    for task in waiting[:-1]:
        task.cancel()
    await asyncio.gather(*waiting[:-1], return_exceptions=True)
    assert len(shakes._queue._waiting["a"]) == 1
    await waiting[-1]
    assert not shakes._queue


async def test_of_what_is_worked_on_at_a_time_parties_take_turns_and_who_leaves_gives_up_the_place() -> None:
    places, begun, go_on = FairPlaces(2), [], asyncio.Event()

    async def work(party: str, name: str) -> None:
        await places.take(party)
        begun.append(name)
        try:
            await go_on.wait()
        finally:
            places.give_back()

    tasks = [asyncio.create_task(work("a", f"a{number}")) for number in range(100)]
    tasks.append(asyncio.create_task(work("b", "b")))
    await asyncio.sleep(0.01)
    assert begun == ["a0", "a1"]
    for task in (tasks[0], tasks[2]):  # one that works and one that waits
        task.cancel()
    await asyncio.sleep(0.01)
    assert begun == ["a0", "a1", "b"]
    tasks[1].cancel()
    await asyncio.sleep(0.01)
    assert begun[-1] == "a3"
    go_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(begun) == 100 and places._free == 2


async def test_a_place_that_is_handed_over_in_the_moment_in_which_its_party_leaves_is_not_lost() -> None:
    places = FairPlaces(1)

    async def work(holds: asyncio.Event) -> None:
        await places.take("a")
        try:
            await holds.wait()
        finally:
            places.give_back()

    holds = asyncio.Event()
    first, second, third = [asyncio.create_task(work(holds)) for _ in range(3)]
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0)  # the place is second's, which has not run yet
    second.cancel()
    holds.set()
    async with asyncio.timeout(PATIENCE):
        await third
    await asyncio.gather(first, second, return_exceptions=True)
    assert places._free == 1
