from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from common.quota import account as accounts
from common.quota import fencing, reservations, shares
from common.quota.account import (
    MAX_RESERVATIONS,
    MAX_TEXT,
    Account,
    Admitted,
    Ask,
    Fenced,
    Full,
    Grant,
    HeldBack,
    Outcome,
    OverShare,
    Reservation,
    Short,
    StaleEpochError,
)
from common.quota.names import MAX_COUNTERS
from common.quota.reservations import Reserving
from seed.ledger.encoding import reservation_text
from tests.unit.claims import reserve

LIMITS = {"cpu": 100, "memory": 100}


def account(**changes: object) -> Account:
    return Account(**{"incarnation": "life", "master": "m", "epoch": 1, "granted": {"cpu": 10}, **changes})


def reservation(cpu: int = 1, *, source: str = "ns/c1", generation: int = 0, name: str = "ns/m") -> Reservation:
    return Reservation(source=source, object=name, amount={"cpu": cpu}, generation=generation)


def uids(account: Account) -> set[str]:
    return {uid for _, uid in account.reservations}


def reserved(before: Account, uid: str, wanted: Reservation) -> Account:
    after, outcome = reserve(before, LIMITS, uid, wanted)
    assert isinstance(outcome, Admitted), outcome
    accounts.check(after)
    return after


def grant(**changes: object) -> Grant:
    return Grant(**{"incarnation": "m", "account": "life", **changes})


def test_what_is_held_can_be_reserved_to_the_last_unit_and_no_further() -> None:
    full = reserved(account(), "a", reservation(10))
    after, outcome = reserve(full, {"cpu": 100}, "b", reservation(1))
    assert outcome == Short({"cpu": 1})
    assert after is full


def test_use_of_every_source_and_what_is_reserved_count() -> None:
    busy = reserved(account(used={"ns/c1": {"cpu": 3}, "ns/c2": {"cpu": 2}}), "a", reservation(4))
    assert accounts.use(busy) == {"cpu": 9}
    assert accounts.free(busy, {"cpu": 100, "storage": 5}) == {"cpu": 1, "storage": 0}


def test_what_was_returned_is_not_free() -> None:
    assert accounts.free(account(returned={"cpu": 4}), {"cpu": 100}) == {"cpu": 6}


def test_a_lowered_limit_is_obeyed_before_the_master_recalls() -> None:
    _, outcome = reserve(account(), {"cpu": 5}, "a", reservation(6))
    assert outcome == Short({"cpu": 1})


def test_a_resource_without_a_limit_is_unlimited_and_every_one_that_is_short_is_named() -> None:
    wanted = Reservation(source="s/s", object="n/m", amount={"cpu": 12, "memory": 3, "machines": 1})
    _, outcome = reserve(account(), LIMITS, "a", wanted)
    assert outcome == Short({"cpu": 2, "memory": 3})


def test_a_fenced_account_decides_nothing() -> None:
    fenced = fencing.fence(account(), "n")
    assert reserve(fenced, LIMITS, "a", reservation()) == (fenced, Fenced())


def test_claims_of_one_batch_are_decided_in_order_against_each_other() -> None:
    reserving = Reserving(account(), {"cpu": 100})
    outcomes = [reserving.claim(uid, reservation(cpu)) for uid, cpu in [("a", 6), ("b", 5), ("c", 4), ("d", 1)]]
    assert [type(outcome) for outcome in outcomes] == [Admitted, Short, Admitted, Short]
    after = reserving.account()
    assert uids(after) == {"a", "c"}
    accounts.check(after)


def test_a_batch_that_changed_nothing_gives_back_the_same_account() -> None:
    before = account()
    reserving = Reserving(before, {"cpu": 100})
    reserving.claim("a", reservation(11))
    assert reserving.account() is before


def test_a_repeat_takes_nothing_more_but_is_remembered() -> None:
    once = reserved(account(), "a", reservation(10))
    twice, outcome = reserve(once, {"cpu": 100}, "a", reservation(10))
    assert isinstance(outcome, Admitted)
    assert outcome.before == once.reservations["ns/c1", "a"]
    assert accounts.use(twice) == {"cpu": 10}
    assert twice.reservations["ns/c1", "a"].claims == 2


