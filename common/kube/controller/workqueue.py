"""A queue of keys to work on: each key at most once in it, and at most one worker on a key."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# A key that comes more often than this has to wait each time: whatever adds it again and again leaves time for others.
# An account under load has up to a hundred turns a second.
OFTEN = 1000  # turns of one key within WINDOW
WINDOW = 10.0  # seconds
PAUSE = 0.05  # ... before each turn more

AT_ONCE = 500  # delayed keys that become ready, before others have their turn
EARLY = 0.0005  # seconds: uvloop rounds to milliseconds


class QueueFull(Exception):
    """The queue knows as many keys as it may."""


class WorkQueue(Generic[K]):
    """Keys come out in the order they became ready.

    A key added while it is being worked on comes again when that is done. A key added now does not come again later
    for an earlier `add_after`: whoever works on it sees everything, and may ask for another time. `on_often` is called
    for each turn that has to wait because the key had so many.
    """

    def __init__(self, *, max_keys: int = 100_000, first_backoff: float = 0.05, max_backoff: float = 60.0) -> None:
        """`max_keys` bounds waiting, delayed and worked-on keys together. Backoffs are in seconds."""
        self._max_keys = max_keys
        self._first_backoff = first_backoff
        self._max_backoff = max_backoff
        self._ready: deque[K] = deque()
        self._known: set[K] = set()  # waiting, delayed or worked on
        self._waiting: set[K] = set()  # in _ready, or to be put there by done() or after PAUSE
        self._working: set[K] = set()
        # When each comes. One timer for all: a timer for each of 100,000 keys is half a million objects, through which
        # Python's garbage collector looks in one piece.
        self._delayed: dict[K, float] = {}
        self._times: list[tuple[float, int, K]] = []  # a heap, with what is not in _delayed any more
        self._numbers = itertools.count()  # keys of the same time need no order of their own
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()
        self.on_often: Callable[[K], None] = lambda _key: None
        self._turns: dict[K, int] = {}  # of each key in this window
        self._window_began = time.monotonic()

    def __len__(self) -> int:
        """How many keys are ready and not yet worked on."""
        return len(self._ready)

    @property
    def known(self) -> int:
        return len(self._known)

    def add(self, key: K) -> None:
        """Raises QueueFull."""
        if key in self._waiting:
            return
        self._admit(key)
        self._delayed.pop(key, None)
        self._waiting.add(key)
        if key not in self._working:
            self._take_in(key)

    def add_after(self, key: K, seconds: float) -> None:
        """The earliest of several times counts. Raises QueueFull."""
        if seconds <= 0:
            self.add(key)
            return
        if key in self._waiting:
            return
        self._admit(key)
        when = asyncio.get_running_loop().time() + seconds
        if self._delayed.get(key, math.inf) <= when:
            return
        self._delayed[key] = when
        heapq.heappush(self._times, (when, next(self._numbers), key))
        if len(self._times) > 2 * len(self._delayed) + AT_ONCE:
            self._times = [each for each in self._times if self._delayed.get(each[2]) == each[0]]
            heapq.heapify(self._times)
        self._set_timer()

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Comes again after a time that doubles with each failure. Returns that time in seconds. Raises QueueFull."""
        failures = self._failures.get(key, 0)
        longest = min(self._max_backoff, self._first_backoff * 2.0 ** min(failures, 30))
        seconds = max(at_least, longest * random.uniform(0.5, 1.0))  # noqa: S311 (spread, not a secret)
        self.add_after(key, seconds)
        self._failures[key] = failures + 1
        return seconds

    def forget(self, key: K) -> None:
        """It went well: the next failure counts as the first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; call `done` with it afterwards. Others have their turn first, whatever is ready here."""
        await asyncio.sleep(0)
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._working.add(key)
        self._turns[key] = self._turns_of(key) + 1
        return key

    def done(self, key: K) -> None:
        """Ends the work on a key that `get` returned. Raises KeyError for another."""
        self._working.remove(key)
        if key in self._waiting:
            self._take_in(key)
        elif key not in self._delayed:
            self._known.discard(key)
            self._failures.pop(key, None)  # a failed key is delayed; this one will not come back by itself

    def _admit(self, key: K) -> None:
        if key not in self._known:
            if len(self._known) >= self._max_keys:
                raise QueueFull(f"the queue knows {self._max_keys} keys already")
            self._known.add(key)

    def _take_in(self, key: K) -> None:
        if self._turns_of(key) < OFTEN:
            self._make_ready(key)
        else:
            self.on_often(key)
            asyncio.get_running_loop().call_later(PAUSE, self._make_ready, key)

    def _make_ready(self, key: K) -> None:
        self._ready.append(key)
        self._wake.set()

    def _turns_of(self, key: K) -> int:
        now = time.monotonic()
        if now - self._window_began >= WINDOW or len(self._turns) > self._max_keys:
            self._window_began = now
            self._turns.clear()
        return self._turns.get(key, 0)

    def _set_timer(self) -> None:
        """For the first that comes. A timer that is there fires no later."""
        if self._times and self._times[0][0] < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self._times[0][0]
            self._timer = asyncio.get_running_loop().call_at(self._timer_at, self._add_due)

    def _add_due(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = asyncio.get_running_loop().time() + EARLY
        try:
            for _ in range(AT_ONCE):
                if not self._times or self._times[0][0] > now:
                    break
                when, _, key = heapq.heappop(self._times)
                if self._delayed.get(key) == when:
                    self.add(key)
        finally:
            self._set_timer()
