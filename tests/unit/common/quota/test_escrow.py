"""What a master takes from a report, beyond what tests/property/test_grants.py explores."""

from __future__ import annotations

import msgspec
import pytest

from common.quota import escrow
from common.quota.account import Ask
from common.quota.escrow import Holding, ImpossibleReportError, LedgerWentBackError, MasterLedger, Report
from common.quota.names import MAX_HELD
from master.grants.planner import forgotten
from master.quotas.ledger_store import fresh


def test_a_late_report_of_the_same_life_replaces_none_that_came_after_it():
    known = Report(incarnation="a", sequence=7)
    assert not escrow.supersedes(Report(incarnation="a", sequence=6), known)
    assert escrow.supersedes(Report(incarnation="a", sequence=8), known)
    assert escrow.supersedes(Report(incarnation="b", sequence=1), known)
    assert escrow.supersedes(Report(incarnation="a", sequence=1, nonce="n"), known)


@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_a_report_is_late_if_it_lacks_something_of_what_was_returned(name: str):
    holding = Holding(account="a", granted={"cpu": 4, "memory": 4}, returned={"cpu": 2, "memory": 2})
    said = Report(incarnation="a", returned={"cpu": 2, "memory": 2})
    assert not escrow.is_late(holding, said)
    late = msgspec.structs.replace(said, returned={**said.returned, name: 1})
    assert escrow.is_late(holding, late)
    assert not escrow.is_late(holding, msgspec.structs.replace(late, incarnation="b")), "another life has counters anew"


def test_a_ledger_without_a_seed_that_was_granted_something_is_an_older_one():
    known = MasterLedger(incarnation="m", seeds={"eu": Holding(granted={"cpu": 4}), "us": Holding(granted={"cpu": 0})})
    without_us = MasterLedger(incarnation="m", seeds={"eu": Holding(granted={"cpu": 4})})
    assert escrow.went_back(MasterLedger(incarnation="m", seeds={"us": Holding()}), known)
    assert escrow.went_back(MasterLedger(incarnation="m", seeds={"eu": Holding(granted={"cpu": 3})}), known)
    assert not escrow.went_back(without_us, known), "nothing was granted to it"
    assert not escrow.went_back(MasterLedger(incarnation="m2"), known), "another life"


def test_a_recall_says_what_has_to_be_returned_in_all():
    """R only grows: an amount on its own would be met by what was returned before."""
    ledger = MasterLedger(incarnation="m", seeds={"eu": Holding(account="a", granted={"cpu": 9}, returned={"cpu": 4})})
    assert escrow.message(ledger, "eu", {"cpu": 2}, 0).recall == {"cpu": 6}
    assert escrow.message(ledger, "eu", {}, 0).recall == {}


def test_a_seed_that_was_granted_more_than_the_ledger_knows_shows_that_it_went_backwards():
    holding = Holding(account="a", granted={"cpu": 4})
    with pytest.raises(LedgerWentBackError):
        escrow.absorb(holding, Report(incarnation="a", master="m", granted={"cpu": 8}), "m")


def test_an_account_that_is_open_under_a_ledger_that_knows_of_none_shows_that_it_went_backwards():
    """It was restored from before the account was opened: without another life the two would never agree again."""
    opened = Report(incarnation="a", master="m")
    with pytest.raises(LedgerWentBackError):
        escrow.absorb(Holding(), opened, "m")
    assert escrow.absorb(Holding(), Report(incarnation="a", master="another"), "m") == Holding()
    assert escrow.absorb(Holding(account="later"), opened, "m") == Holding(account="later")


def test_what_another_master_granted_covers_the_account_that_opens_with_it():
    holding = Holding(account="a", granted={"cpu": 4})
    said = Report(incarnation="a", master="former", nonce="n", granted={"cpu": 8}, returned={"cpu": 1})
    after = escrow.absorb(holding, said, "m")
    assert (after.granted, after.returned, after.nonce) == ({"cpu": 8}, {"cpu": 1}, "n")


