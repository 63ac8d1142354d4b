"""Headroom: what seeds get beyond what they wait for, and when it goes home. Pure.

Steps 5 and 6 of master/grants/fair_share.py.
"""

from __future__ import annotations

from common.quota import resources
from common.quota.resources import ResourceList
from master.grants.demand import HALF_LIFE, lacking, positive, scaled, share, times
from master.grants.table import Seat, Table

SPARE_SHARE = 2  # a seed that asks gets at most 1/(SPARE_SHARE * askers) of the pool beyond what it needs now
SPARE_PER_WAITING = 16  # ... and at most this many more machines for each that waits
COMFORTABLE_SHARE = 4  # headroom comes unasked only while 1/COMFORTABLE_SHARE of the limit stays in the pool
HEADROOM_MACHINES = 16  # ... and no more than so many machines at a time
AMPLE_SHARE = 2  # surplus stays where it is while 1/AMPLE_SHARE of the limit is in the pool
SURPLUS_SHARE = 8  # ... or while it is less than 1/SURPLUS_SHARE of the limit
SETTLED = 10_000  # ... or until so many milliseconds after capacity last came to that seed or went


def spare(table: Table) -> None:
    """So that who asked need not ask for the next machine again."""
    askers = [asker for asker in table.askers if asker.served and not asker.seat.draining]
    for asker in askers:
        part_of_pool = times(asker.first, table.pool) // (SPARE_SHARE * len(askers))
        count = min(part_of_pool, SPARE_PER_WAITING * asker.machines)
        if count:
            idle = resources.add(asker.own, table.idle[asker.seat.seed])
            table.grant(asker.seat, lacking(scaled(asker.first, count), idle))


def top_up(table: Table) -> None:
    """Before its next machine has to ask: a seed that grows and has no place for it."""
    growing = [
        seat
        for seat in table.seats
        if seat.demand.machine
        and not (seat.asking or seat.draining or not seat.reachable)
        and lacking(table.use[seat.seed], seat.demand.trough)
    ]
    growing.sort(key=lambda seat: (share(seat.use, table.limits, seat.weight), seat.seed))
    for seat in growing:
        machine, idle = table.limited(seat.demand.machine), table.idle[seat.seed]
        if not lacking(machine, idle):
            continue
        grew = lacking(table.use[seat.seed], seat.demand.trough)
        floor = {name: table.limits[name] // COMFORTABLE_SHARE for name in machine}
        above = resources.add(idle, lacking(resources.only(table.pool, machine), floor))
        count = min(1 + times(machine, grew), HEADROOM_MACHINES, times(machine, above))
        table.grant(seat, lacking(scaled(machine, count), idle))


def call_home(table: Table) -> None:
    for seat in table.seats:
        if seat.draining and seat.reachable:
            table.take(seat, table.idle[seat.seed])
    excess = positive({name: -amount for name, amount in table.pool.items()})
    excess = lacking(excess, resources.total(table.recalls.values())) if excess else {}
    for seat in sorted(table.seats, key=lambda seat: (seat.asking, seat.seed)) if excess else ():
        if seat.reachable:
            excess = lacking(excess, table.take(seat, excess))
    for seat in table.seats:
        if table.idle[seat.seed] and seat.demand.machine and seat.reachable and not seat.asking:
            table.take(seat, _superfluous(table, seat))


def _superfluous(table: Table, seat: Seat) -> ResourceList:
    idle = table.idle[seat.seed]
    surplus = lacking(idle, seat.demand.headroom(seat.use))
    if seat.seed in table.recalls:
        wanted = [asker.first for asker in table.askers if asker.waits or asker.rest]
        vectors = [table.limited(seat.demand.machine), *wanted]
        return surplus if any(times(vector, idle) for vector in vectors) else idle
    if seat.just_granted or not _pays(table, lacking(idle, seat.demand.machine)):
        return {}
    settles = seat.demand.held_at + SETTLED - table.now
    if _pays(table, surplus) and settles <= 0:
        return surplus
    fades = seat.demand.since + HALF_LIFE - table.now
    _look_again(table, settles if _pays(table, surplus) else max(settles, fades))
    return {}


def _pays(table: Table, surplus: ResourceList) -> bool:
    return any(
        amount * SURPLUS_SHARE >= table.limits[name] and table.pool[name] * AMPLE_SHARE < table.limits[name]
        for name, amount in surplus.items()
    )


def _look_again(table: Table, milliseconds: int) -> None:
    table.again = milliseconds if table.again is None else min(table.again, milliseconds)
