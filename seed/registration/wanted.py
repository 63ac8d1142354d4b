"""Which webhook configurations user clusters, and the seed itself, must have."""

from __future__ import annotations

from collections.abc import Sequence

from common.api.types import UserCluster
from common.server.serving_certificate import Certificates
from seed.evaluators.clusters import Kind
from seed.registration import cluster_api, clusters
from seed.registration.configuration import WebhookConfiguration, desired
from seed.registration.token import WebhookKey


class WantedConfigurations:
    """Each holds a token: never log it."""

    def __init__(
        self,
        key: WebhookKey,
        certificates: Certificates,
        kinds: Sequence[Kind],
        *,
        base_url: str,
        timeout_seconds: int,
        break_glass_group: str,
    ) -> None:
        self._key = key
        self._certificates = certificates
        self._kinds = kinds
        self._base_url = base_url
        self._timeout_seconds = timeout_seconds
        self._break_glass_group = break_glass_group

    def for_cluster(self, cluster: UserCluster) -> WebhookConfiguration:
        return desired(
            cluster,
            base_url=self._base_url,
            token=self._key.token(cluster.metadata.uid),
            ca_bundle=self._certificates.ca_bundle,
            timeout_seconds=self._timeout_seconds,
            break_glass_group=self._break_glass_group,
        )

    def for_cluster_api(self) -> WebhookConfiguration:
        """On the seed, for Machines of Cluster API."""
        return cluster_api.desired(
            base_url=self._base_url,
            token=self._key.token(cluster_api.CALLER),
            ca_bundle=self._certificates.ca_bundle,
            timeout_seconds=self._timeout_seconds,
            break_glass_group=self._break_glass_group,
        )

    def for_clusters(self) -> WebhookConfiguration:
        """On the seed, for clusters themselves."""
        return clusters.desired(
            self._kinds,
            base_url=self._base_url,
            token=self._key.token(clusters.CALLER),
            ca_bundle=self._certificates.ca_bundle,
            timeout_seconds=self._timeout_seconds,
            break_glass_group=self._break_glass_group,
        )
