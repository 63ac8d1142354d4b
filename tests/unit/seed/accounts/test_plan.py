"""What the leader does next to an account, fact by fact."""

from __future__ import annotations

import msgspec
import pytest

from common.quota import fencing
from common.quota.account import Account, Grant, StaleEpochError
from common.quota.escrow import Report
from seed.accounts import plan
from seed.accounts.plan import Claim, Fence, Obey, Open, Progress, Rebuild, Relist, Rest, SourceFacts, Step, Wait

TERM = 7
WINDOW = 60.0
MINE = Progress(claimed=TERM, life="a")
LISTED = SourceFacts("ns/a", countable=True, unreachable=False)
LISTING = SourceFacts("ns/b", countable=False, unreachable=False)
AWAY = SourceFacts("ns/c", countable=False, unreachable=True)


def account(**facts: object) -> Account:
    opened = Account(incarnation="a", master="m", epoch=TERM, sequence=40, granted={"cpu": 8}, returned={"cpu": 1})
    return msgspec.structs.replace(opened, **facts)


def grant(**facts: object) -> Grant:
    said = Grant(incarnation="m", account="a", granted={"cpu": 8}, returned={"cpu": 1})
    return msgspec.structs.replace(said, **facts)


def step(
    present: Account,
    said: Grant,
    progress: Progress = MINE,
    *sources: SourceFacts,
    now: float = 1000.0,
    published: Report | None = None,
) -> tuple[Step, Progress]:
    return plan.next_step(present, said, progress, sources, term=TERM, window=WINDOW, now=now, published=published)


def in_doubt(**facts: object) -> Account:
    return msgspec.structs.replace(
        plan.claimed(account(epoch=TERM - 1), TERM, since=TERM, cold=True, nonce="n"), sequence=41, **facts
    )


ANSWERED = grant(nonce="n", seen=40)


def test_an_account_in_order_is_left_alone():
    assert step(account(), grant()) == (Rest(), MINE)
    assert step(account(), Grant(incarnation="")) == (Rest(), MINE)


@pytest.mark.parametrize(
    ("epoch", "progress"),
    [
        (TERM - 1, MINE),
        (TERM, Progress()),
        (TERM, Progress(claimed=3, life="a")),
        (TERM, Progress(claimed=TERM, life="before")),  # another may have counted in this life before our claim arrived
    ],
)
def test_another_leaders_account_is_claimed_before_anything_else(epoch: int, progress: Progress):
    recalled = grant(recall={"cpu": 5})
    assert step(account(epoch=epoch), recalled, progress) == (Claim(), MINE)


def test_a_continuous_term_claims_without_a_fence_and_a_cold_one_with_it():
    warm = plan.claimed(account(epoch=3), TERM, since=3, cold=False, nonce="n")
    assert warm.epoch == TERM and not warm.fenced
    cold = plan.claimed(account(epoch=3), TERM, since=TERM, cold=True, nonce="n")
    assert (cold.epoch, cold.nonce, cold.fenced_at, cold.in_doubt) == (TERM, "n", 40, True)
    with pytest.raises(StaleEpochError):
        plan.claimed(account(epoch=TERM + 1), TERM, since=TERM, cold=True, nonce="n")


def test_what_a_cold_leader_had_not_claimed_when_he_ended_is_fenced_by_his_successor():
    found = plan.claimed(account(epoch=TERM - 2), TERM, since=TERM - 1, cold=False, nonce="n")
    assert (found.epoch, found.nonce, found.in_doubt) == (TERM, "n", True)
    assert not plan.claimed(account(epoch=TERM - 1), TERM, since=TERM - 1, cold=False, nonce="n").fenced


def test_another_life_of_the_masters_ledger_fences():
    assert step(account(), grant(incarnation="other")) == (Fence(), MINE)
    assert not plan.fenced(account(), grant(), "n").fenced


def test_a_ledger_behind_what_the_master_saw_is_rebuilt():
    assert step(account(), grant(returned={"cpu": 2}))[0] == Rebuild()
    assert step(in_doubt(), grant(nonce="n", seen=41))[0] == Rebuild()


