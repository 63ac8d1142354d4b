"""Allocations, in the master's own cluster."""

from __future__ import annotations

from seed.cache.of_projects import OfProjects
from seed.cache.quotas import QuotaCache
from seed.kinds.allocations import configuration
from seed.kinds.allocations.admission import AllocationAdmission
from seed.kinds.allocations.organizations import OrganizationCache
from seed.kinds.allocations.source import AllocationSources
from seed.kinds.allocations.webhook import AllocationWebhook
from seed.kinds.kind import AskedOfSeed, CountedKind, InTerm, Kind, Parts, Serving
from seed.model import asked_of_seed, source_key
from seed.model.quota import Quota


def serving(parts: Parts) -> Serving:
    cluster, quotas = parts.replica.cluster, parts.replica.caches.quotas
    organizations = OrganizationCache(cluster, quotas)
    admission = AllocationAdmission(cluster, quotas, organizations, parts.admission)
    return Serving(
        webhooks={configuration.CALLER: AllocationWebhook(admission)}, follows={"organizations": organizations.run}
    )


def counting(term: InTerm) -> CountedKind:
    replica = term.replica
    sources = AllocationSources(
        replica.cluster, replica.caches.quotas, on_change=term.on_change, on_state=term.on_state
    )
    return CountedKind(sources, {"allocations": sources.run})


def _in_cluster(quota_cache: QuotaCache) -> bool:
    return bool(quota_cache.in_cluster)


def _limits(quota_cache: QuotaCache, quota: Quota) -> bool:
    return _in_cluster(quota_cache) and not quota_cache.catalogue.allocated.isdisjoint(quota.limits)


ALLOCATIONS = Kind(
    serving=serving,
    counting=counting,
    of_seed=AskedOfSeed(
        key=asked_of_seed.ALLOCATIONS,
        name=configuration.NAME,
        caller=configuration.CALLER,
        desired=configuration.desired,
        sample=lambda _served, namespace: configuration.sample(namespace),
        is_there=_in_cluster,
        begins=QuotaCache.wait_in_cluster,
    ),
    of_projects=OfProjects(
        kind=source_key.ALLOCATIONS,
        asked=asked_of_seed.ALLOCATIONS,
        is_there=_in_cluster,
        limits=_limits,
        counts=lambda catalogue, amounts: catalogue.from_allocations(amounts),
        alone=True,
    ),
)
