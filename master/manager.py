"""One replica of the master: it always keeps its caches; while it holds the lease it also works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.client.networks import PublicNetworks
from common.kube.controller.leader_election import Lease
from common.runtime import metrics, unexpected
from common.runtime.unexpected import kept_running
from common.runtime.waiting import first_of
from master.cache.informers import Caches
from master.notifications.controller import Notifications
from master.quotas.controller import Quotas
from master.quotas.events import QuotaEvents
from master.quotas.ledger_store import Ledgers
from master.reporting.seed_status import SeedStatuses
from master.reporting.tenant_status import Tenants
from master.seeds.registry import Seeds
from master.tenancy.default_quotas import DefaultQuotas
from master.tenancy.kubermatic_projects import KubermaticProjects
from master.tenancy.organization_namespaces import OrganizationNamespaces
from master.tenancy.quota_allocations import QuotaAllocations

log = logging.getLogger(__name__)

LEASE = "seedquota-master"

REFRESH_TIMEOUT = 30.0  # seconds for lists of all that the master's cluster has
PAUSE = 1.0  # seconds before trying again after a leadership that ended


class Master:
    """One replica. It always keeps the caches; while it holds the lease it also works."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        identity: str,
        lease: Lease | None = None,
        *,
        notification_networks: Iterable[str] = (),
    ) -> None:
        """`notification_networks`: beside public addresses, where receivers of QuotaNotifications may be."""
        self.leading: tuple[Seeds, Quotas] | None = None
        self._cluster = cluster
        self._namespace = namespace
        self._receivers = PublicNetworks(notification_networks)
        self._identity = identity
        self.caches = Caches(cluster, namespace)
        self.lease = lease or Lease(cluster, namespace, LEASE, identity)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.caches.run())
            group.create_task(self._terms())

    async def _terms(self) -> None:
        await self.caches.synced()
        while True:
            async with self.lease.hold() as term:
                log.info("leading", extra={"term": term.number})
                try:
                    await self._until_lost(self.lease.lost, doubtful=not term.settled)
                except* ApiError as errors:  # its API server went in the middle of beginning
                    log.warning("leading ended", extra={"term": term.number, "error": str(_first(errors))})
                except* Exception as errors:  # noqa: BLE001 (logged; the HTTP API and the other replicas go on)
                    unexpected.tell("leader", "", errors)
                log.info("no longer leading", extra={"term": term.number})
            await asyncio.sleep(PAUSE)

    async def _until_lost(self, lost: asyncio.Event, *, doubtful: bool) -> None:
        try:
            (await first_of(self._lead(doubtful=doubtful), lost.wait())).result()
        finally:
            self.leading = None

    async def _lead(self, *, doubtful: bool) -> None:
        """Begins from what is durable; nothing is kept from an earlier term. `doubtful`: see Quotas."""
        await self.caches.refresh(REFRESH_TIMEOUT)
        seeds = Seeds(
            self.caches,
            self._namespace,
            master=self.lease.uid,
            on_request=metrics.kubernetes_request,
            on_reconcile=metrics.reconciled,
        )
        ledgers = Ledgers(self._cluster, self._namespace)
        events = QuotaEvents(self._cluster, self._identity)
        quotas = Quotas(
            self._cluster,
            self.caches,
            seeds,
            ledgers,
            events,
            doubtful=doubtful,
            on_settled=self.lease.settle,
            on_reconcile=metrics.reconciled,
        )
        statuses = SeedStatuses(
            self._cluster, self.caches, seeds, quotas, self._namespace, on_reconcile=metrics.reconciled
        )
        namespaces = OrganizationNamespaces(
            self._cluster,
            self.caches,
            on_change=lambda organization: organization_changed(organization),  # noqa: PLW0108 (it is defined below)
            on_reconcile=metrics.reconciled,
        )
        tenants = Tenants(
            self._cluster, self.caches, seeds, namespace_of=namespaces.of, on_reconcile=metrics.reconciled
        )
        defaults = DefaultQuotas(self._cluster, self.caches, on_reconcile=metrics.reconciled)
        kubermatic = KubermaticProjects(self._cluster, self.caches, on_reconcile=metrics.reconciled)
        allocations = QuotaAllocations(self._cluster, self.caches, on_reconcile=metrics.reconciled)

        notifications = Notifications(
            self._cluster,
            self.caches,
            namespaces,
            self._namespace,
            self._receivers,
            on_reconcile=metrics.reconciled,
        )

        def organization_changed(organization: str) -> None:
            tenants.settled("organizations", organization)
            notifications.organization_changed(organization)

        def seed_changed(seed: str) -> None:
            statuses.look(seed)
            quotas.review_all()
            tenants.review_all()

        def copy_settled(seed: str, plural: str, name: str) -> None:
            quotas.copy_settled(seed, plural, name)
            tenants.settled(plural, name)

        seeds.on_seed, seeds.on_settled, seeds.on_copy = seed_changed, copy_settled, quotas.copy_changed
        self.leading = seeds, quotas
        async with asyncio.TaskGroup() as group:
            parts = (seeds, quotas, statuses, tenants, namespaces, defaults, events, kubermatic, allocations)
            for work in (*parts, notifications):
                part = type(work).__name__
                group.create_task(kept_running(part, work.run, ends=(ApiError,)), name=part)


def _first(errors: BaseExceptionGroup[ApiError]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
