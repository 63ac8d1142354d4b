"""Until when to wait for what other processes do: longer where the machine has more work than it can do in time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

BUSY = 3.0  # processes that want to run, for each core
LONGER = 4.0  # times as long, at most
LOOK_SECONDS = 1.0


class Deadline:
    """Nothing may claim by it that something took less than `seconds`: a claim measures."""

    def __init__(self, seconds: float) -> None:
        began = time.monotonic()
        self._soonest, self._latest = began + seconds, began + LONGER * seconds

    def passed(self) -> bool:
        now = time.monotonic()
        return now > self._latest or (now > self._soonest and not is_busy())


@asynccontextmanager
async def patient_timeout(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, by a `Deadline`."""
    loop, deadline = asyncio.get_running_loop(), Deadline(seconds)
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as limit:

        def look() -> None:
            nonlocal timer
            if deadline.passed():
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(LOOK_SECONDS, look)

        timer = loop.call_later(seconds, look)
        try:
            yield
        finally:
            timer.cancel()


def is_busy() -> bool:
    """For the last minute, by the load average."""
    return os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)
