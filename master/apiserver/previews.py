"""What would fit, said without reserving anything: the requests, the answers, and how quotas become them. Pure.

It compares as a seed that admits does (common/quota/resources.py), by what the master has last shown of each quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from common.api.types import MAX_AMOUNT, Seed
from common.quota import names, resources
from common.quota.resources import ResourceList
from master.apiserver.problem import escape, invalid
from master.apiserver.serializers import (
    MAX_TYPES,
    AnswerBody,
    Body,
    Limits,
    Name,
    Quantity,
    SubjectName,
    amounts,
    as_of,
    limits_of,
    used_of,
)
from master.cache import picked_seeds
from master.cache.objects import MasterQuota
from master.quotas import kept_shares, placing, staleness
from master.quotas.placing import Place, Shaped

NOTHING: Final[ResourceList] = {}

Replicas = Annotated[int, Meta(ge=0, le=1_000_000)]
Project = Annotated[SubjectName, Meta(examples=["alpha"])]
Organization = Annotated[SubjectName, Meta(examples=["acme"])]
QuotaName = Annotated[Name, Meta(examples=["project-alpha"])]
Replaced = Annotated[dict[str, Quantity], Meta(max_length=MAX_TYPES)]


class Calculation(Body, kw_only=True):
    """What `replicas` pieces of `resources` would use, less what `replaces` uses already: for an edit, what is
    edited."""

    resources: Limits
    replicas: Replicas = 1
    replaces: Replaced = {}


class FitsRequest(Calculation, kw_only=True):
    """One of `project`, `organization` and `quota`. A project's organization limits it, too."""

    project: Project | UnsetType = UNSET
    organization: Organization | UnsetType = UNSET
    quota: QuotaName | UnsetType = UNSET


class WhereRequest(Body, kw_only=True):
    """One of `project`, `organization` and `quota`, and what one piece uses. `replicas`: how many are to fit on one
    seed."""

    project: Project | UnsetType = UNSET
    organization: Organization | UnsetType = UNSET
    quota: QuotaName | UnsetType = UNSET
    resources: Limits
    replicas: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class Shortage(AnswerBody, kw_only=True):
    """`kept`: of `used`, what is guaranteed to other projects, which do not use it. `enforcement` warn: it would be
    admitted, with a warning."""

    quota: str
    type: str
    requested: str
    used: str
    kept: str
    limit: str
    short: str
    enforcement: str


class Holder(AnswerBody, kw_only=True):
    """A seed that holds capacity of a type that is short, and does not use it. In state Current it gives that back to
    whoever needs it: it is no part of what is short. What it keeps for other projects is not in `idle`."""

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
    """The quotas that limit a subject, all seeds, and the time. `project`: which one asks; of an organization, any that
    has no guarantee. `allocated`: types that Allocations have. `sees_seeds`: whoever asks may see what seeds hold."""

    quotas: Sequence[MasterQuota]
    seeds: Sequence[Seed]
    now: datetime
    allocated: frozenset[str] = frozenset()
    sees_seeds: bool = False
    project: str = kept_shares.ANY


class Subjected(Protocol):
    """Names what is limited."""

    @property
    def project(self) -> str | UnsetType: ...

    @property
    def organization(self) -> str | UnsetType: ...

    @property
    def quota(self) -> str | UnsetType: ...


def subject(asked: Subjected) -> tuple[str, str]:
    """What kind of it is named, and its name. Raises ProblemError."""
    named = (("project", asked.project), ("organization", asked.organization), ("quota", asked.quota))
    found = [(kind, name) for kind, name in named if isinstance(name, str) and name]
    if len(found) != 1:
        raise invalid("", "name either a project, an organization or a quota")
    return found[0]


Needs = Mapping[str, ResourceList]
"""By quota: what all that is asked for needs of it."""


@dataclass(frozen=True)
class Compared:
    """As the fields of a FitsResult."""

    shortages: list[Shortage]
    holders: list[Holder] | UnsetType
    message: str
    as_of: str
    stale: bool


def fits(known: PreviewInput, asked: Calculation) -> FitsResult:
    """Raises ProblemError."""
    return FitsResult(**_compared(known, asked))


def calculate(known: PreviewInput, asked: Calculation) -> CalculationResult:
    """Raises ProblemError."""
    used = used_of(known.quotas)
    would = resources.add(used, resources.only(_need(known, asked), used))
    return CalculationResult(**_compared(known, asked), calculated_quota=resources.render(would))


def where(known: PreviewInput, asked: WhereRequest) -> WhereResult:
    """Raises ProblemError."""
    size = _known(known, asked.resources, "/resources")
    compared = _compared(known, Calculation(resources=asked.resources, replicas=asked.replicas))
    found = places(known, _alike(known, size))
    by_allocation = _by_allocation(known, size)
    if by_allocation and not found:
        lacks = f"no Seed with inCluster counts Allocations, so none can be made of {', '.join(by_allocation)}"
        compared["message"] = "; ".join(filter(None, (compared["message"], lacks)))
    compared["fits"] = any(each.by_recall is None or each.by_recall >= asked.replicas for each in found)
    return WhereResult(**compared, items=found)


