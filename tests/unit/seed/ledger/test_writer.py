from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest

from common.quota import account as accounts
from common.quota import reservations, shares
from common.quota.account import (
    Account,
    AccountKey,
    Admitted,
    Fenced,
    Full,
    Grant,
    OverShare,
    Reservation,
    Short,
    Terms,
)
from common.quota.shares import Load
from seed.ledger import batcher, contention, writer
from seed.ledger.encoding import MalformedLedgerError, TooLargeError
from seed.ledger.store import ConflictError, NoAccountError, Stored, StoreUnavailableError
from seed.ledger.writer import AccountWriter, BusyError
from tests.memory_store import MemoryStore
from tests.running import running
from tests.unit.claims import reserve
from tests.unit.fake_api_server import eventually, within

KEY = AccountKey(uid="uid", name="project-alpha")
GRANT = Grant(incarnation="m", account="life")


def account(cpu: int = 100, **changes: object) -> Account:
    return Account(**{"incarnation": "life", "master": "m", "epoch": 1, "granted": {"cpu": cpu}, **changes})


_requests = itertools.count()


def reservation(cpu: int = 1, generation: int = 0) -> Reservation:
    """By a request of its own."""
    return Reservation(
        source="ns/c1", object="ns/m", amount={"cpu": cpu}, generation=generation, request=f"r{next(_requests)}"
    )


def uids(account: Account) -> set[str]:
    return {uid for _, uid in account.reservations}


class ScriptedStore(MemoryStore):
    """Each save does what the script says next: an exception before or after the write, or a write by another first."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.before: list[Exception | Callable[[Account], Account] | None] = []
        self.after: list[Exception | None] = []
        self.saves = 0
        self.loads = 0
        self.takes = 0
        self.seconds = 0.0
        self.silent = False

    async def load(self, key: AccountKey) -> Stored | None:
        self.loads += 1
        return await super().load(key)

    async def take(self, key: AccountKey) -> Stored | None:
        self.takes += 1
        return await super().take(key)

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        self.saves += 1
        await asyncio.sleep(self.seconds)
        await self.open.wait()
        first = self.before.pop(0) if self.before else None
        if isinstance(first, Exception):
            raise first
        if first is not None:
            await self.by_another(first)
        written = await super().save(key, account, version)
        then = self.after.pop(0) if self.after else None
        if then is not None:
            raise then
        return written

    async def by_another(self, change: Callable[[Account], Account]) -> None:
        stored = self.stored
        changed = change(stored.account)
        await super().save(KEY, msgspec.structs.replace(changed, sequence=changed.sequence + 1), stored.version)

    @property
    def stored(self) -> Stored:
        return self._stored[KEY.uid]

    @property
    def account(self) -> Account:
        return self.stored.account

    def _tell(self, uid: str, stored: Stored | None) -> None:
        if not self.silent:
            super()._tell(uid, stored)


class Ledger:
    def __init__(self, limits: dict[str, int] | None = None) -> None:
        self.store = ScriptedStore()
        self.terms: Terms | None = Terms(limits=limits or {"cpu": 1000}, grant=GRANT)
        self.heard: list[int | None] = []
        self.writes: list[int] = []
        self.conflicts = 0
        self.writer = AccountWriter(
            self.store,
            KEY,
            lambda: self.terms,
            on_account=lambda account: self.heard.append(account.sequence if account else None),
            on_write=lambda _seconds, claims: self.writes.append(claims),
            on_conflict=self._conflict,
        )

    def _conflict(self) -> None:
        self.conflicts += 1

    async def claim(self, uid: str, cpu: int = 1) -> object:
        async with asyncio.timeout(30):
            return await self.writer.claim(uid, reservation(cpu))


@asynccontextmanager
async def opened(start: Account | None, limits: dict[str, int] | None = None) -> AsyncIterator[Ledger]:
    ledger = Ledger(limits)
    if start is not None:
        await MemoryStore.save(ledger.store, KEY, start, None)
    running = asyncio.create_task(ledger.writer.run())
    try:
        yield ledger
    finally:
        ledger.store.open.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    for stored in ledger.store._stored.values():
        accounts.check(stored.account)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def writes_take(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """By the writer's clock, which goes on whenever it is looked at."""
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: next(clock)))


