"""When what is written to accounts about sources: counts, and reservations that go on evidence (rules 4.4 and 4.5)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from common import account as accounts
from common.account import Account, Reservation, ReservationKey, StaleEpochError
from common.api import PROJECTS, USER_CLUSTERS, UserCluster
from common.kube.client import Cluster
from common.kube.errors import ApiError, NotFound
from seed import evidence
from seed.accounts import Accounts
from seed.books import Book, Books
from seed.catalog import Catalog, Quota, is_hosted, is_of_kubermatic, project_of_key
from seed.evidence import Finding
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import Key, StoreUnavailableError
from seed.ledger.writer import NoAccountError
from seed.source import Followed

log = logging.getLogger(__name__)

FREED_DELAY = 0.02  # seconds from a deletion to its count: somebody may wait for the capacity
COUNT_DELAY = 0.25  # ... from a creation: it only moves use from reserved to counted, and may ride on an admission
COUNT_AT_ONCE = 64  # changes that are not put off any longer: each write carries all reservations not counted yet
CHECK_INTERVAL = 5.0  # ... between two looks for reservations without an object
MAX_CHECKS = 64  # consistent reads a look, so that a storm of failed creations does not become one of reads
RETRY_DELAY = 1.0


class _NeverOpenError(Exception):
    """The account waits for the master since it was made."""


class Counting:
    """Runs while this replica leads."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: Catalog,
        books: Books,
        leader: Accounts,
        sources: Mapping[str, Followed],
        *,
        in_flight_window: float,
        find_hosted: Callable[[str], Awaitable[UserCluster | None]] | None = None,
    ) -> None:
        """`find_hosted`: for keys of the catalog's `hosted`, by a consistent read. Raises ApiError."""
        self._find_hosted = find_hosted
        self._cluster = cluster
        self._catalog = catalog
        self._books = books
        self._accounts = leader
        self._sources = sources
        self._window = in_flight_window
        self._due: dict[str, float] = {}
        self._changes: dict[str, int] = {}  # of each source since its last count
        self._known: dict[str, tuple[Key, frozenset[str]]] = {}  # quotas by name, and what they limit
        self._wake = asyncio.Event()
        self._first_seen: dict[tuple[str, str], evidence.FirstSeen] = {}  # by quota uid and life of its account

    def changed(self, source: Followed, freed: bool) -> None:
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
        """A quota that comes, or comes back, has not been told what its sources did before. One that comes to limit
        another resource may not have been told of that."""
        quota = self._catalog.quota(name)
        if quota is None:
            self._known.pop(name, None)
        elif self._known.get(name) != (known := (quota.key, frozenset(quota.ceilings))):
            self._known[name] = known
            for key in self._catalog.source_keys(quota):
                source = self._sources.get(key)
                if source is not None:
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
        for quota in self._catalog.quotas_of_project(source.project):
            book = self._books.get(quota)
            if book is None or not source.counted:
                continue  # a source tells when its first list is complete
            # The list that the accounts controller demanded may bring no change: then nobody else would count it.
            done = self._accounts.may_count(quota, source) and await self._write(
                book, quota, self._counted(source, quota)
            )
            if not done:
                self._due.setdefault(key, time.monotonic() + RETRY_DELAY)

    def _counted(self, source: Followed, quota: Quota) -> Callable[[Account], tuple[Account, None]]:
        """An account that was never open is counted when it opens: use in it looks like a life that was lost. But what
        it opens with may be older than this change, so that has to come again."""

        def counted(account: Account) -> tuple[Account, None]:
            if account.fenced and not account.granted:
                raise _NeverOpenError
            return self._accounts.counted(account, source, quota), None

        return counted

    async def _write(self, book: Book, quota: Quota, change: Callable[[Account], tuple[Account, None]]) -> bool:
        try:
            await book.writer.change(change)
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
                book = self._books.get(quota)
                account = book.writer.account if book is not None else None
                if book is None or account is None or account.epoch != self._accounts.term:
                    continue
                await self._forget_sources(book, quota, account)
                await self._release(book, quota, account)
                alive.add((quota.key.uid, account.incarnation))
            self._first_seen = {life: seen for life, seen in self._first_seen.items() if life in alive}

    async def _forget_sources(self, book: Book, quota: Quota, account: Account) -> None:
        """A user cluster that a consistent read does not find has no Machines to count any more."""
        named = {*account.used, *(source for source, _ in account.reservations)}
        for key in named - set(self._catalog.source_keys(quota)):
            try:
                belongs = await self._belongs(key, quota)
            except NotFound:
                belongs = False
            except ApiError:
                continue
            if not belongs and await self._write(book, quota, _forgetting(self._accounts.term, key)):
                log.info("source forgotten", extra={"quota": quota.name, "cluster": key})

    async def _belongs(self, key: str, quota: Quota) -> bool:
        """By a consistent read. Raises ApiError."""
        if (project := project_of_key(key)) is not None:
            joined = (await self._cluster.get(PROJECTS, project)).spec.organization
            return (quota.kind, quota.subject) in (("project", project), ("organization", joined))
        found = await self._find(key)
        quotas = self._catalog.quotas_of_project(found.spec.project) if found is not None else []
        return any(other.key == quota.key for other in quotas)

    async def _find(self, key: str) -> UserCluster | None:
        if self._find_hosted is not None and (is_hosted(key) or is_of_kubermatic(key)):
            return await self._find_hosted(key)
        namespace, _, name = key.partition("/")
        return await self._cluster.get(USER_CLUSTERS, name, namespace)

    async def _release(self, book: Book, quota: Quota, account: Account) -> None:
        now = time.monotonic()
        life = quota.key.uid, account.incarnation
        known = self._first_seen[life] = evidence.watched(account, self._first_seen.get(life, {}), now)
        absent: dict[ReservationKey, Reservation] = {}
        recount: set[Followed] = set()
        kept: set[Followed] = set()  # in their counts were objects that were only reserved for
        silent: set[str] = set()
        checks = 0
        for (key, uid), reservation in evidence.overdue(known, self._window, now):
            source = self._sources.get(key)
            if source is None or source.key in silent or checks == MAX_CHECKS:
                continue
            if reservation.replaces and source.tally.sizes([uid]):
                continue  # it came, and stands on surge
            checks += 1
            try:
                generation = await source.generation(reservation.object, uid)
            except ApiError:
                silent.add(source.key)  # nothing is known, so nothing is released
                continue
            match evidence.conclude(
                reservation,
                generation,
                countable=self._accounts.may_count(quota, source),
                counted=bool(source.tally.seen([uid])) and not source.tally.too_low,
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
            return accounts.release(present, self._accounts.term, absent), None

        if absent and await self._write(book, quota, released):
            log.info("reservations released on evidence", extra={"quota": quota.name, "count": len(absent)})
            for source in kept:
                self.changed(source, freed=True)


def _forgetting(term: int, source: str) -> Callable[[Account], tuple[Account, None]]:
    return lambda account: (accounts.forget_source(account, term, source), None)
