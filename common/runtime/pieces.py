"""Long work on the event loop, with turns of others in between. No event loop is imported: pure code uses it, too."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterable
from contextvars import ContextVar
from typing import TypeVar

PIECE_SECONDS = 0.00025  # a decision about an admission takes about eight turns, and waits for a piece in each
SHORTEST = 0.0001

T = TypeVar("T")

_of_others: ContextVar[float] = ContextVar("of_others", default=0.0)


def own_time() -> float:
    """Seconds, of a clock that stands still while others run between the pieces of this task."""
    return time.monotonic() - _of_others.get()


class _OthersFirst:
    def __await__(self) -> Generator[None, None, None]:
        """As asyncio.sleep(0)."""
        yield


class _UnderWay:
    number = 0


async def in_pieces(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of them. Others run after each PIECE_SECONDS, which all that is done in pieces at the time shares: a turn of
    the event loop has a piece of each."""
    _UnderWay.number += 1
    try:
        until = time.monotonic() + _piece()
        for item in items:
            if (paused := time.monotonic()) >= until:
                await _OthersFirst()
                now = time.monotonic()
                _of_others.set(_of_others.get() + now - paused)
                until = now + _piece()
            yield item
    finally:
        _UnderWay.number -= 1


def _piece() -> float:
    """Seconds. Shorter ones would cost more than the work in them."""
    return max(PIECE_SECONDS / _UnderWay.number, min(PIECE_SECONDS, SHORTEST))


async def all_in_pieces(steps: Iterable[object]) -> None:
    """As `in_pieces`, of what is done by taking each of them."""
    async for _ in in_pieces(steps):
        pass
