"""Takes blocks of replicas that do not write any more (protocol.md, rule 4.15).

What was admitted from a block without a name came to exist within the in-flight window after the owner decided by it
for the last time, or never will. So a block that has not changed for that long is replaced by what all sources have, by
lists that began after that, in one write. While one of them cannot be listed, or has an object whose size was never
known, which may have been admitted from the block at any size, the block stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set

import msgspec

from common.kube.controller.reflector import moment
from common.quota import account as accounts
from common.quota import blocks
from common.quota.account import Account, Reservation
from common.runtime.lru import LruDict
from seed.accounts.account_sources import AccountSources
from seed.accounts.account_write import write
from seed.accounts.controller import Accounts
from seed.accounts.first_seen import first_seen
from seed.accounts.registry import AccountHandle
from seed.model.quota import Quota
from seed.usage.source import UsageSource

log = logging.getLogger(__name__)

Life = tuple[str, str]  # a quota's uid, and the incarnation of its account
Block = tuple[str, str, int]  # a quota's uid, the owner, and the number of the write that gave it

MAX_TAKEN = 1_000  # blocks that are remembered: what was admitted from one is counted in the write that takes it


class _Watched(msgspec.Struct, frozen=True):
    """Since when (monotonic) each block is known as it is, and after which moment sources must be listed to take those
    that are overdue."""

    known: Mapping[str, tuple[Reservation, float]] = {}
    overdue: frozenset[str] = frozenset()
    lists_from: int = 0


class BlockCollector:
    def __init__(
        self, leader: Accounts, sources: AccountSources, *, in_flight_window: float, proven_at: Callable[[], float]
    ) -> None:
        """`proven_at`: see Counting."""
        self._accounts = leader
        self._sources = sources
        self._after = in_flight_window + blocks.TAKEN_AFTER
        self._proven_at = proven_at
        self._watched: dict[Life, _Watched] = {}
        self._taken: LruDict[Block, None] = LruDict()

    @property
    def taken(self) -> Set[Block]:
        """The latest: what their owners admitted from them has no name."""
        return self._taken.keys()

    def keep(self, lives: Set[Life]) -> None:
        """Forgets every account but these."""
        self._watched = {life: watched for life, watched in self._watched.items() if life in lives}

    async def take(self, handle: AccountHandle, quota: Quota, account: Account) -> None:
        life, now = (quota.key.uid, account.incarnation), time.monotonic()
        before = self._watched.get(life, _Watched())
        known = first_seen(before.known, blocks.owners(account), now)
        proven = self._proven_at()  # later than the block, so no source is unknown here in which it was used
        overdue = frozenset(
            owner for owner, (_, since) in known.items() if now - since > self._after and since <= proven
        )
        sources = self._sources.of(quota)
        if overdue != before.overdue:
            self._watched[life] = _Watched(known, overdue, moment())
            for source in sources if overdue else ():
                source.relist()
            return
        self._watched[life] = _Watched(known, overdue, before.lists_from)
        if not overdue or not self._all_listed(quota, sources, before.lists_from):
            return
        taken = {owner: known[owner][0] for owner in overdue}

        def without(present: Account) -> tuple[Account, None]:
            accounts.check_epoch(present, self._accounts.term)
            gone = [owner for owner, block in taken.items() if blocks.of(present, owner) == block]
            for owner in gone:
                self._taken.keep((quota.key.uid, owner, taken[owner].generation), None, MAX_TAKEN)
            for source in sources if gone else ():
                present = self._accounts.counted(present, source, quota)
            return blocks.without(present, gone), None

        if await write(handle, quota, without):
            log.warning("capacity reserved by replicas that are gone is free", extra={"quota": quota.name})

    def _all_listed(self, quota: Quota, sources: Sequence[UsageSource], since: int) -> bool:
        return len(sources) == self._sources.number(quota) and all(
            self._accounts.may_count(quota, source)
            and source.problem is None
            and not source.totals.guessed
            and source.listed_from > since
            and not (source.in_namespaces is not None and source.in_namespaces.doubtful(since))
            for source in sources
        )
