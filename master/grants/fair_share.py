"""Who gets what is left: the policy, apart from the protocol (docs/protocol.md section 3). Pure.

One snapshot of a quota in, one decision out, in numbered steps. The protocol (`common.quota.escrow`) keeps the sum
within the limit whatever is decided here; this file decides what is useful:

1. Use that nobody admitted is covered by a grant. Past the limit only what is more than the surge that its seed holds:
   the rest may be what rollouts were lent before the seed lost its ledger. It is covered within the limit, for which
   idle capacity is recalled.
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

from common.quota import resources, surge
from common.quota.resources import ResourceList
from master.grants.demand import lacking, positive, share
from master.grants.headroom import call_home, spare, top_up
from master.grants.table import Asker, Idle, Seat, Table

__all__ = ["Allotment", "Idle", "Seat", "allot"]

STEPS = 256  # of progressive filling; where more machines wait, a step is several


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
    table = Table(limits, seats, now)
    cover(table)
    if not learning:
        cover_on_surge(table)
        table.askers = line(table)
        for asker in table.askers:
            serve(table, asker)
        fill(table)
        if not any(asker.waits or asker.rest for asker in table.askers):
            spare(table)
            top_up(table)
        call_home(table)
    return Allotment(
        grants=table.grants,
        recalls=table.recalls,
        answered=table.answered,
        unavailable=table.unavailable,
        draining=table.draining,
        again=table.again,
    )


def cover(table: Table) -> None:
    """Step 1. Only what is counted: what is reserved was admitted within what the seed holds, and what is both for a
    moment (an update of what is not counted yet) would be covered twice."""
    for seat in table.seats:
        table.grant(seat, lacking(table.beyond(seat), surge.beyond(seat.held)))


def cover_on_surge(table: Table) -> None:
    """Step 1, of what may be on surge."""
    for seat in table.seats:
        on_surge = positive(resources.minimum(table.beyond(seat), surge.beyond(seat.held)))
        within = positive(resources.minimum(on_surge, resources.only(table.pool, on_surge)))
        table.grant(seat, within)
        if rest := lacking(on_surge, within):
            table.recall(rest, rest, urgent=rest)


def line(table: Table) -> Sequence[Asker]:
    """Step 2. An ask that is new in this decision has `asked_at` now, as all that are new."""
    asking = [seat for seat in table.seats if seat.asking]
    asking.sort(key=lambda seat: (seat.demand.asked_at, share(seat.use, table.limits, seat.weight), seat.seed))
    return [Asker(seat, table.limits, table.idle[seat.seed]) for seat in asking]


def serve(table: Table, asker: Asker) -> None:
    """Steps 2 and 3, for one in line."""
    seat, first = asker.seat, asker.first
    asker.own = positive(resources.minimum(asker.own, table.idle[seat.seed]))  # less what was recalled for others
    need = lacking(first, asker.own)
    if resources.short(first, table.room):
        table.close(asker)
    elif need and seat.draining:
        table.draining[seat.seed] = seat.ask.number
        asker.waits, asker.rest = False, {}
    elif need and (away := table.out_of_reach(asker)):
        table.unavailable[seat.seed] = away
        table.close(asker)
    else:
        table.idle[seat.seed] = lacking(table.idle[seat.seed], asker.own)  # nobody behind it in line may have that
        short = lacking(need, table.pool)
        if short:
            everything = resources.only(lacking(asker.wanted, asker.own), first)
            table.recall(first, lacking(everything, table.pool), urgent=short)
            kept = resources.minimum(need, resources.only(table.pool, need))
            table.pool = resources.subtract(table.pool, positive(kept))
        else:
            table.grant(seat, need)
            asker.take(first)
            asker.waits, asker.served = False, True
            asker.rest = {} if seat.draining else asker.rest
            table.answered[seat.seed] = seat.ask.number


def fill(table: Table) -> None:
    """Step 4. What the pool cannot serve is recalled: those who wait for it will ask again, after this answer."""
    askers = [asker for asker in table.askers if asker.served and asker.rest]
    most = max(1, sum(asker.machines for asker in askers) // STEPS)
    heap = [(asker.level(table.limits), asker.seat.seed, asker) for asker in askers]
    heapq.heapify(heap)
    while heap:
        _, seed, asker = heapq.heappop(heap)
        machines = asker.next(most)
        if lacking(lacking(machines, asker.own), table.pool):
            machines = asker.next(1)
        need = lacking(machines, asker.own)
        if lacking(need, table.pool):
            continue
        table.grant(asker.seat, need)
        asker.take(machines)
        asker.rest = lacking(asker.rest, machines)
        if asker.rest:
            heapq.heappush(heap, (asker.level(table.limits), seed, asker))
    for asker in askers:
        behind = resources.only(lacking(lacking(asker.rest, asker.own), table.pool), asker.first)
        if behind:
            table.recall(asker.first, behind, urgent={})
