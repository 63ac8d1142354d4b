"""Which webhook configurations user clusters, and the seed itself, must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from common.api.types import UserCluster
from seed.registration.configuration import ServicePort, WebhookConfiguration, WebhookServer, through_service
from seed.registration.token import WebhookKey

Desired = Callable[[WebhookServer], WebhookConfiguration]
"""Of a kind that is counted: what its configuration asks about."""


class Bundle(Protocol):
    @property
    def ca_bundle(self) -> bytes:
        """Whom callers of the webhook trust, PEM."""


class WantedConfigurations:
    """Each holds tokens: never log it."""

    def __init__(
        self,
        key: WebhookKey,
        certificates: Bundle,
        *,
        base_url: str,
        timeout_seconds: int,
        seed_break_glass_group: str,
        user_cluster_break_glass_group: str,
        seed_service: tuple[str, ServicePort] | None = None,
    ) -> None:
        """Members of the groups pass the API server's webhooks; empty: nobody does.

        `seed_service`: the Service by which the seed's own API server reaches the webhook, with its namespace. If it is
        None, `base_url` is used there as in user clusters.
        """
        self.withdrawn = False  # none of them must be there: see seed/registration/withdrawal.py
        self._key = key
        self._certificates = certificates
        self._base_url = base_url
        self._timeout_seconds = timeout_seconds
        self._seed_break_glass_group = seed_break_glass_group
        self._user_cluster_break_glass_group = user_cluster_break_glass_group
        self._seed_service = seed_service

    def are_wanted(self) -> bool:
        return not self.withdrawn

    def for_cluster(
        self, cluster: UserCluster, desired: Callable[[UserCluster, WebhookServer], WebhookConfiguration]
    ) -> WebhookConfiguration:
        """Without a kubeconfig, it is the seed's own API server that is to ask about it."""
        on_seed = cluster.spec.kubeconfig_secret_ref is None
        where = self.on_seed if on_seed else self.in_cluster
        return where(cluster.metadata.uid, lambda server: desired(cluster, server))

    def on_seed(self, caller: str, desired: Desired) -> WebhookConfiguration:
        """For the seed's own API server. The tokens prove `caller`."""
        made = desired(self._server_for(caller, self._seed_break_glass_group))
        return through_service(made, self._base_url, *self._seed_service) if self._seed_service is not None else made

    def in_cluster(self, caller: str, desired: Desired) -> WebhookConfiguration:
        return desired(self._server_for(caller, self._user_cluster_break_glass_group))

    def _server_for(self, caller: str, break_glass_group: str) -> WebhookServer:
        return WebhookServer(
            base_url=self._base_url,
            token=lambda kind: self._key.token(kind, caller),
            ca_bundle=self._certificates.ca_bundle,
            timeout_seconds=self._timeout_seconds,
            break_glass_group=break_glass_group,
        )
