"""Much at once: what somebody waits for goes first, and what can wait does, so that it costs nothing meanwhile."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable

MANY = 32  # things that come within SPAN are a rush ...
SPAN = 8.0  # seconds; also where the machine is so busy that few of them come in a second
GAP = 1.0  # ... until nothing has come for so long
PATIENCE = 30.0  # seconds for which the same thing waits, however long the rush is
PAUSE = 1.0  # seconds after which what waits looks again


class BurstDetector:
    """`note()` each thing that comes. `busy` tells of work that came before and is not done yet."""

    def __init__(
        self, busy: Callable[[], bool] = lambda: False, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._busy = busy
        self._clock = clock
        self._came: deque[float] = deque(maxlen=MANY)
        self._waiting: dict[Hashable, float] = {}  # since when, within this rush

    def note(self) -> None:
        self._came.append(self._clock())

    @property
    def on(self) -> bool:
        came, now = self._came, self._clock()
        return (len(came) == MANY and now - came[0] < SPAN and now - came[-1] < GAP) or self._busy()

    def defers(self, what: Hashable) -> bool:
        """Whether this has to wait, and to ask again after PAUSE."""
        if not self.on:
            self._waiting.clear()
            return False
        now = self._clock()
        return now - self._waiting.setdefault(what, now) < PATIENCE
