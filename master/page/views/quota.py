"""One quota, whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from common.api.labels import DEFAULT_LABEL
from common.api.subject_text import subject_text
from common.api.types import Seed, Subject
from common.quota import resources
from common.quota.names import in_order
from common.quota.resources import ResourceList
from master.cache.informers import subject_of
from master.cache.objects import MasterQuota, SeedUsage
from master.grants.overrides import shown_overrides
from master.page.views import amounts, bars, conditions, guarantees, overrides
from master.page.views.amounts import Amount
from master.page.views.bars import Bar
from master.page.views.conditions import Shown
from master.page.views.guarantees import GuaranteeLine
from master.page.views.overrides import OverrideLine
from master.page.views.times import Moment, moment
from master.quotas import staleness
from master.quotas.override_conditions import OVERRIDDEN


class SeedLine(NamedTuple):
    """`cells`: of each resource of the quota what is used there and what is held."""

    name: str
    state: str
    stale: bool
    reported: Moment
    waits_for: str
    cells: tuple[tuple[Amount, Amount], ...]


class NamespaceLine(NamedTuple):
    cluster: str
    namespace: str
    used: tuple[tuple[str, Amount], ...]


class QuotaPage(NamedTuple):
    """`limited`: the whole subject, with what narrows it. `raised`: until when limits are raised, and which; empty:
    none is. `guaranteed`: something is guaranteed to its project, by the quotas of its organization. `changing`: the
    limits that are set are not those in force yet. `silent`: as in the overview."""

    name: str
    kind: str
    subject: str
    limited: str
    default: bool
    made_from: str
    enforcement: str
    warn_at: int
    bars: Sequence[Bar]
    raised: str
    overrides: Sequence[OverrideLine]
    guarantees: Sequence[GuaranteeLine]
    guaranteed: bool
    changing: bool
    counted: bool
    silent: str
    resources: Sequence[str]
    seeds: Sequence[SeedLine]
    seeds_omitted: int
    namespaces: Sequence[NamespaceLine]
    namespaces_omitted: int
    conditions: Sequence[Shown]
    stale: Sequence[str]
    version: str


def page(
    quota: MasterQuota,
    seeds: Sequence[Seed],
    now: datetime,
    *,
    made_from: str,
    version: str,
    in_force: ResourceList | None = None,
) -> QuotaPage:
    """`version`: what a write of the limits is compared with. `in_force`: of what its project is guaranteed. Raises
    QuantityError and msgspec.ValidationError."""
    status = quota.status
    kind, subject = subject_of(quota)
    silent = staleness.silence_of_master(seeds, now)
    found = bars.of_quota(quota, in_force)
    names = [bar.name for bar in found]
    return QuotaPage(
        name=quota.metadata.name,
        kind=kind,
        subject=subject,
        limited=subject_text(msgspec.convert(quota.spec.get("subject", {"kind": kind}), Subject)),
        default=quota.metadata.labels.get(DEFAULT_LABEL) == "true",
        made_from=made_from,
        enforcement=str(quota.spec.get("enforcement", "deny")),
        warn_at=bars.warn_at_of(quota),
        bars=found,
        raised=_raised(quota),
        overrides=overrides.lines(shown_overrides(quota)),
        guarantees=guarantees.lines(quota),
        guaranteed=any(bar.guaranteed for bar in found),
        changing=bool(status.observed_generation) and status.observed_generation < quota.metadata.generation,
        counted=bool(status.observed_generation),
        silent=silent,
        resources=names,
        seeds=[_line(each, names, now) for each in status.seeds],
        seeds_omitted=status.seeds_omitted,
        namespaces=[
            NamespaceLine(each.cluster, each.namespace, _amounts(each.used, names)) for each in status.namespaces
        ],
        namespaces_omitted=status.namespaces_omitted,
        conditions=conditions.shown(status.conditions, now),
        stale=[each.text(now) for each in staleness.stale_of(quota, silent)],
        version=version,
    )


def _raised(quota: MasterQuota) -> str:
    found = conditions.find(quota.status.conditions, OVERRIDDEN)
    return found.message if found is not None and found.status == "True" else ""


def _line(seed: SeedUsage, names: Sequence[str], now: datetime) -> SeedLine:
    used, held = resources.parse(seed.local_usage), resources.parse(seed.granted)
    cells = tuple((amounts.amount(name, used.get(name, 0)), amounts.amount(name, held.get(name, 0))) for name in names)
    return SeedLine(
        name=seed.name,
        state=seed.state,
        stale=seed.state != "Current",
        reported=moment(seed.last_report_time, now),
        waits_for=seed.waits_for.reason if seed.waits_for is not None else "",
        cells=cells,
    )


def _amounts(used: Mapping[str, str | int], names: Sequence[str]) -> tuple[tuple[str, Amount], ...]:
    found = resources.parse(used)
    shown = resources.only(found, names) or found
    return tuple((name, amounts.amount(name, shown[name])) for name in in_order(shown))
