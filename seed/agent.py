"""One replica of the seed's agent: builds everything and serves."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import REGISTRY

from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.controller.leader_election import Lease
from common.runtime import metrics
from common.runtime.flags import CommonOptions, UsageError
from common.runtime.followers import until_stopped, within_start
from common.runtime.health import Health
from common.runtime.listeners import Listeners
from common.runtime.program import Program
from common.server.http_server import HttpServer
from common.server.page_access import PageReaders
from seed import collectors
from seed import metrics as observed
from seed.accounts.registry import AccountRegistry
from seed.admission.admitter import Admission
from seed.admission.decision_log import PATH, Decisions
from seed.admission.machines import MachineAdmission
from seed.admission.namespaced_objects import NamespacedAdmission
from seed.admission.rollouts import Rollouts, in_cluster_api, in_user_clusters
from seed.cache.cluster_api import View
from seed.cache.clusters import ClusterCache
from seed.cache.kubermatic import KubermaticView
from seed.cache.namespaces import NamespaceCache
from seed.cache.quotas import QuotaCache
from seed.cache.replicas import Record
from seed.cache.same_cluster import DuplicateClusters
from seed.cache.source_keys import OWN_API_SERVER
from seed.cache.user_cluster_clients import Connections
from seed.cache.watches import Watches
from seed.controllers.leader import Leader
from seed.controllers.term import Replica
from seed.evaluators.clusters import Kind, kinds
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import InvalidBundle, Transport, trusting
from seed.instance_types.prefetch import Prefetch
from seed.instance_types.redis_cache import SharedSizes
from seed.instance_types.settings import SettingsReader
from seed.ledger.backend import ChosenStore, redis_access
from seed.notifications.refusals import Refusals
from seed.options import SeedOptions
from seed.registration import cluster_api, clusters
from seed.registration.certificates import Served, certificates_of
from seed.registration.token import WebhookKey
from seed.registration.wanted import WantedConfigurations
from seed.sizing.sizer import Sizing
from seed.sizing.stamper import Stamping
from seed.webhooks.cluster_api import ClusterApiWebhook
from seed.webhooks.clusters import ClusterWebhook
from seed.webhooks.endpoint import Endpoint, Webhook
from seed.webhooks.machines import MachineWebhook, StampWebhook
from seed.webhooks.namespaced_objects import NamespacedObjectWebhook
from seed.webhooks.review import MAX_BODY
from seed.webhooks.router import Endpoints, identify, route
from seed.webhooks.scale import ScaleWebhook
from seed.webhooks.turns import Turns

log = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_NAME = "seedquota-seed"

LINGER = 1.0  # seconds in which callers learn from answers that their connection ends, before it is closed on them
START_TIMEOUT = 60.0  # seconds for the API server to answer at start; then the program ends and is started again


def sizing_of(options: SeedOptions, cluster: Cluster, key: WebhookKey) -> tuple[FlavourCache, Sizing]:
    """Raises UsageError."""
    try:
        transport = Transport(ssl_context=trusting(options.providers_ca_file))
    except InvalidBundle as error:
        raise UsageError(f"--providers-ca-file: {error}") from None
    shared = None
    if options.redis_url is not None:
        shared = SharedSizes(options.redis_url, redis_access(options), options.seed_name)
    cache = FlavourCache(transport, shared, on_lookup=observed.flavour_lookup, on_fetch=observed.provider_request)
    settings = SettingsReader(cluster, on_request=metrics.kubernetes_request)
    return cache, Sizing(cache, settings, key.seal, key.check_seal, options.providers)


def wanted_of(
    options: SeedOptions, key: WebhookKey, certificates: Served, cluster_kinds: Sequence[Kind]
) -> WantedConfigurations:
    group = options.break_glass_group
    return WantedConfigurations(
        key,
        certificates,
        cluster_kinds,
        base_url=options.webhook_url,
        timeout_seconds=options.webhook_timeout,
        seed_break_glass_group=group if options.seed_break_glass == "on" else "",
        user_cluster_break_glass_group=group if options.user_cluster_break_glass == "on" else "",
        seed_service=(options.namespace, options.webhook_service) if options.webhook_service is not None else None,
    )


def endpoints_of(
    cluster: Cluster,
    connections: Connections,
    quota_cache: QuotaCache,
    cluster_cache: ClusterCache,
    registry: AccountRegistry,
    sizing: Sizing,
    view: View,
    cluster_kinds: Sequence[Kind],
    decisions: Decisions,
    stale: Callable[[], str | None],
    turns: Turns,
    namespaces: NamespaceCache,
    local_copies: bool,
) -> Endpoints:
    """All webhooks, by the path that each is called at."""
    admission = Admission(quota_cache, registry, stale)
    rollouts = Rollouts()
    machines = MachineAdmission(quota_cache, admission, sizing, in_user_clusters(rollouts, connections, sizing))
    of_cluster_api = MachineAdmission(quota_cache, admission, sizing, in_cluster_api(rollouts, cluster, view, sizing))
    twins = DuplicateClusters(cluster, cluster_cache, view)

    def endpoint(webhook: Webhook[T]) -> Endpoint[T]:
        return Endpoint(webhook, observed.decision, decisions, turns)

    return {
        "machines": endpoint(MachineWebhook(cluster_cache, machines, local_copies=local_copies)),
        "stamp": endpoint(StampWebhook(Stamping(cluster_cache, sizing))),
        "cluster-api": endpoint(ClusterApiWebhook(view, of_cluster_api)),
        "clusters": endpoint(ClusterWebhook(quota_cache, admission, cluster_kinds, twins)),
        "namespaces": endpoint(NamespacedObjectWebhook(cluster_cache, NamespacedAdmission(admission, namespaces))),
        "scale": endpoint(
            ScaleWebhook(quota_cache, cluster_cache, registry, sizing, connections, view, local_copies=local_copies)
        ),
    }


def server_of(endpoints: Endpoints, key: WebhookKey, stopping: Callable[[], bool]) -> HttpServer:
    calls = identify(endpoints, key.verify)
    return HttpServer(route(endpoints, key.verify), max_body=MAX_BODY, identify=calls, stopping=stopping)


async def connect(options: CommonOptions, name: str) -> Cluster:
    try:
        if options.kubeconfig is None:
            return await Cluster.in_cluster(name=name, on_request=metrics.kubernetes_request)
        return await Cluster.from_kubeconfig_file(
            options.kubeconfig, name=name, context=options.context, on_request=metrics.kubernetes_request
        )
    except InvalidKubeconfig as error:
        raise UsageError(f"--kubeconfig: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The parts of one replica, connected with each other. `follow` and `serve` run them."""

    cluster: Cluster
    quota_cache: QuotaCache
    cluster_cache: ClusterCache
    watches: Watches
    ledger: ChosenStore
    registry: AccountRegistry
    key: WebhookKey
    certificates: Served
    cache: FlavourCache
    sizing: Sizing
    view: View
    kubermatic: KubermaticView
    namespaces: NamespaceCache
    lease: Lease
    record: Record
    leader: Leader
    connections: Connections
    refusals: Refusals
    decisions: Decisions
    server: HttpServer