def test_a_repeat_that_needs_more_reserves_the_difference() -> None:
    after = reserved(reserved(account(), "a", reservation(4)), "a", reservation(6))
    assert accounts.use(after) == {"cpu": 6}


def test_an_update_comes_on_top_of_a_creation_that_is_not_counted_yet() -> None:
    after = reserved(reserved(account(), "a", reservation(4)), "a", reservation(3, generation=2))
    assert accounts.use(after) == {"cpu": 7}
    counted = accounts.count(after, 1, "ns/c1", {"cpu": 4}, {"a": 1})
    assert accounts.use(counted) == {"cpu": 7}, "what the update came on top of is counted, and reserved no more"
    assert counted.reserved == {"cpu": 3}
    counted = accounts.count(counted, 1, "ns/c1", {"cpu": 7}, {"a": 2})
    assert accounts.use(counted) == {"cpu": 7} and not counted.reservations


def test_of_two_updates_on_top_of_each_other_the_earlier_stays_until_it_is_seen() -> None:
    after = reserved(reserved(account(), "a", reservation(4)), "a", reservation(3, generation=2))
    after = reserved(after, "a", reservation(2, generation=3))
    first = accounts.count(after, 1, "ns/c1", {"cpu": 4}, {"a": 1})
    assert accounts.use(first) == {"cpu": 13}, "the count does not tell how much of 7 it includes"
    second = accounts.count(first, 1, "ns/c1", {"cpu": 7}, {"a": 2})
    assert accounts.use(second) == {"cpu": 9}
    assert accounts.use(accounts.count(second, 1, "ns/c1", {"cpu": 9}, {"a": 3})) == {"cpu": 9}


def test_of_competing_updates_of_what_is_not_counted_yet_the_largest_is_covered() -> None:
    after = reserved(account(), "a", reservation(1))
    for cpu in (1, 2, 1):
        after = reserved(after, "a", reservation(cpu, generation=2))
    assert accounts.use(after) == {"cpu": 3}
    assert accounts.use(reserved(after, "a", reservation(4, generation=3))) == {"cpu": 7}
    assert accounts.use(reserved(after, "a", reservation(1))) == {"cpu": 3}, "the creation once more"


def test_an_account_refuses_more_reservations_than_fit_into_one_object() -> None:
    many = {("ns/c1", f"{number}"): reservation(0) for number in range(MAX_RESERVATIONS)}
    full = account(reservations=many)
    assert reserve(full, LIMITS, "new", reservation()) == (full, Full())
    reserved(full, "7", reservation(1))


def test_a_count_replaces_one_source_and_drops_what_it_covers() -> None:
    before = account(used={"ns/c1": {"cpu": 1}, "ns/c2": {"cpu": 1}})
    for uid, wanted in [("a", reservation(2)), ("b", reservation(1)), ("o", reservation(1, source="ns/c2"))]:
        before = reserved(before, uid, wanted)
    after = accounts.count(before, 1, "ns/c1", {"cpu": 3}, {"a": 1, "o": 1})
    assert after.used == {"ns/c1": {"cpu": 3}, "ns/c2": {"cpu": 1}}
    assert uids(after) == {"b", "o"}, "another source's objects are not this one's to drop"
    assert accounts.count(after, 1, "ns/c1", {"cpu": 3}, {}) is after


def test_equal_uids_in_two_clusters_from_one_snapshot_are_two_objects() -> None:
    here, there = reservation(5), reservation(5, source="ns/c2")
    both = reserved(reserved(account(), "a", here), "a", there)
    assert accounts.use(both) == {"cpu": 10}
    assert reserve(both, LIMITS, "b", reservation(1))[1] == Short({"cpu": 1})
    counted = accounts.count(both, 1, "ns/c1", {"cpu": 5}, {"a": 1})
    assert counted.reservations == {("ns/c2", "a"): there}
    assert accounts.count(both, 1, "ns/c1", {}, {}, gone={"a"}).reservations == {("ns/c2", "a"): there}
    assert accounts.release(both, 1, {("ns/c2", "a"): there}).reservations == {("ns/c1", "a"): here}
    accounts.check(counted)


