"""How often quotas refused, from what the agents of all seeds have counted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from common.api.refusal_counts import PART, CountedPart, RefusalCounts, part_of

MAX_KEPT = 100_000  # quotas of all replicas of agents together, each with what it was short of
ALL = ""
"""In the place of a resource: for whatever reason."""

Counts = dict[tuple[str, str], int]
"""By the uid of a quota and the resource that was short, or ALL. Only what was refused."""


class Refusals(NamedTuple):
    """Of one quota. `counts`: at least so many, by when a part begins, then by resource or ALL; without parts in which
    nothing is known to have been refused. `known`: the parts of which every agent told."""

    counts: Mapping[int, Mapping[str, int]]
    known: Collection[int]


class PartTold(NamedTuple):
    """Of the part that begins then. `counts`: at least so many. `whole`: it is all. `ended`: the part is over."""

    begin: int
    counts: Counts
    whole: bool
    ended: bool


class Lately(NamedTuple):
    """Of all quotas, since the part before that of now began. `counts`: at least so many, by the uid of a quota, for
    whatever reason. `whole`: it is all, up to when the agents were asked last."""

    since: int
    counts: Mapping[str, int]
    whole: bool


NOTHING_KNOWN = Refusals({}, ())


class RefusalTally:
    """The part of now and the one before, since this began. What a replica of an agent told last is what it counted;
    one that has ended keeps what it told."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str, str], CountedPart] = {}  # by part, seed and life of a replica
        self._kept = 0

    def take(self, seed: str, told: RefusalCounts, quotas: Collection[str], now: float) -> set[int]:
        """What a replica of the seed's agent told. `quotas`: uids of those that there are. Returns when the parts begin
        of which it told everything: it may have taken the place of a replica that ended in one of the others."""
        whole = set[int]()
        for part in told.parts:
            if part.begin not in current(now):
                continue
            known = {uid: found for uid, found in part.quotas.items() if uid in quotas}
            key = part.begin, seed, told.life
            before = self._told.get(key)
            more = len(known) - (len(before.quotas) if before is not None else 0)
            if more > 0 and self._kept + more > MAX_KEPT:
                continue
            self._kept += more
            self._told[key] = CountedPart(begin=part.begin, quotas=known)
            if told.since <= part.begin and not part.more:
                whole.add(part.begin)
        return whole

    def forget(self, now: float) -> None:
        for key in [key for key in self._told if key[0] not in current(now)]:
            self._kept -= len(self._told.pop(key).quotas)

    def counts(self, begin: int) -> Counts:
        """Of the part that begins then."""
        found: Counts = {}
        for (part, _, _), told in self._told.items():
            if part != begin:
                continue
            for uid, refused in told.quotas.items():
                for resource, count in ((ALL, refused.total), *refused.short.items()):
                    found[uid, resource] = found.get((uid, resource), 0) + count
        return found


def current(now: float) -> tuple[int, int]:
    """When the part of now begins, and the one before."""
    return part_of(now), part_of(now) - PART


def merged(before: Counts, after: Counts, most: int) -> tuple[Counts, bool]:
    """What is known of one part: the larger of both, since an agent that ended, or a master that began anew, knows
    less. At most so many, those of the quotas that refused most, as far as they fit; and whether that is all."""
    both = {key: max(before.get(key, 0), after.get(key, 0)) for key in before.keys() | after.keys()}
    if len(both) <= most:
        return both, True
    by_quota: dict[str, Counts] = {}
    for key, count in both.items():
        by_quota.setdefault(key[0], {})[key] = count
    chosen: Counts = {}
    for uid in sorted(by_quota, key=lambda uid: (-by_quota[uid].get((uid, ALL), 0), uid)):
        if len(chosen) + len(by_quota[uid]) <= most:  # one with too many names takes nothing from the others
            chosen |= by_quota[uid]
    return chosen, False


def kept(before: PartTold | None, after: PartTold, most: int) -> PartTold:
    """What is known of one part, with at most so many counts. All of it is known once every agent told it after its
    end, whatever is told later; but not where there are more counts than are kept."""
    if before is None:
        before = PartTold(after.begin, {}, whole=False, ended=False)
    counts, all_kept = merged(before.counts, after.counts, most)
    if not all_kept:
        return after._replace(counts=counts, whole=False)
    return (before if before.whole and before.ended else after)._replace(counts=counts)


def refusals(rows: Iterable[tuple[int, str, int]], known: Collection[int]) -> Refusals:
    """`rows`: of one quota: when a part begins, a resource or ALL, and how often."""
    counts: dict[int, dict[str, int]] = {}
    for begin, resource, count in rows:
        counts.setdefault(begin, {})[resource] = count
    return Refusals(counts, known)


def joined(one: Refusals, other: Refusals) -> Refusals:
    """Of one quota, from two who may each know less than the other."""
    counts: dict[int, dict[str, int]] = {}
    for part in (one.counts, other.counts):
        for begin, found in part.items():
            known = counts.setdefault(begin, {})
            for resource, count in found.items():
                known[resource] = max(known.get(resource, 0), count)
    return Refusals(counts, {*one.known, *other.known})
