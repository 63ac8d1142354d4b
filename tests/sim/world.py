"""A small deterministic world: a master, two seeds, their sources, and a network that delays, loses and repeats.

It runs the real decision functions (`common.account`, `common.grants`, `master.allotment`) and nothing else of the
product. Everything that happens is drawn from one seeded generator, so a schedule is known by its number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

from common import account as accounts
from common import grants, resources
from common.account import Account, Admitted, Ask, Fenced, Grant, Reservation, Short
from common.grants import Holding, MasterLedger, Report
from common.resources import ResourceList
from master.allotment import Seat, allot

SIZES: tuple[ResourceList, ...] = ({"cpu": 1, "memory": 2}, {"cpu": 2, "memory": 4}, {"cpu": 4, "memory": 4})
SMALLEST = SIZES[0]
WINDOW = 4  # ticks in which an admitted request persists, or never
STEPS = 80
REPEATED, LOST = 0.15, 0.3  # of the messages, 15 % come again later and 15 % never come
MAX_IN_FLIGHT = 30  # messages of one direction; beyond that the oldest is lost


class Violation(AssertionError):
    """What must never happen has happened."""


@dataclass(frozen=True)
class Message:
    """What the master shows a seed: the grant, and the global use as of its answer."""

    grant: Grant
    used: ResourceList


@dataclass(frozen=True)
class Pending:
    """An admitted creation on its way to etcd."""

    uid: str
    size: ResourceList
    until: int


@dataclass
class Waiting:
    """A request that found too little and waits for the master, as a webhook call does, for a while."""

    uid: str
    size: ResourceList
    until: int


@dataclass
class SeedState:
    """One seed. The account is durable, the history is the API server's, the rest is one leader's memory."""

    name: str
    account: Account
    history: list[dict[str, ResourceList]] = field(default_factory=lambda: [{}])  # objects by uid, state by state
    pending: list[Pending] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    listed: int = 0
    at: int = 0
    first_seen: dict[str, int] = field(default_factory=dict)
    message: Message | None = None
    said: Report | None = None
    asked: int = 0
    answered: int = 0
    uids: int = 0
    admitted: int = 0
    refused: int = 0

    @property
    def objects(self) -> dict[str, ResourceList]:
        return self.history[-1]


class World:
    def __init__(self, number: int) -> None:
        self.number = number
        self.random = random.Random(number)
        self.now = 0
        units = self.random.randint(4, 24)
        self.limits: ResourceList = {"cpu": units, "memory": self.random.randint(units, 3 * units)}
        names = ["eu-1", "us-1"]
        self.seeds = {name: SeedState(name, Account(incarnation=name, master="m", epoch=1)) for name in names}
        self.ledger = MasterLedger(incarnation="m", seeds={name: Holding(account=name) for name in names})
        self.reports: dict[str, Report] = {}
        self.shown: dict[str, Message] = {}
        self.answered = dict.fromkeys(names, 0)
        self.to_master: list[tuple[str, Report]] = []
        self.to_seed: list[tuple[str, Message]] = []
        self.lossy = True
        self.growing = names[0]  # where most is created, while the other shrinks: capacity has to move

    # Requests ----------------------------------------------------------------------------------------------------

    def create(self, seed: SeedState, size: ResourceList) -> str:
        seed.uids += 1
        uid = f"{seed.name}-{seed.uids}"
        self._claim(seed, Waiting(uid, size, self.now + WINDOW))
        return uid

    def _claim(self, seed: SeedState, request: Waiting) -> None:
        if seed.message is not None:
            seed.account = accounts.receive(seed.account, seed.message.grant)
        wanted = Reservation(source="ns/c", object=f"ns/{request.uid}", amount=request.size)
        account, outcome = accounts.reserve(seed.account, self.limits, request.uid, wanted)
        match outcome:
            case Admitted():
                self._persist(seed, account)
                seed.pending.append(Pending(request.uid, request.size, self.now + WINDOW))
                seed.admitted += 1
            case Short():
                seed.waiting.append(request)
            case Fenced():
                seed.refused += 1

    def _ask(self, seed: SeedState) -> None:
        """All that wait ask together, one ask at a time."""
        if seed.waiting and seed.answered >= seed.asked:
            wanted = resources.total(request.size for request in seed.waiting)
            self._persist(seed, accounts.ask(seed.account, self.limits, seed.waiting[0].size, wanted, seed.answered))
            seed.asked = seed.account.ask.number
            self._report(seed)

    def _persist(self, seed: SeedState, account: Account) -> None:
        if account is not seed.account:
            accounts.check(account)
            seed.account = msgspec.structs.replace(account, sequence=account.sequence + 1)

    # Counting ----------------------------------------------------------------------------------------------------

    def write(self, seed: SeedState, uid: str, size: ResourceList | None) -> None:
        after = {name: found for name, found in seed.objects.items() if name != uid}
        if size is not None:
            after[uid] = size
        seed.history.append(after)

    def count(self, seed: SeedState) -> None:
        there = seed.history[seed.at]
        known = {uid for state in seed.history[seed.listed : seed.at] for uid in state}
        used = resources.total(there.values())
        counted = accounts.count(
            seed.account, seed.account.epoch, "ns/c", used, dict.fromkeys(there, 1), gone=known - there.keys()
        )
        self._persist(seed, counted)

    def release(self, seed: SeedState) -> None:
        """Rule 4.5: a consistent read that does not find it, made after the in-flight window has passed."""
        absent = {}
        for uid, reservation in seed.account.reservations.items():
            first = seed.first_seen.setdefault(uid, self.now)
            if self.now - first > WINDOW and uid not in seed.objects:
                absent[uid] = reservation
        self._persist(seed, accounts.release(seed.account, seed.account.epoch, absent))

    def crash(self, seed: SeedState) -> None:
        """Another leads: it writes its term, then lists. What waited in the old one's memory is gone."""
        self._persist(seed, accounts.claim_epoch(seed.account, seed.account.epoch + 1))
        seed.listed = seed.at = len(seed.history) - 1
        seed.first_seen.clear()
        seed.waiting.clear()
        seed.message = None
        seed.answered = seed.asked = 0

    # Messages ----------------------------------------------------------------------------------------------------

    def _report(self, seed: SeedState, *, again: bool = False) -> None:
        """Nothing is said twice, except to make up for losses."""
        said = grants.report(seed.account)
        if again or said != seed.said:
            seed.said = said
            self.to_master.append((seed.name, said))
            del self.to_master[:-MAX_IN_FLIGHT]

    def hear_report(self, name: str, said: Report) -> None:
        if grants.supersedes(said, self.reports.get(name)):
            self.reports[name] = said
            holding = grants.absorb(self.ledger.seeds[name], said, self.ledger.incarnation)
            self.ledger = MasterLedger(incarnation="m", seeds={**self.ledger.seeds, name: holding})
        self.decide()

    def decide(self, *, again: bool = False) -> None:
        """The master: one snapshot in, a durable ledger and a message to each seed out."""
        seats = []
        for name, holding in self.ledger.seeds.items():
            said = self.reports.get(name)
            use = resources.add(said.used, said.reserved) if said is not None else {}
            asked = said.ask if said is not None else Ask()
            seats.append(Seat(seed=name, held=grants.held(holding), use=use, ask=asked, answered=self.answered[name]))
        decided = allot(self.limits, seats)
        holdings = dict(self.ledger.seeds)
        for name, more in decided.grants.items():
            holdings[name] = grants.raise_granted(holdings[name], more)
        self.ledger = MasterLedger(incarnation="m", seeds=holdings)
        self.answered.update(decided.answered)
        used = resources.total(seat.use for seat in seats)
        for name in self.seeds:
            recall = decided.recalls.get(name, {})
            message = Message(grants.message(self.ledger, name, recall, self.answered[name]), used)
            if again or message != self.shown.get(name):
                self.shown[name] = message
                self.to_seed.append((name, message))
        del self.to_seed[:-MAX_IN_FLIGHT]

    def hear_grant(self, name: str, message: Message) -> None:
        seed = self.seeds[name]
        seed.message = message
        seed.answered = max(seed.answered, message.grant.answered)
        self._persist(seed, accounts.obey(seed.account, message.grant))
        waiting, seed.waiting = seed.waiting, []
        for request in waiting:
            full = message.grant.answered >= seed.asked and resources.short(
                request.size, resources.subtract(self.limits, message.used)
            )
            if full:
                seed.refused += 1
            else:
                self._claim(seed, request)
        self._ask(seed)
        self._report(seed)

    def deliver(self) -> None:
        """Any message that is under way: it arrives, and may arrive again, or it is lost."""
        waiting = len(self.to_master) + len(self.to_seed)
        if not waiting:
            return
        place = self.random.randrange(waiting)
        fate = self.random.random() if self.lossy else 1.0
        if place < len(self.to_master):
            name, said = self.to_master[place] if fate < REPEATED else self.to_master.pop(place)
            if not REPEATED <= fate < LOST:
                self.hear_report(name, said)
        else:
            place -= len(self.to_master)
            name, message = self.to_seed[place] if fate < REPEATED else self.to_seed.pop(place)
            if not REPEATED <= fate < LOST:
                self.hear_grant(name, message)

    # One step ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.random.random() < 0.08:
            self.growing = self.random.choice(list(self.seeds))
        seed = self.random.choice(list(self.seeds.values()))
        chance = self.random.random()
        if chance < 0.30:
            if self.random.random() < 0.6:
                seed = self.seeds[self.growing]
            self.create(seed, self.random.choice(SIZES))
            self._ask(seed)
        elif chance < 0.40:
            self._end_request(seed)
        elif chance < 0.50:
            if seed.objects and (seed.name != self.growing or self.random.random() < 0.2):
                self.write(seed, self.random.choice(list(seed.objects)), None)
        elif chance < 0.58:
            seed.at = self.random.randint(seed.at, len(seed.history) - 1)
            self.count(seed)
            self._report(seed)
        elif chance < 0.60:
            self.tick()
        elif chance < 0.62:
            self.release(seed)
        elif chance < 0.64:
            self.crash(seed)
        elif chance < 0.66:
            self._report(seed, again=True)
        elif chance < 0.68:
            self.decide(again=True)
        else:
            self.deliver()
        self.check()

    def _end_request(self, seed: SeedState) -> None:
        if not seed.pending:
            return
        request = seed.pending.pop(self.random.randrange(len(seed.pending)))
        if self.random.random() < 0.8:
            self.write(seed, request.uid, request.size)

    def tick(self) -> None:
        self.now += 1
        for seed in self.seeds.values():
            seed.pending = [request for request in seed.pending if request.until >= self.now]
            seed.waiting = [request for request in seed.waiting if request.until >= self.now]

    def check(self) -> None:
        sizes = [
            size
            for seed in self.seeds.values()
            for size in (*seed.objects.values(), *(request.size for request in seed.pending))
        ]
        outstanding = grants.outstanding(self.ledger)
        for name, limit in self.limits.items():
            if (admitted := sum(size[name] for size in sizes)) > limit:
                raise Violation(f"{admitted} {name} admitted, the limit is {limit}")
            if outstanding.get(name, 0) > limit:
                raise Violation(f"{outstanding[name]} {name} granted, the limit is {limit}")
            for seed in self.seeds.values():
                account, holding = seed.account, self.ledger.seeds[seed.name]
                if account.granted.get(name, 0) > holding.granted.get(name, 0):
                    raise Violation(f"{seed.name} has more {name} than was granted")
                if holding.returned.get(name, 0) > account.returned.get(name, 0):
                    raise Violation(f"{seed.name} returned less {name} than the master believes")

    # The end -----------------------------------------------------------------------------------------------------

    def quiet(self) -> None:
        """Nothing new happens, nothing is lost, time passes: all that was begun comes to its end."""
        self.lossy = False
        for _ in range(2):
            for _ in range(WINDOW + 1):
                self.tick()
            for seed in self.seeds.values():
                seed.at = len(seed.history) - 1
                self.count(seed)
                self.release(seed)
                self._report(seed, again=True)
            self._settle()
            self.decide(again=True)
            self._settle()
        for seed in self.seeds.values():
            if seed.account.reservations:
                raise Violation(f"{seed.name} keeps reservations of nothing: {sorted(seed.account.reservations)}")
            if accounts.use(seed.account) != {**dict.fromkeys(accounts.use(seed.account), 0), **_sum(seed)}:
                raise Violation(f"{seed.name} counts {accounts.use(seed.account)}, there is {_sum(seed)}")

    def _settle(self) -> None:
        for _ in range(1000):
            if not self.to_master and not self.to_seed:
                return
            self.deliver()
            self.check()
        raise Violation("the messages never end")

    def fill(self) -> None:
        """What is left can be used to the last unit, from whichever seed."""
        while True:
            seed = self.random.choice(list(self.seeds.values()))
            there = resources.total(_sum(each) for each in self.seeds.values())
            fits = not resources.short(SMALLEST, resources.subtract(self.limits, there))
            uid = self.create(seed, SMALLEST)
            self._ask(seed)
            self._settle()
            admitted = [request for request in seed.pending if request.uid == uid]
            if bool(admitted) != fits:
                raise Violation(
                    f"{seed.name} {'refused' if fits else 'admitted'} {SMALLEST} at {there} of {self.limits}"
                )
            if not admitted:
                return
            seed.pending.clear()
            self.write(seed, uid, SMALLEST)
            if self.random.random() < 0.5:
                seed.at = len(seed.history) - 1
                self.count(seed)
                self._report(seed)
            self.check()


def _sum(seed: SeedState) -> dict[str, int]:
    return resources.total(seed.objects.values())


def run(number: int) -> World:
    """One schedule. Raises Violation."""
    world = World(number)
    for _ in range(STEPS):
        world.step()
    world.quiet()
    world.fill()
    return world
