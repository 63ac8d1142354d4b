"""How the parts of one replica of the seed's agent are made from its options, and connected."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from common.kube.client.api_client import Cluster
from common.kube.client.networks import Networks
from common.kube.client.reach import Reach
from common.kube.controller.leader_election import Lease
from common.runtime import metrics
from common.runtime.flags import UsageError
from common.runtime.listeners import Listeners
from common.runtime.own_loop import OwnLoop
from common.server.http_server import HttpServer
from seed import collectors
from seed import metrics as observed
from seed.accounts.registry import AccountRegistry
from seed.admission.admitter import Admission
from seed.admission.decision_log import Decisions
from seed.cache.cluster_api import View
from seed.cache.clusters import ClusterCache
from seed.cache.kubermatic import KubermaticView
from seed.cache.quotas import QuotaCache
from seed.cache.replicas import Record
from seed.cache.source_keys import OWN_API_SERVER
from seed.cache.user_cluster_clients import Connections
from seed.cache.watches import Watches
from seed.controllers.leader import Leader
from seed.controllers.term import Replica
from seed.controllers.wanted import WantedConfigurations
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import InvalidBundle, Transport, trusting
from seed.instance_types.settings import SettingsReader
from seed.kinds.allocations.admission import AllocationAdmission
from seed.kinds.allocations.configuration import CALLER as ALLOCATIONS_CALLER
from seed.kinds.allocations.organizations import OrganizationCache
from seed.kinds.allocations.webhook import AllocationWebhook
from seed.kinds.clusters.configuration import CALLER as CLUSTERS_CALLER
from seed.kinds.clusters.evaluator import Kind, kinds
from seed.kinds.clusters.same_cluster import DuplicateClusters
from seed.kinds.clusters.webhook import ClusterWebhook
from seed.kinds.machines.admission import MachineAdmission
from seed.kinds.machines.cluster_api_configuration import CALLER as CLUSTER_API_CALLER
from seed.kinds.machines.cluster_api_webhook import ClusterApiWebhook
from seed.kinds.machines.rollouts import Rollouts, in_cluster_api, in_user_clusters
from seed.kinds.machines.scale_webhook import ScaleWebhook
from seed.kinds.machines.webhook import MachineWebhook, StampWebhook
from seed.kinds.namespaces.admission import NamespacedAdmission
from seed.kinds.namespaces.cache import NamespaceCache
from seed.kinds.namespaces.webhook import NamespacedObjectWebhook
from seed.ledger.backend import ChosenStore, redis_access
from seed.notifications.refusals import Refusals
from seed.options import SeedOptions
from seed.registration.certificates import Served, certificates_of
from seed.registration.token import WebhookKey
from seed.sizing.sizer import Sizing
from seed.sizing.stamper import Stamping
from seed.webhooks.endpoint import Endpoint, Webhook
from seed.webhooks.review import MAX_BODY
from seed.webhooks.router import Endpoints, identify, route
from seed.webhooks.turns import OBJECTS_TO_MACHINES, Turns

T = TypeVar("T")

LEASE_NAME = "seedquota-seed"


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What a replica knows by watching. `watches` are those of quotas and user clusters."""

    quotas: QuotaCache
    clusters: ClusterCache
    watches: Watches
    cluster_api: View
    kubermatic: KubermaticView
    namespaces: NamespaceCache
    organizations: OrganizationCache


def reach_of(options: SeedOptions) -> Reach:
    return Reach(Networks(options.user_cluster_networks), metrics.kubernetes_request)


def caches_of(options: SeedOptions, cluster: Cluster) -> Caches:
    quotas = QuotaCache(cluster)
    clusters = ClusterCache(cluster, quotas, (options.namespace, *options.exempt_namespaces))
    view = View(cluster, clusters, options.project_label)
    return Caches(
        quotas=quotas,
        clusters=clusters,
        watches=Watches(*quotas.reflectors, *clusters.reflectors),
        cluster_api=view,
        kubermatic=KubermaticView(cluster, clusters, view.served),
        namespaces=NamespaceCache(cluster, quotas, clusters, reach=reach_of(options)),
        organizations=OrganizationCache(cluster, quotas),
    )


