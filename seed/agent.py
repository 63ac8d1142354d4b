"""One replica of the seed's agent: builds everything and serves."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from urllib.parse import urlsplit

from prometheus_client import REGISTRY

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.controller.leader_election import Lease
from common.runtime import metrics
from common.runtime.flags import (
    CommonOptions,
    UsageError,
)
from common.runtime.program import Program
from common.server.http_server import HttpServer
from common.server.serving_certificate import Certificates
from seed import collectors
from seed import metrics as observed
from seed.accounts.registry import AccountRegistry
from seed.admission.admitter import Admission
from seed.admission.decision_log import PATH, Decisions
from seed.admission.machines import MachineAdmission
from seed.admission.rollouts import Rollouts, in_cluster_api, in_user_clusters
from seed.cache.cluster_api import View
from seed.cache.kubermatic import KubermaticView
from seed.cache.quotas import Catalog
from seed.cache.replicas import Record
from seed.cache.same_cluster import DuplicateClusters
from seed.cache.user_cluster_clients import Connections
from seed.controllers.leader import Leader
from seed.evaluators.clusters import Kind, kinds
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import InvalidBundle, Transport, trusting
from seed.instance_types.prefetch import Prefetch
from seed.instance_types.redis_cache import SharedSizes
from seed.instance_types.settings import SettingsReader
from seed.ledger.backend import ChosenStore, redis_access
from seed.notifications.refusals import Refusals
from seed.options import SeedOptions
from seed.providers import PROVIDERS
from seed.registration import cluster_api, clusters
from seed.registration.configuration import WebhookConfiguration, desired
from seed.registration.token import WebhookKey
from seed.sizing.sizer import Sizing
from seed.webhooks import scale as scale_checks
from seed.webhooks.cluster_api import ClusterApiWebhook
from seed.webhooks.clusters import ClusterWebhook
from seed.webhooks.machines import MachineWebhook
from seed.webhooks.review import MAX_BODY
from seed.webhooks.router import Handler, route
from seed.webhooks.scale import ScaleWebhook

log = logging.getLogger(__name__)

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
    return cache, Sizing(cache, settings, key.seal, key.check_seal, options.providers or tuple(PROVIDERS))


def wanted_configurations(
    options: SeedOptions, key: WebhookKey, certificates: Certificates, cluster_kinds: Sequence[Kind]
) -> tuple[
    Callable[[UserCluster], WebhookConfiguration],
    Callable[[], WebhookConfiguration],
    Callable[[], WebhookConfiguration],
]:
    """What each user cluster needs, and what the seed itself needs for Cluster API and for clusters themselves."""

    def for_cluster(cluster: UserCluster) -> WebhookConfiguration:
        return desired(
            cluster,
            base_url=options.webhook_url,
            token=key.token(cluster.metadata.uid),
            ca_bundle=certificates.ca_bundle,
            timeout_seconds=options.webhook_timeout,
            break_glass_group=options.break_glass_group,
        )

    def for_cluster_api() -> WebhookConfiguration:
        return cluster_api.desired(
            base_url=options.webhook_url,
            token=key.token(cluster_api.CALLER),
            ca_bundle=certificates.ca_bundle,
            timeout_seconds=options.webhook_timeout,
            break_glass_group=options.break_glass_group,
        )

    def for_clusters() -> WebhookConfiguration:
        return clusters.desired(
            cluster_kinds,
            base_url=options.webhook_url,
            token=key.token(clusters.CALLER),
            ca_bundle=certificates.ca_bundle,
            timeout_seconds=options.webhook_timeout,
            break_glass_group=options.break_glass_group,
        )

    return for_cluster, for_cluster_api, for_clusters


def handler(
    cluster: Cluster,
    connections: Connections,
    catalog: Catalog,
    registry: AccountRegistry,
    sizing: Sizing,
    view: View,
    cluster_kinds: Sequence[Kind],
    key: WebhookKey,
    decisions: Decisions,
    stale: Callable[[], str | None],
) -> Handler:
    """All webhooks, by the path that each is called at."""
    admission = Admission(catalog, registry, stale)
    rollouts = Rollouts()
    rolling = in_user_clusters(rollouts, connections, sizing)
    machines = MachineWebhook(catalog, admission, sizing, key.verify, observed.decision, decisions, rolling=rolling)
    rolling = in_cluster_api(rollouts, cluster, view, sizing)
    machine_admission = MachineAdmission(catalog, admission, sizing, rolling)
    of_cluster_api = ClusterApiWebhook(view, machine_admission, key.verify, observed.decision, decisions)
    of_clusters = ClusterWebhook(
        catalog,
        admission,
        cluster_kinds,
        DuplicateClusters(cluster, catalog, view),
        key.verify,
        observed.cluster_decision,
        decisions,
    )
    scale = ScaleWebhook(catalog, registry, sizing, connections, view, key.verify, observed.scale_check, decisions)

    by_path = {
        clusters.PATH: of_clusters.handle,
        scale_checks.PATH: scale.handle,
        cluster_api.PATH: of_cluster_api.handle,
    }
    return route(by_path, machines.handle)


def measure(
    catalog: Catalog, registry: AccountRegistry, cache: FlavourCache, refusals: Refusals, leader: Leader
) -> None:
    """What metrics are read from when somebody asks."""
    REGISTRY.register(collectors.UserClustersCollector(catalog))
    metrics.watch_leader(lambda: leader.leads)
    REGISTRY.register(collectors.AccountsCollector(catalog, registry))
    REGISTRY.register(collectors.FlavoursCollector(cache))
    observed.watch_waiting(lambda: refusals.waiting)


def host_of(url: str) -> str:
    host = urlsplit(url).hostname
    assert host is not None, "https_url has checked it"
    return host


async def connect(options: CommonOptions, name: str) -> Cluster:
    try:
        if options.kubeconfig is None:
            return await Cluster.in_cluster(name=name, on_request=metrics.kubernetes_request)
        return await Cluster.from_kubeconfig_file(
            options.kubeconfig, name=name, context=options.context, on_request=metrics.kubernetes_request
        )
    except InvalidKubeconfig as error:
        raise UsageError(f"--kubeconfig: {error}") from error


async def serve(running: Program, options: SeedOptions) -> None:
    running.health.add("webhook", lambda: "does not listen yet")
    cluster = await connect(options, options.seed_name)
    catalog = Catalog(cluster)
    chosen = ChosenStore(options, cluster, options.seed_name, lambda: leader.leads, options.lease_duration)
    registry = AccountRegistry(
        catalog,
        chosen.store,
        on_write=observed.ledger_write,
        on_conflict=observed.ledger_conflict,
        trusted=lambda: lease.trusted,
    )

    def configuration_changed() -> None:
        leader.configuration_changed()

    key = WebhookKey(cluster, options.namespace, on_change=configuration_changed)
    certificates = Certificates(
        cluster, options.namespace, [host_of(options.webhook_url)], on_bundle=configuration_changed
    )

    cache, sizing = sizing_of(options, cluster, key)

    view = View(cluster, catalog, options.project_label)
    kubermatic = KubermaticView(cluster, catalog, view.served)

    cluster_kinds = kinds(options.project_label)
    wanted, wanted_for_cluster_api, wanted_for_clusters = wanted_configurations(
        options, key, certificates, cluster_kinds
    )

    identity = options.identity or socket.gethostname()
    lease = lease_of(options, cluster, identity)
    record = Record(cluster, options.namespace, LEASE_NAME, identity, catalog)
    leader = Leader(
        cluster,
        catalog,
        registry,
        chosen.store,
        lease,
        wanted,
        sizing,
        view,
        kubermatic,
        wanted_for_cluster_api,
        cluster_kinds,
        wanted_for_clusters,
        in_flight_window=options.in_flight_window,
        on_request=metrics.kubernetes_request,
    )
    connections = Connections(cluster, on_request=metrics.kubernetes_request)
    refusals = Refusals(
        cluster, catalog, registry, identity, on_request=metrics.kubernetes_request, count=observed.told
    )
    decisions = Decisions(on_decision=refusals.heard, on_refusal=collectors.refusals_of(catalog))
    handle = handler(cluster, connections, catalog, registry, sizing, view, cluster_kinds, key, decisions, record.stale)
    server = HttpServer(handle, max_body=MAX_BODY, stopping=lambda: running.health.stopping)
    measure(catalog, registry, cache, refusals, leader)
    running.health.pages[PATH] = decisions.page
    add_checks(running, certificates, key, catalog, record, chosen, lease)

    followers = [
        asyncio.create_task(certificates.run(), name="certificates"),
        asyncio.create_task(key.run(), name="webhook key"),
        asyncio.create_task(chosen.run(), name="ledgers"),
        asyncio.create_task(record.run(), name="record of this replica"),
        asyncio.create_task(listed_after(record.kept, catalog), name="catalog"),
        asyncio.create_task(view.run(), name="view of Cluster API"),
        asyncio.create_task(kubermatic.run(), name="view of Kubermatic"),
        asyncio.create_task(connections.run(), name="connections to user clusters"),
        asyncio.create_task(refusals.run(), name="refusals"),
    ]
    try:
        await within_start(
            followers,
            key.wait_ready(START_TIMEOUT),
            certificates.wait_ready(START_TIMEOUT),
            catalog.wait_synced(),
            view.wait_settled(),
            kubermatic.wait_settled(),
        )
        await server.start(options.webhook_address.host or None, options.webhook_address.port, certificates.ssl_context)
        running.health.add("webhook", lambda: None)
        log.info("webhook serves", extra={"address": str(options.webhook_address), "seed": options.seed_name})
        leading = asyncio.create_task(leader.run(), name="leader")
        prefetch = Prefetch(cache, catalog.user_clusters.store.values, sizing.catalogue_of)
        followers += [leading, asyncio.create_task(prefetch.run(), name="prefetch")]
        await until_stopped(running, followers)
        await end_leading(leader, leading)
        server.end_soon()
        await asyncio.sleep(LINGER)
    finally:
        await server.stop(options.stop_timeout)
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        await record.remove()  # not before: a replica without a record must not admit
        await registry.close()
        await chosen.close()
        await sizing.close()
        await cluster.close()


def add_checks(
    running: Program,
    certificates: Certificates,
    key: WebhookKey,
    catalog: Catalog,
    record: Record,
    chosen: ChosenStore,
    lease: Lease,
) -> None:
    """What must be so before this replica is ready."""
    checks = {
        "certificate": certificates.not_ready,
        "webhook key": key.not_ready,
        "caches": catalog.not_ready,
        "replica": record.stale,
        "ledger": chosen.not_ready,
        "lease": lambda: "no leader seen alive yet" if lease.trusted is None else None,
    }
    for name, check in checks.items():
        running.health.add(name, check)


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


async def listed_after(kept: asyncio.Event, catalog: Catalog) -> None:
    """What was known by all other replicas when this one's record was made is in the lists."""
    await kept.wait()
    await catalog.run()


async def until_stopped(running: Program, followers: list[asyncio.Task[None]]) -> None:
    """Raises what ended one of the followers: none of them ends by itself."""

    async def stop() -> None:
        await running.stop.wait()

    stopping = asyncio.create_task(stop(), name="stop")
    done, _ = await asyncio.wait([stopping, *followers], return_when=asyncio.FIRST_COMPLETED)
    if stopping in done:
        return
    stopping.cancel()
    for task in done:
        await task


async def within_start(followers: list[asyncio.Task[None]], *needed: Coroutine[object, object, None]) -> None:
    """All that is needed before the first request can be answered, or the error that prevents it."""

    async def prepare() -> None:
        await asyncio.gather(*needed)

    preparing = asyncio.create_task(prepare(), name="preparing")
    try:
        async with asyncio.timeout(START_TIMEOUT):
            done, _ = await asyncio.wait([preparing, *followers], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
