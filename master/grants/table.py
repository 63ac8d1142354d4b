"""The table at which the limit of one quota is dealt out (master/grants/fair_share.py has the steps). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.quota import resources
from common.quota.account import Ask
from common.quota.resources import ResourceList
from master.grants.demand import SHARES, Demand, lacking, positive, scaled, share, times


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One seed at the table. `use` is `counted` and reserved, from the same report as `ask`, and the surge under it
    (`common.quota.surge.occupied`).

    `demand` is what `master.grants.demand.learn` made of it for this very decision. `just_granted`: its report does not
    show yet what it does with what it got, so nothing is recalled from it now.
    """

    seed: str
    held: ResourceList
    use: ResourceList
    counted: ResourceList = {}
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


class Asker:
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


class Table:
    """One decision in the making: what the pool and each seat still have, and what was decided so far."""

    def __init__(self, limits: ResourceList, seats: Sequence[Seat], now: int) -> None:
        self.grants: dict[str, ResourceList] = {}
        self.recalls: dict[str, ResourceList] = {}
        self.answered: dict[str, int] = {}
        self.unavailable: dict[str, Sequence[Idle]] = {}
        self.draining: dict[str, int] = {}
        self.again: int | None = None
        self.limits = limits
        self.seats = seats
        self.now = now
        self.use = {seat.seed: resources.only(seat.use, limits) for seat in seats}
        held = {seat.seed: resources.only(seat.held, limits) for seat in seats}
        self.room = resources.subtract(limits, resources.total(self.use.values()))
        self.pool = resources.subtract(limits, resources.total(held.values()))
        self.idle = {seed: lacking(amounts, self.use[seed]) for seed, amounts in held.items()}
        self._away = {seat.seed: idle for seat in seats if not seat.reachable and (idle := self.idle[seat.seed])}
        self._holders: list[Seat] | None = None
        self.askers: Sequence[Asker] = ()

    def limited(self, amounts: ResourceList) -> dict[str, int]:
        return resources.only(amounts, self.limits)

    def beyond(self, seat: Seat) -> dict[str, int]:
        """What is counted there beyond what it holds."""
        return lacking(self.limited(seat.counted), seat.held)

    def close(self, asker: Asker) -> None:
        self.answered[asker.seat.seed] = asker.seat.ask.number
        asker.waits, asker.rest = False, {}

    def out_of_reach(self, asker: Asker) -> Sequence[Idle]:
        """Who holds idle what this ask lacks, where all that can be reached would not do."""
        others = {seed: idle for seed, idle in self._away.items() if seed != asker.seat.seed}
        missing = resources.short(asker.first, resources.subtract(self.room, resources.total(others.values())))
        held = {seed: resources.only(idle, missing) for seed, idle in others.items()}
        return [Idle(seed=seed, idle=idle) for seed, idle in held.items() if idle]

    def recall(self, machine: ResourceList, amounts: ResourceList, urgent: ResourceList) -> None:
        """Whole machines towards `amounts`, from those who ask themselves only what is urgent.

        Of what is urgent also fragments, which together may make a machine.
        """
        for holder in self._by_need():
            if not amounts:
                break
            wish = urgent if holder.asking else amounts
            if wish:
                part = resources.only(machine, wish)
                count = min(times(part, self.idle[holder.seed]), max(-(-wish[name] // part[name]) for name in wish))
                taken = self.take(holder, resources.minimum(scaled(part, count), wish))
                amounts, urgent = lacking(amounts, taken), lacking(urgent, taken)
        for holder in self._by_need() if urgent else ():
            urgent = lacking(urgent, self.take(holder, urgent))

    def _by_need(self) -> Sequence[Seat]:
        """Whose idle capacity is in reach: draining seeds, then who does not ask, then who idles most for its need."""
        if self._holders is None:
            self._holders = [seat for seat in self.seats if seat.reachable and not seat.just_granted]
            self._holders.sort(key=lambda seat: (not seat.draining, seat.asking, -self._idleness(seat), seat.seed))
        self._holders = [seat for seat in self._holders if self.idle[seat.seed]]
        return self._holders

    def _idleness(self, seat: Seat) -> int:
        needs = share(self.limited(seat.demand.headroom(seat.use)), self.limits)
        return share(self.idle[seat.seed], self.limits) * SHARES // (needs + 1)

    def grant(self, seat: Seat, amounts: ResourceList) -> None:
        if not amounts:
            return
        self.grants[seat.seed] = resources.add(self.grants.get(seat.seed, {}), amounts)
        self.pool = resources.subtract(self.pool, amounts)

    def take(self, seat: Seat, amounts: ResourceList) -> dict[str, int]:
        taken = positive(resources.minimum(self.idle[seat.seed], amounts))
        if taken:
            self.recalls[seat.seed] = resources.add(self.recalls.get(seat.seed, {}), taken)
            self.idle[seat.seed] = lacking(self.idle[seat.seed], taken)
        return taken
