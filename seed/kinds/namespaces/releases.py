"""When objects cease to count by themselves, as a pod that a lost node never ends."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from common.runtime.waiting import within
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator

FEW = 1_000  # moments that nothing waits for any more: tenants choose grace periods, also of years
AFTER = 0.05  # seconds after an object ceases to count until it is looked at
LONGEST_WAIT = 60.0  # ... between two looks at the clock, which may be set


class Releases:
    """`run()` it. `due(evaluator, uid, key)`: it may have ceased to count. `clock`: seconds since 1970."""

    def __init__(self, clock: Callable[[], float], due: Callable[[NamespacedEvaluator[Any], str, str], None]) -> None:
        self._clock = clock
        self._due = due
        self._moments: list[tuple[float, str, NamespacedEvaluator[Any], str]] = []  # a heap: when, uid, of which, key
        self._awaited: dict[str, float] = {}  # by uid: when it ceases to count
        self._sooner = asyncio.Event()

    def expect(self, evaluator: NamespacedEvaluator[Any], subject: Any, now: float) -> None:
        uid, ends = subject.metadata.uid, evaluator.released_at(subject)
        if ends is None or ends < now or self._awaited.get(uid) == ends:
            return
        self._awaited[uid] = ends
        heapq.heappush(self._moments, (ends, uid, evaluator, subject.metadata.key))
        self._sooner.set()
        if len(self._moments) > 2 * len(self._awaited) + FEW:
            self._moments = [each for each in self._moments if self._awaited.get(each[1]) == each[0]]
            heapq.heapify(self._moments)

    def forget(self, uid: str) -> None:
        """It is gone."""
        self._awaited.pop(uid, None)

    async def run(self) -> None:
        while True:
            self._sooner.clear()
            self.look()
            wait = self._moments[0][0] + AFTER - self._clock() if self._moments else LONGEST_WAIT
            await within(self._sooner, min(max(wait, AFTER), LONGEST_WAIT))

    def look(self) -> None:
        while self._moments and self._moments[0][0] < self._clock():
            ends, uid, evaluator, key = heapq.heappop(self._moments)
            if self._awaited.get(uid) == ends:
                del self._awaited[uid]
            self._due(evaluator, uid, key)
