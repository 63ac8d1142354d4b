"""The figures of quotas as `top` and `describe` show them. Pure."""

from __future__ import annotations

import msgspec

from common.api.subject_text import subject_text
from common.api.types import Subject
from common.quota import resources
from common.quota.names import in_order
from master.cache.objects import MasterQuota, spec_quota
from master.quotas import kept_shares, staleness
from master.quotas.override_conditions import raised_until
from master.quotas.staleness import Stale
from master.tenancy.quota_allocations import made_from


class Amounts(msgspec.Struct, frozen=True):
    """Of one resource. An empty `used`: it is not counted."""

    used: str
    hard: str
    free: str
    reserved: str


class Figures(msgspec.Struct, frozen=True, rename="camel"):
    """`percent` of the fullest resource: None where none has a limit above 0. `made_from`: the object that its
    administrator made, as commands take it, where that is another one. `raised_until`: when the first of the raises of
    its limits ends; empty: none is raised. `guaranteed`: what is used of what is guaranteed, to the project or to all
    of the organization. `kept`: of what is free, what is guaranteed to projects which do not use it."""

    name: str
    subject: str
    enforcement: str
    peak: str
    percent: int | None
    resources: dict[str, Amounts]
    seeds: str
    stale: list[Stale]
    made_from: str = ""
    raised_until: str = ""
    guaranteed: str = ""
    kept: dict[str, str] = {}


def of_quota(quota: MasterQuota, silence: str = "") -> Figures:
    """`silence`: how long the master has been silent. Raises QuantityError."""
    status = quota.status
    enforcement = str(quota.spec.get("enforcement", "deny"))
    limits = resources.parse(status.hard or spec_quota(quota))
    used, reserved = resources.parse(status.global_usage), resources.parse(status.reserved)
    amounts = {name: _amounts(name, used.get(name), limits[name], reserved.get(name, 0)) for name in in_order(limits)}
    percent = max((used.get(name, 0) * 100 // limit for name, limit in limits.items() if limit), default=None)
    return Figures(
        name=quota.metadata.name,
        subject=_shown_subject(quota),
        enforcement=enforcement,
        peak=status.summary.peak,
        percent=percent,
        resources=amounts,
        seeds=status.summary.seeds,
        stale=staleness.stale_of(quota, silence),
        made_from=f"sqa/{allocation}" if (allocation := made_from(quota)) else "",
        raised_until=raised_until(status),
        guaranteed=status.summary.guaranteed,
        kept=resources.render(kept_shares.kept_of_free(quota)),
    )


def subject_of(quota: MasterQuota) -> str:
    """Kind and name, as commands take them; the kind alone for namespaces."""
    subject = quota.spec.get("subject")
    if not isinstance(subject, dict):
        return quota.status.summary.subject
    return "/".join(filter(None, (str(subject.get("kind", "")), str(subject.get("name", "")))))


def _shown_subject(quota: MasterQuota) -> str:
    """With its selector, as `kubectl get sq` shows it."""
    try:
        return subject_text(msgspec.convert(quota.spec.get("subject"), Subject))
    except msgspec.ValidationError:
        return subject_of(quota)


def _amounts(name: str, used: int | None, limit: int, reserved: int) -> Amounts:
    if used is None:
        return Amounts("", resources.shown(name, limit)[0], "", "")
    return Amounts(*resources.shown(name, used, limit, limit - used, reserved))