def sizing_of(options: SeedOptions, cluster: Cluster, key: WebhookKey) -> tuple[FlavourCache, Sizing]:
    """Raises UsageError."""
    try:
        transport = Transport(ssl_context=trusting(options.providers_ca_file))
    except InvalidBundle as error:
        raise UsageError(f"--providers-ca-file: {error}") from None
    shared = None
    if options.redis_url is not None:
        from seed.instance_types.redis_cache import SharedSizes  # noqa: PLC0415 (loads the client library, which few need)

        shared = SharedSizes(options.redis_url, redis_access(options), options.seed_name)
    cache = FlavourCache(transport, shared, on_lookup=observed.flavour_lookup, on_fetch=observed.provider_request)
    settings = SettingsReader(cluster, reach=reach_of(options))
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
    options: SeedOptions,
    cluster: Cluster,
    caches: Caches,
    registry: AccountRegistry,
    sizing: Sizing,
    connections: Connections,
    decisions: Decisions,
    stale: Callable[[], str | None],
) -> Endpoints:
    """All webhooks, by the path that each is called at."""
    quotas, clusters, view = caches.quotas, caches.clusters, caches.cluster_api
    copies = options.local_copies == "on"
    admission = Admission(quotas, registry, stale)
    rollouts = Rollouts()
    machines = MachineAdmission(quotas, admission, sizing, in_user_clusters(rollouts, connections, sizing))
    of_cluster_api = MachineAdmission(quotas, admission, sizing, in_cluster_api(rollouts, cluster, view, sizing))
    twins = DuplicateClusters(cluster, clusters, view)
    unlimited = {ALLOCATIONS_CALLER, CLUSTER_API_CALLER, CLUSTERS_CALLER, OWN_API_SERVER}
    of_machines = Turns(options.webhook_requests_per_second, unlimited)
    of_objects = Turns(OBJECTS_TO_MACHINES * options.webhook_requests_per_second, unlimited)
    allocations = AllocationAdmission(cluster, quotas, caches.organizations, admission)

    def endpoint(webhook: Webhook[T], turns: Turns = of_machines) -> Endpoint[T]:
        return Endpoint(webhook, observed.decision, decisions, turns)

    return {
        "machines": endpoint(MachineWebhook(clusters, machines, local_copies=copies)),
        "stamp": endpoint(StampWebhook(Stamping(clusters, sizing))),
        "cluster-api": endpoint(ClusterApiWebhook(view, of_cluster_api)),
        "allocations": endpoint(AllocationWebhook(allocations)),
        "clusters": endpoint(ClusterWebhook(quotas, admission, kinds(options.project_label), twins)),
        "namespaces": endpoint(
            NamespacedObjectWebhook(
                clusters,
                NamespacedAdmission(admission, caches.namespaces),
                lambda: quotas.own_conditions,
                local_copies=copies,
            ),
            of_objects,
        ),
        "scale": endpoint(ScaleWebhook(quotas, clusters, registry, sizing, connections, view, local_copies=copies)),
    }


def server_of(endpoints: Endpoints, key: WebhookKey, stopping: Callable[[], bool]) -> HttpServer:
    calls = identify(endpoints, key.verify)
    return HttpServer(route(endpoints, key.verify), max_body=MAX_BODY, identify=calls, stopping=stopping)


def identity_of(options: SeedOptions) -> str:
    return options.identity or socket.gethostname()


def lease_of(options: SeedOptions, cluster: Cluster, loop: OwnLoop) -> Lease:
    """`cluster` was made on `loop`."""
    return Lease(
        cluster,
        options.namespace,
        LEASE_NAME,
        identity_of(options),
        duration=options.lease_duration,
        renew_deadline=options.lease_duration * 2 / 3,
        retry=min(2.0, options.lease_duration / 6),
        loop=loop,
    )


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The parts of one replica, connected with each other. `follow` and `serve` run them."""

    cluster: Cluster
    caches: Caches
    ledger: ChosenStore
    registry: AccountRegistry
    key: WebhookKey
    certificates: Served
    flavours: FlavourCache
    sizing: Sizing
    lease: Lease
    record: Record
    leader: Leader
    connections: Connections
    refusals: Refusals
    decisions: Decisions
    server: HttpServer


def refusals_to(cluster: Cluster, caches: Caches, registry: AccountRegistry, identity: str, reach: Reach) -> Refusals:
    return Refusals(
        cluster,
        caches.quotas,
        caches.clusters,
        registry,
        identity,
        reach=reach,
        count=observed.owners_notified,
    )


def build(options: SeedOptions, cluster: Cluster, lease: Lease, stopping: Callable[[], bool]) -> Agent:
    """Raises UsageError."""
    identity = identity_of(options)
    caches = caches_of(options, cluster)
    ledger = ChosenStore(options, cluster, options.seed_name, lambda: lease.held, options.lease_duration)
    registry = AccountRegistry(
        caches.quotas,
        caches.clusters,
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
        service=options.webhook_service.name if options.webhook_service is not None else None,
        on_bundle=configuration.call,
    )
    flavours, sizing = sizing_of(options, cluster, key)
    cluster_kinds = kinds(options.project_label)
    leader = Leader(
        Replica(
            cluster=cluster,
            quota_cache=caches.quotas,
            cluster_cache=caches.clusters,
            registry=registry,
            store=ledger.store,
            lease=lease,
            wanted=wanted_of(options, key, certificates, cluster_kinds),
            sizing=sizing,
            cluster_api=caches.cluster_api,
            kubermatic=caches.kubermatic,
            kinds=cluster_kinds,
            in_flight_window=options.in_flight_window,
            local_copies=options.local_copies == "on",
            reach=reach_of(options),
        )
    )
    configuration.add(leader.configuration_changed)
    record = Record(cluster, options.namespace, LEASE_NAME, identity, caches.quotas, caches.watches)
    connections = Connections(cluster, reach=reach_of(options))
    refusals = refusals_to(cluster, caches, registry, identity, reach_of(options))
    on_refusal = collectors.refusals_of(caches.quotas)
    decisions = Decisions(on_decision=refusals.decided, on_pod=refusals.pod_decided, on_refusal=on_refusal)
    endpoints = endpoints_of(options, cluster, caches, registry, sizing, connections, decisions, record.stale)
    return Agent(
        cluster=cluster,
        caches=caches,
        ledger=ledger,
        registry=registry,
        key=key,
        certificates=certificates,
        flavours=flavours,
        sizing=sizing,
        lease=lease,
        record=record,
        leader=leader,
        connections=connections,
        refusals=refusals,
        decisions=decisions,
        server=server_of(endpoints, key, stopping),
    )
