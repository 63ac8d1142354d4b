"""Which of a source's objects nobody admitted: they came past the webhook. Pure but for being mutable.

An admitted object has a reservation until it is counted. So one that appears, and for which no account has a
reservation when it is counted for the first time, was not admitted. What was there before the first count is not
judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

from common.api import conditions
from common.quota.account import Reservation

MAX_RECORDED = 256  # in the status, for the next leader
ALARM_SECONDS = 600.0  # after the last of them came


class Unadmitted:
    """`on_found` is called when there are more, and must not block."""

    def __init__(self, recorded: Collection[str] = (), *, on_found: Callable[[], None] = lambda: None) -> None:
        """`recorded`: the uids of those that a leader before this one found."""
        self.on_found = on_found
        self.line: object = object()  # the same of all lists of one cluster
        self.found: dict[str, str] = {}  # namespace/name by uid
        self.found_at = float("-inf")  # monotonic: when there was one more
        self._recorded = recorded
        self._waiting: dict[str, str] = {}  # those that appeared, and were not counted yet

    def __len__(self) -> int:
        return len(self.found)

    @property
    def alarming(self) -> bool:
        return bool(self.found) and time.monotonic() - self.found_at < ALARM_SECONDS

    @property
    def text(self) -> str:
        """For people; empty if there are none."""
        if not self.found:
            return ""
        machines, were = conditions.count(len(self), "machine"), "was" if len(self) == 1 else "were"
        first = sorted(islice(self.found.values(), conditions.NAMED))
        named = ", ".join(first) + conditions.more(self.found)
        return f"{machines} {were} created past the webhook and never admitted, but counted: {named}"

    @property
    def waiting(self) -> frozenset[str]:
        return frozenset(self._waiting)

    def after(self) -> Unadmitted:
        """For another list of the same source, which calls `appeared` and `carried`."""
        new = self.elsewhere()
        new.line, new.found_at = self.line, self.found_at
        return new

    def elsewhere(self) -> Unadmitted:
        """For a list of another cluster: what that has is no news of this one."""
        return Unadmitted(self._recorded, on_found=self.on_found)

    def appeared(self, uid: str, name: str) -> None:
        if uid in self._recorded:
            self.found[uid] = name
        else:
            self._waiting[uid] = name

    def carried(self, before: Unadmitted, uid: str, name: str) -> None:
        """It was there in the list before."""
        if uid in before.found:
            self.found[uid] = name
        elif uid in before._waiting:
            self._waiting[uid] = name

    def gone(self, uid: str) -> None:
        self.found.pop(uid, None)
        self._waiting.pop(uid, None)

    def admitted(self, reservations: Mapping[str, Reservation]) -> None:
        """What an account has reserved, by uid, in the moment in which it is counted."""
        for uid in [uid for uid in self._waiting if uid in reservations and _is_creation(reservations[uid])]:
            del self._waiting[uid]

    def judge(self, waiting: Iterable[str], *, sure: bool) -> None:
        """Those of `waiting` were counted in every account. `sure`: one of these would have a reservation for each that
        was admitted."""
        before = len(self.found)
        for uid in waiting:
            name = self._waiting.pop(uid, None)
            if name is not None and sure:
                self.found[uid] = name
        if len(self.found) > before:
            self.found_at = time.monotonic()
            self.on_found()


def _is_creation(reservation: Reservation) -> bool:
    """An update may have come on top of it."""
    return not reservation.generation or bool(reservation.earlier)
