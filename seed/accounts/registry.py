"""One handle per quota in this process: the writer of its account, and the requests that wait for more capacity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from common.quota import account as accounts
from common.quota import blocks
from common.quota.account import Account, AccountKey
from common.quota.resources import ResourceList
from common.runtime.listeners import Listeners
from seed.accounts.capacity import CapacityRequester
from seed.accounts.snapshot import QuotaSnapshot, snapshot
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.ledger.store import Store
from seed.ledger.writer import AccountWriter
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.model.source_key import SourceKey

log = logging.getLogger(__name__)

FINISH_SECONDS = 2.0  # at an orderly end, for blocks


class AccountHandle:
    def __init__(self, writer: AccountWriter, requester: CapacityRequester, task: asyncio.Task[None]) -> None:
        self.writer = writer
        self.requester = requester
        self.task = task
        self.asked: ResourceList = {}  # by requests that ask other quotas at the same time, and are not answered yet
        self._use: tuple[Account | None, ResourceList] = (None, {})
        self._snapshot: tuple[Quota | None, Account | None, QuotaSnapshot | None] = (None, None, None)

    @property
    def key(self) -> AccountKey:
        return self.writer.key

    @property
    def use(self) -> ResourceList:
        """Counted and reserved here, as far as it is durable and certain. Summed once for each write, not for each
        request."""
        account = self.writer.account
        if account is None:
            return {}
        if account is not self._use[0]:
            self._use = (account, blocks.sure_use(account))
        return self._use[1]

    def snapshot(self, quota: Quota) -> QuotaSnapshot:
        """What is seen of the quota now. Made once for each write and each message of the master."""
        account = self.writer.account
        known, of, seen = self._snapshot
        if seen is None or known is not quota or of is not account:
            seen = snapshot(quota, account, self.use)
            self._snapshot = (quota, account, seen)
        return seen


class AccountRegistry:
    """Opens the account of a quota when the quota arrives, and closes it when the quota goes.

    `on_account(name, account)` is called with news; the account is None where there is none (any more).
    """

    def __init__(
        self,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        store: Store,
        *,
        on_write: Callable[[float, int], None] = lambda _seconds, _claims: None,
        on_conflict: Callable[[], None] = lambda: None,
        trusted: Callable[[], int | None] = lambda: 0,
        reserve_ahead: Callable[[int], bool] = lambda _term: True,
    ) -> None:
        """`trusted`: see AccountWriter. `reserve_ahead`: whether accounts that the leader of this term
        claimed may have blocks."""
        self.quota_cache = quota_cache
        self.cluster_cache = cluster_cache
        self.store = store
        self._on_write = on_write
        self._on_conflict = on_conflict
        self._trusted = trusted
        self._reserve_ahead = reserve_ahead
        self._handles: dict[str, AccountHandle] = {}
        self._listeners: Listeners[[str, Account | None]] = Listeners()
        quota_cache.on_quota(self._quota_changed)

    def get(self, quota: Quota) -> AccountHandle | None:
        handle = self._handles.get(quota.name)
        return handle if handle is not None and handle.key == quota.key else None

    def snapshot(self, quota: Quota) -> QuotaSnapshot:
        """What is seen of the quota now, whether it has an account here or not."""
        handle = self.get(quota)
        return handle.snapshot(quota) if handle is not None else QuotaSnapshot(quota=quota)

    def granted(self, quota: Quota) -> ResourceList:
        """All that the quota's account was ever granted, as far as it was read."""
        handle = self.get(quota)
        account = handle.writer.account if handle is not None else None
        return account.granted if account is not None else {}

    def is_new(self, quota: Quota) -> bool:
        """Nothing of it was ever in force here: its account was never open, no leader said that the replicas know it,
        and the master granted nothing. A quota whose ledger was lost is not new."""
        handle = self.get(quota)
        account = handle.writer.account if handle is not None else None
        opened = bool(account.master) if account is not None else quota.published is not None
        return not (opened or quota.published_generation or quota.grant.granted)

    def used(self, quota: Quota, source: str) -> ResourceList | None:
        """What the quota's account has of the source; None while there is none, as far as was read."""
        handle = self.get(quota)
        account = handle.writer.account if handle is not None else None
        return account.used.get(source, {}) if account is not None else None

    def quotas_of(self, consumer: Consumer) -> list[Quota]:
        """Every quota that counts the project: those that the cache names, and while the copy of the Project is
        missing those of an organization that counted it before. The copy may be put back: whose it is cannot change."""
        if consumer.quota:
            return self.quota_cache.quotas_of(consumer)
        found, project = self.quota_cache.quotas_of(consumer), consumer.project
        if self.quota_cache.lacks(project):
            missed = (quota for quota in self.quota_cache.all_quotas() if project in self._missed(quota))
            found.extend(quota for quota in missed if self.quota_cache.counts_in(quota, consumer.cluster))
        return found

    def source_keys(self, quota: Quota) -> list[SourceKey]:
        """The sources of all that the quota counts."""
        keys = self.cluster_cache.source_keys(quota)
        for project in self._missed(quota):
            keys.extend(self.cluster_cache.sources_of(project, quota))
        return keys

    def recall_projects(self, quota: Quota) -> None:
        """Those without a copy that the organization's account counts: the replica before has seen whose they are."""
        for project in self._missed(quota):
            self.quota_cache.counted_by(quota.subject, project)

    def _missed(self, quota: Quota) -> list[str]:
        """Projects without a copy of which the organization's account has something."""
        handle = self.get(quota) if quota.kind == "organization" else None
        if handle is None or handle.writer.account is None:
            return []
        projects = {self.cluster_cache.project_of(key) for key in accounts.sources(handle.writer.account)}
        return sorted(project for project in projects if project is not None and self.quota_cache.lacks(project))

    def on_account(self, listener: Callable[[str, Account | None], None]) -> Callable[[], None]:
        """Returns how to stop listening."""
        return self._listeners.add(listener)

    async def close(self) -> None:
        """What was reserved ahead is given back, as far as the ledger answers."""
        handles, self._handles = list(self._handles.values()), {}
        finishing = [asyncio.create_task(handle.writer.finish()) for handle in handles]
        if finishing:
            await asyncio.wait(finishing, timeout=FINISH_SECONDS)
            for task in finishing:
                task.cancel()
            await asyncio.gather(*finishing, return_exceptions=True)
        for handle in handles:
            handle.task.cancel()
        await asyncio.gather(*(handle.task for handle in handles), return_exceptions=True)

    def _quota_changed(self, name: str) -> None:
        quota = self.quota_cache.known(name)
        handle = self._handles.get(name)
        if handle is not None and (quota is None or handle.key != quota.key):
            del self._handles[name]
            handle.task.cancel()
            handle = None
        if quota is None:
            return
        if handle is None:
            handle = self._handles[name] = self._open(quota.key)
        handle.requester.quota_changed()
        handle.writer.poke()

    def _open(self, key: AccountKey) -> AccountHandle:
        def present() -> Quota | None:
            quota = self.quota_cache.known(key.name)
            return quota if quota is not None and quota.key == key else None

        def on_account(account: Account | None) -> None:
            if account is not None:
                requester.written(account)
            self._listeners.call(key.name, account)

        writer = AccountWriter(
            self.store,
            key,
            lambda: quota.terms if (quota := present()) is not None else None,
            on_account=on_account,
            on_write=self._on_write,
            on_conflict=self._on_conflict,
            trusted=self._trusted,
            ahead=lambda account: (
                self._reserve_ahead(account.epoch) and (quota := present()) is not None and quota.has_blocks
            ),
        )
        requester = CapacityRequester(writer, present)
        return AccountHandle(writer, requester, asyncio.create_task(writer.run(), name=f"ledger {key.name}"))
