"""The escrow between one master and two seeds, under any order of lost, repeated, delayed and reordered messages."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from common.quota import account as accounts
from common.quota import escrow, fencing, resources
from common.quota.account import Account, Admitted, Ask, Grant, Reservation
from common.quota.escrow import Holding, MasterLedger, Report
from master.grants.allocation_state import SeedDemand
from master.grants.fair_share import Allotment, allot
from tests.unit.claims import reserve

SEEDS = ("eu", "us")
LIMITS = {"cpu": 12, "memory": 30}
EPOCH = 1

seeds = st.sampled_from(SEEDS)
positions = st.integers(0, 12)
machines = st.fixed_dictionaries({"cpu": st.integers(1, 7), "memory": st.sampled_from([1, 9])})


class Seed:
    """`account` is durable. `objects` are the machines that really are: a count sees these and nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = 0
        self.objects: dict[str, dict[str, int]] = {}
        self.nonces = 0
        self.account = self.begin()
        self.reports: list[Report] = []
        self.publish()

    def nonce(self) -> str:
        self.nonces += 1
        return f"{self.name}-nonce-{self.nonces}"

    def begin(self) -> Account:
        self.lives += 1
        return Account(incarnation=f"{self.name}-{self.lives}", epoch=EPOCH, nonce=self.nonce())

    def publish(self) -> None:
        self.account = replace(self.account, sequence=self.account.sequence + 1)
        accounts.check(self.account)
        self.reports.append(escrow.report(self.account))

    def count(self, account: Account) -> Account:
        return accounts.count(account, EPOCH, "c1", total(self.objects), dict.fromkeys(self.objects, 0))


def total(objects: dict[str, dict[str, int]]) -> dict[str, int]:
    return {name: sum(amounts.get(name, 0) for amounts in objects.values()) for name in LIMITS}


