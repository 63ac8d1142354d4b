"""The simulated world with ResourceQuotaAllocations: what there is are core ResourceQuotas, of which each namespace
counts with the largest.

A ResourceQuota was admitted for as much of its amount as the quota knew when it said yes: what was reserved for it, on
top of what it was admitted for before, or of what another was that covered its base in that moment.

API servers admit by a ResourceQuota's `status.hard`. Where `spec.hard` was lowered, that follows some time later, in a
write of its own (kube-controller-manager's), of which no webhook is asked. Until then the size here is the larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from common.api.types import Quantities
from common.quota import resources
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.kinds.namespaces.evaluators import resource_quotas
from seed.kinds.namespaces.evaluators.resource_quotas import CoreQuota, CoreQuotaStatus, largest
from tests.sim import namespaces
from tests.sim.checks import Beside, Thing, Truth, Wish
from tests.sim.namespace_world import NamespaceWorld
from tests.sim.namespaces import NamespacedCluster
from tests.sim.servers import PROMISED, Machine, ObjectMeta, Source, Spec, label_of, uid_of
from tests.sim.world import SIZES, Site

ON_TOP = 0.4  # how often the first that fills is put beside the largest that is there
LAGS = 0.5  # ... what is lowered is so in its status later
LAG = (0.5, 5.0, 20.0)  # seconds


class PromiseTruth(Truth):
    def __init__(self, things: Mapping[str, Thing], beside: Callable[[Thing], list[Thing]]) -> None:
        super().__init__(things)
        self._others = beside

    def shares(self, uid: str, thing: Thing, cost: ResourceList) -> ResourceList:
        return largest([cost, *(other.cost.get(uid, {}) for other in self._others(thing))])

    def _reserved(self, kept: Reservation, wish: Wish, name: str) -> int:
        """On top of its own, or of others'."""
        own = (wish.old or {}).get(name, 0)
        return kept.amount.get(name, 0) + max(kept.base.get(name, 0) - own, 0)

    def _admitted(self, uid: str, wish: Wish, need: ResourceList) -> ResourceList:
        before, more = wish.thing.admitted.get(uid, {}), added(wish)
        others, own = wish.reads[0].size, wish.old or {}
        confirmed = wish.reads[-1].admitted.get(uid, {})
        found: dict[str, int] = {}
        for name, size in wish.size.items():
            known, beside = before.get(name, 0), others.get(name, 0)
            if name in need and beside > own.get(name, 0):
                known = max(known, min(beside, size, confirmed.get(name, 0)))
            found[name] = min(size, known + (more.get(name, 0) if name in need else 0))
        return found


def added(wish: Wish) -> ResourceList:
    """What it promises beyond its own old amount, and beyond the others."""
    others, own = wish.reads[0].size, wish.old or {}
    more = {name: size - max(others.get(name, 0), own.get(name, 0)) for name, size in wish.size.items()}
    return {name: amount for name, amount in more.items() if amount > 0}