def test_an_unknown_account_is_told_to_fence_itself_then_handed_its_own_counters_then_known():
    ledger = MasterLedger(incarnation="m", learning=True, seeds={"eu": Holding(learned=False)})
    assert escrow.message(ledger, "eu", {}, 0).incarnation == "m?"

    open_under_former = Report(incarnation="a", master="former", granted={"cpu": 8})
    assert escrow.absorb(ledger.seeds["eu"], open_under_former, "m") == Holding(learned=False)

    fenced = Report(incarnation="a", master="former", nonce="n", granted={"cpu": 8}, returned={"cpu": 2})
    asked = escrow.absorb(ledger.seeds["eu"], fenced, "m")
    assert not asked.learned
    answer = escrow.message(MasterLedger(incarnation="m", seeds={"eu": asked}), "eu", {}, 0)
    assert (answer.nonce, answer.granted, answer.returned) == ("n", {"cpu": 8}, {"cpu": 2})

    opened = escrow.absorb(asked, Report(incarnation="a", master="m", granted={"cpu": 9}, returned={"cpu": 2}), "m")
    assert opened.learned
    assert opened.granted == {"cpu": 9}


def test_a_new_quota_grants_at_once_and_a_lost_ledger_learns_first():
    assert all(holding.learned for holding in fresh(["eu", "us"], learning=False).seeds.values())
    assert not any(holding.learned for holding in fresh(["eu"], learning=True).seeds.values())
    before = MasterLedger(incarnation="m", seeds={"eu": Holding(account="a", nonce="n", granted={"cpu": 8})})
    after = forgotten(before, "another")
    assert after.learning
    assert after.incarnation != "m"
    assert after.seeds["eu"] == Holding(granted={"cpu": 8}, learned=False)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"granted": {"cpu": 4}, "returned": {"cpu": 5}}, "returned"),
        ({"returned": {"memory": 1}}, "returned"),
        ({"granted": {"cpu": -4}, "returned": {"cpu": -5}}, "less than nothing"),
        ({"used": {"cpu": -1}}, "less than nothing"),
        ({"reserved": {"cpu": -1}}, "less than nothing"),
        ({"ask": Ask(number=1, first={"cpu": -1})}, "less than nothing"),
    ],
)
def test_a_report_that_no_account_can_have_is_none(said, wrong):
    escrow.check(Report(incarnation="a", granted={"cpu": 4}, returned={"cpu": 4}, used={"cpu": 1}))
    with pytest.raises(ImpossibleReportError, match=wrong):
        escrow.check(Report(incarnation="a", **said))


@pytest.mark.parametrize("nonce", ["", "n"])
@pytest.mark.parametrize("learned", [True, False])
def test_a_seed_has_returned_no_more_than_it_was_granted(nonce: str, learned: bool):
    """What it returned is granted to others: a seed that lies could lift the limit for all of them."""
    holding = Holding(account="a", nonce="n", granted={"cpu": 4}, returned={"cpu": 1}, learned=learned)
    lie = Report(incarnation="a", master="another", nonce=nonce, granted={"cpu": 900}, returned={"cpu": 900})
    assert min(escrow.held(escrow.absorb(holding, lie, "m")).values()) >= 0
    assert escrow.absorb(holding, msgspec.structs.replace(lie, granted={}), "m") == holding


def test_a_report_with_more_names_than_a_ledger_takes_is_not_taken_up():
    """Else the ledger could not be written any more, and nothing be granted to any seed."""
    holding = Holding(account="a", granted={"cpu": 4})
    many = {f"r{number}": 1 for number in range(MAX_HELD)}
    said = Report(incarnation="b", nonce="n", granted=many)
    assert escrow.absorb(holding, said, "m") == holding
    del many["r0"]
    assert len(escrow.absorb(holding, said, "m").granted) == MAX_HELD
