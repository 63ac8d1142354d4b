"""A kind's objects by key and by index, and how they change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from common.kube.client.meta import Object
from common.runtime.freeing import LARGE, free_all_in_pieces, free_in_pieces
from common.runtime.large_dict import grown, values_of
from common.runtime.pieces import in_pieces

T = TypeVar("T", bound=Object)

IndexFunction = Callable[[T], Iterable[str]]
Indexes = dict[str, MutableMapping[str, MutableMapping[str, T]]]  # by name, value and key


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """`old` is None for an object that was added, `new` is None for one that is gone. Both have the same uid."""

    old: T | None
    new: T | None


class Store(Generic[T]):
    """The objects by key (`namespace/name`, or `name`), and by the values of each index."""

    def __init__(self, indexes: Mapping[str, IndexFunction[T]]) -> None:
        self._functions = dict(indexes)
        self._objects: MutableMapping[str, T] = {}
        self._indexes: Indexes[T] = {name: {} for name in indexes}

    def __del__(self) -> None:
        free_in_pieces(*self._indexes.values(), self._objects)

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def by_index(self, name: str, value: str) -> list[T]:
        """Raises KeyError for an index that does not exist."""
        return list(self.each_by_index(name, value))

    def each_by_index(self, name: str, value: str) -> Iterator[T]:
        """As `by_index`. The store may change meanwhile: what comes or goes then may be among them, or not."""
        return values_of(self._indexes[name].get(value, {}))

    def number(self, name: str, value: str) -> int:
        """How many `by_index` returns."""
        return len(self._indexes[name].get(value, ()))

    def keys(self) -> list[str]:
        return list(self._objects)

    def values(self) -> list[T]:
        return list(values_of(self._objects))

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    @property
    def objects(self) -> MutableMapping[str, T]:
        """What is there now, by key. Where all of it is replaced, this stays as it was."""
        return self._objects

    @contextmanager
    def freed_in_pieces(self, listed: list[T]) -> Iterator[None]:
        """`listed` is taken up in the block, and freed after it. If the block fails, what it replaced is freed, too."""
        before = self._objects
        try:
            yield
        except BaseException:
            if self._objects is not before:
                free_in_pieces(before)
            raise
        finally:
            free_in_pieces(listed)

    async def _replace_in_pieces(self, objects: MutableMapping[str, T]) -> None:
        """Others run meanwhile, and see what was there before."""
        before, many = self._indexes, len(self._objects) + len(objects) > LARGE
        after: Indexes[T] = {name: {} for name in self._functions}
        try:
            async for key, obj in in_pieces(objects.items()):
                self._add_to(after, key, obj)
            self._objects, self._indexes = objects, after
        finally:
            if many:
                free_all_in_pieces(*(before if self._indexes is after else after).values())

    def _set(self, key: str, obj: T) -> None:
        self._remove(key)
        self._objects = grown(self._objects)
        self._objects[key] = obj
        self._add_to(self._indexes, key, obj)

    def _remove(self, key: str) -> T | None:
        old = self._objects.pop(key, None)
        if old is not None:
            for name, function in self._functions.items():
                index = self._indexes[name]
                for value in function(old):
                    if (found := index.get(value)) is not None:
                        found.pop(key, None)
                        if not found:
                            del index[value]
        return old

    def _add_to(self, indexes: Indexes[T], key: str, obj: T) -> None:
        for name, function in self._functions.items():
            for value in function(obj):
                index = indexes[name] = grown(indexes[name])
                found = index[value] = grown(index.get(value, {}))
                found[key] = obj


async def by_key(objects: list[T]) -> MutableMapping[str, T]:
    found: MutableMapping[str, T] = {}
    async for obj in in_pieces(objects):
        found = grown(found)
        found[obj.metadata.key] = obj
    return found