def build(options: SeedOptions, cluster: Cluster, stopping: Callable[[], bool]) -> Agent:
    """Raises UsageError."""
    identity = options.identity or socket.gethostname()
    lease = lease_of(options, cluster, identity)
    quota_cache = QuotaCache(cluster)
    cluster_cache = ClusterCache(cluster, quota_cache, options.namespace)
    watches = Watches(*quota_cache.reflectors, *cluster_cache.reflectors)
    ledger = ChosenStore(options, cluster, options.seed_name, lambda: lease.held, options.lease_duration)
    registry = AccountRegistry(
        quota_cache,
        cluster_cache,
        ledger.store,
        on_write=observed.ledger_write,
        on_conflict=observed.ledger_conflict,
        trusted=lambda: lease.trusted,
    )
    configuration: Listeners[[]] = Listeners()  # called when what webhook configurations should be has changed
    key = WebhookKey(cluster, options.namespace, on_change=configuration.call)
    certificates = certificates_of(
        cluster,
        options.namespace,
        options.webhook_tls_directory,
        base_url=options.webhook_url,
        service=options.webhook_service,
        on_bundle=configuration.call,
    )
    cache, sizing = sizing_of(options, cluster, key)
    view = View(cluster, cluster_cache, options.project_label)
    kubermatic = KubermaticView(cluster, cluster_cache, view.served)
    cluster_kinds = kinds(options.project_label)
    leader = Leader(
        Replica(
            cluster=cluster,
            quota_cache=quota_cache,
            cluster_cache=cluster_cache,
            registry=registry,
            store=ledger.store,
            lease=lease,
            wanted=wanted_of(options, key, certificates, cluster_kinds),
            sizing=sizing,
            cluster_api=view,
            kubermatic=kubermatic,
            kinds=cluster_kinds,
            in_flight_window=options.in_flight_window,
            local_copies=options.local_copies == "on",
            on_request=metrics.kubernetes_request,
        )
    )
    configuration.add(leader.configuration_changed)
    namespaces = NamespaceCache(cluster, quota_cache, cluster_cache, on_request=metrics.kubernetes_request)
    record = Record(cluster, options.namespace, LEASE_NAME, identity, quota_cache, watches)
    connections = Connections(cluster, on_request=metrics.kubernetes_request)
    refusals = Refusals(
        cluster,
        quota_cache,
        cluster_cache,
        registry,
        identity,
        on_request=metrics.kubernetes_request,
        count=observed.owners_notified,
    )
    decisions = Decisions(on_decision=refusals.decided, on_refusal=collectors.refusals_of(quota_cache))
    turns = Turns(options.webhook_requests_per_second, {cluster_api.CALLER, clusters.CALLER, OWN_API_SERVER})
    copies = options.local_copies == "on"
    endpoints = endpoints_of(
        cluster,
        connections,
        quota_cache,
        cluster_cache,
        registry,
        sizing,
        view,
        cluster_kinds,
        decisions,
        record.stale,
        turns,
        namespaces,
        copies,
    )
    return Agent(
        cluster=cluster,
        quota_cache=quota_cache,
        cluster_cache=cluster_cache,
        watches=watches,
        ledger=ledger,
        registry=registry,
        key=key,
        certificates=certificates,
        cache=cache,
        sizing=sizing,
        view=view,
        kubermatic=kubermatic,
        namespaces=namespaces,
        lease=lease,
        record=record,
        leader=leader,
        connections=connections,
        refusals=refusals,
        decisions=decisions,
        server=server_of(endpoints, key, stopping),
    )