async def test_nobody_is_answered_before_the_write_is_durable() -> None:
    async with opened(account()) as ledger:
        ledger.store.open.clear()
        claims = [ledger.writer.claim(f"u{number}", reservation()) for number in range(3)]
        await settle()
        assert ledger.store.saves == 1
        assert not any(claim.done() for claim in claims)
        assert not ledger.store.account.reservations
        ledger.store.open.set()
        assert all(isinstance(outcome, Admitted) for outcome in await asyncio.gather(*claims))
        assert uids(ledger.store.account) == {"u0", "u1", "u2"}


async def test_what_comes_during_a_write_goes_into_the_next_one_together() -> None:
    async with opened(account()) as ledger:
        ledger.store.open.clear()
        claims = [ledger.writer.claim("first", reservation())]
        await settle()
        claims += [ledger.writer.claim(f"u{number}", reservation()) for number in range(100)]
        ledger.store.open.set()
        await asyncio.gather(*claims)
        assert ledger.writes == [1, 100]


async def test_those_who_come_again_share_a_write_with_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "LONGEST_LINGER", 5.0)
    async with opened(account()) as ledger:
        ledger.store.seconds = 0.1
        ledger.store.open.clear()

        async def client(name: str) -> None:
            for number in range(3):
                await ledger.claim(f"{name}-{number}")

        first = [asyncio.create_task(client(f"a{number}")) for number in range(4)]
        await settle()
        second = [asyncio.create_task(client(f"b{number}")) for number in range(4)]
        await settle()
        ledger.store.open.set()
        await asyncio.gather(*first, *second)
        assert ledger.writes == [4, 8, 8, 4]


async def test_a_request_that_is_alone_is_not_kept_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "LONGEST_LINGER", 500.0)
    writes_take(monkeypatch, 1000.0)
    async with opened(account()) as ledger:
        await ledger.claim("first")
        await ledger.claim("second")


async def test_nobody_is_kept_for_long_for_others_who_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    writes_take(monkeypatch, 1000.0)
    async with opened(account()) as ledger:
        await asyncio.gather(ledger.claim("first"), ledger.claim("other"))
        async with within(0.4):
            await ledger.claim("second")


async def test_a_batch_is_decided_in_the_order_it_came() -> None:
    async with opened(account(10)) as ledger:
        claims = [ledger.writer.claim(uid, reservation(cpu)) for uid, cpu in (("a", 6), ("b", 5), ("c", 4), ("d", 1))]
        outcomes = await asyncio.gather(*claims)
        assert [type(outcome) for outcome in outcomes] == [Admitted, Short, Admitted, Short]


async def test_a_change_between_claims_is_seen_by_those_after_it() -> None:
    async with opened(account(10)) as ledger:
        before = ledger.writer.claim("a", reservation(10))
        dropped = ledger.writer.change(
            lambda present: (accounts.count(present, 1, "ns/c1", {}, {}, gone=uids(present)), None)
        )
        after = ledger.writer.claim("b", reservation(10))
        assert [type(outcome) for outcome in await asyncio.gather(before, dropped, after)] == [
            Admitted,
            type(None),
            Admitted,
        ]
        assert ledger.writes == [3]


async def test_a_write_is_decided_again_after_a_conflict() -> None:
    async with opened(account(10)) as ledger:
        await ledger.claim("a", 1)
        ledger.store.silent = True

        def other(present: Account) -> Account:
            return reserve(present, {"cpu": 1000}, "other", reservation(5))[0]

        ledger.store.before = [other]
        assert await ledger.claim("b", 5) == Short({"cpu": 1})
        assert uids(ledger.store.account) == {"a", "other"}
        assert ledger.conflicts == 1


async def test_endless_conflicts_end_as_unavailable() -> None:
    async with opened(account()) as ledger:
        ledger.store.before = [ConflictError("again")] * 1000
        with pytest.raises(StoreUnavailableError, match="100 conflicting writes"):
            await ledger.claim("a")
        ledger.store.before = []
        assert isinstance(await ledger.claim("a"), Admitted)


@pytest.mark.parametrize("written", [False, True], ids=["lost", "written"])
async def test_after_an_unknown_outcome_the_account_is_taken_and_the_claim_withdrawn_before_the_next_decision(
    written: bool,
) -> None:
    async with opened(account(10)) as ledger:
        ledger.store.silent = True
        lost = StoreUnavailableError("no answer")
        ledger.store.before, ledger.store.after = ([], [lost]) if written else ([lost], [])
        loads = ledger.store.loads
        with pytest.raises(StoreUnavailableError, match="no answer"):
            await ledger.claim("a", 6)
        outcome = await ledger.claim("b", 6)
        assert (ledger.store.takes, ledger.store.loads) == (1, loads)
        assert isinstance(outcome, Admitted)
        assert uids(ledger.store.account) == {"b"}
        assert ledger.conflicts == 0


