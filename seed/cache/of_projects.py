"""What the engine knows of a kind that each project has one source of, counted on the seed itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.api.catalogue import Catalogue
from common.quota.resources import ResourceList
from seed.cache.quotas import QuotaCache
from seed.model.quota import Quota

Counts = Callable[[Catalogue, ResourceList], ResourceList]


@dataclass(frozen=True, kw_only=True)
class OfProjects:
    """`kind`: what the keys of its sources begin with. `asked`: its name where it is told whether the seed's own API
    server asks about it. `is_there`: whether this seed counts it. `limits`: whether some limit of the quota holds only
    if the API server asks. `counts`: what the catalogue says is counted of what a source has. `alone`: a project may
    have some of it here, and no cluster."""

    kind: str
    asked: str
    is_there: Callable[[QuotaCache], bool]
    limits: Callable[[QuotaCache, Quota], bool]
    counts: Counts = lambda catalogue, amounts: catalogue.from_objects(amounts)
    alone: bool = False
