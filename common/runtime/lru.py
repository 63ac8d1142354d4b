"""A dictionary with a bound."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruDict(OrderedDict[K, V]):
    """With more than `most` entries, `keep` drops the one that was not kept, or moved to the end, for longest."""

    def keep(self, key: K, value: V, most: int) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > most:
            self.popitem(last=False)
