"""Who gets what is left: the policy, apart from the protocol (docs/reference/protocol.md section 3). Pure.

One snapshot of a quota in, one decision out, in numbered steps. The protocol (`common.quota.escrow`) keeps the sum
within the limit whatever is decided here; this file decides what is useful:

1. Use that nobody admitted is covered by a grant. Past the limit only what is more than the surge that its seed holds:
   the rest may be what rollouts were lent before the seed lost its ledger. It is covered within the limit, for which
   idle capacity is recalled. The same holds for guarantees that the seed holds and that are not used. What a project
   with a guarantee uses of the rest takes over that guarantee.
2. Those who ask stand in line: who waits since an earlier decision by age, the others by dominant share (max-min).
   An ask is answered once it got something; once use leaves no room for it (then the seed refuses, with numbers that
   add up); or once too much of the room is held by seeds out of reach. Until then its requests wait.
3. The first machine of each ask is served from the pool. Where the pool is short, idle capacity is recalled from
   those who need it least, and what the pool has is kept for it: nobody later in line takes that away.
4. What else waits is served one machine at a time, always to the smallest share (progressive filling).
5. What nobody waits for gives askers some to spare, and seeds that grow some headroom before they ask.
6. Idle capacity is recalled to the pool: what a lowered limit and a draining seed must not keep; surplus, when it
   pays; and with each recall, as its message goes out anyway, the surplus and fragments that fit no machine.

Capacity moves in whole machines, never a cpu without its memory: a seed gets what completes a machine for it, and
keeps what does. All amounts are whole numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from common.quota import guarantees, resources
from common.quota.resources import ResourceList
from master.grants.allocation_state import AllocationState, Asker, Idle, SeedDemand
from master.grants.demand import lacking, positive, share
from master.grants.headroom import recall_surplus, spare, top_up

__all__ = ["Allotment", "Idle", "SeedDemand", "allot"]

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


def allot(limits: ResourceList, seeds: Sequence[SeedDemand], *, learning: bool = False, now: int = 0) -> Allotment:
    """Decide for one quota. A learning master grants nothing and answers nothing; it still covers what is used.

    `now` is in milliseconds, the one that the seeds' demands were learned with.
    """
    state = AllocationState(limits, seeds, now)
    cover(state)
    state.pool = guarantees.together(state.pool)
    if not learning:
        cover_on_surge(state)
        take_over(state)
        state.askers = line(state)
        for asker in state.askers:
            serve(state, asker)
        fill(state)
        if not any(asker.waits or asker.rest for asker in state.askers):
            spare(state)
            top_up(state)
        recall_surplus(state)
    return Allotment(
        grants=state.grants,
        recalls=state.recalls,
        answered=state.answered,
        unavailable=state.unavailable,
        draining=state.draining,
        again=state.again,
    )


def cover(state: AllocationState) -> None:
    """Step 1. Only what is counted: what is reserved was admitted within what the seed holds, and what is both for a
    moment (an update of what is not counted yet) would be covered twice."""
    for seed in state.seeds:
        state.grant(seed, lacking(state.beyond(seed), seed.beside))


def cover_on_surge(state: AllocationState) -> None:
    """Step 1, of what may be on surge."""
    for seed in state.seeds:
        on_surge = positive(resources.minimum(state.beyond(seed), seed.beside))
        within = positive(resources.minimum(on_surge, resources.only(state.pool, on_surge)))
        state.grant(seed, within)
        if rest := lacking(on_surge, within):
            state.recall(rest, rest, urgent=rest)


def take_over(state: AllocationState) -> None:
    """Step 1, of what was admitted before there was as much of the guarantee. So it frees what others may use."""
    for seed in state.seeds:
        for name, amount in state.limited(seed.displaced).items():
            within = positive({name: min(amount, state.pool[name])})
            state.grant(seed, within)
            if rest := lacking({name: amount}, within):
                state.recall(rest, rest, urgent=rest)


def line(state: AllocationState) -> Sequence[Asker]:
    """Step 2. An ask that is new in this decision has `asked_at` now, as all that are new."""
    asking = [seed for seed in state.seeds if seed.asking]
    asking.sort(key=lambda seed: (seed.demand.asked_at, share(seed.use, state.limits, seed.weight), seed.name))
    return [Asker(seed, state.limits, state.idle[seed.name]) for seed in asking]


def serve(state: AllocationState, asker: Asker) -> None:
    """Steps 2 and 3, for one in line."""
    seed, first = asker.seed, asker.first
    asker.own = positive(resources.minimum(asker.own, state.idle[seed.name]))  # less what was recalled for others
    need = lacking(first, asker.own)
    if resources.short(first, state.room):
        state.close(asker)
    elif need and seed.draining:
        state.draining[seed.name] = seed.ask.number
        asker.waits, asker.rest = False, {}
    elif need and (away := state.out_of_reach(asker)):
        state.unavailable[seed.name] = away
        state.close(asker)
    else:
        state.idle[seed.name] = lacking(state.idle[seed.name], asker.own)  # nobody behind it in line may have that
        short = lacking(need, state.pool)
        if short:
            everything = resources.only(lacking(asker.wanted, asker.own), first)
            state.recall(first, lacking(everything, state.pool), urgent=short)
            kept = resources.minimum(need, resources.only(state.pool, need))
            state.pool = resources.subtract(state.pool, positive(kept))
        else:
            state.grant(seed, need)
            asker.take(first)
            asker.waits, asker.served = False, True
            asker.rest = {} if seed.draining else asker.rest
            state.answered[seed.name] = seed.ask.number


def fill(state: AllocationState) -> None:
    """Step 4. What the pool cannot serve is recalled: those who wait for it will ask again, after this answer."""
    askers = [asker for asker in state.askers if asker.served and asker.rest]
    most = max(1, sum(asker.machines for asker in askers) // STEPS)
    heap = [(asker.level(state.limits), asker.seed.name, asker) for asker in askers]
    heapq.heapify(heap)
    while heap:
        _, name, asker = heapq.heappop(heap)
        machines = asker.next(most)
        if lacking(lacking(machines, asker.own), state.pool):
            machines = asker.next(1)
        need = lacking(machines, asker.own)
        if lacking(need, state.pool):
            continue
        state.grant(asker.seed, need)
        asker.take(machines)
        asker.rest = lacking(asker.rest, machines)
        if asker.rest:
            heapq.heappush(heap, (asker.level(state.limits), name, asker))
    for asker in askers:
        behind = resources.only(lacking(lacking(asker.rest, asker.own), state.pool), asker.first)
        if behind:
            state.recall(asker.first, behind, urgent={})
