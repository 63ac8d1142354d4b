"""What a writer admits from its block, and what becomes of that: see rule 4.15 of docs/reference/protocol.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from common.quota import account as accounts
from common.quota import blocks, fencing
from common.quota.account import Account, AccountKey, Admitted, Grant, Reservation, Short, Terms
from seed.ledger import own_block
from seed.ledger.store import ConflictError, StoreUnavailableError
from seed.ledger.writer import AccountWriter
from tests.memory_store import MemoryStore
from tests.unit.fake_api_server import PATIENCE, eventually

pytestmark = pytest.mark.blocks

KEY = AccountKey(uid="uid", name="quota")
SOURCE = "alpha/c1"
GRANT = Grant(incarnation="m", account="life")
LIMITS = {"cpu": 1000}


def account(granted: int = 1000, **fields: object) -> Account:
    return Account(incarnation="life", master="m", epoch=1, granted={"cpu": granted}, **fields)  # type: ignore[arg-type]


def reservation(cpu: int = 1, **fields: object) -> Reservation:
    return Reservation(source=SOURCE, object="ns/name", amount={"cpu": cpu}, **fields)  # type: ignore[arg-type]


class Store(MemoryStore):
    """`fails` is raised by the next save: a conflict before it is done, anything else after."""

    def __init__(self) -> None:
        super().__init__()
        self.saves = 0
        self.fails: Exception | None = None
        self.sent_again = False  # the next save, although it is done
        self.open = asyncio.Event()
        self.open.set()

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        self.saves += 1
        await self.open.wait()
        fails, self.fails = self.fails, None
        if isinstance(fails, ConflictError):
            raise fails
        saved = await super().save(key, account, version)
        if fails is not None:
            raise fails
        if self.sent_again:
            self.sent_again = False
            return await super().save(key, account, version)
        return saved

    @property
    def account(self) -> Account:
        return self._stored[KEY.uid].account

    async def by_another(self, change: Callable[[Account], Account]) -> None:
        stored = self._stored[KEY.uid]
        changed = change(stored.account)
        await super().save(KEY, msgspec.structs.replace(changed, sequence=changed.sequence + 1), stored.version)


class Replica:
    def __init__(self, store: Store) -> None:
        self.terms = Terms(limits=LIMITS, grant=GRANT)
        self.trusted: int | None = 1
        self.allowed = 1  # in this term
        self.writer = AccountWriter(
            store,
            KEY,
            lambda: self.terms,
            trusted=lambda: self.trusted,
            ahead=lambda account: account.epoch == self.allowed,
        )
        self.running = asyncio.create_task(self.writer.run())

    def at_once(self, uid: str, cpu: int = 1, **fields: object) -> bool:
        wanted = reservation(cpu, request=uid, **fields)
        if not self.writer.may_admit(uid, wanted):
            return False
        self.writer.admit(uid, wanted)
        return True

    async def admits(self, uid: str, cpu: int = 1) -> bool:
        if self.at_once(uid, cpu):
            return True
        async with asyncio.timeout(PATIENCE):
            return isinstance(await self.writer.claim(uid, reservation(cpu, request=uid)), Admitted)

    async def rush(self) -> None:
        """Enough that a block is taken, by writes."""
        for number in range(own_block.BEGINS):
            assert await self.admits(f"rush-{number}")
        assert self.at_once("first")
        assert self.writer.block.admitted


@pytest.fixture(autouse=True)
def _long_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block grows old on a machine that is busy."""
    monkeypatch.setattr(blocks, "GOOD_FOR", 600.0)
    for name in ("IDLE", "LATELY"):
        monkeypatch.setattr(own_block, name, 600.0)


@asynccontextmanager
async def world(start: Account | None = None, number: int = 1) -> AsyncIterator[tuple[Store, list[Replica]]]:
    store = Store()
    await MemoryStore.save(store, KEY, start or account(), None)
    replicas = [Replica(store) for _ in range(number)]
    try:
        yield store, replicas
    finally:
        store.open.set()
        for replica in replicas:
            replica.running.cancel()
        await asyncio.gather(*(replica.running for replica in replicas), return_exceptions=True)
    accounts.check(store.account)


def names(store: Store) -> set[str]:
    return {uid for source, uid in store.account.reservations if source == SOURCE}


async def test_one_request_alone_takes_no_block() -> None:
    async with world() as (store, [replica]):
        assert await replica.admits("a")
        assert not blocks.owners(store.account)
        assert not replica.at_once("b")


