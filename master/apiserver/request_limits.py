"""How much one user, and all of them together, may ask of a replica. Pure but for the clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.runtime.lru import LruDict
from common.runtime.token_bucket import TokenBucket
from master.apiserver.problem import ProblemError

PER_SECOND = 50.0  # requests of one user, on average ...
BURST = 200.0  # ... and at once after a pause
MAX_USERS = 4096  # whose rates are kept: who has not asked for longest is forgotten
AT_A_TIME = 32  # requests of one user that are worked on ...
ALL_AT_A_TIME = 128  # ... and of all users; beyond that, one of each


class Limits:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: LruDict[str, TokenBucket] = LruDict()  # by user
        self._working: Counter[str] = Counter()

    @contextmanager
    def one(self, user: str) -> Iterator[None]:
        """While a request of the user is worked on. Raises ProblemError, 429 or 503."""
        self._take(user)
        if self._working[user] >= AT_A_TIME:
            raise ProblemError(429, f"{AT_A_TIME} of your requests are being answered; wait for them")
        if self._working[user] and self._working.total() >= ALL_AT_A_TIME:
            raise ProblemError(503, "too many requests are being answered")
        self._working[user] += 1
        try:
            yield
        finally:
            self._working[user] -= 1
            if not self._working[user]:
                del self._working[user]

    def _take(self, user: str) -> None:
        requests = self._requests.get(user) or TokenBucket(PER_SECOND, BURST)
        self._requests.keep(user, requests, MAX_USERS)
        if not requests.take(self._clock()):
            raise ProblemError(429, f"more than {PER_SECOND:g} requests a second")
