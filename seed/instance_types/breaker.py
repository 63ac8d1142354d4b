"""Stops requests to a cloud that fails, and allows one from time to time. Pure: the caller has the clock."""

from __future__ import annotations

FAILURES = 3  # in a row
FIRST_REST = 2.0  # seconds, doubled with every failure after it
LONGEST_REST = 60.0
LONGEST_ASKED_REST = 300.0  # ... when the cloud itself says for how long


class Breaker:
    """One endpoint's."""

    __slots__ = ("_failures", "_reason", "_until")

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0
        self._reason = ""

    def closed_because(self, now: float) -> str | None:
        """Why not to ask now. None: ask, and then say how it went; meanwhile others must not."""
        if now < self._until:
            return self._reason
        if self._failures >= FAILURES:
            self._until = now + self._rest()
        return None

    def succeeded(self) -> None:
        self._failures, self._until, self._reason = 0, 0.0, ""

    def failed(self, now: float, reason: str, retry_after: float | None = None) -> None:
        self._failures += 1
        self._reason = reason
        if retry_after is not None:
            self._until = now + min(retry_after, LONGEST_ASKED_REST)
        elif self._failures >= FAILURES:
            self._until = now + self._rest()

    def _rest(self) -> float:
        return min(FIRST_REST * 2.0 ** min(self._failures - FAILURES, 20), LONGEST_REST)
