"""A rollout's Machines on surge: never more counted than is held, and every loan ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.quota import account as accounts
from common.quota import reservations, resources, surge, surge_loans
from common.quota.account import Account, Admitted, Occupied, Outcome, ReplacementConflict, Reservation, Short
from common.quota.resources import ResourceList
from tests.unit.claims import reserve

SOURCE = "alpha/c1"
LIMITS = surge.ceilings({"cpu": 16, "machines": 4}, {"cpu": 4, "machines": 1})
HELD = {"cpu": 16, "machines": 4, "surge.cpu": 4, "surge.machines": 1}
SIZE = {"cpu": 4, "machines": 1}


def full(**changes: Any) -> Account:
    """Four Machines of 4 are counted: m0 to m3."""
    account = Account(incarnation="life", master="m", epoch=1, granted=HELD, used={SOURCE: {"cpu": 16, "machines": 4}})
    return msgspec.structs.replace(account, **changes)


def loan(replaces: str, need: ResourceList = SIZE, source: str = SOURCE) -> Reservation:
    amount = surge.lent(need, {"cpu": 4, "machines": 1})
    return Reservation(source=source, object="kube-system/new", amount=amount, replaces=replaces)


def lend(account: Account, uid: str, reservation: Reservation) -> Account:
    after, outcome = reserve(account, LIMITS, uid, reservation)
    assert isinstance(outcome, Admitted), outcome
    return after


def counted(account: Account, machines: dict[str, ResourceList], gone: frozenset[str] = frozenset()) -> Account:
    return surge_loans.count(
        account,
        1,
        SOURCE,
        resources.total(machines.values()),
        seen=dict.fromkeys(machines, 0),
        gone=gone,
        sizes={uid: machines[uid] for uid in surge_loans.of_source(account, SOURCE) if uid in machines},
        present=machines,
    )


OLD: dict[str, ResourceList] = {f"m{number}": SIZE for number in range(4)}


def test_a_full_account_admits_one_more_on_surge_and_nothing_else() -> None:
    account = lend(full(), "new", loan("m0"))
    _, refused = reserve(account, LIMITS, "grown", Reservation(source=SOURCE, object="k/g", amount=SIZE))
    assert refused == Short({"cpu": 4, "machines": 1})
    _, refused = reserve(account, LIMITS, "second", loan("m1"))
    assert refused == Short({"surge.cpu": 4, "surge.machines": 1})


def test_while_both_are_there_the_newer_one_stands_on_surge_and_is_not_counted() -> None:
    account = counted(lend(full(), "new", loan("m0")), {**OLD, "new": SIZE})
    assert accounts.use(account) == {"cpu": 16, "machines": 4, "surge.cpu": 4, "surge.machines": 1}
    assert (SOURCE, "new") in account.reservations
    accounts.check(account)


def test_once_the_older_one_is_gone_the_newer_one_takes_its_place_and_the_surge_is_free() -> None:
    account = counted(lend(full(), "new", loan("m0")), {"m1": SIZE, "m2": SIZE, "m3": SIZE, "new": SIZE})
    assert accounts.use(account) == {"cpu": 16, "machines": 4}
    assert account.reservations == {}
    lend(account, "next", loan("m1"))


def test_whichever_machine_goes_the_newer_one_takes_its_place() -> None:
    """A controller does not know which one the account names."""
    account = counted(lend(full(), "new", loan("m0")), {"m0": SIZE, "m1": SIZE, "m2": SIZE, "new": SIZE})
    assert accounts.use(account) == {"cpu": 16, "machines": 4}
    assert account.reservations == {}
    lend(account, "next", loan("m0"))


@pytest.mark.parametrize("goes", ["m0", "m1"])
def test_of_two_on_surge_the_one_whose_older_one_went_takes_the_place(goes: str) -> None:
    """Else the other's older one could be named once more, and in the end a newer one were left without any."""
    wide = surge.ceilings({"cpu": 16, "machines": 4}, {"cpu": 8, "machines": 2})
    account = full(granted={**HELD, "surge.cpu": 8, "surge.machines": 2})
    for uid, replaced in (("new", "m0"), ("newer", "m1")):
        account, outcome = reserve(account, wide, uid, loan(replaced))
        assert isinstance(outcome, Admitted), outcome
    machines: dict[str, ResourceList] = {**OLD, "new": SIZE, "newer": SIZE}
    del machines[goes]
    account = counted(account, machines)
    assert accounts.use(account) == {"cpu": 16, "machines": 4, "surge.cpu": 4, "surge.machines": 1}
    assert [kept.replaces for kept in account.reservations.values()] == [{"m0": "m1", "m1": "m0"}[goes]]


