"""Whose TLS handshake is next: one takes 0.9 ms of the event loop, and anybody who reaches the port can begin it.

So many a second are made, and a few more after a quiet time. Beyond that the addresses take turns, so that one address
with thousands of connections delays only its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

PER_SECOND = 200
BURST = 256  # at once: the API servers of many clusters, after a restart of the agent

T = TypeVar("T")


class Turns(Generic[T]):
    """Who waits, by address. No I/O. Its size is bounded by its callers, who `leave` when their connection ends."""

    def __init__(self) -> None:
        self._tokens = float(BURST)
        self._counted_at = float("-inf")
        self._waiting: dict[str, deque[T]] = {}  # the address whose turn is next comes first

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, now: float) -> bool:
        """Whether a handshake may begin now; it counts then."""
        self._tokens = min(float(BURST), self._tokens + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

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
        self._turns: Turns[asyncio.Future[None]] = Turns()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, address: str) -> None:
        """Returns when a handshake of that address may begin."""
        loop = asyncio.get_running_loop()
        if not self._turns and self._turns.take(loop.time()):
            return
        begins: asyncio.Future[None] = loop.create_future()
        self._turns.wait(address, begins)
        self._later(loop)
        try:
            await begins
        finally:
            self._turns.leave(address, begins)

    def _later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(1 / PER_SECOND, self._go_on, loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._turns and self._turns.take(loop.time()):
            begins = self._turns.next()
            if not begins.done():
                begins.set_result(None)
        if self._turns:
            self._later(loop)
