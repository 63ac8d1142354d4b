"""A dictionary that is bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lately(OrderedDict[K, V]):
    """`keep` drops what was not kept or used for longest when there is too much."""

    def keep(self, key: K, value: V, most: int) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > most:
            self.popitem(last=False)
