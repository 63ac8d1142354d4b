"""How much of a replica one caller may take: so many requests in a second, so many at a time.

The first protects the replica, the second the others: while one caller's requests are worked on, those of another wait
for few of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container

from common.runtime.lru import LruDict
from common.runtime.token_bucket import TokenBucket

PER_SECOND = 500  # requests of one caller, on average
BURST_SECONDS = 10  # so many seconds' requests may come at once
AT_A_TIME = 64
LARGE = 64 * 1024  # bytes of a request: it takes milliseconds to read
MAX_CALLERS = 8192


class Turn:
    """Of one caller. `places`: one is held while a request is answered; `reading`: while a large one is read.

    The event loop serves others between two large ones, however many have come.
    """

    def __init__(self, per_second: float) -> None:
        self.places = asyncio.Semaphore(AT_A_TIME)
        self.reading = asyncio.Semaphore(1)
        self.requests = TokenBucket(per_second, per_second * BURST_SECONDS)


class Turns:
    def __init__(
        self,
        per_second: int = PER_SECOND,
        unlimited: Container[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`unlimited`: callers who ask for many tenants, and have limits of their own for each."""
        self.per_second = per_second
        self.unlimited = unlimited
        self._clock = clock
        self._of: LruDict[str, Turn] = LruDict()

    def take(self, caller: str) -> Turn | None:
        """None where the caller has asked too often."""
        turn = self._of.get(caller) or Turn(self.per_second)
        self._of.keep(caller, turn, MAX_CALLERS)
        return turn if turn.requests.take(self._clock()) else None
