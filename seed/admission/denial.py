"""Each refusal, and each warning of an admitted request: codes and texts (docs/reference/protocol.md section 6). Pure.

The grammar is core's quota plugin's, since controllers match 403 and "exceeded quota" to back off; numbers always add
up: used + requested > limited. Whoever could be admitted a moment later gets 503 with a retry, which kubectl and
client-go follow by themselves; a true refusal never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.api import account_waits
from common.api.labels import GROUP, PROJECT_LABEL
from common.api.types import OF_ALLOCATION, AccountWait
from common.quota import resources
from common.quota.resources import ResourceList
from seed.admission.refusal import ALREADY_EXISTS, Cause, Refusal
from seed.model.quota import Quota

MAX_KNOWN = 32  # types in a message: of the catalogue, and of those that it lacks
SEE_COPIES, SEE_ALLOCATIONS = "kubectl get lsq -n", "kubectl get lsqa -n"
COPIES_OF_A_CLUSTER = "kube-system"


def _refusal(code: int, cause: str, text: str, *, why: str = "", field: str = "", quota: str = "") -> Refusal:
    """`why`: for programs, where it is not `text`."""
    return Refusal(code=code, text=text, causes=[Cause(cause, why or text, field)], quota=quota)


def exceeded(
    quota: str,
    need: ResourceList,
    used: ResourceList,
    limits: ResourceList,
    being_created: ResourceList,
    *,
    note: str = "",
    objects: str = "machines",
    shown_as: str = "",
    kept: ResourceList | None = None,
) -> Refusal:
    """Every resource that fails is named. `being_created` is the part of `used` that no object shows yet.

    `objects`: what the quota counts, beside clusters. `shown_as`: see Quota. `kept`: the part of `used` that is
    kept for other projects, which do not use it.
    """
    over = resources.over_limit(need, used, limits)
    assert over, "never say exceeded when it is not"
    failing = {
        "requested": resources.only(need, over),
        "used": {name: used.get(name, 0) for name in over},
        "limited": resources.only(limits, over),
    }
    creating = {name: amount for name, amount in resources.only(being_created, over).items() if amount > 0}
    *amounts, short, created = resources.texts(*failing.values(), over, creating)
    parts = [f"{word}: {text}" for word, text in zip(failing, amounts, strict=True)]
    text = f"exceeded quota: {shown_as or quota}, {', '.join(parts)}; short by {short}"
    if note:
        text += f"; {note}"
    if created:
        what = "clusters" if set(creating) == {"clusters"} else objects
        text += f"; {created} of used is {what} being created"
    if guaranteed := {name: amount for name, amount in resources.only(kept or {}, over).items() if amount > 0}:
        text += f"; {resources.text(guaranteed)} of used is guaranteed to other projects"
    if any(need[name] > limits[name] for name in over):
        hope = "it can never fit: the request is larger than the limit"
    elif all(creating.get(name, 0) >= amount for name, amount in over.items()):
        hope = "retrying helps after something is deleted, or if what is being created fails"
    else:
        hope = "retrying helps only after something is deleted"
    found = failing | {"being created": creating}
    return Refusal(
        code=403,
        text=f"{text}; {hope}",
        causes=[Cause("QuotaExceeded", _cause(_amounts_of(name, found), name), name) for name in sorted(over)],
        quota=quota,
        used=used,
        being_created=being_created,
        note=note,
    )


def _amounts_of(name: str, found: Mapping[str, ResourceList]) -> dict[str, int]:
    return {word: amounts[name] for word, amounts in found.items() if name in amounts}


def _cause(amounts: Mapping[str, int], name: str) -> str:
    texts = resources.texts(*({name: amount} for amount in amounts.values()))
    return ", ".join(f"{word} {text}" for word, text in zip(amounts, texts, strict=True))


def unavailable(quota: str, why: str, *, shown_as: str = "") -> Refusal:
    text = f"quota {shown_as or quota} cannot decide: {why}"
    return _refusal(503, "QuotaUnavailable", text, why=why, quota=quota)


def cannot_decide(quota: Quota, why: str) -> Refusal:
    return unavailable(quota.name, why, shown_as=quota.shown_as)


def not_open(quota: Quota, why: str) -> Refusal:
    """`why`: where the leader does not say what the account waits for. Sources are not named: they may be clusters of
    other tenants."""
    wait = quota.published_wait
    return cannot_decide(quota, why if wait is None else not_open_yet(wait))


def not_open_yet(wait: AccountWait) -> str:
    return f"its account is not open yet: it {account_waits.text(wait, named=False)}"


def too_often(per_second: int) -> Refusal:
    """Before it was looked at."""
    why = f"this cluster asks SeedQuota too often: more than {per_second} requests in a second"
    return _refusal(503, "TooManyRequests", f"{why}; try again", why=why)


def taken(quota: str) -> Refusal:
    """What is being replaced by a rollout, or replaces, cannot be claimed again."""
    why = f"quota {quota}: the machine is part of a rollout that is under way; change it once that has ended"
    return _refusal(409, "RolloutUnderWay", why)


def already_exists(resource: str, name: str) -> Refusal:
    """In the API server's own words, which would be the answer."""
    return _refusal(409, ALREADY_EXISTS, f'{resource} "{name}" already exists')


def occupied(quota: str, under: ResourceList) -> Refusal:
    """Of surge, though some may be left: it has no numbers that add up, so `beyond_surge` adds those of the limit."""
    why = f"{resources.text(under)} is taken by use beyond what this seed holds, and no more is lent until that is gone"
    return Refusal(code=403, text=f"quota {quota}: {why}", causes=[Cause("SurgeOccupied", why)], note=why)