async def test_a_write_that_arrives_late_does_not_undo_what_was_right_meanwhile() -> None:
    def count(cpu: int) -> Callable[[Account], tuple[Account, None]]:
        return lambda present: (accounts.count(present, 1, "ns/c1", {"cpu": cpu}, {}), None)

    async with opened(account(10)) as ledger:
        await ledger.writer.change(count(3))
        before = ledger.store.stored
        ledger.store.before = [StoreUnavailableError("no answer")]
        with pytest.raises(StoreUnavailableError, match="no answer"):
            await ledger.writer.change(count(2))
        await ledger.writer.change(count(3))  # as it is in the ledger: there is nothing to write
        late = msgspec.structs.replace(count(2)(before.account)[0], sequence=before.account.sequence + 1)
        with pytest.raises(ConflictError):
            await MemoryStore.save(ledger.store, KEY, late, before.version)
        assert accounts.use(ledger.store.account) == {"cpu": 3}


async def test_a_repeat_after_an_unknown_outcome_reserves_once() -> None:
    async with opened(account(10)) as ledger:
        ledger.store.after = [StoreUnavailableError("no answer")]
        with pytest.raises(StoreUnavailableError):
            await ledger.claim("a", 6)
        assert isinstance(await ledger.claim("a", 6), Admitted)
        assert accounts.use(ledger.store.account) == {"cpu": 6}


def without_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """One source may fill everything."""
    monkeypatch.setattr(shares, "KEPT", 1)
    monkeypatch.setattr(shares, "FEW", 1)


async def test_one_source_does_not_fill_the_line_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_WAITING", 400)
    async with opened(account(1000)) as ledger:
        ledger.store.open.clear()
        claims = [ledger.writer.claim("first", reservation())]
        await settle()
        with pytest.raises(BusyError, match="too many requests of this cluster wait already"):
            claims.extend(ledger.writer.claim(f"u{number}", reservation()) for number in range(400))
        assert len(claims) > 200
        modest = msgspec.structs.replace(reservation(), source="ns/modest")
        claims += [ledger.writer.claim(f"m{number}", modest) for number in range(20)]
        ledger.store.open.set()
        assert all(isinstance(outcome, Admitted) for outcome in await asyncio.gather(*claims))
        claims = [ledger.writer.claim(f"later{number}", reservation()) for number in range(200)]
        assert all(isinstance(outcome, Admitted) for outcome in await asyncio.gather(*claims))


async def test_one_tenant_does_not_fill_the_line_for_others_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_WAITING", 4000)
    monkeypatch.setattr(batcher, "MAX_BATCH", 40)
    greedy, modest = (msgspec.structs.replace(reservation(0), tenant=f"project/{name}") for name in "xy")
    async with opened(account(10_000)) as ledger:
        ledger.store.open.clear()
        claims = [ledger.writer.claim("first", greedy)]
        await settle()
        why = "too many requests of project/x in this cluster wait already: it has its share, and others go on"
        with pytest.raises(BusyError, match=why):
            claims.extend(ledger.writer.claim(f"u{number}", greedy) for number in range(4000))
        assert len(claims) > 1000
        others = [ledger.writer.claim(f"m{number}", modest) for number in range(11)]
        ledger.store.open.set()
        assert all(isinstance(outcome, Admitted) for outcome in await asyncio.gather(*others))
        assert not claims[-1].done(), "tenants take turns"
        for outcome in await asyncio.gather(*claims):
            assert isinstance(outcome, Admitted) or outcome == OverShare("project/x")
        assert ledger.writer._queue._waiting_of == {}


