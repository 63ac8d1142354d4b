"""What the Allocations of a project use together. Pure but for being mutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from common.api.types import Allocation
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from common.runtime.lru import LruDict
from seed.kinds.allocations import evaluator as allocations
from seed.usage.source import MAX_REMEMBERED


class _Counted(msgspec.Struct, frozen=True):
    generation: int
    used: ResourceList


class AllocationTotals:
    guessed: Mapping[str, ResourceList] = {}
    line = None
    unadmitted = None

    def __init__(self) -> None:
        self.used: dict[str, int] = {}
        self._allocations: dict[str, _Counted] = {}  # by uid
        self._gone: LruDict[str, None] = LruDict()

    def put(self, allocation: Allocation) -> bool:
        """True if something became free."""
        uid = allocation.metadata.uid
        after = allocations.used(allocation)
        before = self._allocations.get(uid)
        self._allocations[uid] = _Counted(allocation.metadata.generation, after)
        self._gone.pop(uid, None)  # a backup brought it back
        self._add(after, 1)
        if before is None:
            return False
        self._add(before.used, -1)
        return any(after.get(name, 0) < amount for name, amount in before.used.items())

    def remove(self, uid: str) -> bool:
        """True if something became free."""
        gone = self._allocations.pop(uid, None)
        if gone is None:
            return False
        self._gone.keep(uid, None, MAX_REMEMBERED)
        self._add(gone.used, -1)
        return bool(gone.used)

    def used_beside(self, _reservations: Mapping[str, Reservation]) -> ResourceList:
        return self.used

    def seen(self, reservations: Iterable[str]) -> dict[str, int]:
        return {uid: self._allocations[uid].generation for uid in reservations if uid in self._allocations}

    def gone(self, reservations: Iterable[str]) -> set[str]:
        return {uid for uid in reservations if uid in self._gone}

    def sizes(self, uids: Iterable[str]) -> dict[str, ResourceList]:
        return {uid: self._allocations[uid].used for uid in uids if uid in self._allocations}

    def _add(self, amounts: ResourceList, sign: int) -> None:
        for name, amount in amounts.items():
            total = self.used.get(name, 0) + sign * amount
            if total:
                self.used[name] = total
            else:
                self.used.pop(name, None)