@pytest.mark.parametrize(
    ("published", "then"),
    [
        (Report(incarnation="a", sequence=40), Rest()),
        (Report(incarnation="before", sequence=41), Rest()),
        (Report(incarnation="a", sequence=41), Rebuild()),
    ],
)
def test_a_report_of_a_later_write_shows_that_the_ledger_went_back(published: Report, then: Step):
    """The master would take no report of this life until the ledger has come as far again."""
    assert step(account(), grant(), published=published)[0] == then
    rebuilt = plan.rebuilt(account(), grant(), published, "b", "n")
    assert (rebuilt.incarnation, rebuilt.nonce) == (("b", "n") if then == Rebuild() else ("a", ""))


def test_a_ledger_that_the_master_watched_without_a_break_is_whole():
    assert step(in_doubt(), grant(nonce="n", seen=40, unbroken=True), MINE, LISTED, AWAY)[0] == Open(("ns/a",))


def test_after_a_break_in_the_watch_nothing_may_be_on_its_way_any_more_before_the_account_opens():
    """What was admitted in the moments before the break may have gone with a backup."""
    said = grant(nonce="n", seen=40)
    first, progress = step(in_doubt(), said, MINE, LISTED, AWAY, now=1000.0)
    assert first == Wait(WINDOW)
    relist, progress = step(in_doubt(), said, progress, LISTED, AWAY, now=1060.0)
    assert relist == Relist()
    assert step(in_doubt(), said, progress, LISTING, AWAY, now=1061.0)[0] == Wait(plan.WAIT_FOR_SOURCES)
    assert step(in_doubt(), said, progress, LISTED, AWAY, now=1062.0)[0] == Open(("ns/a",)), (
        "the last count of one that is away"
    )


def test_an_open_account_to_whose_later_life_the_master_speaks_is_in_doubt():
    later = grant(account="later")
    assert step(account(), later) == (Fence(), MINE)
    found = plan.fenced(account(), later, "n")
    assert found.fenced and found.in_doubt
    assert step(account(), grant(account="")) == (Rest(), MINE)
    assert not plan.fenced(account(), grant(incarnation="other"), "n").in_doubt


def test_a_recall_is_obeyed():
    assert step(account(), grant(recall={"cpu": 3})) == (Obey(), MINE)


def test_a_fence_without_its_answer_waits_for_it():
    assert step(in_doubt(), grant(nonce="older"))[0] == Rest()


def test_the_window_begins_with_the_fence_and_passes_while_the_master_does_not_answer():
    said = grant(nonce="n", seen=40)
    first, progress = step(in_doubt(), grant(nonce="older"), MINE, LISTED, now=1000.0)
    assert (first, progress.doubted) == (Rest(), False)
    later, progress = step(in_doubt(), said, progress, LISTED, now=1050.0)
    assert (later, progress.doubted) == (Wait(WINDOW - 50), True)
    assert step(in_doubt(), said, progress, LISTED, now=1060.0)[0] == Relist()


def test_the_window_of_an_answer_that_comes_after_it_is_over_and_its_sources_are_still_listed_anew():
    _, progress = step(in_doubt(), grant(nonce="older"), MINE, LISTED, now=1000.0)
    relist, progress = step(in_doubt(), grant(nonce="n", seen=40), progress, LISTED, now=1061.0)
    assert relist == Relist() and progress.doubted
    assert plan.window_left(progress, WINDOW, 1061.0) == 0


@pytest.mark.parametrize(
    "between",
    [
        account(),  # opened: what was admitted since may be on its way
        in_doubt(epoch=TERM - 1),  # another leader's: as a restored backup has it
        in_doubt(incarnation="b"),  # another life
    ],
)
def test_the_window_begins_again_where_the_account_may_have_been_open_meanwhile(between: Account):
    _, progress = step(in_doubt(), ANSWERED, MINE, LISTED, now=1000.0)
    _, progress = step(between, ANSWERED, progress, LISTED, now=1030.0)
    _, progress = step(in_doubt(), ANSWERED, progress, LISTED, now=1040.0)  # of other terms and lives: claimed
    assert step(in_doubt(), ANSWERED, progress, LISTED, now=1040.0)[0] == Wait(WINDOW)


