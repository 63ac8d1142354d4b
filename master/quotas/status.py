"""What users read of a quota and of a seed. Pure: a view in, the status out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.api.conditions import NAMED, condition, more, some, transition
from common.api.convert import wire_quantities
from common.api.types import Condition, NamespaceUse, ResourceQuotaSpec, StaleSource
from common.quota import quantity, resources, surge
from common.quota.names import MAX_COUNTERS
from common.quota.resources import ResourceList
from master.cache.objects import QuotaStatus, SeedUsage, Summary, SurgeStatus
from master.quotas import namespace_lines, stale_sources
from master.quotas.countable import NAMESPACES, NOT_SUPPORTED, never_counted_text, unsupported, unsupported_text
from master.quotas.stale_sources import age

MAX_SEEDS = 32  # lines in a status; 1,000 of them would rewrite 300 KB at every count
STALE_AFTER = 10.0  # seconds without contact from which a seed's count is called stale
SILENT_AFTER = (
    90.0  # seconds without a sign of life from which an agent may be dead; seed/controllers/seed_status.py gives three
)

NO_SEEDS = "NoSeeds"
NO_CLUSTERS = "NoClusters"

_FIRST = ("cpu", "memory", "storage", "machines", "clusters")
_TROUBLE = {"Stale": 0, "Learning": 1, "Fenced": 2, "NeverConnected": 3}
_LOST_LAST = 9
_EXCEEDED = {
    "LimitLowered": "the limit was lowered",
    "AdmittedWithWarning": "this use was there before the quota, or was admitted with a warning",
    "UsageNotAdmitted": "this use was not admitted here",
}


class SeedView(msgspec.Struct, frozen=True, kw_only=True):
    """One seed as one quota sees it. `silent` is in seconds since the last contact, None: never since this start.

    `synced`: whether the seed has the quota as it is now; None: it cannot be asked. `behind`: a replica of its agent
    may admit by what the quota was before. `never_connected`: by this master or one before.
    """

    name: str
    connected: bool = True
    never_connected: bool = False
    lost: bool = False
    gone: bool = False  # its Seed object was deleted, what it holds was not freed
    silent: float | None = 0.0
    last_report_time: str = ""
    synced: bool | None = True
    behind: bool = False
    reported: bool = True
    fenced: bool = False
    learned: bool = True
    held: ResourceList = {}
    use: ResourceList = {}
    reserved: ResourceList = {}
    stale_sources: Sequence[StaleSource] = ()
    unenforced: Sequence[str] = ()
    clusters: int = 0
    namespaces: Sequence[NamespaceUse] = ()
    namespaces_omitted: int = 0

    @property
    def stale(self) -> bool:
        return not self.connected and (self.silent is None or self.silent >= STALE_AFTER)

    @property
    def absent(self) -> bool:
        """No quota was ever there, and it holds nothing of this one: it limits no readiness but its own."""
        return self.never_connected and not any(self.held.values()) and not any(self.use.values())

    @property
    def state(self) -> str:
        if self.lost:
            return "Lost"
        if self.absent:
            return "NeverConnected"
        if self.stale:
            return "Stale"
        if not self.learned:
            return "Learning"
        return "Fenced" if self.fenced or not self.reported else "Current"


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """One quota. `never_counted`: devices that it limits and no Machine was seen to have; None: not known yet."""

    generation: int
    spec: ResourceQuotaSpec
    limits: ResourceList
    surge: ResourceList = {}
    subject_exists: bool
    learning: bool
    beyond_counters: Sequence[str] = ()  # resources of which nothing can be granted any more
    never_counted: Sequence[str] | None = ()
    seeds: Sequence[SeedView]


def quota_status(view: QuotaView, before: QuotaStatus, now: str) -> QuotaStatus:
    """`now` is RFC 3339, for lastTransitionTime."""
    present = [seed for seed in view.seeds if not seed.lost]
    # A master that learns may have forgotten that a seed was connected once.
    absent = [] if view.learning else [seed.name for seed in present if seed.absent]
    judged = [seed for seed in present if seed.name not in absent]
    counted = _counted(view.limits, view.spec)
    use = dict.fromkeys(counted, 0) | resources.total(resources.only(seed.use, counted) for seed in present)
    reserved = resources.total(resources.only(seed.reserved, counted) for seed in present)
    lines = seed_lines(view.seeds, view.limits)
    namespaces, namespaces_omitted = namespace_lines.largest_of({seed.name: seed for seed in present}, counted)
    enforced = _unless_unsupported(_enforced(judged, absent, view.spec), view.spec)
    conditions = [
        _ready(view, enforced),
        enforced,
        _unless_unsupported(_usage_current(judged, absent), view.spec),
        *_of_use(view, use, counted, before),
        *_not_counted(view, judged, before),
    ]
    conditions = [msgspec.structs.replace(each, observed_generation=view.generation) for each in conditions]
    return QuotaStatus(
        observed_generation=view.generation,
        hard=wire_quantities(view.limits),
        global_usage=wire_quantities(use),
        reserved=wire_quantities(_nonzero(reserved)),
        surge=SurgeStatus(
            hard=wire_quantities(view.surge),
            used=wire_quantities(_nonzero(resources.only(_surge_use(present), view.surge))),
        ),
        summary=summary(view.spec, use, view.limits, present),
        seeds=lines[:MAX_SEEDS],
        seeds_omitted=max(len(lines) - MAX_SEEDS, 0),
        namespaces=namespaces,
        namespaces_omitted=namespaces_omitted,
        conditions=transition(before.conditions, conditions, now),
    )


def _counted(limits: ResourceList, spec: ResourceQuotaSpec) -> dict[str, int]:
    uncounted = unsupported(spec)
    return {name: limit for name, limit in limits.items() if name not in uncounted}


def _surge_use(seeds: Sequence[SeedView]) -> ResourceList:
    return surge.beyond(resources.total(seed.use for seed in seeds))


def same(a: QuotaStatus, b: QuotaStatus) -> bool:
    """Equal but for the times of reports of seeds that are current: these alone are no reason to write."""
    return _without_times(a) == _without_times(b)


def summary(spec: ResourceQuotaSpec, use: ResourceList, limits: ResourceList, seeds: Sequence[SeedView]) -> Summary:
    current = sum(seed.state == "Current" for seed in seeds)
    subject = spec.subject
    return Summary(
        subject=f"{subject.kind}/{subject.name}" if subject.name else subject.kind,
        usage=usage_text(use, limits, unsupported(spec)),
        peak=peak_text(use, _counted(limits, spec)),
        seeds=f"{current}/{len(seeds)}",
    )


def usage_text(use: ResourceList, limits: ResourceList, uncounted: Sequence[str] = ()) -> str:
    """All amounts of a resource are in one unit."""
    amounts = {name: resources.alike(name, use.get(name, 0), limit) for name, limit in limits.items()}
    amounts |= {name: ["?", amounts[name][1]] for name in uncounted}
    return ", ".join(f"{name} {'/'.join(amounts[name])}" for name in _in_order(limits))


def peak_text(use: ResourceList, limits: ResourceList) -> str:
    """The resource nearest to its limit. Percent are rounded down: 100% is full."""
    peak, most = "", -1
    for name in _in_order(limits):
        used, limit = use.get(name, 0), limits[name]
        if limit == 0 and used > 0:
            return f"{name} over 0"
        percent = used * 100 // limit if limit else -1
        if percent > most:
            peak, most = f"{name} {percent}%", percent
    return peak


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
            last_report_time=seed.last_report_time,
        )
        for seed in sorted(seeds, key=rank)
    ]


def _ready(view: QuotaView, enforced: Condition) -> Condition:
    subject = view.spec.subject
    if text := unsupported_text(view.spec):
        return condition("Ready", False, NOT_SUPPORTED, text)
    if not view.subject_exists:
        kind = subject.kind.capitalize()
        return condition(
            "Ready",
            False,
            "SubjectNotFound",
            f"there is no {kind} {subject.name}: create it, or make a quota for one that exists; until then this quota "
            f"is on all seeds and limits whatever names {subject.kind} {subject.name}",
        )
    if view.learning:
        missing = [seed for seed in view.seeds if not seed.learned and not seed.lost and not seed.gone]
        text = (
            "what was handed out is being learned again from the seeds; "
            f"waiting for {listed([seed.name for seed in missing])}; nothing is granted meanwhile"
        )
        if wrong := [seed.name for seed in missing if seed.absent]:
            text += f"; if {listed(wrong)} never was a seed of this master, delete the Seed"
        return condition("Ready", None, "Learning", text)
    if view.beyond_counters:
        return condition(
            "Ready",
            False,
            "TooManyResources",
            f"{listed(view.beyond_counters)}: nothing can be granted, since this quota has limited {MAX_COUNTERS} "
            "other resources before and must keep count of them; limit these in a new quota of the same subject",
        )
    if enforced.reason == NO_CLUSTERS:
        return msgspec.structs.replace(enforced, type="Ready")
    if enforced.status != "True":
        why = f"{enforced.reason}: {enforced.message}"
        return msgspec.structs.replace(enforced, type="Ready", reason="Degraded", message=why)
    if view.spec.enforcement == "warn":
        return condition("Ready", True, "WarnOnly", "what exceeds the limit is admitted with a warning")
    return condition("Ready", True, "Enforced", "")


def _unless_unsupported(found: Condition, spec: ResourceQuotaSpec) -> Condition:
    text = unsupported_text(spec) if found.status != "False" else ""
    return condition(found.type, False, NOT_SUPPORTED, text) if text else found


def _enforced(seeds: Sequence[SeedView], absent: Sequence[str], spec: ResourceQuotaSpec) -> Condition:
    kind = "Enforced"
    if all(seed.gone for seed in seeds):
        there = f"no Seed has connected yet; see the condition Connected of {listed(absent)}"
        return condition(kind, False, NO_SEEDS, f"nothing is refused: {there if absent else 'there is no Seed'}")
    without = [seed.name for seed in seeds if seed.synced is False and not seed.gone]
    if without:
        return condition(kind, False, "SeedNotSynced", f"the present quota is not yet on {listed(without)}")
    unknown = [seed.name for seed in seeds if seed.synced is None and not seed.gone]
    if unknown:
        why = f"whether the present quota is on {listed(unknown)} cannot be told: not connected"
        return condition(kind, None, "SeedNotSynced", why)
    fenced = [seed.name for seed in seeds if seed.connected and (seed.fenced or not seed.reported)]
    if fenced:
        why = f"nothing is admitted on {listed(fenced)} until everything there is recounted"
        return condition(kind, False, "AccountFenced", why)
    behind = [seed.name for seed in seeds if seed.behind and not seed.gone]
    if behind:
        return condition(
            kind,
            False,
            "ReplicasBehind",
            f"{listed(behind)}: not every replica of the agent has the present quota yet; one that does not get it "
            "soon admits nothing more",
        )
    of_namespaces = spec.subject.kind == NAMESPACES
    if of_namespaces and not any(seed.clusters for seed in seeds):
        return condition(kind, False, NO_CLUSTERS, _no_clusters(spec))
    unchecked = [f"{source} on {seed.name}" for seed in seeds for source in seed.unenforced]
    if unchecked and of_namespaces:
        return condition(
            kind,
            False,
            "WebhookNotServing",
            f"{listed(unchecked)}: objects in namespaces are not checked there, or cannot be created; see what "
            "seedquota-seed logs of its canary",
        )
    if unchecked:
        return condition(
            kind,
            False,
            "WebhookNotServing",
            f"{listed(unchecked)}: Machines are not checked there, or cannot be created; see the condition Enforced of "
            "the UserCluster, or for other clusters what seedquota-seed logs of its canary",
        )
    return condition(kind, True, "AllSeeds", f"not on {listed(absent)}: never connected" if absent else "")


def _no_clusters(spec: ResourceQuotaSpec) -> str:
    text = (
        "no cluster takes part, so nothing is counted and nothing is refused; set spec.namespaceQuotas to Enabled in a "
        "UserCluster, or in a Seed for its own API server"
    )
    return f"{text}; spec.subject.clusters picks none of them" if spec.subject.clusters is not None else text


def _usage_current(seeds: Sequence[SeedView], absent: Sequence[str]) -> Condition:
    kind = "UsageCurrent"
    gone = [seed for seed in seeds if seed.gone]
    if gone:
        return condition(
            kind,
            False,
            "SeedUnreachable",
            f"{listed([seed.name for seed in gone])}: the Seed was deleted; the last count and what is held there are "
            "kept; make it again with state Lost to free that",
        )
    stale = [seed for seed in seeds if seed.stale]
    if stale:
        said = "; ".join(
            f"{seed.name} last reported {age(seed.silent)} ago"
            if seed.silent is not None
            else f"{seed.name} has not been reached since the master started"
            for seed in stale[:NAMED]
        )
        whose = "its last count is" if len(stale) == 1 else "their last counts are"
        return condition(kind, False, "SeedUnreachable", f"{said}{more(stale)}; {whose} kept")
    sources = [(seed.name, source) for seed in seeds for source in seed.stale_sources]
    if sources:
        return condition(kind, False, *stale_sources.reason_and_message(sources))
    unknown = f"nothing is known of {listed(absent)}: never connected"
    return condition(kind, True, "AllReported", unknown if absent else "")


def _not_counted(view: QuotaView, seeds: Sequence[SeedView], before: QuotaStatus) -> list[Condition]:
    """Only there while it is true. What was said before stays as long as nothing new is known."""
    kind = "ResourceNotCounted"
    if view.never_counted is None or any(seed.synced is False or seed.fenced or not seed.reported for seed in seeds):
        kept = [each for each in before.conditions if each.type == kind]
        return [each for each in kept if each.observed_generation == view.generation]
    of_machines = view.spec.subject.kind != NAMESPACES
    found = [name for name in view.never_counted if of_machines and name not in unsupported(view.spec)]
    if not found:
        return []
    used = {name for seed in seeds for name, amount in seed.use.items() if amount and name not in view.limits}
    texts = ", ".join(never_counted_text(name, used) for name in found[:NAMED])
    why = f"no Machine seen so far has {texts}{more(found)}; nothing is limited by a name that no Machine has"
    return [condition(kind, True, "NeverCounted", why)]


def _of_use(view: QuotaView, use: ResourceList, counted: ResourceList, before: QuotaStatus) -> list[Condition]:
    if not counted:
        text = unsupported_text(view.spec)
        return [condition(kind, None, NOT_SUPPORTED, text) for kind in ("NearLimit", "Exceeded")]
    return [
        _near_limit(use, counted, view.spec.warn_at_percent),
        _exceeded(use, counted, before, warn=view.spec.enforcement == "warn"),
    ]


def _near_limit(use: ResourceList, limits: ResourceList, warn_at_percent: int) -> Condition:
    full = [name for name, limit in limits.items() if use.get(name, 0) >= limit and (limit or use.get(name, 0))]
    if full:
        return condition("NearLimit", True, "Full", f"{_texts(full, use, limits)}")
    near = [name for name, limit in limits.items() if limit and use.get(name, 0) * 100 >= limit * warn_at_percent]
    if near:
        return condition("NearLimit", True, "AboveWarnPercent", f"{_texts(near, use, limits)}")
    return condition("NearLimit", False, "BelowWarnPercent", f"all below {warn_at_percent}% of the limit")


def _exceeded(use: ResourceList, limits: ResourceList, before: QuotaStatus, *, warn: bool) -> Condition:
    over = [name for name, limit in limits.items() if use.get(name, 0) > limit]
    if not over:
        return condition("Exceeded", False, "WithinLimit", "")
    known = next((condition for condition in before.conditions if condition.type == "Exceeded"), None)
    lowered = any(name in before.hard and quantity.parse(before.hard[name]) > limits[name] for name in over)
    said = known.reason if known is not None and known.status == "True" else ""
    if lowered or said == "LimitLowered":
        reason = "LimitLowered"
    elif warn:
        reason = "AdmittedWithWarning"
    else:
        reason = said if said in _EXCEEDED else "UsageNotAdmitted"
    why = _EXCEEDED[reason]
    then = "what more comes is admitted with a warning" if warn else "nothing more is admitted until use has fallen"
    return condition("Exceeded", True, reason, f"{_texts(over, use, limits)}: {why}; nothing is removed, and {then}")


def _texts(names: Sequence[str], use: ResourceList, limits: ResourceList) -> str:
    return usage_text(use, resources.only(limits, names))


def listed(names: Sequence[str]) -> str:
    return some(sorted(names))


def _nonzero(amounts: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


def _in_order(names: ResourceList) -> list[str]:
    return [name for name in _FIRST if name in names] + sorted(name for name in names if name not in _FIRST)


def _without_times(status: QuotaStatus) -> QuotaStatus:
    seeds = [
        msgspec.structs.replace(seed, last_report_time="") if seed.state != "Stale" else seed for seed in status.seeds
    ]
    return msgspec.structs.replace(status, seeds=seeds)