def test_a_claim_that_was_given_up_takes_nothing_with_it_of_an_equal_one_that_came_since() -> None:
    first, again = (replace(reservation(2, generation=2), request=name) for name in ("r1", "r2"))
    before = reserved(account(), "a", first)
    on_top = reserved(before, "a", again)
    assert reservations.withdraw(on_top, "a", first) is on_top
    assert reservations.withdraw(on_top, "a", again) is on_top, "the first one relies on it, too"
    taken_again = reserved(reservations.withdraw(before, "a", first), "a", again)
    assert reservations.withdraw(taken_again, "a", first) is taken_again
    assert reservations.cancel(taken_again, "a", Admitted(None, first)) is taken_again
    assert accounts.release(taken_again, 1, before.reservations) is taken_again
    assert reservations.withdraw(taken_again, "a", again) == account()


def test_nothing_more_is_created_in_a_source_that_is_held_back() -> None:
    held = accounts.hold_back(reserved(account(), "a", reservation(1)), 1, {"ns/c1"})
    assert reserve(held, LIMITS, "b", reservation(1)) == (held, HeldBack())
    reserved(held, "a", reservation(1))
    reserved(held, "b", reservation(1, generation=2))
    reserved(held, "b", reservation(1, source="ns/c2"))
    assert accounts.hold_back(held, 1, ["ns/c1"]) is held
    reserved(accounts.hold_back(held, 1, ()), "b", reservation(1))
    with pytest.raises(StaleEpochError):
        accounts.hold_back(held, 2, ())


def test_what_was_seen_and_deleted_since_is_dropped_too() -> None:
    before = reserved(account(), "a", reservation(2, generation=3))
    assert not accounts.count(before, 1, "ns/c1", {}, {}, gone={"a"}).reservations


def test_only_the_leader_of_the_present_term_counts_releases_and_forgets() -> None:
    before = reserved(account(epoch=4), "a", reservation())
    for write in (
        lambda: accounts.count(before, 3, "ns/c1", {}, {}),
        lambda: accounts.release(before, 3, before.reservations),
        lambda: accounts.forget_source(before, 3, "ns/c1"),
        lambda: accounts.claim_epoch(before, 3),
    ):
        with pytest.raises(StaleEpochError, match="lease term 3"):
            write()
    assert accounts.claim_epoch(before, 4) is before
    assert accounts.claim_epoch(before, 5).epoch == 5


def test_a_source_is_forgotten_with_its_reservations() -> None:
    before = reserved(account(used={"ns/c1": {"cpu": 3}}), "a", reservation())
    before = reserved(before, "b", reservation(source="ns/c2"))
    after = accounts.forget_source(before, 1, "ns/c1")
    assert accounts.use(after) == {"cpu": 1}
    accounts.check(after)


def test_evidence_releases_what_it_is_about() -> None:
    before = reserved(account(), "a", reservation())
    after = accounts.release(
        before, 1, {("ns/c1", "a"): before.reservations["ns/c1", "a"], ("ns/c1", "unknown"): reservation()}
    )
    assert after.reservations == {} == after.reserved


@pytest.mark.parametrize("later", [reservation(), reservation(1, generation=2)], ids=["repeat", "update"])
def test_evidence_about_one_request_does_not_release_what_a_later_one_relies_on(later: Reservation) -> None:
    examined = reserved(account(), "a", reservation())
    claimed_since = reserved(examined, "a", later)
    assert accounts.release(claimed_since, 1, examined.reservations) is claimed_since


def test_a_cancelled_creation_leaves_nothing() -> None:
    after, outcome = reserve(account(), {"cpu": 100}, "a", reservation(3))
    assert isinstance(outcome, Admitted)
    assert reservations.cancel(after, "a", outcome) == account()


def test_a_cancelled_update_leaves_the_creation_reserved() -> None:
    created = reserved(account(), "a", reservation(4))
    updated, outcome = reserve(created, {"cpu": 100}, "a", reservation(3, generation=2))
    assert isinstance(outcome, Admitted)
    assert reservations.cancel(updated, "a", outcome) == created


def test_a_cancel_leaves_what_a_repeat_relies_on() -> None:
    once, outcome = reserve(account(), {"cpu": 100}, "a", reservation(3))
    assert isinstance(outcome, Admitted)
    twice = reserved(once, "a", reservation(3))
    assert reservations.cancel(twice, "a", outcome) is twice


