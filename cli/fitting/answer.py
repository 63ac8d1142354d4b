"""The text that says what fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from cli import terminal
from cli.fitting.asking import Found
from cli.outcome import DONE, STALE, Denied
from cli.terminal import Column
from common.quota import resources
from common.quota.names import in_order
from seed.previews.objects import MACHINES
from seed.webhooks.fits import QuotaFits

TOGETHER = "Each object is asked by itself: together they may not fit."
NOBODY = (
    "nobody answers: the webhook is not in use in this cluster, or it does not ask about you; see "
    "`kubectl describe uc` on the seed"
)

Result = Literal["fits", "does not fit", "unlimited", "costs nothing more", "cannot be told"]

_STATUS: dict[Result, int] = {"does not fit": Denied.status, "cannot be told": STALE}


class Told(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of one object or what it makes. `fitting` of those that are asked for do, by every quota that denies."""

    object: str
    result: Result
    asked: int
    fitting: int
    quotas: Sequence[QuotaFits] = ()
    message: str = ""
    decision: str = ""
    notes: Sequence[str] = ()


def told(found: Found) -> Told:
    answer, note = found.answer, [found.note] if found.note else []
    if answer is None:
        if found.exists:
            return Told(object=found.what, result="costs nothing more", asked=0, fitting=0, notes=note)
        if found.group in MACHINES:
            return Told(
                object=found.what, result="cannot be told", asked=found.count, fitting=0, message=NOBODY, notes=note
            )
        return Told(object=found.what, result="unlimited", asked=found.count, fitting=found.count, notes=note)
    fitting = min(
        [0 if answer.code else answer.asked]
        if not answer.quotas
        else [answer.asked, *(each.fitting for each in answer.quotas if each.enforcement == "deny")]
    )
    undecided = answer.code == 503 or any(each.undecided and each.enforcement == "deny" for each in answer.quotas)
    result: Result = "fits"
    if undecided and not _short(answer.quotas):
        result = "cannot be told"
    elif answer.code or fitting < answer.asked:
        result = "does not fit"
    elif not answer.asked or (found.exists and not answer.quotas):
        result = "costs nothing more"
    elif not answer.quotas:
        result = "unlimited"
    return Told(
        object=found.what,
        result=result,
        asked=answer.asked,
        fitting=fitting,
        quotas=answer.quotas,
        message=answer.message,
        decision=answer.decision if answer.code else "",  # others are not kept
        notes=[*note, *answer.warnings],
    )


def _short(quotas: Sequence[QuotaFits]) -> bool:
    return any(each.need and not each.undecided and _lacking(each) for each in quotas if each.enforcement == "deny")


def status(found: Sequence[Told]) -> int:
    statuses = [_STATUS.get(each.result, DONE) for each in found]
    return Denied.status if Denied.status in statuses else max(statuses, default=DONE)


def lines(found: Sequence[Told], most: int | None) -> str:
    written = [line for each in found for line in (_line(each), *(f"  {note}" for note in each.notes))]
    if len(found) > 1 and sum(each.result == "fits" for each in found) > 1:
        written.append(TOGETHER)
    return "\n".join(terminal.wrapped(line, most, "  ") for line in written)


def _line(one: Told) -> str:
    explained = f" (decision {one.decision})" if one.decision and one.result == "does not fit" else ""
    head = f"{one.object}: {one.result}"
    match one.result:
        case "unlimited":
            return f"{one.object}: fits, no quota limits it here"
        case "costs nothing more":
            return head
        case "cannot be told":
            why = [each.undecided for each in one.quotas if each.undecided] or [one.message]
            return f"{head}: {'; '.join(why)}"
        case "fits":
            if one.asked > 1:
                head += f": {one.asked}"
            return f"{head}. {'; '.join(map(_quota, one.quotas))}"
    if not one.quotas:
        return f"{head}: {one.message}"
    of = f": {one.fitting or 'none'} of {one.asked} {'does' if one.fitting == 1 else 'do'}" if one.asked > 1 else ""
    return f"{head}{of}. {'; '.join(map(_quota, one.quotas))}{explained}"


def _quota(one: QuotaFits) -> str:
    if one.undecided:
        return f"{one.name}: cannot be told"
    lacking = _lacking(one)
    if not lacking:
        return f"{one.name}: fits"
    warns = ", which only warns" if one.enforcement == "warn" else ""
    kept = resources.text(resources.only(resources.parse(one.kept), sorted(name for name, _, _ in lacking)))
    others = f"; {kept} is guaranteed to other projects" if kept else ""
    return (
        f"{', '.join(f'{name}: need {need}, free {free}' for name, need, free in lacking)} ({one.name}{warns}{others})"
    )


def _lacking(one: QuotaFits) -> list[tuple[str, str, str]]:
    """Resource, need and free."""
    need, free = resources.parse(one.need), resources.parse(one.free)
    return [
        (name, *resources.shown(name, need[name], free.get(name, 0)))  # type: ignore[misc]
        for name in in_order(need)
        if need[name] > free.get(name, 0)
    ]


def table(found: Sequence[Told], most: int | None) -> str:
    """Every quota and resource: `-o wide`."""
    rows: list[tuple[str, ...]] = []
    for one in found:
        amounts = [cells for quota in one.quotas for cells in _amounts(quota)] or [("",) * 6]
        heads = [(one.object, one.result, f"{one.fitting}/{one.asked}"), *[("", "", "")] * (len(amounts) - 1)]
        rows += [(*head, *cells) for head, cells in zip(heads, amounts, strict=True)]
    names = ("OBJECT", "RESULT", "FITTING", "QUOTA", "RESOURCE", "NEED", "USED", "FREE", "LIMIT")
    return terminal.fit([Column(head, [row[at] for row in rows]) for at, head in enumerate(names)], most)[0]


def _amounts(quota: QuotaFits) -> list[tuple[str, ...]]:
    """Its name, and of each resource what is needed, used, free and the limit."""
    shown = f"{quota.name} (warns)" if quota.enforcement == "warn" else quota.name
    lists = [resources.parse(each) for each in (quota.need, quota.used, quota.free, quota.limits)]
    return [
        (shown, name, *resources.shown(name, *(each.get(name, 0) for each in lists))) for name in in_order(lists[0])
    ] or [(shown, "", "", "", "", "")]
