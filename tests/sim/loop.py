"""An event loop without I/O: one for each simulated process, with a clock of its own speed.

The real coroutines of the product run on it. What they wait for comes from the schedule (see `network.py`), so nothing
happens that was not drawn; a process that crashes is a loop that is never run again.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

MOST_AWAITS = 4  # of one task while it ends


class Clock(Protocol):
    now: float


class Loop(asyncio.AbstractEventLoop):
    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._ready: deque[_Soon] = deque()
        self._timers: list[tuple[float, int, _Soon]] = []
        self._timed = 0
        self.dead = False
        self._running = False
        self.paused_until = 0.0
        self._tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self._clock.now * self._rate

    get_debug = staticmethod(bool)  # type: ignore[assignment]  # asked for each future

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a crash leaves tasks behind
        self._tasks.append(task)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any, context: object = None) -> asyncio.Handle:
        soon = _Soon(callback, args)
        if not self.dead:
            self._ready.append(soon)
        return soon  # type: ignore[return-value]

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> asyncio.TimerHandle:
        soon = _Soon(callback, args)
        self._timed += 1
        heapq.heappush(self._timers, (when, self._timed, soon))
        return soon  # type: ignore[return-value]

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now * self._rate + delay, callback, *args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A future whose exception nobody asked for: the process that would have asked has crashed."""

    def run(self) -> None:
        """Everything that can be done now."""
        ready, timers = self._ready, self._timers
        if (
            self.dead
            or self._running
            or self._clock.now < self.paused_until
            or not (ready or (timers and timers[0][0] <= self.time()))
        ):
            return
        self._running = True
        events._set_running_loop(self)
        try:
            if timers:
                now = self.time()
                while timers and timers[0][0] <= now:
                    ready.append(heapq.heappop(timers)[2])
            while ready:
                soon = ready.popleft()
                if soon.callback is not None:
                    soon.callback(*soon.args)
        finally:
            self._running = False
            events._set_running_loop(None)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """From outside: as if the process had been told."""
        self.call_soon(function, *args)
        self.run()

    def start(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """From outside: a new task, run as far as it gets."""
        task = self.create_task(coro)
        self.run()
        return task

    def crash(self) -> None:
        self.dead = True
        self._ready.clear()
        self._timers.clear()
        for task in self._tasks:
            for _ in range(MOST_AWAITS):
                if not task.done():
                    with suppress(RuntimeError):  # as it ends it waits again
                        task.get_coro().close()  # type: ignore[union-attr]
                        break
        self._tasks.clear()


class _Soon:
    __slots__ = ("args", "callback")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None
