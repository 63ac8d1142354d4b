"""The sources that an account counts, and what is known of each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Set

from common.api.catalogue import Catalogue
from common.quota import resources
from common.quota.account import Account, Reservation
from common.quota.resources import ResourceList
from seed.accounts.first_seen import first_seen
from seed.accounts.plan import SourceFacts
from seed.accounts.registry import AccountRegistry
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.usage.source import UsageSource

FirstSeen = Mapping[str, tuple[Reservation, float]]  # by uid: as it is, and since when (monotonic)


class AccountSources:
    def __init__(
        self,
        registry: AccountRegistry,
        sources: Mapping[str, UsageSource],
        proven_at: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`proven_at`: see Counting."""
        self._quota_cache, self._cluster_cache = registry.quota_cache, registry.cluster_cache
        self._registry = registry
        self._sources = sources
        self._proven_at = proven_at
        self._untold: dict[tuple[str, str], FirstSeen] = {}  # by quota uid and source

    def of(self, quota: Quota) -> list[UsageSource]:
        found = (self._sources.get(key) for key in self._registry.source_keys(quota))
        return [source for source in found if source is not None]

    def number(self, quota: Quota) -> int:
        """How many there are, also of those that nobody follows yet."""
        return len(set(self._registry.source_keys(quota)))

    def facts(
        self, quota: Quota, account: Account, may_count: Callable[[Quota, UsageSource], bool]
    ) -> list[SourceFacts]:
        """Of every source that there is, also of those that nobody follows yet."""
        self._registry.recall_projects(quota)
        facts = []
        for key in self._registry.source_keys(quota):
            source = self._sources.get(key)
            countable = source is not None and may_count(quota, source)
            unreachable = source is not None and source.problem is not None
            facts.append(SourceFacts(key, countable=countable, unreachable=unreachable))
        if quota.kind == "organization" and account.fenced:
            known = {fact.key for fact in facts}
            strays = (key for key in self._strays(quota) if key not in known and self._may_use(quota, key))
            facts.extend(SourceFacts(key, countable=False, unreachable=True) for key in strays)
        return facts

    def are_empty(self, quota: Quota) -> bool:
        """Nothing can be created that the quota limits."""
        if self._cluster_cache.limited_on_seed(quota):
            return False
        return all(key.project for key in self._registry.source_keys(quota))

    def unlisted(self, key: str, since: int) -> list[str]:
        """Which kinds of the source lack a list that began after that moment."""
        source = self._sources.get(key)
        return source.in_namespaces.unlisted(since) if source is not None and source.in_namespaces is not None else []

    def counted(self, key: SourceKey, used: ResourceList) -> ResourceList:
        """What the catalogue says is counted from this source. It says nothing of quotas of kind namespaces."""
        if key.quota:
            return used
        of_kind = next((each for each in self._cluster_cache.of_projects if each.kind == key.kind), None)
        counts = of_kind.counts if of_kind is not None else Catalogue.from_objects
        return counts(self._quota_cache.catalogue, used)

    def sure(
        self, quota: Quota, source: UsageSource, reservations: Mapping[str, Reservation]
    ) -> Mapping[str, Reservation]:
        """Without those of something that a count of the source does not tell, as far as is known here: who admitted
        that may know a later limit, or a later catalogue. Once the caches are later than the reservation, it is
        something that was limited before. Not loans: those of which a count does not take care count twice."""
        before = self._untold.pop((quota.key.uid, source.key), {})
        unknown = self._unknown(source, {name for kept in reservations.values() for name in kept.amount})
        if not unknown:
            return reservations
        concerned = {
            uid: kept for uid, kept in reservations.items() if not (kept.replaces or unknown.isdisjoint(kept.amount))
        }
        self._untold[quota.key.uid, source.key] = untold = first_seen(before, concerned, time.monotonic())
        waiting = self._waiting(untold)
        return {uid: kept for uid, kept in reservations.items() if uid not in waiting}

    def withholds(self, quota_uid: str, source: str) -> bool:
        """Whether a count that comes later drops something that the last one kept, though nothing changes there."""
        return bool(self._waiting(self._untold.get((quota_uid, source), {})))

    def keep(self, quota_uids: Set[str]) -> None:
        """Forgets every quota but these."""
        self._untold = {count: untold for count, untold in self._untold.items() if count[0] in quota_uids}

    def _waiting(self, untold: FirstSeen) -> set[str]:
        proven = self._proven_at()
        return {uid for uid, (_, since) in untold.items() if since > proven}

    def _unknown(self, source: UsageSource, names: Set[str]) -> Set[str]:
        """Those of the names that a count of the source does not tell."""
        inside = source.in_namespaces
        told = inside.told if inside is not None else self.counted(source.key, dict.fromkeys(names, 0)).keys()
        return names - told

    def _strays(self, quota: Quota) -> list[SourceKey]:
        """The sources of projects that have something here and no copy, as far as the quota may count them."""
        alone = {each.kind for each in self._cluster_cache.of_projects if each.alone and quota.clusters is None}
        found = [key for key in map(SourceKey, self._sources) if key.kind in alone]
        return [*self._cluster_cache.strays(quota), *(key for key in found if self._quota_cache.lacks(key.project))]

    def _may_use(self, quota: Quota, key: str) -> bool:
        """False where it is known that there is nothing in the source that the quota limits."""
        source = self._sources.get(key)
        return source is None or not source.counted or bool(resources.only(source.totals.used, quota.ceilings))
