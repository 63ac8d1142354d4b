from __future__ import annotations

import asyncio

import pytest

from common.runtime.token_bucket import TokenBucket
from common.server import handshakes
from common.server.fair_queue import FairQueue
from common.server.handshakes import BURST, PER_SECOND, Handshakes


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
