"""Guaranteed shares, decision by decision (rule 4.16)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.quota import account as accounts
from common.quota import escrow, guarantees, names
from common.quota.account import Account, Admitted, Grant, Reservation, Short
from common.quota.guarantees import Guarantee
from common.quota.reservations import Reserving

ALPHA = guarantees.counter("alpha", "cpu")
BETA = guarantees.counter("beta", "cpu")
LIMITS = {"cpu": 100, ALPHA: 16}
OWNERS = {"ns/alpha": "alpha"}


def account(**changes: Any) -> Account:
    """A seed that holds half of the organization's limit, and of what alpha is guaranteed."""
    made = Account(incarnation="a", master="m", epoch=1, granted={"cpu": 42, ALPHA: 8}, owners=OWNERS)
    return msgspec.structs.replace(made, **changes)


def used(alpha: int = 0, sibling: int = 0, **changes: Any) -> Account:
    return account(used={"ns/alpha": {"cpu": alpha}, "ns/beta": {"cpu": sibling}}, **changes)


def takes(present: Account, source: str, cpu: int, limits: dict[str, int] | None = None) -> bool:
    reserving = Reserving(present, limits or LIMITS)
    match reserving.claim("new", Reservation(source=source, object="o", amount={"cpu": cpu})):
        case Admitted():
            return True
        case Short():
            return False
    raise AssertionError("it has place")


@pytest.mark.parametrize(
    ("alpha", "sibling", "of_alpha", "of_sibling"),
    [
        (0, 0, 50, 42),
        (0, 42, 8, 0),
        (5, 42, 3, 0),
        (8, 42, 0, 0),
        (8, 40, 2, 2),
        (20, 0, 30, 30),  # 8 of alpha are charged to its guarantee, 12 are like a sibling's
        (20, 30, 0, 0),
    ],
)
def test_a_project_takes_its_guarantee_first_and_then_what_all_may_take(
    alpha: int, sibling: int, of_alpha: int, of_sibling: int
) -> None:
    present = used(alpha, sibling)
    for source, most in (("ns/alpha", of_alpha), ("ns/beta", of_sibling), ("ns/new", of_sibling)):
        assert most == 0 or takes(present, source, most)
        assert not takes(present, source, most + 1)


def test_claims_of_one_write_are_decided_one_after_the_other() -> None:
    reserving = Reserving(used(0, 40), LIMITS)
    outcomes = [
        reserving.claim(f"{source}{number}", Reservation(source=source, object="o", amount={"cpu": 4}))
        for number, source in enumerate(("ns/alpha", "ns/beta", "ns/alpha", "ns/beta", "ns/alpha"))
    ]
    assert [isinstance(outcome, Admitted) for outcome in outcomes] == [True, False, True, False, False]
    assert guarantees.of_projects(reserving.account()) == {ALPHA: 8}


def test_a_limit_or_a_guarantee_that_was_changed_is_obeyed_at_once() -> None:
    present = used(0, 30)
    assert not takes(present, "ns/beta", 1, {"cpu": 46, ALPHA: 16}), "46 less 16 are for all"
    assert takes(present, "ns/alpha", 8, {"cpu": 46, ALPHA: 16})
    assert not takes(present, "ns/alpha", 9, {"cpu": 38, ALPHA: 16}), "38 are all that there is"
    assert not takes(present, "ns/alpha", 13, {"cpu": 100}), "nothing is guaranteed any more"


def test_what_is_charged_is_not_returned_and_the_rest_is() -> None:
    recall = {"cpu": 100, ALPHA: 100}
    assert accounts.give_back(used(5, 30), recall).returned == {"cpu": 12, ALPHA: 3}
    assert accounts.give_back(used(20, 30), recall).returned == {}
    assert accounts.give_back(used(0, 42), recall).returned == {ALPHA: 8}


