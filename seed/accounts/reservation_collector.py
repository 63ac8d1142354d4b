"""Releases reservations whose object never came, by consistent reads (rule 4.5). `reservation_gc` decides which."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress

import msgspec

from common.kube.client.errors import ApiError
from common.quota import account as accounts
from common.quota.account import Account, Reservation, ReservationKey
from common.runtime.unexpected import contained
from seed.accounts import reservation_gc
from seed.accounts.account_write import check_opened, write
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountHandle
from seed.accounts.reservation_gc import Entry, Finding
from seed.model.quota import Quota
from seed.usage.source import Generation, Taken, UsageSource

log = logging.getLogger(__name__)

MAX_CHECKS = 64  # consistent reads a look, so that a storm of failed creations does not become one of reads
READ_SECONDS = 15.0  # ... for one source: more than one read takes, and others do not wait long for a slow one
MAX_ASKED = MAX_CHECKS // reservation_gc.MOST_UNSEEN  # ... and parties of which is asked whether what was admitted came

Found = Mapping[ReservationKey, Generation]


class _Evidence(msgspec.Struct, frozen=True):
    """What is remembered of one account. `asked`: when it was read last whether a party's creations came. `taken`:
    those of which another object was found to have the name."""

    first_seen: reservation_gc.FirstSeen = {}
    looked: reservation_gc.Looked = {}
    asked: Mapping[str, float] = {}
    taken: Set[ReservationKey] = frozenset()


class _Conclusions(msgspec.Struct, frozen=True):
    """What reads have shown. `recount`: sources to count in the same write; `there`: sources to count later, at once;
    `in_count`: sources in whose counts objects were that were only reserved for."""

    absent: Mapping[ReservationKey, Reservation]
    recount: Set[UsageSource]
    there: Sequence[UsageSource]
    in_count: Set[UsageSource]


class ReservationCollector:
    def __init__(
        self,
        leader: Accounts,
        sources: Mapping[str, UsageSource],
        changed: Callable[[UsageSource, bool], None],
        *,
        in_flight_window: float,
        proven_at: Callable[[], float],
    ) -> None:
        """`changed(source, freed)` makes a source be counted. `proven_at`: see Counting."""
        self._accounts = leader
        self._sources = sources
        self._changed = changed
        self._window = in_flight_window
        self._proven_at = proven_at
        self._evidence: dict[tuple[str, str], _Evidence] = {}  # by quota uid and life of its account

    def keep(self, lives: Set[tuple[str, str]]) -> None:
        """Forgets every account but these."""
        self._evidence = {life: known for life, known in self._evidence.items() if life in lives}

    async def release(self, handle: AccountHandle, quota: Quota, account: Account) -> None:
        now, term = time.monotonic(), self._accounts.term
        life = quota.key.uid, account.incarnation
        before = self._evidence.get(life, _Evidence())
        known = reservation_gc.watched(account, before.first_seen, now)
        overdue = reservation_gc.overdue(known, self._window, now, self._proven_at())
        due = [entry for entry in overdue if self._may_go(*entry)]
        checks = reservation_gc.in_turn(due, before.looked)[:MAX_CHECKS]
        missed = self._missed(account, known, before.taken, now)
        asked = reservation_gc.asked_next(missed, before.asked)[:MAX_ASKED]
        evidence = _Evidence(
            first_seen=known,
            looked={key: at for key, at in before.looked.items() if key in known} | {key: now for key, _ in checks},
            asked={party: at for party, at in before.asked.items() if party in missed} | dict.fromkeys(asked, now),
        )
        self._evidence[life] = evidence
        found = await self._read([*checks, *(entry for party in asked for entry in missed[party])])
        taken = {key for key, generation in found.items() if isinstance(generation, Taken)}
        taken |= before.taken & known.keys()
        self._evidence[life] = msgspec.structs.replace(evidence, taken=taken)
        held_back = {party for party in missed if party in account.held_back and party not in asked}
        held_back |= {party for party in asked if all(found.get(key, 0) is None for key, _ in missed[party])}
        concluded = self._conclude(quota, checks, found)
        for source in concluded.there:
            self._changed(source, True)

        def released(present: Account) -> tuple[Account, None]:
            check_opened(present)
            for source in concluded.recount:
                present = self._accounts.counted(present, source, quota, concluded.absent.keys())
            still = {party for party in held_back if all(each in present.reservations for each, _ in missed[party])}
            return accounts.hold_back(accounts.release(present, term, concluded.absent), term, still), None

        if not concluded.absent and held_back == {*account.held_back}:
            return
        if await write(handle, quota, released):
            if concluded.absent:
                extra = {"quota": quota.name, "count": len(concluded.absent)}
                log.info("reservations released on evidence", extra=extra)
            for party in held_back.difference(account.held_back):
                facts = {"quota": quota.name, "cluster": party}
                log.warning("what is admitted does not appear: held back", extra=facts)
            for source in concluded.in_count:
                self._changed(source, True)

    def _conclude(self, quota: Quota, checks: Sequence[Entry], found: Found) -> _Conclusions:
        absent: dict[ReservationKey, Reservation] = {}
        recount: dict[UsageSource, None] = {}  # in order
        there: list[UsageSource] = []
        in_count: dict[UsageSource, None] = {}
        for (key, uid), reservation in checks:
            source = self._sources.get(key)
            if source is None or (key, uid) not in found:
                continue  # nothing is known, so nothing is released
            match reservation_gc.conclude(
                reservation,
                found[key, uid],
                countable=self._accounts.may_count(quota, source),
                counted=bool(source.totals.seen([uid])),
            ):
                case Finding.NEVER_CAME if quota.promises:
                    # Others may have come on top of it while it was there: the count takes up their bases first.
                    if self._accounts.may_count(quota, source):
                        absent[key, uid] = reservation
                        recount[source] = None
                        in_count[source] = None
                case Finding.NEVER_CAME:
                    absent[key, uid] = reservation
                    if not any(reservation.amount.values()):
                        in_count[source] = None
                case Finding.NEVER_CHANGED:
                    absent[key, uid] = reservation
                    recount[source] = None
                case Finding.THERE:
                    there.append(source)
                case Finding.STILL_UNCLEAR:
                    pass
        return _Conclusions(absent, recount.keys(), there, in_count.keys())

    def _may_go(self, key: ReservationKey, reservation: Reservation) -> bool:
        """False where its source is not followed, or where its object was seen and uses surge."""
        source = self._sources.get(key[0])
        return source is not None and not (reservation.replaces and source.totals.sizes([key[1]]))

    def _missed(
        self, account: Account, known: reservation_gc.FirstSeen, taken: Set[ReservationKey], now: float
    ) -> dict[str, list[Entry]]:
        """By party that has enough of them to be held back: as many creations that its watch has not brought."""
        missed = {}
        for party, creations in reservation_gc.unseen(account, known, taken, self._window, now).items():
            source = self._sources.get(creations[0][1].source)
            if source is None:
                continue
            there = source.totals.sizes(uid for (_, uid), _ in creations)
            entries = [entry for entry in creations if entry[0][1] not in there]
            if len(entries) >= reservation_gc.MOST_UNSEEN:
                missed[party] = entries[: reservation_gc.MOST_UNSEEN]
        return missed

    async def _read(self, wanted: Sequence[Entry]) -> Found:
        """The generations of those whose sources answer, None of those that are not there."""
        found: dict[ReservationKey, Generation] = {}

        async def read(source: UsageSource, entries: list[Entry]) -> None:
            with contained("evidence", source.key), suppress(ApiError, TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    for key, reservation in entries:
                        found[key] = await source.generation(reservation.object, key[1])

        by_source: dict[UsageSource, list[Entry]] = {}
        for key, reservation in wanted:
            if (source := self._sources.get(key[0])) is not None:
                by_source.setdefault(source, []).append((key, reservation))
        await asyncio.gather(*(read(source, entries) for source, entries in by_source.items()))
        return found
