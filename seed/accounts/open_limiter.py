"""Accounts that nobody can use yet are opened, and taken over, when no more quotas come or are edited, and a few at a
time: each is a handful of writes and an answer of the master's. Those without which something could be refused do not
wait here."""

from __future__ import annotations

import time
from collections.abc import Callable

from common.quota.resources import ResourceList
from common.runtime.burst import PAUSE, BurstDetector

AT_ONCE = 32
TAKES = 10.0  # seconds after which one that did not open makes room for another: the master may be away
LOOK_AGAIN = 5.0  # seconds; one that waits for others is called sooner


class OpenLimiter:
    """`call(quota)` tells which of those that wait may begin now."""

    def __init__(self, call: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._clock = clock
        self._rush = BurstDetector(clock=clock)
        self._begun: dict[str, float] = {}
        self._waiting: dict[str, None] = {}  # in order
        self._limits: dict[str, ResourceList] = {}  # as they were last seen

    def seen(self, quota: str, limits: ResourceList, *, new: bool) -> None:
        """A quota's copy as it is now. `new`: it has no account yet."""
        before = self._limits.get(quota, limits)
        self._limits[quota] = limits
        if new or limits != before:
            self._rush.note()

    def gone(self, quota: str) -> None:
        self._limits.pop(quota, None)
        self.ended(quota)

    def wait(self, quota: str) -> float | None:
        """In how many seconds to ask again; None: it begins now."""
        if self._rush.defers(quota):
            return PAUSE
        now = self._clock()
        self._begun = {begun: at for begun, at in self._begun.items() if now - at < TAKES}
        if quota not in self._begun and len(self._begun) >= AT_ONCE:
            self._waiting[quota] = None
            return LOOK_AGAIN
        self._begun[quota] = now
        self._waiting.pop(quota, None)
        return None

    def ended(self, quota: str) -> None:
        """It waits no more."""
        self._waiting.pop(quota, None)
        if self._begun.pop(quota, None) is not None and self._waiting:
            self._call(next(iter(self._waiting)))
