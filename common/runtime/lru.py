"""Dictionaries with a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_OWNERS = 16_384


class LruDict(OrderedDict[K, V]):
    """With more than `most` entries, `keep` drops the one that was not kept, or moved to the end, for longest."""

    def keep(self, key: K, value: V, most: int) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > most:
            self.popitem(last=False)


class LruByOwner(Generic[K, V]):
    """With more than `most` entries of one owner, `keep` drops the oldest of this owner. Those of others stay.

    Nobody who fills it may choose how many owners there are: beyond MAX_OWNERS the one that was idle for longest goes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_owner: LruDict[Hashable, LruDict[K, V]] = LruDict()

    def __repr__(self) -> str:
        return f"LruByOwner({self._by_owner!r})"

    def get(self, owner: Hashable, key: K) -> V | None:
        entries = self._by_owner.get(owner)
        return entries.get(key) if entries is not None else None

    def keep(self, owner: Hashable, key: K, value: V) -> None:
        entries = self._by_owner.get(owner)
        if entries is None:
            entries = LruDict()
        entries.keep(key, value, self._most)
        self._by_owner.keep(owner, entries, MAX_OWNERS)

    def pop(self, owner: Hashable, key: K) -> None:
        entries = self._by_owner.get(owner)
        if entries is not None:
            entries.pop(key, None)
