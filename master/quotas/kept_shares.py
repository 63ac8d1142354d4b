"""What of a quota a project cannot use, since it is guaranteed to others (protocol.md, rule 4.16): by the quota's
status, as a seed refuses by it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from common.api.convert import guarantee_from_wire
from common.quota import guarantees, resources
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, SeedUsage, spec_quota

ANY = ""  # a project that has no guarantee


def given(quota: MasterQuota) -> Sequence[Guarantee]:
    return [guarantee_from_wire(each) for each in quota.status.guarantees]


def kept_from(quota: MasterQuota, project: str) -> dict[str, int]:
    """What others are guaranteed and do not use, of what is counted."""
    if not quota.status.guarantees:
        return {}
    kept = resources.only(guarantees.kept_from(given(quota), project), quota.status.global_usage)
    return {name: amount for name, amount in kept.items() if amount}


def kept_of_free(quota: MasterQuota) -> dict[str, int]:
    """Of what is free, what is guaranteed to projects that do not use it. Less is free than they are guaranteed where
    others used it before."""
    kept, limits = kept_from(quota, ANY), resources.parse(quota.status.hard or spec_quota(quota))
    free = resources.subtract(limits, resources.parse(quota.status.global_usage))
    found = {name: min(amount, free[name]) for name, amount in kept.items() if name in limits}
    return {name: amount for name, amount in found.items() if amount > 0}


def in_force(parents: Sequence[MasterQuota], project: str) -> dict[str, int]:
    """What is guaranteed to the project, by the quotas of its organization: each of them that limits a resource keeps
    it."""
    found: dict[str, int] = {}
    for quota in parents:
        mine: ResourceList = next((each.hard for each in given(quota) if each.project == project), {})
        if quota.spec.get("enforcement", "deny") == "deny":
            for name in quota.status.hard:
                found[name] = min(mine.get(name, 0), found.get(name, mine.get(name, 0)))
    return {name: amount for name, amount in found.items() if amount}


def used(quota: MasterQuota, project: str) -> dict[str, int]:
    """With what is kept from the project, which it finds used."""
    return resources.add(resources.parse(quota.status.global_usage), kept_from(quota, project))


def all_idle(line: SeedUsage) -> ResourceList:
    """What a seed holds of a quota and does not use."""
    return resources.at_least_zero(resources.subtract(resources.parse(line.granted), resources.parse(line.local_usage)))


def idle(line: SeedUsage, project: str) -> ResourceList:
    """... and would admit for the project."""
    of_others = resources.total(
        resources.parse(amounts) for other, amounts in line.kept_for.items() if other != project
    )
    found = all_idle(line)
    return resources.at_least_zero(resources.subtract(found, resources.only(of_others, found)))


def out_of_reach(quota: MasterQuota, away: Sequence[SeedUsage], project: str) -> ResourceList:
    """What these seeds hold and do not use, beside what is kept from the project anyway (`kept_from`). Guarantees that
    have gone, or are lower now, are in it as far as they still hold them."""
    held: dict[str, ResourceList] = {}
    for line in away:
        for other, amounts in line.kept_for.items():
            held[other] = resources.add(held.get(other, {}), resources.parse(amounts))
    others = (each for each in given(quota) if each.project != project)
    counted = resources.total(resources.minimum(each.unused, held.get(each.project, {})) for each in others)
    return resources.at_least_zero(resources.subtract(resources.total(map(all_idle, away)), counted))
