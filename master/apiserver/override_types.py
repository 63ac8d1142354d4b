"""What is asked to raise limits until a time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Meta

from master.apiserver.problem import invalid
from master.apiserver.serializers import Body, GivenLimits, ReadOnly, quantities
from master.cache.objects import MasterQuota, Override
from master.grants.overrides import end, shown_overrides


class OverrideGiven(Body, kw_only=True):
    """`quota`: amounts of resources that the quota limits, not below their limits."""

    until: Annotated[str, Meta(max_length=25, description="A time of RFC 3339, such as 2026-12-31T00:00:00Z.")]
    quota: GivenLimits
    reason: Annotated[str, Meta(max_length=256)] = ""
    state: ReadOnly = UNSET


GivenOverrides = Annotated[list[OverrideGiven], Meta(max_length=8)]  # as the CRD has it


class OverridesUpdate(Body, kw_only=True):
    """Replaces all of them."""

    overrides: GivenOverrides


def overrides(given: Sequence[OverrideGiven]) -> list[Override]:
    """Raises ProblemError."""
    found = []
    for number, each in enumerate(given):
        if end(each.until) is None:
            raise invalid(f"/overrides/{number}/until", f"{each.until!r} is no time such as 2026-12-31T00:00:00Z")
        limits = quantities(each.quota, f"/overrides/{number}/quota")
        found.append(Override(until=each.until, quota=limits, reason=each.reason))
    return found


def to_come(given: Sequence[Override], now: float) -> list[Override]:
    """Those that have not ended. `now`: Unix time."""
    return [each for each in given if (end(each.until) or 0.0) > now]


def not_ended(quota: MasterQuota) -> list[Override]:
    """Of the quota. What the master ended stays ended, whatever a clock says."""
    return [each for each, state in shown_overrides(quota) if state != "Ended"]
