"""What the numbers of one quota say of a request, and how it is told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from common.quota import guarantees, resources
from common.quota.resources import ResourceList
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission import denial
from seed.admission.refusal import Refusal
from seed.admission.types import Request
from seed.model.quota import Quota


class Unsettled(Enum):
    """Why capacity may be free here that an account does not show as free (rule 4.15)."""

    RESERVED_AHEAD = "by another replica"
    NAMED_LATE = "and may be counted already"


def never_fits(quota: Quota, request: Request) -> bool:
    """It is larger than the limit itself."""
    return quota.enforced and bool(resources.short(request.need, quota.limits))


def full_here(seen: QuotaSnapshot, request: Request) -> Refusal | None:
    """A refusal that is certain by what this seed uses alone."""
    quota = seen.quota
    if not resources.over_limit(request.need, seen.use, quota.ceilings):
        return None
    return exceeded(quota, request, seen.used, quota.ceilings, quota.global_reserved)


def full_everywhere(seen: QuotaSnapshot, request: Request) -> Refusal | None:
    """For a dry run, which asks nobody: what the master showed last decides whether what others hold idle would do."""
    quota = seen.quota
    kept = guarantees.kept_from(quota.guarantees, request.consumer.project)
    used = resources.add(seen.used, kept)
    if not resources.over_limit(request.need, used, quota.ceilings):
        return None
    return exceeded(quota, request, used, quota.ceilings, quota.global_reserved, kept)


def exceeded(
    quota: Quota,
    request: Request,
    used: ResourceList,
    limits: ResourceList,
    reserved: ResourceList,
    kept: ResourceList | None = None,
) -> Refusal:
    """`kept`: of `used`, what is guaranteed to others."""
    objects, shown_as = "ResourceQuotas" if quota.promises else request.objects, quota.shown_as
    return denial.exceeded(
        quota.name, request.need, used, limits, reserved, objects=objects, shown_as=shown_as, kept=kept
    )


def out_of_time(quota: Quota, *, answered: bool, unsettled: Unsettled | None = None) -> Refusal:
    """Others have room that did not come here. `answered`: the master said so. `unsettled`: why it may be here."""
    if quota.out_of_reach:
        why = ", ".join(
            f"{resources.text(held.idle)} is free but held by seed {held.seed}, "
            f"unreachable for {denial.age(held.seconds)}"
            for held in quota.out_of_reach
        )
    elif quota.draining and answered:
        why = "this seed is draining and gets no more capacity"
    elif quota.learning:
        why = "the master is learning what each seed holds"
    elif unsettled is Unsettled.RESERVED_AHEAD:
        why = "what is free is reserved by another replica of seedquota-seed, which has not given it back yet"
    elif unsettled is Unsettled.NAMED_LATE:
        why = "what was admitted a moment ago is being counted"
    else:
        why = "the master did not answer in time"
    return denial.cannot_decide(quota, why)


def little_left(seen: QuotaSnapshot, request: Request) -> Sequence[str]:
    """A warning for who was admitted, if the quota is nearly full."""
    quota, near = seen.quota, False
    after: dict[str, int] = {}
    for name, need in request.need.items():
        limit = quota.limits.get(name)
        if limit is None or need <= 0:
            continue
        known, own = quota.global_usage.get(name, 0), seen.use.get(name, 0)
        # What the master knew did not include this one; what was admitted never exceeds the limit.
        elsewhere = known + need
        if elsewhere > limit:
            elsewhere = max(limit, known)
        if request.dry_run:
            own += need
        amount = after[name] = elsewhere if elsewhere > own else own
        if amount * 100 >= limit * quota.warn_at_percent:
            near = True
    if not near:
        return ()
    limits = resources.only(quota.limits, after)
    warning = denial.near_limit(quota.name, after, limits, quota.warn_at_percent, shown_as=quota.shown_as)
    return () if warning is None else (warning,)


def warned(seen: QuotaSnapshot, request: Request) -> Sequence[str]:
    """Enforcement `warn`: admitted without a reservation; counting will show it (rule 5)."""
    quota, used = seen.quota, seen.used
    over = resources.over_limit(request.need, used, quota.limits)
    if not over:
        return ()
    after = resources.add(used, resources.only(request.need, quota.limits))
    return (denial.over_allowed(quota.name, over, after, quota.limits, shown_as=quota.shown_as),)