def test_the_place_of_an_older_one_is_kept_for_a_newer_one_that_nobody_has_seen_yet() -> None:
    """Else who delays its creation could fill the place, and have it all the same."""
    machines: dict[str, ResourceList] = {"m1": SIZE, "m2": SIZE, "m3": SIZE}
    account = counted(lend(full(), "new", loan("m0")), machines)
    assert accounts.use(account) == {"cpu": 16, "machines": 4}
    accounts.check(account)
    _, refused = reserve(account, LIMITS, "grown", Reservation(source=SOURCE, object="k/g", amount=SIZE))
    assert refused == Short({"cpu": 4, "machines": 1})
    again = lend(account, "new", Reservation(source=SOURCE, object="kube-system/new", amount=SIZE))
    assert accounts.use(again) == accounts.use(account)
    account = counted(account, {**machines, "new": SIZE})
    assert accounts.use(account) == {"cpu": 16, "machines": 4}
    assert account.reservations == {}


def test_a_newer_one_that_goes_gives_the_surge_back() -> None:
    account = counted(lend(full(), "new", loan("m0")), OLD, gone=frozenset({"new"}))
    assert accounts.use(account) == {"cpu": 16, "machines": 4}
    assert account.reservations == {}


def test_a_newer_one_that_is_larger_than_the_place_stays_on_surge_until_it_fits() -> None:
    account = lend(full(used={SOURCE: {"cpu": 14, "machines": 4}}), "new", loan("m0"))
    small: dict[str, ResourceList] = {**OLD, "m0": {"cpu": 2, "machines": 1}}
    taken = lend(account, "other", Reservation(source=SOURCE, object="k/o", amount={"cpu": 2}))
    taken = counted(taken, {**small, "new": SIZE})
    machines: dict[str, ResourceList] = {"m1": SIZE, "m2": SIZE, "m3": SIZE, "new": SIZE}
    account = counted(taken, machines)
    assert (SOURCE, "new") in account.reservations, "2 became free, 4 are needed: else 18 of 16 were used"
    amount = account.reservations[SOURCE, "new"].amount
    assert amount == {"cpu": 2, "machines": 1, "surge.cpu": 2}, "what became free is kept for it"
    assert accounts.use(account)["cpu"] == 16
    account = counted(
        accounts.release(account, 1, {(SOURCE, "other"): account.reservations[SOURCE, "other"]}), machines
    )
    assert accounts.use(account) == {"cpu": 16, "machines": 4}


def test_what_is_free_after_the_older_one_went_is_kept_for_the_newer_one_that_lacks_something_else() -> None:
    """Else another takes it, and what the newer one has on surge is quota from then on."""
    need: ResourceList = {"cpu": 4, "memory": 2}
    old: dict[str, ResourceList] = {"m0": {"cpu": 4, "memory": 1}, "m1": {"cpu": 4, "memory": 1}}
    held = {"cpu": 8, "memory": 2, "surge.cpu": 4, "surge.memory": 2}
    account = full(granted=held, used={SOURCE: resources.total(old.values())})
    lent = Reservation(
        source=SOURCE, object="k/n", amount={f"surge.{name}": a for name, a in need.items()}, replaces="m0"
    )
    account, outcome = reserve(account, held, "new", lent)
    assert isinstance(outcome, Admitted)
    account = counted(account, {"m1": old["m1"], "new": need})
    accounts.check(account)
    assert account.reservations[SOURCE, "new"].amount == {"cpu": 4, "memory": 1, "surge.memory": 1}
    other = Reservation(source=SOURCE, object="k/o", amount={"cpu": 1})
    assert reserve(account, held, "other", other)[1] == Short({"cpu": 1})


def test_nobody_is_replaced_twice_or_before_it_is_counted() -> None:
    wide = surge.ceilings({"cpu": 16, "machines": 4}, {"cpu": 16, "machines": 4})
    account = full(granted={**HELD, "surge.cpu": 16, "surge.machines": 4})
    account, _ = reserve(account, wide, "new", loan("m0"))
    assert reserve(account, wide, "again", loan("m0"))[1] == ReplacementConflict()
    assert reserve(account, wide, "chained", loan("new"))[1] == ReplacementConflict(), "its place is surge, not quota"


