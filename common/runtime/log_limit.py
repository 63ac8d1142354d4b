"""How many lines of the log somebody else may cause. No I/O.

Each place in the code may write so many about one caller, and so many about all callers together. What is left out is
counted.
"""

from __future__ import annotations

from collections import Counter

from common.runtime.lru import LruDict
from common.runtime.token_bucket import TokenBucket

PER_SECOND, BURST = 5.0, 100.0  # lines of one place about one caller
ALL_PER_SECOND, ALL_BURST = 50.0, 2000.0  # ... and about all of them
TOLD_SECONDS = 10.0  # after so long it is told how many were left out
MAX_CALLERS = 4096  # with a bucket of their own, of all places

Place = tuple[str, str, int]
"""In the code: a logger, a message and its level."""


class LineLimit:
    def __init__(self) -> None:
        self._of_caller: LruDict[tuple[Place, str], TokenBucket] = LruDict()
        self._of_all: dict[Place, TokenBucket] = {}
        self._left_out: Counter[Place] = Counter()
        self._told = 0.0

    def allows(self, place: Place, caller: str, now: float) -> bool:
        """Whether one more line is written. `now`: in seconds, of a clock that does not go back."""
        mine = self._of_caller.get((place, caller)) or TokenBucket(PER_SECOND, BURST)
        self._of_caller.keep((place, caller), mine, MAX_CALLERS)
        everybodys = self._of_all.setdefault(place, TokenBucket(ALL_PER_SECOND, ALL_BURST))
        if mine.take(now) and everybodys.take(now):
            return True
        self._left_out[place] += 1
        return False

    def left_out(self, now: float) -> dict[Place, int]:
        """How many were, since it was asked last; nothing before TOLD_SECONDS are over."""
        if not self._left_out or now - self._told < TOLD_SECONDS:
            return {}
        self._told = now
        found, self._left_out = dict(self._left_out), Counter()
        return found
