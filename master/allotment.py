"""Who gets what is left: the policy, apart from the protocol (docs/protocol.md section 3). Pure.

One snapshot of a quota in, one decision out, in numbered steps. The protocol (`common.grants`) keeps the sum within
the limit whatever is decided here; this file decides what is useful:

1. use that nobody admitted is covered by a grant, even past the limit,
2. whoever asks gets what the pool has, in whole machine vectors, with some to spare so that it need not ask each time,
3. where the pool is short but others hold enough idle capacity, that is recalled, from those who do not ask first,
4. an ask is answered once it got something, or once use leaves no room for it (then the seed refuses with numbers
   that add up), or once the only room is held by seeds out of reach. Until then its requests wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common import resources
from common.account import Ask
from common.resources import ResourceList

SPARE_SHARE = 2  # a seed that asks gets at most 1/(SPARE_SHARE * askers) of the pool beyond what it needs now
SPARE_PER_WAITING = 16  # ... and at most this many more machines for each that waits


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One seed at the table. `use` is counted and reserved, from the same report as `ask`."""

    seed: str
    held: ResourceList
    use: ResourceList
    ask: Ask = Ask()
    answered: int = 0
    reachable: bool = True
    draining: bool = False

    @property
    def asking(self) -> bool:
        return self.ask.number > self.answered


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity that nobody uses but nobody can recall: its holder is out of reach."""

    seed: str
    idle: ResourceList


class Allotment(msgspec.Struct, frozen=True, kw_only=True):
    """`grants` adds to G, `recalls` asks for that much idle capacity back, `answered` raises the number answered."""

    grants: Mapping[str, ResourceList]
    recalls: Mapping[str, ResourceList]
    answered: Mapping[str, int]
    unavailable: Mapping[str, Sequence[Idle]]


def allot(limits: ResourceList, seats: Sequence[Seat], *, learning: bool = False) -> Allotment:
    """Decide for one quota. A learning master grants nothing and answers nothing; it still covers what is used."""
    table = _Table(limits, seats)
    table.cover()
    if not learning:
        asking = [seat for seat in seats if seat.asking and not seat.draining]
        # The one that uses least comes first (max-min).
        asking.sort(key=lambda seat: (share(seat.use, limits), seat.seed))
        for place, seat in enumerate(asking):
            table.serve(seat, asking[:place], len(asking))
        table.call_home()
    return Allotment(grants=table.grants, recalls=table.recalls, answered=table.answered, unavailable=table.unavailable)


class _Table:
    """One decision in the making: what the pool and each seat still have, and what was decided so far."""

    def __init__(self, limits: ResourceList, seats: Sequence[Seat]) -> None:
        self.grants: dict[str, ResourceList] = {}
        self.recalls: dict[str, ResourceList] = {}
        self.answered: dict[str, int] = {}
        self.unavailable: dict[str, Sequence[Idle]] = {}
        self._limits = limits
        self._seats = seats
        self._room = resources.subtract(limits, resources.total(self._limited(seat.use) for seat in seats))
        self._pool = resources.subtract(limits, resources.total(self._limited(seat.held) for seat in seats))
        self._idle = {
            seat.seed: positive(resources.subtract(self._limited(seat.held), self._limited(seat.use))) for seat in seats
        }

    def _limited(self, amounts: ResourceList) -> dict[str, int]:
        return resources.only(amounts, self._limits)

    def cover(self) -> None:
        """Step 1."""
        for seat in self._seats:
            lacking = positive(resources.subtract(self._limited(seat.use), self._limited(seat.held)))
            if lacking:
                self._grant(seat, lacking)

    def serve(self, seat: Seat, before: Sequence[Seat], askers: int) -> None:
        first, wanted = self._limited(seat.ask.first), self._limited(seat.ask.wanted)
        if resources.short(first, self._room):
            self.answered[seat.seed] = seat.ask.number  # step 4: no room anywhere
            return
        idle = self._idle[seat.seed]
        need = positive(resources.subtract(first, idle))
        everything = positive(resources.subtract(wanted, idle))
        if fits(need, self._pool):
            give = everything if fits(everything, self._pool) else whole(first, need, self._pool, wanted)
            give = resources.maximum(need, give)
            more = spare(first, wanted, resources.subtract(self._pool, give), askers)
            self._grant(seat, resources.add(give, more))
            self.answered[seat.seed] = seat.ask.number
            return
        self._recall(seat, need, everything, before)
        # What the pool has waits for this ask: nobody later in line may take it away.
        kept = resources.minimum(need, resources.at_least_zero(resources.only(self._pool, need)))
        self._pool = resources.subtract(self._pool, kept)

    def _grant(self, seat: Seat, amounts: ResourceList) -> None:
        self.grants[seat.seed] = resources.add(self.grants.get(seat.seed, {}), amounts)
        self._pool = resources.subtract(self._pool, amounts)

    def _recall(self, seat: Seat, need: ResourceList, everything: ResourceList, before: Sequence[Seat]) -> None:
        """Step 3: from those who do not ask, then from those behind this one in line."""
        first_in_line = {other.seed for other in before}
        others = [other for other in self._seats if other.seed != seat.seed and other.seed not in first_in_line]
        others.sort(key=lambda other: (other.asking, other.seed))
        lacking = positive(resources.subtract(need, self._pool))
        aim = resources.maximum(lacking, positive(resources.subtract(everything, self._pool)))
        for other in others:
            if other.reachable:
                taken = self._take(other, aim)
                aim = positive(resources.subtract(aim, taken))
                lacking = positive(resources.subtract(lacking, taken))
        held_away = [
            Idle(seed=other.seed, idle=idle)
            for other in others
            if not other.reachable and (idle := resources.only(self._idle[other.seed], lacking))
        ]
        if lacking and held_away:
            self.answered[seat.seed] = seat.ask.number
            self.unavailable[seat.seed] = held_away

    def _take(self, seat: Seat, amounts: ResourceList) -> dict[str, int]:
        taken = positive(resources.minimum(self._idle[seat.seed], amounts))
        if taken:
            self.recalls[seat.seed] = resources.add(self.recalls.get(seat.seed, {}), taken)
            self._idle[seat.seed] = positive(resources.subtract(self._idle[seat.seed], taken))
        return taken

    def call_home(self) -> None:
        """A limit below what is handed out, and a seed that drains, call idle capacity back."""
        excess = positive({name: -amount for name, amount in self._pool.items()})
        for seat in sorted(self._seats, key=lambda seat: (seat.asking, seat.seed)):
            if seat.reachable:
                taken = self._take(seat, self._idle[seat.seed] if seat.draining else excess)
                excess = positive(resources.subtract(excess, taken))


def positive(amounts: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount > 0}


def fits(need: ResourceList, room: ResourceList) -> bool:
    return not positive(resources.subtract(need, room))


def share(use: ResourceList, limits: ResourceList) -> int:
    """The largest part of any limit that is used, in millionths: what weighs in max-min."""
    return max((use.get(name, 0) * 1_000_000 // limit for name, limit in limits.items() if limit), default=0)


def times(vector: ResourceList, room: ResourceList) -> int:
    """How many whole vectors fit into the room."""
    counts = [max(room.get(name, 0), 0) // amount for name, amount in vector.items() if amount > 0]
    return min(counts, default=0)


def waiting(first: ResourceList, wanted: ResourceList) -> int:
    """About how many machines wait, judged by the first in line."""
    return max((-(-wanted.get(name, 0) // amount) for name, amount in first.items() if amount > 0), default=1)


def whole(first: ResourceList, need: ResourceList, pool: ResourceList, wanted: ResourceList) -> dict[str, int]:
    """As many whole vectors as the pool has, no more than wait: never a cpu without its memory."""
    more = min(times(first, resources.subtract(pool, need)), waiting(first, wanted) - 1)
    return resources.add(need, {name: amount * max(more, 0) for name, amount in first.items()})


def spare(first: ResourceList, wanted: ResourceList, pool: ResourceList, askers: int) -> dict[str, int]:
    count = min(times(first, pool) // (SPARE_SHARE * askers), SPARE_PER_WAITING * waiting(first, wanted))
    return {name: amount * count for name, amount in first.items()} if count > 0 else {}
