"""Which webhook configurations user clusters, and the seed itself, must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.api.types import UserCluster
from common.server.serving_certificate import Certificates
from seed.evaluators.clusters import Kind
from seed.registration import cluster_api, clusters
from seed.registration.configuration import WebhookConfiguration, desired, stamping
from seed.registration.token import WebhookKey


class WantedConfigurations:
    """Each holds tokens: never log it."""

    def __init__(
        self,
        key: WebhookKey,
        certificates: Certificates,
        kinds: Sequence[Kind],
        *,
        base_url: str,
        timeout_seconds: int,
        seed_break_glass_group: str,
        user_cluster_break_glass_group: str,
    ) -> None:
        """Members of the groups pass the API server's webhooks; empty: nobody does."""
        self.withdrawn = False  # none of them must be there: see seed/registration/withdrawal.py
        self._key = key
        self._certificates = certificates
        self._kinds = kinds
        self._base_url = base_url
        self._timeout_seconds = timeout_seconds
        self._seed_break_glass_group = seed_break_glass_group
        self._user_cluster_break_glass_group = user_cluster_break_glass_group

    def are_wanted(self) -> bool:
        return not self.withdrawn

    def for_cluster(self, cluster: UserCluster) -> WebhookConfiguration:
        on_seed = cluster.spec.kubeconfig_secret_ref is None
        return desired(
            cluster,
            base_url=self._base_url,
            token=self._tokens_of(cluster.metadata.uid),
            ca_bundle=self._certificates.ca_bundle,
            timeout_seconds=self._timeout_seconds,
            break_glass_group=self._seed_break_glass_group if on_seed else self._user_cluster_break_glass_group,
        )

    def stamping_for_cluster(self, cluster: UserCluster) -> WebhookConfiguration:
        uid = cluster.metadata.uid
        return stamping(self.for_cluster(cluster), f"{self._base_url}/stamp/{uid}/{self._key.token('stamp', uid)}")

    def for_cluster_api(self) -> WebhookConfiguration:
        """On the seed, for Machines of Cluster API."""
        return cluster_api.desired(
            base_url=self._base_url,
            token=self._tokens_of(cluster_api.CALLER),
            ca_bundle=self._certificates.ca_bundle,
            timeout_seconds=self._timeout_seconds,
            break_glass_group=self._seed_break_glass_group,
        )

    def for_clusters(self) -> WebhookConfiguration:
        """On the seed, for clusters themselves."""
        return clusters.desired(
            self._kinds,
            base_url=self._base_url,
            token=self._tokens_of(clusters.CALLER),
            ca_bundle=self._certificates.ca_bundle,
            timeout_seconds=self._timeout_seconds,
            break_glass_group=self._seed_break_glass_group,
        )

    def _tokens_of(self, caller: str) -> Callable[[str], str]:
        return lambda kind: self._key.token(kind, caller)
