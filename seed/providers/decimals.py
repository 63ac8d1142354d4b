"""Exact amounts from decimal fractions in answers: msgspec passes the digits of a JSON number to Decimal unchanged."""

from __future__ import annotations

from decimal import Decimal

from common.quota import quantity
from common.quota.quantity import UNIT
from seed.providers.flavour import Unreadable
from seed.providers.spec import LARGEST


def gibibytes(amount: Decimal) -> int:
    """Bytes, in nanos. Raises Unreadable when it is no size of anything."""
    return nanos(f"{amount}Gi")


def nanos(text: str) -> int:
    """A quantity out of an answer. Raises Unreadable when it is none, or not above 0 and at most 2^53."""
    try:
        amount = quantity.parse(text)
    except quantity.QuantityError as error:
        raise Unreadable("an amount is not a number above 0") from error
    if not 0 < amount <= LARGEST * UNIT:
        raise Unreadable("an amount is not a number above 0")
    return amount
