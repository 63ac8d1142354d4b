"""Amounts that clouds answer with as decimal fractions, exact: msgspec hands a JSON number's own digits to Decimal."""

from __future__ import annotations

from decimal import Decimal

from common.quota import quantity
from common.quota.quantity import UNIT
from seed.providers.flavour import CloudError
from seed.providers.spec import LARGEST


def gibibytes(amount: Decimal) -> int:
    """Bytes, in nanos. Raises CloudError when it is no size of anything."""
    return nanos(f"{amount}Gi")


def nanos(text: str) -> int:
    """A quantity out of an answer. Raises CloudError when it is none, or not above 0 and at most 2^53."""
    try:
        amount = quantity.parse(text)
    except quantity.QuantityError as error:
        raise CloudError("answers what cannot be read") from error
    if not 0 < amount <= LARGEST * UNIT:
        raise CloudError("answers what cannot be read")
    return amount
