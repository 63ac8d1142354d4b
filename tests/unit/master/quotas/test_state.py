"""What the master remembers of an account that asks with a nonce."""

from __future__ import annotations

import msgspec

from common.api.convert import grant_to_wire, report_to_wire
from common.api.types import AccountWait, ResourceQuotaStatus, StaleSource, WireReport
from common.kube.client.meta import ObjectMeta
from common.quota.account import Account, Grant
from common.quota.escrow import report
from common.quota.fencing import fence
from master.cache.objects import QuotaCopy
from master.quotas.state import JUST_GRANTED, SeedAccount
from master.seeds.link import Run

RUN: Run = (1, 1)


def copy(sequence: int, nonce: str = "", life: str = "a") -> QuotaCopy:
    account = Account(incarnation=life, sequence=sequence)
    if nonce:
        account = fence(account, nonce, in_doubt=True)
    return QuotaCopy(metadata=ObjectMeta(name="q"), status=ResourceQuotaStatus(account=report_to_wire(report(account))))


def heard(*told: tuple[QuotaCopy, Run | None]) -> tuple[int, bool]:
    seed = SeedAccount()
    for said, run in told:
        assert seed.receive(said, run)
    return seed.remembered


def test_what_was_written_and_asked_in_one_run_of_the_watch_is_unbroken() -> None:
    assert heard((copy(7), RUN), (copy(8, "n"), RUN)) == (7, True)
    assert heard((copy(7), RUN)) == (0, False), "it asks nothing"


def test_what_a_list_told_may_have_been_written_before_a_restore() -> None:
    assert heard((copy(7), None), (copy(8, "n"), RUN)) == (7, False)
    assert heard((copy(7), RUN), (copy(8, "n"), None)) == (7, False)
    assert heard((copy(7), None), (copy(8, "n"), None)) == (7, False)


def test_another_run_of_the_watch_is_a_break() -> None:
    assert heard((copy(7), RUN), (copy(8, "n"), (1, 2))) == (7, False)
    assert heard((copy(7), RUN), (copy(8, "n"), (2, 1))) == (7, False)


def test_of_another_life_and_of_the_time_before_the_master_nothing_is_remembered() -> None:
    assert heard((copy(8, "n"), RUN)) == (0, False)
    assert heard((copy(7), RUN), (copy(8, "n", life="b"), RUN)) == (0, False)


def test_a_fence_that_was_never_lifted_leaves_its_doubts_to_the_next() -> None:
    assert heard((copy(8, "n"), RUN), (copy(9, "o"), RUN)) == (0, False)
    assert heard((copy(7), None), (copy(8, "n"), RUN), (copy(9, "o"), RUN)) == (8, False)
    assert heard((copy(7), RUN), (copy(8, "n"), RUN), (copy(9, "o"), RUN)) == (8, True)
    lifted = (copy(7), None), (copy(8, "n"), None), (copy(9), RUN), (copy(10, "o"), RUN)
    assert heard(*lifted) == (9, True)


def test_what_a_copy_showed_first_is_looked_at_until_a_decision_of_it_is_durable() -> None:
    account = SeedAccount()
    account.receive(copy(1), None)
    first = account.shown
    assert first is not None
    account.taken_up(Grant(incarnation=""))
    assert account.shown is first, "another decision, which had not seen it"
    account.taken_up(first)
    assert account.shown is None


def test_what_a_report_says_of_sources_alone_is_taken_up_too() -> None:
    """It has the number of the same write of the account: nothing of that has changed."""
    account = SeedAccount()
    assert account.receive(copy(7), RUN)
    stale = msgspec.structs.replace(copy(7).status.account, stale=[StaleSource(source="ns/c1", seconds=60)])
    assert account.receive(msgspec.structs.replace(copy(7), status=ResourceQuotaStatus(account=stale)), RUN)
    assert [source.source for source in account.wire.stale] == ["ns/c1"]
    assert not account.receive(copy(6), RUN), "an earlier one that arrives late"
    assert [source.source for source in account.wire.stale] == ["ns/c1"]


def test_an_ask_that_the_master_before_has_answered_is_not_answered_again() -> None:
    """The copy shows it. Of another life of the account it says nothing."""
    for life, asked in (("a", 3), ("b", 0)):
        account = SeedAccount()
        grant = grant_to_wire(Grant(incarnation="m", account="a", answered=3))
        status = msgspec.structs.replace(copy(7, life=life).status, grant=grant)
        account.receive(msgspec.structs.replace(copy(7), status=status), None)
        assert account.asked == asked
    account.receive(copy(1, life="c"), RUN)
    assert account.asked == 0


def test_a_seed_is_hopeful_until_it_reports_again_and_not_for_long() -> None:
    """What it was granted for is not recalled from it meanwhile."""
    account = SeedAccount()
    account.receive(copy(7), RUN)
    assert not account.hopeful(10.0)
    account.granted = (10.0, 7)
    assert account.hopeful(10.0 + JUST_GRANTED / 2)
    assert not account.hopeful(10.0 + 2 * JUST_GRANTED)
    account.receive(copy(8), RUN)
    assert not account.hopeful(10.0)


def test_what_a_seed_waits_for_before_it_has_an_account_is_news_and_takes_the_place_of_no_report() -> None:
    def waiting(reason: str) -> QuotaCopy:
        wire = WireReport(waits_for=AccountWait(reason=reason))
        return QuotaCopy(metadata=ObjectMeta(name="q"), status=ResourceQuotaStatus(account=wire))

    account = SeedAccount()
    assert not account.receive(QuotaCopy(metadata=ObjectMeta(name="q")), RUN)
    assert account.receive(waiting("Turn"), RUN)
    assert not account.receive(waiting("Turn"), RUN)
    assert account.report is None and account.wire.waits_for == AccountWait(reason="Turn")
    assert account.receive(copy(7), RUN)
    assert account.wire.waits_for is None
    assert not account.receive(waiting("Ledger"), RUN)
    assert account.report is not None and account.report.sequence == 7


def test_what_an_account_waits_for_is_taken_up_without_another_write_of_the_account() -> None:
    fenced = copy(8, "n")
    account = SeedAccount()
    assert account.receive(fenced, RUN)
    wire = msgspec.structs.replace(fenced.status.account, waits_for=AccountWait(reason="Sources"))
    status = msgspec.structs.replace(fenced.status, account=wire)
    assert account.receive(msgspec.structs.replace(fenced, status=status), RUN)
    assert account.wire.waits_for == AccountWait(reason="Sources")