def test_a_machine_of_another_cluster_under_the_same_uid_is_another_one() -> None:
    wide = surge.ceilings({"cpu": 16, "machines": 4}, {"cpu": 16, "machines": 4})
    account = full(granted={**HELD, "surge.cpu": 16, "surge.machines": 4})
    account, _ = reserve(account, wide, "new", loan("m0"))
    for uid, replaced in (("other", "m0"), ("chained", "new")):
        account, outcome = reserve(account, wide, uid, loan(replaced, source="alpha/c2"))
        assert isinstance(outcome, Admitted), outcome


def test_what_is_on_loan_is_not_changed() -> None:
    account = lend(full(), "new", loan("m0"))
    update = Reservation(source=SOURCE, object="kube-system/new", amount={"cpu": 0}, generation=2)
    assert reserve(account, LIMITS, "new", update)[1] == ReplacementConflict()


def test_a_repeat_of_a_loan_costs_nothing() -> None:
    account = lend(full(), "new", loan("m0"))
    assert accounts.use(lend(account, "new", loan("m0"))) == accounts.use(account)


def test_a_quota_without_surge_lends_nothing() -> None:
    """A resource that no limit names is unlimited; surge is none where there is none, also once it was taken away."""
    limits = {"cpu": 16, "machines": 4}
    _, outcome = reserve(full(), limits, "new", loan("m0"))
    assert outcome == Short({"surge.cpu": 4, "surge.machines": 1})


@pytest.mark.parametrize("ended", [False, True], ids=["on surge", "ended meanwhile"])
def test_a_loan_that_nobody_was_told_of_is_undone(ended: bool) -> None:
    lent = loan("m0")
    account, admitted = reserve(full(), LIMITS, "new", lent)
    assert isinstance(admitted, Admitted)
    before = counted(full(), dict(list(OLD.items())[1:])) if ended else full()
    if ended:
        account = counted(account, dict(list(OLD.items())[1:]))
        assert account.reservations[SOURCE, "new"].replaces == ""
    for after in (reservations.withdraw(account, "new", lent), reservations.cancel(account, "new", admitted)):
        assert after == before
        accounts.check(after)


def test_loans_of_another_source_are_left_alone() -> None:
    account = lend(full(), "new", loan("x0", source="alpha/c2"))
    after = counted(account, OLD)
    assert after.reservations == account.reservations


def forgotten(cpu: int = 20) -> Account:
    """As it is after its ledger was lost in a rollout: what stood on surge is counted."""
    return full(used={SOURCE: {"cpu": cpu, "machines": 4}})


def test_use_beyond_what_is_held_occupies_the_surge_that_is_held() -> None:
    assert accounts.use(forgotten(18)) == {"cpu": 18, "machines": 4, "surge.cpu": 2}
    assert accounts.free(forgotten(18), LIMITS) == {"cpu": -2, "machines": 0, "surge.cpu": 2, "surge.machines": 1}
    assert accounts.use(forgotten(40))["surge.cpu"] == 4, "there is no more of it"
    lent = lend(full(), "new", loan("m0"))
    beyond = msgspec.structs.replace(lent, used={SOURCE: {"cpu": 18, "machines": 4}})
    assert accounts.use(beyond)["surge.cpu"] == 4, "all of it is lent already"


@pytest.mark.parametrize("cpu", [18, 20])
def test_no_surge_is_lent_beside_what_stands_on_it_since_a_loss(cpu: int) -> None:
    """Not even what is left of it: who is lent that could name the older one of a loan that nobody remembers."""
    small = loan("m0", {"cpu": 1})
    assert reserve(forgotten(cpu), LIMITS, "next", small)[1] == Occupied({"surge.cpu": cpu - 16})
    lend(forgotten(16), "next", small)


def test_a_loan_that_is_asked_for_again_beside_such_use_needs_nothing() -> None:
    account = lend(full(), "new", loan("m0", {"cpu": 1}))
    account = msgspec.structs.replace(account, used={SOURCE: {"cpu": 18, "machines": 4}})
    assert accounts.use(lend(account, "new", loan("m0", {"cpu": 1}))) == accounts.use(account)


def test_where_the_limit_was_lowered_below_use_surge_is_lent_as_before() -> None:
    """What is used there is held."""
    lowered = surge.ceilings({"cpu": 8, "machines": 2}, {"cpu": 4, "machines": 1})
    assert isinstance(reserve(full(), lowered, "new", loan("m0"))[1], Admitted)