async def test_what_a_block_has_room_for_is_admitted_without_a_write_and_named_by_the_next() -> None:
    async with world() as (store, [replica]):
        await replica.rush()
        saves = store.saves
        assert all(replica.at_once(f"more-{number}") for number in range(2))
        assert store.saves == saves
        assert accounts.use(store.account)["cpu"] >= 2 + 1 + 2, "it was reserved before"
        await eventually(lambda: {"first", "more-0", "more-1"} <= names(store))
        assert store.account.reservations[SOURCE, "first"].late
        assert store.saves <= saves + 2


async def test_a_block_is_given_back_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as (store, [replica]):
        await replica.rush()
        monkeypatch.setattr(own_block, "IDLE", 0.2)
        await eventually(lambda: not blocks.owners(store.account))
        assert accounts.use(store.account) == {"cpu": 3}
        assert not replica.at_once("late")


async def test_a_block_has_a_small_part_of_what_is_free() -> None:
    async with world(account(granted=100)) as (store, [replica]):
        await replica.rush()
        while replica.at_once(f"u{len(replica.writer.block.admitted)}"):
            pass
        [block] = blocks.owners(store.account).values()
        assert block.amount["cpu"] <= 100 // own_block.SHARE


@pytest.mark.parametrize(
    "wanted",
    [
        reservation(generation=2),
        reservation(base={"cpu": 1}),
        reservation(replaces="older"),
        reservation(900),
        reservation(0),
    ],
    ids=["update", "on top of others", "rollout", "too large", "nothing"],
)
async def test_what_needs_a_decision_is_not_taken_from_a_block(wanted: Reservation) -> None:
    async with world() as (_, [replica]):
        await replica.rush()
        assert not replica.writer.may_admit("u", wanted)
        assert replica.writer.may_admit("u", reservation())


async def test_what_is_known_already_is_not_taken_from_a_block() -> None:
    async with world() as (store, [replica]):
        await replica.rush()
        assert not replica.at_once("first"), "not named yet"
        assert not replica.at_once("rush-0"), "reserved by a write"
        assert await replica.admits("first")
        assert store.account.reservations[SOURCE, "first"].claims == 2


