"""What a decision about one quota begins with, and what it has decided so far. Pure.

The steps of a decision are in master/grants/fair_share.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.quota import guarantees, resources, surge
from common.quota.account import Ask
from common.quota.resources import ResourceList
from master.grants.demand import SHARES, Demand, lacking, positive, scaled, share, times


class SeedDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed, called `name`, holds, uses and asks for of one quota. Amounts are in billionths by resource.

    `use` is `counted` and reserved, from the same report as `ask`, and the surge that use beyond `held` occupies
    (`common.quota.surge.occupied`). `answered` is the number of the last ask that was answered. `weight` divides its
    share. Both are by counter where projects have guarantees (rule 4.16), and `total` is `use` as people know it;
    `projects` is what these projects use, by their counters. `demand` is what `master.grants.demand.learn` made of it
    for this very decision. `just_granted`: its report does not show yet what it does with what it got, so nothing is
    recalled from it now.
    """

    name: str
    held: ResourceList
    use: ResourceList
    counted: ResourceList = {}
    total: ResourceList = {}
    projects: ResourceList = {}
    ask: Ask = Ask()
    answered: int = 0
    reachable: bool = True
    draining: bool = False
    just_granted: bool = False
    weight: int = 1
    demand: Demand = Demand()

    @property
    def beside(self) -> ResourceList:
        """What it holds beside what is for all use: under use beyond that may be what was admitted on it."""
        return resources.add(surge.beyond(self.held), guarantees.uncharged(self.projects, self.held))

    @property
    def occupied(self) -> dict[str, int]:
        """Of guarantees, what of `use` is under use beyond what is held."""
        charged = guarantees.charges(self.projects, self.held)
        return {name: self.use.get(name, 0) - amount for name, amount in charged.items()}

    @property
    def displaced(self) -> dict[str, int]:
        """What projects use that their guarantees could be charged with, if the seed held more of these."""
        return lacking(self.projects, self.held)

    @property
    def asking(self) -> bool:
        return self.ask.number > self.answered


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity that nobody uses but nobody can recall: its holder is out of reach."""

    seed: str
    idle: ResourceList


class Asker:
    """One ask in the making: its first machine, what waits behind it, and idle capacity of its own."""

    def __init__(self, seed: SeedDemand, limits: ResourceList, idle: ResourceList) -> None:
        self.seed = seed
        self.first = positive(resources.only(seed.ask.first, limits))
        self.wanted = positive(resources.maximum(self.first, resources.only(seed.ask.wanted, limits)))
        self.rest = lacking(self.wanted, self.first)
        self.own = positive(resources.minimum(idle, self.wanted))
        self.waits = True
        self.served = False
        self.machines = max((-(-self.wanted[name] // amount) for name, amount in self.first.items()), default=1)

    def level(self, limits: ResourceList) -> int:
        """The share of what it will have once it has used what it was served."""
        expected = resources.add(self.seed.use, lacking(self.wanted, self.rest) if self.served else {})
        return share(expected, limits, self.seed.weight)

    def take(self, amounts: ResourceList) -> None:
        """It was given what it lacked of `amounts`: that comes off what it has of its own."""
        self.own = lacking(self.own, amounts)

    def next(self, most: int) -> dict[str, int]:
        """The next machines that wait: like the first, or all that is left where that is not so much."""
        count = min(most, times(self.first, self.rest))
        return scaled(self.first, count) if count else self.rest


class AllocationState:
    """One decision in the making: what the pool and each seed still have, and what was decided so far.

    `room` is what the limit has beyond all use, `pool` what it has beyond all that seeds hold; either is negative where
    more is used or held. `idle` is what each seed holds and does not use. Amounts are in billionths by resource, times
    in milliseconds.
    """

    def __init__(self, limits: ResourceList, seeds: Sequence[SeedDemand], now: int) -> None:
        self.grants: dict[str, ResourceList] = {}
        self.recalls: dict[str, ResourceList] = {}
        self.answered: dict[str, int] = {}
        self.unavailable: dict[str, Sequence[Idle]] = {}
        self.draining: dict[str, int] = {}
        self.again: int | None = None
        self.limits = limits
        self.seeds = seeds
        self.now = now
        self.use = {seed.name: resources.only(seed.use, limits) for seed in seeds}
        held = {seed.name: resources.only(seed.held, limits) for seed in seeds}
        self.room = self._room()
        self.pool = resources.subtract(limits, resources.total(held.values()))
        self.idle = {seed: lacking(amounts, self.use[seed]) for seed, amounts in held.items()}
        self._away = {seed.name: idle for seed in seeds if not seed.reachable and (idle := self.idle[seed.name])}
        self._holders: list[SeedDemand] | None = None
        self.askers: Sequence[Asker] = ()

    def _room(self) -> dict[str, int]:
        """As if each guarantee were where its project uses something: it can come there."""
        room = resources.subtract(self.limits, resources.total(self.use.values()))
        under = resources.total(self.limited(seed.occupied) for seed in self.seeds)
        room = resources.add(room, under)  # that is in what is used beyond what is held already
        for name, amount in resources.total(seed.displaced for seed in self.seeds).items():
            if guarantees.resource(name) in room and (moved := min(amount, room.get(name, 0))) > 0:
                room[name] -= moved
                room[guarantees.resource(name)] += moved
        return guarantees.together(room)

    def limited(self, amounts: ResourceList) -> dict[str, int]:
        return resources.only(amounts, self.limits)

    def beyond(self, seed: SeedDemand) -> dict[str, int]:
        """What is counted there beyond what it holds."""
        return lacking(self.limited(seed.counted), seed.held)

    def close(self, asker: Asker) -> None:
        self.answered[asker.seed.name] = asker.seed.ask.number
        asker.waits, asker.rest = False, {}

    def out_of_reach(self, asker: Asker) -> Sequence[Idle]:
        """Who holds idle what this ask lacks, where all that can be reached would not do."""
        others = {seed: idle for seed, idle in self._away.items() if seed != asker.seed.name}
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
                count = min(times(part, self.idle[holder.name]), max(-(-wish[name] // part[name]) for name in wish))
                taken = self.take(holder, resources.minimum(scaled(part, count), wish))
                amounts, urgent = lacking(amounts, taken), lacking(urgent, taken)
        for holder in self._by_need() if urgent else ():
            urgent = lacking(urgent, self.take(holder, urgent))

    def _by_need(self) -> Sequence[SeedDemand]:
        """Whose idle capacity is in reach: draining seeds, then who does not ask, then who idles most for its need."""
        if self._holders is None:
            self._holders = [seed for seed in self.seeds if seed.reachable and not seed.just_granted]
            self._holders.sort(key=lambda seed: (not seed.draining, seed.asking, -self._idleness(seed), seed.name))
        self._holders = [seed for seed in self._holders if self.idle[seed.name]]
        return self._holders

    def _idleness(self, seed: SeedDemand) -> int:
        needs = share(self.limited(seed.demand.headroom(seed.use)), self.limits)
        return share(self.idle[seed.name], self.limits) * SHARES // (needs + 1)

    def grant(self, seed: SeedDemand, amounts: ResourceList) -> None:
        if not amounts:
            return
        self.grants[seed.name] = resources.add(self.grants.get(seed.name, {}), amounts)
        self.pool = resources.subtract(self.pool, amounts)

    def take(self, seed: SeedDemand, amounts: ResourceList) -> dict[str, int]:
        taken = positive(resources.minimum(self.idle[seed.name], amounts))
        if taken:
            self.recalls[seed.name] = resources.add(self.recalls.get(seed.name, {}), taken)
            self.idle[seed.name] = lacking(self.idle[seed.name], taken)
        return taken
