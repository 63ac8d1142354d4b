"""When Python looks for garbage. It does so in one piece, and meanwhile nothing is answered: through few objects at a
time. What has no cycles goes without it.
"""

from __future__ import annotations

import asyncio
import gc
import sys

# Watch caches are many objects that live long; by default Python looks through young ones every 700 allocations. What
# is looked at in one piece is all that is young: while a large list comes, 60,000 objects took 0.1 s. Each is looked at
# twice, however few at a time.
YOUNG, TWICE, NEVER = 2_000, 2, 2**31 - 1
# Python counts objects that are made, less those that go. While a list replaces another, old ones go as new ones are
# made: Python does not look, and later looks at hundreds of thousands of young objects in one piece. So they are looked
# at once in this time, whatever Python has counted.
YOUNG_SECONDS = 0.2
# All objects take longest: 0.13 s for 160,000, while a seed sent what the master had not. So it is done when there
# are FEW, or after SELDOM times as many were MADE. A connection that broke leaves two objects for it. To count the
# objects takes as long as to look through them (0.36 s), and to count the blocks of memory 5 ms.
# (Python 3.14.0 to 3.14.4 look at all, but never in one piece.)
MADE = 30_000_000  # objects, less those that went before they were looked at
SELDOM = 10
FEW = 100_000  # blocks more than at the start, each an object at most: 0.06 s
LOOKS = 50  # at young objects, between two questions whether to look at all


def begin() -> None:
    """To be called once all code is loaded: 70,000 objects that never go."""
    gc.freeze()
    gc.set_threshold(YOUNG, TWICE, NEVER)


class Collector:
    """Looks at young objects, and sometimes at all, while the event loop runs. Python itself never looks at all."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._at_first = sys.getallocatedblocks()
        self._looks = 0
        self._second_looks = 0  # collections of the second generation, at the last look
        self._made = 0  # since all were looked at

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(YOUNG_SECONDS, self._look, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looks += 1
        young, first_looks, second_looks = gc.get_count()
        self._made += young + YOUNG * (first_looks + (TWICE + 1) * (second_looks - self._second_looks))
        if self._looks % LOOKS == 0 and self._due():
            self._made = 0
            gc.collect()
        else:
            gc.collect(1)
        self._second_looks = gc.get_count()[2]
        self.start(loop)

    def _due(self) -> bool:
        if self._made < MADE:
            return False
        return self._made >= SELDOM * MADE or sys.getallocatedblocks() - self._at_first <= FEW
