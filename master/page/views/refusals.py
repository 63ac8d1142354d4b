"""How often quotas refused: in the last hours, and in the last thirty days in words and below plots. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from master.cache.objects import MasterQuota
from master.history.forecast import DAY
from master.history.refusals import ALL, Lately, Refusals
from master.history.store import BUCKET
from master.page.plots.line import DAYS, Span

PARTS = int(DAYS * DAY) // BUCKET
HOUR = 3600
NAMED = 5  # quotas


class RefusedLately(NamedTuple):
    """`since`: empty: nothing is known. `quotas`: that refused most, with how often, at least; `omitted`: how many
    others did. `whole`: it is all."""

    since: str
    quotas: Sequence[tuple[str, int]]
    omitted: int
    whole: bool


def lately(found: Lately | None, quotas: Iterable[MasterQuota]) -> RefusedLately:
    """Of the last hours, for whoever may see all quotas."""
    unknown = RefusedLately("", (), 0, whole=False)
    if found is None:
        return unknown
    refused = [quota.metadata for quota in quotas if quota.metadata.uid in found.counts]
    counts = sorted(((each.name, found.counts[each.uid]) for each in refused), key=lambda line: (-line[1], line[0]))
    if not (counts or found.whole):
        return unknown
    return RefusedLately(f"{_time(found.since)} UTC", counts[:NAMED], len(counts) - len(counts[:NAMED]), found.whole)


def of_resource(refusals: Refusals, resource: str) -> dict[int, int]:
    """How often, at least, by when a part begins. `resource`: that was short, or ALL."""
    return {begin: counts[resource] for begin, counts in refusals.counts.items() if resource in counts}


def said(counts: dict[int, int]) -> str:
    """Empty: none is known."""
    if not counts:
        return ""
    total, days = sum(counts.values()), len({int(begin // DAY) for begin in counts})
    times = "once" if total == 1 else f"{total:,} times"
    where = "" if days == 1 else f"{days} days, last "
    return f"refused at least {times} on {where}{_day(max(counts))}"


def sentence(refusals: Refusals, now: datetime) -> str:
    """For whatever reason, and of how much of the time every refusal is known."""
    begin = now.timestamp() - DAYS * DAY
    parts = sum(1 for each in refusals.known if each + BUCKET > begin)
    counted = said(of_resource(refusals, ALL))
    if not counted:
        if not parts:
            return "Whether anything was refused is not known."
        return f"Nothing was refused in the {_length(parts)} of which all refusals are known."
    first = f"{counted[0].upper()}{counted[1:]}."
    return f"{first} All refusals are known of {_length(parts)}." if parts else f"{first} There may be others."


def _length(parts: int) -> str:
    hours = min(parts, PARTS) * BUCKET // HOUR
    return f"{hours // 24} days" if hours >= 48 else f"{hours} hours"


def spans(refusals: Refusals, counts: dict[int, int], now: datetime) -> list[Span]:
    """What was refused, and when not all of that is known; nothing where nothing is known of any time."""
    if not (refusals.counts or refusals.known):
        return []
    last = int(now.timestamp()) // BUCKET * BUCKET
    every = range(last - PARTS * BUCKET, last + BUCKET, BUCKET)
    complete = frozenset(refusals.known)
    found = []
    for begin, end in _together(every, lambda each: each not in complete and each not in counts):
        found.append(Span(begin, end, "refused-unknown", f"refusals not known, {_time(begin)} to {_time(end)}"))
    for begin, end in _together(every, lambda each: each in counts):
        total = sum(counts.get(each, 0) for each in range(begin, end, BUCKET))
        found.append(Span(begin, end, "refused", f"at least {total:,} refused, {_time(begin)} to {_time(end)} UTC"))
    return found


def _together(every: Iterable[int], holds: Callable[[int], bool]) -> list[tuple[int, int]]:
    """The longest spans of which it holds."""
    found: list[tuple[int, int]] = []
    for begin in every:
        if not holds(begin):
            continue
        if found and found[-1][1] == begin:
            found[-1] = found[-1][0], begin + BUCKET
        else:
            found.append((begin, begin + BUCKET))
    return found


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%b %-d")


def _time(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%b %-d %H:%M")
