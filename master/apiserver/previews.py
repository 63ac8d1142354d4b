"""What would fit, said without reserving anything: the requests, the answers, and how quotas become them. Pure.

It compares as a seed that admits does (common/quota/resources.py), by what the master has last shown of each quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from common.api.types import Seed
from common.quota import names, resources
from common.quota.resources import ResourceList
from master.apiserver.problem import escape, invalid
from master.apiserver.serializers import (
    MAX_AMOUNT,
    MAX_TYPES,
    AnswerBody,
    Body,
    Limits,
    Quantity,
    SubjectName,
    amounts,
    as_of,
    limits_of,
    used_of,
)
from master.cache.objects import MasterQuota
from master.quotas import placing, staleness
from master.quotas.placing import Place, Shaped

Replicas = Annotated[int, Meta(ge=0, le=1_000_000)]
Project = Annotated[SubjectName, Meta(examples=["alpha"])]
Organization = Annotated[SubjectName, Meta(examples=["acme"])]
Replaced = Annotated[dict[str, Quantity], Meta(max_length=MAX_TYPES)]


class Calculation(Body, kw_only=True):
    """What `replicas` pieces of `resources` would use, less what `replaces` uses already: for an edit, what is
    edited."""

    resources: Limits
    replicas: Replicas = 1
    replaces: Replaced = {}


class FitsRequest(Calculation, kw_only=True):
    """Either `project` or `organization`. A project's organization limits it, too."""

    project: Project | UnsetType = UNSET
    organization: Organization | UnsetType = UNSET


class WhereRequest(Body, kw_only=True):
    """Either `project` or `organization`, and what one piece uses. `replicas`: how many are to fit on one seed."""

    project: Project | UnsetType = UNSET
    organization: Organization | UnsetType = UNSET
    resources: Limits
    replicas: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class Shortage(AnswerBody, kw_only=True):
    """`enforcement` warn: it would be admitted, with a warning."""

    quota: str
    type: str
    requested: str
    used: str
    limit: str
    short: str
    enforcement: str


class Holder(AnswerBody, kw_only=True):
    """A seed that holds capacity of a type that is short, and does not use it. In state Current it gives that back to
    whoever needs it: it is no part of what is short."""

    quota: str
    type: str
    seed: str
    state: str
    idle: str


class FitsResult(AnswerBody, kw_only=True):
    """`fits`: no quota that denies is short. `fitting`: how many of the pieces that are asked for do fit. `asOf`: no
    seed's last report is older; empty where there is none. `stale`: some use is a last known one. `holders`: for who
    may list quotas."""

    fits: bool
    fitting: int
    shortages: list[Shortage]
    holders: list[Holder] | UnsetType = UNSET
    message: str
    as_of: str
    stale: bool


class CalculationResult(FitsResult, kw_only=True):
    """`calculatedQuota`: what would be used. The rest is as in FitsResult."""

    calculated_quota: dict[str, str]


class WhereResult(FitsResult, kw_only=True):
    """`fits`: all of them on one seed. `items`: the seed with the most first. The rest is as in FitsResult."""

    items: list[Place]


@dataclass(frozen=True)
class PreviewInput:
    """The quotas that limit a subject, all seeds, and the time. `allocated`: types that Allocations have. `sees_seeds`:
    whoever asks may see what seeds hold."""

    quotas: Sequence[MasterQuota]
    seeds: Sequence[Seed]
    now: datetime
    allocated: frozenset[str] = frozenset()
    sees_seeds: bool = False


def subject(asked: FitsRequest | WhereRequest) -> tuple[str, str]:
    """A project or else an organization; the other is empty. Raises ProblemError."""
    project = asked.project if isinstance(asked.project, str) else ""
    organization = asked.organization if isinstance(asked.organization, str) else ""
    if bool(project) == bool(organization):
        raise invalid("", "name either a project or an organization")
    return project, organization


def fits(known: PreviewInput, asked: Calculation) -> FitsResult:
    """Raises ProblemError."""
    return FitsResult(**_compared(known, asked))


def calculate(known: PreviewInput, asked: Calculation) -> CalculationResult:
    """Raises ProblemError."""
    used = used_of(known.quotas)
    would = resources.add(used, resources.only(_need(asked), used))
    return CalculationResult(**_compared(known, asked), calculated_quota=resources.render(would))


