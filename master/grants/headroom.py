"""Headroom: what seeds get beyond what they wait for, and when it is recalled. Pure.

Steps 5 and 6 of master/grants/fair_share.py.
"""

from __future__ import annotations

from common.quota import resources
from common.quota.resources import ResourceList
from master.grants.allocation_state import AllocationState, SeedDemand
from master.grants.demand import HALF_LIFE, lacking, positive, scaled, share, times

SPARE_SHARE = 2  # a seed that asks gets at most 1/(SPARE_SHARE * askers) of the pool beyond what it needs now
SPARE_PER_WAITING = 16  # ... and at most this many more machines for each that waits ...
GROWTH_SHARE = 4  # ... or 1/GROWTH_SHARE of what it grew by lately: with steady growth it asks every few seconds
COMFORTABLE_SHARE = 4  # headroom comes unasked only while 1/COMFORTABLE_SHARE of the limit stays in the pool
HEADROOM_MACHINES = 16  # ... and no more than so many machines at a time
AMPLE_SHARE = 2  # surplus stays where it is while 1/AMPLE_SHARE of the limit is in the pool
SURPLUS_SHARE = 8  # ... or while it is less than 1/SURPLUS_SHARE of the limit
SETTLED = 10_000  # ... or until so many milliseconds after capacity last came to that seed or went


def spare(state: AllocationState) -> None:
    """So that who asked need not ask for the next machine again."""
    askers = [asker for asker in state.askers if asker.served and not asker.seed.draining]
    for asker in askers:
        part_of_pool = times(asker.first, state.pool) // (SPARE_SHARE * len(askers))
        grew = times(asker.first, asker.seed.demand.grown(state.use[asker.seed.name]))
        count = min(part_of_pool, max(SPARE_PER_WAITING * asker.machines, grew // GROWTH_SHARE))
        if count:
            idle = resources.add(asker.own, state.idle[asker.seed.name])
            state.grant(asker.seed, lacking(scaled(asker.first, count), idle))


def top_up(state: AllocationState) -> None:
    """Before its next machine has to ask: a seed that grows and has no place for it."""
    growing = [
        seed
        for seed in state.seeds
        if seed.demand.machine
        and not (seed.asking or seed.draining or not seed.reachable)
        and lacking(state.use[seed.name], seed.demand.trough)
    ]
    growing.sort(key=lambda seed: (share(seed.use, state.limits, seed.weight), seed.name))
    for seed in growing:
        machine, idle = state.limited(seed.demand.machine), state.idle[seed.name]
        if not lacking(machine, idle):
            continue
        grew = lacking(state.use[seed.name], seed.demand.trough)
        floor = {name: state.limits[name] // COMFORTABLE_SHARE for name in machine}
        above = resources.add(idle, lacking(resources.only(state.pool, machine), floor))
        count = min(1 + times(machine, grew), HEADROOM_MACHINES, times(machine, above))
        state.grant(seed, lacking(scaled(machine, count), idle))


def recall_surplus(state: AllocationState) -> None:
    for seed in state.seeds:
        if seed.draining and seed.reachable:
            state.take(seed, state.idle[seed.name])
    excess = positive({name: -amount for name, amount in state.pool.items()})
    excess = lacking(excess, resources.total(state.recalls.values())) if excess else {}
    for seed in sorted(state.seeds, key=lambda seed: (seed.asking, seed.name)) if excess else ():
        if seed.reachable:
            excess = lacking(excess, state.take(seed, excess))
    for seed in state.seeds:
        if state.idle[seed.name] and seed.demand.machine and seed.reachable and not seed.asking:
            state.take(seed, _superfluous(state, seed))


def _superfluous(state: AllocationState, seed: SeedDemand) -> ResourceList:
    idle = state.idle[seed.name]
    surplus = lacking(idle, seed.demand.headroom(seed.use))
    if seed.name in state.recalls:
        wanted = [asker.first for asker in state.askers if asker.waits or asker.rest]
        vectors = [state.limited(seed.demand.machine), *wanted]
        return surplus if any(times(vector, idle) for vector in vectors) else idle
    if seed.just_granted or not _pays(state, lacking(idle, seed.demand.machine)):
        return {}
    settles = seed.demand.held_at + SETTLED - state.now
    if _pays(state, surplus) and settles <= 0:
        return surplus
    fades = seed.demand.since + HALF_LIFE - state.now
    _look_again(state, settles if _pays(state, surplus) else max(settles, fades))
    return {}


def _pays(state: AllocationState, surplus: ResourceList) -> bool:
    return any(
        amount * SURPLUS_SHARE >= state.limits[name] and state.pool[name] * AMPLE_SHARE < state.limits[name]
        for name, amount in surplus.items()
    )


def _look_again(state: AllocationState, milliseconds: int) -> None:
    state.again = milliseconds if state.again is None else min(state.again, milliseconds)
