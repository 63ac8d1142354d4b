"""seedquota-master: splits each quota's limit over the seeds, and shows everyone the same sums."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from dataclasses import dataclass
from typing import Annotated

from prometheus_client import REGISTRY

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.controller.leader_election import Lease
from common.runtime import flags, metrics, program
from common.runtime.flags import CommonOptions, Flag, UsageError
from common.runtime.program import Program
from master.cache.informers import Caches
from master.quotas.controller import Quotas
from master.quotas.events import QuotaEvents
from master.quotas.ledger_store import Ledgers
from master.reporting.metrics import MasterMetrics
from master.reporting.seed_status import SeedStatuses
from master.reporting.tenant_status import Tenants
from master.seeds.registry import Seeds
from master.tenancy.default_quotas import DefaultQuotas
from master.tenancy.kubermatic_projects import KubermaticProjects

log = logging.getLogger(__name__)

LEASE = "seedquota-master"
DESCRIPTION = (
    "Splits each quota's limit over the seeds, so that it is never exceeded, and shows everyone the same sums."
)
REFRESH_TIMEOUT = 30.0  # seconds for lists of all that the master's cluster has
PAUSE = 1.0  # seconds before trying again after a leadership that ended


@dataclass(frozen=True, kw_only=True)
class MasterOptions(CommonOptions):
    identity: Annotated[
        str | None,
        Flag(flags.text, "name of this replica in leader election; unset: the host's name and a random part"),
    ] = None


class Master:
    """One replica. It always keeps the caches; while it holds the lease it also works."""

    def __init__(self, cluster: Cluster, namespace: str, identity: str) -> None:
        self.leading: tuple[Seeds, Quotas] | None = None
        self._cluster = cluster
        self._namespace = namespace
        self._identity = identity
        self.caches = Caches(cluster, namespace)
        self.lease = Lease(cluster, namespace, LEASE, identity)

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
                log.info("no longer leading", extra={"term": term.number})
            await asyncio.sleep(PAUSE)

    async def _until_lost(self, lost: asyncio.Event, *, doubtful: bool) -> None:
        leading = asyncio.create_task(self._lead(doubtful=doubtful), name="leading")
        losing = asyncio.create_task(lost.wait())
        try:
            await asyncio.wait((leading, losing), return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
        finally:
            leading.cancel()
            losing.cancel()
            await asyncio.gather(leading, losing, return_exceptions=True)
            self.leading = None

    async def _lead(self, *, doubtful: bool) -> None:
        """Begins from what is durable; nothing is kept from an earlier term. `doubtful`: see Quotas."""
        await self.caches.refresh(REFRESH_TIMEOUT)
        seeds = Seeds(
            self.caches, self._namespace, on_request=metrics.kubernetes_request, on_reconcile=metrics.reconciled
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
        statuses = SeedStatuses(self._cluster, self.caches, seeds, quotas, on_reconcile=metrics.reconciled)
        tenants = Tenants(self._cluster, self.caches, seeds, on_reconcile=metrics.reconciled)
        defaults = DefaultQuotas(self._cluster, self.caches, on_reconcile=metrics.reconciled)
        kubermatic = KubermaticProjects(self._cluster, self.caches, on_reconcile=metrics.reconciled)

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
            for work in (seeds, quotas, statuses, tenants, defaults, events, kubermatic):
                group.create_task(work.run(), name=type(work).__name__)


def _first(errors: BaseExceptionGroup[ApiError]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def connect(given: MasterOptions) -> Cluster:
    hook = metrics.kubernetes_request
    try:
        if given.kubeconfig is None:
            return await Cluster.in_cluster(name="master", on_request=hook)
        return await Cluster.from_kubeconfig_file(
            given.kubeconfig, name="master", context=given.context, on_request=hook
        )
    except InvalidKubeconfig as error:
        raise UsageError(f"cannot connect to the master cluster: {error}") from None


async def serve(running: Program, given: MasterOptions) -> None:
    running.health.add("caches", lambda: "not connected yet")
    cluster = await connect(given)
    identity = given.identity or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    master = Master(cluster, given.namespace, identity)
    running.health.add("caches", master.caches.not_synced)
    collector = MasterMetrics(lambda: master.leading)
    REGISTRY.register(collector)
    working = asyncio.create_task(master.run(), name="master")
    stopping = asyncio.create_task(running.stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
        REGISTRY.unregister(collector)
        await cluster.close()


def main() -> None:
    given = flags.parse(MasterOptions, "seedquota-master", DESCRIPTION)
    sys.exit(program.run("seedquota-master", given, lambda running: serve(running, given)))


if __name__ == "__main__":
    main()
