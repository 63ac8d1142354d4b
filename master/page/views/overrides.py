"""What is raised for a time, as pages show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from common.quota import resources
from common.quota.names import in_order
from master.page.views import amounts
from master.page.views.amounts import Amount

_STATES: Mapping[str, tuple[str, str]] = {
    "InForce": ("good", "in force"),
    "EndsSoon": ("warn", "ends within a day"),
    "Ended": ("neutral", "ended"),
    "Pending": ("unknown", "not decided yet"),
}


class OverrideLine(NamedTuple):
    """Raises limits until a time. `state` is in words."""

    until: str
    amounts: tuple[tuple[str, Amount], ...]
    reason: str
    tone: str
    state: str


class Given(Protocol):
    """An override of a quota, as its object or the HTTP API has it."""

    @property
    def until(self) -> str: ...

    @property
    def quota(self) -> Mapping[str, str | int]: ...

    @property
    def reason(self) -> str: ...


def lines(overrides: Iterable[tuple[Given, str]]) -> list[OverrideLine]:
    """Each with its state. Raises QuantityError."""
    return [OverrideLine(each.until, _amounts(each.quota), each.reason, *_STATES[state]) for each, state in overrides]


def _amounts(given: Mapping[str, str | int]) -> tuple[tuple[str, Amount], ...]:
    found = resources.parse(given)
    return tuple((name, amounts.amount(name, found[name])) for name in in_order(found))
