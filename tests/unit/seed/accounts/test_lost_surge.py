"""A seed loses its ledger in a rollout, again and again: what the master decides, by what the account says and does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from common.quota import account as accounts
from common.quota import escrow, fencing, resources, surge, surge_loans
from common.quota.account import Account, Admitted, Outcome, Reservation, Short
from common.quota.escrow import Holding, MasterLedger
from common.quota.resources import ResourceList
from master.grants.planner import SeedFacts, decide
from tests.unit.claims import reserve

LIMIT, SURGE = 10, 3
CEILINGS = surge.ceilings({"cpu": LIMIT}, {"cpu": SURGE})
ONE = {"cpu": 1}


class World:
    """Seeds that tell the master all at once and hear him at once. Each Machine has one CPU, and is counted at once."""

    def __init__(self, **machines: int) -> None:
        self.numbers = itertools.count(1)
        self.ceilings: Mapping[str, int] = CEILINGS
        self.accounts = {seed: Account(incarnation=seed, master="m", epoch=1) for seed in machines}
        self.ledger = MasterLedger(incarnation="m", seeds={seed: Holding(account=seed) for seed in machines})
        self.answered = dict.fromkeys(machines, 0)
        self.machines: dict[str, list[str]] = {seed: [] for seed in machines}
        for seed, count in machines.items():
            for _ in range(count):
                assert self.create(seed)

    @property
    def total(self) -> int:
        return sum(len(machines) for machines in self.machines.values())

    def held(self, seed: str) -> ResourceList:
        return {name: amount for name, amount in escrow.held(self.ledger.seeds[seed]).items() if amount}

    def count(self, seed: str) -> None:
        account, present = self.accounts[seed], dict.fromkeys(self.machines[seed], ONE)
        self.accounts[seed] = surge_loans.count(
            account,
            1,
            seed,
            resources.total(present.values()),
            seen=dict.fromkeys(present, 1),
            gone=(),
            sizes={uid: size for uid, size in present.items() if uid in surge_loans.of_source(account, seed)},
            present=present,
        )

    def talk(self) -> None:
        for _ in range(5):
            facts = [
                SeedFacts(
                    name=seed,
                    connected=True,
                    listed=True,
                    tried=True,
                    report=escrow.report(account),
                    answered=self.answered[seed],
                )
                for seed, account in self.accounts.items()
            ]
            decided = decide(self.ceilings, self.ledger, facts, cold=False, life="another", now=1000)
            assert not decided.went_back
            self.ledger = decided.ledger
            self.answered.update(decided.allotment.answered)
            for seed, account in self.accounts.items():
                said = escrow.message(self.ledger, seed, decided.recalls.get(seed, {}), self.answered[seed])
                if fencing.answers(account, said):
                    self.count(seed)
                    self.accounts[seed] = fencing.reopen(self.accounts[seed], 1, said)
                else:
                    self.accounts[seed] = accounts.apply_grant(account, said)

    def create(self, seed: str, replaces: str = "") -> bool:
        uid = f"{seed}-{next(self.numbers)}"
        need = surge.lent(ONE, {"cpu": SURGE}) if replaces else ONE
        wish = Reservation(source=seed, object="kube-system/m", amount=need, replaces=replaces)
        outcome = self._claim(seed, uid, wish)
        if isinstance(outcome, Short):
            self.accounts[seed] = accounts.ask(self.accounts[seed], self.ceilings, need, need, self.answered[seed])
            self.talk()
            outcome = self._claim(seed, uid, wish)
        if isinstance(outcome, Admitted):
            self.machines[seed].append(uid)
            self.count(seed)
            self.talk()
        return isinstance(outcome, Admitted)

    def _claim(self, seed: str, uid: str, wish: Reservation) -> Outcome:
        self.accounts[seed], outcome = reserve(self.accounts[seed], self.ceilings, uid, wish)
        return outcome

    def roll(self, seed: str) -> int:
        """A rollout makes as many beside those that are there as it can."""
        older = list(self.machines[seed])
        assert not self.create(seed), "the quota is full"
        return sum(self.create(seed, replaces=uid) for uid in older)

    def delete(self, seed: str, count: int) -> None:
        del self.machines[seed][:count]
        self.count(seed)
        self.talk()

    def lose(self, seed: str) -> None:
        life = f"{seed}-{next(self.numbers)}"
        self.accounts[seed] = Account(incarnation=life, nonce=life, epoch=1)
        self.talk()
        assert not self.accounts[seed].fenced


def test_however_often_the_ledger_is_lost_there_is_no_more_than_the_limit_and_one_surge() -> None:
    world = World(eu=10)
    assert world.roll("eu") == SURGE
    for _ in range(3):
        world.lose("eu")
        assert world.roll("eu") == 0
        assert world.total == LIMIT + SURGE
        assert accounts.use(world.accounts["eu"])["surge.cpu"] == SURGE


def test_the_master_lends_none_of_it_elsewhere_either() -> None:
    world = World(eu=5, us=5)
    assert world.roll("eu") == SURGE
    world.lose("eu")
    assert world.roll("us") == 0
    assert world.held("us") == {"cpu": 5}


def test_as_the_older_ones_go_the_rollout_goes_on_and_nothing_is_left_beyond_the_limit() -> None:
    world = World(eu=10)
    world.roll("eu")
    world.lose("eu")
    world.delete("eu", 2)
    assert world.roll("eu") == 0, "one of those that were lent to is still beyond the limit"
    world.delete("eu", 1)
    assert world.total == LIMIT
    assert world.roll("eu") == SURGE
    world.delete("eu", 3)
    assert world.total == LIMIT
    assert world.accounts["eu"].reservations == {}
    assert surge.beyond(accounts.use(world.accounts["eu"])) == {}


def test_what_another_seed_frees_is_its_place_within_the_limit() -> None:
    world = World(eu=5, us=5)
    world.roll("eu")
    world.lose("eu")
    world.delete("us", 3)
    assert world.held("eu") == {"cpu": 8, "surge.cpu": SURGE}
    assert surge.beyond(accounts.use(world.accounts["eu"])) == {}
    assert world.roll("eu") == SURGE, "all that is counted is within the limit"


@pytest.mark.parametrize("meanwhile", [{"cpu": LIMIT}, surge.ceilings({"cpu": LIMIT}, {"cpu": 1})])
def test_a_surge_that_is_taken_away_and_given_again_is_not_lent_again(meanwhile: ResourceList) -> None:
    world = World(eu=10)
    world.roll("eu")
    world.lose("eu")
    world.ceilings = meanwhile
    world.talk()
    world.ceilings = CEILINGS
    world.talk()
    assert world.roll("eu") == 0
    assert world.total == LIMIT + SURGE


def test_what_nobody_admitted_takes_what_is_idle_of_the_surge_there_and_is_covered_beyond_it() -> None:
    world = World(eu=10)
    world.roll("eu")
    world.delete("eu", 3)  # now the surge is idle there
    world.machines["eu"] += [f"slipped-{number}" for number in range(5)]
    world.count("eu")
    world.talk()
    assert world.held("eu")["cpu"] == LIMIT + 5 - SURGE
    assert world.roll("eu") == 0
