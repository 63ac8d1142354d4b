"""Guaranteed shares with random operations on two seeds: neither the limit nor a guarantee is ever exceeded.

The master grants within the limits of each counter, as long as all of them together are within the limit.
"""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.quota import account as accounts
from common.quota import guarantees, resources
from common.quota.account import Account, Admitted, Grant, Reservation
from common.quota.guarantees import Guarantee
from common.quota.reservations import Reserving

LIMIT = 20
PROJECTS = ("alpha", "beta", "gamma")
SEEDS = ("eu", "us")
GIVEN = {guarantees.counter("alpha", "cpu"): 5, guarantees.counter("beta", "cpu"): 3}
COUNTERS = ("cpu", *GIVEN)

seeds, projects, amounts = st.sampled_from(SEEDS), st.sampled_from(PROJECTS), st.integers(1, 8)


class InForce(RuleBasedStateMachine):
    """Owners are known, and what is guaranteed does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.given = dict(GIVEN)
        self.there = {(seed, project): 0 for seed in SEEDS for project in PROJECTS}
        owners = {f"ns/{project}": project for project in PROJECTS}
        self.accounts = {seed: Account(incarnation=seed, master="m", epoch=1, owners=owners) for seed in SEEDS}
        self.number = 0

    @property
    def limits(self) -> dict[str, int]:
        return {"cpu": LIMIT, **self.given}

    def outstanding(self) -> dict[str, int]:
        return resources.total(accounts.held(each) for each in self.accounts.values())

    @rule(seed=seeds, name=st.sampled_from(COUNTERS), amount=amounts)
    def grant(self, seed: str, name: str, amount: int) -> None:
        held = self.outstanding()
        left = resources.subtract(guarantees.of_counters(self.limits, held), held)
        amount = min(amount, guarantees.together(left).get(name, 0))
        if amount > 0:
            present = self.accounts[seed]
            granted = resources.add(present.granted, {name: amount})
            message = Grant(incarnation="m", account=seed, granted=granted)
            self.accounts[seed] = accounts.apply_grant(present, message)

    @rule(seed=seeds, name=st.sampled_from(COUNTERS), amount=amounts)
    def recall(self, seed: str, name: str, amount: int) -> None:
        present = self.accounts[seed]
        self.accounts[seed] = accounts.give_back(present, {name: present.returned.get(name, 0) + amount})

    @rule(seed=seeds, project=projects, amount=amounts)
    def create(self, seed: str, project: str, amount: int) -> None:
        reserving = Reserving(self.accounts[seed], self.limits)
        self.number += 1
        wish = Reservation(source=f"ns/{project}", object="o", amount={"cpu": amount})
        if isinstance(reserving.claim(str(self.number), wish), Admitted):
            self.accounts[seed] = reserving.account()
            self.there[seed, project] += amount

    @rule(seed=seeds, project=projects)
    def count(self, seed: str, project: str) -> None:
        present, source = self.accounts[seed], f"ns/{project}"
        seen = {uid: 1 for (of, uid) in present.reservations if of == source}
        used = {"cpu": self.there[seed, project]}
        self.accounts[seed] = accounts.count(present, 1, source, used, seen)

    @rule(seed=seeds, project=projects, amount=amounts)
    def delete(self, seed: str, project: str, amount: int) -> None:
        self.there[seed, project] -= min(amount, self.there[seed, project])
        self.count(seed, project)

    @invariant()
    def what_is_there_is_within_the_limit(self) -> None:
        assert sum(self.there.values()) <= sum(self.outstanding().values()) <= LIMIT

    @invariant()
    def what_each_seed_uses_is_within_what_it_holds(self) -> None:
        for seed, present in self.accounts.items():
            used = sum(self.there[seed, project] for project in PROJECTS)
            assert used <= sum(accounts.held(present).values())

    @invariant()
    def each_project_has_what_it_is_guaranteed(self) -> None:
        kept = 0
        for project in PROJECTS:
            used = sum(self.there[seed, project] for seed in SEEDS)
            kept += max(used, self.given.get(guarantees.counter(project, "cpu"), 0))
        assert kept <= LIMIT


class Changing(InForce):
    """Only the limit holds."""

    @rule(seed=seeds, project=st.sampled_from((*PROJECTS, "")), of=projects)
    def move(self, seed: str, project: str, of: str) -> None:
        """Also to nobody, as in a ledger that an earlier release has written."""
        present, source = self.accounts[seed], f"ns/{of}"
        owners = {name: owner for name, owner in present.owners.items() if name != source}
        owners = {**owners, source: project} if project else owners
        self.accounts[seed] = msgspec.structs.replace(present, owners=owners)

    @rule(name=st.sampled_from(list(GIVEN)), amount=st.integers(0, 7))
    def guarantee(self, name: str, amount: int) -> None:
        self.given[name] = amount

    @invariant()
    def each_project_has_what_it_is_guaranteed(self) -> None: ...


@given(
    given=st.dictionaries(st.sampled_from(PROJECTS), st.integers(1, 9), max_size=2),
    used=st.dictionaries(st.sampled_from(PROJECTS), st.integers(0, 12)),
    project=st.sampled_from(PROJECTS),
)
def test_what_is_said_to_fit_is_what_a_seed_admits(given: dict[str, int], used: dict[str, int], project: str) -> None:
    """A seed that holds all of the limit, and advice of the numbers that the master shows (rule 4.16)."""
    if sum(given.values()) > LIMIT or sum(used.values()) > LIMIT:
        return
    hard = {name: {"cpu": amount} for name, amount in given.items()}
    kept = guarantees.kept_from(
        [Guarantee(project=name, hard=each, used={"cpu": used.get(name, 0)}) for name, each in hard.items()], project
    )
    said = max(LIMIT - sum(used.values()) - kept.get("cpu", 0), 0)
    limits = guarantees.ceilings({"cpu": LIMIT}, [Guarantee(project=name, hard=each) for name, each in hard.items()])
    present = Account(
        incarnation="a",
        master="m",
        epoch=1,
        granted=guarantees.of_counters(limits),
        owners={f"ns/{name}": name for name in PROJECTS},
        used={f"ns/{name}": {"cpu": amount} for name, amount in used.items()},
    )
    reserving = Reserving(present, limits)
    admitted = 0
    while isinstance(
        reserving.claim(str(admitted), Reservation(source=f"ns/{project}", object="o", amount={"cpu": 1})), Admitted
    ):
        admitted += 1
    lent = sum(max(used.get(name, 0), given.get(name, 0)) for name in PROJECTS) > LIMIT
    assert said <= admitted if lent else said == admitted


TestInForce, TestChanging = InForce.TestCase, Changing.TestCase
for _case in (TestInForce, TestChanging):
    _case.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
