"""What one quota's namespaces have in one cluster, and from which lists that may be counted.

The sum stays while the cluster cannot be reached. It is replaced by a sum of complete lists. Where some kind cannot be
listed, it is replaced in part: what an account has of that kind stays (`doubtful`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from common.api.label_selector import LabelSelector
from common.kube.client.errors import Unavailable
from common.kube.controller.reflector import moment
from common.quota import resources
from common.quota.resources import ResourceList
from seed.kinds.namespaces.cluster_objects import ClusterObjects, QuotaNamespaces
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.evaluators.registry import evaluator_of
from seed.kinds.namespaces.totals import ObjectTotals
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.model.reserved_object import parse_object
from seed.model.source_key import SourceKey
from seed.usage.source import NOT_LISTED, Generation, Problem

_IN_DOUBT = (
    "{} was counted, and its kind is not served any more; that does not prove that it is gone: serve it again. If "
    "nothing of it is left, create its CustomResourceDefinition, and delete that once it has been counted"
)


class NamespacedSource:
    """`_counted` stands behind the sum; `_next`, while there is one, takes its place when all that it needs is listed,
    or when something of that cannot be (`_partial`).
    """

    def __init__(
        self,
        quota: Quota,
        cluster: str,
        *,
        on_change: Callable[[NamespacedSource, bool], None],
        on_state: Callable[[NamespacedSource], None],
        unreached: Callable[[str], Problem | None],
        had: Callable[[Quota, SourceKey], ResourceList | None],
    ) -> None:
        """`unreached`: why there is no connection to the cluster, as far as that is known. `had`: what the quota's
        account has of this source; None while that is not known. Then `look` is called once it is."""
        self.key, self.cluster = SourceKey.of_namespaces(quota.key.uid, cluster), cluster
        self.consumer = Consumer("", cluster, quota.name)
        self.problem: Problem | None = None
        self.lost_at: float | None = None
        self._quota, self._on_change, self._on_state = quota, on_change, on_state
        self._selector: LabelSelector | None = None  # of its namespaces in this cluster; None: it has none there
        self._unreached, self._had = unreached, had
        self._objects: ClusterObjects | None = None  # of the connection that there is
        self._counted: QuotaNamespaces | None = None
        self._next: QuotaNamespaces | None = None
        self._partial = False  # `_counted` was never listed wholly
        self._lists_from = 0  # the moment after which its lists must begin: also those of kinds that it counts later
        self._listed_from = 0  # as was told last
        self._terms = Terms(limited=frozenset())  # by which it is to be counted
        self._nothing = ObjectTotals(self._terms)

    @property
    def totals(self) -> ObjectTotals:
        return self._counted.totals if self._counted is not None else self._nothing

    @property
    def in_namespaces(self) -> NamespacedSource:
        return self

    def labels(self, namespace: str) -> Mapping[str, str]:
        found = self._counted.objects.namespaces.store.get(namespace) if self._counted is not None else None
        return found.metadata.labels if found is not None else {}

    @property
    def lacking(self) -> dict[str, list[str]]:
        """By namespace, what of the quota's promises no core ResourceQuota has."""
        return self._counted.lacking(frozenset(self._quota.limits)) if self._counted is not None else {}

    @property
    def not_served(self) -> frozenset[str]:
        return self._counted.not_served if self._counted is not None else frozenset()

    @property
    def counted(self) -> bool:
        return self._counted is not None and not self._partial

    @property
    def current(self) -> bool:
        return self._counted is not None and self._counted.objects is self._objects and self.problem is None

    @property
    def live(self) -> bool:
        return self._counted is not None and self._counted.objects is self._objects and self._counted.live

    @property
    def listed_from(self) -> int:
        return self._counted.listed_from if self._counted and not self._partial and not self._untold else 0

    @property
    def told(self) -> frozenset[str]:
        return self.totals.terms.limited

    @property
    def _untold(self) -> frozenset[str]:
        """What the quota limits by now, and the sum does not tell yet."""
        return self._terms.limited - self._counted.terms.limited if self._counted is not None else frozenset()

    def doubtful(self, since: float) -> frozenset[str] | None:
        counted = self._counted
        names = counted.doubtful(since) if counted is not None else None
        kept = self._kept(counted) if counted is not None and self._partial else {}
        return names.union(kept, self._untold) if names is not None and kept is not None else None

    @property
    def namespaces(self) -> list[str] | None:
        """Those that it counts, without those that are being deleted; None while that is not known."""
        counted = self._counted if not self._partial else None
        return counted.present if counted is not None and counted.objects is self._objects else None

    def unlisted(self, since: int) -> list[str]:
        latest = self._next or self._counted
        return latest.unlisted(since) if latest is not None and latest.objects is self._objects else []

    def relist(self) -> None:
        self._lists_from = moment()
        for counting in (self._counted, self._next):
            if counting is not None:
                counting.relist(self._lists_from)

    async def generation(self, namespaced_name: str, uid: str) -> Generation:
        """The object's resourceVersion as a number: see seed/model/reserved_object.py."""
        objects = self._objects
        if objects is None:
            raise Unavailable(0, "Unavailable", f"cluster {self.cluster} is not connected")
        kind, namespace, name = parse_object(namespaced_name)
        latest = self._next or self._counted
        known = latest.evaluators.get if latest is not None and latest.objects is objects else evaluator_of
        evaluator = known(kind)
        if evaluator is None:
            return None  # the quota limits nothing of it any more: it would never be seen
        return await objects.generation(self._selector, evaluator, namespace, name, uid)

    def want(self, quota: Quota, terms: Terms, selector: LabelSelector | None, objects: ClusterObjects | None) -> None:
        """Counts by these from now on, as soon as all that they need is listed. `objects`: of the connection."""
        self._quota, self._terms, self._selector, self._objects = quota, terms, selector, objects
        latest = self._next or self._counted
        if objects is None:
            self._end_next()
        elif latest is None or latest.objects is not objects or (latest.terms, latest.selector) != (terms, selector):
            self._end_next()
            self._next = QuotaNamespaces(objects, selector, terms, self._changed)
            objects.add(self._next)
            if self._lists_from:
                self._next.relist(self._lists_from)
        self.look()

    def look(self) -> None:
        """What is listed may have changed, and what cannot be."""
        if (pending := self._pending) is not None and self._is_complete(pending):
            self._take_over(pending, partial=False)
        problem = self._found_problem()
        if problem is not None and self._next is not None and self._may_stand(self._next):
            self._take_over(self._next, partial=True)
        self.lost_at = None if problem is None else self.lost_at or time.monotonic()
        before, now = (self.problem, self._listed_from), (problem, self.listed_from)
        self.problem, self._listed_from = now
        if before != now:
            self._on_state(self)

    def end(self) -> None:
        self._end_next()
        if self._counted is not None:
            self._counted.objects.discard(self._counted)

    def _changed(self, counting: QuotaNamespaces, freed: bool) -> None:
        if counting is self._counted:
            self._on_change(self, freed)
            if counting.terms.promises:
                self._on_state(self)  # also a namespace that has nothing is shown

    def _end_next(self) -> None:
        if self._next is not None:
            self._next.objects.discard(self._next)
            self._next = None

    def _take_over(self, counting: QuotaNamespaces, *, partial: bool) -> None:
        before, self._counted, self._partial = self._counted, counting, partial
        if counting is self._next:
            self._next = None
            if before is not None:
                before.objects.discard(before)
        self._on_change(self, True)
        self._on_state(self)

    @property
    def _pending(self) -> QuotaNamespaces | None:
        return self._next or (self._counted if self._partial else None)

    def _is_complete(self, counting: QuotaNamespaces) -> bool:
        return bool(counting.listed_from) and self._kept(counting) == {}

    def _may_stand(self, counting: QuotaNamespaces) -> bool:
        """In part. What is listed once stays so: it tells no less than what it takes the place of."""
        return counting.is_part_listed and self._kept(counting) is not None

    def _kept(self, counting: QuotaNamespaces) -> ResourceList | None:
        """What the account has of kinds that nobody has seen served since. None: the account is not known yet."""
        unseen = counting.unseen - counting.absent
        had = self._had(self._quota, self.key) if unseen else {}
        if had is None:
            return None
        kept = {name: had[name] for name in counting.terms.counting(unseen) if had.get(name)}
        counting.absent.update(kind for kind in unseen if kept.keys().isdisjoint(counting.terms.counting({kind})))
        return kept

    def _found_problem(self) -> Problem | None:
        if self._objects is None:
            return self._unreached(self.cluster)
        problem, pending = self._objects.problem(self._next or self._counted), self._pending
        kept = self._kept(pending) if problem is None and pending is not None else None
        return Problem(NOT_LISTED, _IN_DOUBT.format(resources.text(kept))) if kept else problem
