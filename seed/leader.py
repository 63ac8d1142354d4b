"""What one replica of the seed does while it holds the lease, and how it takes and leaves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from common import metrics
from common.api import UserCluster
from common.kube.client import Cluster, RequestHook
from common.kube.errors import ApiError
from common.kube.lease import Lease, LeaseLost, Term
from seed.accounts import Accounts
from seed.books import Books
from seed.catalog import Catalog
from seed.counting import Counting
from seed.ledger.store import Store, StoreUnavailableError
from seed.sizing import Sizing
from seed.source import Source
from seed.user_clusters import UserClusters
from seed.webhook_configuration import WebhookConfiguration

log = logging.getLogger(__name__)

PAUSE = 1.0  # seconds before trying again after a leadership that failed


class Leader:
    def __init__(
        self,
        cluster: Cluster,
        catalog: Catalog,
        books: Books,
        store: Store,
        lease: Lease,
        desired: Callable[[UserCluster], WebhookConfiguration],
        sizing: Sizing,
        *,
        in_flight_window: float,
        on_request: RequestHook | None = None,
    ) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._books = books
        self._store = store
        self._lease = lease
        self._desired = desired
        self._sizing = sizing
        self._window = in_flight_window
        self._on_request = on_request
        self._user_clusters: UserClusters | None = None

    @property
    def leads(self) -> bool:
        return self._lease.held

    def configuration_changed(self) -> None:
        if self._user_clusters is not None:
            self._user_clusters.configuration_changed()

    async def run(self) -> None:
        """Leads whenever the lease can be had. Cancelled: leaves it to the next replica at once."""
        while True:
            try:
                async with self._lease.hold() as term:
                    await self._lead(term)
            except* (ApiError, StoreUnavailableError, LeaseLost) as errors:
                log.warning("leading ended", extra={"error": "; ".join(str(error) for error in _each(errors))})
            await asyncio.sleep(PAUSE)

    async def _lead(self, term: Term) -> None:
        lost = self._lease.lost
        work = asyncio.create_task(self._work(term), name="leading")
        losing = asyncio.create_task(lost.wait(), name="lease lost")
        try:
            await asyncio.wait([work, losing], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            work.cancel()
            losing.cancel()
            await asyncio.gather(work, losing, return_exceptions=True)
            self._user_clusters = None

    async def _work(self, term: Term) -> None:
        counting: Counting | None = None

        def changed(source: Source, freed: bool) -> None:
            assert counting is not None, "sources start after counting was made"
            counting.changed(source, freed)

        def state_changed(source: Source) -> None:
            accounts.look_again(source.project)

        user_clusters = UserClusters(
            self._cluster,
            self._catalog,
            self._desired,
            self._sizing,
            on_change=changed,
            on_state=state_changed,
            on_request=self._on_request,
            on_reconcile=metrics.reconciled,
        )
        accounts = Accounts(
            self._cluster,
            self._catalog,
            self._books,
            self._store,
            user_clusters.sources,
            term=term.number,
            cold=not term.continuous,
            raise_term=self._lease.raise_term,
            in_flight_window=self._window,
            on_reconcile=metrics.reconciled,
        )
        counting = Counting(
            self._cluster, self._catalog, self._books, accounts, user_clusters.sources, in_flight_window=self._window
        )
        self._user_clusters = user_clusters
        async with asyncio.TaskGroup() as group:
            group.create_task(accounts.run(), name="accounts")
            group.create_task(counting.run(), name="counting")
            group.create_task(user_clusters.run(), name="user clusters")


def _each(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
