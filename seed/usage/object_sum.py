"""The sum over objects, kept up to date change by change. Pure but for being mutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Generic, TypeVar

import msgspec

from common.quota.account import Reservation
from common.quota.resources import ResourceList
from common.runtime.freeing import free_in_pieces
from common.runtime.large_dict import grown
from common.runtime.lru import LruDict
from seed.usage.source import MAX_REMEMBERED
from seed.usage.unadmitted import Unadmitted


class Counted(msgspec.Struct, frozen=True, gc=False):
    """An object as it stands in the sum. One that uses nothing stands there, too. `place`: where it counts, for sums
    that tell places apart."""

    generation: int
    used: ResourceList
    place: str = ""


CountedT = TypeVar("CountedT", bound=Counted)


class ObjectSum(Generic[CountedT]):
    """What all that counts objects answers of them (`seed.usage.source.Usage`)."""

    unadmitted: Unadmitted | None = None

    def __init__(self, remembered: int = MAX_REMEMBERED) -> None:
        """`remembered`: how many deleted objects, whose reservations may still turn up."""
        self.line: object = None
        self.guessed: dict[str, ResourceList] = {}  # by uid
        self.used: dict[str, int] = {}
        self._objects: MutableMapping[str, CountedT] = {}  # by uid
        self._gone: LruDict[str, None] = LruDict()
        self._remembered = remembered

    def __del__(self) -> None:
        free_in_pieces(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def keep(self, uid: str, after: CountedT) -> bool:
        """True if something became free."""
        before = self._known(uid)
        self._objects = grown(self._objects)
        self._objects[uid] = after
        self._gone.pop(uid, None)  # a backup brought it back
        self.guessed.pop(uid, None)
        if before is None:
            self._moved(after.place, {}, after.used)
            return False
        if before.used == after.used:
            return False
        self._moved(after.place, before.used, after.used)
        return any(after.used.get(name, 0) < amount for name, amount in before.used.items())

    def remove(self, uid: str) -> bool:
        """True if something became free."""
        gone = self._known(uid)
        if gone is None:
            return False
        del self._objects[uid]
        guessed = self.guessed.pop(uid, None)
        self._gone.keep(uid, None, self._remembered)
        self._moved(gone.place, gone.used, {})
        return guessed is not None or any(gone.used.values())

    def used_beside(self, _reservations: Mapping[str, Reservation]) -> ResourceList:
        return self.used

    def seen(self, reservations: Iterable[str]) -> dict[str, int]:
        """One whose size was never known does not stand in it: its reservation holds what it costs."""
        found = ((uid, self._known(uid)) for uid in reservations if uid not in self.guessed)
        return {uid: known.generation for uid, known in found if known is not None}

    def gone(self, reservations: Iterable[str]) -> set[str]:
        return {uid for uid in reservations if uid in self._gone}

    def sizes(self, uids: Iterable[str]) -> dict[str, ResourceList]:
        found = ((uid, self._known(uid)) for uid in uids)
        return {uid: known.used for uid, known in found if known is not None}

    def _known(self, uid: str) -> CountedT | None:
        """An object as it stands in the sum."""
        return self._objects.get(uid)

    def _moved(self, _place: str, before: ResourceList, after: ResourceList) -> None:
        """An object there uses this instead of that."""
        add(self.used, before, -1)
        add(self.used, after, 1)


def add(sums: dict[str, int], amounts: ResourceList, sign: int) -> None:
    for name, amount in amounts.items():
        total = sums.get(name, 0) + sign * amount
        if total:
            sums[name] = total
        else:
            sums.pop(name, None)
