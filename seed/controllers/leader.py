"""How one replica of the seed takes the lease and leaves it. What it does meanwhile is in seed/controllers/term.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress

from common.api.account_waits import WaitReason
from common.kube.controller.leader_election import Term
from common.runtime import unexpected
from common.runtime.waiting import first_of
from seed import metrics
from seed.controllers.term import ENDS, Leadership
from seed.kinds.kind import Replica
from seed.model.source_key import SourceKey
from seed.usage.source import UsageSource

log = logging.getLogger(__name__)

CONFIRMED_WITHIN = 3.0  # seconds
REFRESH_TIMEOUT = 30.0  # ... for lists of the quotas, projects, settings and user clusters
PAUSE = 1.0  # seconds before trying again after a leadership that failed


class Leader:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._lease = replica.lease
        self._leadership: Leadership | None = None

    @property
    def leads(self) -> bool:
        return self._lease.held

    @property
    def sources(self) -> list[UsageSource]:
        """What is counted, while this replica leads."""
        return list(self._leadership.sources.values()) if self._leadership is not None else []

    def source(self, key: SourceKey) -> UsageSource | None:
        return self._leadership.sources.get(key) if self._leadership is not None else None

    @property
    def account_waits(self) -> Mapping[WaitReason, float]:
        """The longest waits of accounts that admit nothing, in seconds. Empty where another replica leads."""
        return self._leadership.accounts.waits.longest() if self._leadership is not None else {}

    def configuration_changed(self) -> None:
        if self._leadership is not None:
            self._leadership.configuration_changed()

    async def confirm_accounts(self) -> None:
        """Before an orderly end, see `Accounts.confirm_all`. What takes too long is left out."""
        if self._leadership is not None and self.leads:
            with suppress(TimeoutError):
                async with asyncio.timeout(CONFIRMED_WITHIN):
                    await self._leadership.accounts.confirm_all()

    async def run(self) -> None:
        """Leads whenever the lease can be had. Cancelled: leaves it to the next replica at once."""
        while True:
            try:
                async with self._lease.hold() as term:
                    await self._lead(term)
                # Not a moment later: where nobody else took the lease, it is held on if sight of it is not lost.
            except* ENDS as errors:
                log.warning("leading ended", extra={"error": "; ".join(str(error) for error in _each(errors))})
                await asyncio.sleep(PAUSE)
            except* Exception as errors:  # noqa: BLE001 (logged; the webhook goes on, and so do the other replicas)
                unexpected.tell("leader", "", errors)
                await asyncio.sleep(PAUSE)

    async def _lead(self, term: Term) -> None:
        try:
            ended = await first_of(self._act(term), self._lease.lost.wait())
            ended.result()
        finally:
            self._leadership = None
            metrics.not_leading()

    async def _act(self, term: Term) -> None:
        """The leader before may have counted by limits, selectors and projects that this replica has not seen yet
        (protocol.md, rule 4.4)."""
        await self._replica.caches.watches.refresh(REFRESH_TIMEOUT)
        self._leadership = Leadership(self._replica, term)
        await self._leadership.run()


def _each(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
