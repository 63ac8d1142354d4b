"""seedquota-master: splits each quota's limit over the seeds, and shows everyone the same sums."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prometheus_client import REGISTRY

from common.kube.client import networks
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.controller.leader_election import Lease
from common.runtime import flags, metrics
from common.runtime.flags import Address, CommonOptions, Flag, UsageError
from common.runtime.own_loop import OwnLoop
from common.runtime.waiting import first_of
from common.server import program
from common.server.program import Program
from master.apiserver.server import ApiServer
from master.history.prometheus import PrometheusHistory
from master.history.recent_refusals import RecentRefusals
from master.history.sampler import Sampler
from master.manager import LEASE, Master
from master.page.app import CALLBACK, Page
from master.page.navigation import prefix_of
from master.page.oidc import Client, Provider
from master.page.session_key import SessionKey
from master.reporting.metrics import MasterMetrics
from master.seeds.agent_pages import AgentPages

DESCRIPTION = (
    "Splits each quota's limit over the seeds, so that it is never exceeded, and shows everyone the same sums."
)


@dataclass(frozen=True, kw_only=True)
class MasterOptions(CommonOptions):
    identity: Annotated[
        str | None,
        Flag(flags.text, "name of this replica in leader election; not set: the host's name and a random part"),
    ] = None
    api_address: Annotated[
        Address | None,
        Flag(
            flags.address, "address on which the HTTP API listens (TLS), such as :8443; not set: there is no HTTP API"
        ),
    ] = None
    api_names: Annotated[
        tuple[str, ...],
        Flag(
            flags.words,
            "DNS names and IP addresses of the HTTP API, for its certificate; not set: seedquota-master.NAMESPACE.svc",
        ),
    ] = ()
    page: Annotated[str, Flag(flags.choice("on", "off"), "the web page, beside the HTTP API: on or off")] = "on"
    page_url: Annotated[
        str | None,
        Flag(
            flags.https_url,
            "address under which people reach the page and the HTTP API, such as https://example.com/seedquota; not "
            "set: at the root of whatever address they use",
        ),
    ] = None
    oidc_issuer_url: Annotated[
        str | None,
        Flag(
            flags.https_url,
            "OpenID Connect provider that signs people in on the page; its ID tokens must be valid for the API server; "
            "not set: people paste tokens",
        ),
    ] = None
    oidc_client_id: Annotated[str | None, Flag(flags.text, "the page's client at the provider")] = None
    oidc_client_secret_file: Annotated[
        Path | None, Flag(flags.path, "file with the client's secret; not set: it is a public client")
    ] = None
    oidc_ca_file: Annotated[
        Path | None, Flag(flags.path, "file with the CA of the provider, PEM; not set: those of the system")
    ] = None
    oidc_scopes: Annotated[tuple[str, ...], Flag(flags.words, "scopes that the provider is asked for")] = (
        "openid",
        "profile",
        "email",
    )
    history_file: Annotated[
        Path | None,
        Flag(flags.path, "SQLite file with use and refusals of the last 30 days, for the page; not set: none is kept"),
    ] = None
    history_prometheus_url: Annotated[
        str | None,
        Flag(
            flags.http_url,
            "Prometheus that scrapes the master: the page reads use and refusals of the last 30 days there, and no "
            "file is kept",
        ),
    ] = None
    history_prometheus_labels: Annotated[
        tuple[tuple[str, str], ...],
        Flag(flags.labels, "labels that the metrics of this installation have there, such as namespace=seedquota"),
    ] = ()
    notification_networks: Annotated[
        tuple[str, ...],
        Flag(
            networks.listed,
            "networks in which receivers of QuotaNotifications may be beside public addresses, such as "
            "10.0.0.0/8,fd00::/8; only there they may be without TLS",
        ),
    ] = ()


def provider(given: MasterOptions) -> Provider | None:
    """Raises UsageError."""
    if given.oidc_issuer_url is None:
        return None
    if given.oidc_client_id is None or given.page_url is None:
        raise UsageError("--oidc-issuer-url needs --oidc-client-id and --page-url")
    try:
        secret = given.oidc_client_secret_file.read_text().strip() if given.oidc_client_secret_file else ""
        ca = given.oidc_ca_file.read_text() if given.oidc_ca_file else ""
        redirect = f"{given.page_url}{CALLBACK}"
        client = Client(given.oidc_issuer_url, given.oidc_client_id, secret, redirect, given.oidc_scopes, ca)
        return Provider(client)
    except (OSError, ValueError) as error:
        raise UsageError(f"the files of the OpenID Connect client cannot be used: {error}") from None


def history_of(given: MasterOptions, master: Master) -> PrometheusHistory | Sampler | None:
    """Raises UsageError."""
    url, file = given.history_prometheus_url, given.history_file
    if url is not None and file is not None:
        raise UsageError("--history-file and --history-prometheus-url: choose one of them")
    agents = AgentPages(master.caches, given.namespace, metrics.kubernetes_request)
    if url is not None:
        recent = RecentRefusals(master.caches, agents, lambda: master.leading is not None)
        return PrometheusHistory(url, dict(given.history_prometheus_labels), recent)
    return Sampler(master.caches, file, agents) if file is not None else None


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
    renewing = OwnLoop("lease")
    of_lease = await renewing.run(connect(given))
    lease = Lease(of_lease, given.namespace, LEASE, identity, loop=renewing)
    master = Master(cluster, given.namespace, identity, lease, notification_networks=given.notification_networks)
    running.health.add("caches", master.caches.not_synced)
    collector = MasterMetrics(lambda: master.leading)
    REGISTRY.register(collector)
    metrics.watch_leader(lambda: master.lease.held)
    work = [master.run(), running.stop.wait()]
    if given.api_address is not None:
        names = given.api_names or (f"seedquota-master.{given.namespace}.svc",)
        key = SessionKey(cluster, given.namespace)
        history = history_of(given, master)
        try:
            prefix = prefix_of(given.page_url or "")
            page = Page(lambda: key.sealer, prefix, history, provider(given))
            api = ApiServer(
                cluster,
                master.caches,
                given.namespace,
                given.api_address,
                names,
                mount=page.mount if given.page == "on" else lambda _app: None,
                prefix=prefix,
                stopping=lambda: running.health.stopping,
            )
        except ValueError as error:
            raise UsageError(f"--page-url: {error}") from None
        if given.page == "on":
            work.append(key.run())
            if history is not None:
                work.append(history.run())
        running.health.add("api", api.not_ready)
        work.append(api.run())
    try:
        (await first_of(*work)).result()
    finally:
        REGISTRY.unregister(collector)
        await cluster.close()
        await renewing.run(of_lease.close())
        await renewing.close()


def main() -> None:
    given = flags.parse(MasterOptions, "seedquota-master", DESCRIPTION)
    sys.exit(program.run("seedquota-master", given, lambda running: serve(running, given)))


if __name__ == "__main__":
    main()
