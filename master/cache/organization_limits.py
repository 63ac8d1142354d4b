"""What the quotas of an organization and of its projects limit, side by side. Pure, but for what it remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from common.api.types import Quantities
from common.quota import guarantees, object_names, resources
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, spec_quota


class OrganizationLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`own`: of each resource the tightest limit of the organization. `largest` and `total` are of the limits of its
    projects; one that has no limit of a resource is in neither. `guaranteed`: by project, what fits.
    `surging`: of which a quota of the organization has surge, and nothing is guaranteed."""

    own: ResourceList = {}
    guaranteed: Mapping[str, ResourceList] = {}
    surging: frozenset[str] = frozenset()
    largest: ResourceList = {}
    total: ResourceList = {}

    def most(self, limits: ResourceList, overcommit: Fraction | None) -> dict[str, int]:
        """The largest limits that fit for a project that has these now."""
        found = dict(self.own)
        if overcommit is not None:
            for name, limit in self.own.items():
                others = self.total.get(name, 0) - limits.get(name, 0)
                found[name] = max(min(limit, int(limit * overcommit) - others), 0)
        return found

    def in_force(self, project: str) -> dict[str, int]:
        """What is guaranteed to the project."""
        given = self.guaranteed.get(project, {})
        return {name: amount for name, amount in given.items() if name not in self.surging}

    def guaranteeable(self, project: str) -> dict[str, int]:
        """As `most_guaranteed`. Nothing is said where no project has a guarantee: most organizations have none."""
        return self.most_guaranteed(project) if self.guaranteed else {}

    def most_guaranteed(self, project: str) -> dict[str, int]:
        """The most that can be guaranteed to the project, if all others keep what they have."""
        others = [given for name, given in self.guaranteed.items() if name != project]
        if sum(map(len, others)) >= guarantees.MOST:
            return dict.fromkeys(self.own, 0)
        left = resources.subtract(self.own, resources.total(others)) | dict.fromkeys(self.surging & self.own.keys(), 0)
        return resources.at_least_zero(resources.only(left, self.own))

    def least(self, overcommit: Fraction | None) -> dict[str, int]:
        """The smallest limits of the organization into which those of its projects fit."""
        found = dict(self.largest)
        if overcommit is not None:
            found = {name: max(amount, -int(-self.total[name] // overcommit)) for name, amount in found.items()}
        return resources.maximum(found, resources.total(self.guaranteed.values()))


def tightest(quotas: Iterable[MasterQuota]) -> dict[str, int]:
    """Of each resource the smallest limit that is refused to exceed, for all that the subject has."""
    found: dict[str, int] = {}
    for quota in quotas:
        if quota.spec.get("enforcement") == "warn" or is_of_a_part(quota.spec):
            continue
        try:
            limits = resources.parse(spec_quota(quota))
        except (QuantityError, msgspec.ValidationError):
            continue  # it is shown as what it is, by its own conditions
        for name, limit in limits.items():
            found[name] = min(limit, found.get(name, limit))
    return found


def surging(quotas: Iterable[MasterQuota]) -> frozenset[str]:
    """The resources of which one that is compared has surge."""
    whole = (quota for quota in quotas if quota.spec.get("enforcement") != "warn" and not is_of_a_part(quota.spec))
    surges = (quota.spec.get("surge") for quota in whole)
    return frozenset(name for surge in surges if isinstance(surge, dict) for name in surge)


def fitting(own: ResourceList, quotas: Mapping[str, Sequence[MasterQuota]]) -> dict[str, dict[str, int]]:
    """By project, what of its guarantee fits into an organization with these limits. Where not all fit, the quotas that
    are there for longer have theirs. `quotas`: by project."""
    found: dict[str, dict[str, int]] = {}
    for project, quota in sorted(
        ((project, quota) for project, several in quotas.items() for quota in several),
        key=lambda each: (each[1].metadata.creation_timestamp or "", each[1].metadata.name),
    ):
        for name, amount in guaranteed(quota).items():
            given = found.setdefault(project, {})
            together = resources.total(found.values()).get(name, 0) - given.get(name, 0)
            number = sum(len(each) for each in found.values()) + (name not in given)
            if amount > given.get(name, 0) and together + amount <= own.get(name, 0) and number <= guarantees.MOST:
                given[name] = amount
    return {project: given for project, given in found.items() if given}


def guaranteed(quota: MasterQuota) -> dict[str, int]:
    """As its spec has it, as far as it can be: the schema refuses all else. A quota that only warns keeps nothing from
    others either."""
    if quota.spec.get("enforcement") == "warn" or is_of_a_part(quota.spec) or not quota.spec.get("guaranteed"):
        return {}
    try:
        given = resources.parse(msgspec.convert(quota.spec["guaranteed"], Quantities))
        limits = resources.parse(spec_quota(quota))
    except (QuantityError, msgspec.ValidationError):
        return {}
    inside = object_names.of_objects(given)
    return {name: amount for name, amount in given.items() if name not in inside and 0 < amount <= limits.get(name, 0)}


def is_of_a_part(spec: Mapping[str, object]) -> bool:
    """Whether it limits a part of what its subject has."""
    subject = spec.get("subject")
    parts = isinstance(subject, dict) and any(subject.get(part) is not None for part in ("clusters", "seeds"))
    return bool(parts or spec.get("scopes") or spec.get("scopeSelector"))


class OrganizationLimitsCache:
    """`quotas_of`: of a subject by kind and name. `projects_of`: the names of an organization's projects."""

    def __init__(
        self,
        quotas_of: Callable[[str, str], Sequence[MasterQuota]],
        projects_of: Callable[[str], Iterable[str]],
    ) -> None:
        self._quotas_of = quotas_of
        self._projects_of = projects_of
        self._known: dict[str, OrganizationLimits] = {}

    def of(self, organization: str) -> OrganizationLimits:
        found = self._known.get(organization)
        if found is None:
            found = self._known[organization] = self._summed(organization)
        return found

    def forget(self, organization: str) -> None:
        """To be called when a quota of it or of one of its projects changed, or when it has other projects."""
        self._known.pop(organization, None)

    def _summed(self, organization: str) -> OrganizationLimits:
        largest: dict[str, int] = {}
        total: dict[str, int] = {}
        quotas = {project: self._quotas_of("project", project) for project in self._projects_of(organization)}
        for several in quotas.values():
            limits = tightest(several)
            largest, total = resources.maximum(largest, limits), resources.add(total, limits)
        mine = self._quotas_of("organization", organization)
        own = tightest(mine)
        return OrganizationLimits(
            own=own, guaranteed=fitting(own, quotas), surging=surging(mine), largest=largest, total=total
        )
