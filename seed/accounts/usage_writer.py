"""When what is written to accounts about sources: counts, and reservations that go on evidence (rules 4.4 and 4.5)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from common.api.types import PROJECTS, USER_CLUSTERS, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.quota import account as accounts
from common.quota import surge_loans
from common.quota.account import Account, Reservation, ReservationKey, StaleEpochError
from seed.accounts import reservation_gc
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountHandle, AccountRegistry
from seed.accounts.reservation_gc import Entry, Finding
from seed.cache.quota import Quota
from seed.cache.quotas import Catalog
from seed.cache.source_keys import is_hosted, is_of_kubermatic, project_of_key
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import Key, NoAccountError, StoreUnavailableError
from seed.usage.source import UsageSource

log = logging.getLogger(__name__)

FREED_DELAY = 0.02  # seconds from a deletion to its count: somebody may wait for the capacity
COUNT_DELAY = 0.25  # ... from a creation: it only moves use from reserved to counted, and may ride on an admission
COUNT_AT_ONCE = 64  # changes that are not put off any longer: each write carries all reservations not counted yet
CHECK_INTERVAL = 5.0  # ... between two looks for reservations without an object
MAX_CHECKS = 64  # consistent reads a look, so that a storm of failed creations does not become one of reads
MAX_ASKED = MAX_CHECKS // reservation_gc.MOST_UNSEEN  # ... and sources that are asked whether what was admitted came
RETRY_DELAY = 1.0


class _NeverOpenError(Exception):
    """The account waits for the master since it was made."""


class _Evidence(msgspec.Struct, frozen=True):
    """What is remembered of one account. `asked`: when it was read last whether a source's creations came."""

    first_seen: reservation_gc.FirstSeen = {}
    looked: reservation_gc.Looked = {}
    asked: Mapping[str, float] = {}


