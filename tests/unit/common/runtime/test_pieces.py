from __future__ import annotations

import asyncio
import time

from common.runtime.pieces import PIECE_SECONDS, in_pieces, own_time


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
