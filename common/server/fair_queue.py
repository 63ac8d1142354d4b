"""Whose turn is next, where more is asked than can be done: the parties take turns, so that one that asks for thousands
delays only its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from common.runtime.token_bucket import TokenBucket

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Who waits, by party: the parties take turns. No I/O.

    Callers bound its size: they `leave` when their connection ends.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}  # the party whose turn is next comes first

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, party: str, one: T) -> None:
        self._waiting.setdefault(party, deque()).append(one)

    def leave(self, party: str, one: T) -> None:
        line = self._waiting.get(party)
        if line is not None and one in line:
            line.remove(one)
            if not line:
                del self._waiting[party]

    def next(self) -> T:
        """Taken out. KeyError if nobody waits."""
        party = next(iter(self._waiting), None)
        if party is None:
            raise KeyError("nobody waits")
        line = self._waiting.pop(party)
        found = line.popleft()
        if line:
            self._waiting[party] = line  # behind the others
        return found


class FairRate:
    """So many begin in a second, and so many at once after a quiet time."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._pause = 1 / per_second
        self._bucket = TokenBucket(per_second, burst)
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, party: str) -> None:
        """Returns when one of that party may begin."""
        loop = asyncio.get_running_loop()
        if not self._queue and self._bucket.take(loop.time()):
            return
        begins: asyncio.Future[None] = loop.create_future()
        self._queue.wait(party, begins)
        self._later(loop)
        try:
            await begins
        finally:
            self._queue.leave(party, begins)

    def _later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(self._pause, self._go_on, loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._queue and self._bucket.take(loop.time()):
            begins = self._queue.next()
            if not begins.done():
                begins.set_result(None)
        if self._queue:
            self._later(loop)


class FairPlaces:
    """So many are worked on at a time."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    async def take(self, party: str) -> None:
        """Returns when one of that party may begin. Then `give_back` must be called once."""
        if self._free:
            self._free -= 1
            return
        begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.wait(party, begins)
        try:
            await begins
        except asyncio.CancelledError:
            self._queue.leave(party, begins)
            if begins.done() and not begins.cancelled():
                self.give_back()  # it came in the same moment
            raise

    def give_back(self) -> None:
        while self._queue:
            begins = self._queue.next()
            if not begins.done():
                begins.set_result(None)
                return
        self._free += 1