class Counting:
    """Runs while this replica leads."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: Catalog,
        registry: AccountRegistry,
        leader: Accounts,
        sources: Mapping[str, UsageSource],
        *,
        in_flight_window: float,
        find_hosted: Callable[[str], Awaitable[UserCluster | None]] | None = None,
    ) -> None:
        """`find_hosted`: for keys of the catalog's `hosted`, by a consistent read. Raises ApiError."""
        self._find_hosted = find_hosted
        self._cluster = cluster
        self._catalog = catalog
        self._registry = registry
        self._accounts = leader
        self._sources = sources
        self._window = in_flight_window
        self._due: dict[str, float] = {}
        self._changes: dict[str, int] = {}  # of each source since its last count
        self._known: dict[str, tuple[Key, frozenset[str]]] = {}  # quotas by name, and what they limit
        self._wake = asyncio.Event()
        self._evidence: dict[tuple[str, str], _Evidence] = {}  # by quota uid and life of its account

    def changed(self, source: UsageSource, freed: bool) -> None:
        """The source's sum changed. `freed`: something became free."""
        changes = self._changes.get(source.key, 0) + 1
        self._changes[source.key] = changes
        prompt = freed or changes >= COUNT_AT_ONCE
        due = time.monotonic() + (FREED_DELAY if prompt else COUNT_DELAY)
        if due < self._due.get(source.key, float("inf")):
            self._due[source.key] = due
            self._wake.set()

    async def run(self) -> None:
        stop = self._catalog.on_quota(self._quota_changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._count_when_due(), name="counting")
                group.create_task(self._check(), name="evidence")
        finally:
            stop()

    def _quota_changed(self, name: str) -> None:
        """Counts the sources that the account of a new quota lacks, those of a project that joins an organization, and
        all of them where the quota begins to limit another resource."""
        quota = self._catalog.quota(name)
        if quota is None:
            self._known.pop(name, None)
            return
        known = quota.key, frozenset(quota.ceilings)
        new = self._known.get(name) != known
        self._known[name] = known
        if not new and quota.kind != "organization":
            return
        handle = self._registry.get(quota)
        account = handle.writer.account if handle is not None else None
        for key in self._registry.source_keys(quota):
            source = self._sources.get(key)
            if source is not None and (new or account is None or key not in account.used):
                self.changed(source, freed=True)

    async def _count_when_due(self) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            ready = [key for key, due in self._due.items() if due <= now]
            for key in ready:
                del self._due[key]
                self._changes.pop(key, None)
            await asyncio.gather(*(self._count(key) for key in ready))
            wait = min(self._due.values(), default=now + 60) - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0)):
                    await self._wake.wait()

    async def _count(self, key: str) -> None:
        source = self._sources.get(key)
        if source is None:
            return
        for quota in self._registry.quotas_of(source.consumer):
            handle = self._registry.get(quota)
            if handle is None or not source.counted:
                continue  # a source tells when its first list is complete
            # The list that the accounts controller demanded may bring no change: then nobody else would count it.
            done = self._accounts.may_count(quota, source) and await self._write(
                handle, quota, self._counted(source, quota)
            )
            if not done or self._withheld(handle, source):
                self._due.setdefault(key, time.monotonic() + RETRY_DELAY)

    def _withheld(self, handle: AccountHandle, source: UsageSource) -> bool:
        """Whether updates were not dropped because it is not certain what has happened there: a list that brings no
        change tells nobody."""
        account = handle.writer.account
        return (
            not source.live
            and account is not None
            and any(kept.generation for kept in accounts.of_source(account, source.key).values())
        )

    def _counted(self, source: UsageSource, quota: Quota) -> Callable[[Account], tuple[Account, None]]:
        """An account that was never open is counted when it opens: use in it looks like a life that was lost. But what
        it opens with may be older than this change, so that has to come again."""

        def counted(account: Account) -> tuple[Account, None]:
            if account.fenced and not account.granted:
                raise _NeverOpenError
            return self._accounts.counted(account, source, quota), None

        return counted

    async def _write(
        self, handle: AccountHandle, quota: Quota, change: Callable[[Account], tuple[Account, None]]
    ) -> bool:
        try:
            await handle.writer.change(change)
        except (StaleEpochError, _NeverOpenError):
            return False  # the accounts controller claims it first, or opens it
        except NoAccountError:
            return True
        except (StoreUnavailableError, MalformedLedgerError) as error:
            log.info("count not written", extra={"quota": quota.name, "error": str(error)})
            return False
        return True

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_INTERVAL, self._window))
            alive: set[tuple[str, str]] = set()
            for quota in list(self._catalog.all_quotas()):
                handle = self._registry.get(quota)
                account = handle.writer.account if handle is not None else None
                if handle is None or account is None or account.epoch != self._accounts.term:
                    continue
                await self._forget_sources(handle, quota, account)
                await self._release(handle, quota, account)
                self._end_loans(account)
                alive.add((quota.key.uid, account.incarnation))
            self._evidence = {life: known for life, known in self._evidence.items() if life in alive}

    def _end_loans(self, account: Account) -> None:
        """A loan ends in a count of its source. When there is room by another's count, or by a grant, its own may have
        nothing new to tell."""
        for (key, uid), kept in account.reservations.items():
            source = self._sources.get(key) if kept.replaces else None
            sizes = source.totals.sizes([uid]) if source is not None else {}
            if source is not None and uid in sizes and surge_loans.has_room(account, kept, sizes[uid]):
                self.changed(source, freed=True)

    async def _forget_sources(self, handle: AccountHandle, quota: Quota, account: Account) -> None:
        """A source goes only on proof by consistent reads: that its cluster is gone, or of another subject."""
        counted = set(self._registry.source_keys(quota))
        for key in accounts.sources(account) - counted:
            try:
                gone = not await self._belongs(key, quota)
            except ApiError:
                continue
            if gone and await self._write(handle, quota, _forgetting(self._accounts.term, key)):
                log.info("source forgotten", extra={"quota": quota.name, "cluster": key})
        for key in counted - set(self._catalog.source_keys(quota)):
            if project_of_key(key) is not None and account.used.get(key) == {}:
                await self._write(handle, quota, _forgetting_nothing(self._accounts.term, key))

    async def _belongs(self, key: str, quota: Quota) -> bool:
        """By consistent reads. A Project that is not there tells nothing: it may be put back. Raises ApiError."""
        project = project_of_key(key)
        if project is None:
            cluster = await self._find(key)
            if cluster is None:
                return False
            project = cluster.spec.project
        if quota.kind == "organization":
            found = await self._cluster.find(PROJECTS, project)
            return found is None or found.spec.organization == quota.subject
        return quota.subject == project

    async def _find(self, key: str) -> UserCluster | None:
        """None where it is proven that there is none. Raises ApiError."""
        if self._find_hosted is not None and (is_hosted(key) or is_of_kubermatic(key)):
            return await self._find_hosted(key)
        namespace, _, name = key.partition("/")
        return await self._cluster.find(USER_CLUSTERS, name, namespace)

    async def _release(self, handle: AccountHandle, quota: Quota, account: Account) -> None:
        now, term = time.monotonic(), self._accounts.term
        life = quota.key.uid, account.incarnation
        before = self._evidence.get(life, _Evidence())
        known = reservation_gc.watched(account, before.first_seen, now)
        due = [entry for entry in reservation_gc.overdue(known, self._window, now) if self._may_go(*entry)]
        checks = reservation_gc.in_turn(due, before.looked)[:MAX_CHECKS]
        missed = self._missed(account, known, now)
        asked = sorted(missed, key=lambda source: before.asked.get(source, float("-inf")))[:MAX_ASKED]
        self._evidence[life] = _Evidence(
            first_seen=known,
            looked={key: at for key, at in before.looked.items() if key in known} | {key: now for key, _ in checks},
            asked={source: at for source, at in before.asked.items() if source in missed} | dict.fromkeys(asked, now),
        )
        found = await self._read([*checks, *(entry for source in asked for entry in missed[source])])
        held_back = {source for source in missed if source in account.held_back and source not in asked}
        held_back |= {source for source in asked if all(found.get(key, 0) is None for key, _ in missed[source])}
        absent: dict[ReservationKey, Reservation] = {}
        recount: set[UsageSource] = set()
        kept: set[UsageSource] = set()  # in their counts were objects that were only reserved for
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
                case Finding.NEVER_CAME:
                    absent[key, uid] = reservation
                    if not any(reservation.amount.values()):
                        kept.add(source)
                case Finding.NEVER_CHANGED:
                    absent[key, uid] = reservation
                    recount.add(source)
                case Finding.THERE:
                    self.changed(source, freed=True)
                case Finding.STILL_UNCLEAR:
                    pass

        def released(present: Account) -> tuple[Account, None]:
            for source in recount:
                present = self._accounts.counted(present, source, quota)
            return accounts.hold_back(accounts.release(present, term, absent), term, held_back), None

        if not absent and held_back == {*account.held_back}:
            return
        if await self._write(handle, quota, released):
            if absent:
                log.info("reservations released on evidence", extra={"quota": quota.name, "count": len(absent)})
            for key in held_back.difference(account.held_back):
                log.warning("what is admitted does not appear: held back", extra={"quota": quota.name, "cluster": key})
            for source in kept:
                self.changed(source, freed=True)

    def _may_go(self, key: ReservationKey, reservation: Reservation) -> bool:
        """False where its source is not followed, or where its object was seen and uses surge."""
        source = self._sources.get(key[0])
        return source is not None and not (reservation.replaces and source.totals.sizes([key[1]]))

    def _missed(self, account: Account, known: reservation_gc.FirstSeen, now: float) -> dict[str, list[Entry]]:
        """By source that has enough of them to be held back: as many creations that its watch has not brought."""
        missed = {}
        for key, creations in reservation_gc.unseen(account, known, self._window, now).items():
            source = self._sources.get(key)
            if source is None:
                continue
            there = source.totals.sizes(uid for uid, _ in creations)
            entries = [((key, uid), reservation) for uid, reservation in creations if uid not in there]
            if len(entries) >= reservation_gc.MOST_UNSEEN:
                missed[key] = entries[: reservation_gc.MOST_UNSEEN]
        return missed

    async def _read(self, wanted: list[Entry]) -> dict[ReservationKey, int | None]:
        """The generations of those whose sources answer, None of those that are not there."""
        found: dict[ReservationKey, int | None] = {}

        async def read(source: UsageSource, entries: list[Entry]) -> None:
            with suppress(ApiError):
                for key, reservation in entries:
                    found[key] = await source.generation(reservation.object, key[1])

        by_source: dict[UsageSource, list[Entry]] = {}
        for key, reservation in wanted:
            if (source := self._sources.get(key[0])) is not None:
                by_source.setdefault(source, []).append((key, reservation))
        await asyncio.gather(*(read(source, entries) for source, entries in by_source.items()))
        return found


def _forgetting_nothing(term: int, source: str) -> Callable[[Account], tuple[Account, None]]:
    """Of a source that uses nothing: only that it was counted."""

    def change(account: Account) -> tuple[Account, None]:
        reserved = accounts.of_source(account, source)
        return account if account.used.get(source) or reserved else accounts.forget_source(account, term, source), None

    return change


def _forgetting(term: int, source: str) -> Callable[[Account], tuple[Account, None]]:
    return lambda account: (accounts.forget_source(account, term, source), None)
