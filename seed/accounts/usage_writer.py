"""When a source is counted into the accounts of its quotas, and when accounts are checked (rules 4.4 and 4.5)."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from common.api.catalogue import Catalogue
from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.quota import account as accounts
from common.quota import blocks, resources, surge_loans
from common.quota.account import Account, AccountKey
from common.quota.resources import ResourceList
from common.runtime import unexpected
from common.runtime.unexpected import contained
from common.runtime.waiting import within
from seed.accounts import reservation_gc
from seed.accounts.account_write import check_opened, write
from seed.accounts.block_collector import Block, BlockCollector
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountHandle, AccountRegistry
from seed.accounts.reservation_collector import ReservationCollector
from seed.accounts.source_removal import SourceRemoval
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import NoAccountError, StoreUnavailableError
from seed.model.quota import Quota
from seed.usage.source import Usage, UsageSource

log = logging.getLogger(__name__)

FREED_DELAY = 0.02  # seconds from a deletion to its count: somebody may wait for the capacity
COUNT_DELAY = 0.25  # ... from a creation: it only moves use from reserved to counted, and may ride on an admission
COUNT_AT_ONCE = 64  # changes that are not put off any longer: each write carries all reservations not counted yet
CHECK_INTERVAL = 5.0  # ... between two looks for reservations without an object
CHECKS = 64  # of accounts, at a time: each waits for its slowest source
RETRY_DELAY = 1.0
FAILED_DELAY = 15.0  # seconds after a count that failed in a way that nobody expected


class Counting:
    """Runs while this replica leads."""

    def __init__(
        self,
        cluster: Cluster,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        registry: AccountRegistry,
        leader: Accounts,
        sources: Mapping[str, UsageSource],
        *,
        in_flight_window: float,
        find_hosted: Callable[[str], Awaitable[UserCluster | None]] | None = None,
        proven_at: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`find_hosted`: for keys of ClusterCache's `hosted`, by a consistent read. Raises ApiError. `proven_at`:
        nothing that had happened by then (monotonic) is missing in the caches of quotas and clusters."""
        self._quota_cache = quota_cache
        self._registry = registry
        self._accounts = leader
        self._sources = sources
        self._window = in_flight_window
        self._due: dict[str, float] = {}
        self._changes: dict[str, int] = {}  # of each source since its last count
        # Quotas by name, what they limit, and from which side that is counted.
        self._known: dict[str, tuple[AccountKey, frozenset[str], Catalogue]] = {}
        # Of each source: whose lists were counted last, and in which open accounts (quota's uid, incarnation).
        self._counted_in: dict[str, tuple[object, frozenset[tuple[str, str]]]] = {}
        self._asks: dict[str, asyncio.Task[None]] = {}  # by quota uid: for what rollouts lack
        self._wake = asyncio.Event()
        self._counts: dict[str, asyncio.Task[None]] = {}  # by source
        self._checks: dict[str, asyncio.Task[None]] = {}  # by quota uid
        self._turns = asyncio.Semaphore(CHECKS)
        self._removal = SourceRemoval(cluster, cluster_cache, registry, leader, find_hosted)
        self._collector = ReservationCollector(
            leader, sources, self.changed, in_flight_window=in_flight_window, proven_at=proven_at
        )
        self._blocks = BlockCollector(
            leader, leader.account_sources, in_flight_window=in_flight_window, proven_at=proven_at
        )
        self._unnamed: dict[str, dict[str, frozenset[Block]]] = {}  # by source and uid: see `_certain`

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
        stop = self._quota_cache.on_quota(self._quota_changed)
        stop_account = self._registry.on_account(self._account_changed)
        stop_relabelled = self._registry.cluster_cache.on_relabelled(self._relabelled)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._count_when_due(), name="counting")
                group.create_task(self._check(), name="evidence")
        finally:
            stop()
            stop_account()
            stop_relabelled()
            for task in (*self._counts.values(), *self._asks.values(), *self._checks.values()):
                task.cancel()

    def _quota_changed(self, name: str) -> None:
        """Counts the sources that the account of a new quota lacks, those of a project that joins an organization, and
        all of them where the quota begins to limit another resource, or the catalogue changed."""
        quota = self._quota_cache.quota(name)
        if quota is None:
            self._known.pop(name, None)
            return
        known = quota.key, frozenset(quota.ceilings), self._quota_cache.catalogue
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

    def _relabelled(self, key: str) -> None:
        """It may have entered the part that a quota limits, whose account then counts it from now on, or left it. What
        it has in namespaces is another source, which tells when it was listed."""
        source = self._sources.get(key)
        if source is not None:
            self.changed(source, freed=True)
        for quota in self._quota_cache.all_quotas():
            if quota.clusters is not None:
                self._accounts.look_at(quota.name)

    def _account_changed(self, _name: str, account: Account | None) -> None:
        """What a replica has named late may be counted already: until the next count it is in the account twice. So may
        what is reserved for an update: a write that changes no use brings no count, and proves that the update was
        stored before it, or never."""
        if account is None or account.epoch != self._accounts.term:
            return
        soon = FREED_DELAY if account.scarce else COUNT_DELAY
        for key in blocks.late_sources(account):
            self._count_within(key, soon)
        for key, ended in reservation_gc.updates(account, self._sources).items():
            self._count_within(key, FREED_DELAY if ended else COUNT_DELAY)

    def _count_within(self, key: str, seconds: float) -> None:
        due = time.monotonic() + seconds
        if key in self._sources and due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._wake.set()

    async def _count_when_due(self) -> None:
        """One count of each source at a time. None waits for another's: an account that is written slowly, since its
        tenant makes it large or busy, delays the counts of its own sources alone."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            waiting = {key: due for key, due in self._due.items() if key not in self._counts}
            for key in [key for key, due in waiting.items() if due <= now]:
                del waiting[key], self._due[key]
                self._changes.pop(key, None)
                self._counts[key] = count = asyncio.create_task(self._count_one(key), name=f"count of {key}")
                count.add_done_callback(partial(self._ended, key))
            wait = min(waiting.values(), default=now + 60) - time.monotonic()
            await within(self._wake, max(wait, 0))

    def _ended(self, key: str, _count: asyncio.Task[None]) -> None:
        self._counts.pop(key, None)
        self._wake.set()

    async def _count_one(self, key: str) -> None:
        with contained("counting", key) as attempt:
            await self._count(key)
        if attempt.failed:
            self._due.setdefault(key, time.monotonic() + FAILED_DELAY)

    async def _count(self, key: str) -> None:
        source = self._sources.get(key)
        if source is None:
            self._counted_in.pop(key, None)
            return
        totals = source.totals
        waiting = totals.unadmitted.waiting if totals.unadmitted is not None else frozenset()
        opened: set[tuple[str, str]] | None = set()
        for quota in self._registry.quotas_of(source.consumer):
            handle = self._registry.get(quota)
            whole = self._accounts.may_count(quota, source)
            if handle is None or not (whole or self._accounts.may_count_partly(quota, source)):
                opened = None
                # Nothing is dropped until it was counted: watch caches of several kinds can lose and regain a list,
                # and the list that the accounts controller demanded may bring no change.
                pause = CHECK_INTERVAL if source.counted or source.problem is not None else RETRY_DELAY
                self._due.setdefault(key, time.monotonic() + pause)
                continue
            done = await self._written(handle, quota, source)
            if done is None:
                opened = None
                continue
            # What lacked a list may have kept its last count, and that list may have come during the write.
            if not (whole and self._accounts.may_count(quota, source)):
                self._due.setdefault(key, time.monotonic() + CHECK_INTERVAL)
            if not done or self._withheld(handle, source):
                self._due.setdefault(key, time.monotonic() + RETRY_DELAY)
            account = handle.writer.account
            if not done:
                opened = None
            elif opened is not None and quota.enforced and account is not None and not account.fenced:
                opened.add((quota.key.uid, account.incarnation))
        certain, lost = self._certain(source, waiting)
        if opened is not None and totals is source.totals:
            self._judge(key, totals, waiting, certain, lost, frozenset(opened))

    def _certain(self, source: UsageSource, waiting: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Those of the objects that no replica can still name as admitted from its block: each that had one when the
        object was counted first has written since. And those that a replica may have admitted which is gone: its block
        was taken, and nobody names them any more."""
        before = self._unnamed.pop(source.key, {})
        if not waiting:
            return waiting, waiting
        now = self._blocks_of(source)
        known = {uid: before.get(uid, now) for uid in waiting}
        lost = frozenset(uid for uid, having in known.items() if not self._blocks.taken.isdisjoint(having))
        unnamed = {uid: left for uid, having in known.items() if uid not in lost and (left := having & now)}
        if unnamed:
            self._unnamed[source.key] = unnamed
            self._due.setdefault(source.key, time.monotonic() + COUNT_DELAY)
        return waiting - unnamed.keys() - lost, lost

    def _blocks_of(self, source: UsageSource) -> frozenset[Block]:
        handles = ((quota, self._registry.get(quota)) for quota in self._registry.quotas_of(source.consumer))
        known = [(quota, handle.writer.account) for quota, handle in handles if handle is not None]
        return frozenset(
            (quota.key.uid, owner, block.generation)
            for quota, account in known
            if account is not None
            for owner, block in blocks.owners(account).items()
        )

    async def _written(self, handle: AccountHandle, quota: Quota, source: UsageSource) -> bool | None:
        """Whether it was counted there; None if that fails in a way that nobody expected. Then what is counted there is
        old, and the quota says so."""
        failed = self._accounts.uncounted
        with contained("counting", f"{source.key} for {quota.name}") as attempt:
            done = await write(handle, quota, self._counted(source, quota))
        if attempt.failed:
            failed.setdefault((quota.key.uid, source.key), time.monotonic())
            self._due.setdefault(source.key, time.monotonic() + FAILED_DELAY)
            self._accounts.look_at(quota.name)
            return None
        if failed.pop((quota.key.uid, source.key), None) is not None:
            self._accounts.look_at(quota.name)
        return done

    def _judge(
        self,
        key: str,
        totals: Usage,
        waiting: frozenset[str],
        certain: frozenset[str],
        lost: frozenset[str],
        opened: frozenset[tuple[str, str]],
    ) -> None:
        """Only an account that was open at the count before has a reservation for all that it admitted since. What
        waits in another count is never judged, whoever may still name it: the next count would be sure of it."""
        unadmitted = totals.unadmitted
        if unadmitted is None:
            return
        line, before = self._counted_in.get(key, (None, frozenset()))
        self._counted_in[key] = unadmitted.line, opened
        sure = line is unadmitted.line and bool(before & opened)
        unadmitted.judge(lost if sure else waiting, sure=False)
        unadmitted.judge(certain, sure=True)

    def _withheld(self, handle: AccountHandle, source: UsageSource) -> bool:
        """Whether something was not dropped that may be later: updates, while it is not certain what has happened there
        (a list that brings no change tells nobody), or what a count tells by caches that are later."""
        account = handle.writer.account
        return self._accounts.account_sources.withholds(handle.key.uid, source.key) or (
            not source.live
            and account is not None
            and any(kept.generation for kept in accounts.of_source(account, source.key).values())
        )

    def _counted(self, source: UsageSource, quota: Quota) -> Callable[[Account], tuple[Account, None]]:
        """What an account opens with may be older than this change, so that has to come again."""

        def counted(account: Account) -> tuple[Account, None]:
            check_opened(account)
            after, unadmitted = self._accounts.counted(account, source, quota), source.totals.unadmitted
            if unadmitted is not None and unadmitted.waiting and blocks.owners(account):
                # Written in any case: what the account shows then is no older than the objects that wait.
                after = msgspec.structs.replace(after)
            return after, None

        return counted

    async def _check(self) -> None:
        """One check of each quota at a time: one whose sources answer slowly keeps none of the others waiting."""
        while True:
            await asyncio.sleep(min(CHECK_INTERVAL, self._window))
            alive: set[tuple[str, str]] = set()
            self._checks = {uid: check for uid, check in self._checks.items() if not check.done()}
            for number, quota in enumerate(list(self._quota_cache.all_quotas())):
                if number % CHECKS == 0:
                    await asyncio.sleep(0)  # those that were begun run, and others have their turn
                handle, uid = self._registry.get(quota), quota.key.uid
                account = handle.writer.account if handle is not None else None
                if handle is None or account is None or account.epoch != self._accounts.term:
                    continue
                alive.add((uid, account.incarnation))
                if uid not in self._checks:
                    check = self._check_in_turn(handle, quota)
                    self._checks[uid] = asyncio.create_task(check, name=f"evidence for {quota.name}")
            self._collector.keep(alive)
            self._blocks.keep(alive)
            uids = {uid for uid, _ in alive}
            self._accounts.forget_uncounted(uids)
            self._accounts.account_sources.keep(uids)

    async def _check_in_turn(self, handle: AccountHandle, quota: Quota) -> None:
        async with self._turns:
            quota, account = self._quota_cache.latest(quota), handle.writer.account
            if account is not None and account.epoch == self._accounts.term:
                await self._check_one(handle, quota, account)

    async def _check_one(self, handle: AccountHandle, quota: Quota, account: Account) -> None:
        with contained("evidence", quota.name):
            await self._removal.forget(handle, quota, account)
        with contained("evidence", quota.name):
            await self._collector.release(handle, quota, account)
        with contained("evidence", quota.name):
            await self._blocks.take(handle, quota, account)
        with contained("evidence", quota.name):
            for key, ended in reservation_gc.updates(account, self._sources).items():
                if ended:
                    self._count_within(key, FREED_DELAY)
            self._end_loans(handle, quota, account)
            self._end_bases(quota, account)

    def _end_bases(self, quota: Quota, account: Account) -> None:
        """What a source counts for the base of a reservation goes with that. If it was cancelled, nobody else tells."""
        if not quota.promises:
            return
        for key, used in account.used.items():
            source = self._sources.get(key)
            reservations = accounts.of_source(account, key)
            if source is not None and source.counted and source.totals.used_beside(reservations) != used:
                self.changed(source, freed=True)

    def _end_loans(self, handle: AccountHandle, quota: Quota, account: Account) -> None:
        """A loan ends in a count of its source. When there is room by another's count, or by a grant, its own may have
        nothing new to tell. Once its older Machine has gone, what it still lacks is asked for as a request would."""
        lacking: list[ResourceList] = []
        account = accounts.receive(account, quota.grant)
        for (key, uid), kept in account.reservations.items():
            source = self._sources.get(key) if kept.replaces else None
            sizes = source.totals.sizes([uid, kept.replaces]) if source is not None else {}
            if source is None or uid not in sizes:
                continue
            if surge_loans.has_room(account, kept, sizes[uid]):
                self.changed(source, freed=True)
            elif kept.replaces not in sizes:
                more = surge_loans.lacking(account, kept, sizes[uid])
                if not resources.over_limit(more, quota.global_usage, quota.limits):
                    lacking.append(more)
        if lacking and quota.key.uid not in self._asks:
            asked = asyncio.create_task(self._ask(handle, lacking), name=f"rollouts of {quota.name}")
            self._asks[quota.key.uid] = asked
            asked.add_done_callback(lambda _asked: self._asks.pop(quota.key.uid, None))

    async def _ask(self, handle: AccountHandle, lacking: Sequence[ResourceList]) -> None:
        """The grant is seen by a later check."""
        asks = (handle.requester.wait(more, CHECK_INTERVAL) for more in lacking)
        for outcome in await asyncio.gather(*asks, return_exceptions=True):
            match outcome:
                case TimeoutError() | StoreUnavailableError() | MalformedLedgerError() | NoAccountError():
                    log.info("a rollout waits on surge", extra={"quota": handle.key.name, "error": str(outcome)})
                case BaseException():
                    unexpected.tell("evidence", handle.key.name, outcome)
