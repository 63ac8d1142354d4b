"""What core ResourceQuotas promise in the namespaces that a quota selects in one cluster. Pure but for being mutable.

A namespace counts with the largest amount of each resource. A ResourceQuota that was admitted on top of another's
amount names that as its base: until it was seen, the namespace counts with at least the base. Else the other could go
meanwhile, and its amount be given away (rule 4.14).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping
from typing import Any

from common.kube.client.meta import Object
from common.quota import resources
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator, Terms
from seed.kinds.namespaces.evaluators.resource_quotas import (
    CoreQuota,
    Scopes,
    has_scopes,
    limits_all,
    promised,
    scopes_of,
)
from seed.kinds.namespaces.totals import ObjectTotals
from seed.model.reserved_object import parse_object


class PromiseTotals(ObjectTotals):
    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._scopes: dict[str, Scopes] = {}  # by uid, of those that have some
        self._amounts: dict[tuple[str, str], list[int]] = {}  # by namespace and name, all that is promised, sorted
        self._limiting: dict[tuple[str, str], Counter[Scopes]] = {}  # ... how many limit it to which pods
        self._lacking: dict[str, tuple[frozenset[str], list[str]]] = {}  # of what, until one of the namespace changes

    def put(self, evaluator: NamespacedEvaluator[Any], subject: Object, now: float) -> tuple[bool, bool]:
        assert isinstance(subject, CoreQuota), "nothing else promises"
        uid, scopes = subject.metadata.uid, scopes_of(subject, self.terms.scopes)
        rescoped = scopes != self._scopes.get(uid, Scopes())
        self._limit(uid, -1)
        if scopes:
            self._scopes[uid] = scopes
        else:
            self._scopes.pop(uid, None)
        changed, freed = super().put(evaluator, subject, now)
        self._limit(uid, 1)
        return changed or rescoped, freed

    def remove(self, uid: str) -> bool:
        self._limit(uid, -1)
        self._scopes.pop(uid, None)
        return super().remove(uid)

    def leave(self, namespace: str) -> None:
        self._lacking.pop(namespace, None)
        for name in self.terms.limited:
            self._amounts.pop((namespace, name), None)
            self._limiting.pop((namespace, name), None)
        super().leave(namespace)

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

    def lacking(self, namespace: str, limited: frozenset[str]) -> list[str]:
        """What its ResourceQuotas do not limit, or not for all its pods. One that allows nothing limits it."""
        if namespace not in self._uids:
            return sorted(limited)
        known = self._lacking.get(namespace)
        if known is None or known[0] != limited:
            found = sorted(name for name in limited if not limits_all(self._limiting.get((namespace, name), ())))
            known = self._lacking[namespace] = frozenset(limited), found
        return known[1]

    def _limit(self, uid: str, sign: int) -> None:
        known = self._known(uid)
        if known is None:
            return
        self._lacking.pop(known.place, None)
        scopes = self._scopes.get(uid, Scopes())
        for name in known.used:
            key = known.place, name
            several = self._limiting.setdefault(key, Counter())
            several[scopes] += sign
            if not several[scopes]:
                del several[scopes]
            if not several:
                del self._limiting[key]

    def _forget(self, uid: str) -> None:
        super()._forget(uid)
        self._scopes.pop(uid, None)

    def _uses(self, evaluator: NamespacedEvaluator[Any], subject: Any, now: float) -> ResourceList:
        return promised(subject, self.terms.limited) if has_scopes(subject, self.terms.scopes) else {}

    def _moved(self, place: str, before: ResourceList, after: ResourceList) -> None:
        """Without a look at the others: a namespace may have very many."""
        for name in before.keys() | after.keys():
            amounts = self._amounts.setdefault((place, name), [])
            was = amounts[-1] if amounts else 0
            if name in before:
                del amounts[bisect_left(amounts, before[name])]
            if name in after:
                insort(amounts, after[name])
            now = amounts[-1] if amounts else 0
            if not amounts:
                del self._amounts[place, name]
            if now != was:
                self._add(place, {name: now - was}, 1)


def totals_of(terms: Terms) -> ObjectTotals:
    return PromiseTotals(terms) if terms.promises else ObjectTotals(terms)
