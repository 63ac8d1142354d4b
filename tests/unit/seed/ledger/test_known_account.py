from __future__ import annotations

import pytest

from common.quota.account import Account
from seed.ledger.known_account import KnownAccount
from seed.ledger.store import Stored

BEFORE = Stored(Account(incarnation="first", sequence=4), "25")
LATER = Stored(Account(incarnation="first", sequence=5), "30")
REBUILT = Stored(Account(incarnation="second", sequence=1), "39")


def knowing(stored: Stored) -> KnownAccount:
    known = KnownAccount()
    assert known.loaded(stored, None)
    return known


@pytest.mark.parametrize("before", [BEFORE, REBUILT])
def test_a_read_counts_more_than_a_late_report_of_another_life(before: Stored) -> None:
    """Else somebody is refused by what a lost ledger had."""
    known = knowing(before)
    assert known.observed(LATER)
    assert known.loaded(REBUILT, before)
    assert known.stored is REBUILT


def test_what_is_reported_while_a_read_is_under_way_is_newer_in_the_same_life() -> None:
    known = knowing(BEFORE)
    assert known.observed(LATER)
    assert not known.loaded(BEFORE, BEFORE)
    assert known.stored is LATER


def test_a_read_that_finds_what_is_known_is_no_news() -> None:
    known = knowing(BEFORE)
    assert not known.loaded(BEFORE, BEFORE)


def test_a_read_finds_what_was_reported_as_gone() -> None:
    known = knowing(BEFORE)
    assert known.observed(None)
    assert known.loaded(BEFORE, BEFORE)
    assert known.stored is BEFORE
