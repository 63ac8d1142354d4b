"""What people read of a quota's temporary raises: a condition, the next end, and Events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.api.conditions import condition, more, short
from common.api.types import Condition
from common.quota import resources
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList
from master.cache.objects import OverrideStatus, QuotaStatus
from master.grants.overrides import end

OVERRIDDEN = "Overridden"
ENDS = "OverrideEnds"
ENDED = "OverrideEnded"
_NAMED = 3


def overridden(overrides: Sequence[OverrideStatus], raised: ResourceList) -> list[Condition]:
    """Only of a quota with overrides. `raised`: the limits in force above those of `spec.quota`."""
    if not overrides:
        return []
    current = _by_end(each for each in overrides if each.state != "Ended")
    if not current:
        last = _by_end(overrides)[-1]
        text = f"the last one ended at {last.until}; spec.quota is in force, and spec.overrides can be removed"
        return [condition(OVERRIDDEN, False, "Ended", text)]
    if not raised:
        text = "no limit of spec.overrides is above that of spec.quota"
        return [condition(OVERRIDDEN, False, "RaisesNothing", text)]
    reason = "EndsSoon" if any(each.state == "EndsSoon" for each in current) else "Raised"
    texts = "; ".join(text_of(each) for each in current[:_NAMED])
    return [condition(OVERRIDDEN, True, reason, short(f"{texts}{more(current)}"))]


def first_end(overrides: Iterable[OverrideStatus]) -> str:
    """Of those that are in force. Empty: there are none."""
    current = _by_end(each for each in overrides if each.state != "Ended")
    return current[0].until if current else ""


def raised_until(status: QuotaStatus) -> str:
    """When the first of the raises ends. Empty: no limit is raised."""
    raised = any(each.type == OVERRIDDEN and each.status == "True" for each in status.conditions)
    return first_end(status.overrides) if raised else ""


def new_events(before: Sequence[OverrideStatus], after: Sequence[OverrideStatus]) -> list[tuple[str, str]]:
    """Reason and note of each override that ends within a day from now on, or that has ended. One that had ended before
    it was written has an Event, too: it does nothing."""
    was = {_identity(each): each.state for each in before}
    found = []
    for each in after:
        state = was.get(_identity(each))
        if each.state == "EndsSoon" and state != "EndsSoon":
            found.append((ENDS, f"{text_of(each)}; then spec.quota is in force, nothing is removed"))
        elif each.state == "Ended" and state is None:
            found.append((ENDED, f"{text_of(each)}: this end had passed before, so it raises nothing"))
        elif each.state == "Ended" and state != "Ended":
            found.append((ENDED, f"{text_of(each)}: ended; nothing is removed"))
    return found


def text_of(override: OverrideStatus) -> str:
    """`cpu=128 until 2026-12-31T00:00:00Z (launch)`."""
    try:
        amounts = resources.text(resources.parse(override.quota))
    except QuantityError as error:
        amounts = str(error)
    why = f" ({override.reason})" if override.reason else ""
    return f"{amounts} until {override.until}{why}"


def _by_end(overrides: Iterable[OverrideStatus]) -> list[OverrideStatus]:
    return sorted(overrides, key=lambda each: (end(each.until) or 0.0, each.until))


def _identity(override: OverrideStatus) -> tuple[str, str, str]:
    return override.until, str(sorted(override.quota.items())), override.reason
