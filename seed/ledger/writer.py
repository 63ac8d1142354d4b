"""Group commit: one write of an account is for all that wait (rule 4.1). What a block has room for needs none (4.15).

Concurrency: one writer per account takes all that waits, decides in order, and writes once. While a write is under way
the next ones queue up, so the busier an account is, the more one write carries.

Durability: nobody is answered before the write is durable. On a conflict everything is read and decided again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from common.quota import blocks, fencing, reservations
from common.quota.account import Account, AccountKey, Admitted, Denied, Outcome, Reservation, Short, Terms
from seed.ledger import batcher
from seed.ledger.batcher import Batcher, Change, Claim, Creation, Entry
from seed.ledger.contention import Contention
from seed.ledger.decision import Decider
from seed.ledger.encoding import MalformedLedgerError, TooLargeError
from seed.ledger.known_account import KnownAccount
from seed.ledger.own_block import OwnBlock
from seed.ledger.store import ConflictError, Store, Stored, StoreUnavailableError

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CONFLICTS = 100
NAMING = 0.1  # seconds from an admission out of the block to the write that names it


class BusyError(Exception):
    """More requests wait for this account, or for one source of it, than can be served in time."""


class AccountWriter:
    """One account in one process. `run` serves until cancelled; what waits then fails with StoreUnavailableError."""

    def __init__(
        self,
        store: Store,
        key: AccountKey,
        terms: Callable[[], Terms | None],
        *,
        on_account: Callable[[Account | None], None] = lambda _account: None,
        on_write: Callable[[float, int], None] = lambda _seconds, _claims: None,
        on_conflict: Callable[[], None] = lambda: None,
        trusted: Callable[[], int | None] = lambda: 0,
        ahead: Callable[[Account], bool] = lambda _account: True,
    ) -> None:
        """`trusted`: the first lease term that this process has seen alive. An account that no leader has claimed since
        may be older than what it was; nothing is admitted by it. `ahead`: whether it may have blocks now."""
        self.key = key
        self._store = store
        self._on_account = on_account
        self._on_write = on_write
        self._on_conflict = on_conflict
        self._trusted = trusted
        self._queue = Batcher()
        self._contention = Contention()
        self._known = KnownAccount()
        self._terms = terms
        self._ahead = ahead
        self._decider = Decider(key.name, terms, self._trusts)
        self.block = OwnBlock()
        self._naming: asyncio.TimerHandle | None = None
        self._took = 0.0  # seconds of the last write
        self._saving = False
        self._stopped = False
        self._unsubscribe = store.subscribe(key.uid, self._observe)

    @property
    def account(self) -> Account | None:
        """The last account known to be durable; None before the first load and where there is none."""
        return self._known.stored.account if self._known.stored else None

    def claim(self, uid: str, reservation: Reservation, deadline: float | None = None) -> asyncio.Future[Outcome]:
        """Reserve. Raises BusyError; the future raises StoreUnavailableError, MalformedLedgerError, and TimeoutError
        at the `deadline` (on the event loop's clock).

        What was not decided by then, or before its future was cancelled, is not reserved.
        """
        if self._queue.full:
            raise BusyError(f"{len(self._queue)} requests wait already")
        if (over := self._queue.over_share(reservation)) is not None:
            whose = f"of {over.tenant} in this cluster" if over.tenant else "of this cluster"
            raise BusyError(f"too many requests {whose} wait already: it has its share, and others go on")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._enqueue(Claim(uid, reservation, future, deadline))
        if deadline is not None:
            self._queue.expire_at(deadline)
        return future

    def may_admit(self, uid: str, reservation: Reservation) -> bool:
        """Whether `admit` would, in this step of the event loop: from the block, without a write."""
        if not self.block.exists or self._stopped:
            return False
        account, terms = self.account, self._terms()
        if account is None or terms is None or not self._trusts(account):
            return False
        text = self._decider.load(account).text
        return self.block.may_admit(account, terms, uid, reservation, text)

    def admit(self, uid: str, reservation: Reservation) -> Admitted:
        """What `may_admit` said yes to."""
        account, terms = self.account, self._terms()
        assert account is not None and terms is not None, "may_admit has said so"
        admitted = self.block.admit(account, terms, uid, reservation)
        self._look_later()
        return admitted

    async def finish(self) -> None:
        """Before an orderly end: names what was admitted and gives the rest back. Nothing is admitted any more from
        the block. Raises what `change` raises."""
        self.block.close()
        if self.block.exists:
            await self.change(_unchanged)

    def poke(self) -> None:
        """Something changed by which the block may have to go: the quota, or the account."""
        if not (self._stopped or self._saving) and self.block.is_due(self.account, self._terms()):
            self.change(_unchanged).add_done_callback(_heard)

    def change(self, apply: Callable[[Account], tuple[Account, T]]) -> asyncio.Future[T]:
        """Apply a pure function to the account and write if it changed it. The future raises what `apply` raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(Change(apply, future))
        return future

    def create(self, account: Account) -> asyncio.Future[Account]:
        """Make the account where there is none; the future's account is the one that is there afterwards."""
        return self.change(Creation(account))

    def preview(self, uid: str, reservation: Reservation) -> Outcome:
        """Decide as `claim` would at this moment, and write nothing (dry run)."""
        account = self.account
        return self._decider.preview(self.block.shown(account) if account is not None else None, uid, reservation)

    def _look_later(self) -> None:
        """While there is a block, whether it is time for a write."""
        if self._naming is None and not self._stopped:
            self._naming = asyncio.get_running_loop().call_later(NAMING, self._look)

    def _look(self) -> None:
        self._naming = None
        self.poke()
        if self.block.exists:
            self._look_later()

    def _trusts(self, account: Account) -> bool:
        trusted = self._trusted()
        return trusted is not None and account.epoch >= trusted

    def _enqueue(self, entry: Claim | Change[Any]) -> None:
        if self._stopped:
            batcher.fail(entry, self._gone())
            return
        self._queue.add(entry)

    def _observe(self, stored: Stored | None) -> None:
        before = self.account
        if not self._known.observed(stored):
            return
        if self.block.noticed(before, self.account):
            self.poke()
        if stored is not None and not self._saving:  # it may be our own; another's would refuse ours
            self._contention.other_wrote()
        self._on_account(self.account)

    async def run(self) -> None:
        try:
            while True:
                await self._queue.wait()
                while batch := self._queue.take():
                    await self._serve(batch)
                    self._queue.served()
                    await self._queue.linger(len(batch), self._took)
                    if not self.block.exists:  # what a block admits waits for no write, and few writes are left
                        await self._contention.wait_for_turn(self._took)
        finally:
            self._stopped = True
            if self._naming is not None:
                self._naming.cancel()
            self._unsubscribe()
            self._queue.close(self._gone())

    def _gone(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self.key.name}: the ledger's writer was stopped")

    async def _serve(self, batch: list[Entry]) -> None:
        try:
            for conflicts in range(MAX_CONFLICTS):
                try:
                    await self._commit([entry for entry in batch if not entry.future.done()], read=conflicts > 0)
                except TooLargeError as error:
                    await self._one_by_one(batch, error)
                    return
                except ConflictError:
                    self._known.late_write = False  # it was for the version that is not there any more
                    self._contention.conflicted()
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

    async def _one_by_one(self, batch: list[Entry], error: TooLargeError) -> None:
        """What would make the account too large is refused; what shares the batch with it is not."""
        if len(batch) > 1:
            for entry in batch:
                await self._serve([entry])
            return
        log.warning("account is too large", extra={"quota": self.key.name, "error": str(error)})
        for entry in batch:
            batcher.fail(entry, StoreUnavailableError(f"{self.key.name}: {error}"))

    def _fail_all(self, batch: list[Entry], error: Exception) -> None:
        self._known.read = False
        for entry in batch:
            batcher.fail(entry, error)
            self._withdraw(entry)

    def _withdraw(self, entry: Entry, written: Admitted | None = None) -> None:
        """Nobody was answered yes, but the claim is in the ledger, or may be: it would stay there until the leader
        has evidence."""
        if not isinstance(entry, Claim) or self._stopped or self._queue.full:
            return
        uid, reservation = entry.uid, entry.reservation

        def withdraw(account: Account) -> tuple[Account, None]:
            if written is not None:
                return reservations.cancel(account, uid, written), None
            return reservations.withdraw(account, uid, reservation), None

        withdrawn = self.change(withdraw)
        withdrawn.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())

    async def _commit(self, batch: list[Entry], *, read: bool = False) -> None:
        # Where no account is known, creating one shows whether there is one: a read first would be one call more.
        new = self._known.stored is None and all(isinstance(entry, Change) and entry.creates for entry in batch)
        if not self._known.read and (read or not new):
            await self._load(take=self._known.late_write)
            read = True
        before = self._known.stored
        outcomes, after = self._decide(batch, self._sound(before.account) if before else None)
        if after is not None and (before is None or after is not before.account):
            await self._save(before, msgspec.structs.replace(after, sequence=after.sequence + 1), len(batch))
        elif not read and any(isinstance(outcome, Denied) for outcome in outcomes):
            # No write proved that the account is as it was known, and others write too: nobody is denied from memory.
            await self._load()
            if self._known.stored is not before:
                await self._commit(batch, read=True)
                return
        self._answer(batch, outcomes)

    def _decide(self, batch: Sequence[Entry], account: Account | None) -> tuple[list[object], Account | None]:
        """... with what was admitted from the block, and with the block for what comes."""
        if account is None:
            return self._decider.decide(batch, None)
        named = self.block.named(account)
        due = self.block.is_due(account, self._terms())
        outcomes, after = self._decider.decide(batch, named)
        assert after is not None, "an account is never deleted by a decision"
        short = False
        for entry, outcome in zip(batch, outcomes, strict=True):
            if isinstance(entry, Claim) and isinstance(outcome, Admitted) and not entry.reservation.generation:
                self.block.asked(outcome.after.amount)
            short = short or isinstance(outcome, Short)
        if short and not after.scarce and blocks.owners(after):
            after = msgspec.structs.replace(after, scarce=True)  # others may have it
        if after is named and not due:
            return outcomes, account
        if after is named and named is account:
            return outcomes, account
        return outcomes, self.block.hold(after, self._terms() if self._ahead(after) else None, short=short)

    async def _save(self, before: Stored | None, account: Account, entries: int) -> None:
        started = time.monotonic()
        self._saving = True
        try:
            version = await self._store.save(self.key, account, before.version if before else None)
        except TooLargeError:
            self.block.refused()
            raise
        except ConflictError:
            raise  # it may be done all the same, if it was sent again: the account is read now, and tells
        except Exception:
            self._known.late_write = True
            raise
        finally:
            self._saving = False
        self.block.saved()
        if self.block.exists:
            self._look_later()
        self._took = time.monotonic() - started
        self._contention.wrote()
        self._on_write(self._took, entries)
        if self._known.written(Stored(account, version), before):
            self._on_account(account)
        else:
            self._contention.other_wrote()

    def _answer(self, batch: Sequence[Entry], outcomes: Sequence[object]) -> None:
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
        """After a conflict. A slow writer would always lose against one that writes without a pause, and the fast one
        would never know. So a writer that lost twice takes the account, which refuses the writes that others have under
        way. They see that nothing else has changed, and wait for its write."""
        before = self._known.stored
        await self._load(take=take)
        if not take and self._known.is_taken_since(before):
            await self._contention.wait_for_taker()

    async def _load(self, *, take: bool = False) -> None:
        """`take`: what is under way, ours too, is refused from here on. Without it a write that arrives late could undo
        what was found right and therefore not written again."""
        before = self._known.stored
        stored = await (self._store.take(self.key) if take else self._store.load(self.key))
        if take:
            self._known.late_write = False
        if not self._known.late_write:
            self.block.read(stored.account if stored is not None else None)
        if self._known.loaded(stored, before):
            self._on_account(self.account)

    def _sound(self, account: Account) -> Account:
        """The account; in a new life, fenced, if the store went back to an older state of it (a restored backup)."""
        if not self._known.went_back(account):
            return account
        log.warning("ledger went backwards", extra={"quota": self.key.name, "sequence": self._known.highest[1]})
        return fencing.rebuild(account, secrets.token_hex(8), secrets.token_hex(8))


def _unchanged(account: Account) -> tuple[Account, None]:
    """The block goes with each write, also with one of nothing else."""
    return account, None


def _heard(ended: asyncio.Future[None]) -> None:
    """Nobody waits for it; what fails is tried again when it is looked at next."""
    if not ended.cancelled():
        ended.exception()
