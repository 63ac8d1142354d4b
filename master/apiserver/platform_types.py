"""What the platform's people change: limits, default quotas and seeds. What requests and answers are, and how objects
become them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from common.api.types import DefaultQuota, Seed
from common.quota import resources
from common.quota.names import in_order
from common.quota.resources import ResourceList
from master.apiserver.override_types import GivenOverrides
from master.apiserver.serializers import AnswerBody, Body, GivenGuarantees, GivenLimits, ReadOnly
from master.cache.informers import subject_of
from master.cache.objects import MasterQuota, Named, Override, spec_guaranteed
from master.cache.organization_limits import is_of_a_part
from master.grants.overrides import raised, shown_limits
from master.quotas import kept_shares, limit_changes
from master.quotas.limit_changes import Changed

MOST_NAMED = 100  # quotas, in one answer

Percent = Annotated[int, Meta(ge=1, le=100)]
DefaultKind = Literal["project", "organization"]


class LimitChange(AnswerBody, kw_only=True):
    """`before`, `after`: `unlimited` where there is no limit. `used`: empty where nothing is counted. `over`: used
    beyond the new limit; empty if nothing is."""

    type: str
    before: str
    after: str
    used: str
    over: str


class GuaranteeChange(AnswerBody, kw_only=True):
    """`before`, `after`: 0 where nothing is guaranteed."""

    type: str
    before: str
    after: str


class LimitPreview(AnswerBody, kw_only=True):
    """Of the limits in force, with what raises them for a time. `exceeded`: more is used than the new limits. Nothing
    is removed then, and nothing more is admitted. `guarantees`: each guaranteed amount that would change."""

    quota: str
    changes: list[LimitChange]
    guarantees: list[GuaranteeChange]
    exceeded: bool


class LimitsAsked(Body, kw_only=True):
    """As QuotaUpdate: the limits that a quota would have, all of them. `overrides`: as OverridesUpdate; without it,
    those that there are stay. `guaranteed`: likewise; what does not fit is refused here, too."""

    quota: GivenLimits
    guaranteed: GivenGuarantees | UnsetType = UNSET
    overrides: GivenOverrides | UnsetType = UNSET


class OverQuota(AnswerBody, kw_only=True):
    """A quota that would be exceeded. `over`: by how much."""

    quota: str
    subject_name: str
    over: dict[str, str]


class DefaultLimits(AnswerBody, kw_only=True):
    """The default quota of a kind of subject. `followers`: how many quotas follow it; `quotas`: the first hundred."""

    kind: DefaultKind
    quota: dict[str, str]
    enforcement: Literal["deny", "warn"]
    warn_at_percent: int
    followers: int
    quotas: list[str]


class DefaultUpdate(Body, kw_only=True):
    """Replaces the default quota. `enforcement` and `warnAtPercent` stay as they are, if they are not set."""

    quota: GivenLimits
    enforcement: Literal["deny", "warn"] | UnsetType = UNSET
    warn_at_percent: Percent | UnsetType = UNSET
    kind: ReadOnly = UNSET
    followers: ReadOnly = UNSET
    quotas: ReadOnly = UNSET


class DefaultPreview(AnswerBody, kw_only=True):
    """Whom a default quota would touch. `followers`: quotas that follow it and change. `without`: subjects that have no
    quota and would get one. `over`: who would be exceeded, the first hundred; `overOmitted`: how many more."""

    kind: DefaultKind
    changes: list[LimitChange]
    followers: int
    quotas: list[str]
    without: list[str]
    without_omitted: int
    over: list[OverQuota]
    over_omitted: int


class Holding(AnswerBody, kw_only=True):
    """Of one quota. `idle`: what the seed holds and does not use: draining gives it to others."""

    quota: str
    held: dict[str, str]
    used: dict[str, str]
    idle: dict[str, str]


class SeedState(AnswerBody, kw_only=True):
    """A seed. `connected`, `reason`, `message`: its condition Connected; null: not known yet.
    `clusters`: null where the agent has not said it."""

    name: str
    state: Literal["Active", "Draining", "Lost"]
    in_cluster: bool
    connected: bool | None
    reason: str
    message: str
    last_seen_time: str
    version: str
    clusters: int | None


class SeedHoldings(AnswerBody, kw_only=True):
    """`frees`: the sum of what is idle, by type: what draining gives to others. `holdings`: by quota, the first hundred
    that hold something; `holdingsOmitted`: how many more. `incomplete`: quotas that name some of their seeds alone."""

    seed: SeedState
    frees: dict[str, str]
    holdings: list[Holding]
    holdings_omitted: int
    incomplete: int


class SeedStateUpdate(Body, kw_only=True):
    """Draining: the seed gets no more capacity and returns what it does not use. What runs goes on."""

    state: Literal["Active", "Draining"]


def preview(
    quota: MasterQuota,
    wanted: Mapping[str, str | int],
    raises: Sequence[Override],
    guaranteed: Mapping[str, str | int] | None = None,
) -> LimitPreview:
    """`raises`: the overrides that would be in force. `guaranteed`: None: what there is stays. Raises QuantityError."""
    had = resources.parse(shown_limits(quota))
    has = resources.parse(raised(dict(wanted), [each.quota for each in raises]))
    used = resources.parse(quota.status.global_usage)
    found = limit_changes.compared(had, has, used, in_order({**had, **has}))
    return LimitPreview(
        quota=quota.metadata.name,
        changes=shown(found),
        guarantees=_guarantee_changes(resources.parse(spec_guaranteed(quota)), guaranteed),
        exceeded=any(each.over for each in found.values()),
    )


def _guarantee_changes(before: ResourceList, wanted: Mapping[str, str | int] | None) -> list[GuaranteeChange]:
    if wanted is None:
        return []
    after, found = resources.parse(wanted), []
    for name in in_order({**before, **after}):
        had, has = before.get(name, 0), after.get(name, 0)
        if had != has:
            shown_before, shown_after = resources.shown(name, had, has)
            found.append(GuaranteeChange(type=name, before=shown_before, after=shown_after))
    return found


def shown(found: Mapping[str, Changed]) -> list[LimitChange]:
    return [
        LimitChange(type=name, before=each.before, after=each.after, used=each.used, over=each.over)
        for name, each in found.items()
    ]


def default_limits(kind: DefaultKind, default: DefaultQuota, quotas: Iterable[MasterQuota]) -> DefaultLimits:
    following = limit_changes.followers(kind, quotas)
    return DefaultLimits(
        kind=kind,
        quota=resources.render(resources.parse(default.quota)),
        enforcement=default.enforcement,
        warn_at_percent=default.warn_at_percent,
        followers=len(following),
        quotas=[quota.metadata.name for quota in following[:MOST_NAMED]],
    )


def default_preview(
    kind: DefaultKind,
    before: DefaultQuota | None,
    wanted: Mapping[str, str | int],
    quotas: Sequence[MasterQuota],
    subjects: Iterable[Named],
) -> DefaultPreview:
    """`subjects`: all of this kind. Raises QuantityError."""
    had = resources.parse(before.quota) if before is not None else {}
    has = resources.parse(wanted)
    following = limit_changes.followers(kind, quotas)
    whole = [quota for quota in quotas if not is_of_a_part(quota.spec)]
    limited = {subject_of(quota)[1] for quota in whole if subject_of(quota)[0] == kind}
    without = sorted({each.metadata.name for each in subjects if each.metadata.deletion_timestamp is None} - limited)
    over = limit_changes.over_with(has, following)
    named = {quota.metadata.name: subject_of(quota)[1] for quota in following if quota.metadata.name in over}
    return DefaultPreview(
        kind=kind,
        changes=shown(limit_changes.compared(had, has, {}, in_order({**had, **has}))),
        followers=len(following),
        quotas=[quota.metadata.name for quota in following[:MOST_NAMED]],
        without=without[:MOST_NAMED],
        without_omitted=max(len(without) - MOST_NAMED, 0),
        over=[
            OverQuota(quota=name, subject_name=named[name], over=resources.render(excess))
            for name, excess in list(over.items())[:MOST_NAMED]
        ],
        over_omitted=max(len(over) - MOST_NAMED, 0),
    )


def seed_state(seed: Seed) -> SeedState:
    connected = next((each for each in seed.status.conditions if each.type == "Connected"), None)
    known = connected is not None and connected.status in ("True", "False")
    return SeedState(
        name=seed.metadata.name,
        state=seed.spec.state,
        in_cluster=seed.spec.in_cluster,
        connected=connected.status == "True" if connected is not None and known else None,
        reason=connected.reason if connected is not None else "",
        message=connected.message if connected is not None else "",
        last_seen_time=seed.status.last_seen_time,
        version=seed.status.version,
        clusters=seed.status.clusters,
    )


def seed_holdings(seed: Seed, quotas: Iterable[MasterQuota]) -> SeedHoldings:
    """Raises QuantityError."""
    name, found, incomplete = seed.metadata.name, list[Holding](), 0
    frees: ResourceList = {}
    for quota in quotas:
        line = next((each for each in quota.status.seeds if each.name == name), None)
        if line is None:
            incomplete += quota.status.seeds_omitted > 0
            continue
        idle = {each: amount for each, amount in kept_shares.all_idle(line).items() if amount}
        frees = resources.add(frees, idle)
        if line.granted or line.local_usage:
            found.append(
                Holding(
                    quota=quota.metadata.name,
                    held=resources.render(resources.parse(line.granted)),
                    used=resources.render(resources.parse(line.local_usage)),
                    idle=resources.render(idle),
                )
            )
    found.sort(key=lambda each: (not each.idle, each.quota))
    return SeedHoldings(
        seed=seed_state(seed),
        frees=resources.render(frees),
        holdings=found[:MOST_NAMED],
        holdings_omitted=max(len(found) - MOST_NAMED, 0),
        incomplete=incomplete,
    )


def version(found: Seed | Named | None) -> str:
    """Of what somebody wrote, not of the status: it is for If-Match."""
    if found is None:
        return ""
    return hashlib.sha256(f"{found.metadata.uid}/{found.metadata.generation}".encode()).hexdigest()[:24]