def test_a_cancelled_update_leaves_what_a_later_one_relies_on() -> None:
    created = reserved(account(), "a", reservation(4))
    updated, outcome = reserve(created, {"cpu": 100}, "a", reservation(3, generation=2))
    assert isinstance(outcome, Admitted)
    again = reserved(updated, "a", reservation(5, generation=2))
    assert reservations.cancel(again, "a", outcome) is again
    assert accounts.use(again) == {"cpu": 9}


def test_the_maximum_of_what_was_granted_is_kept_whatever_the_order() -> None:
    later = accounts.receive(account(), grant(granted={"cpu": 30}))
    assert later.granted == {"cpu": 30}
    assert accounts.receive(later, grant(granted={"cpu": 20, "memory": 0})).granted == {"cpu": 30, "memory": 0}
    assert accounts.receive(later, grant(granted={"cpu": 30})) is later


@pytest.mark.parametrize("wrong", [{"account": "other"}, {"incarnation": "other"}])
def test_a_grant_for_another_life_says_nothing(wrong: dict[str, str]) -> None:
    before = account()
    foreign = grant(granted={"cpu": 99}, recall={"cpu": 5}, **wrong)
    assert accounts.receive(before, foreign) is before


def test_only_idle_capacity_is_given_back_up_to_what_is_recalled() -> None:
    before = reserved(account(used={"ns/c1": {"cpu": 3}}), "a", reservation(2))
    assert accounts.give_back(before, {"cpu": 2}).returned == {"cpu": 2}
    all_idle = accounts.give_back(before, {"cpu": 9})
    assert all_idle.returned == {"cpu": 5}
    accounts.check(all_idle)
    assert accounts.give_back(all_idle, {"cpu": 9}) is all_idle
    assert accounts.give_back(all_idle, {"cpu": 4}) is all_idle


def test_nothing_is_given_back_while_fenced_or_in_use() -> None:
    fenced = fencing.fence(account(), "n")
    assert accounts.give_back(fenced, {"cpu": 5}) is fenced
    over = account(used={"ns/c1": {"cpu": 12}})
    assert accounts.give_back(over, {"cpu": 5}) is over


def test_capacity_that_was_granted_but_never_received_can_be_recalled() -> None:
    after = accounts.apply_grant(account(), grant(granted={"cpu": 30}, recall={"cpu": 20}))
    assert (after.granted, after.returned) == ({"cpu": 30}, {"cpu": 20})
    for another in (grant(account="other", recall={"cpu": 2}), grant(incarnation="other", recall={"cpu": 2})):
        assert accounts.apply_grant(account(), another) == account(), "meant for another life"


def test_another_life_of_the_master_fences_and_only_the_answer_to_the_nonce_opens() -> None:
    before = account(returned={"cpu": 1})
    assert not fencing.needs_fence(before, grant())
    assert not fencing.needs_fence(before, Grant(incarnation=""))
    news = grant(incarnation="m2", granted={"cpu": 8}, returned={"cpu": 3})
    assert fencing.needs_fence(before, news)
    fenced = fencing.fence(before, "n1")
    assert not fencing.answers(fenced, news)
    answer = grant(incarnation="m2", nonce="n1", granted={"cpu": 8}, returned={"cpu": 3})
    assert fencing.answers(fenced, answer)
    with pytest.raises(StaleEpochError):
        fencing.reopen(fenced, 2, answer)
    after = fencing.reopen(fenced, 1, answer)
    assert not after.fenced
    assert (after.master, after.granted, after.returned) == ("m2", {"cpu": 10}, {"cpu": 3})


def test_an_answer_that_has_less_takes_nothing_from_either_counter() -> None:
    """They only grow, also where a master knows less than the account: what was returned may be granted to others."""
    fenced = fencing.fence(account(granted={"cpu": 10}, returned={"cpu": 4, "memory": 2}), "n1")
    answer = grant(incarnation="m2", nonce="n1", granted={"cpu": 8}, returned={"cpu": 3})
    after = fencing.reopen(fenced, 1, answer)
    assert (after.granted, after.returned) == ({"cpu": 10}, {"cpu": 4, "memory": 2})


