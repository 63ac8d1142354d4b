"""Owners of what was refused, and which of them to wake when capacity is free: MachineSets, and what makes pods. Pure.

A refused controller comes again after a pause that grows to a quarter of an hour. Who is woken comes at once, so only
as many are as there is room for, those that wait longest first, and each only every few seconds: capacity that one of
them takes is not promised to the next.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from common.kube.controller.events import Regarding
from common.quota import guarantees, resources, surge
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission.types import Attempt
from seed.model.consumer import Consumer

REWAKE = 5.0  # seconds between two wakings of one owner
SETTLE = 1.5  # seconds in which a woken one takes what it was woken for
UNSEEN = 30.0  # seconds after which one is woken that was refused with 503 although there is room: it may be over


class Room(msgspec.Struct, frozen=True):
    """What of a quota is free: `here` without asking anybody, `anywhere` in what all seeds have together.

    `open`: this seed's account admits at all. `surge`: what rollouts may borrow. `kept`: of `anywhere`, what is
    guaranteed to other projects than that of whoever waits (rule 4.16). What is free `here` has none of it.
    """

    open: bool
    surge: ResourceList
    here: ResourceList
    anywhere: ResourceList
    guarantees: Sequence[Guarantee] = ()
    kept: ResourceList = {}

    def of(self, project: str) -> Room:
        """... for one of the project. What is taken of it is taken of this room."""
        if not self.guarantees:
            return self
        return msgspec.structs.replace(self, kept=guarantees.kept_from(self.guarantees, project))


def room(seen: QuotaSnapshot) -> Room:
    quota, here, used, held = seen.quota, seen.free, seen.used, seen.held
    left = {name: limit - used.get(name, 0) for name, limit in quota.ceilings.items()}
    # Surge under use beyond what is held is not lent beside that.
    lends = {name: extra for name, extra in quota.surge.items() if seen.use.get(name, 0) <= held.get(name, 0)}
    anywhere = here if quota.draining or quota.learning else left
    return Room(seen.open, lends, here, anywhere, quota.guarantees)


class Fit(msgspec.Struct, frozen=True):
    """Whether every one of the quotas has room; `lent`: it has if a rollout asks."""

    here: bool = False
    anywhere: bool = False
    lent: bool = False


def fit(parts: Sequence[tuple[ResourceList, Room]]) -> Fit:
    """What is needed of each quota."""
    found = [_fit(need, room) for need, room in parts]
    return Fit(*(all(column) for column in zip(*found, strict=True))) if found else Fit(True, True, True)


def _fit(need: ResourceList, room: Room) -> tuple[bool, bool, bool]:
    if not room.open:
        return False, False, False
    here = not resources.short(need, room.here)
    free = resources.subtract(room.anywhere, room.kept) if room.kept else room.anywhere
    anywhere = here or not resources.short(need, free)
    if anywhere or not room.surge:
        return here, anywhere, anywhere
    lent = surge.lent(need, room.surge)
    return False, False, not resources.short(lent, room.here) or not resources.short(lent, room.anywhere)


class Waiter:
    """One MachineSet, or what makes pods. Times are monotonic seconds."""

    __slots__ = (
        "alike",
        "consumer",
        "need",
        "refused_at",
        "regarding",
        "served",
        "server",
        "shares",
        "then",
        "woken_at",
    )

    def __init__(self, server: str, regarding: Regarding, consumer: Consumer) -> None:
        self.server = server
        self.regarding = regarding
        self.consumer = consumer
        self.need: ResourceList = {}
        self.shares: Mapping[str, ResourceList] | None = None  # by quota, where each counts another part
        self.alike: object = None  # equal for those that count against the same quotas and need as much
        self.then = Fit()  # whether there was room when it was refused, as far as was seen
        self.refused_at = 0.0
        self.woken_at: float | None = None
        self.served = False  # since then it got what it needs: use shows what it took

    def of(self, quota: str) -> ResourceList:
        """What it needs of that quota."""
        return self.need if self.shares is None else self.shares.get(quota, {})


class Choice(msgspec.Struct, frozen=True):
    """Whom to wake now, and when to look again although nothing changes."""

    woken: Sequence[Waiter]
    again: float | None


class Waiting:
    def __init__(self, most: int) -> None:
        self.dropped = 0
        self._most = most
        self._waiters: dict[tuple[str, str], Waiter] = {}  # by API server and uid, who waits longest first

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def consumers(self) -> set[Consumer]:
        """Of those that need the same of all their quotas."""
        return {waiter.consumer for waiter in self._waiters.values() if waiter.shares is None}

    @property
    def quotas(self) -> set[str]:
        """Those that the others need something of."""
        return {quota for waiter in self._waiters.values() for quota in waiter.shares or ()}

    def refused(
        self,
        server: str,
        regarding: Regarding,
        consumer: Consumer,
        need: ResourceList,
        attempts: Sequence[Attempt],
        *,
        final: bool,
        now: float,
        shares: Mapping[str, ResourceList] | None = None,
    ) -> None:
        """`final`: for want of room, and not because it could not be decided. `shares`: see Request."""
        key = (server, regarding.uid)
        waiter = self._waiters.get(key)
        if waiter is None:
            if len(self._waiters) >= self._most:
                self._make_room()
            waiter = self._waiters[key] = Waiter(server, regarding, consumer)
        waiter.need, waiter.shares, waiter.refused_at = need, shares, now
        alike = shares if shares is not None else {"": need}
        waiter.alike = consumer, frozenset((quota, frozenset(part.items())) for quota, part in alike.items())
        enforced = [attempt.snapshot for attempt in attempts if attempt.snapshot.quota.enforced]
        then = fit([(waiter.of(seen.quota.name), room(seen).of(consumer.project)) for seen in enforced])
        waiter.then = Fit(lent=then.lent) if final else then

    def _make_room(self) -> None:
        """In the API server with most, and there in the namespace with most, so that none fills it: those go that were
        not refused for longest. Several at once, since it takes a look at all."""
        fullest = Counter(server for server, _ in self._waiters).most_common(1)[0][0]
        known = [(key, waiter) for key, waiter in self._waiters.items() if waiter.server == fullest]
        inside = Counter(waiter.regarding.namespace for _, waiter in known)

        def rank(each: tuple[tuple[str, str], Waiter]) -> tuple[int, float]:
            waiter = each[1]
            return -inside[waiter.regarding.namespace], waiter.refused_at

        for key, _ in heapq.nsmallest(len(known) // 64 + 1, known, key=rank):
            del self._waiters[key]
            self.dropped += 1

    def admitted(self, server: str, uid: str) -> None:
        """A Machine or pod of this owner."""
        waiter = self._waiters.get((server, uid))
        if waiter is not None:
            waiter.served = True

    def drop(self, waiter: Waiter) -> None:
        """It has all that it wants, or does not exist."""
        self._waiters.pop((waiter.server, waiter.regarding.uid), None)

    def forget(self, server: str) -> None:
        """The API server is gone with all that was there."""
        self._waiters = {key: waiter for key, waiter in self._waiters.items() if key[0] != server}

    def choose(self, quotas: Callable[[Consumer], Sequence[str]], rooms: Mapping[str, Room], now: float) -> Choice:
        """`quotas(consumer)` names those that refuse; `rooms` has all that refuse and are known, by name."""
        left = {
            name: msgspec.structs.replace(room, here=dict(room.here), anywhere=dict(room.anywhere))
            for name, room in rooms.items()
        }
        by_consumer: dict[Consumer, Sequence[str]] = {}
        woken: list[Waiter] = []
        again: list[float] = []
        hopeless: set[object] = set()  # room only shrinks: what did not fit does not fit later
        for waiter in list(self._waiters.values()):
            if waiter.shares is not None:
                names: Sequence[str] = [name for name in waiter.shares if name in left]
            else:
                if waiter.consumer not in by_consumer:
                    by_consumer[waiter.consumer] = quotas(waiter.consumer)
                names = by_consumer[waiter.consumer]
            mine = [(waiter.of(name), left[name].of(waiter.consumer.project)) for name in names]
            if waiter.woken_at is not None and waiter.refused_at <= waiter.woken_at:
                settled = waiter.woken_at + SETTLE
                if now >= settled:
                    self.drop(waiter)  # it has had its try, and was not refused
                    continue
                again.append(settled)
                if not waiter.served:
                    _take(mine)
                continue
            if waiter.alike in hopeless:
                continue
            fits = fit(mine)
            if not fits.lent:
                hopeless.add(waiter.alike)
            if not fits.anywhere and (waiter.then.lent or not fits.lent):
                continue
            when = _ready(waiter, fits)
            if when > now:
                again.append(when)
                continue
            waiter.woken_at, waiter.served = now, False
            again.append(now + SETTLE)
            woken.append(waiter)
            _take(mine)
        return Choice(woken, min(again, default=None))


def _ready(waiter: Waiter, fits: Fit) -> float:
    """When it may be woken, given that there is room."""
    then = waiter.then
    more = (fits.here > then.here) or (fits.anywhere > then.anywhere) or (fits.lent > then.lent)
    rested = waiter.woken_at + REWAKE if waiter.woken_at is not None else waiter.refused_at
    return rested if more else max(rested, waiter.refused_at + UNSEEN)


def _take(parts: Sequence[tuple[ResourceList, Room]]) -> None:
    for need, room in parts:
        _, anywhere, lent = _fit(need, room)
        taken = surge.lent(need, room.surge) if lent and not anywhere else need
        for free in (room.here, room.anywhere):
            assert isinstance(free, dict), "a choice has lists of its own"
            for name, amount in taken.items():
                if name in free:
                    free[name] -= amount
