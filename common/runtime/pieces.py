"""Long work on the event loop, with turns of others in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

PIECE_SECONDS = 0.005

T = TypeVar("T")


async def in_pieces(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of them. Others run after each PIECE_SECONDS."""
    until = time.monotonic() + PIECE_SECONDS
    for item in items:
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + PIECE_SECONDS
        yield item
