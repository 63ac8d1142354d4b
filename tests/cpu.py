"""CPU time of a test's own work, whatever else the machine does and whatever other tests have left in memory."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from tests.running import running


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """To look through what other tests have left takes longer than what is measured."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds_of(work: Callable[[], object]) -> float:
    """Of this thread, the shorter of two times: a measure that grows with what slows this processor down."""
    took = []
    with no_garbage_collection():
        for _ in range(2):
            before = time.thread_time()
            work()
            took.append(time.thread_time() - before)
    return min(took)


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Callable[[], int]]:
    """The number of the event loop's turn: what is done in one of them is counted, where a time would say less."""
    turn = 0

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async with running(count()):
        yield lambda: turn


@asynccontextmanager
async def longest_turn() -> AsyncIterator[Callable[[], float]]:
    """Seconds of this thread between two turns of others."""
    longest = 0.0

    async def turn() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    with no_garbage_collection():
        async with running(turn()):
            await asyncio.sleep(0)  # the first turn counts ...
            yield lambda: longest
            await asyncio.sleep(0)  # ... and the last one