class Escrow(RuleBasedStateMachine):
    """The master may hear reports late, twice or never; a seed may hear any message that was ever sent to it."""

    @initialize()
    def begin(self) -> None:
        self.seeds = {name: Seed(name) for name in SEEDS}
        self.masters = 1
        self.ledger = MasterLedger(incarnation="master-1", seeds={name: Holding() for name in SEEDS})
        self.heard: dict[str, Report] = {}
        self.asked: dict[str, tuple[str, int]] = {}
        self.sent: dict[str, list[Grant]] = {name: [] for name in SEEDS}
        self.uids = 0

    # The seeds ------------------------------------------------------------------------------------------------

    @rule(name=seeds, machine=machines)
    def create(self, name: str, machine: dict[str, int]) -> None:
        seed = self.seeds[name]
        self.uids += 1
        uid = str(self.uids)
        after, outcome = reserve(seed.account, LIMITS, uid, Reservation(source="c1", object=f"m/{uid}", amount=machine))
        if isinstance(outcome, Admitted):
            seed.account = after
            seed.objects[uid] = machine
        elif not seed.account.fenced:
            seed.account = accounts.ask(seed.account, machine, machine, machine, seed.account.ask.number)
        seed.publish()

    @rule(names=st.sets(seeds, min_size=1))
    def exchange(self, names: set[str]) -> None:
        """Everything in order and at once, with some: what it takes to get anywhere."""
        for _ in range(3):
            for name in sorted(names):
                self._hear(name, self.seeds[name].reports[-1])
            self.decide(set(), set(SEEDS) - names)
            for name in sorted(names):
                self._obey(self.seeds[name], self.sent[name][-1])

    @rule(name=seeds, machine=machines)
    def fill(self, name: str, machine: dict[str, int]) -> None:
        for _ in range(3):
            self.create(name, machine)
            self.exchange({name})

    @rule(name=seeds, position=positions)
    def delete(self, name: str, position: int) -> None:
        seed = self.seeds[name]
        if seed.objects:
            seed.objects.pop(sorted(seed.objects)[position % len(seed.objects)])

    @rule(name=seeds)
    def count(self, name: str) -> None:
        seed = self.seeds[name]
        gone = [key for key in seed.account.reservations if key[1] not in seed.objects]
        counted = seed.count(seed.account)
        seed.account = accounts.release(counted, EPOCH, {key: counted.reservations[key] for key in gone})
        seed.publish()

    @rule(name=seeds, position=positions)
    def hear_master(self, name: str, position: int) -> None:
        seed = self.seeds[name]
        if self.sent[name]:
            self._obey(seed, self.sent[name][-1 - position % len(self.sent[name])])

    @rule(name=seeds)
    def hear_master_now(self, name: str) -> None:
        if self.sent[name]:
            self._obey(self.seeds[name], self.sent[name][-1])

    def _obey(self, seed: Seed, grant: Grant) -> None:
        account = seed.account
        if fencing.answers(account, grant):
            gone = {key: kept for key, kept in account.reservations.items() if key[1] not in seed.objects}
            account = accounts.release(seed.count(account), EPOCH, gone)
            seed.account = fencing.reopen(account, EPOCH, grant)
        elif fencing.needs_fence(account, grant):
            seed.account = fencing.fence(account, seed.nonce())
        else:
            seed.account = accounts.give_back(accounts.receive(account, grant), grant.recall)
        seed.publish()

    @rule(name=seeds)
    def doubt(self, name: str) -> None:
        """A new leader that cannot tell what happened before."""
        seed = self.seeds[name]
        seed.account = fencing.fence(seed.account, seed.nonce())
        seed.publish()

    @rule(name=seeds)
    def lose_account(self, name: str) -> None:
        seed = self.seeds[name]
        seed.account = seed.begin()
        seed.publish()

    # The master -----------------------------------------------------------------------------------------------

    @rule(name=seeds, position=positions)
    def hear_seed(self, name: str, position: int) -> None:
        """Any report but those that the API server cannot show again: of a former life, or of a former fence."""
        known = self.heard.get(name)
        reports = [
            report
            for report in self.seeds[name].reports
            if known is None
            or life(report) > life(known)
            or (life(report) == life(known) and (not report.nonce or report.sequence >= known.sequence))
        ]
        self._hear(name, reports[position % len(reports)])

    @rule(name=seeds)
    def hear_seed_now(self, name: str) -> None:
        self._hear(name, self.seeds[name].reports[-1])

    def _hear(self, name: str, report: Report) -> None:
        if not escrow.supersedes(report, self.heard.get(name)):
            return
        self.heard[name] = report
        holding = escrow.absorb(self.ledger.seeds[name], report, self.ledger.incarnation)
        self.ledger = replace(self.ledger, seeds={**self.ledger.seeds, name: holding})
        if all(known.learned for known in self.ledger.seeds.values()):
            self.ledger = replace(self.ledger, learning=False)

    @rule(away=st.sets(seeds), silent=st.sets(seeds))
    def decide(self, away: set[str], silent: set[str]) -> None:
        """Persisting and then showing it only to those not in `silent`, as a crash between the two would."""
        demands = [self._demand(name, name not in away) for name in SEEDS]
        allotment = allot(LIMITS, demands, learning=self.ledger.learning)
        check(allotment, demands, self.ledger)
        raised = {
            name: escrow.raise_granted(self.ledger.seeds[name], more)
            for name, more in allotment.grants.items()
            if self.ledger.seeds[name].learned
        }
        self.ledger = replace(self.ledger, seeds={**self.ledger.seeds, **raised})
        for name, number in allotment.answered.items():
            self.asked[name] = (self.heard[name].incarnation, number)
        for name in SEEDS:
            if name not in silent:
                answered = self.asked.get(name, ("", 0))[1]
                self.sent[name].append(escrow.message(self.ledger, name, allotment.recalls.get(name, {}), answered))

    def _demand(self, name: str, reachable: bool) -> SeedDemand:
        report, holding = self.heard.get(name), self.ledger.seeds[name]
        known = report is not None and holding.learned and not report.nonce and report.incarnation == holding.account
        life, number = self.asked.get(name, ("", 0))
        return SeedDemand(
            name=name,
            held=escrow.held(holding),
            use=resources.add(report.used, report.reserved) if report is not None else {},
            counted=report.used if report is not None else {},
            ask=report.ask if known and report is not None else Ask(),
            answered=number if report is not None and report.incarnation == life else 0,
            reachable=reachable and known,
        )

    @rule()
    def lose_ledger(self) -> None:
        self.masters += 1
        self.ledger = MasterLedger(
            incarnation=f"master-{self.masters}", learning=True, seeds={name: Holding(learned=False) for name in SEEDS}
        )
        self.heard.clear()
        self.asked.clear()

    # What must always hold ------------------------------------------------------------------------------------

    @invariant()
    def never_more_than_the_limit(self) -> None:
        for resource, limit in LIMITS.items():
            assert sum(total(seed.objects)[resource] for seed in self.seeds.values()) <= limit

    @invariant()
    def master_knows_of_all_that_is_held(self) -> None:
        for name, seed in self.seeds.items():
            holding, account = self.ledger.seeds[name], seed.account
            if holding.learned and not account.fenced and account.master == self.ledger.incarnation:
                for resource in LIMITS:
                    assert account.granted.get(resource, 0) <= holding.granted.get(resource, 0)
                    assert account.returned.get(resource, 0) >= holding.returned.get(resource, 0)


def life(report: Report) -> int:
    return int(report.incarnation.rpartition("-")[2])


def check(allotment: Allotment, demands: list[SeedDemand], ledger: MasterLedger) -> None:
    """What the policy may not do, whatever it finds useful."""
    by_name = {demand.name: demand for demand in demands}
    covered = {
        demand.name: {name: max(0, demand.use.get(name, 0) - demand.held.get(name, 0)) for name in LIMITS}
        for demand in demands
    }
    for name, limit in LIMITS.items():
        granted = sum(amounts.get(name, 0) for amounts in allotment.grants.values())
        cover = sum(amounts[name] for amounts in covered.values())
        outstanding = sum(demand.held.get(name, 0) for demand in demands)
        assert granted <= cover + max(0, limit - outstanding - cover)
    for seed, amounts in allotment.recalls.items():
        demand = by_name[seed]
        assert demand.reachable
        for name, amount in amounts.items():
            assert 0 < amount <= demand.held.get(name, 0) - demand.use.get(name, 0)
    for seed in allotment.answered:
        demand = by_name[seed]
        use = {name: sum(other.use.get(name, 0) for other in demands) for name in LIMITS}
        full = any(use[name] + demand.ask.first.get(name, 0) > limit for name, limit in LIMITS.items())
        idle_here = all(
            demand.held.get(name, 0) - demand.use.get(name, 0) >= amount for name, amount in demand.ask.first.items()
        )
        assert full or allotment.grants.get(seed) or allotment.unavailable.get(seed) or idle_here
    if ledger.learning:
        assert not allotment.answered
        assert not allotment.recalls


TestEscrow = Escrow.TestCase
TestEscrow.settings = settings(max_examples=200, stateful_step_count=40)
