"""Resource lists: amounts in nanos (see common/quota/quantity.py) by resource name.

A name that is missing counts as 0 in arithmetic, so every result names what either operand names, and nothing else.
Where a list says what is *free*, a name that is missing is unlimited instead: only ``short`` reads a list so. A list of
what is free therefore has to be cut to the limit's names: ``only(subtract(limit, used), limit)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from common.quota import quantity
from common.quota.quantity import UNIT, Format, QuantityError

ResourceList: TypeAlias = Mapping[str, int]

_STEPS: Final = {"cores": UNIT // 1000, "bytes": UNIT << 20, "": UNIT}  # by `unit`
_SHORT: Final = 7  # characters of an amount that people read at once
_BINARY_NAMES: Final = frozenset({"memory", "storage", "ephemeral-storage"})


def parse(raw: Mapping[str, str | int]) -> dict[str, int]:
    """Amounts in nanos. Raises QuantityError, which names the resource and the text."""
    parsed = {}
    for name, amount in raw.items():
        try:
            parsed[name] = quantity.parse(amount)
        except QuantityError as error:
            raise QuantityError(f"{name}: {error}") from None
    return parsed


def render(resources: ResourceList) -> dict[str, str]:
    """Canonical quantities by name: bytes with binary suffixes, all else with decimal ones."""
    return {name: _render(name, amount) for name, amount in resources.items()}


def text(resources: ResourceList) -> str:
    """The list as Kubernetes' quota messages write it: ``cpu=8,memory=16Gi``, sorted by name."""
    return ",".join(f"{name}={_render(name, amount)}" for name, amount in sorted(resources.items()))


def unit(name: str) -> str:
    """Of a metric's value: `cores`, `bytes`, or empty for pieces."""
    if name.rpartition(".")[2] == "cpu":
        return "cores"
    return "bytes" if _format(name) is Format.BINARY_SI else ""


def step(name: str, limit: int) -> int:
    """Where there is a choice amounts are whole multiples of it, so that people can read them: a thousandth of a core,
    a MiB, a piece. It is less where the limit is written in less."""
    return min(_STEPS[unit(name)], quantity.unit(limit, _format(name)))


def alike(name: str, *amounts: int) -> list[str]:
    """Several amounts of one resource, all in one unit."""
    return quantity.render_alike(amounts, _format(name))


def shown(name: str, *amounts: int) -> list[str]:
    """Amounts of one resource for tables, exactly, and each in the unit in which it is short: `100m` of `20`."""
    return [quantity.render_plain(amount, _format(name)) for amount in amounts]


def about(name: str, amount: int) -> str:
    """As `shown`, but `~1120Mi` where the exact text would be a long number of bytes or of billionths of a core. It is
    rounded up."""
    text = quantity.render_plain(amount, _format(name))
    step = _STEPS[unit(name)]
    if len(text) <= _SHORT or amount < step or amount % step == 0:
        return text
    return f"~{quantity.render_plain(amount - amount % step + step, _format(name))}"


def texts(*lists: ResourceList) -> list[str]:
    """Several lists for one message, each as ``text`` writes it, but all amounts of a resource in one unit."""
    written: list[list[str]] = [[] for _ in lists]
    for name in sorted({name for found in lists for name in found}):
        having = [number for number, found in enumerate(lists) if name in found]
        amounts = alike(name, *(lists[number][name] for number in having))
        for number, amount in zip(having, amounts, strict=True):
            written[number].append(f"{name}={amount}")
    return [",".join(words) for words in written]


def add(a: ResourceList, b: ResourceList) -> dict[str, int]:
    result = dict(a)
    for name, amount in b.items():
        result[name] = result.get(name, 0) + amount
    return result


def subtract(a: ResourceList, b: ResourceList) -> dict[str, int]:
    """a - b, negative where b is more (also for names that only b has)."""
    result = dict(a)
    for name, amount in b.items():
        result[name] = result.get(name, 0) - amount
    return result


def total(lists: Iterable[ResourceList]) -> dict[str, int]:
    result: dict[str, int] = {}
    for resources in lists:
        for name, amount in resources.items():
            result[name] = result.get(name, 0) + amount
    return result


def at_least_zero(a: ResourceList) -> dict[str, int]:
    return {name: max(amount, 0) for name, amount in a.items()}


def maximum(a: ResourceList, b: ResourceList) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in (*a, *(name for name in b if name not in a))}


def minimum(a: ResourceList, b: ResourceList) -> dict[str, int]:
    return {name: min(a.get(name, 0), b.get(name, 0)) for name in (*a, *(name for name in b if name not in a))}


def short(need: ResourceList, free: ResourceList) -> dict[str, int]:
    """What is missing to serve ``need``; empty when it fits.

    Only what is needed at all (above 0) and named in ``free`` can be short: a name that ``free`` lacks is unlimited.
    """
    return {
        name: amount - free[name]
        for name, amount in need.items()
        if amount > 0 and name in free and amount > free[name]
    }


def over_limit(need: ResourceList, used: ResourceList, limits: ResourceList) -> dict[str, int]:
    """By how much used + needed is past the limit, for the resources where it is."""
    return short(need, {name: limit - used.get(name, 0) for name, limit in limits.items()})


def only(a: ResourceList, names: Iterable[str]) -> dict[str, int]:
    """The entries of ``a`` that ``names`` names."""
    return {name: a[name] for name in names if name in a}


def _render(name: str, amount: int) -> str:
    return quantity.render(amount, _format(name))


def _format(name: str) -> Format:
    unqualified = name.rpartition(".")[2]
    in_bytes = unqualified in _BINARY_NAMES or unqualified.startswith("hugepages-")
    return Format.BINARY_SI if in_bytes else Format.DECIMAL_SI
