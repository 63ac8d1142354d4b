"""How many of a shape fit on which seed, by what a quota's status says of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.api.types import Seed
from common.quota import resources
from common.quota.names import in_order
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, spec_quota
from master.quotas import kept_shares

CURRENT = "Current"


class Shaped(msgspec.Struct, frozen=True):
    """A quota, and what one of the shape needs of it. `project`: whose it is: others' guarantees are not for it."""

    quota: MasterQuota
    size: ResourceList
    project: str = kept_shares.ANY


class Place(msgspec.Struct, frozen=True, rename="camel"):
    """`now`: without asking for anything. `by_recall`: with all that is free and what other seeds can give back. None:
    no quota limits it. `limited_by`: the resource and quota that lets the fewest start."""

    seed: str
    state: str
    now: int | None
    by_recall: int | None
    limited_by: str = ""


def places(shaped: Sequence[Shaped], seeds: Sequence[Seed]) -> list[Place]:
    """The most first. Raises QuantityError."""
    limiting = [each for each in shaped if each.quota.spec.get("enforcement", "deny") == "deny"]
    names = {seed.metadata.name: seed for seed in seeds}
    for each in limiting:
        for line in each.quota.status.seeds:
            names.setdefault(line.name, _unseen(line.name))
    found = [_place(name, _state(seed, limiting), limiting) for name, seed in names.items()]
    found = [each for each in found if each.state != "Lost"]
    return sorted(found, key=lambda each: (-_order(each.by_recall), -_order(each.now), each.seed))


def where_allocated(found: Sequence[Place], seeds: Sequence[Seed]) -> list[Place]:
    """Those of the places in which Allocations are made: in the master's own cluster alone."""
    there = {seed.metadata.name for seed in seeds if seed.spec.in_cluster}
    return [place for place in found if place.seed in there]


def _place(seed: str, state: str, limiting: Sequence[Shaped]) -> Place:
    now, least, limited_by = None, None, ""
    for each in limiting:
        idle, free = _idle(each.quota, seed, each.project), _free(each.quota, seed, each.project)
        for name in in_order(each.size):
            if each.size[name] <= 0 or name not in free:
                continue
            here = max(min(idle.get(name, 0), free[name]), 0) // each.size[name]
            more = max(free[name], 0) // each.size[name] if state == CURRENT else here
            now = here if now is None else min(now, here)
            if least is None or more < least:
                least, limited_by = more, f"{name} of {each.quota.metadata.name}"
    return Place(seed=seed, state=state, now=now, by_recall=least, limited_by=limited_by)


def _free(quota: MasterQuota, seed: str, project: str) -> dict[str, int]:
    """What the project may use, without what seeds hold that cannot be asked to give it back."""
    used = kept_shares.used(quota, project)
    limits = resources.parse(quota.status.hard or spec_quota(quota))
    free = {name: limit - used[name] for name, limit in limits.items() if name in used}
    away = [line for line in quota.status.seeds if line.name != seed and line.state not in (CURRENT, "Lost")]
    return resources.only(resources.subtract(free, kept_shares.out_of_reach(quota, away, project)), free)


def _idle(quota: MasterQuota, seed: str, project: str) -> Mapping[str, int]:
    line = next((each for each in quota.status.seeds if each.name == seed), None)
    return kept_shares.idle(line, project) if line is not None else {}


def _state(seed: Seed, limiting: Sequence[Shaped]) -> str:
    """Of all quotas the one that is worst."""
    if seed.spec.state != "Active":
        return seed.spec.state
    states = [line.state for each in limiting for line in each.quota.status.seeds if line.name == seed.metadata.name]
    bad = [state for state in states if state != CURRENT]
    if bad:
        return bad[0]
    connected = [each for each in seed.status.conditions if each.type == "Connected"]
    return CURRENT if not connected or connected[0].status == "True" else connected[0].reason


def _unseen(name: str) -> Seed:
    return msgspec.convert({"metadata": {"name": name}, "spec": {}}, Seed)


def _order(count: int | None) -> float:
    return float("inf") if count is None else count
