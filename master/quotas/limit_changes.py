"""What a change of limits does, before it is made: each limit before and after, and what is used beyond it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from common.api.labels import DEFAULT_LABEL
from common.quota import resources
from common.quota.resources import ResourceList
from master.cache.informers import subject_of
from master.cache.objects import MasterQuota

UNLIMITED = "unlimited"


class Changed(msgspec.Struct, frozen=True):
    """One limit before and after, in one unit. `over`: used beyond the new limit; empty if nothing is."""

    before: str
    after: str
    used: str
    over: str


def compared(before: ResourceList, after: ResourceList, used: ResourceList, names: Sequence[str]) -> dict[str, Changed]:
    """Of the resources with these names."""
    found: dict[str, Changed] = {}
    for name in names:
        amounts = {
            word: amounts[name]
            for word, amounts in (("before", before), ("after", after), ("used", used))
            if name in amounts
        }
        excess = amounts.get("used", 0) - amounts.get("after", amounts.get("used", 0))
        if excess > 0:
            amounts["over"] = excess
        written = dict(zip(amounts, resources.shown(name, *amounts.values()), strict=True))
        found[name] = Changed(
            before=written.get("before", UNLIMITED),
            after=written.get("after", UNLIMITED),
            used=written.get("used", ""),
            over=written.get("over", ""),
        )
    return found


def followers(kind: str, quotas: Iterable[MasterQuota]) -> list[MasterQuota]:
    """Those that follow the default of this kind of subject, by name."""
    found = (quota for quota in quotas if quota.metadata.labels.get(DEFAULT_LABEL) == "true")
    return sorted((quota for quota in found if subject_of(quota)[0] == kind), key=lambda quota: quota.metadata.name)


def over_with(limits: ResourceList, quotas: Iterable[MasterQuota]) -> dict[str, ResourceList]:
    """By the names of the quotas that would be exceeded with these limits: by how much. Raises QuantityError."""
    found: dict[str, ResourceList] = {}
    for quota in quotas:
        if excess := resources.short(resources.parse(quota.status.global_usage), limits):
            found[quota.metadata.name] = excess
    return found
