"""What core ResourceQuotas promise in the namespaces that a quota selects in one cluster. Pure but for being mutable.

A namespace counts with the largest amount of each resource. A ResourceQuota that was admitted on top of another's
amount names that as its base: until it was seen, the namespace counts with at least the base. Else the other could go
meanwhile, and its amount be given away (rule 4.14).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from typing import Any

from common.kube.client.meta import Object
from common.quota import resources
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.cache.source_keys import parse_object
from seed.evaluators.namespaced import NamespacedEvaluator, Terms
from seed.evaluators.resource_quotas import CoreQuota, Scopes, limits_all, promised, scopes_of
from seed.usage.object_totals import ObjectTotals


class PromiseTotals(ObjectTotals):
    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._scopes: dict[str, Scopes] = {}  # by uid, of those that have some
        self._amounts: dict[tuple[str, str], list[int]] = {}  # by namespace and name, all that is promised, sorted

    def put(self, evaluator: NamespacedEvaluator[Any], subject: Object, now: float) -> tuple[bool, bool]:
        assert isinstance(subject, CoreQuota), "nothing else promises"
        uid, scopes = subject.metadata.uid, scopes_of(subject)
        rescoped = scopes != self._scopes.get(uid, Scopes())
        if scopes:
            self._scopes[uid] = scopes
        else:
            self._scopes.pop(uid, None)
        changed, freed = super().put(evaluator, subject, now)
        return changed or rescoped, freed

    def remove(self, uid: str) -> bool:
        self._scopes.pop(uid, None)
        return super().remove(uid)

    def used_beside(self, reservations: Mapping[str, Reservation]) -> ResourceList:
        bases: dict[str, ResourceList] = {}
        for reservation in reservations.values():
            if reservation.base:
                _, namespace, _ = parse_object(reservation.object)
                bases[namespace] = resources.maximum(bases.get(namespace, {}), reservation.base)
        used: ResourceList = self.used
        for namespace, base in bases.items():
            inside = self.by_namespace.get(namespace, {})
            used = resources.add(used, {name: more for name in base if (more := base[name] - inside.get(name, 0)) > 0})
        return used

    def lacking(self, namespace: str, limited: Collection[str]) -> list[str]:
        """What its ResourceQuotas do not limit, or not for all its pods. One that allows nothing limits it."""
        found: dict[str, set[Scopes]] = {}
        for uid in self._uids.get(namespace, ()):
            for name in self._objects[uid].used:
                found.setdefault(name, set()).add(self._scopes.get(uid, Scopes()))
        return sorted(name for name in limited if not limits_all(found.get(name, ())))

    def _uses(self, evaluator: NamespacedEvaluator[Any], subject: Any, now: float) -> ResourceList:
        return promised(subject, self.terms.limited)

    def _moved(self, namespace: str, before: ResourceList, after: ResourceList) -> None:
        """Without a look at the others: a namespace may have very many."""
        for name in before.keys() | after.keys():
            amounts = self._amounts.setdefault((namespace, name), [])
            was = amounts[-1] if amounts else 0
            if name in before:
                del amounts[bisect_left(amounts, before[name])]
            if name in after:
                insort(amounts, after[name])
            now = amounts[-1] if amounts else 0
            if not amounts:
                del self._amounts[namespace, name]
            if now != was:
                self._add(namespace, {name: now - was}, 1)


def totals_of(terms: Terms) -> ObjectTotals:
    return PromiseTotals(terms) if terms.promises else ObjectTotals(terms)
