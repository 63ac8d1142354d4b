"""How many user clusters are looked at in a second, however many there are and however much changes in them."""

from __future__ import annotations

import asyncio

PER_SECOND = 50


class Pace:
    def __init__(self, per_second: float = PER_SECOND) -> None:
        self._interval = 1 / per_second
        self._next = 0.0  # on the event loop's clock

    async def turn(self) -> None:
        """Until it is the caller's turn. Nobody holds a turn, so one that is slow delays no other."""
        now = asyncio.get_running_loop().time()
        turn = max(self._next, now)
        self._next = turn + self._interval
        await asyncio.sleep(turn - now)
