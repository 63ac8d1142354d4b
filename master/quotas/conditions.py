"""The conditions of a quota: what users may rely on, and what not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.api import account_waits
from common.api.conditions import NAMED, condition, more, short, some
from common.api.labels import IN_NAMESPACES_OF
from common.api.types import Condition, ResourceQuotaSpec, StaleSource
from common.quota import quantity, resources
from common.quota.names import MAX_COUNTERS
from common.quota.resources import ResourceList
from common.quota.use_text import usage_text
from master.cache.objects import AllocatedTypes, QuotaStatus
from master.quotas import namespace_lines, stale_sources
from master.quotas.countable import (
    NAMESPACES,
    NOT_SUPPORTED,
    limits_machines,
    never_counted_text,
    of_objects,
    unsupported,
    unsupported_text,
)
from master.quotas.quota_view import QuotaView, SeedView
from master.quotas.stale_sources import age

NAMESPACES_NAMED = 32  # namespaces that a message names

NO_SEEDS = "NoSeeds"
NO_CLUSTERS = "NoClusters"
CLUSTERS_NOT_COUNTED = "ClustersNotCounted"

_EXCEEDED = {
    "LimitLowered": "the limit was lowered",
    "AdmittedWithWarning": "this use was there before the quota, or was admitted with a warning",
    "UsageNotAdmitted": "this use was there before the limit, or was not admitted here",
}


def ready(view: QuotaView, enforced: Condition) -> Condition:
    subject = view.spec.subject
    if text := unsupported_text(view.spec, view.allocated):
        return condition("Ready", False, NOT_SUPPORTED, text)
    if not view.subject_exists:
        kind = subject.kind.capitalize()
        text = (
            f"there is no {kind} {subject.name}: create it, or make a quota for one that exists; until then this quota "
            f"is on {'all' if subject.seeds is None else 'its'} seeds and limits whatever names {subject.kind} "
            f"{subject.name}"
        )
        if subject.kind == "project":
            text += "; where organizations have quotas, Machines of an unknown project get 503"
        return condition("Ready", False, "SubjectNotFound", text)
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


def unless_unsupported(found: Condition, view: QuotaView) -> Condition:
    text = unsupported_text(view.spec, view.allocated) if found.status != "False" else ""
    return condition(found.type, False, NOT_SUPPORTED, text) if text else found


def unless_uncounted(found: Condition, not_counted: Sequence[Condition]) -> Condition:
    """What was never seen anywhere has no use above its limit; and a name that is wrong limits nothing. Which of both
    is so, nobody knows before the first of it is counted."""
    if found.status != "True" or not not_counted:
        return found
    return condition(found.type, None, not_counted[0].reason, not_counted[0].message)


def enforced(
    seeds: Sequence[SeedView], absent: Sequence[str], spec: ResourceQuotaSpec, allocated: AllocatedTypes
) -> Condition:
    kind = "Enforced"
    if all(seed.gone for seed in seeds):
        there = "there is no Seed" if spec.subject.seeds is None else "spec.subject.seeds picks no Seed that there is"
        if absent:
            there = f"no Seed has connected yet; see the condition Connected of {listed(absent)}"
        return condition(kind, False, NO_SEEDS, f"nothing is refused: {there}")
    without = [seed.name for seed in seeds if seed.synced is False and not seed.gone]
    if without:
        return condition(kind, False, "SeedNotSynced", f"the present quota is not yet on {listed(without)}")
    unknown = [seed.name for seed in seeds if seed.synced is None and not seed.gone]
    if unknown:
        why = f"whether the present quota is on {listed(unknown)} cannot be told: not connected"
        return condition(kind, None, "SeedNotSynced", why)
    fenced = [seed for seed in seeds if seed.connected and (seed.fenced or not seed.reported)]
    if fenced:
        return condition(kind, False, "AccountFenced", _fenced_text(fenced))
    behind = [seed.name for seed in seeds if seed.behind and not seed.gone]
    if behind:
        return condition(
            kind,
            False,
            "ReplicasBehind",
            f"{listed(behind)}: not every replica of the agent has the present quota yet; one that does not get it "
            "soon admits nothing more",
        )
    unchecked = [(source, seed.name) for seed in seeds for source in seed.unenforced]
    if unchecked:
        return condition(kind, False, "WebhookNotServing", _unchecked_text(unchecked, spec.subject.kind))
    stale = [(seed.name, source) for seed in seeds for source in seed.stale_sources]
    if uncounted := [each for each in stale if each[1].not_listed and each[1].never_counted]:
        reason, message = stale_sources.reason_and_message(uncounted)
        return condition(kind, False, reason, f"{message}; what is there already is not part of the use")
    if unreached := _unreached(stale, spec, allocated):
        reason, message = stale_sources.reason_and_message(unreached)
        return condition(kind, None, reason, f"{message}; whether anything is refused there is not known")
    if _is_of_clusters(spec) and not any(seed.picked for seed in seeds):
        why = "spec.subject.clusters picks no cluster of the subject on any seed"
        return condition(kind, False, NO_CLUSTERS, f"{why}, so nothing is counted and nothing is refused")
    objects = of_objects(spec)
    if objects and not any(seed.clusters for seed in seeds):
        return condition(kind, False, NO_CLUSTERS, _no_clusters(spec, objects))
    if objects and (apart := [f"{cluster} on {seed.name}" for seed in seeds for cluster in seed.not_counted]):
        why = (
            f"{some(objects)}: not counted and not refused in {listed(apart)}, which takes no part; set "
            "spec.namespaceQuotas to Enabled in each of these UserClusters"
        )
        return condition(kind, False, CLUSTERS_NOT_COUNTED, why)
    return condition(kind, True, "AllSeeds", f"not on {listed(absent)}: never connected" if absent else "")


def _unreached(
    stale: Sequence[tuple[str, StaleSource]], spec: ResourceQuotaSpec, allocated: AllocatedTypes
) -> list[tuple[str, StaleSource]]:
    """The clusters that were never counted, where the quota limits something that is in them."""
    found = [each for each in stale if each[1].never_counted]
    if spec.subject.kind == NAMESPACES or limits_machines(spec, allocated):
        return found
    return [each for each in found if each[1].source.startswith(IN_NAMESPACES_OF)]


def _is_of_clusters(spec: ResourceQuotaSpec) -> bool:
    """Whether it limits what a project or an organization has in some clusters. Of namespaces, those clusters are asked
    for that take part."""
    return spec.subject.clusters is not None and spec.subject.kind != NAMESPACES


def _fenced_text(seeds: Sequence[SeedView]) -> str:
    """With what the first few wait for, where they say it."""
    texts = [f"nothing is admitted on {listed([seed.name for seed in seeds])} until everything there is recounted"]
    waiting = sorted(((seed.name, seed.waits_for) for seed in seeds), key=lambda each: each[0])
    told = [f"{name} {account_waits.text(wait)}" for name, wait in waiting if wait is not None]
    return short("; ".join([*texts, *told[:NAMED]]))


def _unchecked_text(unchecked: Sequence[tuple[str, str]], kind: str) -> str:
    """Of sources with the names of their seeds. What a seed's own API server asks about is named by one word, a user
    cluster with its namespace."""
    in_namespaces = [each for each in unchecked if kind == NAMESPACES or each[0].startswith(IN_NAMESPACES_OF)]
    of_machines = [each for each in unchecked if each not in in_namespaces and "/" in each[0]]
    of_seed = [each for each in unchecked if each not in in_namespaces and "/" not in each[0]]
    texts = [
        f"{what} on {listed(seeds)}: no dry run has proven that they are checked there; see the condition "
        "WebhookServing of the Seed, and what seedquota-seed logs of its canary"
        for what in sorted({source for source, _ in of_seed})
        if (seeds := [seed for source, seed in of_seed if source == what])
    ]
    see_machines = "the condition Enforced of the UserCluster, or for other clusters "
    for found, objects, see in ((of_machines, "Machines", see_machines), (in_namespaces, "objects in namespaces", "")):
        if found:
            texts.append(
                f"{listed([f'{source} on {seed}' for source, seed in found])}: {objects} are not checked there, or "
                f"cannot be created; see {see}what seedquota-seed logs of its canary"
            )
    return "; ".join(texts)


def _no_clusters(spec: ResourceQuotaSpec, objects: Sequence[str]) -> str:
    where = "set spec.namespaceQuotas to Enabled in a UserCluster"
    if spec.subject.kind == NAMESPACES:
        text = f"no cluster takes part, so nothing is counted and nothing is refused; {where}"
    else:
        text = (
            f"no cluster takes part, so not counted and not refused: {some(objects)}; {where} of the project, or in one"
        )
        text += " with namespaceProjects: FromLabel"
    text += ", or in a Seed for its own API server"
    if len(objects) < len(spec.quota):
        text += "; the other resources of this quota are limited"
    return f"{text}; spec.subject.clusters picks none of them" if spec.subject.clusters is not None else text


def usage_current(seeds: Sequence[SeedView], absent: Sequence[str]) -> Condition:
    kind = "UsageCurrent"
    gone = [seed for seed in seeds if seed.gone]
    if gone:
        return condition(
            kind,
            False,
            "SeedUnreachable",
            f"{listed([seed.name for seed in gone])}: the Seed was deleted; the last count and what is held there are "
            "kept; create the Seed again, or with state Lost to free that if its machines are gone",
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
    silent = [seed.name for seed in seeds if seed.agent_silent]
    if silent:
        why = f"no agent leads on {listed(silent)}, so nothing is counted there; what was counted last is kept"
        return condition(kind, False, "AgentSilent", why)
    sources = [(seed.name, source) for seed in seeds for source in seed.stale_sources]
    if sources:
        return condition(kind, False, *stale_sources.reason_and_message(sources))
    unknown = f"nothing is known of {listed(absent)}: never connected"
    return condition(kind, True, "AllReported", unknown if absent else "")


def not_counted(view: QuotaView, seeds: Sequence[SeedView], before: QuotaStatus) -> list[Condition]:
    """Only there while it is true. What was said before stays as long as nothing new is known."""
    kind = "ResourceNotCounted"
    if view.never_counted is None or any(seed.synced is False or seed.fenced or not seed.reported for seed in seeds):
        kept = [each for each in before.conditions if each.type == kind]
        return [each for each in kept if each.observed_generation == view.generation]
    if view.not_served:
        text = (
            f"{some(sorted(view.not_served))}: no cluster that takes part serves such objects, so this limits nothing"
        )
        return [
            condition(kind, True, "NotServed", f"{text}; if the name is right, they are limited once they are served")
        ]
    elsewhere = {*unsupported(view.spec, view.allocated), *view.allocated.names, *of_objects(view.spec)}
    found = [name for name in view.never_counted if name not in elsewhere]
    if not found:
        return []
    used = {name for seed in seeds for name, amount in seed.use.items() if amount and name not in view.limits}
    texts = ", ".join(never_counted_text(name, used) for name in found[:NAMED])
    why = f"no Machine seen so far has {texts}{more(found)}; nothing is limited by a name that no Machine has"
    return [condition(kind, True, "NeverCounted", why)]


def of_promises(spec: ResourceQuotaSpec, seeds: Sequence[SeedView]) -> list[Condition]:
    """Of a quota that limits what core ResourceQuotas promise: what has none may be used without limit."""
    if not spec.subject.counts:
        return []
    kind = "NamespacesLimited"
    found = [
        f"{namespace_lines.place(seed.name, lack)} (no ResourceQuota limits {some(lack.resources)})"
        for seed in seeds
        for lack in seed.without_quota
    ]
    if not found:
        return [condition(kind, True, "AllLimited", "")]
    number = len(found) + sum(seed.without_quota_omitted for seed in seeds)
    rest = f" and {number - NAMESPACES_NAMED} more" if number > NAMESPACES_NAMED else ""
    text = f"{', '.join(found[:NAMESPACES_NAMED])}{rest}; what is used there of these is not limited by this allocation"
    return [condition(kind, False, "NoResourceQuota", text)]


def of_use(view: QuotaView, use: ResourceList, counted: ResourceList, before: QuotaStatus) -> list[Condition]:
    if not counted and view.limits:
        reason, text = NOT_SUPPORTED, unsupported_text(view.spec, view.allocated)
        if not text and view.not_served:
            reason, text = "NotServed", "nothing that it limits is served"
        elif not text:
            reason, text = NO_CLUSTERS, _no_clusters(view.spec, of_objects(view.spec))
        return [condition(kind, None, reason, text) for kind in ("NearLimit", "Exceeded")]
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