def measure(agent: Agent) -> None:
    """What metrics are read from when somebody asks."""
    REGISTRY.register(collectors.UserClustersCollector(agent.cluster_cache))
    metrics.watch_leader(lambda: agent.leader.leads)
    REGISTRY.register(collectors.AccountsCollector(agent.quota_cache, agent.registry))
    REGISTRY.register(collectors.FlavoursCollector(agent.cache))
    observed.watch_waiting(lambda: agent.refusals.waiting)


def add_checks(health: Health, agent: Agent) -> None:
    """What must be so before this replica is ready."""
    checks = {
        "certificate": agent.certificates.not_ready,
        "webhook key": agent.key.not_ready,
        "caches": agent.watches.not_ready,
        "replica": agent.record.stale,
        "ledger": agent.ledger.not_ready,
        "lease": lambda: "no leader seen alive yet" if agent.lease.trusted is None else None,
    }
    for name, check in checks.items():
        health.add(name, check)


def follow(agent: Agent) -> list[asyncio.Task[None]]:
    """What every replica runs all the time. None of it ends by itself."""
    return [
        asyncio.create_task(agent.certificates.run(), name="certificates"),
        asyncio.create_task(agent.key.run(), name="webhook key"),
        asyncio.create_task(agent.ledger.run(), name="ledgers"),
        asyncio.create_task(agent.record.run(), name="record of this replica"),
        asyncio.create_task(listed_after(agent.record.kept, agent.watches), name="watches"),
        asyncio.create_task(agent.view.run(), name="view of Cluster API"),
        asyncio.create_task(agent.kubermatic.run(), name="view of Kubermatic"),
        asyncio.create_task(agent.namespaces.run(), name="namespaces"),
        asyncio.create_task(agent.connections.run(), name="connections to user clusters"),
        asyncio.create_task(agent.refusals.run(), name="refusals"),
    ]


async def serve(running: Program, options: SeedOptions) -> None:
    running.health.add("webhook", lambda: "does not listen yet")
    cluster = await connect(options, options.seed_name)
    agent = build(options, cluster, lambda: running.health.stopping)
    measure(agent)
    running.health.pages[PATH] = agent.decisions.page
    running.health.may_read = PageReaders(cluster).may_read
    add_checks(running.health, agent)
    followers = follow(agent)
    try:
        await within_start(
            START_TIMEOUT,
            followers,
            agent.key.wait_ready(START_TIMEOUT),
            agent.certificates.wait_ready(START_TIMEOUT),
            agent.watches.wait_synced(),
            agent.view.wait_settled(),
            agent.kubermatic.wait_settled(),
        )
        address = options.webhook_address
        await agent.server.start(address.host or None, address.port, agent.certificates.ssl_context)
        running.health.add("webhook", lambda: None)
        log.info("webhook serves", extra={"address": str(address), "seed": options.seed_name})
        leading = asyncio.create_task(agent.leader.run(), name="leader")
        prefetch = Prefetch(agent.cache, agent.cluster_cache.user_clusters.store.values, agent.sizing.catalogue_of)
        followers += [leading, asyncio.create_task(prefetch.run(), name="prefetch")]
        await until_stopped(running.stop, followers)
        await end_leading(agent.leader, leading)
        agent.server.end_soon()
        await asyncio.sleep(LINGER)
    finally:
        await agent.server.stop(options.stop_timeout)
        await close(agent, followers)


async def close(agent: Agent, followers: list[asyncio.Task[None]]) -> None:
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    await agent.record.remove()  # not before: a replica without a record must not admit
    await agent.registry.close()
    await agent.ledger.close()
    await agent.sizing.close()
    await agent.cluster.close()


def lease_of(options: SeedOptions, cluster: Cluster, identity: str) -> Lease:
    return Lease(
        cluster,
        options.namespace,
        LEASE_NAME,
        identity,
        duration=options.lease_duration,
        renew_deadline=options.lease_duration * 2 / 3,
        retry=min(2.0, options.lease_duration / 6),
    )


async def end_leading(leader: Leader, leading: asyncio.Task[None]) -> None:
    """The lease is released while the webhook still answers."""
    await leader.confirm_accounts()
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def listed_after(kept: asyncio.Event, watches: Watches) -> None:
    """What was known by all other replicas when this one's record was made is in the lists."""
    await kept.wait()
    await watches.run()
