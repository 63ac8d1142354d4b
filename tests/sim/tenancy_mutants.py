"""Deliberate breakages of whose a namespace is, and of which quotas decide there: see tests/sim/mutants.py."""

from __future__ import annotations

import msgspec

from common.api.label_selector import LabelSelector
from common.quota import shares
from common.quota.account import OverShare, Reservation
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.ledger import batcher
from seed.ledger.batcher import Batcher
from seed.model.consumer import Consumer
from seed.model.quota import NAMESPACES, Quota
from tests.sim import tenancy_scenes
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


def of_its_source_alone(self: Batcher, wanted: Reservation) -> OverShare | None:
    untold = msgspec.structs.replace(wanted, tenant="")
    return shares.over(self._waiting_of, untold, 1, len(self._waiting), batcher.MAX_WAITING)


def all_that_its_source_may_have(has: int, filled: int, room: int) -> int:
    return 10 * room


def its_source(kept: Reservation) -> str:
    return kept.source


def no_tenants(has: dict[str, int], kept: Reservation, more: int) -> None:
    has[kept.source] = has.get(kept.source, 0) + more


ALL: tuple[Mutant, ...] = (
    Mutant("a namespace is of no project", ((ClusterCache, "project_in", lambda *_a: ""),), FOCUS, BUDGET),
    Mutant("an organization is not asked", ((QuotaCache, "quotas_of", only_the_projects_own),), FOCUS, BUDGET),
    Mutant("a project is not asked", ((QuotaCache, "quotas_of", only_the_organizations),), FOCUS, BUDGET),
    Mutant("projects' namespaces are not counted", ((ClusterCache, "selector", of_labels_alone),), FOCUS, BUDGET),
    Mutant(
        "what does not appear of one tenant holds back all of its cluster",
        ((Reservation, "party", property(its_source)), (shares, "add", no_tenants)),
        FOCUS,
        BUDGET,
        tenancy_scenes.what_another_webhook_refuses_of_one_project,
    ),
    Mutant(
        "one tenant fills what its source may have",
        ((shares, "of_source", all_that_its_source_may_have),),
        FOCUS,
        BUDGET,
        tenancy_scenes.a_project_that_fills_its_share,
    ),
    Mutant(
        "one tenant fills the line of its source",
        ((Batcher, "over_share", of_its_source_alone),),
        FOCUS,
        BUDGET,
        tenancy_scenes.a_project_that_fills_its_share,
    ),
)