def places(known: PreviewInput, sizes: Needs) -> list[Place]:
    """How many of something fit on each seed on which the quotas limit it. `sizes`: what one of it needs of each."""
    shaped = [Shaped(quota, sizes[quota.metadata.name], known.project) for quota in known.quotas]
    found = placing.places(shaped, limited_seeds(known))
    if any(_by_allocation(known, size) for size in sizes.values()):
        found = placing.where_allocated(found, known.seeds)
    return [_readable(each) for each in found]


def limited_seeds(known: PreviewInput) -> list[Seed]:
    """Those that `subject.seeds` of each quota picks."""
    return [seed for seed in known.seeds if all(picked_seeds.limits_on(quota, seed) for quota in known.quotas)]


def _by_allocation(known: PreviewInput, size: ResourceList) -> list[str]:
    return sorted(known.allocated & {name for name, amount in size.items() if amount})


def _alike(known: PreviewInput, size: ResourceList) -> Needs:
    return {quota.metadata.name: size for quota in known.quotas}


def _need(known: PreviewInput, asked: Calculation) -> ResourceList:
    size = _known(known, asked.resources, "/resources")
    need = {name: amount * asked.replicas for name, amount in size.items()}
    return resources.at_least_zero(resources.subtract(need, _known(known, asked.replaces, "/replaces")))


def _known(known: PreviewInput, raw: Mapping[str, str | int], where: str) -> ResourceList:
    """What nothing can limit would always fit. Raises ProblemError."""
    limited = {name for quota in known.quotas for name in limits_of([quota])}
    for name in raw:
        if name not in limited and (why := names.unknown([name])):
            raise invalid(f"{where}/{escape(name)}", why)
    return amounts(raw, where)


def _compared(known: PreviewInput, asked: Calculation) -> dict[str, Any]:
    """The fields of a FitsResult."""
    found = compared(known, _alike(known, _need(known, asked)))
    sizes = _alike(known, _known(known, asked.resources, "/resources"))
    return {
        "fits": all(each.enforcement != "deny" for each in found.shortages),
        "fitting": fitting(known, sizes, asked.replicas, _known(known, asked.replaces, "/replaces")),
        **vars(found),
    }


def compared(known: PreviewInput, needs: Needs) -> Compared:
    """What is short, and who holds what is."""
    shortages = [
        each for quota in known.quotas for each in _shortages(quota, known.project, needs[quota.metadata.name])
    ]
    silence = staleness.silence_of_master(known.seeds, known.now)
    return Compared(
        shortages=shortages,
        holders=_holders(known, shortages) if known.sees_seeds else UNSET,
        message="; ".join(map(_short_text, shortages)),
        as_of=as_of(known.quotas),
        stale=any(staleness.stale_of(quota, silence) for quota in known.quotas),
    )


def _short_text(short: Shortage) -> str:
    kept = f" ({short.kept} is guaranteed to other projects)" if short.kept != "0" else ""
    return f"{short.quota}: {short.type} short by {short.short}{kept}"


def _shortages(quota: MasterQuota, project: str, need: ResourceList) -> Iterable[Shortage]:
    """By what a seed admits with: used + requested > limit. What is never counted is never refused."""
    used, limits, kept = kept_shares.used(quota, project), limits_of([quota]), kept_shares.kept_from(quota, project)
    counted = resources.only(limits, used)
    for name, short in resources.over_limit(need, used, counted).items():
        amounts = need[name], used[name], kept.get(name, 0), limits[name], short
        requested, use, of_others, limit, missing = resources.shown(name, *amounts)
        yield Shortage(
            quota=quota.metadata.name,
            type=name,
            requested=requested,
            used=use,
            kept=of_others,
            limit=limit,
            short=missing,
            enforcement=str(quota.spec.get("enforcement", "deny")),
        )


def fitting(known: PreviewInput, sizes: Needs, count: int, replaced: ResourceList = NOTHING) -> int:
    """How many of `count` do, by every quota that denies. `sizes`: what one needs of each. `replaced` is used now."""
    most = count
    for quota in known.quotas:
        if quota.spec.get("enforcement", "deny") != "deny":
            continue
        size, used, limits = sizes[quota.metadata.name], kept_shares.used(quota, known.project), limits_of([quota])
        for name in limits.keys() & used.keys() & size.keys():
            if size[name]:
                room = max(limits[name] - used[name], 0) + replaced.get(name, 0)
                most = min(most, room // size[name])
    return most


def _holders(known: PreviewInput, shortages: Sequence[Shortage]) -> list[Holder]:
    """Who holds most comes first."""
    short = {(each.quota, each.type) for each in shortages}
    found = []
    for quota in known.quotas:
        for line in quota.status.seeds:
            for name, idle in kept_shares.idle(line, known.project).items():
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