async def test_a_source_that_fills_its_share_of_a_ledger_keeps_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its requests share a write with the others', and where another replica wrote in between."""
    monkeypatch.setattr(reservations, "MAX_RESERVATIONS", 400)
    modest = msgspec.structs.replace(reservation(), source="ns/modest")
    async with opened(account(1000)) as ledger:
        outcomes = await asyncio.gather(*(ledger.writer.claim(f"u{number}", reservation(0)) for number in range(400)))
        admitted = sum(isinstance(outcome, Admitted) for outcome in outcomes)
        assert 200 < admitted < 300
        assert outcomes[admitted:] == [OverShare()] * (400 - admitted)
        assert isinstance(await ledger.writer.claim("m1", modest), Admitted)
        assert isinstance(ledger.writer.preview("m2", modest), Admitted)
        assert ledger.writer.preview("more", reservation(0)) == OverShare()
        await ledger.store.by_another(
            lambda present: accounts.release(present, 1, dict(list(present.reservations.items())[:9]))
        )
        assert isinstance(await ledger.writer.claim("m2", modest), Admitted)
        assert isinstance(await ledger.writer.claim("more", reservation(0)), Admitted)


async def test_more_than_can_be_served_in_time_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_WAITING", 3)
    without_shares(monkeypatch)
    async with opened(account()) as ledger:
        ledger.store.open.clear()
        claims = [ledger.writer.claim("first", reservation())]
        await settle()
        claims += [ledger.writer.claim(f"u{number}", reservation()) for number in range(3)]
        with pytest.raises(BusyError, match="3 requests wait"):
            ledger.writer.claim("late", reservation())
        ledger.store.open.set()
        await asyncio.gather(*claims)
        assert isinstance(await ledger.claim("late"), Admitted)


async def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_BATCH", 4)
    async with opened(account()) as ledger:
        await asyncio.gather(*(ledger.writer.claim(f"u{number}", reservation()) for number in range(10)))
        assert ledger.writes == [4, 4, 2]


async def test_where_more_waits_than_one_write_takes_the_sources_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_BATCH", 4)
    ended: list[str] = []

    def note(name: str, future: asyncio.Future[object]) -> None:
        future.add_done_callback(lambda _future: ended.append(name))

    async with opened(account()) as ledger:
        ledger.store.open.clear()
        note("first", ledger.writer.claim("first", reservation()))
        await settle()
        for number in range(8):
            note(f"u{number}", ledger.writer.claim(f"u{number}", reservation()))
        for number in range(2):
            modest = msgspec.structs.replace(reservation(), source="ns/modest")
            note(f"m{number}", ledger.writer.claim(f"m{number}", modest))
        last = ledger.writer.change(lambda account: (account, None))
        note("change", last)
        ledger.store.open.set()
        await eventually(lambda: len(ended) == 12)
        assert ended == ["first", "u0", "u1", "m0", "change", "u2", "u3", "u4", "m1", "u5", "u6", "u7"]


async def test_nobody_is_denied_from_memory() -> None:
    async with opened(account(10)) as ledger:
        assert isinstance(await ledger.claim("a", 10), Admitted)
        assert isinstance(await ledger.claim("b", 1), Short)
        ledger.store.silent = True
        await ledger.store.by_another(lambda present: accounts.count(present, 1, "ns/c1", {}, {}, gone={"a"}))
        assert isinstance(await ledger.claim("b", 10), Admitted)
        assert ledger.conflicts == 0


async def test_a_denial_costs_one_read_and_no_write() -> None:
    async with opened(account(10)) as ledger:
        await ledger.claim("a", 10)
        loads, saves = ledger.store.loads, ledger.store.saves
        outcomes = await asyncio.gather(*(ledger.writer.claim(f"u{number}", reservation()) for number in range(20)))
        assert all(isinstance(outcome, Short) for outcome in outcomes)
        assert (ledger.store.loads, ledger.store.saves) == (loads + 1, saves)


async def test_who_stopped_waiting_gets_no_reservation() -> None:
    async with opened(account()) as ledger:
        ledger.store.open.clear()
        first = ledger.writer.claim("first", reservation())
        await settle()
        gone, stays = ledger.writer.claim("gone", reservation()), ledger.writer.claim("stays", reservation())
        gone.cancel()
        ledger.store.open.set()
        await asyncio.gather(first, stays)
        assert uids(ledger.store.account) == {"first", "stays"}


async def test_who_stopped_waiting_during_the_write_keeps_no_reservation() -> None:
    async with opened(account()) as ledger:
        ledger.store.open.clear()
        waiting = ledger.writer.claim("a", reservation(3))
        await settle()
        waiting.cancel()
        ledger.store.open.set()
        await ledger.claim("b", 1)
        await settle()
        assert uids(ledger.store.account) == {"b"}
        assert ledger.store.account.reserved == {"cpu": 1}


