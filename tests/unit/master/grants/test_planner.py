"""One decision of the master, fact by fact. What the policy makes of demand is in test_master_allotment.py."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.quota import escrow
from common.quota.account import Ask, Grant
from common.quota.escrow import Holding, MasterLedger, Report
from common.quota.names import MAX_COUNTERS
from common.quota.resources import ResourceList
from master.grants.planner import Decision, SeedFacts, decide, forgotten

LIMITS = {"cpu": 10}


def ledger(learning: bool = False, **granted: int) -> MasterLedger:
    seeds = {name: Holding(account=name, granted={"cpu": amount}) for name, amount in granted.items()}
    return MasterLedger(incarnation="m", learning=learning, seeds=seeds)


def report(name: str, granted: int = 0, used: int = 0, **facts: object) -> Report:
    said = Report(incarnation=name, sequence=5, master="m", granted={"cpu": granted}, used={"cpu": used})
    return msgspec.structs.replace(said, **facts)


def seed(name: str, granted: int = 0, used: int = 0, **facts: object) -> SeedFacts:
    known = SeedFacts(name=name, connected=True, listed=True, tried=True, report=report(name, granted, used))
    return msgspec.structs.replace(known, **facts)


def decided(
    before: MasterLedger, *seeds: SeedFacts, limits: ResourceList | None = None, cold: bool = False
) -> Decision:
    return decide(limits or LIMITS, before, seeds, cold=cold, life="another", now=1000)


def asking(name: str, cpu: int) -> SeedFacts:
    return seed(name, report=report(name, ask=Ask(number=1, first={"cpu": cpu}, wanted={"cpu": cpu})))


AWAY = seed("us", connected=False, listed=False)


def test_who_asks_is_granted_in_the_ledger_that_is_to_be_persisted():
    found = decided(ledger(eu=0), asking("eu", 2))
    assert found.ledger.seeds["eu"].granted["cpu"] >= 2
    assert found.allotment.answered == {"eu": 1}


def test_after_a_cold_start_nothing_is_granted_or_answered_until_every_seed_was_heard():
    found = decided(ledger(eu=0, us=0), asking("eu", 2), AWAY, cold=True)
    assert (found.granting, found.learning) == (False, True)
    assert found.ledger.seeds["eu"].granted == {"cpu": 0} and not found.allotment.answered
    assert decided(ledger(eu=0, us=0), asking("eu", 2), seed("us"), cold=True).granting
    lost = msgspec.structs.replace(AWAY, state="Lost")
    assert decided(ledger(eu=0, us=0), asking("eu", 2), lost, cold=True).granting


def test_without_a_cold_start_a_seed_that_was_tried_in_vain_is_not_waited_for():
    assert decided(ledger(eu=0, us=0), asking("eu", 2), AWAY).granting
    untried = msgspec.structs.replace(AWAY, tried=False)
    found = decided(ledger(eu=0, us=0), asking("eu", 2), untried)
    assert (found.granting, found.learning) == (False, False)


@pytest.mark.parametrize(
    "facts",
    [
        seed("eu", granted=6),  # the account shows more than was granted
        seed("eu", shown=Grant(incarnation="m", account="eu", granted={"cpu": 6})),  # ... or the copy of an older time
        seed("eu", report=None, shown=Grant(incarnation="m", account="eu", granted={"cpu": 6})),  # who has not reported
    ],
)
def test_a_ledger_that_granted_less_than_is_shown_is_an_older_one_and_begins_another_life(facts: SeedFacts):
    found = decided(ledger(eu=5), facts)
    assert found.went_back and found.ledger.incarnation == "another" and found.learning
    assert not found.ledger.seeds["eu"].learned


def test_a_seed_that_came_is_learned_and_one_that_is_lost_frees_what_it_held():
    found = decided(ledger(eu=4), seed("eu", granted=4, state="Lost"), seed("us", report=None))
    assert set(found.ledger.seeds) == {"us"} and not found.ledger.seeds["us"].learned


def test_a_seed_without_a_seed_object_is_kept_as_long_as_it_holds_something():
    assert set(decided(ledger(eu=4), seed("eu", granted=4, state="Gone")).ledger.seeds) == {"eu"}
    back = Holding(account="eu", granted={"cpu": 4}, returned={"cpu": 4})
    empty = MasterLedger(incarnation="m", seeds={"eu": back})
    assert not decided(empty, seed("eu", report=None, state="Gone")).ledger.seeds


def test_while_the_quota_is_over_every_seed_is_told_to_give_back_the_excess_as_it_becomes_free():
    found = decided(ledger(eu=4, us=6), seed("eu", 4, 4), seed("us", 6, 6), limits={"cpu": 2})
    assert found.recalls == {"eu": {"cpu": 4}, "us": {"cpu": 6}}
    assert found.allotment.recalls == {}, "nothing is idle: no seed is slow to react"
    assert decided(ledger(eu=4, us=6), seed("eu", 4, 4), seed("us", 6, 6)).recalls == {}


def test_while_the_quota_is_over_what_is_idle_is_recalled_and_the_rest_of_the_excess_too():
    found = decided(ledger(eu=4, us=6), seed("eu", 4, 3), seed("us", 6, 6), limits={"cpu": 2})
    assert found.allotment.recalls == {"eu": {"cpu": 1}}
    assert found.recalls == {"eu": {"cpu": 4}, "us": {"cpu": 6}}


def test_use_that_nobody_admitted_is_covered_and_recalled_in_one_message():
    found = decided(ledger(eu=5, us=5), seed("eu", 5, 5), seed("us", 5, 8))
    assert found.ledger.seeds["us"].granted == {"cpu": 8}
    assert found.recalls == {"eu": {"cpu": 3}, "us": {"cpu": 3}}


def test_a_report_that_came_late_covers_nothing_that_was_given_back_since():
    before = MasterLedger(
        incarnation="m",
        seeds={
            "eu": Holding(account="eu", granted={"cpu": 2}, returned={"cpu": 1}),
            "us": Holding(account="us", granted={"cpu": 9}),
        },
    )
    found = decided(before, seed("eu", report=report("eu", 2, used=2)), seed("us", 9, 9))
    assert found.ledger == before
    assert found.demands[0].use == {"cpu": 1}, "what it holds: nobody knows what it uses"


def test_a_seed_that_another_life_of_the_ledger_spoke_to_proves_that_it_is_an_older_one():
    before = ledger(eu=4, us=2)
    shown = Grant(incarnation="m2", account="eu", granted={"cpu": 1})
    found = decided(before, seed("eu", 4, shown=shown), asking("us", 4), cold=True)
    assert found.went_back and found.ledger.incarnation == "another" and found.learning
    assert not found.allotment.grants, "what m2 has handed out is not in this ledger"


@pytest.mark.parametrize("own", ["m", "m?", ""])
def test_what_this_life_of_the_ledger_has_shown_proves_nothing(own: str):
    found = decided(ledger(eu=4), seed("eu", 4, shown=Grant(incarnation=own, account="eu")), cold=True)
    assert not found.went_back and found.granting


def test_what_another_life_of_an_account_has_counted_is_not_covered():
    found = decided(ledger(eu=2), seed("eu", report=report("eu before", 2, used=7)))
    assert found.ledger == ledger(eu=2)


def test_a_ledger_that_learns_ends_that_once_every_present_seed_is_learned():
    before = forgotten(ledger(eu=4), "m2")
    assert decided(before, seed("eu", report=None)).learning
    opened = MasterLedger(
        incarnation="m2", learning=True, seeds={"eu": Holding(account="eu", nonce="n", granted={"cpu": 4})}
    )
    assert not decided(opened, seed("eu", report=report("eu", 4, master="m2"))).learning


def test_while_one_present_seed_is_not_learned_nothing_is_granted():
    """What it holds may be all that is left."""
    seeds = {"eu": Holding(account="eu", nonce="n"), "us": Holding(account="us", learned=False)}
    before = MasterLedger(incarnation="m", learning=True, seeds=seeds)
    found = decided(before, asking("eu", 2), seed("us", report=None))
    assert (found.learning, found.granting, found.ledger) == (True, False, before)


def test_a_seed_that_is_not_learned_is_granted_nothing_whatever_it_uses():
    """Its counters are taken from what it says when it asks with a nonce: a grant before that would be forgotten."""
    before = MasterLedger(incarnation="m", seeds={"eu": Holding(learned=False)})
    found = decided(before, seed("eu", report=report("eu", 2, used=7, master="former")))
    assert found.ledger == before
    asked = Ask(number=1, first={"cpu": 1}, wanted={"cpu": 1})
    fenced = report("eu", 2, used=7, master="former", nonce="n", ask=asked)
    found = decided(before, seed("eu", report=fenced))
    assert found.ledger.seeds["eu"].granted == {"cpu": 2}, "what it has said, and nothing more"


@pytest.mark.parametrize("facts", [{"report": {"nonce": "n"}}, {"connected": False}])
def test_an_ask_is_served_only_where_its_answer_would_be_heard(facts: dict[str, Any]):
    """A fenced account takes up no grant, and counts anew before it asks again."""
    asked = report("eu", ask=Ask(number=1, first={"cpu": 2}, wanted={"cpu": 2}), **facts.pop("report", {}))
    found = decided(ledger(eu=0), seed("eu", report=asked, **facts))
    assert (found.allotment.grants, found.allotment.answered) == ({}, {})


def test_counters_hold_a_bounded_number_of_names_and_known_ones_are_granted_on():
    """They only grow, so a quota whose limits name other resources again and again comes to an end."""
    granted = {f"example.com/{number}": 1 for number in range(MAX_COUNTERS - 1)}
    ledger = MasterLedger(incarnation="m", seeds={"eu": Holding(account="eu", granted=granted)})
    limits = {"cpu": 10, "example.com/new": 10, "example.com/0": 10}
    used = {"cpu": 2, "example.com/new": 3, "example.com/0": 4}
    said = Report(incarnation="eu", sequence=5, master="m", granted=granted, used=used)
    found = decided(ledger, seed("eu", report=said), limits=limits).ledger
    assert found.seeds["eu"].granted == {**granted, "cpu": 2, "example.com/0": 4}
    assert escrow.beyond_counters(found, limits) == ["example.com/new"]
    assert escrow.beyond_counters(ledger, limits) == []
    again = decided(
        found, seed("eu", report=msgspec.structs.replace(said, granted=found.seeds["eu"].granted)), limits=limits
    )
    assert again.ledger is found


def test_surge_under_use_beyond_what_is_held_is_used_as_far_as_it_is_held_and_not_lent():
    before = MasterLedger(
        incarnation="m", seeds={"eu": Holding(account="eu", granted={"cpu": 10, "surge.cpu": 3}), "us": Holding()}
    )
    said = report("eu", used=12, granted=10, reserved={"surge.cpu": 2})
    found = decided(before, seed("eu", report=said), limits={"cpu": 10, "surge.cpu": 4})
    [eu] = [demand for demand in found.demands if demand.name == "eu"]
    assert eu.use == {"cpu": 12, "surge.cpu": 3}
    no_limit = decided(before, seed("eu", report=said), limits={"memory": 10})
    assert no_limit.demands[0].use == {"cpu": 12, "surge.cpu": 2}, "use of what has no limit is beyond nothing"
