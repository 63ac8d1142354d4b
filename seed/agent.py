"""One replica of the seed's agent: runs its parts and serves."""

from __future__ import annotations

import asyncio
import logging

from prometheus_client import REGISTRY

from common.api import namespaces_page, preview_pages
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.runtime import metrics
from common.runtime.flags import CommonOptions, UsageError
from common.runtime.followers import until_stopped, within_start
from common.runtime.own_loop import OwnLoop
from common.runtime.unexpected import kept_task
from common.server.health import Health
from common.server.page_access import PageReaders
from common.server.program import Program
from seed import collectors
from seed import metrics as observed
from seed.admission import decision_log
from seed.build import Agent, build, lease_of
from seed.cache.watches import Watches
from seed.controllers.leader import Leader
from seed.instance_types.prefetch import Prefetch
from seed.options import SeedOptions
from seed.previews.machine_types import KnownTypes
from seed.previews.needs import NeedsPages
from seed.usage.namespace_pages import NamespacePages

log = logging.getLogger(__name__)

LINGER = 1.0  # seconds in which callers learn from answers that their connection ends, before it is closed on them
START_TIMEOUT = 60.0  # seconds for the API server to answer at start; then the program ends and is started again


async def connect(options: CommonOptions, name: str) -> Cluster:
    try:
        if options.kubeconfig is None:
            return await Cluster.in_cluster(name=name, on_request=metrics.kubernetes_request)
        return await Cluster.from_kubeconfig_file(
            options.kubeconfig, name=name, context=options.context, on_request=metrics.kubernetes_request
        )
    except InvalidKubeconfig as error:
        raise UsageError(f"--kubeconfig: {error}") from error


def measure(agent: Agent) -> None:
    """What metrics are read from when somebody asks."""
    REGISTRY.register(collectors.UserClustersCollector(agent.replica.caches.clusters))
    metrics.watch_leader(lambda: agent.leader.leads)
    REGISTRY.register(collectors.AccountsCollector(agent.replica.caches.quotas, agent.replica.registry))
    REGISTRY.register(collectors.AccountWaitsCollector(lambda: agent.leader.account_waits))
    REGISTRY.register(collectors.NamespacesCollector(agent.replica.caches.quotas, lambda: agent.leader.sources))
    REGISTRY.register(collectors.FlavoursCollector(agent.flavours))
    observed.watch_waiting(lambda: agent.refusals.waiting)


def add_pages(health: Health, agent: Agent) -> None:
    """What is told to whoever may read it."""
    caches, leader = agent.replica.caches, agent.leader
    types = KnownTypes(agent.flavours, agent.replica.sizing, caches.clusters.clusters_of)
    namespaces = NamespacePages(caches.quotas, caches.clusters, leader.source, lambda: leader.leads)
    health.pages[decision_log.PATH] = agent.decisions.page
    health.pages[namespaces_page.PATH] = namespaces.page
    health.pages[preview_pages.MACHINE_TYPES] = types.page
    health.questions[preview_pages.NEEDS] = NeedsPages(caches.quotas, types).answer
    readers = PageReaders(agent.replica.cluster)
    health.may_read, health.may_ask = readers.may_read, readers.may_ask


def add_checks(health: Health, agent: Agent) -> None:
    """What must be so before this replica is ready."""
    checks = {
        "certificate": agent.certificates.not_ready,
        "webhook key": agent.key.not_ready,
        "caches": agent.replica.caches.watches.not_ready,
        "replica": agent.record.stale,
        "ledger": agent.ledger.not_ready,
        "lease": lambda: "no leader seen alive yet" if agent.replica.lease.trusted is None else None,
    }
    for name, check in checks.items():
        health.add(name, check)


def follow(agent: Agent) -> list[asyncio.Task[None]]:
    """What every replica runs all the time. None of it ends by itself."""
    return [
        asyncio.create_task(agent.certificates.run(), name="certificates"),
        asyncio.create_task(agent.key.run(), name="webhook key"),
        asyncio.create_task(agent.ledger.run(), name="ledgers"),
        kept_task("record of this replica", agent.record.run),
        kept_task("watches", lambda: listed_after(agent.record.kept, agent.replica.caches.watches)),
        kept_task("view of Cluster API", agent.replica.caches.cluster_api.run),
        kept_task("view of Kubermatic", agent.replica.caches.kubermatic.run),
        *(kept_task(name, run) for name, run in agent.follows.items()),
        kept_task("refusals", agent.refusals.run),
    ]


async def serve(running: Program, options: SeedOptions) -> None:
    running.health.add("webhook", lambda: "does not listen yet")
    cluster = await connect(options, options.seed_name)
    renewing = OwnLoop("lease")
    of_lease = await renewing.run(connect(options, options.seed_name))
    agent = build(options, cluster, lease_of(options, of_lease, renewing), lambda: running.health.stopping)
    measure(agent)
    add_pages(running.health, agent)
    add_checks(running.health, agent)
    followers = follow(agent)
    try:
        await within_start(
            START_TIMEOUT,
            followers,
            agent.key.wait_ready(START_TIMEOUT),
            agent.certificates.wait_ready(START_TIMEOUT),
            agent.replica.caches.watches.wait_synced(),
            agent.replica.caches.cluster_api.wait_settled(),
            agent.replica.caches.kubermatic.wait_settled(),
        )
        address = options.webhook_address
        await agent.server.start(address.host or None, address.port, agent.certificates.ssl_context)
        running.health.add("webhook", lambda: None)
        log.info("webhook serves", extra={"address": str(address), "seed": options.seed_name})
        leading = asyncio.create_task(agent.leader.run(), name="leader")
        prefetch = Prefetch(
            agent.flavours, agent.replica.caches.clusters.user_clusters.store.values, agent.replica.sizing.catalogue_of
        )
        followers += [leading, kept_task("prefetch", prefetch.run)]
        await until_stopped(running.stop, followers)
        await end_leading(agent.leader, leading)
        agent.server.end_soon()
        await asyncio.sleep(LINGER)
    finally:
        await agent.server.stop(options.stop_timeout)
        await close(agent, followers)
        await renewing.run(of_lease.close())
        await renewing.close()


async def close(agent: Agent, followers: list[asyncio.Task[None]]) -> None:
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    await agent.record.remove()  # not before: a replica without a record must not admit
    await agent.replica.registry.close()
    await agent.ledger.close()
    await agent.replica.sizing.close()
    await agent.replica.cluster.close()


async def end_leading(leader: Leader, leading: asyncio.Task[None]) -> None:
    """The lease is released while the webhook still answers."""
    await leader.confirm_accounts()
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def listed_after(kept: asyncio.Event, watches: Watches) -> None:
    """What was known by all other replicas when this one's record was made is in the lists."""
    await kept.wait()
    await watches.run()
