"""Amounts as people say them, each with the exact quantity beside it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from common.quota import resources
from common.quota.quantity import UNIT

_WORDS = {"cores": ("core", "cores")}
_BYTES = ("B", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BASE = 1024


class Amount(NamedTuple):
    """`text`: "59.6 Gi". `exact`: the Kubernetes quantity, "61035Mi". `approximate`: the text is not exactly it."""

    text: str
    exact: str
    approximate: bool


def amount(name: str, nanos: int) -> Amount:
    """Of the resource of this name."""
    exact = resources.render({name: nanos})[name]
    unit = resources.unit(name)
    if unit == "bytes":
        return _bytes(nanos, exact)
    text, approximate = _number(nanos, UNIT)
    if unit in _WORDS:
        text = f"{text} {_WORDS[unit][nanos != UNIT]}"
    return Amount(text, exact, approximate)


def whole(name: str, number: int) -> Amount:
    """Of what is counted in whole numbers: cores, bytes or pieces."""
    return amount(name, number * UNIT)


def percent(part: int, whole: int) -> int | None:
    """Rounded down, as the columns of a quota have it: 100% is full. None of nothing."""
    return part * 100 // whole if whole > 0 else None


def _bytes(nanos: int, exact: str) -> Amount:
    factor, suffix = UNIT, _BYTES[0]
    for larger in _BYTES[1:]:
        if abs(nanos) < factor * _BASE:
            break
        factor, suffix = factor * _BASE, larger
    text, approximate = _number(nanos, factor)
    return Amount(f"{text} {suffix}" if nanos else "0", exact, approximate)


def _number(nanos: int, factor: int) -> tuple[str, bool]:
    """Rounded towards zero, to a thousandth below one, to a hundredth below a hundred, else to a tenth."""
    whole, rest = divmod(abs(nanos), factor)
    digits = 3 if not whole else 2 if whole < 100 else 1
    fraction = rest * 10**digits // factor
    shown = f"{fraction:0{digits}d}".rstrip("0")
    text = f"{'-' if nanos < 0 else ''}{whole:,}{f'.{shown}' if shown else ''}"
    return text, fraction * factor != rest * 10**digits
