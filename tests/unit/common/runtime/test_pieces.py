from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from common.runtime import pieces
from common.runtime.pieces import (
    PIECE_SECONDS,
    REQUEST_SECONDS,
    SMALL,
    before_pieces,
    in_one_piece,
    in_pieces,
    own_time,
)
from tests.running import running
from tests.unit.fake_api_server import PATIENCE

ITEM_SECONDS = PIECE_SECONDS / 50


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What has been worked, in all: the clock stands still beside it."""
    work = [0.0]
    monkeypatch.setattr(pieces, "time", SimpleNamespace(monotonic=lambda: work[0]))
    return work


async def work(spent: list[float], items: int = 500) -> None:
    async for _ in in_pieces(range(items)):
        spent[0] += ITEM_SECONDS


async def turns_of(spent: list[float], working: asyncio.Future[object]) -> list[float]:
    """How long each turn of the event loop was until that was done."""
    found: list[float] = []
    while not working.done():
        began = spent[0]
        await asyncio.sleep(0)
        found.append(spent[0] - began)
    return found


async def test_own_time_is_without_that_of_others_between_the_pieces() -> None:
    async def work() -> float:
        began = own_time()
        async for _ in in_pieces(range(10)):
            until = time.monotonic() + PIECE_SECONDS
            while time.monotonic() < until:
                pass
        return own_time() - began

    began = time.monotonic()
    own = await asyncio.gather(work(), work(), work())
    assert all(seconds >= 9 * PIECE_SECONDS for seconds in own)
    assert sum(own) <= time.monotonic() - began


async def test_many_that_work_in_pieces_have_one_piece_in_each_turn(spent: list[float]) -> None:
    """Ten lists of one tenant at a time would keep others waiting ten times as long as one."""
    turns = await turns_of(spent, asyncio.gather(*(work(spent) for _ in range(10))))
    assert max(turns) <= PIECE_SECONDS + ITEM_SECONDS
    assert sum(turns) == pytest.approx(100 * PIECE_SECONDS)


async def test_who_waits_first_goes_first(spent: list[float]) -> None:
    order: list[int] = []

    async def one(number: int) -> None:
        async for _ in in_pieces(range(100)):
            spent[0] += PIECE_SECONDS
            order.append(number)

    await asyncio.gather(*(one(number) for number in range(3)))
    assert order[1:10] == [0, 1, 2, 0, 1, 2, 0, 1, 2]


async def test_who_ends_early_or_is_cancelled_keeps_nobody_waiting(spent: list[float]) -> None:
    others = [asyncio.create_task(work(spent)) for _ in range(3)]
    await asyncio.sleep(0)
    others[1].cancel()
    with suppress(ZeroDivisionError):
        async for item in in_pieces(range(100)):
            1 / item
    async for _ in in_pieces(range(100)):
        break
    await asyncio.gather(others[0], others[2])
    await in_one_piece()


async def test_few_items_wait_for_nobody(spent: list[float]) -> None:
    others = asyncio.gather(*(work(spent) for _ in range(10)))
    with before_pieces():
        await asyncio.sleep(0)
        began = spent[0]
        assert [item async for item in in_pieces(list(range(SMALL)))] == list(range(SMALL))
        assert spent[0] == began
    await others


async def test_nothing_is_done_in_pieces_while_a_request_is_answered(spent: list[float]) -> None:
    working = asyncio.gather(*(work(spent) for _ in range(3)))
    for _ in range(5):
        await asyncio.sleep(0)
    with before_pieces():
        await asyncio.sleep(0)  # the piece that had its turn by then
        began = spent[0]
        for _ in range(20):
            await asyncio.sleep(0)
        assert spent[0] == began
    await working


async def test_requests_without_a_pause_do_not_stop_what_is_done_in_pieces() -> None:
    """By the real clock: there is always one, and none takes long."""

    async def requests() -> None:
        while True:
            with before_pieces():
                await asyncio.sleep(0.001)

    async def long() -> None:
        async for _ in in_pieces(range(20)):
            until = time.monotonic() + PIECE_SECONDS
            while time.monotonic() < until:
                pass

    async with running(requests(), requests()):
        async with asyncio.timeout(PATIENCE):
            await long()


async def test_nothing_waits_for_a_request_that_waits_itself(spent: list[float]) -> None:
    """A tenant's request that waits for ten seconds would slow down what is done in pieces for as long."""
    with before_pieces():
        spent[0] += 2 * REQUEST_SECONDS
        turns = await turns_of(spent, asyncio.ensure_future(work(spent)))
        assert sum(turns) == pytest.approx(10 * PIECE_SECONDS)
        assert len(turns) < 20
