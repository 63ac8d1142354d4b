"""What a request is told: verdicts, their HTTP codes and their texts (docs/protocol.md section 6). Pure.

The grammar is core's quota plugin's, since controllers match 403 and "exceeded quota" to back off; numbers always add
up: used + requested > limited. Whoever could be admitted a moment later gets 503 with a retry, which kubectl and
client-go follow by themselves; a true refusal never does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from common.api import account_waits
from common.api.types import OF_ALLOCATION, AccountWait
from common.quota import resources
from common.quota.resources import ResourceList

RETRY_SECONDS = 1
MAX_KNOWN = 32  # types in a message: of the catalogue, and of those that it lacks
SEE_COPIES, SEE_ALLOCATIONS = "kubectl get lsq -n", "kubectl get lsqa -n"
COPIES_OF_A_CLUSTER = "kube-system"
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as ULIDs are written
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


class Cause(msgspec.Struct, frozen=True):
    """For programs: status.details.causes."""

    reason: str
    message: str
    field: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why not. `code` 403 is final until something is deleted, 503 is worth a retry, 422 never succeeds.

    `quota` is the one that refuses, if one does; `used` and `being_created` are the numbers that it refuses by, `note`
    is what else the message says of them.
    """

    code: int
    reason: str
    message: str
    causes: Sequence[Cause] = ()
    retry_seconds: int = 0
    quota: str = ""
    used: ResourceList = {}
    being_created: ResourceList = {}
    note: str = ""

    @property
    def cause(self) -> str:
        """The reason in our own words: QuotaExceeded, QuotaUnavailable, MachineNotSized, ..."""
        return self.causes[0].reason if self.causes else self.reason


class Copy(Protocol):
    """A quota's copy on this seed, see `seed.model.quota.Quota`."""

    @property
    def name(self) -> str: ...
    @property
    def published_wait(self) -> AccountWait | None: ...


def decision_id() -> str:
    """Eight characters to find one decision by; random, since nothing orders decisions of several replicas."""
    number = random.getrandbits(40)
    return _PAIRS[number >> 30] + _PAIRS[number >> 20 & 1023] + _PAIRS[number >> 10 & 1023] + _PAIRS[number & 1023]


def exceeded(
    quota: str,
    need: ResourceList,
    used: ResourceList,
    limits: ResourceList,
    being_created: ResourceList,
    decision: str,
    *,
    note: str = "",
    objects: str = "machines",
) -> Refusal:
    """Every resource that fails is named. `being_created` is the part of `used` that no object shows yet.

    `objects`: what the quota counts, beside clusters.
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
    message = f"exceeded quota: {quota}, {', '.join(parts)}; short by {short}"
    if note:
        message += f"; {note}"
    if created:
        what = "clusters" if set(creating) == {"clusters"} else objects
        message += f"; {created} of used is {what} being created"
    if any(need[name] > limits[name] for name in over):
        hope = "it can never fit: the request is larger than the limit"
    elif all(creating.get(name, 0) >= amount for name, amount in over.items()):
        hope = "retrying helps after something is deleted, or if what is being created fails"
    else:
        hope = "retrying helps only after something is deleted"
    message += f"; {hope}; decision {decision}"
    causes = [
        Cause(
            reason="QuotaExceeded",
            message=_cause(_amounts_of(name, failing | {"being created": creating}), name),
            field=name,
        )
        for name in sorted(over)
    ]
    return Refusal(
        code=403,
        reason="Forbidden",
        message=message,
        causes=causes,
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


def unavailable(quota: str, why: str, decision: str) -> Refusal:
    return Refusal(
        code=503,
        reason="ServiceUnavailable",
        message=f"quota {quota} cannot decide: {why}; decision {decision}",
        causes=[Cause(reason="QuotaUnavailable", message=why)],
        retry_seconds=RETRY_SECONDS,
        quota=quota,
    )


def not_open(quota: Copy, why: str, decision: str) -> Refusal:
    """`why`: where the leader does not say what the account waits for. Sources are not named: they may be clusters of
    other tenants."""
    wait = quota.published_wait
    return unavailable(quota.name, why if wait is None else not_open_yet(wait), decision)


def not_open_yet(wait: AccountWait) -> str:
    return f"its account is not open yet: it {account_waits.text(wait, named=False)}"


def too_often(per_second: int) -> Refusal:
    """Before it was looked at."""
    why = f"this cluster asks SeedQuota too often: more than {per_second} requests in a second"
    return Refusal(
        code=503,
        reason="ServiceUnavailable",
        message=f"{why}; try again",
        causes=[Cause(reason="TooManyRequests", message=why)],
        retry_seconds=RETRY_SECONDS,
    )


def taken(quota: str, decision: str) -> Refusal:
    """What is being replaced by a rollout, or replaces, cannot be claimed again."""
    why = f"quota {quota}: the machine is part of a rollout that is under way; change it once that has ended"
    return Refusal(
        code=409,
        reason="Conflict",
        message=f"{why}; decision {decision}",
        causes=[Cause(reason="RolloutUnderWay", message=why)],
    )


def already_exists(resource: str, name: str) -> Refusal:
    """In the API server's own words, which would be the answer."""
    why = f'{resource} "{name}" already exists'
    return Refusal(code=409, reason="AlreadyExists", message=why, causes=[Cause(reason="AlreadyExists", message=why)])


