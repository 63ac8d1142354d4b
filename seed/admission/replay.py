"""A recorded decision made again by the code that made it, and what would have made it fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from common.quota import resources
from common.quota.account import Account, Admitted, Reservation, Short
from common.quota.reservations import Reserving
from common.quota.resources import ResourceList
from seed.admission import denial
from seed.admission.record import AccountRecord, QuotaRecord, Record


class QuotaReplay(msgspec.Struct, kw_only=True, rename="camel"):
    """`result` is what comes out now; `cure` says what would have made it fit, and is empty where it does."""

    name: str
    result: str
    as_then: bool
    cure: str = ""


class Replay(msgspec.Struct, kw_only=True, rename="camel"):
    as_then: bool
    quotas: list[QuotaReplay] = []


def replay(record: Record) -> Replay:
    """Raises QuantityError for a record with an amount that is none."""
    need = resources.parse(record.need)
    quotas = [_replay(record, quota, need) for quota in record.quotas]
    return Replay(as_then=all(quota.as_then for quota in quotas), quotas=quotas)


def _replay(record: Record, quota: QuotaRecord, need: ResourceList) -> QuotaReplay:
    """`need`: of the quotas that tell of none of their own."""
    need = resources.parse(quota.need) if quota.need else need
    if quota.admits:
        return _admitted(record, quota, need)
    if quota.code == 403:
        return _exceeded(record, quota, need)
    return _undecided(record, quota, need)


def _admitted(record: Record, quota: QuotaRecord, need: ResourceList) -> QuotaReplay:
    account = quota.account
    if not quota.reserved:
        over = resources.over_limit(need, _used(quota), resources.parse(quota.limits))
        if over and quota.enforcement == "warn":
            result = f"over by {resources.text(over)}, admitted because enforcement is warn"
        else:
            result = "admitted, and nothing reserved"
        return QuotaReplay(name=quota.name, result=result, as_then=not over or quota.enforcement == "warn")
    taken = resources.parse(quota.lent) if quota.lent else need
    if account is None:
        return QuotaReplay(name=quota.name, result="refused: there is no account", as_then=False)
    # What the account used has this decision in it, and may have others that shared its write.
    before = resources.subtract(resources.parse(account.used), taken)
    outcome = Reserving(_account(account, before), resources.parse(quota.limits)).claim(
        record.uid, Reservation(source=record.cluster, object=record.object, amount=taken)
    )
    if isinstance(outcome, Admitted):
        return QuotaReplay(name=quota.name, result="admitted", as_then=True)
    missing = resources.text(outcome.missing) if isinstance(outcome, Short) else ""
    return QuotaReplay(name=quota.name, result=f"refused: short by {missing}", as_then=False)


def _exceeded(record: Record, quota: QuotaRecord, need: ResourceList) -> QuotaReplay:
    used, limits = _used(quota), resources.parse(quota.limits)
    over = resources.over_limit(need, used, limits)
    if not over:
        return QuotaReplay(name=quota.name, result="admitted", as_then=False)
    creating = resources.parse(quota.being_created)
    said = denial.exceeded(
        quota.name,
        need,
        used,
        limits,
        creating,
        note=quota.note,
        objects=f"{_thing(record, quota)}s",
        shown_as=quota.shown_as,
    ).message(record.decision)
    # Where a rollout could have used surge, what is short of that follows.
    return QuotaReplay(
        name=quota.name,
        result=f"refused: short by {resources.text(over)}",
        as_then=quota.message.startswith(said),
        cure=cure(need, used, limits, _thing(record, quota)),
    )


def _undecided(record: Record, quota: QuotaRecord, need: ResourceList) -> QuotaReplay:
    account = quota.account
    if account is None:
        result, fits = "not decided: the account here does not admit", "when the account is open again"
        return QuotaReplay(name=quota.name, result=result, as_then=True, cure=f"fits {fits}")
    limits = resources.parse(quota.limits)
    reservation = Reservation(source="", object="", amount=need)
    outcome = Reserving(_account(account, resources.parse(account.used)), limits).claim("", reservation)
    if not isinstance(outcome, Short):
        return QuotaReplay(
            name=quota.name,
            result="not decided, though there is room here",
            as_then=True,
            cure="fits when it is tried again",
        )
    missing = resources.text(outcome.missing)
    over = resources.over_limit(need, _used(quota), limits)
    return QuotaReplay(
        name=quota.name,
        result=f"not decided: this seed is short by {missing}",
        as_then=True,
        cure=cure(need, _used(quota), limits, _thing(record, quota))
        if over
        else f"fits if {missing} is freed on this seed, or {_when(quota)}",
    )


def _when(quota: QuotaRecord) -> str:
    """Who could have brought what others have free."""
    if quota.out_of_reach:
        held = ", ".join(f"{holder.seed} ({_text(holder.idle)} free there)" for holder in quota.out_of_reach)
        return f"when the master reaches seed {held}"
    if quota.draining:
        return "on a seed that is not draining"
    if quota.learning:
        return "when the master has learned what each seed holds"
    return "when the master answers"


def cure(need: ResourceList, used: ResourceList, limits: ResourceList, thing: str = "machine") -> str:
    """What would make it fit: how much is to be freed, or how high the limit is to be; and what fits as it is."""
    over = resources.over_limit(need, used, limits)
    room = {name: max(limits[name] - used.get(name, 0), 0) for name in sorted(need) if need[name] and name in limits}
    total = {name: used.get(name, 0) + need[name] for name in over}
    short, wanted, most = resources.texts(over, total, room)
    enough = all(need[name] <= limits[name] for name in over)
    freed = f"{short} is freed or " if enough else ""
    if all(room.values()):
        article = "an" if thing in ("object", "allocation") else "a"
        smaller = f"{article} {thing} of at most {most} fits now"
    else:
        without = ", ".join(name for name, amount in room.items() if not amount)
        smaller = f"no {thing} that needs {without} fits now"
    return f"fits if {freed}the limit is raised to {wanted}; {smaller}"


def text(record: Record, found: Replay) -> list[str]:
    """For people, a line each. Raises QuantityError for a record with an amount that is none."""
    said = f" ({record.code} {record.reason})" if record.code else ""
    dry = ", dry run" if record.dry_run else ""
    of = f" of {record.cluster}" if record.cluster else ""
    lines = [
        f"decision {record.decision} of {record.time}: {record.result}{said} in {record.duration_ms:g} ms{dry}",
        f"{record.consumer} {record.object}{of}, {record.operation} by {record.user}",
    ]
    if record.message:
        lines.append(f"said: {record.message}")
    lines.extend(f"warned: {warning}" for warning in record.warnings)
    if record.need:
        lines.append(f"needs: {_text(record.need)}")
    if record.project and not record.quotas and record.result == "admitted":
        lines.append(f"no quota limits project {record.project}")
    for quota, again in zip(record.quotas, found.quotas, strict=True):
        lines.extend(_quota(quota, again))
    return lines


def _quota(quota: QuotaRecord, again: QuotaReplay) -> list[str]:
    result = "admitted" if quota.admits else f"{quota.code} {quota.reason}"
    account = quota.account
    here = account or AccountRecord()
    limits, used, creating, used_here, creating_here, held, free, wanted = _alike(
        quota.limits,
        quota.used,
        quota.being_created,
        here.used,
        here.being_created,
        here.held,
        here.free,
        here.asked.wanted,
    )
    lines = [
        f"{quota.shown_as or f'seedquota/{quota.name}'} ({quota.enforcement}): {result}",
        *([f"  needs: {_text(quota.need)}"] if quota.need else []),
        f"  limited: {limits}",
        f"  used everywhere: {used}{_creating(quota.being_created, creating)}",
    ]
    if account is None:
        lines.append("  here: the account does not admit")
    else:
        included = ", this one included" if quota.reserved else ""
        lines.append(f"  used here{included}: {used_here}{_creating(account.being_created, creating_here)}")
        lines.append(f"  held here: {held}; free: {free}; write {account.sequence}")
        if quota.waited:
            lines.append(f"  the master was asked for {wanted} (ask {account.asked.number})")
    if quota.ahead:
        lines.append("  taken from what the replica had reserved ahead")
    if quota.lent:
        lines.append(f"  on surge: {_text(quota.lent)}")
    lines.append(f"  replayed: {again.result}{'' if again.as_then else '; NOT as then'}")
    if again.cure:
        lines.append(f"  {again.cure}")
    return lines


def _creating(amounts: Mapping[str, str], text: str) -> str:
    return f", {text} of it being created" if amounts else ""


def _alike(*lists: Mapping[str, str]) -> list[str]:
    """Each as `_text` writes it, but all amounts of a resource in one unit."""
    return [text or "nothing" for text in resources.texts(*map(resources.parse, lists))]


def _text(amounts: Mapping[str, str]) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(amounts.items())) or "nothing"


def _thing(record: Record, quota: QuotaRecord) -> str:
    if record.consumer == "allocation":
        return "allocation"
    return "object" if quota.need else "machine"


def _used(quota: QuotaRecord) -> ResourceList:
    return resources.parse(quota.used)


def _account(account: AccountRecord, used: ResourceList) -> Account:
    return Account(
        incarnation="",
        granted=resources.parse(account.granted),
        returned=resources.parse(account.returned),
        used={"": used},
    )
