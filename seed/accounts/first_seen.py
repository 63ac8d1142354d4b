"""Since when something is known as it is now. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def first_seen(before: Mapping[K, tuple[V, float]], found: Mapping[K, V], now: float) -> dict[K, tuple[V, float]]:
    """Of what is found, each with its time (monotonic). One that has changed begins anew."""
    return {
        key: seen if (seen := before.get(key)) is not None and seen[0] == value else (value, now)
        for key, value in found.items()
    }
