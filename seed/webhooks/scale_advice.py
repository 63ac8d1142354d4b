"""What a MachineDeployment or MachineSet is told when it asks for more Machines than its quotas have room for. Pure.

Advice: nothing is reserved, and who is told that it fits may be overtaken. The Machines themselves are admitted one by
one, and that is where the promise is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from common.quota import guarantees, resources
from common.quota.resources import ResourceList
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission import denial
from seed.admission.refusal import Refusal
from seed.machines import deployments
from seed.machines.deployments import Deployment


class Asked(msgspec.Struct, frozen=True):
    """`more`: Machines beyond those that exist. `surge`: those that a rollout must start first, if it is one."""

    replicas: int
    more: int
    grows: bool
    surge: int = 0


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """A quota, and how full it is. `kept`: of `used`, what is guaranteed to other projects, which do not use it.
    `surge`: rollouts have some of their own."""

    quota: str
    limits: ResourceList
    used: ResourceList
    kept: ResourceList = {}
    being_created: ResourceList = {}
    enforced: bool = True
    surge: bool = False


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` is for programs, empty where nothing is to be said. Of several refusals the first is told."""

    reason: str = ""
    refusals: Sequence[Refusal] = ()
    warning: str = ""


class _Shortage(msgspec.Struct, frozen=True):
    """`count` Machines do not fit, `fitting` do; the resource that lets the fewest start."""

    room: Room
    count: int
    fitting: int
    resource: str

    def amounts(self, size: ResourceList) -> str:
        name = self.resource
        kept = self.room.kept.get(name, 0)
        need, left, others = resources.alike(name, size[name] * self.count, free(self.room)[name], kept)
        return f"{name}={need}, {left} free" + (f", {others} kept for other projects" if kept else "")


def asked(new: Deployment, old: Deployment | None, *, is_deployment: bool) -> Asked | None:
    """None for what costs nothing. Raises msgspec.MsgspecError."""
    if not is_deployment and new.controlled:
        return None  # its MachineDeployment was asked
    if old is None:
        return Asked(new.wanted, new.wanted, True) if new.wanted else None
    grows, replaced = new.wanted > old.wanted, deployments.replaces(new, old)
    if not grows and not replaced:
        return None
    more = max(new.wanted - old.existing, 0)
    surge = deployments.surge(new) if replaced and is_deployment and old.existing and new.wanted else 0
    return Asked(new.wanted, more, grows, surge) if more or surge else None


def advise(asked: Asked, size: ResourceList, rooms: Sequence[Room], *, deny: bool) -> Advice:
    """`size`: what one Machine costs. One quota speaks: one that refuses Machines, with the fewest that fit."""
    shortages = _shortages(rooms, asked.more, size)
    if not shortages:
        warning = _rollout(asked, size, rooms)
        return Advice(reason="SurgeShort" if warning else "", warning=warning)
    requester = shortages[0]
    room = requester.room
    if deny and asked.grows and room.enforced:
        need = all_replicas(asked, size)
        refusals = [_refused(short, asked, need) for short in shortages if short.room.enforced]
        return Advice(reason="QuotaExceeded", refusals=refusals)
    end = f": {requester.fitting or 'none'} can start" if room.enforced else "; allowed because enforcement is warn"
    verb = "needs" if asked.more == 1 else "need"
    warning = f"seedquota/{room.quota}: {_replicas(asked)} {verb} {requester.amounts(size)}{end}"
    return Advice(reason="ReplicasShort", warning=warning)


def all_replicas(asked: Asked, size: ResourceList) -> ResourceList:
    """What all that are asked for beyond those that exist cost together."""
    return {name: amount * asked.more for name, amount in size.items()}


def room_of(seen: QuotaSnapshot, project: str) -> Room:
    """... for the project: as a refusal says it, see seed/admission/limits.py."""
    quota = seen.quota
    kept = {name: amount for name, amount in guarantees.kept_from(quota.guarantees, project).items() if amount}
    return Room(
        quota=quota.name,
        limits=quota.limits,
        used=resources.add(seen.used, kept),
        kept=kept,
        being_created=quota.global_reserved,
        enforced=quota.enforced,
        surge=bool(quota.surge),
    )


def fitting(room: Room, size: ResourceList) -> dict[str, int]:
    """By resource that the quota limits: how many that cost `size` it has room for."""
    return {name: amount // size[name] for name, amount in free(room).items() if size.get(name, 0) > 0}


def free(room: Room) -> dict[str, int]:
    return {name: max(limit - room.used.get(name, 0), 0) for name, limit in room.limits.items()}


def undecided(why: str) -> Advice:
    """Allowed, on one line that says why nothing else can be said."""
    return Advice(reason="Undecided", warning=f"seedquota: cannot tell how many replicas fit: {' '.join(why.split())}")


def _rollout(asked: Asked, size: ResourceList, rooms: Iterable[Room]) -> str:
    """A warning for a rollout that will not get its surge, empty if it will. Never a refusal: it does not grow."""
    grown = all_replicas(asked, size)
    after = [
        msgspec.structs.replace(room, used=resources.add(room.used, grown))
        for room in rooms
        if room.enforced and not room.surge
    ]
    shortages = _shortages(after, asked.surge, size)
    if not shortages:
        return ""
    requester = shortages[0]
    begins = f"seedquota/{requester.room.quota}: "
    surge = f"maxSurge {asked.surge} needs {requester.amounts(size)}"
    if requester.fitting:
        return f"{begins}{surge}: the rollout replaces {requester.fitting} at a time"
    return f"{begins}rollout cannot begin: {surge}; set maxSurge 0, maxUnavailable 1"


def _refused(requester: _Shortage, asked: Asked, need: ResourceList) -> Refusal:
    room, note = requester.room, f"{requester.fitting} of {_replicas(asked)} can start"
    return denial.exceeded(room.quota, need, room.used, room.limits, room.being_created, note=note, kept=room.kept)


def _shortages(rooms: Iterable[Room], count: int, size: ResourceList) -> Sequence[_Shortage]:
    """The first refuses Machines, if one does, and has the fewest that fit."""
    found = [requester for room in rooms if (requester := _requester(room, count, size)) is not None]
    return sorted(found, key=lambda it: (not it.room.enforced, it.fitting, it.room.quota))


def _requester(room: Room, count: int, size: ResourceList) -> _Shortage | None:
    found = fitting(room, size)
    if not found:
        return None
    resource = min(found, key=lambda name: (found[name], name))
    return _Shortage(room, count, found[resource], resource) if found[resource] < count else None


def _replicas(asked: Asked) -> str:
    more = " more" if asked.more < asked.replicas else ""
    return f"{asked.more}{more} replica{'' if asked.more == 1 else 's'}"
