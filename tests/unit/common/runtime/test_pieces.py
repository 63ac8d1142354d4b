from __future__ import annotations

import asyncio
import gc
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from common.runtime import pieces
from common.runtime.pieces import PIECE_SECONDS, SHORTEST, in_pieces, own_time


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


async def test_many_that_work_in_pieces_share_one_piece_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten lists of one tenant at a time would keep others waiting ten times as long as one."""
    now = 0.0
    monkeypatch.setattr(pieces, "time", SimpleNamespace(monotonic=lambda: now))

    async def work() -> None:
        nonlocal now
        async for _ in in_pieces(range(500)):
            now += PIECE_SECONDS / 50

    working = asyncio.gather(*(work() for _ in range(10)))
    turns: list[float] = []
    while not working.done():
        began = now
        await asyncio.sleep(0)
        turns.append(now - began)
    # in the first, those that begin do not know of the later ones
    assert max(turns[2:]) <= 2 * max(PIECE_SECONDS, 10 * SHORTEST)
    assert sum(turns) == pytest.approx(100 * PIECE_SECONDS)


async def test_what_ends_early_takes_no_share_any_more() -> None:
    before = pieces._UnderWay.number
    with suppress(ZeroDivisionError):
        async for item in in_pieces(range(3)):
            1 / item
    async for _ in in_pieces(range(3)):
        break
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert pieces._UnderWay.number == before
