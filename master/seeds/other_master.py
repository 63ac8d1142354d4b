"""Whether another master serves a seed. Two would replace each other's copies, and grant the same capacity twice. Pure.

A master is known by the uid of its Lease, which it writes into the seed's copy of its Seed. So is one whose Lease was
deleted: the copy is of its Seed. The master that was there first goes on. Another one waits until the signs of life
have stopped for long enough by its own clock, in which it could read the seed: what it could not see is no silence.
Then it takes the copy over, and writes nothing else before.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from common.api.labels import MASTER_ANNOTATION, MASTER_SEEN_ANNOTATION, UID_LABEL
from common.kube.client.meta import Object

SILENT = 90.0  # seconds: three signs that did not come
UNSEEN = 30.0  # seconds between two reads of the seed after which the silence begins anew


class OtherMaster:
    """Of one connection to a seed. `own`: the uid of this master's Lease. `silent`: the other one has shown no sign for
    so long that its copy of the Seed may be taken over."""

    def __init__(self, own: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.silent = False
        self._own = own
        self._clock = clock
        self._sign = ""
        self._changed_at = 0.0
        self._read_at = float("-inf")

    def problem(self, copy: Object | None, seed: str, read_at: float) -> str:
        """Why nothing may be written to the seed now, by its copy of the Seed. Empty: no other master serves it.

        `seed`: the uid of this master's Seed, empty if there is none. `read_at`: what happened before is in `copy`
        (time.monotonic()).
        """
        self.silent = False
        if copy is None or (seed and copy.metadata.labels.get(UID_LABEL) == seed):
            return ""
        annotations = copy.metadata.annotations
        other = annotations.get(MASTER_ANNOTATION, "")
        if other in ("", self._own):
            return ""
        sign = f"{copy.metadata.uid} {other} {annotations.get(MASTER_SEEN_ANNOTATION, '')}"
        if sign != self._sign or read_at > self._read_at + UNSEEN:
            self._sign, self._changed_at = sign, self._clock()
        self._read_at = read_at
        self.silent = read_at >= self._changed_at + SILENT
        return (
            f"another master, whose Lease has uid {other}, serves this seed; two would grant the same capacity twice. "
            f"Stop the other one: this one begins {SILENT:.0f} s after its last sign"
        )
