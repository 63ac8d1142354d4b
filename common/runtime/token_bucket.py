"""A token bucket: so many a second on average, and so many at once after a quiet time. No I/O."""

from __future__ import annotations


class TokenBucket:
    """Full at first. Times are in seconds, of a clock that begins at 0 or later."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._as_of = 0.0

    def take(self, now: float) -> bool:
        """Whether one more may be now; it counts then."""
        self._left = min(self._left + (now - self._as_of) * self._per_second, self._burst)
        self._as_of = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
