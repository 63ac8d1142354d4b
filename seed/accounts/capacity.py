"""Requests that found too little here wait for the master's answer: more capacity, or numbers to refuse with.

All that wait for one quota in one replica ask together, one ask at a time. An answer stays good for FRESH seconds,
so that a storm of hopeless requests costs the master two messages a second and no more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from common.quota import account as accounts
from common.quota import blocks, guarantees, resources
from common.quota.account import Account
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import NoAccountError, StoreUnavailableError
from seed.ledger.writer import AccountWriter
from seed.model.quota import Quota

log = logging.getLogger(__name__)

FRESH = 0.5  # seconds for which an answer may refuse others


class MasterAnswer(msgspec.Struct, frozen=True):
    """Global use as the master knew it when it answered, and the most that we used ourselves since we asked: that much
    of it may be our own.

    `final`: there is room, but none that can come here: it is held out of reach, or this seed drains.
    """

    used: ResourceList
    reserved: ResourceList
    own: ResourceList
    final: bool
    at: float
    guarantees: Sequence[Guarantee] = ()


class CapacityRequester:
    """One quota in one replica."""

    def __init__(
        self, writer: AccountWriter, quota: Callable[[], Quota | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer = writer
        self._quota = quota
        self._clock = clock
        self._needs: list[ResourceList] = []
        self._waiters: list[asyncio.Future[MasterAnswer]] = []
        self._asked: list[asyncio.Future[MasterAnswer]] = []
        self._number = 0
        self._asking: asyncio.Task[None] | None = None
        self._answer: MasterAnswer | None = None
        self._most: ResourceList = {}  # that was used here since the last ask was decided that may still be answered

    def refuses(self, need: ResourceList, project: str = "") -> MasterAnswer | None:
        """The fresh answer by which `need` fits nowhere, if there is one."""
        answer, quota = self._answer, self._quota()
        if answer is None or quota is None or self._clock() - answer.at > FRESH:
            return None
        own = self._own()
        if any(own.get(name, 0) < amount for name, amount in answer.own.items()):
            return None  # something was deleted here since: the master will know more
        known = resources.add(quota.global_usage, guarantees.kept_from(quota.guarantees, project))
        if not resources.over_limit(need, known, quota.ceilings):
            return None  # ... or elsewhere: the master knows already
        asked = resources.add(answer.used, guarantees.kept_from(answer.guarantees, project))
        return answer if resources.over_limit(need, asked, quota.ceilings) else None

    async def wait(self, need: ResourceList, timeout: float) -> MasterAnswer:
        """The master's answer to an ask that includes `need`. Raises TimeoutError,
        StoreUnavailableError, MalformedLedgerError, NoAccountError."""
        future: asyncio.Future[MasterAnswer] = asyncio.get_running_loop().create_future()
        self._needs.append(need)
        self._waiters.append(future)
        self._ask_if_due()
        async with asyncio.timeout(timeout):
            return await future

    def written(self, account: Account) -> None:
        """The account changed."""
        if self._asking is not None or self._asked:
            self._most = resources.maximum(self._most, blocks.sure_use(account))

    def quota_changed(self) -> None:
        """The master may have answered in the quota's copy."""
        quota = self._quota()
        if quota is None or not self._asked or quota.grant.answered < self._number:
            return
        account = self._writer.account
        if account is not None and quota.grant.account != account.incarnation:
            return
        answer = MasterAnswer(
            used=quota.global_usage,
            reserved=quota.global_reserved,
            own=resources.maximum(self._most, self._own()),
            final=bool(quota.out_of_reach) or quota.draining,
            at=self._clock(),
            guarantees=quota.guarantees,
        )
        self._answer = answer
        asked, self._asked = self._asked, []
        for future in asked:
            if not future.done():
                future.set_result(answer)
        self._ask_if_due()

    def _ask_if_due(self) -> None:
        """One ask at a time; one for which no request waits any more delays no other."""
        if self._waiters and self._asking is None and all(asked.done() for asked in self._asked):
            self._asking = asyncio.create_task(self._ask())

    def _own(self) -> dict[str, int]:
        account = self._writer.account
        return blocks.sure_use(account) if account is not None else {}

    async def _ask(self) -> None:
        """Ask for all requests that wait by now. Later ones wait for the next ask."""
        await asyncio.sleep(0)  # let the requests that were denied by the same write join
        needs, self._needs = self._needs, []
        waiters, self._waiters = self._waiters, []
        live = [(need, future) for need, future in zip(needs, waiters, strict=True) if not future.done()]
        quota = self._quota()
        answered = quota.grant.answered if quota is not None else 0
        limits = quota.ceilings if quota is not None else {}
        try:
            if live:
                wanted = resources.total(need for need, _ in live)
                first = live[0][0]

                def ask(account: Account) -> tuple[Account, int]:
                    used = blocks.sure_use(account)
                    self._most = resources.maximum(self._most, used) if self._asked else used
                    asking = accounts.ask(account, limits, first, wanted, answered)
                    return asking, asking.ask.number

                self._number = await self._writer.change(ask)
                self._asked = [future for _, future in live]
        except (StoreUnavailableError, MalformedLedgerError, NoAccountError) as error:
            for _, future in live:
                if not future.done():
                    future.set_exception(error)
        finally:
            self._asking = None
        self.quota_changed()
        self._ask_if_due()
