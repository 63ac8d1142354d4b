"""What an organization may use, uses and has free, in whole pieces of each type, and how that is set. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from common.api.types import MAX_AMOUNT
from common.quota import resources
from common.quota.quantity import UNIT
from master.apiserver.problem import ProblemError, invalid
from master.apiserver.serializers import MAX_TYPES, AnswerBody, Body, ReadOnly, Type, largest, limits_of, used_of
from master.cache.allocations import Use
from master.cache.objects import MasterQuota, spec_quota
from master.quotas import kept_shares


class Amount(AnswerBody, kw_only=True):
    type: Type
    amount: Annotated[int, Meta(ge=0)]


class Allocated(AnswerBody, kw_only=True):
    """How much of a type is used: the sum of `committed`, what is always there, and `reserved`, what may come."""

    type: Type
    amount: Annotated[int, Meta(ge=0)]
    committed: Annotated[int, Meta(ge=0)]
    reserved: Annotated[int, Meta(ge=0)]


class OrganizationQuotas(AnswerBody, kw_only=True):
    """A type that is missing in `capacity` is unlimited. One that is in `capacity` alone is not counted yet. `kept`: of
    `free`, what is guaranteed to projects that do not use it, and free for them alone; left out if that is nothing."""

    capacity: list[Amount]
    free: list[Amount]
    kept: list[Amount] | UnsetType = UNSET
    allocated: list[Allocated]


class Capacity(Body, kw_only=True):
    type: Type
    amount: Annotated[int, Meta(ge=0, le=MAX_AMOUNT)]


class OrganizationQuotasUpdate(Body, kw_only=True):
    """Replaces the limits of the organization. A type that is missing becomes unlimited."""

    capacity: Annotated[list[Capacity], Meta(min_length=1, max_length=MAX_TYPES)]
    free: ReadOnly = UNSET
    kept: ReadOnly = UNSET
    allocated: ReadOnly = UNSET


def organization_quotas(quotas: Sequence[MasterQuota], allocations: Mapping[str, Use]) -> OrganizationQuotas:
    """`allocations`: of what is counted from them. A quota's status comes a moment after them."""
    limits = limits_of(quotas)
    allocated = {name: use.amount * UNIT for name, use in allocations.items() if name in limits or use.amount}
    used = resources.maximum(resources.only(used_of(quotas), sorted(limits)), allocated)
    free = {name: max(limits[name] - used[name], 0) for name in sorted(limits.keys() & used.keys())}
    kept = largest(map(kept_shares.kept_of_free, quotas))
    return OrganizationQuotas(
        capacity=[Amount(type=name, amount=limits[name] // UNIT) for name in sorted(limits)],
        free=[Amount(type=name, amount=amount // UNIT) for name, amount in free.items()],
        kept=[
            Amount(type=name, amount=min(-(-kept[name] // UNIT), amount // UNIT))
            for name, amount in free.items()
            if name in kept
        ]
        or UNSET,
        allocated=[_allocated(name, use, allocations.get(name, Use())) for name, use in sorted(used.items())],
    )


def capacity_changes(
    quota: MasterQuota | None, wanted: Sequence[Capacity], allocations: Mapping[str, Use]
) -> dict[str, str | int | None]:
    """A merge patch of `spec.quota`. An amount that is shown stays as it is: what is shown may be rounded.

    Raises ProblemError for a type that is named twice, or lowered below what is used.
    """
    seen: set[str] = set()
    for number, each in enumerate(wanted):
        if each.type in seen:
            raise invalid(f"/capacity/{number}/type", f"{each.type} is named twice")
        seen.add(each.type)
    before = spec_quota(quota) if quota is not None else {}
    limits = resources.parse(before)
    in_force = limits_of([quota]) if quota is not None else {}
    used = used_of([quota]) if quota is not None else {}
    for name, use in allocations.items():
        used[name] = max(use.amount * UNIT, used.get(name, 0))
    changes: dict[str, str | int | None] = dict.fromkeys(name for name in before if name not in seen)
    below = []
    for each in wanted:
        amount = each.amount * UNIT
        old = limits.get(each.type)
        if old is not None and each.amount in (old // UNIT, in_force[each.type] // UNIT):
            continue
        if amount < used.get(each.type, 0) and (old is None or amount < old):
            below.append(f"{each.type}: capacity {each.amount}, allocated {-(-used[each.type] // UNIT)}")
        changes[each.type] = resources.render({each.type: amount})[each.type]
    if below:
        raise ProblemError(409, "; ".join(below), code="capacity_below_allocated")
    return changes


def _allocated(name: str, used: int, allocations: Use) -> Allocated:
    amount = -(-used // UNIT)
    return Allocated(type=name, amount=amount, committed=amount - allocations.reserved, reserved=allocations.reserved)
