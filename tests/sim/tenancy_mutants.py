"""Deliberate breakages of whose a namespace is, and of which quotas decide there: see tests/sim/mutants.py."""

from __future__ import annotations

from common.api.label_selector import LabelSelector
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.model.consumer import Consumer
from seed.model.quota import NAMESPACES, Quota
from tests.sim.mutant import Mutant

FOCUS = ("tenancy",)
BUDGET = 200

_quotas_of = QuotaCache.quotas_of
_selector = ClusterCache.selector


def only_the_projects_own(cache: QuotaCache, consumer: Consumer) -> list[Quota]:
    return [quota for quota in _quotas_of(cache, consumer) if quota.kind == "project" or consumer.quota]


def only_the_organizations(cache: QuotaCache, consumer: Consumer) -> list[Quota]:
    return [quota for quota in _quotas_of(cache, consumer) if quota.kind != "project" or consumer.quota]


def of_labels_alone(cache: ClusterCache, quota: Quota, cluster: str) -> LabelSelector | None:
    return _selector(cache, quota, cluster) if quota.kind == NAMESPACES else None


ALL: tuple[Mutant, ...] = (
    Mutant("a namespace is of no project", ((ClusterCache, "project_in", lambda *_a: ""),), FOCUS, BUDGET),
    Mutant("an organization is not asked", ((QuotaCache, "quotas_of", only_the_projects_own),), FOCUS, BUDGET),
    Mutant("a project is not asked", ((QuotaCache, "quotas_of", only_the_organizations),), FOCUS, BUDGET),
    Mutant("projects' namespaces are not counted", ((ClusterCache, "selector", of_labels_alone),), FOCUS, BUDGET),
)