def test_use_beyond_what_is_for_all_keeps_the_guarantee_that_it_stands_on() -> None:
    """Of a cluster whose owner is not known any more, or that nobody admitted."""
    present = used(8, 42, owners={})
    assert not takes(present, "ns/alpha", 1) and not takes(present, "ns/beta", 1)
    assert accounts.give_back(present, {"cpu": 100, ALPHA: 100}).returned == {}
    less = used(0, 45)
    assert takes(less, "ns/alpha", 5) and not takes(less, "ns/alpha", 6)
    assert accounts.give_back(less, {ALPHA: 100}).returned == {ALPHA: 5}


def test_reports_say_what_projects_use_beside_the_sum() -> None:
    said = escrow.report(used(20, 30))
    assert (said.used, said.projects) == ({"cpu": 50}, {ALPHA: 20})
    charged = guarantees.charges(said.projects, {"cpu": 42, ALPHA: 8})
    assert guarantees.split({"cpu": 50}, charged) == {"cpu": 42, ALPHA: 8}


def test_what_may_be_granted_of_each_counter_is_the_limit_together() -> None:
    limits = {"cpu": 100, "memory": 7, ALPHA: 16, BETA: 4}
    assert guarantees.of_counters(limits) == {"cpu": 80, "memory": 7, ALPHA: 16, BETA: 4}
    assert guarantees.of_counters({"cpu": 100}, [ALPHA]) == {"cpu": 100, ALPHA: 0}
    assert guarantees.of_counters(limits, [], {ALPHA: 30}) == {"cpu": 66, "memory": 7, ALPHA: 30, BETA: 4}
    assert guarantees.of_counters({"cpu": 20, ALPHA: 16, BETA: 10}) == {"cpu": 0, ALPHA: 16, BETA: 4}
    assert guarantees.of_counters({"cpu": 5}) == {"cpu": 5}


def test_what_one_counter_has_too_much_no_other_can_get() -> None:
    left = {"cpu": -5, ALPHA: 3, BETA: 4, "memory": 2}
    assert guarantees.together(left) == {"cpu": -5, ALPHA: 0, BETA: 2, "memory": 2}
    assert guarantees.together({"cpu": 6, ALPHA: -4}) == {"cpu": 2, ALPHA: -4}


def test_a_project_asks_for_its_guarantee_first() -> None:
    given = [Guarantee(project="alpha", hard={"cpu": 16}, used={"cpu": 14})]
    assert guarantees.asked({"cpu": 5, "memory": 1}, given, "alpha") == {"cpu": 3, "memory": 1, ALPHA: 2}
    assert guarantees.asked({"cpu": 5}, given, "beta") == {"cpu": 5}
    assert guarantees.kept_from(given, "beta") == {"cpu": 2} and guarantees.kept_from(given, "alpha") == {}
    assert guarantees.used_by_others(given, {"cpu": 99}, {"cpu": 100}) == {"cpu": 1}
    assert guarantees.used_by_others(given, {"cpu": 98}, {"cpu": 100}) == {}


def test_what_a_seed_keeps_is_what_it_holds_and_nobody_uses() -> None:
    held = {"cpu": 20, ALPHA: 8, BETA: 4}
    charged = guarantees.split({"cpu": 10}, guarantees.charges({ALPHA: 3}, held))
    assert guarantees.idle_by_project(charged, held) == {"alpha": {"cpu": 5}, "beta": {"cpu": 4}}
    assert guarantees.idle_by_project({"cpu": 24, ALPHA: 8, BETA: 1}, held) == {"beta": {"cpu": 3}}
    assert guarantees.idle_by_project({"cpu": 10}, {"cpu": 20}) == {}


def test_a_source_that_goes_has_no_owner() -> None:
    assert accounts.forget_source(used(1, 1), 1, "ns/alpha").owners == {}
    assert accounts.forget_source(used(1, 1), 1, "ns/beta").owners == OWNERS


def test_no_tenant_can_name_a_counter() -> None:
    assert not names.is_valid(ALPHA) and not names.is_valid("guaranteed.x")


def test_a_recall_of_the_limit_leaves_the_guarantee() -> None:
    grant = Grant(incarnation="m", account="a", granted=account().granted, recall={"cpu": 100})
    assert accounts.apply_grant(account(), grant).returned == {"cpu": 42}
