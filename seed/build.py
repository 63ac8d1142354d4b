"""How the parts of one replica of the seed's agent are made from its options, and connected."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
from seed.cache.replicas import Record, blocks_allowed
from seed.cache.user_cluster_clients import Connections
from seed.cache.watches import Watches
from seed.controllers.leader import Leader
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import InvalidBundle, Transport, trusting
from seed.instance_types.settings import SettingsReader
from seed.kinds.kind import Caches, Parts, Replica, Run
from seed.kinds.registry import KINDS, OF_PROJECTS
from seed.ledger.backend import ChosenStore, redis_access
from seed.model.source_key import OWN_API_SERVER
from seed.notifications.refusals import Refusals
from seed.options import SeedOptions
from seed.registration.certificates import ServingCertificates, certificates_of
from seed.registration.token import WebhookKey
from seed.registration.wanted import WantedConfigurations
from seed.sizing.sizer import Sizing
from seed.webhooks.endpoint import Endpoint
from seed.webhooks.review import MAX_BODY
from seed.webhooks.router import Endpoints, identify, route
from seed.webhooks.turns import Turns

LEASE_NAME = "seedquota-seed"


def reach_of(options: SeedOptions) -> Reach:
    return Reach(Networks(options.user_cluster_networks), metrics.kubernetes_request)


def caches_of(options: SeedOptions, cluster: Cluster) -> Caches:
    quotas = QuotaCache(cluster)
    clusters = ClusterCache(cluster, quotas, (options.namespace, *options.exempt_namespaces), of_projects=OF_PROJECTS)
    view = View(cluster, clusters, options.project_label)
    return Caches(
        quotas=quotas,
        clusters=clusters,
        watches=Watches(*quotas.reflectors, *clusters.reflectors),
        cluster_api=view,
        kubermatic=KubermaticView(cluster, clusters, view.served),
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


def wanted_of(options: SeedOptions, key: WebhookKey, certificates: ServingCertificates) -> WantedConfigurations:
    group = options.break_glass_group
    return WantedConfigurations(
        key,
        certificates,
        base_url=options.webhook_url,
        timeout_seconds=options.webhook_timeout,
        seed_break_glass_group=group if options.seed_break_glass == "on" else "",
        user_cluster_break_glass_group=group if options.user_cluster_break_glass == "on" else "",
        seed_service=(options.namespace, options.webhook_service) if options.webhook_service is not None else None,
    )


def endpoints_of(parts: Parts, decisions: Decisions) -> tuple[Endpoints, dict[str, Run]]:
    """All webhooks, by the path that each is called at, and what is kept up to date for them."""
    per_second = parts.replica.options.webhook_requests_per_second
    unlimited = {OWN_API_SERVER, *(kind.of_seed.caller for kind in KINDS if kind.of_seed is not None)}
    turns: dict[int, Turns] = {}
    endpoints: dict[str, Endpoint[Any]] = {}
    follows: dict[str, Run] = {}
    for kind in KINDS:
        serving = kind.serving(parts)
        times = serving.requests_to_machines
        shared = turns.setdefault(times, Turns(times * per_second, unlimited))
        for path, webhook in serving.webhooks.items():
            endpoints[path] = Endpoint(webhook, observed.decision, decisions, shared)
        follows |= serving.follows
    return endpoints, follows


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

    replica: Replica
    ledger: ChosenStore
    key: WebhookKey
    certificates: ServingCertificates
    flavours: FlavourCache
    record: Record
    leader: Leader
    refusals: Refusals
    decisions: Decisions
    follows: dict[str, Run]  # what is kept up to date for the webhooks, by name
    server: HttpServer


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
        reserve_ahead=lambda term: options.reserve_ahead == "on" and blocks_allowed(lease.seen, term),
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
    reach = reach_of(options)
    replica = Replica(
        options=options,
        cluster=cluster,
        caches=caches,
        registry=registry,
        sizing=sizing,
        lease=lease,
        wanted=wanted_of(options, key, certificates),
        reach=reach,
    )
    leader = Leader(replica)
    configuration.add(leader.configuration_changed)
    record = Record(cluster, options.namespace, LEASE_NAME, identity, caches.quotas, caches.watches)
    connections = Connections(cluster, reach=reach)
    refusals = Refusals(
        cluster, caches.quotas, caches.clusters, registry, identity, reach=reach, count=observed.owners_notified
    )
    on_refusal = collectors.refusals_of(caches.quotas)
    decisions = Decisions(on_decision=refusals.decided, on_pod=refusals.pod_decided, on_refusal=on_refusal)
    admission = Admission(caches.quotas, registry, record.stale)
    endpoints, follows = endpoints_of(Parts(replica=replica, connections=connections, admission=admission), decisions)
    return Agent(
        replica=replica,
        ledger=ledger,
        key=key,
        certificates=certificates,
        flavours=flavours,
        record=record,
        leader=leader,
        refusals=refusals,
        decisions=decisions,
        follows={**follows, "connections to user clusters": connections.run},
        server=server_of(endpoints, key, stopping),
    )
