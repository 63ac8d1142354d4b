"""Kubernetes quantities as exact integers.

An amount is an integer of billionths ("nanos"): ``parse("1500m") == 1_500_000_000``. Nothing here is a float.

Syntax, rounding and canonical output are those of ``k8s.io/apimachinery/pkg/api/resource.Quantity``, with these
exceptions, all on the side of exactness:

- Kubernetes caps binary quantities at 2**63-1 (``16Ei`` becomes ``9223372036854775807``) and loses the suffix of
  decimal ones from 10**21 on (``1000E`` prints as ``1``). Here both keep their value.
- Kubernetes reads text without a digit before its suffix (``+``, ``.``, ``Ki``, ``e3``) as zero. Its own grammar
  forbids that, and a limit that is zero by a slip of the pen locks people out, so here it is an error.
- Exponents beyond 99 either way and amounts of 10**36 or more are refused: one short text must not become a number of
  a million digits, and whatever is parsed, summed and rendered can be parsed again.
- Kubernetes prints some texts unchanged as long as nothing was added to them (``+5``, ``1.500``); here output is always
  canonical (``5``, ``1500m``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

UNIT: Final = 10**9
MAX_LENGTH: Final = 64
MAX_EXPONENT: Final = 99

_CACHE_SIZE: Final = 16_384
_PLAIN: Final = 100_000
_LIMIT: Final = 10**36 * UNIT
_NUMBER: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_DECIMAL_EXPONENTS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_EXPONENTS: Final = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_FACTORS: Final = [(suffix, 10 ** (9 + power)) for suffix, power in reversed(_DECIMAL_EXPONENTS.items())]
_BINARY_FACTORS: Final = [(suffix, UNIT << power) for suffix, power in reversed(_BINARY_EXPONENTS.items())]


class QuantityError(ValueError):
    """A text that is no quantity; the message names it."""


class Format(Enum):
    """How a quantity was written, hence how it is written again."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


def parse(text: str | int) -> int:
    """The amount in nanos; what is finer than a nano rounds away from zero. Raises QuantityError."""
    return parse_with_format(text)[0]


def parse_with_format(text: str | int) -> tuple[int, Format]:
    """The amount in nanos and the format it was written in. Raises QuantityError."""
    if isinstance(text, str):
        return _parse(text)
    if isinstance(text, bool) or not isinstance(text, int):
        raise QuantityError(f"{_shown(text)} is not a quantity: it must be a string or an integer")
    if abs(text) >= _LIMIT // UNIT:
        raise QuantityError(f"{_shown(text)} is not a quantity: it is too large")
    return text * UNIT, Format.DECIMAL_SI


@lru_cache(maxsize=_CACHE_SIZE)
def render(nanos: int, format: Format) -> str:
    """The canonical text: no fraction, and the largest suffix that loses nothing.

    As in Kubernetes, a binary amount that is fractional or below 1024 is written in decimal.
    """
    if nanos == 0:
        return "0"
    if format is Format.DECIMAL_EXPONENT:
        return _render_exponent(nanos)
    suffix, factor = _suffix(nanos, format)
    return f"{nanos // factor}{suffix}"


def unit(nanos: int, format: Format) -> int:
    """What the canonical text counts in, itself in nanos."""
    return _suffix(nanos, format)[1]


def _suffix(nanos: int, format: Format) -> tuple[str, int]:
    binary = format is Format.BINARY_SI and nanos % UNIT == 0 and abs(nanos) >= 1024 * UNIT
    factors = _BINARY_FACTORS if binary else _DECIMAL_FACTORS
    return next(pair for pair in factors if nanos % pair[1] == 0)


def render_alike(amounts: Sequence[int], format: Format) -> list[str]:
    """All with one suffix, the largest that loses nothing of any; zero has none."""
    common = math.gcd(*amounts)
    if common == 0:
        return ["0" for _ in amounts]
    factors = _BINARY_FACTORS if format is Format.BINARY_SI and common % UNIT == 0 else _DECIMAL_FACTORS
    suffix, factor = next(pair for pair in factors if common % pair[1] == 0)
    return [f"{nanos // factor}{suffix}" if nanos else "0" for nanos in amounts]


@lru_cache(maxsize=_CACHE_SIZE)
def render_plain(nanos: int, format: Format) -> str:
    """As people write it, exactly: pieces and cores without a suffix up to 99,999, and bytes with a decimal suffix
    where no binary one is exact."""
    if format is not Format.BINARY_SI:
        whole = nanos % UNIT == 0 and abs(nanos) < _PLAIN * UNIT
        return str(nanos // UNIT) if whole else render(nanos, format)
    text = render(nanos, format)
    return render(nanos, Format.DECIMAL_SI) if text.lstrip("-").isdigit() else text


def canonical(text: str | int) -> str:
    """The same quantity in canonical form. Raises QuantityError."""
    return render(*parse_with_format(text))


@lru_cache(maxsize=_CACHE_SIZE)
def _parse(text: str) -> tuple[int, Format]:
    if len(text) > MAX_LENGTH:
        raise QuantityError(f"{_shown(text)} is not a quantity: it is longer than {MAX_LENGTH} characters")
    match = _NUMBER.fullmatch(text)
    if match is None or not (match["whole"] or match["fraction"]):
        raise QuantityError(
            f"{_shown(text)} is not a quantity: write a number with an optional suffix, "
            "such as 4, 500m, 16Gi, 64G or 2e3"
        )
    suffix = match["suffix"] or ""
    fraction = match["fraction"] or ""
    binary_exponent = 0
    decimal_exponent = 0
    if match["exponent"] is not None:
        format = Format.DECIMAL_EXPONENT
        decimal_exponent = int(match["exponent"])
        if abs(decimal_exponent) > MAX_EXPONENT:
            raise QuantityError(f"{_shown(text)} is not a quantity: its exponent is beyond {MAX_EXPONENT}")
    elif suffix in _DECIMAL_EXPONENTS:
        format = Format.DECIMAL_SI
        decimal_exponent = _DECIMAL_EXPONENTS[suffix]
    else:
        format = Format.BINARY_SI
        binary_exponent = _BINARY_EXPONENTS[suffix]
    magnitude = _to_nanos(
        int(match["whole"] + fraction) << binary_exponent,
        decimal_exponent - len(fraction),
    )
    if magnitude >= _LIMIT:
        raise QuantityError(f"{_shown(text)} is not a quantity: it is too large")
    if format is Format.BINARY_SI and 0 < magnitude < UNIT:
        format = Format.DECIMAL_SI
    return (-magnitude if match["sign"] == "-" else magnitude), format


def _to_nanos(mantissa: int, exponent: int) -> int:
    exponent += 9
    factor: int = 10 ** abs(exponent)
    return mantissa * factor if exponent >= 0 else -(-mantissa // factor)


def _render_exponent(nanos: int) -> str:
    exponent = -9
    while nanos % 1000 == 0:
        nanos //= 1000
        exponent += 3
    return f"{nanos}e{exponent}" if exponent else str(nanos)


def _shown(value: object) -> str:
    # Python refuses to print an integer of more than 4300 digits.
    shown = hex(value) if isinstance(value, int) and abs(value) >= _LIMIT else repr(value)
    return shown if len(shown) <= MAX_LENGTH else f"{shown[:MAX_LENGTH]}..."
