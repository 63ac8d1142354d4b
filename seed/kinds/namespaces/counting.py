"""What the leader does for objects in the namespaces of each cluster that takes part: it counts, asks and shows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.runtime.unexpected import kept_running
from seed.kinds.kind import CountedKind, InTerm
from seed.kinds.namespaces import configuration
from seed.kinds.namespaces.configuration import Limits
from seed.kinds.namespaces.enforcement import NamespacedWebhook
from seed.kinds.namespaces.sources import NamespacedSources
from seed.model.quota import takes_part
from seed.model.source_key import OWN_API_SERVER
from seed.registration.configuration import WebhookConfiguration
from seed.registration.health import Proof
from seed.usage.source import UsageSource


class CountedNamespaces(CountedKind):
    def __init__(self, term: InTerm) -> None:
        self._term = term
        self._namespaces = NamespacedSources(
            term.replica.cluster,
            term.replica.caches.quotas,
            term.replica.caches.clusters,
            term.replica.registry,
            on_change=term.on_change,
            on_state=self._state_changed,
            unreached=term.unreached,
        )
        own = self._webhook(OWN_API_SERVER, OWN_API_SERVER, term.replica.cluster)
        self._webhooks = {OWN_API_SERVER: own}  # by cluster, as far as they are connected
        runs = {
            "namespaces": self._namespaces.run,
            "webhook for namespaces of the seed": own.run,
            "local copies in namespaces of the seed": lambda: self._copy(OWN_API_SERVER, term.replica.cluster),
        }
        super().__init__(self._namespaces, runs)

    async def follow(self, key: str, uid: str, cluster: Cluster) -> None:
        webhook = self._webhooks[key] = self._webhook(key, uid, cluster)
        try:
            async with asyncio.TaskGroup() as group:
                for part, run in (
                    ("namespaces", lambda: self._namespaces.follow(key, cluster)),
                    ("webhook for namespaces", webhook.run),
                    ("local copies in namespaces", lambda: self._copy(key, cluster)),
                ):
                    group.create_task(kept_running(part, run, whose=key))
        finally:
            if self._webhooks.get(key) is webhook:
                del self._webhooks[key]

    def cluster_changed(self, cluster: str) -> None:
        self._namespaces.look(cluster)

    def configuration_changed(self) -> None:
        for webhook in self._webhooks.values():
            webhook.configuration_changed()

    def proof(self, cluster: str) -> Proof | None:
        webhook = self._webhooks.get(cluster)
        return webhook.shown if webhook is not None else None

    def configurations(self, user_cluster: UserCluster) -> list[str]:
        return [configuration.NAME] if takes_part(user_cluster) else []

    def left(self) -> list[str]:
        return [f"{configuration.NAME} of {key}" for key, webhook in self._webhooks.items() if not webhook.absent]

    def _state_changed(self, source: UsageSource) -> None:
        webhook = self._webhooks.get(source.key.cluster)
        if webhook is not None:
            webhook.kinds_changed()
        self._term.on_state(source)

    async def _copy(self, key: str, cluster: Cluster) -> None:
        term = self._term
        await term.copies.keep_in_namespaces(key, cluster, self._namespaces, lambda: term.look(key))

    def _webhook(self, key: str, caller: str, cluster: Cluster) -> NamespacedWebhook:
        term = self._term
        wanted = term.replica.wanted.on_seed if key == OWN_API_SERVER else term.replica.wanted.in_cluster

        def desired(limits: Sequence[Limits]) -> WebhookConfiguration:
            clusters = term.replica.caches.clusters
            exempt, shared = clusters.exempt(key), clusters.is_shared(key)
            return wanted(
                caller, lambda server: configuration.desired(limits, server, caller, exempt=exempt, shared=shared)
            )

        return NamespacedWebhook(
            cluster,
            key,
            term.replica.caches.quotas,
            term.replica.caches.clusters,
            term.replica.registry,
            desired,
            unserved=lambda: self._namespaces.unserved(key),
            wanted=term.replica.wanted.are_wanted,
            on_enforced=term.on_enforced,
            on_state=lambda: term.look(key),
        )
