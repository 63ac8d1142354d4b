"""Group commit: one writer per account takes all that waits, decides in order, and writes once (rule 4.1).

While a write is under way the next ones queue up, so the busier an account is, the more one write carries. Nobody is
answered before the write is durable. On a conflict everything is read and decided again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from common.quota import account as accounts
from common.quota import fencing, reservations
from common.quota.account import Account, Admitted, Denied, Fenced, Outcome, Reservation
from common.quota.reservations import Reserving
from seed.ledger.encoding import MalformedLedgerError, TooLargeError
from seed.ledger.store import ConflictError, Key, NoAccountError, Store, Stored, StoreUnavailableError, Terms

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAITING = 4096  # beyond that a claim is refused at once: it would only time out
MAX_BATCH = 512
LONGEST_LINGER = 0.002  # seconds
LONGEST_TURN = 0.02  # for another's write after one's own ...
TURN_WRITES = 6  # ... and so many times as long as that took: the other hears, reads, decides, and writes
CLOSE_CONFLICTS = 4  # with no more writes between them others write all the time, not only now and then
LONGEST_TAKEN = 0.1  # ... by who took the account: it is sure to write
MAX_CONFLICTS = 100


class BusyError(Exception):
    """More requests wait for this account than can be served in time."""


class _Claim:
    __slots__ = ("deadline", "future", "reservation", "uid")

    def __init__(
        self, uid: str, reservation: Reservation, future: asyncio.Future[Outcome], deadline: float | None
    ) -> None:
        self.uid = uid
        self.reservation = reservation
        self.future = future
        self.deadline = deadline


class _Change(Generic[T]):
    """A pure function of the account; its result is delivered once the changed account is durable."""

    __slots__ = ("apply", "future")

    def __init__(self, apply: Callable[[Account], tuple[Account, T]], future: asyncio.Future[T]) -> None:
        self.apply = apply
        self.future = future

    @property
    def creates(self) -> bool:
        return isinstance(self.apply, _Creation)


class AccountWriter:
    """One account in one process. `run` serves until cancelled; what waits then is told that the store is away."""

    def __init__(
        self,
        store: Store,
        key: Key,
        terms: Callable[[], Terms | None],
        *,
        on_account: Callable[[Account | None], None] = lambda _account: None,
        on_write: Callable[[float, int], None] = lambda _seconds, _claims: None,
        on_conflict: Callable[[], None] = lambda: None,
        trusted: Callable[[], int | None] = lambda: 0,
    ) -> None:
        """`trusted`: the first lease term that this process has seen alive. An account that no leader has claimed since
        may be older than what it was; nothing is admitted by it."""
        self.key = key
        self._store = store
        self._terms = terms
        self._on_account = on_account
        self._on_write = on_write
        self._on_conflict = on_conflict
        self._trusted = trusted
        self._waiting: deque[_Claim | _Change[object]] = deque()
        self._serving: list[_Claim | _Change[object]] = []
        self._expiry: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._enough = 1  # how many must wait before the next write begins
        self._took = 0.0  # seconds of the last write
        self._known: Stored | None = None
        self._loaded = False
        self._stopped = False
        self._saving = False
        self._pending = False  # a write whose outcome is not known may still arrive
        self._contended = False  # others write to this account as busily
        self._since_conflict = CLOSE_CONFLICTS + 1  # writes
        self._theirs = asyncio.Event()  # set: another has written since our last write
        self._highest = ("", 0)  # incarnation and sequence of the latest account known
        self._measured: tuple[object, object, int] = (None, None, 0)  # reservations and use, and their length
        self._unsubscribe = store.subscribe(key.uid, self._observe)

    @property
    def account(self) -> Account | None:
        """The last account known to be durable; None before the first load and where there is none."""
        return self._known.account if self._known else None

    def claim(self, uid: str, reservation: Reservation, deadline: float | None = None) -> asyncio.Future[Outcome]:
        """Reserve. Raises BusyError; the future raises StoreUnavailableError, MalformedLedgerError, and TimeoutError
        at the `deadline` (on the event loop's clock).

        What was not decided by then, or before its future was cancelled, is not reserved.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise BusyError(f"{len(self._waiting)} requests wait already")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self._enqueue(_Claim(uid, reservation, future, deadline))
        if deadline is not None and self._expiry is None:
            self._expiry = loop.call_at(deadline, self._expire)
        return future

    def _expire(self) -> None:
        """One timer for all: claims are decided in milliseconds, and a timer for each would cost a tenth of that."""
        loop = asyncio.get_running_loop()
        self._expiry = None
        now = loop.time()
        soonest = float("inf")
        for entry in (*self._serving, *self._waiting):
            if not isinstance(entry, _Claim) or entry.deadline is None or entry.future.done():
                continue
            if entry.deadline <= now:
                entry.future.set_exception(TimeoutError("not decided in time"))
            else:
                soonest = min(soonest, entry.deadline)
        if soonest < float("inf"):
            self._expiry = loop.call_at(soonest, self._expire)

    def change(self, apply: Callable[[Account], tuple[Account, T]]) -> asyncio.Future[T]:
        """Apply a pure function to the account and write if it changed it. The future raises what `apply` raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(_Change(apply, future))
        return future

    def create(self, account: Account) -> asyncio.Future[Account]:
        """Make the account where there is none; the future's account is the one that is there afterwards."""
        return self.change(_Creation(account))

    def preview(self, uid: str, reservation: Reservation) -> Outcome:
        """Decide as `claim` would at this moment, and write nothing (dry run)."""
        account, terms = self.account, self._terms()
        if account is None or terms is None or not self._trusts(account):
            return Fenced()
        account = accounts.apply_grant(account, terms.grant)
        return Reserving(account, terms.limits, self._length(account)).claim(uid, reservation)

    def _trusts(self, account: Account) -> bool:
        trusted = self._trusted()
        return trusted is not None and account.epoch >= trusted

    def _enqueue(self, entry: _Claim | _Change[Any]) -> None:
        if self._stopped:
            _fail(entry, self._gone())
            return
        self._waiting.append(entry)
        if len(self._waiting) >= self._enough:
            self._wake.set()

    def _observe(self, stored: Stored | None) -> None:
        known = self._known
        if stored is None:
            self._known, self._loaded = None, False
            self._on_account(None)
        elif known is None or _newer(stored.account, known.account):
            self._known, self._loaded = stored, True
            if not self._saving:  # it may be our own; another's would refuse ours
                self._theirs.set()
            self._highest = (stored.account.incarnation, stored.account.sequence)
            self._on_account(stored.account)

    async def run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
                    self._serving = batch
                    await self._serve(batch)
                    self._serving = []
                    await self._linger(len(batch))
                    if self._contended:
                        await self._give_way(min(TURN_WRITES * self._took, LONGEST_TURN))
        finally:
            self._stopped = True
            self._unsubscribe()
            if self._expiry is not None:
                self._expiry.cancel()
            for entry in self._waiting:
                _fail(entry, self._gone())
            self._waiting.clear()

    async def _linger(self, answered: int) -> None:
        """Where several were answered together, the next of each come at once, or nearly: with those who wait already
        they share one write, and none has to wait for another's to end. A request that is alone is never kept."""
        enough = min(len(self._waiting) + answered, MAX_BATCH)
        if answered < 2 or len(self._waiting) >= enough:
            return
        self._enough = enough
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._took / 2, LONGEST_LINGER)):
                await self._wake.wait()
        self._enough = 1

    async def _give_way(self, longest: float) -> None:
        """Two replicas that write as fast as they can refuse each other nearly every time. So after conflicts each
        waits for a write of another's after each of its own: by then it knows what to build on."""
        try:
            async with asyncio.timeout(longest):
                await self._theirs.wait()
        except TimeoutError:
            self._contended = False

    def _gone(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self.key.name}: the ledger's writer was stopped")

    async def _serve(self, batch: list[_Claim | _Change[object]]) -> None:
        try:
            for conflicts in range(MAX_CONFLICTS):
                try:
                    await self._commit([entry for entry in batch if not entry.future.done()], read=conflicts > 0)
                except TooLargeError as error:
                    await self._one_by_one(batch, error)
                    return
                except ConflictError:
                    self._pending = False  # it was for the version that is not there any more
                    self._contended = self._contended or self._since_conflict <= CLOSE_CONFLICTS
                    self._since_conflict = 0
                    self._on_conflict()
                    await self._read_again(take=conflicts % 2 == 1)
                else:
                    return
            raise StoreUnavailableError(f"{self.key.name}: {MAX_CONFLICTS} conflicting writes in a row")
        except (StoreUnavailableError, MalformedLedgerError) as error:
            log.warning("ledger not written", extra={"quota": self.key.name, "error": str(error)})
            self._fail_all(batch, error)
        except asyncio.CancelledError:
            self._fail_all(batch, self._gone())
            raise
        except Exception as error:  # whatever it was, the next batch must be served
            log.exception("ledger's writer failed", extra={"quota": self.key.name})
            self._fail_all(batch, StoreUnavailableError(f"{self.key.name}: {type(error).__name__}: {error}"))

    async def _one_by_one(self, batch: list[_Claim | _Change[object]], error: TooLargeError) -> None:
        """What would make the account too large is refused; what shares the batch with it is not."""
        if len(batch) > 1:
            for entry in batch:
                await self._serve([entry])
            return
        log.warning("account is too large", extra={"quota": self.key.name, "error": str(error)})
        for entry in batch:
            _fail(entry, StoreUnavailableError(f"{self.key.name}: {error}"))

    def _fail_all(self, batch: list[_Claim | _Change[object]], error: Exception) -> None:
        self._loaded = False
        for entry in batch:
            _fail(entry, error)
            self._withdraw(entry)

    def _withdraw(self, entry: _Claim | _Change[object], written: Admitted | None = None) -> None:
        """Nobody was told yes, but the claim is in the ledger, or may be: without this it would stay until evidence."""
        if not isinstance(entry, _Claim) or self._stopped or len(self._waiting) >= MAX_WAITING:
            return
        uid, reservation = entry.uid, entry.reservation

        def withdraw(account: Account) -> tuple[Account, None]:
            if written is not None:
                return reservations.cancel(account, uid, written), None
            return reservations.withdraw(account, uid, reservation), None

        withdrawn = self.change(withdraw)
        withdrawn.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())

    async def _commit(self, batch: list[_Claim | _Change[object]], *, read: bool = False) -> None:
        # Of an account that nobody has heard of, making one tells whether there is one: to ask first is one call more.
        new = self._known is None and all(isinstance(entry, _Change) and entry.creates for entry in batch)
        if not self._loaded and (read or not new):
            await self._load(take=self._pending)
            read = True
        before = self._known
        outcomes, after = self._decide(batch, self._sound(before.account) if before else None)
        if after is not None and (before is None or after is not before.account):
            after = msgspec.structs.replace(after, sequence=after.sequence + 1)
            started = time.monotonic()
            self._saving = True
            try:
                version = await self._store.save(self.key, after, before.version if before else None)
            except StoreUnavailableError:
                self._pending = True
                raise
            finally:
                self._saving = False
            self._took = time.monotonic() - started
            self._pending = False
            self._theirs.clear()
            self._since_conflict += 1
            self._on_write(self._took, len(batch))
            self._loaded = True
            self._written(before, Stored(after, version))
        elif not read and any(isinstance(outcome, Denied) for outcome in outcomes):
            # No write proved that the account is as it was known, and others write too: nobody is denied from memory.
            await self._load()
            if self._known is not before:
                await self._commit(batch, read=True)
                return
        for entry, outcome in zip(batch, outcomes, strict=True):
            if entry.future.done():
                if isinstance(outcome, Admitted):
                    self._withdraw(entry, outcome)
                continue
            if isinstance(outcome, Exception):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome)  # type: ignore[arg-type]

    async def _read_again(self, *, take: bool) -> None:
        """After a conflict. Who is slow would always lose against who writes as fast as he can, and that one would
        never know. So who lost twice takes the account, which refuses what others have under way; they see that nothing
        else has changed, and wait for his write."""
        before = self._known
        await self._load(take=take)
        if not take and before is not None and self._known is not None and _taken(before, self._known):
            self._theirs.clear()
            await self._give_way(LONGEST_TAKEN)

    async def _load(self, *, take: bool = False) -> None:
        """`take`: what is under way, ours too, is refused from here on. Without it a write that arrives late could undo
        what was found right and therefore not written again."""
        known = self._known
        stored = await (self._store.take(self.key) if take else self._store.load(self.key))
        if take:
            self._pending = False
        self._loaded = True
        heard = self._known if self._known is not known else None
        if heard is not None and stored is not None and _precedes(stored.account, heard.account):
            return  # it was heard of while this was read
        if stored is None or known is None or stored.version != known.version:
            self._known = stored
            self._on_account(stored.account if stored is not None else None)

    def _sound(self, account: Account) -> Account:
        """The account; in a new life, fenced, if the store went back to an older state of it (a restored backup)."""
        incarnation, sequence = self._highest
        if account.incarnation != incarnation or account.sequence >= sequence:
            self._highest = (account.incarnation, account.sequence)
            return account
        log.warning("ledger went backwards", extra={"quota": self.key.name, "sequence": sequence})
        return fencing.rebuild(account, secrets.token_hex(8), secrets.token_hex(8))

    def _written(self, before: Stored | None, stored: Stored) -> None:
        """Our write is known now, unless something later has been heard of meanwhile."""
        heard = self._known
        self._highest = (stored.account.incarnation, stored.account.sequence)
        if heard is before or (heard is not None and not _newer(heard.account, stored.account)):
            self._known = stored
            self._on_account(stored.account)
        else:
            self._theirs.set()

    def _decide(
        self, batch: list[_Claim | _Change[object]], account: Account | None
    ) -> tuple[list[object], Account | None]:
        terms = self._terms()
        outcomes: list[object] = []
        reserving: Reserving | None = None
        for entry in batch:
            if isinstance(entry, _Claim):
                if account is None or terms is None or not self._trusts(account):
                    outcomes.append(Fenced())
                    continue
                if reserving is None:
                    account = accounts.apply_grant(account, terms.grant)  # also what became free in this very batch
                    reserving = Reserving(account, terms.limits, self._length(account))
                outcomes.append(reserving.claim(entry.uid, entry.reservation))
                continue
            if reserving is not None:
                account, reserving = self._reserved(reserving), None
            account, outcome = self._change(entry, account)
            outcomes.append(outcome)
        return outcomes, self._reserved(reserving) if reserving is not None else account

    def _length(self, account: Account) -> int:
        """Measured anew only after somebody else has changed it: not for each of thousands of claims."""
        reservations, used, length = self._measured
        if reservations is not account.reservations or used is not account.used:
            length = accounts.length(account)
            self._measured = (account.reservations, account.used, length)
        return length

    def _reserved(self, reserving: Reserving) -> Account:
        account = reserving.account()
        self._measured = (account.reservations, account.used, reserving.text)
        return account

    def _change(self, entry: _Change[object], account: Account | None) -> tuple[Account | None, object]:
        if isinstance(entry.apply, _Creation):
            return entry.apply.where_missing(account)
        if account is None:
            return None, NoAccountError(f"{self.key.name} has no account")
        try:
            return entry.apply(account)
        except Exception as error:  # noqa: BLE001 (the caller's: he gets it, the others in the batch do not)
            return account, error


class _Creation:
    def __init__(self, account: Account) -> None:
        self._account = account

    def __call__(self, account: Account) -> tuple[Account, Account]:
        return account, account

    def where_missing(self, present: Account | None) -> tuple[Account, Account]:
        account = present if present is not None else self._account
        return account, account


def _newer(account: Account, known: Account) -> bool:
    """Another life is always news: which one counts, the store decided. Within one, the sequence tells."""
    return account.incarnation != known.incarnation or account.sequence > known.sequence


def _precedes(account: Account, other: Account) -> bool:
    return account.incarnation == other.incarnation and account.sequence < other.sequence


def _taken(before: Stored, now: Stored) -> bool:
    """The same account in another version."""
    here, there = before.account, now.account
    return (here.incarnation, here.sequence) == (there.incarnation, there.sequence) and before.version != now.version


def _fail(entry: _Claim | _Change[object], error: Exception) -> None:
    if not entry.future.done():
        entry.future.set_exception(error)
