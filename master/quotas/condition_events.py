"""Which Events a quota gets: one for each condition that turns for the worse, and one for other limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.api.types import Condition
from common.quota import resources
from common.quota.quantity import QuantityError
from master.quotas.limits_fit import LIMITS_FIT

UNREACHABLE = "SeedUnreachable"
LIMITS_CHANGED = "LimitsChanged"


def new_warnings(before: Iterable[Condition], after: Iterable[Condition]) -> list[tuple[str, str]]:
    """Reason and note of each. What has lasted says nothing again, nor what it changes to while it lasts."""
    was, now = _troubles(before), _troubles(after)
    return [(reason, note) for reason, note in now.items() if reason not in was]


def _troubles(conditions: Iterable[Condition]) -> dict[str, str]:
    found: dict[str, str] = {}
    for condition in conditions:
        if condition.type in ("NearLimit", "Exceeded", "ResourceNotCounted") and condition.status == "True":
            found[condition.type] = condition.message
        elif condition.type == "UsageCurrent" and condition.reason == UNREACHABLE:
            found[UNREACHABLE] = condition.message
        elif condition.type == LIMITS_FIT and condition.status == "False":
            found[condition.reason] = condition.message
    return found


def changed_limits(before: Mapping[str, str | int], after: Mapping[str, str | int]) -> str:
    """The note of the Event about limits that are in force now: `cpu 64 to 128`. Empty where none has changed, or where
    none were before: then the quota is new, or somebody else wrote what cannot be read."""
    try:
        was, now = resources.parse(before), resources.parse(after)
    except QuantityError:
        return ""
    if not was:
        return ""
    return ", ".join(_change(name, was, now) for name in sorted({*was, *now}) if was.get(name) != now.get(name))


def _change(name: str, was: Mapping[str, int], now: Mapping[str, int]) -> str:
    words = {side: amounts[name] for side, amounts in (("was", was), ("now", now)) if name in amounts}
    written = dict(zip(words, resources.shown(name, *words.values()), strict=True))
    return f"{name} {written.get('was', 'unlimited')} to {written.get('now', 'unlimited')}"
