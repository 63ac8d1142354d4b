"""The flags of seedquota-seed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from common.api.labels import PROJECT_LABEL
from common.kube.client import networks
from common.runtime.flags import (
    Address,
    Flag,
    address,
    choice,
    duration,
    https_url,
    path,
    text,
    whole_number,
    whole_seconds,
    words,
)
from seed.ledger.backend import LedgerOptions
from seed.providers import ENDED, PROVIDERS
from seed.registration.configuration import SERVICE_PORT, ServicePort
from seed.webhooks.turns import PER_SECOND

WEBHOOK_ADDRESS = Address("", 9443)


def provider_names(raw: str) -> tuple[str, ...]:
    names = words(raw)
    if not names or not set(names) <= PROVIDERS.keys() | ENDED:
        raise ValueError(f"{raw!r} is not a list of {', '.join(sorted(PROVIDERS))}")
    return tuple(name for name in names if name in PROVIDERS)


def service(raw: str) -> ServicePort:
    found = re.fullmatch(r"([a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)(?::([0-9]{1,5}))?", raw)
    port = int(found[2] or SERVICE_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise ValueError(f"{raw!r} is not the name of a Service, or NAME:PORT")
    return ServicePort(found[1], port)


@dataclass(frozen=True, kw_only=True)
class SeedOptions(LedgerOptions):
    seed_name: Annotated[str, Flag(text, "the name that this seed has on the master")]
    webhook_url: Annotated[
        str, Flag(https_url, "where the API servers of user clusters reach the webhook: https://host[:port]")
    ]
    webhook_service: Annotated[
        ServicePort | None,
        Flag(
            service,
            "Service in this release's namespace, NAME or NAME:PORT (443), through which the seed's own API server "
            "reaches the webhook; not set: it uses --webhook-url",
        ),
    ] = None
    webhook_tls_directory: Annotated[
        Path | None,
        Flag(
            path,
            "directory with tls.crt, tls.key and ca.crt of the webhook, read again when they change; "
            "not set: the agents make certificates and renew them",
        ),
    ] = None
    webhook_address: Annotated[Address, Flag(address, "address on which the webhook listens (TLS)")] = WEBHOOK_ADDRESS
    webhook_timeout: Annotated[
        int, Flag(whole_seconds(1, 30), "how long an API server waits for the webhook's answer", unit="s")
    ] = 3
    webhook_requests_per_second: Annotated[
        int,
        Flag(
            whole_number(1, 1_000_000),
            "average number of requests in a second that a replica answers to one user cluster; for objects in "
            "namespaces, twice that number; other requests get 503 with a retry",
        ),
    ] = PER_SECOND
    user_cluster_networks: Annotated[
        tuple[str, ...],
        Flag(
            networks.listed,
            "networks in which the API servers of user clusters may be, such as 10.0.0.0/8,fd00::/8; not set: all "
            "addresses but those of loopback, link-local, multicast and of no host",
        ),
    ] = ()
    break_glass_group: Annotated[
        str, Flag(text, "if break-glass is on, API servers do not call the webhook for members of this group")
    ] = "seedquota:break-glass"
    seed_break_glass: Annotated[
        str, Flag(choice("on", "off"), "break-glass in the seed's own API server: on or off")
    ] = "on"
    user_cluster_break_glass: Annotated[
        str,
        Flag(
            choice("on", "off"),
            "break-glass in user clusters: on or off; whoever may impersonate groups there can use it",
        ),
    ] = "off"
    project_label: Annotated[
        str, Flag(text, "the label, or annotation, of a Cluster API Cluster that names its project")
    ] = PROJECT_LABEL
    local_copies: Annotated[
        str,
        Flag(choice("on", "off"), "LocalResourceQuotas in user clusters: on or off; off removes them"),
    ] = "on"
    reserve_ahead: Annotated[
        str,
        Flag(
            choice("on", "off"),
            "whether a replica reserves capacity ahead, and admits from that without a write: on or off; it does not "
            "while a replica of release 0.2.0 or earlier runs on the seed; set it to off before you go back to that",
        ),
    ] = "on"
    exempt_namespaces: Annotated[
        tuple[str, ...],
        Flag(
            words,
            "namespaces of the seed's own API server that no quota counts, beside kube-system and those of SeedQuota, "
            "such as cni,cert-manager",
        ),
    ] = ()
    providers: Annotated[
        tuple[str, ...],
        Flag(provider_names, "cloud providers whose Machines are sized, such as aws,azure; not set: none"),
    ] = ()
    providers_ca_file: Annotated[
        Path | None,
        Flag(path, "certificate authorities for clouds (PEM), in addition to those of the system; HTTPS_PROXY is used"),
    ] = None
    identity: Annotated[
        str | None,
        Flag(
            text, "unique name of this replica in the lease; not set: the host's name, which in a pod is the pod's name"
        ),
    ] = None
    in_flight_window: Annotated[
        float,
        Flag(
            duration,
            "longest time from an admission until the object is stored: at least the API servers' --request-timeout",
        ),
    ] = 65.0
    lease_duration: Annotated[
        int,
        Flag(
            whole_seconds(3, 300),
            "time after which another replica takes over from a leader that does not renew its lease",
            unit="s",
        ),
    ] = 15

    def problem(self) -> str | None:
        if self.in_flight_window < self.webhook_timeout:
            return (
                "--in-flight-window (or SEEDQUOTA_IN_FLIGHT_WINDOW) must be at least as long as --webhook-timeout, "
                f"{self.webhook_timeout}s: set it to the API servers' --request-timeout (60s by default) or more"
            )
        return super().problem()
