"""What core ResourceQuotas promise in the namespaces that a quota selects in one cluster. Pure but for being mutable.

A namespace counts with the largest amount of each resource. A ResourceQuota that was admitted on top of another's
amount names that as its base: until it was seen, the namespace counts with at least the base. Else the other could go
meanwhile, and its amount be given away (rule 4.14).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from common.quota import resources
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.cache.source_keys import parse_object
from seed.evaluators.namespaced import NamespacedEvaluator, Terms
from seed.evaluators.resource_quotas import largest, promised
from seed.usage.object_totals import ObjectTotals


class PromiseTotals(ObjectTotals):
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
        """What none of its ResourceQuotas has. One that allows nothing has it."""
        found = {name for uid in self._uids.get(namespace, ()) for name in self._objects[uid].used}
        return sorted(name for name in limited if name not in found)

    def _uses(self, evaluator: NamespacedEvaluator[Any], subject: Any, now: float) -> ResourceList:
        return promised(subject, self.terms.limited)

    def _moved(self, namespace: str, before: ResourceList, after: ResourceList) -> None:
        self._add(namespace, dict(self.by_namespace.get(namespace, {})), -1)
        self._add(namespace, largest(self._objects[uid].used for uid in self._uids.get(namespace, ())), 1)


def totals_of(terms: Terms) -> ObjectTotals:
    return PromiseTotals(terms) if terms.promises else ObjectTotals(terms)
