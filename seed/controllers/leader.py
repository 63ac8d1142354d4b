"""What one replica of the seed does while it holds the lease, and how it takes and leaves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster, RequestHook
from common.kube.client.errors import ApiError
from common.kube.controller.leader_election import Lease, LeaseLost, Term
from common.runtime import metrics
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountRegistry
from seed.accounts.usage_writer import Counting
from seed.cache.cluster_api import View
from seed.cache.kubermatic import KubermaticView
from seed.cache.quotas import Catalog
from seed.cache.replicas import Replicas
from seed.cache.source_keys import is_of_kubermatic
from seed.controllers.seed_status import SeedStatus
from seed.controllers.unknown_projects import UnknownProjects
from seed.controllers.user_clusters import UserClusters
from seed.evaluators.clusters import Kind
from seed.ledger.store import Store, StoreUnavailableError
from seed.registration.cluster_api import Enforcement
from seed.registration.configuration import WebhookConfiguration
from seed.registration.keeper import ConfigurationKeeper
from seed.sizing.sizer import Sizing
from seed.usage.cluster_api import ClusterApiInformers
from seed.usage.clusters import ClusterSources
from seed.usage.source import UsageSource

log = logging.getLogger(__name__)

PAUSE = 1.0  # seconds before trying again after a leadership that failed


class AllSources(Mapping[str, UsageSource]):
    """Of user clusters, of what the seed itself is for, and of projects' clusters."""

    def __init__(self, *parts: Mapping[str, UsageSource]) -> None:
        self._parts = parts

    def __getitem__(self, key: str) -> UsageSource:
        for part in self._parts:
            found = part.get(key)
            if found is not None:
                return found
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))


class Leader:
    def __init__(
        self,
        cluster: Cluster,
        catalog: Catalog,
        registry: AccountRegistry,
        store: Store,
        lease: Lease,
        desired: Callable[[UserCluster], WebhookConfiguration],
        sizing: Sizing,
        cluster_api: View,
        kubermatic: KubermaticView,
        desired_for_cluster_api: Callable[[], WebhookConfiguration],
        clusters: tuple[Kind, ...],
        desired_for_clusters: Callable[[], WebhookConfiguration],
        *,
        in_flight_window: float,
        on_request: RequestHook | None = None,
    ) -> None:
        self._cluster_api = cluster_api
        self._kubermatic = kubermatic
        self._desired_for_cluster_api = desired_for_cluster_api
        self._clusters = clusters
        self._desired_for_clusters = desired_for_clusters
        self._keepers: tuple[ConfigurationKeeper | Enforcement, ...] = ()  # on the seed itself
        self._cluster = cluster
        self._catalog = catalog
        self._registry = registry
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
        for keeper in self._keepers:
            keeper.changed()

    async def run(self) -> None:
        """Leads whenever the lease can be had. Cancelled: leaves it to the next replica at once."""
        while True:
            try:
                async with self._lease.hold() as term:
                    await self._lead(term)
                # Not a moment later: where nobody else took the lease, it is held on if sight of it is not lost.
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
            self._user_clusters, self._keepers = None, ()

    async def _work(self, term: Term) -> None:
        counting: Counting | None = None

        def changed(source: UsageSource, freed: bool) -> None:
            assert counting is not None, "sources start after counting was made"
            counting.changed(source, freed)

        def state_changed(source: UsageSource) -> None:
            accounts.look_again(source.project)

        status = SeedStatus(self._cluster, self._catalog)
        user_clusters = UserClusters(
            self._cluster,
            self._catalog,
            self._desired,
            self._sizing,
            on_change=changed,
            on_state=state_changed,
            on_proof=status.proven,
            on_request=self._on_request,
            on_reconcile=metrics.reconciled,
        )

        def cluster_api_proven() -> None:
            for source in feed.sources.values():
                state_changed(source)

        for_cluster_api = Enforcement(
            self._cluster,
            self._catalog,
            self._cluster_api,
            self._desired_for_cluster_api,
            self._lease.namespace,
            on_change=cluster_api_proven,
            on_proof=status.proven,
        )
        for_clusters = ConfigurationKeeper(self._cluster, self._desired_for_clusters)
        self._keepers = for_cluster_api, for_clusters
        feed = ClusterApiInformers(
            self._cluster,
            self._catalog,
            self._cluster_api,
            self._sizing,
            for_cluster_api,
            on_change=changed,
            on_state=state_changed,
        )
        clusters = ClusterSources(
            self._cluster, self._cluster_api.served, self._clusters, on_change=changed, on_state=state_changed
        )
        sources = AllSources(user_clusters.sources, feed.sources, clusters)

        def known(name: str) -> None:
            accounts.look_at(name)

        replicas = Replicas(self._cluster, self._lease.namespace, self._lease.name, self._catalog, known)
        accounts = Accounts(
            self._cluster,
            self._catalog,
            self._registry,
            self._store,
            sources,
            term=term.number,
            since=term.since,
            cold=not term.continuous,
            raise_term=self._lease.raise_term,
            in_flight_window=self._window,
            known=replicas.generation,
            on_reconcile=metrics.reconciled,
        )
        counting = Counting(
            self._cluster,
            self._catalog,
            self._registry,
            accounts,
            sources,
            in_flight_window=self._window,
            find_hosted=self._find_hosted,
        )
        self._user_clusters = user_clusters
        async with asyncio.TaskGroup() as group:
            group.create_task(accounts.run(), name="accounts")
            group.create_task(replicas.run(), name="replicas")
            group.create_task(counting.run(), name="counting")
            group.create_task(user_clusters.run(), name="user clusters")
            group.create_task(feed.run(), name="Cluster API")
            group.create_task(clusters.run(), name="clusters")
            group.create_task(status.run(), name="seed status")
            group.create_task(UnknownProjects(self._cluster, self._catalog).run(), name="unknown projects")
            group.create_task(for_clusters.run(), name="webhook configuration for clusters")

    async def _find_hosted(self, key: str) -> UserCluster | None:
        """By a consistent read. Raises ApiError."""
        view = self._kubermatic if is_of_kubermatic(key) else self._cluster_api
        return await view.find_hosted(key)


def _each(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
