"""Which of many users of a quota are shown where only a few can be. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, TypeVar

from common.quota.resources import ResourceList

MOST: Final = 32

_PARTS = 10_000
K = TypeVar("K", bound=tuple[str, ...])


def largest(
    found: Iterable[tuple[K, ResourceList]], limits: ResourceList, most: int = MOST
) -> list[tuple[K, ResourceList]]:
    """By the share that they have of the limit which they have most of; the same ones while nothing changes."""
    return heapq.nsmallest(most, found, key=lambda each: (-_share(each[1], limits), each[0]))


def _share(used: ResourceList, limits: ResourceList) -> int:
    return max((amount * _PARTS // max(limits[name], 1) for name, amount in used.items() if name in limits), default=0)
