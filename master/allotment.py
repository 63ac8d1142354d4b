"""Who gets what is left: the policy, apart from the protocol (docs/protocol.md section 3). Pure.

One snapshot of a quota in, one decision out, in numbered steps. The protocol (`common.grants`) keeps the sum within
the limit whatever is decided here; this file decides what is useful:

1. Use that nobody admitted is covered by a grant, even past the limit.
2. Those who ask stand in line: who waits since an earlier decision by age, the others by dominant share (max-min).
   An ask is answered once it got something; once use leaves no room for it (then the seed refuses, with numbers that
   add up); or once too much of the room is held by seeds out of reach. Until then its requests wait.
3. The first machine of each ask is served from the pool. Where the pool is short, idle capacity is recalled from
   those who need it least, and what the pool has is kept for it: nobody later in line takes that away.
4. What else waits is served one machine at a time, always to the smallest share (progressive filling).
5. What nobody waits for gives askers some to spare, and seeds that grow some headroom before they ask.
6. Idle capacity is called home to the pool: what a lowered limit and a draining seed must not keep; surplus, when it
   pays; and with each recall, as its message goes out anyway, the surplus and fragments that fit no machine.

Capacity moves in whole machines, never a cpu without its memory: a seed gets what completes a machine for it, and
keeps what does. All amounts are whole numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from common import resources
from common.account import Ask
from common.resources import ResourceList
from master.demand import HALF_LIFE, SHARES, Demand, lacking, positive, scaled, share, times

STEPS = 256  # of progressive filling; where more machines wait, a step is several
SPARE_SHARE = 2  # a seed that asks gets at most 1/(SPARE_SHARE * askers) of the pool beyond what it needs now
SPARE_PER_WAITING = 16  # ... and at most this many more machines for each that waits
COMFORTABLE_SHARE = 4  # headroom comes unasked only while 1/COMFORTABLE_SHARE of the limit stays in the pool
HEADROOM_MACHINES = 16  # ... and no more than so many machines at a time
AMPLE_SHARE = 2  # surplus stays where it is while 1/AMPLE_SHARE of the limit is in the pool
SURPLUS_SHARE = 8  # ... or while it is less than 1/SURPLUS_SHARE of the limit
SETTLED = 10_000  # ... or until so many milliseconds after capacity last came to that seed or went


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One seed at the table. `use` is counted and reserved, from the same report as `ask`.

    `demand` is what `master.demand.learn` made of it for this very decision. `just_granted`: its report does not show
    yet what it does with what it got, so nothing is recalled from it now.
    """

    seed: str
    held: ResourceList
    use: ResourceList
    ask: Ask = Ask()
    answered: int = 0
    reachable: bool = True
    draining: bool = False
    just_granted: bool = False
    weight: int = 1
    demand: Demand = Demand()

    @property
    def asking(self) -> bool:
        return self.ask.number > self.answered


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity that nobody uses but nobody can recall: its holder is out of reach."""

    seed: str
    idle: ResourceList


class Allotment(msgspec.Struct, frozen=True, kw_only=True):
    """`grants` adds to G, `recalls` asks for that much idle capacity back, `answered` raises the number answered.

    `draining` are asks (by number) that get nothing because their seed drains, though there is room elsewhere.
    `again` is in how many milliseconds another look pays although nothing is reported.
    """

    grants: Mapping[str, ResourceList]
    recalls: Mapping[str, ResourceList]
    answered: Mapping[str, int]
    unavailable: Mapping[str, Sequence[Idle]]
    draining: Mapping[str, int] = {}
    again: int | None = None


def allot(limits: ResourceList, seats: Sequence[Seat], *, learning: bool = False, now: int = 0) -> Allotment:
    """Decide for one quota. A learning master grants nothing and answers nothing; it still covers what is used.

    `now` is in milliseconds, the one that the seats' demands were learned with.
    """
    table = _Table(limits, seats, now)
    table.cover()
    if not learning:
        line = table.line()
        for asker in line:
            table.serve(asker)
        table.fill()
        if not any(asker.waits or asker.rest for asker in line):
            table.spare()
            table.top_up()
        table.call_home()
    return Allotment(
        grants=table.grants,
        recalls=table.recalls,
        answered=table.answered,
        unavailable=table.unavailable,
        draining=table.draining,
        again=table.again,
    )


class _Asker:
    """One ask in the making: its first machine, what waits behind it, and idle capacity of its own."""

    def __init__(self, seat: Seat, limits: ResourceList, idle: ResourceList) -> None:
        self.seat = seat
        self.first = positive(resources.only(seat.ask.first, limits))
        self.wanted = positive(resources.maximum(self.first, resources.only(seat.ask.wanted, limits)))
        self.rest = lacking(self.wanted, self.first)
        self.own = positive(resources.minimum(idle, self.wanted))
        self.waits = True
        self.served = False
        self.machines = max((-(-self.wanted[name] // amount) for name, amount in self.first.items()), default=1)

    def level(self, limits: ResourceList) -> int:
        """The share of what it will have once it has used what it was served."""
        expected = resources.add(self.seat.use, lacking(self.wanted, self.rest) if self.served else {})
        return share(expected, limits, self.seat.weight)

    def take(self, amounts: ResourceList) -> None:
        """It was given what it lacked of `amounts`: that comes off what it has of its own."""
        self.own = lacking(self.own, amounts)

    def next(self, most: int) -> dict[str, int]:
        """The next machines that wait: like the first, or all that is left where that is not so much."""
        count = min(most, times(self.first, self.rest))
        return scaled(self.first, count) if count else self.rest


class _Table:
    """One decision in the making: what the pool and each seat still have, and what was decided so far."""

    def __init__(self, limits: ResourceList, seats: Sequence[Seat], now: int) -> None:
        self.grants: dict[str, ResourceList] = {}
        self.recalls: dict[str, ResourceList] = {}
        self.answered: dict[str, int] = {}
        self.unavailable: dict[str, Sequence[Idle]] = {}
        self.draining: dict[str, int] = {}
        self.again: int | None = None
        self._limits = limits
        self._seats = seats
        self._now = now
        self._use = {seat.seed: resources.only(seat.use, limits) for seat in seats}
        held = {seat.seed: resources.only(seat.held, limits) for seat in seats}
        self._room = resources.subtract(limits, resources.total(self._use.values()))
        self._pool = resources.subtract(limits, resources.total(held.values()))
        self._idle = {seed: lacking(amounts, self._use[seed]) for seed, amounts in held.items()}
        self._away = {seat.seed: idle for seat in seats if not seat.reachable and (idle := self._idle[seat.seed])}
        self._holders: list[Seat] | None = None
        self._askers: Sequence[_Asker] = ()

    def _limited(self, amounts: ResourceList) -> dict[str, int]:
        return resources.only(amounts, self._limits)

    def cover(self) -> None:
        """Step 1."""
        for seat in self._seats:
            self._grant(seat, lacking(self._use[seat.seed], seat.held))

    def line(self) -> Sequence[_Asker]:
        """Step 2. An ask that is new in this decision has `asked_at` now, as all that are new."""
        asking = [seat for seat in self._seats if seat.asking]
        asking.sort(key=lambda seat: (seat.demand.asked_at, share(seat.use, self._limits, seat.weight), seat.seed))
        self._askers = [_Asker(seat, self._limits, self._idle[seat.seed]) for seat in asking]
        return self._askers

    # Steps 2 and 3: the first machine ------------------------------------------------------------------------------

    def serve(self, asker: _Asker) -> None:
        seat, first = asker.seat, asker.first
        need = lacking(first, asker.own)
        if resources.short(first, self._room):
            self._close(asker)
        elif need and seat.draining:
            self.draining[seat.seed] = seat.ask.number
            asker.waits, asker.rest = False, {}
        elif need and (away := self._out_of_reach(asker)):
            self.unavailable[seat.seed] = away
            self._close(asker)
        else:
            self._idle[seat.seed] = lacking(self._idle[seat.seed], asker.own)  # nobody behind it in line may have that
            short = lacking(need, self._pool)
            if short:
                everything = resources.only(lacking(asker.wanted, asker.own), first)
                self._recall(first, lacking(everything, self._pool), urgent=short)
                kept = resources.minimum(need, resources.only(self._pool, need))
                self._pool = resources.subtract(self._pool, positive(kept))
            else:
                self._grant(seat, need)
                asker.take(first)
                asker.waits, asker.served = False, True
                asker.rest = {} if seat.draining else asker.rest
                self.answered[seat.seed] = seat.ask.number

    def _close(self, asker: _Asker) -> None:
        self.answered[asker.seat.seed] = asker.seat.ask.number
        asker.waits, asker.rest = False, {}

    def _out_of_reach(self, asker: _Asker) -> Sequence[Idle]:
        """Who holds idle what this ask lacks, where all that can be reached would not do."""
        others = {seed: idle for seed, idle in self._away.items() if seed != asker.seat.seed}
        missing = resources.short(asker.first, resources.subtract(self._room, resources.total(others.values())))
        held = {seed: resources.only(idle, missing) for seed, idle in others.items()}
        return [Idle(seed=seed, idle=idle) for seed, idle in held.items() if idle]

    def _recall(self, machine: ResourceList, amounts: ResourceList, urgent: ResourceList) -> None:
        """Whole machines towards `amounts`, from those who ask themselves only what is urgent.

        Of what is urgent also fragments, which together may make a machine.
        """
        for holder in self._by_need():
            if not amounts:
                break
            wish = urgent if holder.asking else amounts
            if wish:
                part = resources.only(machine, wish)
                count = min(times(part, self._idle[holder.seed]), max(-(-wish[name] // part[name]) for name in wish))
                taken = self._take(holder, resources.minimum(scaled(part, count), wish))
                amounts, urgent = lacking(amounts, taken), lacking(urgent, taken)
        for holder in self._by_need() if urgent else ():
            urgent = lacking(urgent, self._take(holder, urgent))

    def _by_need(self) -> Sequence[Seat]:
        """Whose idle capacity is in reach: draining seeds, then who does not ask, then who idles most for its need."""
        if self._holders is None:
            self._holders = [seat for seat in self._seats if seat.reachable and not seat.just_granted]
            self._holders.sort(key=lambda seat: (not seat.draining, seat.asking, -self._idleness(seat), seat.seed))
        self._holders = [seat for seat in self._holders if self._idle[seat.seed]]
        return self._holders

    def _idleness(self, seat: Seat) -> int:
        needs = share(self._limited(seat.demand.headroom(seat.use)), self._limits)
        return share(self._idle[seat.seed], self._limits) * SHARES // (needs + 1)

    # Steps 4 and 5: what the pool can spare ------------------------------------------------------------------------

    def fill(self) -> None:
        askers = [asker for asker in self._askers if asker.served and asker.rest]
        most = max(1, sum(asker.machines for asker in askers) // STEPS)
        line = [(asker.level(self._limits), asker.seat.seed, asker) for asker in askers]
        heapq.heapify(line)
        while line:
            _, seed, asker = heapq.heappop(line)
            machines = asker.next(most)
            if lacking(lacking(machines, asker.own), self._pool):
                machines = asker.next(1)
            need = lacking(machines, asker.own)
            if lacking(need, self._pool):
                continue
            self._grant(asker.seat, need)
            asker.take(machines)
            asker.rest = lacking(asker.rest, machines)
            if asker.rest:
                heapq.heappush(line, (asker.level(self._limits), seed, asker))
        for asker in askers:
            behind = resources.only(lacking(lacking(asker.rest, asker.own), self._pool), asker.first)
            if behind:
                self._recall(asker.first, behind, urgent={})

    def spare(self) -> None:
        askers = [asker for asker in self._askers if asker.served and not asker.seat.draining]
        for asker in askers:
            part_of_pool = times(asker.first, self._pool) // (SPARE_SHARE * len(askers))
            count = min(part_of_pool, SPARE_PER_WAITING * asker.machines)
            if count:
                idle = resources.add(asker.own, self._idle[asker.seat.seed])
                self._grant(asker.seat, lacking(scaled(asker.first, count), idle))

    def top_up(self) -> None:
        """Before its next machine has to ask: a seed that grows and has no place for it."""
        growing = [
            seat
            for seat in self._seats
            if seat.demand.machine
            and not (seat.asking or seat.draining or not seat.reachable)
            and lacking(self._use[seat.seed], seat.demand.trough)
        ]
        growing.sort(key=lambda seat: (share(seat.use, self._limits, seat.weight), seat.seed))
        for seat in growing:
            machine, idle = self._limited(seat.demand.machine), self._idle[seat.seed]
            if not lacking(machine, idle):
                continue
            grew = lacking(self._use[seat.seed], seat.demand.trough)
            floor = {name: self._limits[name] // COMFORTABLE_SHARE for name in machine}
            above = resources.add(idle, lacking(resources.only(self._pool, machine), floor))
            count = min(1 + times(machine, grew), HEADROOM_MACHINES, times(machine, above))
            self._grant(seat, lacking(scaled(machine, count), idle))

    # Step 6: back to the pool --------------------------------------------------------------------------------------

    def call_home(self) -> None:
        for seat in self._seats:
            if seat.draining and seat.reachable:
                self._take(seat, self._idle[seat.seed])
        excess = positive({name: -amount for name, amount in self._pool.items()})
        excess = lacking(excess, resources.total(self.recalls.values())) if excess else {}
        for seat in sorted(self._seats, key=lambda seat: (seat.asking, seat.seed)) if excess else ():
            if seat.reachable:
                excess = lacking(excess, self._take(seat, excess))
        for seat in self._seats:
            if self._idle[seat.seed] and seat.demand.machine and seat.reachable and not seat.asking:
                self._take(seat, self._superfluous(seat))

    def _superfluous(self, seat: Seat) -> Mapping[str, int]:
        idle = self._idle[seat.seed]
        surplus = lacking(idle, seat.demand.headroom(seat.use))
        if seat.seed in self.recalls:
            wanted = [asker.first for asker in self._askers if asker.waits or asker.rest]
            vectors = [self._limited(seat.demand.machine), *wanted]
            return surplus if any(times(vector, idle) for vector in vectors) else idle
        if seat.just_granted or not self._pays(lacking(idle, seat.demand.machine)):
            return {}
        settles = seat.demand.held_at + SETTLED - self._now
        if self._pays(surplus) and settles <= 0:
            return surplus
        fades = seat.demand.since + HALF_LIFE - self._now
        self._look_again(settles if self._pays(surplus) else max(settles, fades))
        return {}

    def _pays(self, surplus: ResourceList) -> bool:
        return any(
            amount * SURPLUS_SHARE >= self._limits[name] and self._pool[name] * AMPLE_SHARE < self._limits[name]
            for name, amount in surplus.items()
        )

    def _look_again(self, milliseconds: int) -> None:
        self.again = milliseconds if self.again is None else min(self.again, milliseconds)

    # What is decided -----------------------------------------------------------------------------------------------

    def _grant(self, seat: Seat, amounts: ResourceList) -> None:
        if not amounts:
            return
        self.grants[seat.seed] = resources.add(self.grants.get(seat.seed, {}), amounts)
        self._pool = resources.subtract(self._pool, amounts)

    def _take(self, seat: Seat, amounts: ResourceList) -> dict[str, int]:
        taken = positive(resources.minimum(self._idle[seat.seed], amounts))
        if taken:
            self.recalls[seat.seed] = resources.add(self.recalls.get(seat.seed, {}), taken)
            self._idle[seat.seed] = lacking(self._idle[seat.seed], taken)
        return taken
