"""On which Seeds a quota limits what is there. Pure."""

from __future__ import annotations

import msgspec

from common.api import seed_selector
from common.api.seed_selector import SeedSelector
from common.api.types import Seed
from master.cache.objects import MasterQuota


def picks(selector: SeedSelector | None, seed: Seed) -> bool:
    """`selector`: `subject.seeds`; None: every Seed."""
    return selector is None or seed_selector.picks(selector, seed.metadata.name, seed.metadata.labels)


def is_of_seeds(quota: MasterQuota) -> bool:
    return _selector(quota) is not None


def limits_on(quota: MasterQuota, seed: Seed) -> bool:
    """Raises msgspec.ValidationError for what the API server should have refused."""
    found = _selector(quota)
    return picks(msgspec.convert(found, SeedSelector) if found is not None else None, seed)


def _selector(quota: MasterQuota) -> object:
    subject = quota.spec.get("subject")
    return subject.get("seeds") if isinstance(subject, dict) else None
