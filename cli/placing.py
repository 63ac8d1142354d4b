"""How many of a shape fit on which seed, by what a quota's status says of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cli import figures
from common.api.types import Seed, UserCluster
from common.quota import resources
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota

CURRENT = "Current"
NOT_TOLD = "the cloud does not tell, or was not asked yet"


class Shaped(msgspec.Struct, frozen=True):
    """A quota, and what one of the shape needs of it."""

    quota: MasterQuota
    size: ResourceList


class Account(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How many the cloud account of a user cluster has room for, as of a time. `count` is None where that is not known;
    `problem` says why, or why the cloud told nothing later."""

    cluster: str
    count: int | None
    place: str = ""
    limited_by: str = ""
    as_of: str = ""
    problem: str = ""


class Place(msgspec.Struct, frozen=True, rename="camel"):
    """`now`: without asking for anything. `by_recall`: with all that is free and what other seeds can give back. None:
    no quota limits it. `limited_by`: the resource and quota that lets the fewest start. `accounts` are None where
    nobody asked for them."""

    seed: str
    state: str
    now: int | None
    by_recall: int | None
    limited_by: str = ""
    accounts: Sequence[Account] | None = None


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


def accounts(clusters: Sequence[UserCluster], size: ResourceList) -> list[Account]:
    """Raises QuantityError."""
    found = []
    for cluster in sorted(clusters, key=lambda each: each.metadata.key):
        told = cluster.status.cloud_quota
        if told is None or not told.as_of:
            why = told.problem if told is not None else ""
            found.append(Account(cluster.metadata.key, None, problem=why or NOT_TOLD))
            continue
        free = resources.subtract(resources.parse(told.limits), resources.parse(told.used))
        rooms = {
            name: max(free[name], 0) // size[name]
            for name in figures.in_order(told.limits)
            if size.get(name, 0) > 0 and name in free
        }
        least = min(rooms, key=lambda name: rooms[name], default="")
        found.append(
            Account(
                cluster=cluster.metadata.key,
                count=rooms.get(least),
                place=told.place,
                limited_by=least,
                as_of=told.as_of,
                problem=told.problem or ("" if rooms else "the cloud tells no limit of what one needs"),
            )
        )
    return found


def size_of_one(shaped: Sequence[Shaped]) -> ResourceList:
    """What one takes of a cloud: the most that some quota counts, and it is a machine."""
    size: ResourceList = {"machines": UNIT}
    for each in shaped:
        size = resources.maximum(size, each.size)
    return size


def _place(seed: str, state: str, limiting: Sequence[Shaped]) -> Place:
    now, least, limited_by = None, None, ""
    for each in limiting:
        idle, free = _idle(each.quota, seed), _free(each.quota, seed)
        for name in figures.in_order(each.size):
            if each.size[name] <= 0 or name not in free:
                continue
            here = max(min(idle.get(name, 0), free[name]), 0) // each.size[name]
            more = max(free[name], 0) // each.size[name] if state == CURRENT else here
            now = here if now is None else min(now, here)
            if least is None or more < least:
                least, limited_by = more, f"{name} of {each.quota.metadata.name}"
    return Place(seed=seed, state=state, now=now, by_recall=least, limited_by=limited_by)


def _free(quota: MasterQuota, seed: str) -> dict[str, int]:
    """What nobody uses, without what seeds hold that cannot be asked to give it back."""
    used = resources.parse(quota.status.global_usage)
    limits = resources.parse(quota.status.hard or figures.limits_of(quota))
    free = {name: limit - used[name] for name, limit in limits.items() if name in used}
    for line in quota.status.seeds:
        if line.name != seed and line.state not in (CURRENT, "Lost"):
            free = resources.only(resources.subtract(free, _idle(quota, line.name)), free)
    return free


def _idle(quota: MasterQuota, seed: str) -> Mapping[str, int]:
    line = next((each for each in quota.status.seeds if each.name == seed), None)
    if line is None:
        return {}
    return resources.at_least_zero(resources.subtract(resources.parse(line.granted), resources.parse(line.local_usage)))


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
