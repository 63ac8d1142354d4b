"""Which Machines nobody admitted: those that appear without a reservation."""

from __future__ import annotations

from common.kube.controller.store import Change
from common.quota.account import Reservation
from seed.kinds.machines.totals import MachineTotals
from seed.usage.unadmitted import Unadmitted
from tests.unit.seed.kinds.machines.test_totals import machine, totals


def reservation(generation: int = 0, earlier: int = 0) -> Reservation:
    return Reservation(
        source="c1", object="ns/m", amount={}, generation=generation, earlier={"cpu": earlier} if earlier else {}
    )


def judged(made: MachineTotals, *, sure: bool = True) -> set[str]:
    made.unadmitted.judge(made.unadmitted.waiting, sure=sure)
    return set(made.unadmitted.found)


def test_what_has_a_reservation_when_it_is_counted_was_admitted_and_all_else_was_not() -> None:
    made = totals(machine("created"), machine("then-updated"), machine("smuggled"), machine("smuggled-then-updated"))
    made.unadmitted.admitted(
        {
            "created-uid": reservation(),
            "then-updated-uid": reservation(2, earlier=8),
            "smuggled-then-updated-uid": reservation(2),
            "not-there-yet-uid": reservation(),
        }
    )
    assert judged(made) == {"smuggled-uid", "smuggled-then-updated-uid"}


def test_what_was_there_before_is_not_judged_and_what_appears_while_others_are_counted_waits() -> None:
    made = totals(machine("old"))
    assert judged(made, sure=False) == set()
    made.apply(Change(None, machine("a")))
    waiting = made.unadmitted.waiting
    made.apply(Change(None, machine("b")))
    made.unadmitted.judge(waiting, sure=True)
    assert set(made.unadmitted.found) == {"a-uid"}
    made.apply(Change(machine("a"), machine("a", "16", generation=2)))
    made.apply(Change(machine("old"), machine("old", "16", generation=2)))
    made.unadmitted.admitted({"b-uid": reservation()})
    assert judged(made) == {"a-uid"}


def test_a_deleted_one_is_not_counted_any_more_and_each_new_one_is_told() -> None:
    told: list[int] = []
    made = MachineTotals(unadmitted=Unadmitted(on_found=lambda: told.append(len(made.unadmitted))))
    for name in "ab":
        made.apply(Change(None, machine(name)))
        judged(made)
    assert made.unadmitted.alarming
    made.apply(Change(machine("a"), None))
    judged(made)
    assert made.unadmitted.found == {"b-uid": "ns/b"}
    made.apply(Change(machine("b"), None))
    assert not made.unadmitted.alarming
    assert told == [1, 2]


def test_another_connection_knows_what_the_one_before_knew() -> None:
    before = totals(machine("admitted"), machine("smuggled"), machine("gone"), machine("waits"))
    before.unadmitted.admitted({"admitted-uid": reservation()})
    before.unadmitted.judge(["smuggled-uid", "gone-uid"], sure=True)
    after = MachineTotals(before)
    for name in ("admitted", "smuggled", "waits", "new"):
        after.apply(Change(None, machine(name)))
    assert set(after.unadmitted.found) == {"smuggled-uid"}
    assert after.unadmitted.waiting == {"waits-uid", "new-uid"}
    assert after.unadmitted.alarming


def test_the_next_leader_knows_what_is_in_the_status_and_raises_no_alarm_for_it() -> None:
    made = MachineTotals(MachineTotals(unadmitted=Unadmitted({"smuggled-uid", "gone-uid"})))
    for name in ("old", "smuggled"):
        made.apply(Change(None, machine(name)))
    assert judged(made, sure=False) == {"smuggled-uid"}
    assert not made.unadmitted.alarming