def occupied(quota: str, under: ResourceList, decision: str) -> Refusal:
    """Of surge, though some may be left: it has no numbers that add up, so `beyond_surge` adds those of the limit."""
    why = f"{resources.text(under)} is taken by use beyond what this seed holds, and no more is lent until that is gone"
    return Refusal(code=403, reason="Forbidden", message=f"quota {quota}: {why}; decision {decision}", note=why)


def beyond_surge(refused: Refusal, on_surge: Refusal) -> Refusal:
    """A rollout's machine that neither the limit nor the surge has room for."""
    if on_surge.code != 403:
        return on_surge
    if on_surge.note:
        return msgspec.structs.replace(
            refused, message=f"{refused.message}; its rollout may not use surge now: {on_surge.note}"
        )
    surge = "; ".join(cause.message for cause in on_surge.causes)
    return msgspec.structs.replace(
        refused,
        message=f"{refused.message}; its rollout may use surge, but of that too: {surge}",
        causes=[*refused.causes, *on_surge.causes],
    )


def not_specified(quota: str, lacking: str, decision: str) -> Refusal:
    """Core's own words: controllers and people know them."""
    text = f"failed quota: {quota}: {lacking}"
    return Refusal(
        code=403,
        reason="Forbidden",
        message=f"{text}; decision {decision}",
        causes=[Cause(reason="NotSpecified", message=lacking, field="spec")],
        quota=quota,
    )


def with_copies(refusal: Refusal, decision: str, namespace: str = COPIES_OF_A_CLUSTER) -> Refusal:
    """Where LocalResourceQuotas and LocalResourceQuotaAllocations are in that namespace, see seed/projections."""
    if refusal.cause != "QuotaExceeded":
        return refusal
    end = f"; decision {decision}"
    see = SEE_ALLOCATIONS if refusal.quota.startswith(OF_ALLOCATION) else SEE_COPIES
    message = refusal.message.replace(end, f"; see: {see} {namespace}{end}", 1)
    return msgspec.structs.replace(refusal, message=message)


def not_sized(text: str, decision: str) -> Refusal:
    message = f"{text}; decision {decision}"
    return Refusal(
        code=422,
        reason="Invalid",
        message=message,
        # kubectl prints the causes of a 422 and nothing else
        causes=[Cause(reason="MachineNotSized", message=message, field="spec.providerSpec")],
    )


