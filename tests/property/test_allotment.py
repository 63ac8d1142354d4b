"""What the policy promises, for one master and four seeds, whatever is created, deleted, cut off and drained when.

That the sum stays within the limit is the protocol's (test_grants.py); here: nobody is refused for nothing, nobody
waits for ever, capacity moves in whole machines, and messages are few and come to an end.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.quota import resources
from common.quota.resources import ResourceList
from master.grants.allocation_state import SeedDemand
from master.grants.demand import lacking, scaled, times
from master.grants.fair_share import Allotment
from tests.unit.allotment_world import PATIENCE, World

LIMITS = {"cpu": 64, "memory": 160}
MACHINES: dict[str, ResourceList] = {
    "ap": {"cpu": 1, "memory": 1},
    "eu": {"cpu": 2, "memory": 8},
    "sa": {"cpu": 12, "memory": 24},
    "us": {"cpu": 30, "memory": 30},
}
HOUR = 3_600_000

names = st.sampled_from(sorted(MACHINES))


class Contention(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World(LIMITS, sorted(MACHINES))
        self.world.on_decision = check
        self.done = 0  # what somebody wanted: each may cost some messages
        self.was_cut = False
        for name, count in (("ap", 6), ("eu", 5), ("sa", 1)):
            self.create(name, count)
            self.world.run(1_000)

    @rule(name=names, count=st.integers(1, 5))
    def create(self, name: str, count: int) -> None:
        for _ in range(count):
            self.world.create(name, MACHINES[name])
        self.done += count

    @rule(storm=st.lists(st.tuples(names, st.sampled_from([0, 1, 10])), min_size=3, max_size=12))
    def storm(self, storm: list[tuple[str, int]]) -> None:
        """Most of it while the answers to the first are on their way."""
        for name, milliseconds in storm:
            self.create(name, 1)
            self.world.run(milliseconds)

    @rule(name=names, place=st.integers(0, 47), count=st.integers(1, 20))
    def delete(self, name: str, place: int, count: int) -> None:
        machines = sorted(self.world.seeds[name].machines)
        begin = place % max(1, len(machines))
        for uid in machines[begin:][:count]:
            self.world.delete(name, uid)
            self.done += 1

    @rule(milliseconds=st.sampled_from([1, 5, 20, 100, 1_000, 15_000, 60_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.world.run(milliseconds)

    @rule(name=names, milliseconds=st.sampled_from([1, 10, 40]))
    def distance(self, name: str, milliseconds: int) -> None:
        self.world.seeds[name].latency = milliseconds

    @rule(name=names)
    def cut(self, name: str) -> None:
        self.world.cut(name)
        self.was_cut = True
        self.done += 4

    @rule(name=names)
    def drain(self, name: str) -> None:
        self.world.drain(name)
        self.done += 4

    @precondition(lambda self: self.troubled)
    @rule()
    def all_is_well_again(self) -> None:
        for seed in self.world.seeds.values():
            self.world.heal(seed.name)
            self.world.drain(seed.name, False)
        self.done += 4

    @property
    def troubled(self) -> bool:
        return any(seed.away or self.world.known[seed.name].draining for seed in self.world.seeds.values())

    @rule()
    def it_comes_to_rest(self) -> None:
        """With constant use and no asks messages end, and so do decisions."""
        for seed in self.world.seeds.values():
            self.world.heal(seed.name)
        self.world.run(HOUR)
        assert self.world.at_rest
        assert not any(seed.waiting for seed in self.world.seeds.values())

    @rule(name=names)
    def what_fits_is_admitted_and_what_does_not_is_refused(self, name: str) -> None:
        """From any seed that is not draining, within the time that a webhook call has."""
        self.it_comes_to_rest()
        self.world.drain(name, False)
        self.world.run(1)
        fits = not resources.short(MACHINES[name], resources.subtract(LIMITS, self.world.use))
        admitted, refused = self.world.admitted, self.world.refused
        self.world.create(name, MACHINES[name])
        self.world.run(PATIENCE - 1)
        assert (self.world.admitted - admitted, self.world.refused - refused) == ((1, 0) if fits else (0, 1))
        self.done += 1

    @invariant()
    def messages_are_few(self) -> None:
        assert self.world.messages <= 12 * self.done + 12

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        assert self.was_cut or not self.world.late

    @invariant()
    def never_over(self) -> None:
        assert not lacking(self.world.use, LIMITS)


def check(seeds: Sequence[SeedDemand], decided: Allotment) -> None:
    """One decision."""
    room = resources.subtract(LIMITS, resources.total(seed.use for seed in seeds))
    idle = {seed.name: lacking(seed.held, seed.use) for seed in seeds}
    for seed in seeds:
        granted, recalled = decided.grants.get(seed.name, {}), decided.recalls.get(seed.name, {})
        assert not (granted.keys() & recalled.keys()), "a resource goes both ways at once"
        assert not lacking(recalled, idle[seed.name])
        assert not recalled or (seed.reachable and not (seed.just_granted and not seed.draining))
        if granted:
            assert not seed.draining
            machine = MACHINES[seed.name]
            count = times(machine, resources.add(idle[seed.name], granted))
            assert granted == lacking(scaled(machine, count), idle[seed.name]), "more than completes machines"
            # A fragment that completes nothing here may go to who waits longer, with the same message.
            kept = resources.subtract(idle[seed.name], recalled)
            assert times(machine, resources.add(kept, granted)) == count, "recalled is what the grant needs"
        if seed.name in decided.answered:
            check_answer(seed, decided, seeds, room)
        else:
            assert seed.name not in decided.unavailable
    check_line(seeds, decided, room)


def check_answer(seed: SeedDemand, decided: Allotment, seeds: Sequence[SeedDemand], room: ResourceList) -> None:
    """Got something, or has it; or there is no room; or no room within reach."""
    has = resources.add(lacking(seed.held, seed.use), decided.grants.get(seed.name, {}))
    if not lacking(seed.ask.first, has):
        return
    away = [lacking(other.held, other.use) for other in seeds if not other.reachable and other.name != seed.name]
    within_reach = resources.subtract(room, resources.total(away))
    assert resources.short(seed.ask.first, within_reach), "refused though it fits"
    assert resources.short(seed.ask.first, room) or decided.unavailable.get(seed.name)


def check_line(seeds: Sequence[SeedDemand], decided: Allotment, room: ResourceList) -> None:
    """Nobody takes what the first in line needs of the pool."""
    line = [seed for seed in seeds if seed.asking and not seed.draining and seed.name not in decided.answered]
    if not line:
        return
    first = min(line, key=lambda seed: seed.demand.asked_at)
    younger = [
        seed
        for seed in seeds
        if not seed.asking or (seed.name in decided.answered and seed.demand.asked_at > first.demand.asked_at)
    ]
    older = [seed for seed in seeds if seed not in younger and seed is not first]
    before = resources.subtract(LIMITS, resources.total(seed.held for seed in seeds))
    before = resources.subtract(before, resources.total(decided.grants.get(seed.name, {}) for seed in older))
    after = resources.subtract(before, resources.total(decided.grants.get(seed.name, {}) for seed in younger))
    need = lacking(first.ask.first, lacking(first.held, first.use))
    assert not lacking(resources.minimum(need, resources.only(before, need)), after), "overtaken"


TestContention = Contention.TestCase
TestContention.settings = settings(max_examples=200, stateful_step_count=40)
