"""Deliberate breakages where one account has Machines, namespaces and Allocations: see tests/sim/mutants.py."""

from __future__ import annotations

from typing import Any

import msgspec

from common.quota.account import Account
from seed.accounts import source_count
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.usage.source import UsageSource
from tests.sim.mutant import Mutant

FOCUS = ("members",)
BUDGET = 200

_source_keys = ClusterCache.source_keys
_quotas_of = QuotaCache.quotas_of
_count = source_count.count


def of_namespaces_alone(cache: ClusterCache, quota: Quota) -> list[SourceKey]:
    found = _source_keys(cache, quota)
    return [key for key in found if key.quota] or found


def not_those_of_objects(cache: QuotaCache, consumer: Consumer) -> list[Quota]:
    found = _quotas_of(cache, consumer)
    return found if consumer.quota else [quota for quota in found if not quota.of_objects]


def of_one_kind_at_a_time(account: Account, term: int, source: UsageSource, *more: Any, **seen: Any) -> Account:
    after = _count(account, term, source, *more, **seen)
    same = {key: used for key, used in after.used.items() if SourceKey(key).kind == source.key.kind}
    return msgspec.structs.replace(after, used=same)


ALL: tuple[Mutant, ...] = (
    Mutant(
        "beside namespaces, nothing else is counted",
        ((ClusterCache, "source_keys", of_namespaces_alone),),
        FOCUS,
        BUDGET,
    ),
    Mutant(
        "a quota of namespaces limits no Machines", ((QuotaCache, "quotas_of", not_those_of_objects),), FOCUS, BUDGET
    ),
    Mutant("a count drops the other kinds", ((source_count, "count", of_one_kind_at_a_time),), FOCUS, BUDGET),
)
