"""Long work on the event loop, with turns of others in between. No event loop is imported: pure code uses it, too."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterable
from typing import TypeVar

PIECE_SECONDS = 0.005

T = TypeVar("T")


class _OthersFirst:
    def __await__(self) -> Generator[None, None, None]:
        """As asyncio.sleep(0)."""
        yield


async def in_pieces(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of them. Others run after each PIECE_SECONDS."""
    until = time.monotonic() + PIECE_SECONDS
    for item in items:
        if time.monotonic() >= until:
            await _OthersFirst()
            until = time.monotonic() + PIECE_SECONDS
        yield item
