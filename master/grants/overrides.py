"""Temporary raises of a quota: which limits are in force, and when that changes next. Pure.

An override raises limits until its end, by the wall clock of the master that leads. Of several that are in force the
largest amount of a resource counts, and never less than `spec.quota` has. A resource that `spec.quota` does not name is
unlimited, and stays so.

What has ended stays ended, also if the clock is set back or the next leader's clock is behind: the status records it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from common.api.types import Quantities
from common.quota import quantity
from master.cache.objects import MasterQuota, Override, OverrideStatus, spec_quota

SOON = 86400.0  # seconds before its end from which an override is said to end soon


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """`spec`: as a seed gets it, with the limits in force and without overrides. It does not say what is guaranteed:
    the grants of the organization's quota do. `next_change`: Unix time, None: none of the overrides changes any more.
    """

    spec: dict[str, object]
    overrides: Sequence[OverrideStatus] = ()
    next_change: float | None = None


def in_force(quota: MasterQuota, before: Sequence[OverrideStatus], now: float) -> InForce:
    """`before`: what was said of the overrides last. `now`: Unix time. Raises QuantityError, msgspec.ValidationError
    for what the API server should have refused."""
    spec = {name: value for name, value in quota.spec.items() if name not in ("overrides", "guaranteed")}
    if "overrides" not in quota.spec:
        return InForce(spec=spec if "guaranteed" in quota.spec else quota.spec)
    given = msgspec.convert(quota.spec["overrides"], list[Override])
    limits = spec_quota(quota)
    ends = [end(each.until) for each in given]
    # Never earlier than what was said before.
    ended = max([now, *_ends_of(before, "Ended")])
    soon = max([now + SOON, *_ends_of(before, "EndsSoon")])
    said = [
        OverrideStatus(
            until=each.until,
            quota=each.quota,
            reason=each.reason,
            state="Ended" if at is None or at <= ended else "EndsSoon" if at <= soon else "InForce",
        )
        for each, at in zip(given, ends, strict=True)
    ]
    changes = [
        at if each.state == "EndsSoon" else at - SOON
        for each, at in zip(said, ends, strict=True)
        if at is not None and each.state != "Ended"
    ]
    return InForce(
        spec={**spec, "quota": raised(limits, [each.quota for each in said if each.state != "Ended"])},
        overrides=said,
        next_change=min(changes, default=None),
    )


def shown_limits(quota: MasterQuota) -> Quantities:
    """Those in force, as the master that leads said last. Raises QuantityError, msgspec.ValidationError."""
    limits = spec_quota(quota)
    if "overrides" not in quota.spec:
        return limits
    return raised(limits, [each.quota for each in quota.status.overrides if each.state != "Ended"])


def shown_overrides(quota: MasterQuota) -> list[tuple[Override, str]]:
    """Those of the spec, with what the master that leads said last of each; Pending: nothing yet.

    Raises msgspec.ValidationError."""
    said = {_key(each): each.state for each in quota.status.overrides}
    given = msgspec.convert(quota.spec.get("overrides", []), list[Override])
    return [(each, said.get(_key(each), "Pending")) for each in given]


def raised(limits: Quantities, raises: Sequence[Mapping[str, str | int]]) -> Quantities:
    """As they are written. Raises QuantityError."""
    found = dict(limits)
    for amounts in raises:
        for name in amounts.keys() & found.keys():
            if quantity.parse(amounts[name]) > quantity.parse(found[name]):
                found[name] = amounts[name]
    return found


def end(until: str) -> float | None:
    """Unix time. None for what is no time: such an override is never in force."""
    try:
        found = datetime.fromisoformat(until)
        return found.timestamp() if found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _key(override: Override) -> tuple[str, str, frozenset[tuple[str, str | int]]]:
    return override.until, override.reason, frozenset(override.quota.items())


def _ends_of(said: Sequence[OverrideStatus], state: str) -> list[float]:
    return [at for each in said if each.state == state and (at := end(each.until)) is not None]
