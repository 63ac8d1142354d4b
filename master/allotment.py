"""Who gets what is left: the policy, apart from the protocol (DESIGN section 3). Pure.

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
SPARE_PER_WAITING = 4  # ... and at most this many more machines for each that waits


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
    names = limits.keys()
    grants: dict[str, ResourceList] = {}
    recalls: dict[str, ResourceList] = {}
    answered: dict[str, int] = {}
    unavailable: dict[str, Sequence[Idle]] = {}

    # 1. Cover use that nobody admitted.
    hold: dict[str, dict[str, int]] = {}
    for seat in seats:
        held = resources.only(seat.held, names)
        lacking = positive(resources.subtract(resources.only(seat.use, names), held))
        if lacking:
            grants[seat.seed] = lacking
        hold[seat.seed] = resources.add(held, lacking)
    if learning:
        return Allotment(grants=grants, recalls={}, answered={}, unavailable={})

    pool = resources.subtract(limits, resources.total(hold.values()))
    use = resources.total(resources.only(seat.use, names) for seat in seats)
    idle = {seat.seed: positive(resources.subtract(hold[seat.seed], seat.use)) for seat in seats}

    # 2. Who asks, in order: the one that uses least first (max-min), so that nobody starves.
    asking = [seat for seat in seats if seat.asking and not seat.draining]
    asking.sort(key=lambda seat: (share(seat.use, limits), seat.seed))
    for place, seat in enumerate(asking):
        first = resources.only(seat.ask.first, names)
        wanted = resources.only(seat.ask.wanted, names)
        if positive(resources.subtract(resources.add(use, first), limits)):
            answered[seat.seed] = seat.ask.number  # 4. no room anywhere: the seed refuses, with these very numbers
            continue
        need = positive(resources.subtract(first, idle[seat.seed]))
        if not positive(resources.subtract(need, pool)):
            everything = positive(resources.subtract(wanted, idle[seat.seed]))
            give = resources.maximum(need, everything if fits(everything, pool) else whole(first, need, pool, wanted))
            give = resources.add(give, spare(first, wanted, resources.subtract(pool, give), len(asking)))
            pool = resources.subtract(pool, give)
            grants[seat.seed] = resources.add(grants.get(seat.seed, {}), give)
            answered[seat.seed] = seat.ask.number
            continue

        # 3. Recall from those who do not ask, then from those after this one in line.
        before = {other.seed for other in asking[:place]}
        others = [other for other in seats if other.seed != seat.seed and other.seed not in before]
        others.sort(key=lambda other: (other.asking, other.seed))
        lacking = positive(resources.subtract(need, pool))
        more = positive(resources.subtract(positive(resources.subtract(wanted, idle[seat.seed])), pool))
        aim = resources.maximum(lacking, more)
        for other in others:
            if not other.reachable:
                continue
            take = positive(resources.minimum(idle[other.seed], aim))
            if take:
                recalls[other.seed] = resources.add(recalls.get(other.seed, {}), take)
                idle[other.seed] = positive(resources.subtract(idle[other.seed], take))
                aim = positive(resources.subtract(aim, take))
                lacking = positive(resources.subtract(lacking, take))
        if lacking:
            out_of_reach = [
                Idle(seed=other.seed, idle=resources.only(idle[other.seed], lacking))
                for other in others
                if not other.reachable and resources.only(idle[other.seed], lacking)
            ]
            if out_of_reach:
                answered[seat.seed] = seat.ask.number
                unavailable[seat.seed] = out_of_reach
        # What the pool has waits for this ask: nobody later in line may take it away.
        pool = resources.subtract(pool, resources.minimum(need, resources.at_least_zero(pool)))

    # A limit below what is handed out, and a seed that drains, call idle capacity home.
    excess = positive(resources.at_least_zero({name: -amount for name, amount in pool.items()}))
    for seat in sorted(seats, key=lambda seat: (seat.asking, seat.seed)):
        home = idle[seat.seed] if seat.draining else positive(resources.minimum(idle[seat.seed], excess))
        if home and seat.reachable:
            recalls[seat.seed] = resources.add(recalls.get(seat.seed, {}), home)
            excess = positive(resources.subtract(excess, home))
    return Allotment(grants=grants, recalls=recalls, answered=answered, unavailable=unavailable)


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