CHANGES: dict[str, Callable[[Account], Account]] = {
    "fence": lambda present: fencing.fence(present, "nonce"),
    "scarce": lambda present: msgspec.structs.replace(present, scarce=True),
    "held back": lambda present: msgspec.structs.replace(present, held_back=(SOURCE,)),
    "its tenant is held back": lambda present: msgspec.structs.replace(present, held_back=(f"{SOURCE} project/x",)),
    "another life": lambda present: fencing.rebuild(present, "another", "nonce"),
    "taken": lambda present: blocks.without(present, blocks.owners(present)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_nothing_is_admitted_from_a_block_that_may_be_somebody_elses(
    change: Callable[[Account], Account],
) -> None:
    async with world() as (store, [replica]):
        await replica.rush()
        of_tenant = msgspec.structs.replace(reservation(), tenant="project/x")
        assert replica.writer.may_admit("u", of_tenant)
        await store.by_another(change)
        assert not replica.writer.may_admit("u", of_tenant)


async def test_nothing_is_admitted_by_other_limits_or_while_the_master_recalls() -> None:
    async with world() as (_, [replica]):
        await replica.rush()
        replica.terms = Terms(limits={"cpu": 999}, grant=GRANT)
        assert not replica.writer.may_admit("u", reservation())
        replica.terms = Terms(limits=LIMITS, grant=msgspec.structs.replace(GRANT, recall={"cpu": 1}))
        assert not replica.writer.may_admit("u", reservation())
        replica.terms = Terms(limits=LIMITS, grant=GRANT)
        assert replica.writer.may_admit("u", reservation())
        replica.trusted = 2
        assert not replica.writer.may_admit("u", reservation()), "nobody has seen that leader alive"


async def test_a_block_is_not_used_past_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(own_block, "elapsing", lambda: clock[0])
    async with world() as (store, [replica]):
        await replica.rush()
        await eventually(lambda: "first" in names(store))
        clock[0] += blocks.GOOD_FOR - 0.01
        assert replica.writer.may_admit("u", reservation())
        replica.writer.block.read(store.account)  # the leader may take it right after that
        clock[0] += 0.02
        assert not replica.writer.may_admit("u", reservation())


async def test_what_a_scarce_account_needs_is_given_back_and_what_was_admitted_stays() -> None:
    async with world(number=2) as (store, [first, second]):
        await first.rush()
        used = accounts.use(store.account)["cpu"]
        outcome = await second.writer.claim("large", reservation(1000 - used + 1))
        assert isinstance(outcome, Short)
        assert store.account.scarce
        await eventually(lambda: not blocks.owners(store.account))
        assert "first" in names(store)
        assert await second.admits("large", 1000 - 3)


async def test_what_comes_while_the_block_is_written_fits_into_the_old_one_and_into_the_new_one() -> None:
    async with world() as (store, [replica]):
        await replica.rush()
        store.open.clear()
        replica.writer.poke()
        await eventually(lambda: replica.writer._saving)
        during = 0
        while replica.at_once(f"during-{during}"):
            during += 1
        assert during
        store.open.set()
        await eventually(lambda: {f"during-{number}" for number in range(during)} <= names(store))


@pytest.mark.parametrize("error", [ConflictError("another wrote"), StoreUnavailableError("no answer")])
async def test_what_was_admitted_is_named_though_a_write_fails(error: Exception) -> None:
    async with world() as (store, [replica]):
        await replica.rush()
        store.fails = error
        await eventually(lambda: "first" in names(store) and not replica.writer.block.admitted)
        [kept] = [kept for (_, uid), kept in store.account.reservations.items() if uid == "first"]
        assert kept.claims == 1, "it is named once"


async def test_a_write_that_was_done_and_then_sent_again_gives_the_block_that_it_gave() -> None:
    """What came meanwhile is in that block: whoever takes the conflict for a refusal forgets it."""
    async with world() as (store, [replica]):
        await replica.rush()
        store.open.clear()
        replica.writer.poke()
        await eventually(lambda: replica.writer._saving)
        assert replica.at_once("during")
        store.sent_again = True
        store.open.set()
        await eventually(lambda: not store.sent_again and not replica.writer._saving)
        await eventually(lambda: not replica.writer.block.admitted)
        assert {"first", "during"} <= names(store)
        assert store.account.reservations[SOURCE, "first"].claims == 1


async def test_what_another_replica_let_be_changed_before_it_had_a_name_is_reserved_as_a_whole() -> None:
    async with world(number=2) as (store, [first, second]):
        await first.rush()
        assert "first" not in names(store)
        assert isinstance(await second.writer.claim("first", reservation(2, generation=2)), Admitted)
        await eventually(lambda: not first.writer.block.admitted)
        assert store.account.reservations[SOURCE, "first"].amount == {"cpu": 1 + 2}
        counted = accounts.count(store.account, 1, SOURCE, {"cpu": 1}, {"first": 1})
        assert counted.reservations[SOURCE, "first"].amount == {"cpu": 2}, "what it came with is counted"
        assert (SOURCE, "first") not in accounts.count(counted, 1, SOURCE, {"cpu": 3}, {"first": 2}).reservations


async def test_an_orderly_end_names_what_was_admitted_and_gives_the_rest_back() -> None:
    async with world() as (store, [replica]):
        await replica.rush()
        await replica.writer.finish()
        assert "first" in names(store)
        assert not blocks.owners(store.account)
        assert not replica.at_once("more")


async def test_under_a_leader_that_does_not_allow_blocks_the_next_write_gives_it_back() -> None:
    async with world() as (store, [replica]):
        await replica.rush()
        await store.by_another(lambda present: accounts.claim_epoch(present, 2))
        await eventually(lambda: "first" in names(store))
        assert not blocks.owners(store.account)
        for number in range(2 * own_block.BEGINS):
            assert await replica.admits(f"by-a-write-{number}")
        assert not blocks.owners(store.account) and not replica.at_once("more")
        replica.allowed = 2
        for number in range(own_block.BEGINS):
            assert await replica.admits(f"again-{number}")
        assert replica.at_once("more")


async def test_a_dry_run_takes_what_is_reserved_ahead_for_free() -> None:
    async with world(number=2) as (store, [first, second]):
        await first.rush()
        await eventually(lambda: "first" in names(store))
        assert isinstance(second.writer.preview("u", reservation(1000 - 3)), Admitted)
        assert isinstance(second.writer.preview("u", reservation(1000 - 2)), Short)


async def test_a_resource_of_which_nothing_is_free_has_no_block() -> None:
    async with world(account(granted=9)) as (store, [replica]):
        for number in range(9):
            assert await replica.admits(f"u{number}"), "also the last one"
        assert not blocks.owners(store.account)
        assert isinstance(await replica.writer.claim("more", reservation()), Short)
