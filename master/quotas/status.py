"""What users read of a quota and of a seed. Pure: a view in, the status out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from common.api.conditions import transition
from common.api.convert import guarantee_to_wire, wire_quantities
from common.api.subject_text import subject_text
from common.api.types import Quantities, ResourceQuotaSpec
from common.quota import resources, surge
from common.quota.resources import ResourceList
from common.quota.use_text import peak_text, usage_text
from master.cache.objects import OverrideStatus, QuotaStatus, SeedUsage, Summary, SurgeStatus
from master.quotas import conditions, namespace_lines, override_conditions
from master.quotas.countable import uncounted
from master.quotas.limits_fit import fitting, guarantees_in_force, limits_fit
from master.quotas.quota_view import QuotaView, SeedView

MAX_SEEDS = 32  # lines in a status; 1,000 of them would rewrite 300 KB at every count
_TROUBLE = {"Stale": 0, "Learning": 1, "Fenced": 2, "Withdrawing": 3, "NeverConnected": 4}
_LOST_LAST = 9


def quota_status(view: QuotaView, before: QuotaStatus, now: str) -> QuotaStatus:
    """`now` is RFC 3339, for lastTransitionTime."""
    present = [seed for seed in view.seeds if seed.limited]
    # A master that learns may have forgotten that a seed was connected once.
    absent = [] if view.learning else [seed.name for seed in present if seed.absent]
    judged = [seed for seed in present if seed.name not in absent]
    unknown = {*uncounted(view.spec, view.allocated, clusters=sum(seed.clusters for seed in present)), *view.not_served}
    counted = _counted(view.limits, unknown)
    use = dict.fromkeys(counted, 0) | resources.total(resources.only(seed.use, counted) for seed in present)
    reserved = resources.total(resources.only(seed.reserved, counted) for seed in present)
    lines = seed_lines(view.seeds, view.limits)
    namespaces, namespaces_omitted = namespace_lines.largest_of({seed.name: seed for seed in present}, counted)
    not_counted = conditions.not_counted(view, judged, before)
    enforcing = conditions.unless_unsupported(conditions.enforced(judged, absent, view.spec, view.allocated), view)
    enforcing = conditions.unless_uncounted(enforcing, not_counted)
    found = [
        conditions.ready(view, enforcing),
        enforcing,
        conditions.unless_unsupported(conditions.usage_current(judged, absent), view),
        *conditions.of_use(view, use, counted, before),
        *not_counted,
        *conditions.of_promises(view.spec, present),
        *limits_fit(view),
        *guarantees_in_force(view, use),
        *override_conditions.overridden(view.overrides, view.raised),
    ]
    found = [msgspec.structs.replace(each, observed_generation=view.generation) for each in found]
    return QuotaStatus(
        observed_generation=view.generation,
        hard=wire_quantities(view.limits),
        global_usage=wire_quantities(use),
        reserved=wire_quantities(_nonzero(reserved)),
        surge=SurgeStatus(
            hard=wire_quantities(view.surge),
            used=wire_quantities(_nonzero(resources.only(_surge_use(present), view.surge))),
        ),
        overrides=list(view.overrides),
        summary=msgspec.structs.replace(
            summary(view.spec, use, view.limits, present, unknown, view.overrides),
            guaranteed=usage_text(*_guaranteed(view, use), unknown),
        ),
        seeds=lines[:MAX_SEEDS],
        seeds_omitted=max(len(lines) - MAX_SEEDS, 0),
        namespaces=namespaces,
        namespaces_omitted=namespaces_omitted,
        fits=fitting(view),
        guarantees=[guarantee_to_wire(each) for each in view.guarantees],
        conditions=transition(before.conditions, found, now),
    )


def _guaranteed(view: QuotaView, use: ResourceList) -> tuple[ResourceList, ResourceList]:
    """What is used of guarantees, and these: of a project its own, as far as it is in force, of an organization those
    of all its projects."""
    if view.spec.subject.kind == "project" and view.organization_limits is not None:
        given = view.organization_limits.in_force(view.spec.subject.name or "")
        hard = resources.minimum(given, resources.only(resources.parse(view.spec.guaranteed), given))
        hard = _nonzero(hard)
        return resources.minimum(hard, resources.only(use, hard)), hard
    hard = resources.total(each.hard for each in view.guarantees)
    return resources.subtract(hard, resources.total(each.unused for each in view.guarantees)), hard


def _counted(limits: ResourceList, uncounted: Collection[str]) -> dict[str, int]:
    return {name: limit for name, limit in limits.items() if name not in uncounted}


def _surge_use(seeds: Sequence[SeedView]) -> ResourceList:
    return surge.beyond(resources.total(seed.use for seed in seeds))


def same(a: QuotaStatus, b: QuotaStatus) -> bool:
    """Equal but for the times of reports of seeds that are current: these alone are no reason to write."""
    return _without_times(a) == _without_times(b)


def summary(
    spec: ResourceQuotaSpec,
    use: ResourceList,
    limits: ResourceList,
    seeds: Sequence[SeedView],
    unknown: Collection[str] = (),
    overrides: Sequence[OverrideStatus] = (),
) -> Summary:
    current = sum(seed.state == "Current" for seed in seeds)
    return Summary(
        subject=subject_text(spec.subject),
        usage=usage_text(use, limits, unknown),
        peak=peak_text(use, _counted(limits, unknown)),
        seeds=f"{current}/{len(seeds)}",
        raised_until=override_conditions.first_end(overrides),
    )


def seed_lines(seeds: Sequence[SeedView], limits: ResourceList) -> list[SeedUsage]:
    """Those in trouble first, then the largest."""

    def rank(seed: SeedView) -> tuple[int, int, str]:
        trouble = _LOST_LAST if seed.lost else _TROUBLE.get(seed.state, len(_TROUBLE))
        share = max((seed.use.get(name, 0) * 10_000 // limit for name, limit in limits.items() if limit), default=0)
        return trouble, -share, seed.name

    return [
        SeedUsage(
            name=seed.name,
            state=seed.state,
            local_usage=wire_quantities(_nonzero(resources.only(seed.use, limits))),
            granted=wire_quantities(_nonzero(resources.only(seed.held, limits))),
            kept_for=_by_project(seed.kept_for, limits),
            last_report_time=seed.last_report_time,
            waits_for=seed.waits_for if seed.state == "Fenced" else None,
        )
        for seed in sorted(seeds, key=rank)
    ]


def _by_project(kept: Mapping[str, ResourceList], limits: ResourceList) -> dict[str, Quantities]:
    found = {project: resources.only(amounts, limits) for project, amounts in sorted(kept.items())}
    return {project: wire_quantities(amounts) for project, amounts in found.items() if amounts}


def _nonzero(amounts: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


def _without_times(status: QuotaStatus) -> QuotaStatus:
    seeds = [
        msgspec.structs.replace(seed, last_report_time="") if seed.state != "Stale" else seed for seed in status.seeds
    ]
    return msgspec.structs.replace(status, seeds=seeds)
