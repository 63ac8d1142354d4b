"""What a seed will need next of one quota, learned from what its reports show. Pure.

The master keeps one `Demand` per quota and seed in memory. It serves comfort and fairness only: a master that begins
anew learns it again, and until then calls nothing home and tops nobody up. Times are whole milliseconds of the
master's own monotonic clock; they are passed in.
"""

from __future__ import annotations

import msgspec

from common.quota import resources
from common.quota.account import Ask
from common.quota.resources import ResourceList

HALF_LIFE = 30_000  # after which half of a rise or fall of use is forgotten
FORGOTTEN_SHARE = 2**20  # ... and all of it once it is less than 1/FORGOTTEN_SHARE of the limit
USUAL_FOR = 600_000  # for so long the largest machine that was asked for stays the usual one
SHARES = 1_000_000_000_000


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """`machine` is the largest usual machine, `peak` and `trough` between them what use has moved through lately.

    `held_at` is when capacity last came or went, `asked_at` since when the ask `asked` waits, if it does.
    """

    machine: ResourceList = {}
    machine_at: int = 0
    peak: ResourceList = {}
    trough: ResourceList = {}
    since: int = 0  # peak and trough are as of then
    held: ResourceList = {}
    held_at: int = 0
    asked: int = 0
    asked_at: int = 0

    def recent(self, use: ResourceList) -> dict[str, int]:
        """By how much use rose and fell lately: what it grew by may come again, what it fell by may come back."""
        return resources.add(lacking(self.peak, use), self.grown(use))

    def grown(self, use: ResourceList) -> dict[str, int]:
        return lacking(use, self.trough)

    def headroom(self, use: ResourceList) -> dict[str, int]:
        return resources.add(self.machine, self.recent(use))


def learn(
    known: Demand | None,
    limits: ResourceList,
    *,
    held: ResourceList,
    use: ResourceList,
    ask: Ask,
    answered: int,
    now: int,
) -> Demand:
    """Take up what a decision sees of a seed, before it and with its `now`.

    Nothing changes, and it may be left out, where report and holding are the same as last time and `now` is less than
    HALF_LIFE after `since`. A seed that begins another life goes on with what is known.
    """
    use, held = resources.only(use, limits), resources.only(held, limits)
    if known is None:
        known = Demand(peak=use, trough=use, since=now, held=held, held_at=now)
    changed: dict[str, object] = {}
    halves = (now - known.since) // HALF_LIFE
    if halves or lacking(use, known.peak) or lacking(known.trough, use):
        risen, fallen = lacking(use, known.trough), lacking(known.peak, use)
        changed["peak"] = resources.add(use, _faded(fallen, halves, limits))
        changed["trough"] = resources.subtract(use, _faded(risen, halves, limits))
        changed["since"] = known.since + halves * HALF_LIFE
    if held != known.held:
        changed["held"], changed["held_at"] = held, now
    if ask.number != known.asked:
        changed["asked"] = ask.number
        waits_already = answered < known.asked <= ask.number
        if not waits_already:
            changed["asked_at"] = now
        first = positive(resources.only(ask.first, limits))
        larger = share(first, limits) >= share(known.machine, limits)
        if first and (larger or now - known.machine_at > USUAL_FOR):
            changed["machine"], changed["machine_at"] = first, now
    changed = {name: value for name, value in changed.items() if value != getattr(known, name)}
    return msgspec.structs.replace(known, **changed) if changed else known


def _faded(amounts: ResourceList, halves: int, limits: ResourceList) -> dict[str, int]:
    """In whole steps: what a seed holds beyond that is recalled, so this is what it holds then."""
    if not halves:
        return dict(amounts)
    faded = {}
    for name, amount in amounts.items():
        limit, half = limits.get(name, 0), amount >> halves
        half -= half % resources.step(name, limit)
        if half > limit // FORGOTTEN_SHARE:
            faded[name] = half
    return faded


def share(use: ResourceList, limits: ResourceList, weight: int = 1) -> int:
    """The dominant share, of SHARES: the largest part of any limit that is used. What weighs in max-min."""
    return max((use.get(name, 0) * SHARES // (limit * weight) for name, limit in limits.items() if limit), default=0)


def positive(amounts: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount > 0}


def lacking(need: ResourceList, there: ResourceList) -> dict[str, int]:
    """What of `need` is not there."""
    return {name: more for name, amount in need.items() if (more := amount - there.get(name, 0)) > 0}


def times(vector: ResourceList, room: ResourceList) -> int:
    """How many whole vectors fit into the room."""
    return min((max(room.get(name, 0), 0) // amount for name, amount in vector.items() if amount > 0), default=0)


def scaled(vector: ResourceList, count: int) -> dict[str, int]:
    return {name: amount * count for name, amount in vector.items()}