def test_surge_under_use_beyond_what_is_held_is_not_given_back() -> None:
    everything = {"surge.cpu": 4, "cpu": 16}
    assert accounts.give_back(forgotten(20), everything).returned == {}
    assert accounts.give_back(forgotten(18), everything).returned == {"surge.cpu": 2}
    assert accounts.give_back(full(), everything).returned == {"surge.cpu": 4}


WIDE = {**HELD, "surge.cpu": 8, "surge.machines": 2}


def test_a_loan_whose_older_one_goes_takes_its_place_also_where_more_is_used_than_held() -> None:
    """Else another might take the place, and the newer one stand on surge with no older one to go."""
    account = lend(full(granted=WIDE), "new", loan("m0"))
    machines: dict[str, ResourceList] = {**OLD, "slipped": SIZE, "new": SIZE}
    account = counted(account, machines)
    assert accounts.use(account) == {"cpu": 20, "machines": 5, "surge.cpu": 8, "surge.machines": 2}
    del machines["m0"]
    account = counted(account, machines)
    assert account.reservations == {}
    assert accounts.use(account) == {"cpu": 20, "machines": 5, "surge.cpu": 4, "surge.machines": 1}


def test_a_loan_whose_older_one_stands_takes_no_place_beyond_what_is_held() -> None:
    account = lend(full(granted=WIDE), "new", loan("m0"))
    account = counted(account, {**OLD, "slipped": SIZE, "new": SIZE})
    account = counted(account, {**OLD, "new": SIZE})
    assert [kept.replaces for kept in account.reservations.values()] == ["m0"]


@pytest.mark.parametrize("stored", [False, True], ids=["not stored yet", "stored"])
def test_what_an_older_one_gives_up_while_it_is_replaced_is_kept_for_the_newer_one(stored: bool) -> None:
    account = lend(full(), "new", loan("m0"))
    machines: dict[str, ResourceList] = {**OLD, "m0": {"cpu": 1, "machines": 1}}
    if stored:
        machines["new"] = SIZE
    account = counted(account, machines)
    accounts.check(account)
    assert account.reservations[SOURCE, "new"].amount == {"cpu": 3, "surge.cpu": 1, "surge.machines": 1}
    assert accounts.use(account) == {"cpu": 16, "machines": 4, "surge.cpu": 1, "surge.machines": 1}
    other = Reservation(source=SOURCE, object="k/o", amount={"cpu": 1, "machines": 0})
    assert reserve(account, LIMITS, "other", other)[1] == Short({"cpu": 1})
    del machines["m0"]
    account = counted(account, machines)
    accounts.check(account)
    assert accounts.use(account) == {"cpu": 16, "machines": 4}, "it has the place of the older one"
    assert [kept.replaces for kept in account.reservations.values()] == ([] if stored else [""])


def test_what_an_older_one_gives_up_ends_the_loan_where_it_is_enough() -> None:
    account = lend(full(), "new", loan("m0", {"cpu": 2}))
    machines: dict[str, ResourceList] = {**OLD, "m0": {"cpu": 2, "machines": 1}, "new": {"cpu": 2}}
    account = counted(account, machines)
    assert account.reservations == {}
    assert accounts.use(account) == {"cpu": 16, "machines": 4}


