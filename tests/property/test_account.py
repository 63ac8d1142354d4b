"""One account against a model of the world: whatever happens in whatever order, admitted is at most what is held."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.quota import account as accounts
from common.quota import escrow, fencing, reservations
from common.quota.account import Account, Admitted, Grant, Outcome, Reservation, ReservationKey, StaleEpochError
from common.quota.escrow import Holding, MasterLedger, Report
from tests.unit.claims import reserve

LIMIT = 24
WINDOW = 3  # ticks in which an admitted request persists, or never
SOURCE = "ns/c1"
SEED = "eu-1"


@dataclass(frozen=True)
class Pending:
    """An admitted request on its way to etcd: it lands if its object is still at the generation it began from."""

    uid: str
    size: int
    generation: int
    until: int


@dataclass
class Leader:
    """Counts from a view of the source that lags behind: it lists once, then follows the history."""

    epoch: int
    listed: int  # place in the history of the list that it began with
    at: int
    first_seen: dict[ReservationKey, tuple[Reservation, int]] = field(default_factory=dict)


class AccountMachine(RuleBasedStateMachine):
    lists_before_it_claims = False  # the mistake that rule 4.4 forbids, for the test of this test

    @initialize()
    def begin(self) -> None:
        self.now = 0
        self.names = 0
        self.history: list[dict[str, tuple[int, int]]] = [{}]  # objects by uid: size and generation
        self.pending: list[Pending] = []
        self.master = MasterLedger(incarnation="m", seeds={SEED: Holding(account="life 0", granted={"cpu": 9})})
        self.account = Account(incarnation="life 0", master="m", epoch=1, granted={"cpu": 9})
        self.leader = Leader(epoch=1, listed=0, at=0)
        self.old_leaders: list[Leader] = []
        self.sent: list[Grant] = []
        self.reports: list[Report] = []
        self.evidence: list[tuple[Leader, dict[ReservationKey, Reservation], bool]] = []
        self.lost_at: int | None = None

    # The world ---------------------------------------------------------------------------------------------------

    @property
    def world(self) -> dict[str, tuple[int, int]]:
        return self.history[-1]

    def write(self, uid: str, state: tuple[int, int] | None) -> None:
        after = {name: found for name, found in self.world.items() if name != uid}
        if state is not None:
            after[uid] = state
        self.history.append(after)

    def may_land(self, pending: Pending) -> bool:
        size_and_generation = self.world.get(pending.uid)
        if size_and_generation is None:
            return pending.generation == 0 and not any(pending.uid in before for before in self.history)
        return size_and_generation[1] == pending.generation - 1

    @rule()
    def time_passes(self) -> None:
        self.now += 1
        self.pending = [pending for pending in self.pending if pending.until >= self.now]

    @rule(size=st.integers(1, 9), persists=st.booleans())
    def a_creation_is_asked(self, size: int, persists: bool) -> None:
        self.names += 1
        self.claim(Pending(f"u{self.names}", size, 0, self.now + WINDOW), size)
        if persists and self.pending and self.pending[-1].uid == f"u{self.names}":
            self.write(self.pending.pop().uid, (size, 1))

    @precondition(lambda self: self.world)
    @rule(data=st.data(), size=st.integers(1, 9))
    def an_update_is_asked(self, data: st.DataObject, size: int) -> None:
        uid = data.draw(st.sampled_from(sorted(self.world)))
        before, generation = self.world[uid]
        update = Pending(uid, size, generation + 1, self.now + WINDOW)
        if size > before:
            self.claim(update, size - before)
        else:
            self.pending.append(update)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def a_request_is_repeated(self, data: st.DataObject) -> None:
        pending = data.draw(st.sampled_from(self.pending))
        before = self.world.get(pending.uid, (0, 0))[0]
        if self.may_land(pending) and pending.size > before and pending.generation:
            again = Pending(pending.uid, pending.size, pending.generation, self.now + WINDOW)
            self.claim(again, pending.size - before)

    def claim(self, pending: Pending, extra: int) -> None:
        self.account, outcome = self.reserve(pending.uid, extra, pending.generation)
        if isinstance(outcome, Admitted):
            self.pending.append(pending)

    def reserve(self, uid: str, size: int, generation: int) -> tuple[Account, Outcome]:
        self.names += 1
        wanted = Reservation(
            source=SOURCE, object=f"ns/{uid}", amount={"cpu": size}, generation=generation, request=f"r{self.names}"
        )
        return reserve(self.account, {"cpu": LIMIT}, uid, wanted)

    @rule(size=st.integers(1, 9))
    def another_quota_denies(self, size: int) -> None:
        self.names += 1
        uid = f"u{self.names}"
        after, outcome = self.reserve(uid, size, 0)
        if isinstance(outcome, Admitted):
            self.account = reservations.cancel(after, uid, outcome)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), persists=st.booleans())
    def a_request_ends(self, data: st.DataObject, persists: bool) -> None:
        pending = data.draw(st.sampled_from(self.pending))
        self.pending.remove(pending)
        if persists and self.may_land(pending):
            self.write(pending.uid, (pending.size, max(pending.generation, 1)))

    @precondition(lambda self: self.world)
    @rule(data=st.data())
    def an_object_is_deleted(self, data: st.DataObject) -> None:
        self.write(data.draw(st.sampled_from(sorted(self.world))), None)

    # The leader --------------------------------------------------------------------------------------------------

    @rule(lag=st.integers(0, 3))
    def another_leads(self, lag: int) -> None:
        self.old_leaders.append(self.leader)
        now = len(self.history) - 1
        listed = max(0, now - lag) if self.lists_before_it_claims else now
        self.account = accounts.claim_epoch(self.account, self.account.epoch + 1)
        self.leader = Leader(epoch=self.account.epoch, listed=listed, at=listed)

    @rule(events=st.integers(1, 4))
    def the_leaders_watch_goes_on(self, events: int) -> None:
        self.leader.at = min(self.leader.at + events, len(self.history) - 1)

    def counted(self, account: Account, leader: Leader) -> Account:
        there = self.history[leader.at]
        seen_before = {uid for state in self.history[leader.listed : leader.at] for uid in state}
        used = sum(size for size, _ in there.values())
        seen = {uid: generation for uid, (_, generation) in there.items()}
        return accounts.count(account, leader.epoch, SOURCE, {"cpu": used}, seen, gone=seen_before - there.keys())

    @rule(catches_up=st.booleans())
    def the_leader_counts(self, catches_up: bool) -> None:
        if catches_up:
            self.leader.at = len(self.history) - 1
        self.account = self.counted(self.account, self.leader)

    @precondition(lambda self: self.old_leaders)
    @rule(data=st.data())
    def an_old_leader_counts(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(self.old_leaders))
        old.at = min(old.at + 1, len(self.history) - 1)
        if old.epoch == self.account.epoch:
            self.account = self.counted(self.account, old)
        else:
            with pytest.raises(StaleEpochError):
                self.counted(self.account, old)

    @rule()
    def the_leader_looks_for_evidence(self) -> None:
        leader = self.leader
        absent, recount = {}, False
        for key, reservation in self.account.reservations.items():
            uid = key[1]
            known, first = leader.first_seen.get(key, (None, self.now))
            if known != reservation:
                known, first = leader.first_seen[key] = (reservation, self.now)
            if self.now - first <= WINDOW:
                continue
            found = self.world.get(uid)
            if found is None:
                absent[key] = reservation
            elif found[1] < reservation.generation and uid in self.history[leader.at]:
                absent[key] = reservation
                recount = True
        self.evidence.append((leader, absent, recount))

    @precondition(lambda self: self.evidence)
    @rule(data=st.data())
    def what_evidence_found_is_released(self, data: st.DataObject) -> None:
        """Maybe much later, and by a leader that leads no more."""
        found = data.draw(st.sampled_from(self.evidence))
        self.evidence.remove(found)
        leader, absent, recount = found
        try:
            after = self.counted(self.account, leader) if recount else self.account
            self.account = accounts.release(after, leader.epoch, absent)
        except StaleEpochError:
            assert leader.epoch < self.account.epoch

    # The master --------------------------------------------------------------------------------------------------

    @property
    def holding(self) -> Holding:
        return self.master.seeds[SEED]

    def hold(self, holding: Holding) -> None:
        self.master = MasterLedger(incarnation="m", seeds={SEED: holding})

    def send(self, recall: int = 0) -> None:
        self.sent.append(escrow.message(self.master, SEED, {"cpu": recall} if recall else {}, 0))

    @rule(more=st.integers(1, LIMIT))
    def the_master_grants(self, more: int) -> None:
        room = LIMIT - escrow.outstanding(self.master).get("cpu", 0)
        if room > 0:
            self.hold(escrow.raise_granted(self.holding, {"cpu": min(more, room)}))
        self.send()

    @rule(recall=st.integers(1, LIMIT))
    def the_master_recalls(self, recall: int) -> None:
        self.send(recall)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), obeys=st.booleans())
    def a_message_arrives(self, data: st.DataObject, obeys: bool) -> None:
        """Any that was ever sent, once more or for the first time."""
        grant = data.draw(st.sampled_from(self.sent))
        if fencing.went_back(self.account, grant):
            raise AssertionError("no ledger went back here")
        self.account = (accounts.apply_grant if obeys else accounts.receive)(self.account, grant)

    @rule()
    def the_seed_reports(self) -> None:
        self.reports.append(escrow.report(self.account))

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def a_report_arrives(self, data: st.DataObject) -> None:
        said = data.draw(st.sampled_from(self.reports))
        if said.incarnation == self.account.incarnation:  # what names an earlier life came before: it does not return
            self.hold(escrow.absorb(self.holding, said, "m"))

    # Doubt -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.account.fenced)
    @rule(rarely=st.integers(0, 9))
    def the_ledger_is_lost(self, rarely: int) -> None:
        if rarely != 7:
            return
        self.names += 1
        self.account = Account(incarnation=f"life {self.names}", nonce=f"n{self.names}", epoch=self.account.epoch)
        self.lost_at = self.now
        self.evidence.clear()

    @precondition(lambda self: self.account.fenced and self.now > (self.lost_at or 0) + WINDOW)
    @rule()
    def the_account_opens_again(self) -> None:
        """After the in-flight window, from a list that began after it, with the master's answer to its nonce."""
        self.hold(escrow.absorb(self.holding, escrow.report(self.account), "m"))
        self.send()
        self.leader.listed = self.leader.at = len(self.history) - 1
        counted = self.counted(self.account, self.leader)
        assert fencing.answers(counted, self.sent[-1])
        self.account = fencing.reopen(counted, self.leader.epoch, self.sent[-1])

    # What always holds -------------------------------------------------------------------------------------------

    @invariant()
    def what_exists_or_may_come_to_exist_is_within_what_is_held(self) -> None:
        worst = {uid: size for uid, (size, _) in self.world.items()}
        for pending in self.pending:
            if self.may_land(pending):
                worst[pending.uid] = max(worst.get(pending.uid, 0), pending.size)
        admitted = sum(worst.values())
        assert admitted <= LIMIT
        assert admitted <= escrow.held(self.holding).get("cpu", 0)
        if not self.account.fenced:
            assert admitted <= accounts.held(self.account).get("cpu", 0)
            assert admitted <= accounts.use(self.account).get("cpu", 0)

    @invariant()
    def the_account_adds_up(self) -> None:
        accounts.check(self.account)

    @invariant()
    def the_master_knows_no_less_granted_and_no_more_returned(self) -> None:
        if self.holding.account == self.account.incarnation and not self.account.fenced:
            assert self.holding.granted.get("cpu", 0) >= self.account.granted.get("cpu", 0)
            assert self.holding.returned.get("cpu", 0) <= self.account.returned.get("cpu", 0)

    def teardown(self) -> None:
        """When all is quiet nothing has leaked: what is held but not used can be recalled to the last unit."""
        if not hasattr(self, "now"):
            return
        self.pending.clear()
        self.now += WINDOW + 1
        if self.account.fenced:
            self.the_account_opens_again()
        self.the_leader_counts(catches_up=True)
        self.the_leader_looks_for_evidence()
        self.now += WINDOW + 1
        self.the_leader_counts(catches_up=True)
        self.the_leader_looks_for_evidence()
        leader, absent, recount = self.evidence[-1]
        self.account = self.counted(self.account, leader) if recount else self.account
        self.account = accounts.release(self.account, leader.epoch, absent)
        there = sum(size for size, _ in self.world.values())
        assert not self.account.reservations
        assert accounts.use(self.account).get("cpu", 0) == there
        self.send(LIMIT)
        self.account = accounts.apply_grant(self.account, self.sent[-1])
        self.hold(escrow.absorb(self.holding, escrow.report(self.account), "m"))
        assert escrow.outstanding(self.master).get("cpu", 0) == there


TestAccount = AccountMachine.TestCase
TestAccount.settings = settings(max_examples=200, stateful_step_count=50)


class ListsBeforeItClaims(AccountMachine):
    """With only those rules that a change of leaders consists of. Among all of them it takes thousands of examples."""

    lists_before_it_claims = True

    an_update_is_asked = a_request_is_repeated = another_quota_denies = an_object_is_deleted = time_passes = None
    the_leaders_watch_goes_on = what_evidence_found_is_released = None
    the_master_grants = the_master_recalls = a_message_arrives = None
    the_seed_reports = a_report_arrives = the_ledger_is_lost = None


def test_the_machine_finds_a_leader_that_lists_before_it_claims() -> None:
    found = ListsBeforeItClaims.TestCase
    found.settings = settings(
        max_examples=4000,
        stateful_step_count=30,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
    )
    with pytest.raises(AssertionError):
        found("runTest").runTest()
