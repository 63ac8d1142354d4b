"""A kind's objects by key and by index, and how they change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from common.kube.client.meta import Object
from common.runtime.freeing import free_in_pieces
from common.runtime.pieces import in_pieces

T = TypeVar("T", bound=Object)

IndexFunction = Callable[[T], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """`old` is None for an object that was added, `new` is None for one that is gone. Both have the same uid."""

    old: T | None
    new: T | None


class Store(Generic[T]):
    """The objects by key (`namespace/name`, or `name`), and by the values of each index."""

    def __init__(self, indexes: Mapping[str, IndexFunction[T]]) -> None:
        self._functions = dict(indexes)
        self._objects: dict[str, T] = {}
        self._indexes: dict[str, dict[str, dict[str, T]]] = {name: {} for name in indexes}

    def __del__(self) -> None:
        free_in_pieces(*self._indexes.values(), self._objects)

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def by_index(self, name: str, value: str) -> list[T]:
        """Raises KeyError for an index that does not exist."""
        return list(self._indexes[name].get(value, {}).values())

    def number(self, name: str, value: str) -> int:
        """How many `by_index` returns."""
        return len(self._indexes[name].get(value, ()))

    def keys(self) -> list[str]:
        return list(self._objects)

    def values(self) -> list[T]:
        return list(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    @property
    def objects(self) -> dict[str, T]:
        """What is there now, by key. Where all of it is replaced, this stays as it was."""
        return self._objects

    @contextmanager
    def freed_if_cut_off(self, listed: list[T]) -> Iterator[None]:
        """While `listed` is taken up: if that is cut off, it is freed in pieces, and so is what it replaced."""
        before = self._objects
        try:
            yield
        except BaseException:
            free_in_pieces(listed, *([before] if self._objects is not before else []))
            raise

    async def _replace_in_pieces(self, objects: dict[str, T]) -> None:
        """Others run meanwhile, and see what was there before."""
        indexes: dict[str, dict[str, dict[str, T]]] = {name: {} for name in self._functions}
        async for key, obj in in_pieces(objects.items()):
            self._add_to(indexes, key, obj)
        self._objects, self._indexes = objects, indexes

    def _set(self, key: str, obj: T) -> None:
        self._remove(key)
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

    def _add_to(self, indexes: dict[str, dict[str, dict[str, T]]], key: str, obj: T) -> None:
        for name, function in self._functions.items():
            for value in function(obj):
                indexes[name].setdefault(value, {})[key] = obj


def taken_from(objects: dict[str, T]) -> Iterator[tuple[str, T]]:
    """All of them, which it no longer has then: to free very many takes long."""
    while objects:
        yield objects.popitem()
