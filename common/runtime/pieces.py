"""Long work on the event loop: one piece in each of its turns, in the order of waiting, and none while a request is
answered.

A request takes several turns, and would wait for a piece in each. A turn with a piece of each list and watch of a
tenant would be as long as the tenant likes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakKeyDictionary

PIECE_SECONDS = 0.00025  # who comes waits for no more
SMALL = 8  # so many items are no long work
WAIT_SECONDS = 0.002  # a piece waits for requests no longer, since there may always be one ...
AFTER_WAIT_SECONDS = 0.001  # ... and is so long then: a third of the time remains for what is done in pieces
REQUEST_SECONDS = 0.02  # who takes longer waits for something, such as capacity: nothing waits for that

T = TypeVar("T")

_of_others: ContextVar[float] = ContextVar("of_others", default=0.0)


def own_time() -> float:
    """Seconds, of a clock that stands still while others run between the pieces of this task."""
    return time.monotonic() - _of_others.get()


class _Turns:
    """Of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[float]] = deque()
        self._taken = False  # this turn has its piece, or `_next` comes
        self._requests: dict[object, float] = {}  # when each came (time.monotonic()), in this order
        self._held_since: float | None = None  # the first that waits is, by requests
        self._held: asyncio.TimerHandle | None = None

    async def take(self) -> float:
        """Waits for a turn. Returns how long its piece may be, in seconds."""
        if not (self._taken or self._is_requested()):
            self._call_next()
            return PIECE_SECONDS
        turn: asyncio.Future[float] = self._loop.create_future()
        self._waiting.append(turn)
        if not self._taken:
            self._call_next()
        paused = time.monotonic()
        try:
            return await turn
        finally:
            _of_others.set(_of_others.get() + time.monotonic() - paused)

    def begin(self, request: object) -> None:
        self._requests[request] = time.monotonic()

    def end(self, request: object) -> None:
        self._requests.pop(request, None)
        if not self._requests and self._held is not None:
            self._held.cancel()
            self._call_next()

    def _call_next(self) -> None:
        self._taken, self._held = True, None
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()  # it was cancelled
        self._taken = bool(self._waiting)
        if not self._taken:
            self._held_since = None
            return
        piece = PIECE_SECONDS
        if self._is_requested():
            now = time.monotonic()
            self._held_since = now if self._held_since is None else self._held_since
            left = self._held_since + WAIT_SECONDS - now
            if left > 0:
                self._held = self._loop.call_later(left, self._call_next)
                return
            piece = AFTER_WAIT_SECONDS
        self._held_since = None
        self._waiting.popleft().set_result(piece)
        self._call_next()

    def _is_requested(self) -> bool:
        while self._requests:
            request, came = next(iter(self._requests.items()))
            if time.monotonic() - came < REQUEST_SECONDS:
                return True
            del self._requests[request]
        return False


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


def _turns() -> _Turns:
    loop = asyncio.get_running_loop()
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = _Turns(loop)
    return found


@contextmanager
def before_pieces() -> Iterator[None]:
    """A request is answered in the block."""
    turns, request = _turns(), object()
    turns.begin(request)
    try:
        yield
    finally:
        turns.end(request)


async def in_one_piece() -> None:
    """Waits for the turn of what follows, which cannot be divided."""
    await _turns().take()


async def in_pieces(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of them. What is done with them until the next is taken is a part of a piece."""
    if isinstance(items, Collection) and len(items) <= SMALL:
        for item in items:
            yield item
        return
    turns, until = _turns(), float("-inf")
    for item in items:
        if time.monotonic() >= until:
            piece = await turns.take()
            until = time.monotonic() + piece
        yield item


async def all_in_pieces(steps: Iterable[object]) -> None:
    """As `in_pieces`, of what is done by taking each of them."""
    async for _ in in_pieces(steps):
        pass
