"""Seeds: how each is, and what each has of the quotas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from common.api.types import Seed
from common.quota import resources
from master.cache.objects import MasterQuota
from master.page.views import amounts, conditions
from master.page.views.amounts import Amount
from master.page.views.conditions import Shown, Tone
from master.page.views.times import Moment, moment

PER_PAGE = 100
MAX_QUOTAS = 200  # of one seed that its page shows, the largest first


class SeedRow(NamedTuple):
    """`tone` of the condition Ready, which is unknown while there is none. `reached`: when the master last did."""

    name: str
    state: str
    in_cluster: bool
    tone: Tone
    reason: str
    message: str
    reached: Moment
    version: str
    clusters: int | None
    webhook: Tone
    connected: Tone


class Listed(NamedTuple):
    """One page of them."""

    rows: Sequence[SeedRow]
    total: int
    page: int
    pages: int


class Share(NamedTuple):
    """What the seed has of one resource of a quota."""

    resource: str
    used: Amount
    held: Amount
    idle: Amount


class QuotaShare(NamedTuple):
    quota: str
    state: str
    reported: Moment
    shares: tuple[Share, ...]


class SeedPage(NamedTuple):
    """`omitted`: quotas beyond those that are shown. A quota's status has a limited number of seeds, so this seed may
    have something of `perhaps` quotas more."""

    row: SeedRow
    conditions: Sequence[Shown]
    exempt_namespaces: Sequence[str]
    quotas: Sequence[QuotaShare]
    omitted: int
    perhaps: int


def row(seed: Seed, now: datetime) -> SeedRow:
    said = seed.status.conditions
    ready = conditions.find(said, "Ready")
    return SeedRow(
        name=seed.metadata.name,
        state=seed.spec.state,
        in_cluster=seed.spec.in_cluster,
        tone=_tone(seed, "Ready"),
        reason=ready.reason if ready is not None else "never looked at",
        message=ready.message if ready is not None else "",
        reached=moment(seed.status.last_seen_time, now),
        version=seed.status.version,
        clusters=seed.status.clusters,
        webhook=_tone(seed, "WebhookServing"),
        connected=_tone(seed, "Connected"),
    )


def rows(seeds: Iterable[Seed], now: datetime) -> list[SeedRow]:
    """Those in trouble first."""
    worst = {"bad": 0, "unknown": 1, "warn": 2, "good": 3}
    return sorted((row(seed, now) for seed in seeds), key=lambda each: (worst[each.tone], each.name))


def listed(found: Sequence[SeedRow], page: int) -> Listed:
    pages = max(-(-len(found) // PER_PAGE), 1)
    page = min(max(page, 1), pages)
    return Listed(found[(page - 1) * PER_PAGE : page * PER_PAGE], len(found), page, pages)


def page(seed: Seed, quotas: Iterable[MasterQuota], now: datetime) -> SeedPage:
    found, perhaps = [], 0
    for quota in quotas:
        line = next((each for each in quota.status.seeds if each.name == seed.metadata.name), None)
        if line is None:
            perhaps += quota.status.seeds_omitted > 0
            continue
        used, held = resources.parse(line.local_usage), resources.parse(line.granted)
        if not used and not held and line.state == "Current":
            continue
        share = QuotaShare(
            quota.metadata.name,
            line.state,
            moment(line.last_report_time, now),
            tuple(_share(name, used.get(name, 0), held.get(name, 0)) for name in sorted(used.keys() | held.keys())),
        )
        found.append((line.state == "Current", -max((*used.values(), *held.values()), default=0), share))
    found.sort(key=lambda each: (each[0], each[1], each[2].quota))
    return SeedPage(
        row=row(seed, now),
        conditions=conditions.shown(seed.status.conditions, now),
        exempt_namespaces=seed.status.exempt_namespaces,
        quotas=[share for _, _, share in found[:MAX_QUOTAS]],
        omitted=max(len(found) - MAX_QUOTAS, 0),
        perhaps=perhaps,
    )


def _share(name: str, used: int, held: int) -> Share:
    idle = amounts.amount(name, max(held - used, 0))
    return Share(name, amounts.amount(name, used), amounts.amount(name, held), idle)


def _tone(seed: Seed, type: str) -> Tone:
    found = conditions.find(seed.status.conditions, type)
    return conditions.tone(found) if found is not None else "unknown"
