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
# All objects take longest: 0.13 s for 160,000, while a seed sent what the master had not. So it is done when there
# are FEW, or after SELDOM times as many collections. A connection that broke leaves two objects for it. To count the
# objects takes as long as to look through them (0.36 s), and to count the blocks of memory 5 ms.
# (Python 3.14.0 to 3.14.4 look at all, but never in one piece.)
EVERY = 5_000  # collections of what was looked at once: 40 million objects were made that did not go at once
SELDOM = 10
FEW = 100_000  # blocks more than at the start, each an object at most: 0.06 s
LOOK_SECONDS = 10.0


def begin() -> None:
    """To be called once all code is loaded: 70,000 objects that never go."""
    gc.freeze()
    gc.set_threshold(YOUNG, TWICE, NEVER)


def make_old() -> None:
    """A list that is there by now is not looked through again while it grows: one of 40,000 Machines took 0.02 s each
    time. For that, Python looks through all that is young now, which is little."""
    gc.collect(1)


class FullCollections:
    """Those of all objects, once the event loop runs."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._at_first = sys.getallocatedblocks()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(LOOK_SECONDS, self._look, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        since = gc.get_count()[2]
        if since >= EVERY and (since >= SELDOM * EVERY or sys.getallocatedblocks() - self._at_first <= FEW):
            gc.collect()
        self.start(loop)