async def test_a_claim_whose_write_had_an_unknown_outcome_is_withdrawn_once_the_store_answers() -> None:
    async with opened(account()) as ledger:
        ledger.store.after = [StoreUnavailableError("no answer")]
        with pytest.raises(StoreUnavailableError):
            await ledger.claim("a", 3)
        await settle()
        assert not ledger.store.account.reservations


async def test_claims_end_at_their_deadlines_and_keep_nothing() -> None:
    async with opened(account()) as ledger:
        ledger.store.open.clear()
        now = asyncio.get_running_loop().time()
        in_the_write = ledger.writer.claim("a", reservation(3), now + 0.05)
        await settle()
        behind_it = ledger.writer.claim("b", reservation(3), now + 0.1)
        patient = ledger.writer.claim("c", reservation(1), now + 60)
        for claimed in (in_the_write, behind_it):
            with pytest.raises(TimeoutError):
                await claimed
        ledger.store.open.set()
        assert isinstance(await patient, Admitted)
        await settle()
        assert uids(ledger.store.account) == {"c"}


async def test_an_update_whose_write_had_an_unknown_outcome_is_withdrawn_too() -> None:
    async with opened(account()) as ledger:
        ledger.store.after = [StoreUnavailableError("no answer")]
        with pytest.raises(StoreUnavailableError):
            await ledger.writer.claim("a", reservation(3, 2))
        await settle()
        assert not ledger.store.account.reservations


async def test_who_stopped_waiting_during_the_write_leaves_what_was_reserved_before() -> None:
    async with opened(account()) as ledger:
        await ledger.claim("a", 3)
        before = ledger.store.account.reservations
        ledger.store.open.clear()
        waiting = ledger.writer.claim("a", reservation(2, 2))
        await settle()
        waiting.cancel()
        ledger.store.open.set()
        await ledger.claim("b", 1)
        await settle()
        assert ledger.store.account.reservations["ns/c1", "a"] == before["ns/c1", "a"]
        assert ledger.store.account.reserved == {"cpu": 4}


async def test_a_claim_that_a_repeat_relies_on_is_not_withdrawn() -> None:
    async with opened(account()) as ledger:
        ledger.store.open.clear()
        waiting = ledger.writer.claim("a", reservation(3))
        await settle()
        waiting.cancel()
        repeat = ledger.writer.claim("a", reservation(3))
        ledger.store.open.set()
        assert isinstance(await repeat, Admitted)
        await settle()
        assert uids(ledger.store.account) == {"a"}


async def test_a_grant_that_came_is_used_by_the_next_claim_and_written_with_it() -> None:
    async with opened(account(0)) as ledger:
        assert isinstance(await ledger.claim("a"), Short)
        ledger.terms = Terms(limits={"cpu": 10}, grant=msgspec.structs.replace(GRANT, granted={"cpu": 3}))
        assert isinstance(await ledger.claim("a", 3), Admitted)
        assert ledger.store.account.granted == {"cpu": 3}


async def test_without_terms_or_account_nothing_is_decided() -> None:
    async with opened(None) as ledger:
        assert await ledger.claim("a") == Fenced()
        with pytest.raises(NoAccountError, match="project-alpha has no account"):
            await ledger.writer.change(lambda present: (present, None))
        await ledger.writer.create(account())
        assert isinstance(await ledger.claim("a"), Admitted)
        ledger.terms = None
        assert await ledger.claim("b") == Fenced()
        assert ledger.writer.preview("b", reservation()) == Fenced()


async def test_creating_an_account_that_another_has_made_meanwhile_gives_theirs() -> None:
    async with opened(None) as ledger:
        assert await ledger.claim("a") == Fenced()
        ledger.store.silent = True
        await MemoryStore.save(ledger.store, KEY, account(7, sequence=4), None)
        found = await ledger.writer.create(account(0, incarnation="mine"))
        assert (found.incarnation, found.granted) == ("life", {"cpu": 7})
        assert ledger.store.account.sequence == 4


async def test_to_make_an_account_that_nobody_heard_of_costs_one_call() -> None:
    async with opened(None) as ledger:
        await ledger.writer.create(account())
        assert isinstance(await ledger.claim("a"), Admitted)
        assert (ledger.store.saves, ledger.store.loads) == (2, 0)


async def test_who_makes_an_account_that_is_there_unheard_of_gets_that_one() -> None:
    async with opened(account(7)) as ledger:
        found = await ledger.writer.create(account(0, incarnation="mine"))
        assert (found.incarnation, found.granted) == ("life", {"cpu": 7})
        assert ledger.store.account.granted == {"cpu": 7}
        assert isinstance(await ledger.claim("a"), Admitted)


