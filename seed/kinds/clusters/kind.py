"""Clusters themselves, on the seed."""

from __future__ import annotations

from seed.cache.of_projects import OfProjects
from seed.cache.quotas import QuotaCache
from seed.kinds.clusters import configuration
from seed.kinds.clusters.evaluator import RESOURCE, kinds
from seed.kinds.clusters.same_cluster import DuplicateClusters
from seed.kinds.clusters.source import ClusterSources
from seed.kinds.clusters.webhook import ClusterWebhook
from seed.kinds.kind import AskedOfSeed, CountedKind, InTerm, Kind, Parts, Serving
from seed.model import asked_of_seed, source_key
from seed.model.quota import Quota
from seed.registration.configuration import WebhookConfiguration, WebhookServer


def serving(parts: Parts) -> Serving:
    caches, label = parts.replica.caches, parts.replica.options.project_label
    twins = DuplicateClusters(parts.replica.cluster, caches.clusters, caches.cluster_api)
    return Serving(webhooks={configuration.CALLER: ClusterWebhook(caches.quotas, parts.admission, kinds(label), twins)})


def counting(term: InTerm) -> CountedKind:
    sources = ClusterSources(
        term.replica.cluster,
        term.replica.caches.cluster_api.served,
        kinds(term.replica.options.project_label),
        on_change=term.on_change,
        on_state=term.on_state,
    )
    return CountedKind(sources, {"clusters": sources.run})


def _desired(server: WebhookServer) -> WebhookConfiguration:
    return configuration.desired(kinds(""), server)  # by which label a project is named changes nothing that is asked


def _limits(quota_cache: QuotaCache, quota: Quota) -> bool:
    return RESOURCE in quota.limits.keys() - quota_cache.catalogue.allocated


CLUSTERS = Kind(
    serving=serving,
    counting=counting,
    of_seed=AskedOfSeed(
        key=asked_of_seed.CLUSTERS,
        name=configuration.NAME,
        caller=configuration.CALLER,
        desired=_desired,
        sample=lambda _served, namespace: configuration.sample(namespace),
    ),
    of_projects=OfProjects(
        kind=source_key.CLUSTERS, asked=asked_of_seed.CLUSTERS, is_there=lambda _quota_cache: True, limits=_limits
    ),
)