class PromiseWorld(NamespaceWorld):
    evaluator = resource_quotas.EVALUATOR
    subject = PROMISED

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.lowered: dict[str, tuple[ResourceList, ResourceList]] = {}  # by name: the spec, and the status above it
        self.lags, self.lag = LAGS, LAG
        super().__init__(*arguments, **options)

    def make(self, name: str, namespace: str, size: ResourceList, generation: int) -> CoreQuota:  # type: ignore[override]
        spec, status = self.lowered.get(name, (size, size if generation else {}))
        found = namespaces.core_quota(name, namespace, spec if size == status else size, generation)
        status_hard: Quantities = {resource: f"{amount}n" for resource, amount in status.items()}
        return msgspec.structs.replace(found, status=CoreQuotaStatus(hard=status_hard))

    def finish(self, wish: Wish, *, persists: bool) -> None:
        """What is lowered may be lowered in the status later."""
        thing, before, known = wish.thing, wish.thing.size, self.lowered.pop(wish.thing.uid, None)
        generation = wish.generation
        lowers = before is not None and any(wish.size[name] < amount for name, amount in before.items())
        if before is not None and lowers and self.rng.random() < self.lags:
            self._lag(wish, before if known is None else known[1])
        super().finish(wish, persists=persists)
        if thing.generation != generation and before is not None:
            self.lowered.pop(thing.uid, None)
            if known is not None and thing.size is not None:
                self.lowered[thing.uid] = known
        elif thing.uid in self.lowered:
            self.later.append((self.now + self.rng.choice(self.lag), lambda: self._follow(thing, generation)))

    def _lag(self, wish: Wish, status: ResourceList) -> None:
        self.lowered[wish.thing.uid] = wish.size, status
        wish.size = resources.maximum(wish.size, status)
        for uid, after in wish.after.items():
            held = {name: min(n, status.get(name, 0)) for name, n in wish.thing.admitted.get(uid, {}).items()}
            wish.after[uid] = resources.maximum(after, held)

    def _follow(self, thing: Thing, generation: int) -> None:
        """kube-controller-manager writes the status, if nobody has written the object since."""
        source = self._cluster(thing)
        if thing.size is None or thing.generation != generation or thing.uid not in self.lowered:
            return
        if not source.up:
            self.later.append((self.now + 1.0, lambda: self._follow(thing, generation)))
            return
        before = source.machines[thing.uid]
        thing.size, _ = self.lowered.pop(thing.uid)
        thing.generation += 1
        for uid, amounts in thing.admitted.items():
            thing.admitted[uid] = {name: min(amount, thing.size[name]) for name, amount in amounts.items()}
        source.write(before, Machine(ObjectMeta(uid_of(thing.uid), thing.uid, thing.generation), thing.size))
        if self.tracing:
            self.note(f"  the status of {thing.uid} follows, generation {thing.generation}")
        self.truth.recount(thing)

    def delete(self, thing: Thing) -> None:
        self.lowered.pop(thing.uid, None)
        super().delete(thing)

    def _make_truth(self) -> Truth:
        return PromiseTruth(self.things, self._others)

    def _others(self, thing: Thing) -> list[Thing]:
        """Of its namespace."""
        source = self._cluster(thing)
        inside = source.inside[thing.uid]
        return [
            other
            for other in self.things.values()
            if other is not thing and other.source == thing.source and source.inside[other.uid] == inside
        ]

    def _beside(self, thing: Thing) -> Beside:
        there = [other for other in self._others(thing) if other.size is not None]
        uids = {uid for other in there for uid in other.admitted}
        sizes = largest(other.size for other in there if other.size is not None)
        return Beside(sizes, {uid: largest(other.admitted.get(uid, {}) for other in there) for uid in uids})

    def _needed(self, wish: Wish) -> ResourceList:
        return added(wish) if wish.reads else wish.need

    # What is counted -----------------------------------------------------------------------------------------------

    def _largest(self, source: Source, without: Collection[str] = ()) -> dict[str, ResourceList]:
        """By namespace."""
        assert isinstance(source, NamespacedCluster), "there are no others here"
        inside: dict[str, list[ResourceList]] = {}
        for uid, machine in source.machines.items():
            if uid not in without:
                inside.setdefault(source.inside[uid], []).append(machine.resources)
        return {name: largest(found) for name, found in inside.items()}

    def _counted(self, spec: Spec, source: NamespacedCluster) -> dict[str, int]:
        found = self._largest(source).items()
        return resources.total(amounts for name, amounts in found if self._selects(spec, source, name))

    def there(self, site: Site, subject: str, without: Collection[str] = ()) -> dict[str, int]:
        label = label_of(subject)
        return resources.total(
            amounts
            for source in site.sources.values()
            if isinstance(source, NamespacedCluster) and source.participates
            for name, amounts in self._largest(source, without).items()
            if label in source.labelled(name)
        )

    def _place(self, left: dict[str, dict[str, int]]) -> None:
        site = self.rng.choice(list(self.sites.values()))
        source = self.rng.choice(list(site.sources.values()))
        assert isinstance(source, NamespacedCluster), "there are no others here"
        size = self.rng.choice(SIZES)
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        source.inside[thing.uid] = inside = self.rng.choice(list(source.labels.present))
        applying = self._applying(thing)
        more = resources.at_least_zero(resources.subtract(size, self._largest(source).get(inside, {})))
        if any(resources.short(resources.only(more, spec.limits), left[spec.key.name]) for spec in applying):
            return
        admitted = {spec.key.uid: resources.only(size, spec.limits) for spec in applying}
        self._was_admitted(source, thing, size, admitted)
        self._take(left, applying, more)

    def create_in(self, site: Site, source: NamespacedCluster, namespace: str, size: ResourceList) -> Wish:
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        self.things[thing.uid] = thing
        source.inside[thing.uid] = namespace
        return self._wish(site, source, thing, size, size)

    # How it is filled ----------------------------------------------------------------------------------------------

    def create(self, site: Site, source: Source, size: ResourceList, replaces: Collection[str] = ()) -> Wish:
        """While it is filled, each in a namespace of its own; or one on top of the largest that is there."""
        assert isinstance(source, NamespacedCluster), "there are no others here"
        if not source.filling or source.filling not in source.labels.present:
            return super().create(site, source, size, replaces)
        labels = list(source.labelled(source.filling))
        filled = any(source.inside.get(wish.thing.uid) == source.filling for wish in self.wishes)
        if not filled and self.rng.random() < ON_TOP:
            size = resources.add(self._largest(source).get(source.filling, {}), size)
            return super().create(site, source, size, replaces)
        before, source.filling = source.filling, f"n{self.token()}"
        source.label(source.filling, labels)
        try:
            return super().create(site, source, size, replaces)
        finally:
            source.filling = before