def not_sized_now(text: str, decision: str) -> Refusal:
    """The cloud that knows the size does not say it now."""
    return Refusal(
        code=503,
        reason="ServiceUnavailable",
        message=f"{text}; decision {decision}",
        causes=[Cause(reason="MachineNotSized", message=text, field="spec.providerSpec")],
        retry_seconds=RETRY_SECONDS,
    )


def forged(decision: str) -> Refusal:
    text = "annotation seedquota.io/footprint is written by SeedQuota only"
    return Refusal(
        code=403,
        reason="Forbidden",
        message=f"{text}; decision {decision}",
        causes=[Cause(reason="FootprintForged", message=text, field="metadata.annotations[seedquota.io/footprint]")],
    )


def unknown_project(project: str, what: str, decision: str) -> Refusal:
    text = (
        f"project {project} is unknown: this seed has no Project of that name and no quota for it; an administrator"
        f" must create the Project on the master before the {what} can be created"
    )
    return Refusal(
        code=403,
        reason="Forbidden",
        message=f"{text}; decision {decision}",
        causes=[Cause(reason="UnknownProject", message=text)],
    )


def limits_missing(project: str) -> str:
    """Why it cannot be decided yet."""
    return f"what limits project {project} has not come from the master, or there is no such Project"


def unknown_types(unknown: Sequence[tuple[int, str]], known: Sequence[str], decision: str) -> Refusal:
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
    message = f"{text}; decision {decision}"
    causes = [
        # kubectl prints the causes of a 422 and nothing else
        Cause(reason="UnknownResourceType", message=message, field=f"spec.resources[{place}].type")
        for place, _ in told
    ]
    return Refusal(code=422, reason="Invalid", message=message, causes=causes)


def misplaced(text: str, field: str, decision: str) -> Refusal:
    """Of an Allocation that is not in the namespace of its organization, or whose project is another's."""
    return Refusal(
        code=403,
        reason="Forbidden",
        message=f"{text}; decision {decision}",
        causes=[Cause(reason="AllocationMisplaced", message=text, field=field)],
    )


def lost(decision: str) -> Refusal:
    """For good: a lost seed never comes back."""
    text = "this seed was declared lost: what it held is given to other seeds, and it admits nothing more"
    return Refusal(
        code=403,
        reason="Forbidden",
        message=f"{text}; decision {decision}",
        causes=[Cause(reason="SeedLost", message=text)],
    )


def canary() -> Refusal:
    """A dry run that is refused to see that it is (seed/registration/probe.py)."""
    text = "this is a canary: it is refused so that whoever sent it sees that Machines are checked here"
    return Refusal(code=403, reason="Forbidden", message=text, causes=[Cause(reason="CanaryDenied", message=text)])


def age(seconds: int) -> str:
    """As kubectl shows ages: 40s, 7m, 3h, 2d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size or (unit != "d" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def near_limit(quota: str, used: ResourceList, limits: ResourceList, warn_at_percent: int) -> str | None:
    """A warning for an admitted request that leaves little room; the fullest resource is named."""
    fullest = max(
        ((used.get(name, 0) * 100 // limit, name) for name, limit in limits.items() if limit > 0), default=(0, "")
    )
    percent, name = fullest
    if percent < warn_at_percent:
        return None
    of_used, of_limit = resources.alike(name, used.get(name, 0), limits[name])
    return f"seedquota/{quota}: {name} {of_used}/{of_limit} ({percent}%) after this"


def not_specified_allowed(quota: str, lacking: str) -> str:
    """A warning where the quota only warns."""
    return f"seedquota/{quota}: {lacking}; allowed because enforcement is warn"


def over_allowed(quota: str, over: ResourceList, used: ResourceList, limits: ResourceList) -> str:
    """A warning where the quota only warns: what a refusal would have said."""
    name = min(over)
    excess, of_used, of_limit = resources.alike(name, over[name], used.get(name, 0), limits[name])
    return f"seedquota/{quota}: over by {name}={excess} ({of_used}/{of_limit}); allowed because enforcement is warn"
