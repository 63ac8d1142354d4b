"""A decision and its facts as JSON: what `GET /decisions` answers, and what is replayed from it. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from common.quota import resources
from common.quota.resources import ResourceList
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission.types import Attempt, Verdict

Quantities = dict[str, str]


class _Wire(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Absent fields are empty, and empty fields are not written."""


class Asked(_Wire):
    """What waiting requests had asked the master for by then, as far as they were short here."""

    number: int = 0
    first: Quantities = {}
    wanted: Quantities = {}


class Holder(_Wire):
    seed: str
    idle: Quantities = {}
    seconds: int = 0


class AccountRecord(_Wire):
    """This seed's part of the quota. `used` has what is counted and reserved, also what this decision reserved."""

    sequence: int = 0
    granted: Quantities = {}
    returned: Quantities = {}
    held: Quantities = {}
    used: Quantities = {}
    being_created: Quantities = {}
    free: Quantities = {}
    asked: Asked = msgspec.field(default_factory=Asked)


class QuotaRecord(_Wire):
    """One quota's part. `used` is the use by which it refused, or the last that the master had told, everywhere.

    `need`: what this quota counts of the object, where quotas count different parts of it. `limits` has surge, too.
    `lent`: what was taken instead of what is needed, since a rollout may use surge. `ahead`: it was taken from what the
    replica had reserved before. `note` is in `message`, beside the numbers.
    """

    name: str
    enforcement: Literal["deny", "warn"]
    admits: bool
    need: Quantities = {}
    limits: Quantities = {}
    used: Quantities = {}
    being_created: Quantities = {}
    reserved: bool = False
    lent: Quantities = {}
    ahead: bool = False
    waited: bool = False
    learning: bool = False
    draining: bool = False
    out_of_reach: list[Holder] = []
    account: AccountRecord | None = None  # none that could be used: not opened yet, or fenced
    code: int = 0
    reason: str = ""
    message: str = ""
    note: str = ""
    warnings: list[str] = []
    shown_as: str = ""  # in `message`, where people know no quota of this name


class Record(_Wire):
    """`consumer` is machine, cluster, allocation, machinedeployment or machineset; pod, service, persistentvolumeclaim,
    resourceclaim or object in a namespace. `object` is its namespace/name.

    `cluster` is the namespace/name of the UserCluster that it is in. `need` is that of all replicas that are asked for,
    and of several quotas that count different parts of an object the most that one of them counts.

    Times are RFC 3339.
    """

    decision: str
    time: str
    result: Literal["admitted", "refused"]
    duration_ms: float
    operation: str
    user: str = ""
    dry_run: bool = False
    consumer: str = ""
    cluster: str = ""
    object: str = ""
    uid: str = ""
    project: str = ""
    need: Quantities = {}
    code: int = 0
    reason: str = ""
    message: str = ""
    warnings: list[str] = []
    quotas: list[QuotaRecord] = []


def quota_records(found: Verdict) -> list[QuotaRecord]:
    shares = found.request.shares if found.request is not None else None
    return [
        _quota_record(attempt, found.decision, shares[attempt.snapshot.quota.name].amount if shares is not None else {})
        for attempt in found.attempts
    ]


def _quota_record(attempt: Attempt, decision: str, need: ResourceList) -> QuotaRecord:
    """`need`: of this quota alone."""
    quota, refusal = attempt.snapshot.quota, attempt.refusal
    numbers = refusal is not None and bool(refusal.used)
    used = refusal.used if refusal is not None and numbers else quota.global_usage
    creating = refusal.being_created if refusal is not None and numbers else quota.global_reserved
    taken = attempt.admitted.after if attempt.admitted is not None else None
    return QuotaRecord(
        name=quota.name,
        enforcement="deny" if quota.enforced else "warn",
        admits=refusal is None,
        need=_some(need),
        limits=resources.render(quota.ceilings),
        used=resources.render(resources.only(used, quota.ceilings)),
        being_created=_some(resources.only(creating, quota.ceilings)),
        reserved=taken is not None,
        lent=_some(taken.amount) if taken is not None and taken.replaces else {},
        ahead=attempt.ahead,
        waited=attempt.waited,
        learning=quota.learning,
        draining=quota.draining,
        out_of_reach=[
            Holder(seed=held.seed, idle=resources.render(held.idle), seconds=held.seconds)
            for held in quota.out_of_reach
        ],
        account=_account(attempt.snapshot),
        code=refusal.code if refusal is not None else 0,
        reason=refusal.cause if refusal is not None else "",
        message=refusal.message(decision) if refusal is not None else "",
        note=refusal.note if refusal is not None else "",
        warnings=list(attempt.warnings),
        shown_as=quota.shown_as,
    )


def _account(seen: QuotaSnapshot) -> AccountRecord | None:
    if not seen.open:
        return None
    return AccountRecord(
        sequence=seen.sequence,
        granted=resources.render(seen.granted),
        returned=_some(seen.returned),
        held=resources.render(seen.held),
        used=resources.render(seen.use),
        being_created=_some(seen.reserved),
        free=resources.render(seen.free),
        asked=Asked(number=seen.ask.number, first=_some(seen.ask.first), wanted=_some(seen.ask.wanted)),
    )


def _some(amounts: ResourceList) -> Quantities:
    return resources.render({name: amount for name, amount in amounts.items() if amount})
