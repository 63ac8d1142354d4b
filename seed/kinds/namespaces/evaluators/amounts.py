"""Amounts of objects as API servers keep them. Pure."""

from __future__ import annotations

from typing import Final

from common.api.types import Quantities
from common.quota import quantity
from common.quota.quantity import UNIT, QuantityError

MOST: Final = 10**24 * UNIT
"""A larger amount counts as this one. No cluster has so much, and an account can keep sums of it."""

_MILLI: Final = UNIT // 1000


def amount(text: str | int) -> int:
    """Nanos, rounded up to thousandths, as API servers do when they read (pkg/apis/core/v1/defaults.go,
    SetDefaults_ResourceList). An API server refuses what is below zero. What cannot be read counts as the most."""
    try:
        nanos = quantity.parse(text)
    except QuantityError:
        return MOST
    return min(max(-(-nanos // _MILLI) * _MILLI, 0), MOST)


def amounts(quantities: Quantities) -> dict[str, int]:
    return {name: amount(text) for name, text in quantities.items()}


def whole(nanos: int) -> int:
    """Rounded up to whole units."""
    return -(-nanos // UNIT) * UNIT
