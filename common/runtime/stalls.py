"""How long the event loop did not turn: meanwhile nothing is answered, renewed or counted."""

from __future__ import annotations

import asyncio
import time

TICK_SECONDS = 0.02
WINDOW_SECONDS = 60.0


class Stalls:
    """Both values are of the last one to two minutes, so that each scrape of Prometheus sees each stall."""

    def __init__(self) -> None:
        self._before = self._now = (0.0, 0.0)
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def longest(self) -> float:
        """Seconds."""
        return max(self._before[0], self._now[0])

    def busiest(self) -> float:
        """Seconds of CPU time of the event loop's thread. If a stall was much longer, the thread got no CPU."""
        return max(self._before[1], self._now[1])

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._since = loop.time()
        self._wait(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, late: float, busy: float, at: float) -> None:
        """A timer fired so late, after so much CPU time of the loop's thread."""
        if at - self._since >= WINDOW_SECONDS:
            self._before, self._now, self._since = self._now, (0.0, 0.0), at
        self._now = max(self._now[0], late), max(self._now[1], busy)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due, used = loop.time() + TICK_SECONDS, time.thread_time()

        def tick() -> None:
            at = loop.time()
            self.note(max(at - due, 0.0), time.thread_time() - used, at)
            self._wait(loop)

        self._timer = loop.call_at(due, tick)
