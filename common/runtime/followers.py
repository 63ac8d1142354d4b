"""Tasks that a program runs all the time. None of them ends by itself: an end is an error of the program."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence


async def until_stopped(stop: asyncio.Event, followers: Sequence[asyncio.Task[None]]) -> None:
    """Raises what ended one of the followers."""

    async def stopped() -> None:
        await stop.wait()

    stopping = asyncio.create_task(stopped(), name="stop")
    done, _ = await asyncio.wait([stopping, *followers], return_when=asyncio.FIRST_COMPLETED)
    if stopping in done:
        return
    stopping.cancel()
    for task in done:
        await task


async def within_start(
    seconds: float, followers: Sequence[asyncio.Task[None]], *needed: Coroutine[object, object, None]
) -> None:
    """All that is needed before the first request can be answered, or the error that prevents it."""

    async def prepare() -> None:
        await asyncio.gather(*needed)

    preparing = asyncio.create_task(prepare(), name="preparing")
    try:
        async with asyncio.timeout(seconds):
            done, _ = await asyncio.wait([preparing, *followers], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
