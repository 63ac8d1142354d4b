"""Conditions as pages show them: which are good, which are bad, and which nobody knows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, NamedTuple

from common.api.types import Condition
from master.page.views.times import Moment, moment

Tone = Literal["good", "bad", "warn", "unknown"]
"""Unknown is never good."""

_GOOD_IF_FALSE = ("NearLimit", "Exceeded", "ResourceNotCounted", "Overridden")
_WARN = (
    "NearLimit",
    "NamespacesLimited",
    "ResourceNotCounted",
    "UsageCurrent",
    "LimitsFit",
    "GuaranteesInForce",
    "Overridden",
)


class Shown(NamedTuple):
    """`since`: when the status last changed."""

    type: str
    status: str
    tone: Tone
    reason: str
    message: str
    since: Moment


def shown(conditions: Iterable[Condition], now: datetime) -> list[Shown]:
    return [
        Shown(each.type, each.status, tone(each), each.reason, each.message, moment(each.last_transition_time, now))
        for each in conditions
    ]


def tone(condition: Condition) -> Tone:
    if condition.status == "Unknown":
        return "unknown"
    if (condition.status == "True") != (condition.type in _GOOD_IF_FALSE):
        return "warn" if condition.reason in ("WarnOnly", "VersionSkew") else "good"
    return "warn" if condition.type in _WARN else "bad"


def find(conditions: Iterable[Condition], type: str) -> Condition | None:
    return next((each for each in conditions if each.type == type), None)


def status_of(conditions: Iterable[Condition], type: str) -> str:
    """Unknown where there is no such condition."""
    found = find(conditions, type)
    return found.status if found is not None else "Unknown"
