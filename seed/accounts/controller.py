"""What the seed's leader does to accounts: one small reconciliation per quota (protocol.md, rules 4.4 and 4.5).

Order, for each quota:

1. No account: make one, fenced with a fresh nonce.
2. Do the next step (`seed.accounts.plan` decides it).
3. Publish to the master what changed.

Concurrency: counting runs beside it. What a source sums up is written together with dropping the reservations it
covers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set

import msgspec

from common.api.copies import original_uid
from common.api.types import RESOURCE_QUOTAS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.leader_election import Term
from common.quota import account as accounts
from common.quota import blocks, fencing, resources
from common.quota.account import Account, AccountKey, ReservationKey
from seed.accounts import plan, source_count
from seed.accounts.account_sources import AccountSources
from seed.accounts.list_demands import ListDemands
from seed.accounts.open_limiter import OpenLimiter
from seed.accounts.plan import Progress, SourceFacts
from seed.accounts.publisher import Known, Publisher
from seed.accounts.registry import AccountHandle, AccountRegistry
from seed.accounts.source_count import UncountableError
from seed.accounts.waits import Waits
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import NoAccountError, StoreUnavailableError
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.usage import unsized
from seed.usage.source import UsageSource
from seed.usage.unsized import Rest

log = logging.getLogger(__name__)

WORKERS = 8
LEDGER_KEPT = 10.0  # ... for which a ledger that is found without a copy waits for it: the master may put it back


class Accounts:
    """Runs while this replica holds the lease, with the lease's term as the epoch of every write. It is cold if the
    lease was not held continuously until this term."""

    def __init__(
        self,
        cluster: Cluster,
        registry: AccountRegistry,
        sources: Mapping[str, UsageSource],
        *,
        term: Term,
        raise_term: Callable[[int], Awaitable[int]],
        in_flight_window: float,
        known: Callable[[Quota], Known] = lambda _quota: (None, {}),
        on_reconcile: ReconcileHook | None = None,
        proven_at: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        """`known`: what of the quota all replicas have. `proven_at`: see Counting."""
        self.term = term.number
        self._since = term.since
        self._cold = not term.continuous
        self._raise_term = raise_term
        self._cluster = cluster
        self._quota_cache, self._cluster_cache = registry.quota_cache, registry.cluster_cache
        self._registry = registry
        self._sources = sources
        self._window = in_flight_window + blocks.TAKEN_AFTER  # a lost ledger may have had blocks
        self._controller: Controller[str] = Controller(
            "accounts", self._reconcile, workers=WORKERS, timeout=30, on_reconcile=on_reconcile
        )
        self._opening = OpenLimiter(self.look_at)
        self._keys: dict[str, AccountKey] = {}
        self._without_copy: dict[str, float] = {}  # quota name -> since when (monotonic) its copy is missed
        self._demands = ListDemands()
        self._unsized: dict[tuple[str, str], Rest] = {}  # by quota uid and source
        self.uncounted: dict[tuple[str, str], float] = {}  # ... since when counting fails, though it is followed
        self._progress: dict[str, Progress] = {}  # by quota uid
        self.account_sources = AccountSources(registry, sources, proven_at)
        self.waits = Waits()
        self._publisher = Publisher(cluster, self._cluster_cache, known, self.waits, self.uncounted, in_flight_window)

    async def run(self) -> None:
        stop_quota = self._quota_cache.on_quota(self._quota_changed)
        stop_enforced = self._cluster_cache.on_enforced(self.look_again)
        stop_account = self._registry.on_account(lambda name, _account: self._controller.queue.add(name))
        try:
            for key in await self._registry.store.keys():
                self._keys[key.name] = key  # also of quotas that went while nobody led
                self._controller.queue.add(key.name)
            for quota in self._quota_cache.all_known():
                self._opening.seen(quota.name, quota.ceilings, new=False)
                self._controller.queue.add(quota.name)
            await self._controller.run()
        finally:
            stop_quota()
            stop_enforced()
            stop_account()

    async def confirm_all(self) -> None:
        """Writes and publishes each open account once more, before an orderly end. If no replica is left, the master
        then knows of each ledger that it is intact (protocol.md 3.4), also where nothing was written since the
        master started or the link broke. What fails is left out: it costs the in-flight window at the next start."""
        waiting = iter(list(self._quota_cache.all_quotas()))

        async def confirm() -> None:
            for quota in waiting:
                try:
                    await self._confirm(quota)
                except (StoreUnavailableError, MalformedLedgerError, NoAccountError) as error:
                    log.info("account not confirmed", extra={"quota": quota.name, "error": str(error)})

        await asyncio.gather(*(confirm() for _ in range(WORKERS)))

    async def _confirm(self, quota: Quota) -> None:
        handle = self._registry.get(quota)
        account = handle.writer.account if handle is not None else None
        if handle is None or account is None or account.epoch != self.term or account.fenced:
            return
        await handle.writer.change(lambda present: (msgspec.structs.replace(present), None))
        if handle.writer.account is not None:
            await self._publisher.publish_at_once(quota, handle.writer.account, self.account_sources.of(quota))

    def look_at(self, name: str) -> None:
        self._controller.queue.add(name)

    def forget_uncounted(self, alive: Set[str]) -> None:
        for key in [key for key in self.uncounted if key[0] not in alive]:
            del self.uncounted[key]

    def look_again(self, consumer: Consumer) -> None:
        """Something about a source of it changed."""
        for quota in self._registry.quotas_of(consumer):
            self._controller.queue.add(quota.name)

    def may_count(self, quota: Quota, source: UsageSource) -> bool:
        """Rule 4.4: only a list that began after our epoch was written may be counted.

        Of a source that has none, one is demanded: it was not there when that was written, or not this quota's.
        """
        if not source.counted or not self._has_claimed(quota) or not self._is_followed(source):
            return False
        if source.listed_from > self._demands.lists_from(quota.key.uid):
            return True
        self._demands.demand(quota, source)
        return False

    def may_count_partly(self, quota: Quota, source: UsageSource) -> bool:
        """... of the kinds that have such a list, where another cannot be listed."""
        handle = self._registry.get(quota)
        account = handle.writer.account if handle is not None else None
        if account is None or source.problem is None or not self._has_claimed(quota) or not self._is_followed(source):
            return False
        if not source_count.doubtful(account, source, self._demands.lists_from(quota.key.uid)):
            return False
        self._demands.demand(quota, source)
        return True

    def _is_followed(self, source: UsageSource) -> bool:
        """Not one that ended: another may have its place, and have been counted since."""
        return self._sources.get(source.key) is source

    def _has_claimed(self, quota: Quota) -> bool:
        progress = self._progress.get(quota.key.uid)
        return progress is not None and progress.claimed == self.term

    def counted(
        self, account: Account, source: UsageSource, quota: Quota, released: Set[ReservationKey] = frozenset()
    ) -> Account:
        """With what the source's watch cache holds now. `released`: in the same write. Raises UncountableError where
        that may not be counted, or not any more: whoever asked before waited for a write since."""
        totals, reservations = source.totals, accounts.of_source(account, source.key)
        doubtful = source_count.doubtful(account, source, self._demands.lists_from(quota.key.uid))
        if doubtful is None or not (self.may_count(quota, source) or self.may_count_partly(quota, source)):
            raise UncountableError
        if totals.unadmitted is not None:
            totals.unadmitted.admitted(reservations)
        known = self._unsized.get((quota.key.uid, source.key))
        before, ahead = account.used.get(source.key, {}), blocks.together(account)
        rest = unsized.rest(known, before, reservations, totals, ahead=ahead)
        sure = self.account_sources.sure(quota, source, reservations)
        sure = source_count.covered(sure, doubtful, live=source.live)
        told = source_count.told(account, source, sure, doubtful, released)
        found = self.account_sources.counted(source.key, unsized.used(rest, reservations, totals, told.ended))
        after = source_count.count(account, self.term, source, quota, found, told)
        after = blocks.settled(after, source.key, sure)
        if not doubtful:
            self._unsized[quota.key.uid, source.key] = rest  # also if this is never written: what the totals lack
        return after

    def _quota_changed(self, name: str) -> None:
        quota = self._quota_cache.known(name)
        if quota is None:
            self._opening.gone(name)
        else:
            self._opening.seen(name, quota.ceilings, new=name not in self._keys)
            if self._keys.get(name) != quota.key:
                self.waits.came(quota)
        self._controller.queue.add(name)

    async def _reconcile(self, name: str) -> float | None:
        quota = self._quota_cache.known(name)
        if quota is None:
            self.waits.forget(name)  # what was looked at while it went has noted one
        try:
            wait = await self._forget(name, quota)
            handle = self._registry.get(quota) if quota is not None else None
            if quota is None or handle is None:
                return wait
            if self._can_wait(quota, handle) and (later := self._opening.wait(name)) is not None:
                await self._say_wait(quota, turn=True)
                return later
            again = await self._tend(quota, handle)
            account = handle.writer.account
            if account is not None and account.epoch == self.term and not account.fenced:
                self._opening.ended(name)
            publish_again = None
            if account is not None:
                publish_again = await self._publisher.publish(quota, account, self.account_sources.of(quota))
        except UncountableError:
            return plan.WAIT_FOR_SOURCES
        except (StoreUnavailableError, MalformedLedgerError, NoAccountError) as error:
            log.info("account not reconciled", extra={"quota": name, "error": str(error)})
            if quota is not None:
                await self._say_wait(quota, ledger=True)
            return 1.0
        return min((seconds for seconds in (again, publish_again) if seconds is not None), default=None)

    async def _forget(self, name: str, quota: Quota | None) -> float | None:
        """Drops the account that belongs to nothing any more: its quota is gone, or another one bears its name.

        Returns in how many seconds to look again, if a copy is missing.
        """
        key = self._keys.get(name)
        if quota is not None:
            self._without_copy.pop(name, None)
        if key is not None and (quota is None or quota.key != key):
            if quota is None:
                now = time.monotonic()
                left = self._without_copy.setdefault(name, now) + LEDGER_KEPT - now
                if left > 0:
                    return left
            if await self._exists(key):
                return None  # our watch cache lags
            await self._registry.store.delete(key)
            del self._keys[name]
            self._without_copy.pop(name, None)
            self._publisher.forget(key.uid)
            self._progress.pop(key.uid, None)
            self._demands.forget(key.uid)
            self._unsized = {count: rest for count, rest in self._unsized.items() if count[0] != key.uid}
            log.info("account deleted with its quota", extra={"quota": name})
        if quota is not None:
            self._keys[name] = quota.key
        return None

    def _can_wait(self, quota: Quota, handle: AccountHandle) -> bool:
        """To be made or taken over, while others need theirs sooner."""
        account = handle.writer.account
        return (account is None or account.epoch != self.term) and self.account_sources.are_empty(quota)

    async def _exists(self, key: AccountKey) -> bool:
        try:
            copy = await self._cluster.get(RESOURCE_QUOTAS, key.name)
        except NotFound:
            return False
        return original_uid(copy, in_cluster=self._quota_cache.in_cluster) == key.uid

    async def _tend(self, quota: Quota, handle: AccountHandle) -> float | None:
        writer, uid = handle.writer, quota.key.uid
        account = writer.account
        if account is None:
            made = Account(incarnation=secrets.token_hex(8), nonce=secrets.token_hex(8), epoch=self.term)
            account = await writer.create(made)
            if account.incarnation == made.incarnation:
                self._progress[uid] = Progress(claimed=made.epoch, life=made.incarnation)  # nobody counted before us
        if account.epoch > self.term:
            # The lease object began anew below the epoch that the account has seen.
            self.term = await self._raise_term(account.epoch)
            self._unsized.clear()  # somebody else counted meanwhile
            for other in self._quota_cache.all_known():
                self._controller.queue.add(other.name)
        before, now = self._progress.get(uid, Progress()), time.monotonic()
        facts = self.account_sources.facts(quota, account, self.may_count) if not quota.withdrawn else []
        step, progress = plan.next_step(
            account,
            quota.grant,
            before,
            facts,
            term=self.term,
            window=self._window,
            now=now,
            withdrawn=bool(quota.withdrawn),
            published=quota.published,
        )
        if progress.doubted and not before.doubted:
            left = round(plan.window_left(progress, self._window, now), 1)
            log.warning(plan.why_recounted(account), extra={"quota": quota.name, "seconds": left})
        wait = await self._do(step, quota, handle)
        self._progress[uid] = progress
        self._note_wait(quota, facts)
        return wait

    def _note_wait(
        self, quota: Quota, facts: Sequence[SourceFacts] = (), *, turn: bool = False, ledger: bool = False
    ) -> Account | None:
        """What it waits for before it admits anything. Returns the account."""
        handle, uid = self._registry.get(quota), quota.key.uid
        account = handle.writer.account if handle is not None else None
        found = None
        if not quota.withdrawn and plan.admits_nothing(account, self.term, since=self._since, cold=self._cold):
            progress, now = self._progress.get(uid, Progress()), time.monotonic()
            found = plan.waits_for(
                account, quota.grant, progress, facts, turn=turn, ledger=ledger, window=self._window, now=now
            )
        since = self._demands.lists_from(uid)
        self.waits.note(quota, found, lambda key: self.account_sources.unlisted(key, since))
        return account

    async def _say_wait(self, quota: Quota, *, turn: bool = False, ledger: bool = False) -> None:
        """Of one that is not looked at now. Only what this leader has claimed is published."""
        account = self._note_wait(quota, turn=turn, ledger=ledger)
        if account is None:
            await self._publisher.publish_wait(quota)
        elif account.fenced and account.epoch == self.term:
            await self._publisher.publish(quota, account, self.account_sources.of(quota))

    async def _do(self, step: plan.Step, quota: Quota, handle: AccountHandle) -> float | None:
        """Each write decides again on the account that it finds."""
        change, grant = handle.writer.change, quota.grant
        nonce = secrets.token_hex(8)
        match step:
            case plan.Claim():
                await self._claim(quota, handle, nonce)
                return 0.0
            case plan.Fence():
                await change(lambda present: (plan.fenced(present, grant, nonce), None))
                log.info(
                    "account fenced: the master knows another life of it, or began another", extra={"quota": quota.name}
                )
            case plan.Rebuild():
                life = secrets.token_hex(8)
                await change(lambda present: (plan.rebuilt(present, grant, quota.published, life, nonce), None))
                log.warning("ledger went backwards: account fenced", extra={"quota": quota.name})
            case plan.Wait(seconds=seconds):
                return seconds
            case plan.Relist():
                self._demands.demand_all(quota, self.account_sources.of(quota))
                return 0.0
            case plan.Open(sources=sources):
                await self._open(quota, handle, sources)
            case plan.Obey():
                await change(lambda present: (accounts.apply_grant(present, grant), None))
            case plan.Close():
                await change(lambda present: (fencing.close(present, self.term, grant, nonce), None))
                log.info("quota withdrawn from this seed: account closed", extra={"quota": quota.name})
            case plan.Rest():
                pass
        return None

    async def _claim(self, quota: Quota, handle: AccountHandle, nonce: str) -> None:
        term, since, cold = self.term, self._since, self._cold

        def claimed(present: Account) -> tuple[Account, Account | None]:
            after = plan.claimed(present, term, since=since, cold=cold, nonce=nonce)
            # Written in any case: the store may have gone back since this process knew it.
            return (after, after) if after != present else (msgspec.structs.replace(present), None)

        news = await handle.writer.change(claimed)
        self._demands.demand_all(quota, self.account_sources.of(quota))
        if news is not None:
            fenced = news.nonce == nonce
            log.info("account taken over", extra={"quota": quota.name, "epoch": term, "fenced": fenced})

    async def _open(self, quota: Quota, handle: AccountHandle, keys: tuple[str, ...]) -> None:
        grant = quota.grant
        sources = [self._sources[key] for key in keys]

        def opened(present: Account) -> tuple[Account, bool]:
            if not fencing.answers(present, grant):
                return present, False
            for source in sources:
                present = self.counted(present, source, quota)
            return fencing.reopen(present, self.term, grant), True

        if await handle.writer.change(opened):
            log.info("account opened", extra={"quota": quota.name, "held": resources.text(grant.granted)})
