"""Blocks of two replicas against a model of the world: what is admitted from memory is within the limit (rule 4.15)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.quota import account as accounts
from common.quota import blocks
from common.quota.account import Account, Admitted, Grant, Reservation, Short, Terms
from common.quota.reservations import Reserving
from seed.ledger import own_block
from seed.ledger.own_block import OwnBlock

LIMIT = 48
WINDOW = 2.0  # seconds in which an admitted request persists, or never
SOURCE = "ns/c1"
TERMS = Terms(limits={"cpu": LIMIT}, grant=Grant(incarnation="m", account="life"))

pytestmark = pytest.mark.blocks


@dataclass
class Write:
    """On its way to the store: done if the account is still the one that it began from."""

    based_on: Account
    account: Account
    admits: dict[str, int]


@dataclass
class Replica:
    """A writer of the ledger, as seed/ledger/writer.py: it decides, writes, and reads again what it is not sure of."""

    known: Account
    block: OwnBlock = field(default_factory=OwnBlock)
    waiting: dict[str, int] = field(default_factory=dict)  # requests by uid, for the next write
    write: Write | None = None
    unsure: bool = False


def wanted(uid: str, size: int) -> Reservation:
    return Reservation(source=SOURCE, object=f"ns/{uid}", amount={"cpu": size}, request=uid)


class BlockMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 100.0
        self.names = 0
        self.there: dict[str, int] = {}
        self.gone: set[str] = set()
        self.coming: dict[str, tuple[int, float]] = {}  # admitted, by uid: its size, and until when it may come
        self.account = Account(incarnation="life", master="m", epoch=1, granted={"cpu": LIMIT})
        self.replicas = [Replica(self.account) for _ in range(2)]
        self.first_seen: dict[object, tuple[Reservation, float]] = {}
        self.clock = pytest.MonkeyPatch()
        self.clock.setattr(own_block, "elapsing", lambda: self.now)
        for which in range(2):
            self.many_come_at_once(which, 1)

    # Requests ----------------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6))
    def some_are_asked(self, which: int, sizes: list[int]) -> None:
        replica = self.replicas[which]
        for size in sizes:
            self.names += 1
            uid = f"u{self.names}"
            if replica.block.may_admit(replica.known, TERMS, uid, wanted(uid, size), 0):
                replica.block.admit(replica.known, TERMS, uid, wanted(uid, size))
                self.coming[uid] = (size, self.now + WINDOW)
            else:
                replica.waiting[uid] = size

    @rule(which=st.integers(0, 1), size=st.integers(1, 3))
    def many_come_at_once(self, which: int, size: int) -> None:
        """Enough that there is a block, of which some is used."""
        for _ in range(2):
            self.some_are_asked(which, [size, size])
            self.a_replica_writes(which, "answered")
        self.some_are_asked(which, [size])

    @precondition(lambda self: self.coming)
    @rule(data=st.data(), persists=st.booleans())
    def a_request_ends(self, data: st.DataObject, persists: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.coming)))
        size, _ = self.coming.pop(uid)
        if persists:
            self.there[uid] = size

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def an_object_is_deleted(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.there)))
        del self.there[uid]
        self.gone.add(uid)

    @rule(seconds=st.sampled_from([0.1, 0.1, 0.1, 0.4, 1.2, WINDOW + blocks.TAKEN_AFTER + 0.1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.coming = {uid: (size, until) for uid, (size, until) in self.coming.items() if until >= self.now}

    # Writers -----------------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), ends=st.sampled_from(["answered", "answered", "later"]))
    def a_replica_writes(self, which: int, ends: str) -> None:
        replica = self.replicas[which]
        if replica.write is not None:
            return
        if replica.unsure:
            self.a_replica_reads(which)
        named = replica.block.named(replica.known)
        decided, admits, short = Reserving(named, TERMS.limits), {}, False
        for uid, size in replica.waiting.items():
            outcome = decided.claim(uid, wanted(uid, size))
            if isinstance(outcome, Admitted):
                replica.block.asked(outcome.after.amount)
                admits[uid] = size
            short = short or isinstance(outcome, Short)
        replica.waiting.clear()
        after = decided.account()
        if short and blocks.owners(after):
            after = msgspec.structs.replace(after, scarce=True)
        held = replica.block.hold(after, TERMS, short=short)
        replica.write = Write(replica.known, msgspec.structs.replace(held, sequence=held.sequence + 1), admits)
        if ends == "answered":
            self.a_write_ends(which, arrives=True, answered=True)

    @precondition(lambda self: any(replica.write for replica in self.replicas))
    @rule(which=st.integers(0, 1), arrives=st.booleans(), answered=st.booleans(), again=st.booleans())
    def a_write_ends(self, which: int, arrives: bool, answered: bool, again: bool = False) -> None:
        """`again`: it is sent twice, and the answer is that of the second."""
        replica = self.replicas[which]
        write, replica.write = replica.write, None
        if write is None:
            return
        done = arrives and self.account is write.based_on
        if done:
            self.account = write.account
        if not (arrives and answered):
            replica.unsure = True
        elif done and not again:
            replica.block.saved()
            replica.known = self.account
            self.coming.update({uid: (size, self.now + WINDOW) for uid, size in write.admits.items()})
        else:
            replica.waiting.update(write.admits)
            self.a_replica_reads(which)

    @rule(which=st.integers(0, 1))
    def a_replica_reads(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.write is None:
            replica.block.read(self.account)
            replica.known, replica.unsure = self.account, False

    @rule(which=st.integers(0, 1))
    def a_watch_shows_the_account(self, which: int) -> None:
        replica = self.replicas[which]
        before, replica.known = replica.known, self.account
        replica.block.noticed(before, self.account)

    @rule(which=st.integers(0, 1), rarely=st.integers(0, 5))
    def a_replica_is_killed(self, which: int, rarely: int) -> None:
        """Another process comes in its place."""
        replica = self.replicas[which]
        if rarely == 3 and replica.write is None:
            self.replicas[which] = Replica(self.account)

    # The leader --------------------------------------------------------------------------------------------------

    def write_of_leader(self, change: Callable[[Account], Account]) -> None:
        after = change(self.account)
        if after is not self.account:
            self.account = msgspec.structs.replace(after, sequence=after.sequence + 1)

    def counted(self, account: Account) -> Account:
        seen = dict.fromkeys(self.there, 1)
        after = accounts.count(account, 1, SOURCE, {"cpu": sum(self.there.values())}, seen, self.gone)
        kept = accounts.of_source(after, SOURCE)
        return blocks.settled(after, SOURCE, [uid for uid in kept if uid not in self.there])

    @rule()
    def the_leader_counts(self) -> None:
        self.write_of_leader(self.counted)

    @rule()
    def the_leader_looks_for_what_never_came(self) -> None:
        """A reservation or a block that has been as it is for long enough."""
        kept = self.account.reservations
        seen = {key: self.first_seen.get(key, (held, self.now)) for key, held in kept.items()}
        self.first_seen = {key: seen[key] if seen[key][0] == held else (held, self.now) for key, held in kept.items()}
        ages = {key: self.now - since for key, (_, since) in self.first_seen.items()}
        never = {k: v for k, v in kept.items() if k[0] == SOURCE and ages[k] > WINDOW and k[1] not in self.there}
        taken = [owner for owner in blocks.owners(self.account) if ages[accounts.BLOCKS, owner] > self.after_seconds]
        if never:
            self.write_of_leader(lambda account: accounts.release(account, 1, never))
        if taken:
            self.write_of_leader(lambda account: blocks.without(self.counted(account), taken))

    after_seconds = WINDOW + blocks.TAKEN_AFTER

    # What always holds -------------------------------------------------------------------------------------------

    @invariant()
    def what_exists_or_may_come_is_within_the_limit_and_in_the_account(self) -> None:
        worst = sum(self.there.values()) + sum(size for size, _ in self.coming.values())
        assert worst <= LIMIT
        assert worst <= accounts.use(self.account).get("cpu", 0)

    @invariant()
    def the_account_adds_up(self) -> None:
        accounts.check(self.account)
        assert blocks.sure_use(self.account).get("cpu", 0) <= LIMIT

    def teardown(self) -> None:
        """When all is quiet nothing has leaked: neither a block nor a reservation is left."""
        if not hasattr(self, "now"):
            return
        try:
            for _ in range(3):
                for which, replica in enumerate(self.replicas):
                    replica.write = None
                    replica.waiting.clear()
                    self.a_replica_reads(which)
                    self.a_replica_writes(which, "answered")
                self.time_passes(WINDOW + blocks.TAKEN_AFTER + 0.1)
                self.the_leader_counts()
                self.the_leader_looks_for_what_never_came()
            assert not self.account.reservations
            assert accounts.use(self.account).get("cpu", 0) == sum(self.there.values())
        finally:
            self.clock.undo()


TestBlocks = BlockMachine.TestCase
TestBlocks.settings = settings(max_examples=150, stateful_step_count=80)


class TakenAtOnce(BlockMachine):
    """A mistake that the rule forbids: the leader takes a block while its owner may still decide by it."""

    after_seconds = -1.0

    a_replica_is_killed = an_object_is_deleted = None


class ExtendedByARead(BlockMachine):
    """Another one: the leader may take the block right after that read."""

    a_replica_is_killed = an_object_is_deleted = a_watch_shows_the_account = None

    @rule(which=st.integers(0, 1))
    def a_replica_reads(self, which: int) -> None:
        super().a_replica_reads(which)
        self.replicas[which].block._written = self.now


@pytest.mark.parametrize("machine", [TakenAtOnce, ExtendedByARead])
def test_the_machine_finds_a_block_that_two_use(machine: type[BlockMachine]) -> None:
    found = machine.TestCase
    found.settings = settings(
        max_examples=4000, stateful_step_count=40, database=None, phases=[Phase.generate], derandomize=True
    )
    with pytest.raises(AssertionError):
        found("runTest").runTest()
