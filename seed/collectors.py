"""Metrics that are computed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.api.account_waits import WaitReason
from common.api.condition_metrics import conditions_of
from common.quota import account as accounts
from common.quota import blocks, guarantees, resources
from common.quota.largest import largest
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from common.runtime.unexpected import contained
from seed import metrics as observed
from seed.accounts.registry import AccountRegistry
from seed.admission.refusal import Refusal
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.instance_types.cache import FlavourCache
from seed.usage.source import InNamespaces, UsageSource

MAX_NAMESPACES: Final = 2_000  # that have samples of their own, of all quotas together


class FlavoursCollector(Collector):
    """How old what is kept of clouds is, when Prometheus asks."""

    def __init__(self, cache: FlavourCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "seedquota_provider_oldest_flavour_seconds", "Age of the oldest size that is kept.", labels=["provider"]
        )
        for provider, seconds in self._cache.oldest().items():
            family.add_metric([provider], seconds)
        yield family


class AccountsCollector(Collector):
    """Reads the accounts when Prometheus asks, so that the hot path does not pay for it."""

    def __init__(self, quota_cache: QuotaCache, registry: AccountRegistry) -> None:
        self._quota_cache = quota_cache
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        labels = ["quota", "resource", "unit"]
        used = GaugeMetricFamily("seedquota_seed_used", "Counted and reserved on this seed.", labels=labels)
        held = GaugeMetricFamily("seedquota_seed_held", "Granted to this seed and not returned.", labels=labels)
        idle = GaugeMetricFamily("seedquota_seed_idle", "Held here and neither used nor reserved.", labels=labels)
        fenced = 0
        for quota in self._quota_cache.all_quotas():
            handle = self._registry.get(quota)
            account = handle.writer.account if handle is not None else None
            if account is None:
                continue
            fenced += account.fenced
            with contained("metrics", quota.name):
                holding, using = guarantees.merged(accounts.held(account)), blocks.sure_use(account)
                for resource in quota.limits:
                    has, uses = holding.get(resource, 0), using.get(resource, 0)
                    for family, amount in ((used, uses), (held, has), (idle, has - uses)):
                        family.add_metric([quota.name, resource, resources.unit(resource)], amount / UNIT)
        yield from (used, held, idle)
        yield GaugeMetricFamily(
            "seedquota_accounts_fenced", "Accounts that admit nothing until they were rebuilt.", value=fenced
        )


class AccountWaitsCollector(Collector):
    """What the leader says of accounts that admit nothing. Another replica does not know it, and has no samples."""

    def __init__(self, longest: Callable[[], Mapping[WaitReason, float]]) -> None:
        self._longest = longest

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "seedquota_account_waiting_seconds",
            "Longest time for which an account that admits nothing has waited for what it waits for now, by reason.",
            labels=["reason"],
        )
        for reason, seconds in self._longest().items():
            family.add_metric([reason.value], seconds)
        yield family


class NamespacesCollector(Collector):
    """What the leader counts in namespaces: of each quota and cluster, and of as many namespaces as MAX_NAMESPACES."""

    def __init__(self, quota_cache: QuotaCache, sources: Callable[[], Iterable[UsageSource]]) -> None:
        self._quota_cache = quota_cache
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        labels = ["quota", "user_cluster", "resource", "unit"]
        clusters = GaugeMetricFamily(
            "seedquota_namespaces_used",
            "Counted in all namespaces of a quota in one cluster, by the leader.",
            labels=labels,
        )
        namespaces = GaugeMetricFamily(
            "seedquota_namespace_used",
            "Counted in one namespace, by the leader: of those that use most of the quota's limits.",
            labels=["quota", "user_cluster", "user_namespace", "resource", "unit"],
        )
        omitted = GaugeMetricFamily(
            "seedquota_namespaces_omitted",
            "Namespaces that use something of the quota and have no sample.",
            labels=["quota"],
        )
        by_quota: dict[str, list[InNamespaces]] = {}
        for each in self._sources():
            if each.in_namespaces is not None and each.counted:
                by_quota.setdefault(each.consumer.quota, []).append(each.in_namespaces)
        for name, sources in by_quota.items():
            quota = self._quota_cache.quota(name)
            if quota is None:
                continue
            with contained("metrics", name):
                limits = resources.only(quota.limits, quota.of_objects)
                for source in sources:
                    _sample(clusters, [name, source.cluster], source.totals.used, limits)
                found = [
                    ((source.cluster, namespace), used)
                    for source in sources
                    for namespace, used in source.totals.by_namespace.items()
                ]
                shown = largest(found, limits, MAX_NAMESPACES // len(by_quota))
                for key, used in shown:
                    _sample(namespaces, [name, *key], used, limits)
                omitted.add_metric([name], len(found) - len(shown))
        yield from (clusters, namespaces, omitted)


def _sample(family: GaugeMetricFamily, labels: list[str], used: ResourceList, limits: ResourceList) -> None:
    for resource in limits:
        if (amount := used.get(resource, 0)) or len(labels) == 2:  # a namespace has none of what it does not use
            family.add_metric([*labels, resource, resources.unit(resource)], amount / UNIT)


class UserClustersCollector(Collector):
    """What each UserCluster's status says, as this replica knows it."""

    def __init__(self, cluster_cache: ClusterCache) -> None:
        self._cluster_cache = cluster_cache

    def collect(self) -> Iterator[Metric]:
        clusters = list(self._cluster_cache.user_clusters.store.values())
        conditions = [(cluster.metadata.key, cluster.status.conditions) for cluster in clusters]
        yield conditions_of("seedquota_user_cluster_condition", "user_cluster", conditions)


def refusals_of(quota_cache: QuotaCache) -> Callable[[Refusal], None]:
    """Counts each by its quota, for as long as the seed has that: quotas come and go with projects."""

    def refused(refusal: Refusal) -> None:
        known = quota_cache.quota(refusal.quota) is not None
        observed.refused(refusal.quota if known else "", refusal.cause)

    def changed(name: str) -> None:
        if quota_cache.quota(name) is None:
            observed.no_quota(name)

    quota_cache.on_quota(changed)
    return refused
