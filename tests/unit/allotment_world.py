"""One master and n seeds on a clock that only jumps: the real accounts, grants and policy; messages take a while.

Nothing is lost or repeated here and no side ever restarts (tests/property/test_grants.py and tests/sim do that): this
world shows what the policy makes of demand. Machines are counted at once, and every message is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from common.quota import account as accounts
from common.quota import escrow, resources
from common.quota.account import Account, Admitted, Ask, Grant, Reservation
from common.quota.escrow import Holding, MasterLedger, Report
from common.quota.resources import ResourceList
from master.grants.demand import Demand, learn
from master.grants.fair_share import Allotment, Seat, allot
from tests.unit.claims import reserve

PATIENCE = 2_600  # milliseconds that a webhook call waits
PAUSE = 50  # ... before an answer that brought nothing is followed by another ask
POLL = 200  # ... until the master looks again at an ask that waits
JUST_GRANTED = 100  # ... that a seed has to use what it got


@dataclass(frozen=True)
class Message:
    grant: Grant
    used: ResourceList
    closed: bool  # too much of the room is out of reach, or this seed drains


@dataclass
class Request:
    uid: str
    size: ResourceList
    since: int


@dataclass
class SeedSide:
    name: str
    account: Account
    latency: int
    machines: dict[str, ResourceList] = field(default_factory=dict)
    waiting: list[Request] = field(default_factory=list)
    said: Report | None = None
    heard: Message | None = None
    answered: int = 0
    away: bool = False
    held_back: list[Callable[[], None]] = field(default_factory=list)
    arrives: int = 0  # when the last message to or from it arrives: each link keeps its order


@dataclass
class Remembered:
    """What the master keeps of a seed beside the ledger."""

    report: Report | None = None
    demand: Demand | None = None
    answered: int = 0
    closed: bool = False
    draining: bool = False
    shown: Message | None = None
    granted_at: int = -JUST_GRANTED
    granted_sequence: int = -1


class World:
    def __init__(self, limits: ResourceList, names: Sequence[str], *, latency: int = 10) -> None:
        self.limits = limits
        self.now = 0
        self.seeds = {name: SeedSide(name, Account(incarnation=name, master="m", epoch=1), latency) for name in names}
        self.ledger = MasterLedger(incarnation="m", seeds={name: Holding(account=name) for name in names})
        self.known = {name: Remembered() for name in names}
        self.weights: dict[str, int] = dict.fromkeys(names, 1)
        self.on_decision: Callable[[Sequence[Seat], Allotment], None] = lambda _seats, _decided: None
        self.messages = 0  # from the master to seeds
        self.asks = 0
        self.admitted = 0
        self.refused = 0  # with numbers that add up
        self.closed = 0  # out of reach, or draining
        self.late = 0  # the webhook call was over
        self.longest_wait = 0
        self.looks = 0  # decisions because time has passed
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._look = 0

    @property
    def use(self) -> dict[str, int]:
        return resources.total(accounts.use(seed.account) for seed in self.seeds.values())

    @property
    def pool(self) -> dict[str, int]:
        return resources.subtract(self.limits, escrow.outstanding(self.ledger))

    # Time --------------------------------------------------------------------------------------------------------

    def _at(self, when: int, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what))

    def run(self, milliseconds: int) -> None:
        end = self.now + milliseconds
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = end

    @property
    def at_rest(self) -> bool:
        """Nobody will ever do anything again by itself."""
        return not self._events

    def _send(self, seed: SeedSide, what: Callable[[], None]) -> None:
        def arrive() -> None:
            if seed.away:
                seed.held_back.append(what)
            else:
                what()

        seed.arrives = max(seed.arrives, self.now + seed.latency)
        self._at(seed.arrives, arrive)

    def cut(self, name: str) -> None:
        self.seeds[name].away = True
        self._at(self.now, self.decide)

    def heal(self, name: str) -> None:
        seed = self.seeds[name]
        seed.away = False
        held_back, seed.held_back = seed.held_back, []
        for what in held_back:
            self._at(self.now, what)
        self._at(self.now, self.decide)

    def drain(self, name: str, draining: bool = True) -> None:
        self.known[name].draining = draining
        self._at(self.now, self.decide)

    # The seed ----------------------------------------------------------------------------------------------------

    def create(self, name: str, size: ResourceList) -> None:
        self._number += 1
        seed, request = self.seeds[name], Request(f"{name}-{self._number}", size, self.now)
        if not self._claim(seed, request):
            seed.waiting.append(request)
            self._at(self.now + PATIENCE, lambda: self._give_up(seed, request))
            self._ask(seed)
        self._publish(seed)

    def delete(self, name: str, uid: str) -> None:
        seed = self.seeds[name]
        del seed.machines[uid]
        self._count(seed)
        self._publish(seed)

    def _claim(self, seed: SeedSide, request: Request) -> bool:
        wanted = Reservation(source="c", object=request.uid, amount=request.size)
        account, outcome = reserve(seed.account, self.limits, request.uid, wanted)
        if not isinstance(outcome, Admitted):
            return False
        seed.account = account
        seed.machines[request.uid] = request.size
        self._count(seed)
        self.admitted += 1
        self.longest_wait = max(self.longest_wait, self.now - request.since)
        return True

    def _count(self, seed: SeedSide) -> None:
        used = resources.total(seed.machines.values())
        seed.account = accounts.count(
            seed.account, 1, "c", used, dict.fromkeys(accounts.of_source(seed.account, "c"), 0)
        )

    def _ask(self, seed: SeedSide) -> None:
        """All that wait ask together, one ask at a time."""
        if seed.waiting and seed.answered >= seed.account.ask.number:
            wanted = resources.total(request.size for request in seed.waiting)
            seed.account = accounts.ask(seed.account, self.limits, seed.waiting[0].size, wanted, seed.answered)
            self.asks += 1
            self._publish(seed)

    def _give_up(self, seed: SeedSide, request: Request) -> None:
        if request in seed.waiting:
            seed.waiting.remove(request)
            self.late += 1

    def _publish(self, seed: SeedSide) -> None:
        if seed.heard is not None:  # what is recalled is given back also when it becomes idle only later
            seed.account = accounts.apply_grant(seed.account, seed.heard.grant)
        said = escrow.report(seed.account)
        if seed.said is None or replace(said, sequence=seed.said.sequence) != seed.said:
            seed.account = replace(seed.account, sequence=seed.account.sequence + 1)
            accounts.check(seed.account)
            seed.said = said = escrow.report(seed.account)
            self._send(seed, lambda: self._hear(seed.name, said))

    def _obey(self, seed: SeedSide, message: Message) -> None:
        seed.heard = message
        seed.account = accounts.apply_grant(accounts.receive(seed.account, message.grant), message.grant)
        seed.answered = max(seed.answered, message.grant.answered)
        if seed.answered >= seed.account.ask.number:
            before = self.admitted
            seed.waiting = [request for request in seed.waiting if not self._claim(seed, request)]
            room = resources.subtract(self.limits, message.used)
            refused = [request for request in seed.waiting if resources.short(request.size, room)]
            seed.waiting = [request for request in seed.waiting if request not in refused]
            self.refused += len(refused)
            if message.closed:
                self.closed += len(seed.waiting)
                seed.waiting = []
            self._at(self.now + (0 if self.admitted > before else PAUSE), lambda: self._ask(seed))
        self._publish(seed)

    # The master --------------------------------------------------------------------------------------------------

    def _hear(self, name: str, said: Report) -> None:
        known = self.known[name]
        if escrow.supersedes(said, known.report):
            known.report = said
            holding = escrow.absorb(self.ledger.seeds[name], said, "m")
            self.ledger = replace(self.ledger, seeds={**self.ledger.seeds, name: holding})
            self.decide()

    def decide(self) -> None:
        seats = [self._seat(name, known) for name, known in self.known.items()]
        decided = allot(self.limits, seats, now=self.now)
        self.on_decision(seats, decided)
        raised = {name: escrow.raise_granted(self.ledger.seeds[name], more) for name, more in decided.grants.items()}
        self.ledger = replace(self.ledger, seeds={**self.ledger.seeds, **raised})
        used = resources.total(seat.use for seat in seats)
        for name, number in {**decided.answered, **decided.draining}.items():
            known = self.known[name]
            known.answered, known.closed = number, name in decided.unavailable or name in decided.draining
            if name in decided.grants and known.report is not None:
                known.granted_at, known.granted_sequence = self.now, known.report.sequence
        for name in self.seeds:
            self._show(name, decided.recalls.get(name, {}), used)
        waits = any(seat.asking and seat.ask.number > self.known[seat.seed].answered for seat in seats)
        soonest = [wait for wait in (POLL if waits else None, decided.again) if wait is not None]
        if soonest:
            self._look += 1
            self._at(self.now + min(soonest), lambda look=self._look: self._look_again(look))  # type: ignore[misc]

    def _look_again(self, look: int) -> None:
        if look == self._look:
            self.looks += 1
            self.decide()

    def _seat(self, name: str, known: Remembered) -> Seat:
        seed, said = self.seeds[name], known.report
        held = escrow.held(self.ledger.seeds[name])
        use = resources.add(said.used, said.reserved) if said is not None else {}
        ask = said.ask if said is not None else Ask()
        known.demand = learn(
            known.demand, self.limits, held=held, use=use, ask=ask, answered=known.answered, now=self.now
        )
        return Seat(
            seed=name,
            held=held,
            use=use,
            counted=said.used if said is not None else {},
            ask=Ask() if seed.away else ask,
            answered=known.answered,
            reachable=not seed.away,
            draining=known.draining,
            just_granted=self.now - known.granted_at < JUST_GRANTED
            and said is not None
            and said.sequence == known.granted_sequence,
            weight=self.weights[name],
            demand=known.demand,
        )

    def _show(self, name: str, recall: ResourceList, used: Mapping[str, int]) -> None:
        """What the seed waits for. That a recall is over, or use elsewhere, is no reason for a message."""
        seed, known = self.seeds[name], self.known[name]
        grant = escrow.message(self.ledger, name, recall, known.answered)
        before = known.shown.grant if known.shown is not None else Grant(incarnation="m", account=name)
        if seed.away or (
            (grant.granted, grant.answered) == (before.granted, before.answered)
            and (not grant.recall or grant.recall == before.recall)
        ):
            return
        message = Message(grant, used, known.closed)
        known.shown = message
        self.messages += 1
        self._send(seed, lambda: self._obey(seed, message))