@pytest.mark.parametrize(("number", "answered", "next_one"), [(1, 6, 7), (6, 6, 7), (8, 6, 9)])
def test_after_a_restore_no_ask_has_the_number_of_one_that_was_answered(
    number: int, answered: int, next_one: int
) -> None:
    restored = account(ask=Ask(number=number, first={"cpu": 1}, wanted={"cpu": 1}))
    after = fencing.reopen(fencing.fence(restored, "n"), 1, grant(nonce="n", answered=answered))
    assert accounts.ask(after, {"cpu": 9}, {"cpu": 2}, {"cpu": 2}, answered).ask.number == next_one


def test_a_ledger_that_went_backwards_is_noticed_and_begins_a_new_life() -> None:
    restored = reserved(account(returned={"cpu": 1}, used={"ns/c1": {"cpu": 2}}), "a", reservation())
    assert not fencing.went_back(restored, grant(returned={"cpu": 1}))
    assert not fencing.went_back(restored, grant(account="other", returned={"cpu": 9}))
    assert fencing.went_back(restored, grant(returned={"cpu": 2}))
    after = fencing.rebuild(restored, "life 2", "n")
    assert after.fenced and after.in_doubt
    assert accounts.held(after) == {}
    assert after.master == "", "no grant of before is taken up, whichever master speaks"
    assert (after.epoch, accounts.use(after)) == (1, {"cpu": 3})
    accounts.check(after)


def test_a_later_fence_is_put_on_what_was_written_by_then() -> None:
    """What the master saw up to that is no more than this ledger has."""
    first = fencing.fence(account(sequence=4), "n1")
    second = fencing.fence(msgspec.structs.replace(first, sequence=7), "n2")
    assert (first.fenced_at, second.fenced_at) == (4, 7)
    assert not fencing.went_back(second, grant(nonce="n2", seen=7))
    assert fencing.went_back(second, grant(nonce="n2", seen=8))


def test_an_unanswered_ask_stays_part_of_the_next_one() -> None:
    first = accounts.ask(account(), {"cpu": 9}, {"cpu": 2}, {"cpu": 4}, answered=0)
    second = accounts.ask(first, {"cpu": 9}, {"cpu": 1}, {"cpu": 1}, answered=0)
    assert second.ask == Ask(number=2, first={"cpu": 2}, wanted={"cpu": 5})
    third = accounts.ask(second, {"cpu": 9}, {"cpu": 1}, {"cpu": 1}, answered=2)
    assert third.ask == Ask(number=3, first={"cpu": 1}, wanted={"cpu": 1})


def test_the_check_finds_sums_that_do_not_add_up() -> None:
    accounts.check(account(reserved={"cpu": 0}, reservations={("ns/c1", "a"): reservation(0)}))
    with pytest.raises(AssertionError, match="sum of the reservations"):
        accounts.check(account(reserved={"cpu": 1}))
    with pytest.raises(AssertionError, match="keyed by their sources"):
        accounts.check(account(reservations={("ns/c2", "a"): reservation(0)}))
    with pytest.raises(AssertionError, match="returned more cpu"):
        accounts.check(account(returned={"cpu": 11}))


DEVICE = "nvidia.com/gpu"


def devices(*names: str, generation: int = 0) -> Reservation:
    """Of a Machine that takes one of each beside a cpu."""
    return Reservation(
        source="ns/c1", object="ns/m", amount={"cpu": 1, **dict.fromkeys(names, 1)}, generation=generation
    )


def test_of_what_a_machine_takes_an_account_reserves_what_its_quota_limits() -> None:
    many = [f"example.com/device-{number}" for number in range(81)]
    after = reserved(account(), "a", devices(DEVICE, *many))
    assert after.reserved == {"cpu": 1}
    limits = {**LIMITS, DEVICE: 4}
    after, outcome = reserve(account(granted={"cpu": 10, DEVICE: 4}), limits, "a", devices(DEVICE, *many))
    assert isinstance(outcome, Admitted)
    assert after.reserved == {"cpu": 1, DEVICE: 1}


def test_what_was_limited_before_stays_reserved_because_it_may_be_limited_again() -> None:
    held = account(granted={"cpu": 10, DEVICE: 1})
    after = reserved(held, "a", devices(DEVICE))
    _, outcome = reserve(after, {**LIMITS, DEVICE: 1}, "b", devices(DEVICE))
    assert outcome == Short({DEVICE: 1})


