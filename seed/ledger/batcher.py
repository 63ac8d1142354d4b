"""What waits for the next write of an account, and how much of it one write takes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from common.quota import shares
from common.quota.account import Account, Outcome, OverShare, Reservation
from common.runtime.waiting import within

T = TypeVar("T")

MAX_WAITING = 4096  # beyond that a claim is refused at once: it would only time out
MAX_BATCH = 512
LONGEST_LINGER = 0.002  # seconds


class Claim:
    __slots__ = ("deadline", "future", "reservation", "uid")

    def __init__(
        self, uid: str, reservation: Reservation, future: asyncio.Future[Outcome], deadline: float | None
    ) -> None:
        self.uid = uid
        self.reservation = reservation
        self.future = future
        self.deadline = deadline


class Change(Generic[T]):
    """A pure function of the account. Its result is returned once the changed account is durable."""

    __slots__ = ("apply", "future")

    def __init__(self, apply: Callable[[Account], tuple[Account, T]], future: asyncio.Future[T]) -> None:
        self.apply = apply
        self.future = future

    @property
    def creates(self) -> bool:
        return isinstance(self.apply, Creation)


class Creation:
    """Makes the account where there is none."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def __call__(self, account: Account) -> tuple[Account, Account]:
        return account, account

    def where_missing(self, present: Account | None) -> tuple[Account, Account]:
        account = present if present is not None else self._account
        return account, account


Entry = Claim | Change[object]


def fail(entry: Entry, error: Exception) -> None:
    if not entry.future.done():
        entry.future.set_exception(error)


def _in_turn(waiting: Sequence[Entry]) -> list[int]:
    """Which of them are served first, in the order in which they came. The sources take turns, and in each its tenants,
    so that others do not wait for one that asks much. Changes take turns with them."""
    claims = (entry.reservation if isinstance(entry, Claim) else None for entry in waiting)
    rounds = shares.rounds([(claim.source, claim.tenant) if claim is not None else ("", "") for claim in claims])
    return sorted(sorted(range(len(waiting)), key=rounds.__getitem__)[:MAX_BATCH])


class Batcher:
    """Entries in the order in which they came. Claims that are not decided by their deadline fail with TimeoutError."""

    def __init__(self) -> None:
        self._waiting: deque[Entry] = deque()
        self._waiting_of: dict[str, int] = {}  # claims by source, and by tenant of one
        self._serving: list[Entry] = []
        self._expiry: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._enough = 1  # how many must wait before the next write begins

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING

    def over_share(self, wanted: Reservation) -> OverShare | None:
        return shares.over(self._waiting_of, wanted, 1, len(self._waiting), MAX_WAITING)

    def add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        if isinstance(entry, Claim):
            shares.add(self._waiting_of, entry.reservation, 1)
        if len(self._waiting) >= self._enough:
            self._wake.set()

    def expire_at(self, deadline: float) -> None:
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_at(deadline, self._expire)

    async def wait(self) -> None:
        """Until something waits."""
        await self._wake.wait()
        self._wake.clear()

    def take(self) -> list[Entry]:
        """The next batch. Its deadlines stay in force until `served()`."""
        if len(self._waiting) <= MAX_BATCH:
            self._serving = list(self._waiting)
            self._waiting.clear()
            self._waiting_of.clear()
            return self._serving
        waiting = list(self._waiting)
        first = _in_turn(waiting)
        self._serving = [waiting[place] for place in first]
        later = set(range(len(waiting))).difference(first)
        self._waiting = deque(waiting[place] for place in sorted(later))
        self._waiting_of = {}
        for entry in self._waiting:
            if isinstance(entry, Claim):
                shares.add(self._waiting_of, entry.reservation, 1)
        return self._serving

    def served(self) -> None:
        self._serving = []

    async def linger(self, answered: int, took: float) -> None:
        """Where `answered` entries were answered together, by a write of `took` seconds, their next requests come
        nearly at once. With those that wait already they share one write, and none waits for another's to end. A
        request that is alone is never delayed."""
        enough = min(len(self._waiting) + answered, MAX_BATCH)
        if answered < 2 or len(self._waiting) >= enough:
            return
        self._enough = enough
        self._wake.clear()
        await within(self._wake, min(took / 2, LONGEST_LINGER))
        self._enough = 1

    def close(self, error: Exception) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        for entry in self._waiting:
            fail(entry, error)
        self._waiting.clear()

    def _expire(self) -> None:
        """One timer for all: claims are decided in milliseconds, and a timer for each would cost a tenth of that."""
        loop = asyncio.get_running_loop()
        self._expiry = None
        now = loop.time()
        soonest = float("inf")
        for entry in (*self._serving, *self._waiting):
            if not isinstance(entry, Claim) or entry.deadline is None or entry.future.done():
                continue
            if entry.deadline <= now:
                entry.future.set_exception(TimeoutError("not decided in time"))
            else:
                soonest = min(soonest, entry.deadline)
        if soonest < float("inf"):
            self._expiry = loop.call_at(soonest, self._expire)
