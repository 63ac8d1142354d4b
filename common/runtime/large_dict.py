"""Dictionaries with very many entries, of which no step takes long.

Python's own moves all entries into a larger table when it is full: 50 ms for 700,000. To copy its values takes as long,
and Python looks through a copy in one piece while it is young (garbage.py).
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, MutableMapping
from itertools import chain
from typing import Any, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

MANY = 8192  # entries: to move them to a LargeDict takes 3 ms
PARTS = 251  # a prime: else all keys of a part had the same lowest bits of their hashes, and would collide in it


def grown(entries: MutableMapping[K, V]) -> MutableMapping[K, V]:
    """What to add to in place of `entries`: itself while there are few, and a LargeDict of them from then on."""
    return LargeDict(entries) if isinstance(entries, dict) and len(entries) >= MANY else entries


def parts_of(entries: MutableMapping[K, V]) -> tuple[dict[K, V], ...]:
    return entries.parts if isinstance(entries, LargeDict) else (cast("dict[K, V]", entries),)


def taken_from(entries: MutableMapping[K, V]) -> Iterator[tuple[K, V]]:
    """Removes the entries one by one: to free very many at once takes long."""
    for part in parts_of(entries):
        while part:
            yield part.popitem()


def values_of(entries: MutableMapping[Any, V]) -> Iterator[V]:
    """`entries` may change meanwhile: what is added or removed then may be among the values, or not."""
    for part in parts_of(entries):
        yield from list(part.values())


class LargeDict(MutableMapping[K, V]):
    """In no order. Its keys are spread over `parts`."""

    __slots__ = ("parts",)

    def __init__(self, entries: dict[K, V]) -> None:
        self.parts: tuple[dict[K, V], ...] = tuple({} for _ in range(PARTS))
        for key, value in entries.items():
            self.parts[hash(key) % PARTS][key] = value

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self.parts)

    def __contains__(self, key: object) -> bool:
        return key in self.parts[hash(key) % PARTS]

    def __getitem__(self, key: K) -> V:
        return self.parts[hash(key) % PARTS][key]

    def __setitem__(self, key: K, value: V) -> None:
        self.parts[hash(key) % PARTS][key] = value

    def __delitem__(self, key: K) -> None:
        del self.parts[hash(key) % PARTS][key]

    def get(self, key: K, default: D | None = None) -> V | D | None:  # type: ignore[override]
        return self.parts[hash(key) % PARTS].get(key, default)

    def items(self) -> ItemsView[K, V]:
        return _Items(self)


class _Items(ItemsView[K, V]):
    _mapping: LargeDict[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(part.items() for part in self._mapping.parts)