def test_an_update_pays_for_a_resource_that_was_not_limited_when_its_object_was_created() -> None:
    created = reserved(account(granted={"cpu": 10}), "a", devices(DEVICE))
    limits = {**LIMITS, DEVICE: 4}
    _, outcome = reserve(created, limits, "a", devices(DEVICE))
    assert outcome == Short({DEVICE: 1})
    granted = replace(created, granted={"cpu": 10, DEVICE: 4})
    after, outcome = reserve(granted, limits, "a", devices(DEVICE, generation=2))
    assert isinstance(outcome, Admitted)
    assert after.reserved == {"cpu": 2, DEVICE: 1}


def test_a_claim_on_surge_that_the_quota_does_not_have_any_more_is_short_and_not_free() -> None:
    wanted = Reservation(source="ns/c1", object="ns/m", amount={"surge.cpu": 1}, replaces="old")
    _, outcome = reserve(account(), LIMITS, "a", wanted)
    assert outcome == Short({"surge.cpu": 1})


def test_an_account_takes_as_many_characters_as_fit_into_one_object() -> None:
    """Of objects with names of 253 characters, which take devices with long names."""
    limits = dict.fromkeys([f"{'p' * 61}.{number:02}/{'n' * 63}" for number in range(16)], 10**9)
    reserving = Reserving(account(granted=limits), limits)
    many = (
        replace(devices(*limits), source=f"ns/c{number}", object=f"{'n' * 63}/{number:0253}")
        for number in range(MAX_RESERVATIONS)
    )
    outcomes = [reserving.claim(f"{number}", wanted) for number, wanted in enumerate(many)]
    full = reserving.account()
    assert outcomes.count(Full()) == MAX_RESERVATIONS - len(full.reservations) > 3000
    assert MAX_TEXT - 5000 < shares.measure(full).text == reserving.load.text <= MAX_TEXT
    first = full.reservations["ns/c0", "0"]
    assert isinstance(reserve(full, limits, "0", first)[1], Admitted), "a repeat needs no room"
    grown = replace(first, generation=7)
    assert reserve(full, limits, "0", grown)[1] == Full()
    emptier = accounts.release(full, 1, dict(list(full.reservations.items())[-5:]))
    assert isinstance(reserve(emptier, limits, "0", grown)[1], Admitted)


def filled(before: Account, source: str, wanted: Reservation | None = None) -> tuple[Account, list[Outcome]]:
    """With all that one source asks for: more than there is room for."""
    reserving = Reserving(before, LIMITS)
    asked = replace(wanted or reservation(0), source=source)
    outcomes = [reserving.claim(f"{number}", asked) for number in range(MAX_RESERVATIONS)]
    assert reserving.load == shares.measure(reserving.account())
    return reserving.account(), outcomes


def test_one_source_fills_most_of_an_account_but_not_all_of_it() -> None:
    after, outcomes = filled(account(), "ns/c1")
    assert MAX_RESERVATIONS / 2 < len(after.reservations) < MAX_RESERVATIONS * 3 / 4
    assert outcomes == [Admitted(None, each) for each in after.reservations.values()] + [OverShare()] * (
        MAX_RESERVATIONS - len(after.reservations)
    )


def test_nothing_more_is_created_of_a_tenant_that_is_held_back_or_whose_source_is() -> None:
    greedy, other = (replace(reservation(1), tenant=f"project/{name}") for name in "xy")
    held = accounts.hold_back(reserved(account(), "a", greedy), 1, {"ns/c1 project/x"})
    assert reserve(held, LIMITS, "b", greedy) == (held, HeldBack("project/x"))
    reserved(held, "a", greedy)
    reserved(held, "b", replace(greedy, generation=2))
    reserved(held, "b", other)
    reserved(held, "b", reservation(1))
    reserved(held, "b", replace(greedy, source="ns/c2"))
    by_an_earlier_release = accounts.hold_back(held, 1, {"ns/c1"})
    assert reserve(by_an_earlier_release, LIMITS, "b", other)[1] == HeldBack()


