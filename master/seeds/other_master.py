"""Whether another master serves a seed. Two would replace each other's copies, and grant the same capacity twice. Pure.

A master is known by the uid of its Lease, which it writes into the seed's copy of its Seed. So is one whose Lease was
deleted: the copy is of its Seed. The master that was there first goes on. Another waits until the signs of life have
stopped for long enough, by its own clock alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from common.api.labels import MASTER_ANNOTATION, MASTER_SEEN_ANNOTATION, UID_LABEL
from common.kube.client.meta import Object

SILENT = 90.0  # seconds: three signs that did not come


class OtherMaster:
    """Of one connection to a seed. `own`: the uid of this master's Lease."""

    def __init__(self, own: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._own = own
        self._clock = clock
        self._sign = ""
        self._changed_at = 0.0

    def problem(self, copy: Object | None, seed: str) -> str:
        """Why nothing may be written to the seed now, by its copy of the Seed. Empty: no other master serves it.

        `seed`: the uid of this master's Seed, empty if there is none.
        """
        if copy is None or (seed and copy.metadata.labels.get(UID_LABEL) == seed):
            return ""
        annotations = copy.metadata.annotations
        other = annotations.get(MASTER_ANNOTATION, "")
        if other in ("", self._own):
            return ""
        sign = f"{copy.metadata.uid} {other} {annotations.get(MASTER_SEEN_ANNOTATION, '')}"
        if sign != self._sign:
            self._sign, self._changed_at = sign, self._clock()
        if self._clock() >= self._changed_at + SILENT:
            return ""
        return (
            f"another master, whose Lease has uid {other}, serves this seed; two would grant the same capacity twice. "
            f"Stop the other one: this one begins {SILENT:.0f} s after its last sign"
        )