async def test_a_preview_decides_as_a_claim_would_and_writes_nothing() -> None:
    async with opened(account(10)) as ledger:
        await ledger.claim("a", 4)
        saves = ledger.store.saves
        assert isinstance(ledger.writer.preview("b", reservation(6)), Admitted)
        assert ledger.writer.preview("b", reservation(7)) == Short({"cpu": 1})
        assert ledger.store.saves == saves
        assert uids(ledger.store.account) == {"a"}


async def test_what_one_change_raises_reaches_its_caller_and_nobody_else() -> None:
    async with opened(account(epoch=5)) as ledger:
        before = ledger.writer.claim("a", reservation())
        stale = ledger.writer.change(lambda present: (accounts.count(present, 4, "ns/c1", {}, {}), None))
        broken = ledger.writer.change(lambda _present: {}["x"])
        after = ledger.writer.claim("b", reservation())
        found = await asyncio.gather(before, stale, broken, after, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in found] == ["Admitted", "StaleEpochError", "KeyError", "Admitted"]


async def test_an_unforeseen_error_of_the_store_fails_one_batch_only(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(account()) as ledger:
        ledger.store.before = [ZeroDivisionError("what?")]
        with pytest.raises(StoreUnavailableError, match="ZeroDivisionError: what"):
            await ledger.claim("a")
        assert isinstance(await ledger.claim("a"), Admitted)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_a_malformed_ledger_fails_requests_until_it_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(account()) as ledger:

        async def malformed(_key: AccountKey) -> Stored | None:
            raise MalformedLedgerError("there is no account in it")

        monkeypatch.setattr(ledger.store, "load", malformed)
        ledger.store.before = [ConflictError("edited by hand")]
        with pytest.raises(MalformedLedgerError, match="no account in it"):
            await ledger.claim("a")
        monkeypatch.undo()
        assert isinstance(await ledger.claim("a"), Admitted)


async def test_a_stopped_writer_answers_what_waits_and_what_comes_later() -> None:
    ledger = Ledger()
    await MemoryStore.save(ledger.store, KEY, account(), None)
    async with running(ledger.writer.run()):
        ledger.store.open.clear()
        writing = ledger.writer.claim("writing", reservation())
        await settle()
        waiting = ledger.writer.claim("waiting", reservation())
    late = ledger.writer.claim("late", reservation())
    changed = ledger.writer.change(lambda present: (present, None))
    for future in (writing, waiting, late, changed):
        with pytest.raises(StoreUnavailableError, match="writer was stopped"):
            await future


async def test_news_by_others_are_taken_up_and_old_news_are_not() -> None:
    async with opened(account(10)) as ledger:
        await ledger.claim("a")
        await ledger.store.by_another(lambda present: accounts.claim_epoch(present, 9))
        assert ledger.writer.account is ledger.store.account
        assert ledger.writer.account.epoch == 9
        ledger.writer._observe(Stored(account(10, sequence=0), "0"))
        assert ledger.writer.account.epoch == 9
        await ledger.store.delete(KEY)
        assert ledger.writer.account is None
        assert await ledger.claim("b") == Fenced()


@pytest.mark.parametrize("fails", [False, True])
async def test_nobody_hears_of_a_write_before_it_is_durable(fails: bool) -> None:
    """What listeners hear is published to the master and wakes those that wait."""
    async with opened(account(10)) as ledger:
        await ledger.claim("a")
        ledger.heard.clear()
        ledger.store.open.clear()
        ledger.store.before = [StoreUnavailableError("no answer")] if fails else []
        claimed = ledger.writer.claim("b", reservation())
        await eventually(lambda: ledger.store.saves == 2)
        assert ledger.writer.account is not None
        assert (ledger.heard, uids(ledger.writer.account)) == ([], {"a"})
        ledger.store.open.set()
        await asyncio.wait([claimed])
        assert claimed.exception() is None or fails
        assert all(heard == ledger.store.account.sequence for heard in ledger.heard)
        assert uids(ledger.writer.account) == uids(ledger.store.account) == ({"a"} if fails else {"a", "b"})


async def test_a_later_write_of_another_heard_before_our_own_is_confirmed_stays_known() -> None:
    async with opened(account(10)) as ledger:
        await ledger.claim("a")

        save = ledger.store.save

        async def overtaken(key: AccountKey, written: Account, version: str | None) -> str:
            ours = await save(key, written, version)
            await ledger.store.by_another(lambda present: accounts.claim_epoch(present, 9))
            return ours

        ledger.store.save = overtaken  # type: ignore[method-assign]
        await ledger.claim("b")
        assert ledger.writer.account is not None
        assert ledger.writer.account.epoch == 9


async def test_a_store_restored_from_a_backup_begins_a_new_life_behind_a_fence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with opened(account(10)) as ledger:
        await ledger.claim("a", 4)
        backup = ledger.store.account
        await ledger.claim("b", 4)
        ledger.store.silent = True
        ledger.store._stored[KEY.uid] = Stored(backup, "restored")
        assert await ledger.claim("c", 4) == Fenced(), "b is still there, and the backup does not know it"
        assert ledger.store.account.incarnation != "life"
        assert ledger.store.account.fenced
        assert ledger.store.account.granted == {}
    assert [record.message for record in caplog.records] == ["ledger went backwards"]


async def test_what_is_heard_while_the_ledger_is_read_is_no_restored_backup(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with opened(account(10)) as ledger:
        await ledger.claim("a")
        load = ledger.store.load

        async def overtaken(key: AccountKey) -> Stored | None:
            found = await load(key)
            ledger.store.load = load  # type: ignore[method-assign]
            ledger.store.silent = False
            await ledger.store.by_another(lambda present: accounts.claim_epoch(present, 9))
            return found

        ledger.store.load = overtaken  # type: ignore[method-assign]
        ledger.store.silent = True
        ledger.store.before = [lambda present: accounts.claim_epoch(present, 8)]
        assert isinstance(await ledger.claim("b"), Admitted)
        assert ledger.store.account.epoch == 9
        assert ledger.store.account.incarnation == "life"
    assert caplog.records == []


async def test_every_account_that_became_durable_is_told() -> None:
    async with opened(account(10, sequence=5)) as ledger:
        await ledger.claim("a")
        await ledger.claim("b")
        await ledger.store.by_another(lambda present: accounts.claim_epoch(present, 9))
        assert sorted(set(ledger.heard)) == [5, 6, 7, 8]


async def test_an_update_that_was_given_up_takes_nothing_from_the_next_try_through_another_replica() -> None:
    async with opened(account(10)) as ledger:
        await ledger.claim("other")
        load, reachable = ledger.store.load, asyncio.Event()

        async def slow(key: AccountKey) -> Stored | None:
            await reachable.wait()
            return await load(key)

        ledger.store.load = slow  # type: ignore[method-assign]
        ledger.store.before = [StoreUnavailableError("no answer")]
        with pytest.raises(StoreUnavailableError):
            await ledger.writer.claim("a", reservation(2, 2))
        ledger.store.silent = True
        await ledger.store.by_another(lambda present: reserve(present, {"cpu": 1000}, "a", reservation(2, 2))[0])
        reachable.set()
        await ledger.claim("more")
        assert uids(ledger.store.account) == {"other", "a", "more"}


async def test_an_account_that_is_gone_is_told_so_that_the_leader_makes_another() -> None:
    async with opened(account()) as ledger:
        assert isinstance(await ledger.claim("a"), Admitted)
        await MemoryStore.delete(ledger.store, KEY)
        assert ledger.heard[-1] is None
        ledger.heard.clear()
        assert isinstance(await ledger.claim("b"), Fenced)
        assert ledger.heard == [None], "also to a replica that heard nothing and had to read"


async def test_who_loses_twice_in_a_row_takes_the_account() -> None:
    async with opened(account()) as ledger:
        await ledger.claim("a")
        ledger.store.before = [lambda present: accounts.claim_epoch(present, 2 + present.epoch)] * 3
        assert isinstance(await ledger.claim("b"), Admitted)
        assert ledger.store.takes == 1
        assert ledger.conflicts == 3


async def test_an_account_that_another_took_is_written_after_that_one_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "LONGEST_TAKEN", 60.0)
    async with opened(account(10)) as ledger:
        await ledger.claim("a")
        taken = await ledger.store.take(KEY)
        assert taken is not None
        claimed = ledger.writer.claim("b", reservation())
        await eventually(lambda: ledger.conflicts)
        await asyncio.sleep(0.03)
        assert ledger.conflicts == 1
        assert ledger.store.saves == 2, "it waits"
        await ledger.store.by_another(lambda present: accounts.claim_epoch(present, 9))
        assert isinstance(await claimed, Admitted)
        assert ledger.conflicts == 1
        assert ledger.store.account.epoch == 9


async def test_an_account_that_was_taken_and_never_written_is_waited_for_a_moment_only() -> None:
    async with opened(account(10)) as ledger:
        await ledger.claim("a")
        await ledger.store.take(KEY)
        assert isinstance(await ledger.claim("b"), Admitted)
        assert ledger.conflicts == 1


async def test_one_conflict_does_not_make_the_next_wait_for_a_turn_of_another() -> None:
    async with opened(account(10)) as ledger:
        ledger.store.seconds = 0.1
        await ledger.claim("a")
        ledger.store.before = [lambda present: accounts.claim_epoch(present, 9)]
        await ledger.claim("b")
        assert ledger.conflicts == 1
        assert not ledger.writer._contention.contended
        ledger.store.before = [lambda present: accounts.claim_epoch(present, 10)]
        await ledger.claim("c")
        assert ledger.writer._contention.contended, "two conflicts so close to each other are no accident"


async def test_two_replicas_that_write_as_fast_as_they_can_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONGEST_TURN", "LONGEST_TAKEN"):
        monkeypatch.setattr(contention, name, 5.0)  # on a machine that is busy the other takes long for its write
    monkeypatch.setattr(contention, "TURN_WRITES", 10_000)
    async with opened(account(1000)) as ledger:
        ledger.store.seconds = 0.002
        other = AccountWriter(ledger.store, KEY, lambda: ledger.terms, on_conflict=ledger._conflict)
        async with running(other.run()):
            await asyncio.gather(ledger.claim("first"), other.claim("second", reservation()))

            done = [0, 0]

            async def client(writer: AccountWriter, place: int, name: str) -> None:
                """As long as the others: who is alone at the end waits in vain for their turn."""
                for number in itertools.count():
                    if min(done) >= 120:
                        return
                    assert isinstance(await writer.claim(f"{place}-{name}-{number}", reservation()), Admitted)
                    done[place] += 1

            before, ledger.conflicts = ledger.store.saves, 0
            clients = [client(writer, place, n) for place, writer in enumerate((ledger.writer, other)) for n in "abc"]
            await asyncio.gather(*clients)
            assert accounts.use(ledger.store.account) == {"cpu": 2 + sum(done)}
            assert ledger.conflicts < (ledger.store.saves - before) / 4


async def test_what_makes_the_account_too_large_is_refused_and_what_comes_with_it_is_not() -> None:
    class Small(ScriptedStore):
        async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
            if len(account.used) > 2:
                raise TooLargeError("too much")
            return await super().save(key, account, version)

    def counting(source: str) -> Callable[[Account], tuple[Account, None]]:
        return lambda account: (accounts.count(account, 1, source, {"cpu": 1}, {}), None)

    async with opened(account(used={"ns/c1": {"cpu": 1}})) as ledger:
        await ledger.claim("a")
        ledger.store.__class__ = Small
        counts = [ledger.writer.change(counting(f"ns/c{number}")) for number in (2, 3, 1)]
        claim = ledger.writer.claim("b", reservation())
        done = await asyncio.gather(*counts, claim, return_exceptions=True)
        assert isinstance(done[1], StoreUnavailableError)
        assert [done[0], done[2]] == [None, None]
        assert isinstance(done[3], Admitted)
        assert ledger.store.account.used.keys() == {"ns/c1", "ns/c2"}
        assert uids(ledger.store.account) == {"a", "b"}


async def test_a_full_account_is_measured_once_and_not_for_each_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    measure = shares.measure

    def counted(account: Account) -> Load:
        measured.append(account.sequence)
        return measure(account)

    monkeypatch.setattr(shares, "measure", counted)
    without_shares(monkeypatch)
    monkeypatch.setattr(reservations, "MAX_TEXT", 300)
    async with opened(account()) as ledger:
        outcomes = [await ledger.claim(f"u{number}") for number in range(20)]
        kept = len(ledger.store.account.reservations)
        assert outcomes[kept:] == [Full()] * (20 - kept)
        assert 0 < kept < 20
        assert len(measured) == 1
        await ledger.writer.change(
            lambda present: (accounts.release(present, 1, dict(present.reservations)), None),
        )
        assert isinstance(await ledger.claim("again"), Admitted)
        assert isinstance(ledger.writer.preview("one-more", reservation()), Admitted)
        assert len(measured) == 2
