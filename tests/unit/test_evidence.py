from __future__ import annotations

import msgspec
import pytest

from common.account import Account, Reservation
from seed import evidence
from seed.evidence import Finding

KEY = ("ns/a", "u")


def reservation(**facts: object) -> Reservation:
    return msgspec.structs.replace(Reservation(source="ns/a", object="ns/m", amount={"cpu": 1}), **facts)


def test_a_reservation_is_overdue_only_after_the_window_since_it_was_seen_as_it_is():
    first = Account(incarnation="a", reservations={KEY: reservation()})
    known = evidence.watched(first, {}, now=10.0)
    assert evidence.overdue(known, 5.0, now=15.0) == []
    assert evidence.overdue(known, 5.0, now=15.1) == [(KEY, reservation())]
    claimed_again = Account(incarnation="a", reservations={KEY: reservation(claims=2)})
    known = evidence.watched(claimed_again, known, now=15.1)
    assert evidence.overdue(known, 5.0, now=20.0) == []
    assert evidence.watched(Account(incarnation="a"), known, now=21.0) == {}


@pytest.mark.parametrize(
    ("generation", "countable", "counted", "finding"),
    [
        (None, True, True, Finding.NEVER_CAME),
        (None, False, False, Finding.NEVER_CAME),
        (3, True, True, Finding.THERE),
        (4, False, True, Finding.THERE),
        (2, True, True, Finding.NEVER_CHANGED),
        (2, True, False, Finding.STILL_UNCLEAR),
        (2, False, True, Finding.THERE),
    ],
)
def test_what_a_consistent_read_says_of_an_update(
    generation: int | None, countable: bool, counted: bool, finding: Finding
):
    update = reservation(generation=3)
    assert evidence.conclude(update, generation, countable=countable, counted=counted) is finding
