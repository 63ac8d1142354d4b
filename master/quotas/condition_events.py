"""Which Events a quota gets: one for each of its conditions that turns for the worse. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from common.api.types import Condition

UNREACHABLE = "SeedUnreachable"


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
    return found