class Rollouts(RuleBasedStateMachine):
    """A tenant who tries to turn surge into quota: he creates, with and without a rollout, deletes and resizes."""

    limits = surge.ceilings({"cpu": 8}, {"cpu": 4})

    @initialize(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=2))
    def begin(self, sizes: list[int]) -> None:
        self.machines: dict[str, ResourceList] = {f"m{number}": {"cpu": cpu} for number, cpu in enumerate(sizes)}
        self.account = full(granted={"cpu": 8, "surge.cpu": 4}, used={SOURCE: resources.total(self.machines.values())})
        self.late: dict[str, ResourceList] = {}  # admitted, and not stored yet
        self.number = 0

    def count(self) -> None:
        gone = frozenset({*accounts.of_source(self.account, SOURCE)} - {*self.machines} - {*self.late})
        self.account = counted(self.account, self.machines, gone)

    def create(self, reservation: Reservation, size: ResourceList, *, late: bool = False) -> Outcome:
        self.number += 1
        self.account, outcome = reserve(self.account, self.limits, f"n{self.number}", reservation)
        if isinstance(outcome, Admitted):
            (self.late if late else self.machines)[f"n{self.number}"] = size
        return outcome

    @rule()
    def arrive(self) -> None:
        self.machines.update(self.late)
        self.late.clear()

    @rule(cpu=st.integers(1, 4))
    def grow(self, cpu: int) -> None:
        size = {"cpu": cpu}
        self.create(Reservation(source=SOURCE, object="k/n", amount=size), size)

    @rule()
    def fill(self) -> None:
        free = accounts.free(self.account, self.limits)["cpu"]
        if free > 0:
            self.grow(free)

    @precondition(lambda self: self.machines)
    @rule(data=st.data(), cpu=st.integers(1, 4), late=st.booleans())
    def roll(self, data: st.DataObject, cpu: int, late: bool) -> None:
        """Whatever size it has and whomever it names: admission checks that, and what follows must not depend on it."""
        size = {"cpu": cpu}
        self.create(loan(data.draw(st.sampled_from(sorted(self.machines))), size), size, late=late)

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.machines.pop(data.draw(st.sampled_from(sorted(self.machines))))

    @rule()
    def go_on(self) -> None:
        """The rollout's next step: what is replaced goes."""
        for kept in self.account.reservations.values():
            self.machines.pop(kept.replaces, None)

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.machines)))
        if (SOURCE, uid) not in self.account.reservations:
            self.machines[uid] = {**self.machines[uid], "cpu": max(1, self.machines[uid]["cpu"] - 1)}

    @rule()
    def look(self) -> None:
        self.count()

    @invariant()
    def neither_limit_nor_surge_is_exceeded(self) -> None:
        accounts.check(self.account)
        there = resources.total([*self.machines.values(), *self.late.values()])
        assert there.get("cpu", 0) <= sum(self.limits.values())
        used = accounts.use(self.account)
        assert all(used.get(name, 0) <= limit for name, limit in self.limits.items()), used

    def teardown(self) -> None:
        """However it went, nothing stays on surge once there is room."""
        if not hasattr(self, "account"):
            return
        self.arrive()
        lent = surge_loans.of_source(self.account, SOURCE)
        self.machines = {uid: size for uid, size in self.machines.items() if uid in lent}
        for _ in range(2):
            self.count()
        assert not any(surge.beyond(accounts.use(self.account)).values())


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(max_examples=200, stateful_step_count=30)


class LostLedgers(Rollouts):
    """... and now and then the ledger is lost. Who is replaced takes as much, and all keep their sizes."""

    shrink = None

    @initialize()
    def no_loans(self) -> None:
        self.older: dict[str, str] = {}  # by the newer one

    @precondition(lambda self: self.machines)
    @rule(data=st.data(), cpu=st.integers(1, 4), late=st.booleans())
    def roll(self, data: st.DataObject, cpu: int, late: bool) -> None:
        older = data.draw(st.sampled_from(sorted(self.machines)))
        size = {"cpu": min(cpu, self.machines[older]["cpu"])}
        if isinstance(self.create(loan(older, size), size, late=late), Admitted):
            self.older[f"n{self.number}"] = older

    @rule()
    def lose_the_ledger(self) -> None:
        """When the account is open again, what was admitted has come or cannot come. It holds what it held."""
        self.arrive()
        self.account = full(granted=self.account.granted, used={SOURCE: resources.total(self.machines.values())})

    @invariant()
    def neither_limit_nor_surge_is_exceeded(self) -> None:
        accounts.check(self.account)
        there = {**self.machines, **self.late}
        beyond = resources.total(there.values()).get("cpu", 0) - self.limits["cpu"]
        assert beyond <= self.limits["surge.cpu"]
        beside: dict[str, int] = {}
        for newer, older in self.older.items():
            if newer in there and older in self.machines:
                beside[older] = max(beside.get(older, 0), there[newer]["cpu"])
        assert beyond <= sum(beside.values()), "what is beyond the limit has an older one that is still to go"


TestLostLedgers = LostLedgers.TestCase
TestLostLedgers.settings = settings(max_examples=200, stateful_step_count=30)


@pytest.mark.parametrize("name", ["cpu", "nvidia.com/gpu"])
def test_names_of_surge_and_back(name: str) -> None:
    need = surge.lent({name: 3, "memory": 5}, {name: 9})
    assert surge.beyond(need) == {name: 3}
    assert surge.regular(need) == {"memory": 5}