def test_an_account_opens_once_every_source_that_can_be_reached_is_listed():
    fenced = fencing.fence(account(), "n")
    assert step(fenced, ANSWERED, MINE, LISTED, LISTING)[0] == Wait(plan.WAIT_FOR_SOURCES)
    assert step(fenced, ANSWERED, MINE, LISTED, AWAY)[0] == Open(("ns/a",))


@pytest.mark.parametrize(
    ("present", "said"),
    [
        (account(nonce="n", granted={}, returned={}), grant(nonce="n")),  # the ledger is gone
        (in_doubt(), grant(nonce="n", seen=0)),  # nobody remembers what it was
    ],
)
def test_a_lost_ledger_waits_for_the_window_then_a_fresh_list_of_every_source(present: Account, said: Grant):
    first, progress = step(present, said, MINE, LISTED, now=1000.0)
    assert first == Wait(WINDOW)
    assert step(present, said, progress, LISTED, now=1020.0)[0] == Wait(40.0)
    relist, progress = step(present, said, progress, LISTED, now=1060.0)
    assert relist == Relist()
    assert step(present, said, progress, LISTED, AWAY, now=1061.0)[0] == Wait(plan.WAIT_FOR_SOURCES)
    opened, progress = step(present, said, progress, LISTED, now=1062.0)
    assert opened == Open(("ns/a",)) and progress == MINE


def test_a_lost_ledger_stays_lost_where_another_leader_comes_before_it_was_opened():
    """The new account was seen by the master, whole and without a break: that says nothing of the one that was lost."""
    made_anew = fencing.fence(account(granted={}, returned={}, used={}), "n2", in_doubt=True)
    said = msgspec.structs.replace(ANSWERED, nonce="n2", seen=made_anew.fenced_at, unbroken=True)
    assert plan.trusted(made_anew, said) is plan.Trust.NOTHING


def test_a_ledger_is_called_lost_only_where_nothing_of_it_is_there():
    assert plan.why_recounted(Account(incarnation="a")) == "ledger was lost: recounting"
    assert "lease was not held" in plan.why_recounted(in_doubt())


def test_where_nothing_was_handed_out_nothing_can_be_lost():
    present = account(nonce="n", granted={}, returned={})
    assert step(present, Grant(incarnation="m", account="a", nonce="n"), MINE, LISTED)[0] == Open(("ns/a",))


def test_a_quota_that_is_back_on_a_seed_waits_for_what_was_admitted_before_it_was_withdrawn():
    handed_out = grant()
    closed = fencing.close(account(used={"ns/a": {"cpu": 2}}), TERM, handed_out, "n")
    given_back = grant(returned={"cpu": 8}, nonce="n", seen=closed.fenced_at, unbroken=True)
    first, progress = step(closed, given_back, MINE, LISTED, now=1000.0)
    assert first == Wait(WINDOW)
    assert step(closed, given_back, progress, LISTED, now=1060.0)[0] == Relist()
    assert plan.why_recounted(closed) == "the quota is back on this seed: counting"
    made_anew = Account(incarnation="a", epoch=TERM, nonce="n")  # the copy was away for long, and the account with it
    given_back = msgspec.structs.replace(given_back, seen=0, unbroken=False)
    assert step(made_anew, given_back, MINE, LISTED, now=1000.0)[0] == Wait(WINDOW)


@pytest.mark.parametrize(
    "present",
    [
        in_doubt(granted={}, returned={}),  # a backup from before anything was granted
        fencing.rebuild(account(), "a", "n"),  # ... from before what is known now
    ],
)
def test_a_masters_ledger_of_another_life_does_not_know_that_nothing_was_handed_out(present: Account):
    """Both may be from one backup: such a master says what the account itself says (`escrow.absorb`)."""
    said = Grant(incarnation="m2", account="a", nonce="n", seen=40, unbroken=True)
    assert step(present, said, MINE, LISTED)[0] == Wait(WINDOW)


def test_a_doubt_ends_when_the_account_opens():
    opened = fencing.reopen(in_doubt(), TERM, ANSWERED)
    assert not opened.in_doubt and not opened.fenced
    assert not fencing.fence(opened, "n2").in_doubt


def test_a_doubt_outlives_another_fence():
    assert fencing.fence(in_doubt(), "n2").in_doubt
