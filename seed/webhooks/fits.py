"""The answer to a dry run that asks how many of an object fit (seed/admission/fits.py). Pure.

An API server hands on nothing but a refusal, so this is one, whose cause is the answer for programs. It says what a
refusal and a LocalResourceQuota say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from common.api.convert import wire_quantities
from common.api.types import Quantities
from common.quota import resources
from common.quota.resources import ResourceList
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission.refusal import Cause, Refusal
from seed.admission.types import Attempt, Verdict
from seed.webhooks import scale_advice
from seed.webhooks.scale_advice import Asked

REASON = "Fits"
"""Of the cause whose message is a Fits as JSON."""


class QuotaFits(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """One quota's part. `need` is that of all that are asked for. `kept`: of `used`, what is guaranteed to other
    projects, which do not use it. `undecided`: why it cannot be told now."""

    name: str
    enforcement: Literal["deny", "warn"]
    fitting: int
    need: Quantities = {}
    used: Quantities = {}
    kept: Quantities = {}
    free: Quantities = {}
    limits: Quantities = {}
    undecided: str = ""


class Fits(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """`project`: whose it is. `asked`: how many more, of which no quota that it names lets more than its `fitting`.
    `code`, `reason` and `message` are those of the refusal, if it would be one."""

    decision: str
    asked: int
    project: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    warnings: list[str] = []
    quotas: list[QuotaFits] = []


def of_verdict(verdict: Verdict, count: int) -> Fits:
    """`verdict`: about all of them together."""
    refusal = verdict.refusal
    return Fits(
        decision=verdict.decision,
        asked=count,
        project=_project(verdict),
        code=refusal.code if refusal is not None else 0,
        reason=refusal.cause if refusal is not None else "",
        message=verdict.message,
        warnings=list(verdict.warnings),
        quotas=[_of_attempt(verdict, attempt, count) for attempt in verdict.attempts],
    )


def of_scale(asked: Asked, size: ResourceList, seen: Iterable[QuotaSnapshot], project: str, decision: str) -> Fits:
    """`size`: what one Machine costs."""
    seen = list(seen)
    rooms = [scale_advice.room_of(quota, project) for quota in seen]
    advice = scale_advice.advise(asked, size, rooms, deny=False)
    need = scale_advice.all_replicas(asked, size)
    return Fits(
        decision=decision,
        asked=asked.more,
        project=project,
        warnings=[advice.warning] if advice.warning else [],
        quotas=[_of_quota(quota, project, need, size, asked.more) for quota in seen],
    )


def refused(found: Fits) -> Refusal:
    answer = msgspec.json.encode(found).decode()
    return Refusal(
        code=403,
        text="this dry run asks what fits: it is answered and not admitted",
        causes=[Cause(reason=REASON, message=answer)],
    )


def read(text: str) -> Fits:
    """Raises msgspec.MsgspecError."""
    return msgspec.json.decode(text, type=Fits)


def _of_attempt(verdict: Verdict, attempt: Attempt, count: int) -> QuotaFits:
    assert verdict.request is not None, "nothing is attempted without a request"
    need = verdict.request.of(attempt.snapshot.quota.name).need
    size = {name: amount // count for name, amount in need.items()}
    refusal = attempt.refusal
    exceeded = refusal is not None and refusal.cause == "QuotaExceeded"
    used = refusal.used if refusal is not None and exceeded else None
    found = _of_quota(attempt.snapshot, verdict.request.consumer.project, need, size, count, used)
    if refusal is not None and not exceeded:
        found.fitting, found.undecided = 0, refusal.message(verdict.decision)
    elif refusal is None and attempt.snapshot.quota.enforced:
        found.fitting = count  # what this seed holds does, whatever the master has shown of others
    return found


def _project(verdict: Verdict) -> str:
    return verdict.request.consumer.project if verdict.request is not None else ""


def _of_quota(
    seen: QuotaSnapshot,
    project: str,
    need: ResourceList,
    size: ResourceList,
    count: int,
    used: ResourceList | None = None,
) -> QuotaFits:
    """`used`: by which it refuses."""
    room = scale_advice.room_of(seen, project)
    if used is not None:
        # What is used here alone may be enough to refuse, and then has nothing that is kept.
        room = msgspec.structs.replace(room, used=resources.maximum(room.used, used) if room.kept else used)
    names = [name for name in sorted(need) if name in room.limits and need[name] > 0]
    return QuotaFits(
        name=room.quota,
        enforcement="deny" if room.enforced else "warn",
        fitting=min([count, *scale_advice.fitting(room, size).values()]),
        need=wire_quantities(resources.only(need, names)),
        used=wire_quantities({name: room.used.get(name, 0) for name in names}),
        kept=wire_quantities(resources.only(room.kept, names)),
        free=wire_quantities(resources.only(scale_advice.free(room), names)),
        limits=wire_quantities(resources.only(room.limits, names)),
    )