def where(known: PreviewInput, asked: WhereRequest) -> WhereResult:
    """Raises ProblemError."""
    size = _known(asked.resources, "/resources")
    compared = _compared(known, Calculation(resources=asked.resources, replicas=asked.replicas))
    found = placing.places([Shaped(quota, size) for quota in known.quotas], known.seeds)
    if by_allocation := sorted(known.allocated & {name for name, amount in size.items() if amount}):
        found = placing.where_allocated(found, known.seeds)
        if not found:
            lacks = f"no Seed with inCluster counts Allocations, so none can be made of {', '.join(by_allocation)}"
            compared["message"] = "; ".join(filter(None, (compared["message"], lacks)))
    compared["fits"] = any(each.by_recall is None or each.by_recall >= asked.replicas for each in found)
    return WhereResult(**compared, items=[_readable(each) for each in found])


def _need(asked: Calculation) -> ResourceList:
    need = {name: amount * asked.replicas for name, amount in _known(asked.resources, "/resources").items()}
    return resources.at_least_zero(resources.subtract(need, _known(asked.replaces, "/replaces")))


def _known(raw: Mapping[str, str | int], where: str) -> ResourceList:
    """What nothing can limit would always fit. Raises ProblemError."""
    for name in raw:
        if why := names.unknown([name]):
            raise invalid(f"{where}/{escape(name)}", why)
    return amounts(raw, where)


def _compared(known: PreviewInput, asked: Calculation) -> dict[str, Any]:
    """The fields of a FitsResult."""
    need = _need(asked)
    shortages = [shortage for quota in known.quotas for shortage in _shortages(quota, need)]
    silence = staleness.silence_of_master(known.seeds, known.now)
    return {
        "fits": all(each.enforcement != "deny" for each in shortages),
        "fitting": _fitting(known.quotas, asked),
        "shortages": shortages,
        "holders": _holders(known.quotas, shortages) if known.sees_seeds else UNSET,
        "message": "; ".join(f"{each.quota}: {each.type} short by {each.short}" for each in shortages),
        "as_of": as_of(known.quotas),
        "stale": any(staleness.stale_of(quota, silence) for quota in known.quotas),
    }


def _shortages(quota: MasterQuota, need: ResourceList) -> Iterable[Shortage]:
    """By what a seed admits with: used + requested > limit. What is never counted is never refused."""
    used, limits = used_of([quota]), limits_of([quota])
    counted = resources.only(limits, used)
    for name, short in resources.over_limit(need, used, counted).items():
        requested, use, limit, missing = resources.shown(name, need[name], used[name], limits[name], short)
        yield Shortage(
            quota=quota.metadata.name,
            type=name,
            requested=requested,
            used=use,
            limit=limit,
            short=missing,
            enforcement=str(quota.spec.get("enforcement", "deny")),
        )


def _fitting(quotas: Iterable[MasterQuota], asked: Calculation) -> int:
    size, replaced = _known(asked.resources, "/resources"), _known(asked.replaces, "/replaces")
    most = asked.replicas
    for quota in quotas:
        if quota.spec.get("enforcement", "deny") != "deny":
            continue
        used, limits = used_of([quota]), limits_of([quota])
        for name in limits.keys() & used.keys() & size.keys():
            if size[name]:
                room = max(limits[name] - used[name], 0) + replaced.get(name, 0)
                most = min(most, room // size[name])
    return most


def _holders(quotas: Iterable[MasterQuota], shortages: Sequence[Shortage]) -> list[Holder]:
    """Who holds most comes first."""
    short = {(each.quota, each.type) for each in shortages}
    found = []
    for quota in quotas:
        for line in quota.status.seeds:
            for name, idle in placing.idle_of(line).items():
                if idle and line.state != "Lost" and (quota.metadata.name, name) in short:
                    found.append((idle, quota.metadata.name, name, line))
    found.sort(key=lambda each: (each[1], each[2], -each[0], each[3].name))
    return [
        Holder(quota=quota, type=name, seed=line.name, state=line.state, idle=resources.render({name: idle})[name])
        for idle, quota, name, line in found
    ]


def _readable(place: Place) -> Place:
    """With no number that not every reader of JSON has exactly."""
    counts = {"now": place.now, "by_recall": place.by_recall}
    capped = {name: min(count, MAX_AMOUNT) for name, count in counts.items() if count is not None}
    return msgspec.structs.replace(place, **capped)
