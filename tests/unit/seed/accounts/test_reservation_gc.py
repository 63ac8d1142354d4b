from __future__ import annotations

import msgspec
import pytest

from common.quota.account import Account, Reservation
from seed.accounts import reservation_gc
from seed.accounts.reservation_gc import Entry, Finding

KEY = ("ns/a", "u")


def reservation(**facts: object) -> Reservation:
    return msgspec.structs.replace(Reservation(source="ns/a", object="ns/m", amount={"cpu": 1}), **facts)


def test_a_reservation_is_overdue_only_after_the_window_since_it_was_seen_as_it_is():
    first = Account(incarnation="a", reservations={KEY: reservation()})
    known = reservation_gc.watched(first, {}, now=10.0)
    assert reservation_gc.overdue(known, 5.0, now=15.0) == []
    assert reservation_gc.overdue(known, 5.0, now=15.1) == [(KEY, reservation())]
    claimed_again = Account(incarnation="a", reservations={KEY: reservation(claims=2)})
    known = reservation_gc.watched(claimed_again, known, now=15.1)
    assert reservation_gc.overdue(known, 5.0, now=20.0) == []
    assert reservation_gc.watched(Account(incarnation="a"), known, now=21.0) == {}


def test_a_reservation_is_not_overdue_while_the_caches_may_be_older_than_it():
    """By what they show, the quota may not select the namespace of its object."""
    known = reservation_gc.watched(Account(incarnation="a", reservations={KEY: reservation()}), {}, now=10.0)
    assert reservation_gc.overdue(known, 5.0, now=99.0, proven=9.9) == []
    assert reservation_gc.overdue(known, 5.0, now=99.0, proven=10.0) == [(KEY, reservation())]


def entry(name: str, source: str = "ns/a") -> Entry:
    return (source, name), reservation(source=source, object=f"ns/{name}")


def test_those_go_first_that_were_looked_at_longest_ago() -> None:
    due = [entry("a"), entry("b"), entry("c"), entry("d")]
    looked = {("ns/a", "a"): 2.0, ("ns/a", "b"): 1.0}
    assert [uid for (_, uid), _ in reservation_gc.in_turn(due, looked)] == ["c", "d", "b", "a"]


def test_a_source_with_many_keeps_no_other_waiting() -> None:
    due = [*(entry(f"m{number}") for number in range(4)), entry("x", "ns/b"), entry("y", "ns/b")]
    assert [uid for (_, uid), _ in reservation_gc.in_turn(due, {})] == ["m0", "x", "m1", "y", "m2", "m3"]
    looked = dict.fromkeys((("ns/a", f"m{number}") for number in range(4)), 1.0)
    assert next(uid for (_, uid), _ in reservation_gc.in_turn(due, looked)) == "x"


def test_creations_that_should_have_come_are_unseen_until_they_are_overdue() -> None:
    waiting = dict(
        [
            entry("old"),
            entry("young"),
            entry("overdue"),
            (("ns/a", "update"), reservation(generation=2)),
            entry("x", "ns/b"),
        ]
    )
    account = Account(incarnation="a", reservations=waiting)
    at = {"old": 20.0, "young": 29.0, "overdue": 5.0, "update": 20.0, "x": 24.0}
    known = {key: (kept, at[key[1]]) for key, kept in waiting.items()}
    found = reservation_gc.unseen(account, known, set(), window=24.0, now=30.0)
    assert {party: [uid for (_, uid), _ in creations] for party, creations in found.items()} == {
        "ns/a": ["old"],
        "ns/b": ["x"],
    }
    held = msgspec.structs.replace(account, held_back=("ns/a",))
    found = reservation_gc.unseen(held, known, set(), window=24.0, now=30.0)
    uids = [uid for (_, uid), _ in found["ns/a"]]
    assert uids == ["old", "young"], "it came before that, though this leader came after"


def of_tenant(uid: str, tenant: str, source: str = "ns/a") -> reservation_gc.Entry:
    key, kept = entry(uid, source)
    return key, msgspec.structs.replace(kept, tenant=tenant)


def test_what_should_have_come_is_told_by_tenant_where_a_source_has_several() -> None:
    waiting = dict([of_tenant("x", "project/x"), of_tenant("y", "project/y"), of_tenant("young", "project/x")])
    account = Account(incarnation="a", reservations=waiting)
    known = {key: (kept, 29.0 if key[1] == "young" else 20.0) for key, kept in waiting.items()}

    def unseen(*held_back: str) -> dict[str, list[str]]:
        held = msgspec.structs.replace(account, held_back=held_back)
        found = reservation_gc.unseen(held, known, set(), window=24.0, now=30.0)
        return {party: [uid for (_, uid), _ in creations] for party, creations in found.items()}

    assert unseen() == unseen("ns/a project/y") == {"ns/a project/x": ["x"], "ns/a project/y": ["y"]}
    assert unseen("ns/a project/x")["ns/a project/x"] == ["x", "young"]
    assert unseen("ns/a")["ns/a project/x"] == ["x", "young"], "as a leader of an earlier release wrote it"


def test_tenants_of_a_source_take_turns_and_no_source_has_more_turns_by_having_many() -> None:
    due = [*(of_tenant(f"x{number}", "project/x") for number in range(3)), of_tenant("y", "project/y")]
    due += [entry("b0", "ns/b"), entry("b1", "ns/b")]
    assert [uid for (_, uid), _ in reservation_gc.in_turn(due, {})] == ["x0", "b0", "y", "b1", "x1", "x2"]


def test_a_source_of_many_tenants_does_not_keep_others_from_being_asked_about() -> None:
    missed = {kept.party: [(key, kept)] for key, kept in (of_tenant(f"{n}", f"namespace/{n}") for n in range(9))}
    missed["ns/b"] = [entry("b", "ns/b")]
    assert reservation_gc.asked_next(missed, {})[:2] == ["ns/a namespace/0", "ns/b"]
    assert reservation_gc.asked_next(missed, {"ns/a namespace/0": 1.0, "ns/b": 2.0})[:3] == [
        "ns/a namespace/1",
        "ns/b",
        "ns/a namespace/2",
    ]


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
    assert reservation_gc.conclude(update, generation, countable=countable, counted=counted) is finding
