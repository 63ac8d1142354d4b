"""The simulated world with namespaces where two kinds of objects cost, and one of them cannot be listed for a while.

Pods use everything that is limited, claims only memory. An agent that starts while one kind cannot be listed has the
last counts of an earlier one, and goes on from them with the other kind.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from common.quota import resources
from common.quota.account import Account
from common.quota.object_names import PODS, RESOURCE_CLAIMS
from common.quota.resources import ResourceList
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator
from seed.kinds.namespaces.source import NamespacedSource
from tests.sim import namespaces
from tests.sim.checks import Thing, Wish
from tests.sim.namespace_side import NamespaceLeader
from tests.sim.namespace_world import NamespaceWorld
from tests.sim.namespaces import NamespacedCluster
from tests.sim.seed_side import Decided, Replica
from tests.sim.servers import Source
from tests.sim.world import Site

CLAIMS = 0.4  # of what is created


class KindsWorld(NamespaceWorld):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.counted_partly = 0
        super().__init__(*arguments, **options)

    def _make_quotas(self) -> None:
        super()._make_quotas()
        self.swarm.rates.setdefault("crash", 1.0)

    def _evaluator_of(self, source: NamespacedCluster, name: str) -> NamespacedEvaluator[Any]:
        return namespaces.CLAIMS_EVALUATOR if name in source.claimed else namespaces.PODS_EVALUATOR

    def create(self, site: Site, source: Source, size: ResourceList, replaces: Collection[str] = ()) -> Wish:
        self._of_claims = not self.working and self.rng.random() < CLAIMS
        return super().create(site, source, resources.only(size, ("memory",)) if self._of_claims else size, replaces)

    def _choose(self, source: Source, thing: Thing) -> None:
        super()._choose(source, thing)
        assert isinstance(source, NamespacedCluster), "there are no others here"
        if self._of_claims:
            source.claimed.add(thing.uid)

    def slip(self, source: Source, size: ResourceList) -> None:
        self._of_claims = False
        super().slip(source, size)

    def resize(self, site: Site, source: Source, thing: Thing, size: ResourceList) -> None:
        assert isinstance(source, NamespacedCluster), "there are no others here"
        super().resize(site, source, thing, resources.only(size, ("memory",)) if thing.uid in source.claimed else size)

    def break_a_kind(self, source: Source) -> None:
        """Or repair it."""
        assert isinstance(source, NamespacedCluster), "there are no others here"
        broken = self.rng.choice((PODS, RESOURCE_CLAIMS))
        source.unlistable = set() if source.unlistable else {broken}
        if self.tracing:
            self.note(f"  cannot be listed in {source.key}: {sorted(map(str, source.unlistable))}")

    def repair(self) -> None:
        for site in self.sites.values():
            for source in site.sources.values():
                assert isinstance(source, NamespacedCluster), "there are no others here"
                source.unlistable.clear()
        super().repair()

    def _written(self, replica: Replica, uid: str, before: Account, after: Account, decided: Decided) -> None:
        leader = replica.leader
        for key, source in leader.namespaces.items() if isinstance(leader, NamespaceLeader) else ():
            if cast(NamespacedSource, source)._partial and before.used.get(key) != after.used.get(key):
                self.counted_partly += 1
                if before.fenced:
                    self.fail(f"{key} was counted in part in a fenced account")
        super()._written(replica, uid, before, after, decided)
