"""How much is held of requests that came and are not answered yet. No I/O."""

from __future__ import annotations

from collections import Counter

MAX_HELD = 64 * 2**20  # bytes of all connections together ...
MAX_HELD_OF_ONE = 16 * 2**20  # ... and of those of one caller, or of one address before the caller is known
FAIR_SHARE = 32 * 1024  # of them; a connection that holds no more is served even then


class Held:
    def __init__(self) -> None:
        self.total = 0
        self._of: Counter[str] = Counter()

    def change(self, party: str, by: int) -> None:
        self.total += by
        self._of[party] += by
        if not self._of[party]:
            del self._of[party]

    def too_much(self, party: str, by_one: int) -> bool:
        """Of the party, or of all together, for a connection that holds `by_one`."""
        return by_one > FAIR_SHARE and (self.total > MAX_HELD or self._of[party] > MAX_HELD_OF_ONE)