@pytest.mark.parametrize("letters", [1, 200], ids=["in number", "in characters"])
def test_one_tenant_fills_most_of_its_sources_part_but_not_all_of_it(letters: int) -> None:
    wanted = replace(reservation(0), object=f"web/{'m' * letters * (MAX_TEXT // MAX_RESERVATIONS // 100)}")
    after, outcomes = filled(account(), "ns/shared", replace(wanted, tenant="project/x"))
    assert outcomes[-1] == OverShare("project/x")
    assert MAX_RESERVATIONS / 8 < len(after.reservations) < MAX_RESERVATIONS / 2
    for number in range(11):
        after = reserved(after, f"y{number}", replace(wanted, source="ns/shared", tenant="project/y"))
    for number in range(20):
        after = reserved(after, f"z{number}", replace(wanted, source="ns/modest"))


@pytest.mark.parametrize("greedy", [1, 5, 20])
def test_where_others_fill_their_shares_a_source_that_has_little_is_admitted(greedy: int) -> None:
    """Its quota has room, and so has the ledger, in number and in characters."""
    after = account()
    for number in range(greedy):
        after, outcomes = filled(after, f"greedy/{number}", replace(reservation(0), object=f"{'n' * 63}/{'m' * 200}"))
        assert outcomes[-1] == OverShare()
    for number in range(10):
        after = reserved(after, f"u{number}", reservation(1, source="ns/modest"))
    assert len(after.reservations) <= MAX_RESERVATIONS
    assert shares.measure(after).text <= MAX_TEXT


def test_what_a_source_has_reserved_already_can_be_asked_for_again_when_its_share_is_full() -> None:
    after, _ = filled(account(), "ns/c1")
    reserved(after, "7", reservation(0))
    reserved(after, "7", reservation(2, generation=2))
    assert reserve(after, LIMITS, "new", reservation(2, generation=2))[1] == OverShare()


def test_a_share_is_free_again_when_the_source_was_counted() -> None:
    after, _ = filled(account(), "ns/c1")
    seen = {uid: 1 for _, uid in list(after.reservations)[:100]}
    counted = accounts.count(after, 1, "ns/c1", {}, seen)
    reserved(counted, "new", reservation(1))


def test_generations_of_64_bits_do_not_make_a_ledger_longer_than_it_is_known_to_be() -> None:
    after, _ = filled(account(), "ns/c1", reservation(0, generation=2**63 - 1))
    for (_, uid), kept in after.reservations.items():
        assert len(f"{uid} {reservation_text(kept)}\n") <= shares.line_length(uid, kept)


@pytest.mark.parametrize("letter", [" ", ",", ":", "\u540d", "\U0001f642"])
def test_names_that_are_encoded_do_not_make_a_ledger_longer_than_it_is_known_to_be(letter: str) -> None:
    wanted = replace(reservation(0), object=f"roles:web/{letter * 253}", tenant="project/x", late=True)
    after, _ = filled(account(), "ns/c1", wanted)
    assert shares.measure(after).text <= MAX_TEXT
    for (_, uid), kept in after.reservations.items():
        assert len(f"{uid} {reservation_text(kept)}\n") <= shares.line_length(uid, kept)


def test_what_sources_use_takes_from_the_room_for_reservations() -> None:
    used = {f"{number:063}/c": {"cpu": 0} for number in range(MAX_TEXT // 60)}
    assert reserve(account(used=used), LIMITS, "a", reservation())[1] == Full()


def test_a_quota_that_limits_other_resources_again_and_again_reserves_a_bounded_number_of_names() -> None:
    after = account()
    for step in range(12):
        limits = dict.fromkeys((f"example.com/{step}-{number}" for number in range(16)), 10)
        after = replace(after, granted={"cpu": 10, **limits})
        after, _ = reserve(after, limits, f"{step}", devices(*limits))
    assert len(after.reserved) <= MAX_COUNTERS
    assert len(after.reservations) == 9


def test_what_is_asked_of_the_master_names_nothing_that_is_not_limited() -> None:
    need = {"cpu": 1, **{f"example.com/device-{number}": 1 for number in range(81)}}
    assert accounts.ask(account(), LIMITS, need, need, 0).ask == Ask(number=1, first={"cpu": 1}, wanted={"cpu": 1})
