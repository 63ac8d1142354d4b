"""Whose TLS handshake is next: one takes 0.9 ms of the event loop, and anybody who reaches the port can begin it.

So many a second are made, and a few more after a quiet time. Beyond that the addresses take turns, so that one address
with thousands of connections delays only its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from common.runtime.token_bucket import TokenBucket

PER_SECOND = 200
BURST = 256  # at once: the API servers of many clusters, after a restart of the agent

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Who waits, by address: the addresses take turns. No I/O.

    Callers bound its size: they `leave` when their connection ends.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}  # the address whose turn is next comes first

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, address: str, one: T) -> None:
        self._waiting.setdefault(address, deque()).append(one)

    def leave(self, address: str, one: T) -> None:
        line = self._waiting.get(address)
        if line is not None and one in line:
            line.remove(one)
            if not line:
                del self._waiting[address]

    def next(self) -> T:
        """Taken out. KeyError if nobody waits."""
        address = next(iter(self._waiting), None)
        if address is None:
            raise KeyError("nobody waits")
        line = self._waiting.pop(address)
        found = line.popleft()
        if line:
            self._waiting[address] = line  # behind the others
        return found


class Handshakes:
    """Lets handshakes begin in turn."""

    def __init__(self) -> None:
        self._bucket = TokenBucket(PER_SECOND, BURST)
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, address: str) -> None:
        """Returns when a handshake of that address may begin."""
        loop = asyncio.get_running_loop()
        if not self._queue and self._bucket.take(loop.time()):
            return
        begins: asyncio.Future[None] = loop.create_future()
        self._queue.wait(address, begins)
        self._later(loop)
        try:
            await begins
        finally:
            self._queue.leave(address, begins)

    def _later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(1 / PER_SECOND, self._go_on, loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._queue and self._bucket.take(loop.time()):
            begins = self._queue.next()
            if not begins.done():
                begins.set_result(None)
        if self._queue:
            self._later(loop)