def beyond_surge(refused: Refusal, on_surge: Refusal) -> Refusal:
    """A rollout's machine that neither the limit nor the surge has room for."""
    if on_surge.code != 403:
        return on_surge
    if on_surge.note:
        return msgspec.structs.replace(refused, surge=f"its rollout may not use surge now: {on_surge.note}")
    short = "; ".join(cause.message for cause in on_surge.causes)
    return msgspec.structs.replace(
        refused,
        surge=f"its rollout may use surge, but of that too: {short}",
        causes=[*refused.causes, *on_surge.causes],
    )


def not_specified(quota: str, lacking: str) -> Refusal:
    """Core's own words: controllers and people know them."""
    text = f"failed quota: {quota}: {lacking}"
    return _refusal(403, "NotSpecified", text, why=lacking, field="spec", quota=quota)


def with_copies(refusal: Refusal, namespace: str = COPIES_OF_A_CLUSTER) -> Refusal:
    """Where LocalResourceQuotas and LocalResourceQuotaAllocations are in that namespace, see seed/projections."""
    if refusal.cause != "QuotaExceeded":
        return refusal
    see = SEE_ALLOCATIONS if refusal.quota.startswith(OF_ALLOCATION) else SEE_COPIES
    return msgspec.structs.replace(refusal, see=f"{see} {namespace}")


def not_sized(text: str) -> Refusal:
    return _refusal(422, "MachineNotSized", text, field="spec.providerSpec")


def not_sized_now(text: str) -> Refusal:
    """The cloud that knows the size does not say it now."""
    return _refusal(503, "MachineNotSized", text, field="spec.providerSpec")


def forged() -> Refusal:
    text = "annotation seedquota.io/footprint is written by SeedQuota only"
    return _refusal(403, "FootprintForged", text, field="metadata.annotations[seedquota.io/footprint]")


def project_label() -> Refusal:
    """Of a write of a namespace by a user who may not decide who pays for it."""
    text = (
        f"label {PROJECT_LABEL} says which project pays for what is in this namespace; it is set, changed and removed "
        f"only by who may assign these projects: verb assign on projects of {GROUP}"
    )
    return _refusal(403, "ProjectLabel", text, field=f"metadata.labels[{PROJECT_LABEL}]")


def unknown_project(project: str, what: str) -> Refusal:
    text = (
        f"project {project} is unknown: this seed has no Project of that name and no quota for it; an administrator"
        f" must create the Project on the master before the {what} can be created"
    )
    return _refusal(403, "UnknownProject", text)


def limits_missing(project: str) -> str:
    """Why it cannot be decided yet."""
    return f"what limits project {project} has not come from the master, or there is no such Project"


def unknown_types(unknown: Sequence[tuple[int, str]], known: Sequence[str]) -> Refusal:
    """Of an Allocation: types that the catalogue does not count from Allocations, with their places in the list."""
    there = f"known are {', '.join(known[:MAX_KNOWN])}" if known else "there is none"
    if len(known) > MAX_KNOWN:
        there += f" and {len(known) - MAX_KNOWN} more"
    told = unknown[:MAX_KNOWN]
    named = ", ".join(name for _, name in told)
    if len(unknown) > MAX_KNOWN:
        named += f" and {len(unknown) - MAX_KNOWN} more"
    text = (
        f"unknown resource type: {named}; types are those of QuotaSettings.spec.resources with countFrom Allocations: "
        f"{there}"
    )
    causes = [Cause("UnknownResourceType", text, f"spec.resources[{place}].type") for place, _ in told]
    return Refusal(code=422, text=text, causes=causes)


def misplaced(text: str, field: str) -> Refusal:
    """Of an Allocation that is not in the namespace of its organization, or whose project is another's."""
    return _refusal(403, "AllocationMisplaced", text, field=field)


def lost() -> Refusal:
    """For good: a lost seed never comes back."""
    text = "this seed was declared lost: what it held is given to other seeds, and it admits nothing more"
    return _refusal(403, "SeedLost", text)


def canary() -> Refusal:
    """A dry run that is refused to see that it is (seed/registration/probe.py)."""
    text = "this is a canary: it is refused so that whoever sent it sees that Machines are checked here"
    return _refusal(403, "CanaryDenied", text)


def age(seconds: int) -> str:
    """As kubectl shows ages: 40s, 7m, 3h, 2d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size or (unit != "d" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def near_limit(
    quota: str, used: ResourceList, limits: ResourceList, warn_at_percent: int, *, shown_as: str = ""
) -> str | None:
    """A warning for an admitted request that leaves little room; the fullest resource is named."""
    fullest = max(
        ((used.get(name, 0) * 100 // limit, name) for name, limit in limits.items() if limit > 0), default=(0, "")
    )
    percent, name = fullest
    if percent < warn_at_percent:
        return None
    of_used, of_limit = resources.alike(name, used.get(name, 0), limits[name])
    return f"{shown_as or f'seedquota/{quota}'}: {name} {of_used}/{of_limit} ({percent}%) after this"


def not_specified_allowed(quota: str, lacking: str) -> str:
    """A warning where the quota only warns."""
    return f"seedquota/{quota}: {lacking}; allowed because enforcement is warn"


def over_allowed(
    quota: str, over: ResourceList, used: ResourceList, limits: ResourceList, *, shown_as: str = ""
) -> str:
    """A warning where the quota only warns: what a refusal would have said."""
    name = min(over)
    excess, of_used, of_limit = resources.alike(name, over[name], used.get(name, 0), limits[name])
    said = shown_as or f"seedquota/{quota}"
    return f"{said}: over by {name}={excess} ({of_used}/{of_limit}); allowed because enforcement is warn"
