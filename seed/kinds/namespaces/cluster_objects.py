"""The objects in namespaces of one cluster, through one connection: a watch cache for each kind that some quota limits.

All quotas share the watch caches. What one of them counts there is a `QuotaNamespaces`: the namespaces that it selects,
and the sum over their objects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any

from common.api.label_selector import LabelSelector
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Malformed, Unavailable
from common.kube.client.meta import Object
from common.kube.client.resource import by_name
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.quota.object_names import GroupResource
from common.runtime.unexpected import contained, kept_task
from seed.kinds.namespaces.cache import NAMESPACES, Namespace
from seed.kinds.namespaces.entering import AT_ONCE, Entering
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator, Terms
from seed.kinds.namespaces.evaluators.registry import evaluators_of
from seed.kinds.namespaces.kind_informer import KindInformer, Unread, find_kind
from seed.kinds.namespaces.listing_problem import listing_problem, listing_problems
from seed.kinds.namespaces.promise_totals import PromiseTotals, totals_of
from seed.kinds.namespaces.releases import Releases
from seed.model.reserved_object import generation_of
from seed.model.selected_namespaces import OF_USER_CLUSTERS, Exempt, picks
from seed.usage.source import NOT_LISTED, Generation, Problem, Taken

SOON = 0.1  # seconds between two calls that tell what is listed by now


class QuotaNamespaces:
    """`selector`: of its namespaces; None: it has none. `on_change(itself, freed)`: what is counted has changed."""

    def __init__(
        self,
        objects: ClusterObjects,
        selector: LabelSelector | None,
        terms: Terms,
        on_change: Callable[[QuotaNamespaces, bool], None],
    ) -> None:
        self.objects = objects
        self.selector = selector
        self.totals = totals_of(terms)
        self.selected: set[str] = set()  # namespaces
        # Those of which not all is counted yet: as of which lists all else is. None: not all were looked at yet.
        self.entering: dict[str | None, int] = {}
        self.untaken: dict[str, tuple[str, str]] = {}  # by uid: namespace and name of what could not be counted
        self.evaluators = evaluators_of(terms)
        self.absent: set[GroupResource] = set()  # kinds `unseen` of which nothing was counted before either
        self.on_change = on_change

    @property
    def terms(self) -> Terms:
        return self.totals.terms

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it counts a namespace with these labels."""
        return self.objects.selects(self.selector, labels)

    @property
    def kinds(self) -> Set[GroupResource]:
        return self.evaluators.keys()

    def lacking(self, limited: frozenset[str]) -> dict[str, list[str]]:
        """By namespace, what of these promises no core ResourceQuota has."""
        totals = self.totals
        if not isinstance(totals, PromiseTotals):
            return {}
        return {name: lacking for name in self.selected if (lacking := totals.lacking(name, limited))}

    @property
    def informers(self) -> list[KindInformer]:
        """Of its kinds. One that is missing has not been looked for yet."""
        return [found for kind in self.kinds if (found := self.informer(kind)) is not None]

    def informer(self, kind: GroupResource) -> KindInformer | None:
        return self.objects.informers.get(self.evaluators[kind])

    @property
    def listed_from(self) -> int:
        """The moment at which the first of all its lists began; 0 before all are complete."""
        informers, namespaces = self.informers, self.objects.namespaces
        if not namespaces.synced.is_set() or len(informers) < len(self.kinds):
            return 0
        if not all(informer.synced for informer in informers):
            return 0
        return min([self._namespaces_from, *(informer.listed_from for informer in informers)])

    @property
    def is_part_listed(self) -> bool:
        """The namespaces, and at least one of its kinds."""
        synced = self.objects.namespaces.synced.is_set() and not self.entering
        return synced and any(informer.synced for informer in self.informers)

    def unlisted(self, since: int) -> list[str]:
        """What it needs and lacks a complete list of that began after that moment."""
        lacking = [str(kind) for kind in self._unlisted_kinds(since)]
        return sorted(lacking if self._has_namespaces(since) else [*lacking, "namespaces"])

    def doubtful(self, since: float) -> frozenset[str] | None:
        """The names of resources that count a kind without a complete list that began after that moment. None: without
        such a list of the namespaces nothing is known."""
        return self.terms.counting(self._unlisted_kinds(since)) if self._has_namespaces(since) else None

    def _has_namespaces(self, since: float) -> bool:
        return self.objects.namespaces.synced.is_set() and self._namespaces_from > since

    @property
    def _namespaces_from(self) -> int:
        return min([self.objects.namespaces.listed_from, *self.entering.values()])

    def _unlisted_kinds(self, since: float) -> frozenset[GroupResource]:
        listed = {each.resource for each in self.informers if each.synced and each.listed_from > since}
        return frozenset(self.kinds - listed)

    @property
    def live(self) -> bool:
        """Of what was listed."""
        return self.objects.namespaces.live and all(informer.live for informer in self.informers if informer.synced)

    @property
    def present(self) -> list[str]:
        """The namespaces that it counts, without those that are being deleted."""
        found = ((name, self.objects.namespaces.store.get(name)) for name in self.selected)
        return [name for name, there in found if there is not None and there.metadata.deletion_timestamp is None]

    @property
    def unseen(self) -> frozenset[GroupResource]:
        """Its kinds that are not served, and were not since they are followed here."""
        return frozenset(informer.resource for informer in self.informers if informer.unseen)

    @property
    def not_served(self) -> frozenset[str]:
        """The names of resources whose kinds are not served, and have nothing."""
        nothing = {each.resource for each in self.informers if each.served is None and each.synced}
        return self.terms.counting(nothing)

    def relist(self, since: int) -> None:
        """Asks for a fresh list of each whose list began before that moment."""
        if self.objects.namespaces.listed_from <= since:
            self.objects.namespaces.relist()
        for informer in self.informers:
            if informer.listed_from <= since:
                informer.relist()


class ClusterObjects:
    """`run()` it. `on_list()` is called after something was listed, or when it cannot be or can again."""

    def __init__(
        self,
        key: str,
        cluster: Cluster,
        on_list: Callable[[], None],
        *,
        exempt: Exempt = OF_USER_CLUSTERS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.key = key
        self._cluster = cluster
        self._on_list = on_list
        self._exempt = exempt
        self._clock = clock
        self._news = asyncio.Event()
        self.namespaces: Reflector[Namespace] = Reflector(
            cluster, NAMESPACES, on_change=self._namespace_changed, on_state=self._news.set
        )
        self.informers: dict[NamespacedEvaluator[Any], KindInformer] = {}
        self._tasks: dict[NamespacedEvaluator[Any], asyncio.Task[None]] = {}
        self._counting: dict[QuotaNamespaces, None] = {}  # in order
        self._selecting: dict[str, dict[QuotaNamespaces, None]] = {}  # ... by namespace
        self._entering = Entering(self._subjects, self._put_present, self._look_at, self._entered)
        self.releases = Releases(clock, self._released)
        self._ended = False

    async def run(self) -> None:
        """Until cancelled."""
        running = [
            asyncio.create_task(self.namespaces.run(), name=f"namespaces of {self.key}"),
            kept_task("what ends", self.releases.run, self.key),
            kept_task("what enters", self._entering.run, self.key),
        ]
        try:
            while True:
                await self._news.wait()
                self._news.clear()  # what comes from now on calls again
                with contained("namespaces", self.key):
                    self._on_list()
                await asyncio.sleep(SOON)
        finally:
            self._ended = True
            tasks = [*running, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, counting: QuotaNamespaces) -> None:
        self._counting[counting] = None
        self._follow()
        names, left = self.namespaces.store.keys(), AT_ONCE
        if len(names) > AT_ONCE:
            self._entering.begin_all(counting, names)
            return
        for name in names:
            left -= self._look_at(counting, name, left)

    def discard(self, counting: QuotaNamespaces) -> None:
        self._counting.pop(counting, None)
        self._entering.end(counting, None)
        for name in [name for name, selecting in self._selecting.items() if counting in selecting]:
            self._forget(counting, name)
        self._follow()

    def selects(self, selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
        return selector is not None and picks(selector, labels, self._exempt)

    def problem(self, counting: QuotaNamespaces | None) -> Problem | None:
        """Why it cannot be counted wholly."""
        problems = self._problems(counting.kinds if counting is not None else ())
        if not problems and counting is not None and counting.untaken:
            first = next(name for _, name in counting.untaken.values())
            return Problem(NOT_LISTED, f"{len(counting.untaken)} objects cannot be counted, such as {first}")
        if not problems:
            return None
        found = next((each for each in problems.values() if each.reason != NOT_LISTED), None)
        return found or Problem(NOT_LISTED, "; ".join(problems[name].message for name in sorted(problems)))

    def _problems(self, kinds: Collection[GroupResource]) -> dict[str, Problem]:
        """By resource: what of these cannot be listed."""
        error, untaken = self.namespaces.error, self.namespaces.untaken
        status = self.namespaces.error_status if error is not None else 200
        of_namespaces = listing_problem("namespaces", error or untaken, status)
        found = {} if of_namespaces is None else {"namespaces": of_namespaces}
        return found | listing_problems(self.informers.values(), kinds)

    async def generation(
        self, selector: LabelSelector | None, evaluator: NamespacedEvaluator[Any], namespace: str, name: str, uid: str
    ) -> Generation:
        """By consistent lists; None also for an object that the quota does not count. Raises ApiError."""
        informer, kind = self.informers.get(evaluator), evaluator.resource
        resource = informer.served if informer is not None else None
        if resource is None:
            resource = await find_kind(self._cluster, evaluator)
        if resource is None:
            if informer is not None and await informer.is_gone():
                return None
            raise Unavailable(0, "Unavailable", f"{kind} are not served: what is there cannot be told")
        listing = await self._cluster.list(resource, namespace, field_selector=by_name(name))
        if listing.may_hide(uid):
            raise Malformed(200, "Malformed", f"{kind} {namespace}/{name} cannot be read")
        found = next((each for each in listing.items if each.metadata.uid == uid), None)
        if found is None:
            return Taken.TAKEN if listing.items else None
        inside = await self._cluster.find(NAMESPACES, namespace)
        if inside is None or not self.selects(selector, inside.metadata.labels):
            return None
        return generation_of(found.metadata)

    def _follow(self) -> None:
        """Only what some quota limits here."""
        wanted = dict.fromkeys(each for counting in self._counting for each in counting.evaluators.values())
        for evaluator in [each for each in self.informers if each not in wanted]:
            del self.informers[evaluator]
            self._tasks.pop(evaluator).cancel()
        for evaluator in wanted:
            if evaluator not in self.informers and not self._ended:
                informer = KindInformer(self._cluster, evaluator, self._listener(evaluator), self._news.set)
                self.informers[evaluator] = informer
                self._tasks[evaluator] = kept_task("kind", informer.run, f"{evaluator.resource} of {self.key}")

    def _listener(self, evaluator: NamespacedEvaluator[Any]) -> Callable[[Change[Any]], None]:
        return lambda change: self._changed(evaluator, change)

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        namespace = change.new or change.old
        assert namespace is not None, "a change has an object before or after"
        name = namespace.metadata.name
        for counting in list(self._counting):
            before = counting in self._selecting.get(name, ())
            after = change.new is not None and counting.selects(change.new.metadata.labels)
            if after and not before:
                self._enter(counting, name, self.namespaces.listed_from, AT_ONCE)
                counting.on_change(counting, False)
            elif before and not after:
                self._forget(counting, name)
                counting.totals.leave(name)
                self._entering.free(counting.totals.forget_left())
                counting.on_change(counting, True)

    def _look_at(self, counting: QuotaNamespaces, name: str, most: int | None = None) -> int:
        """Takes up the namespace as it is now, if it is selected. One that has changed since `counting` was added was
        taken up by that change."""
        found = self.namespaces.store.get(name)
        if found is None or name in counting.selected or not counting.selects(found.metadata.labels):
            return 0
        return self._enter(counting, name, 0, AT_ONCE if most is None else most)

    def _enter(self, counting: QuotaNamespaces, namespace: str, listed_from: int, most: int) -> int:
        """All that is in it counts from now on; if there are more than `most`, in pieces. How many came in at once."""
        self._selecting.setdefault(namespace, {})[counting] = None
        counting.selected.add(namespace)
        number = sum(informer.number(namespace) for informer in counting.informers)
        if number > most:
            counting.totals.enters()
            self._entering.begin(counting, namespace, listed_from)
            return 0
        for evaluator, subject in self._subjects(counting, namespace):
            self._put(counting, evaluator, subject)
        return number

    def _subjects(self, counting: QuotaNamespaces, namespace: str) -> Iterator[tuple[NamespacedEvaluator[Any], Any]]:
        for evaluator in counting.evaluators.values():
            informer = self.informers.get(evaluator)
            for subject in informer.objects(namespace) if informer is not None else ():
                yield evaluator, subject

    def _put_present(self, counting: QuotaNamespaces, evaluator: NamespacedEvaluator[Any], subject: Any) -> None:
        """As it is by now. Of one that has gone the watch has told."""
        informer = self.informers.get(evaluator)
        present = informer.get(subject.metadata.key) if informer is not None else None
        if present is not None:
            self._put(counting, evaluator, present)

    def _entered(self, counting: QuotaNamespaces) -> None:
        counting.on_change(counting, False)
        self._news.set()

    def _forget(self, counting: QuotaNamespaces, namespace: str) -> None:
        selecting = self._selecting[namespace]
        del selecting[counting]
        self._entering.end(counting, namespace)
        counting.selected.discard(namespace)
        for uid in [uid for uid, of in counting.untaken.items() if of[0] == namespace]:
            self._took(counting, uid)
        if not selecting:
            del self._selecting[namespace]

    def _changed(self, evaluator: NamespacedEvaluator[Any], change: Change[Any]) -> None:
        seen = change.new if change.new is not None else change.old
        assert seen is not None, "a change has an object before or after"
        if change.new is None:
            self.releases.forget(seen.metadata.uid)
        for counting in list(self._selecting.get(seen.metadata.namespace, ())):
            if counting.evaluators.get(evaluator.resource) != evaluator:
                continue
            if change.new is None:
                self._took(counting, seen.metadata.uid)
                counting.on_change(counting, counting.totals.remove(seen.metadata.uid))
                continue
            changed, freed = self._put(counting, evaluator, change.new)
            if changed:
                counting.on_change(counting, freed)

    def _put(self, counting: QuotaNamespaces, evaluator: NamespacedEvaluator[Any], subject: Any) -> tuple[bool, bool]:
        """Whether the sum changed, and whether something became free. One object that fails stops no other."""
        uid, key = subject.metadata.uid, subject.metadata.key
        with contained("namespaces", key):
            found = self._taken(counting, evaluator, subject)
            self._took(counting, uid)
            return found
        counting.untaken[uid] = subject.metadata.namespace, f"{evaluator.resource} {key}"
        self._news.set()
        return True, False

    def _took(self, counting: QuotaNamespaces, uid: str) -> None:
        if counting.untaken.pop(uid, None) is not None:
            self._news.set()

    def _taken(self, counting: QuotaNamespaces, evaluator: NamespacedEvaluator[Any], subject: Any) -> tuple[bool, bool]:
        now = self._clock()
        if isinstance(subject, Unread) and evaluator.type is not Object:  # of which the number is all that counts
            return counting.totals.put_unread(subject)
        self.releases.expect(evaluator, subject, now)
        return counting.totals.put(evaluator, subject, now)

    def _released(self, evaluator: NamespacedEvaluator[Any], uid: str, key: str) -> None:
        informer = self.informers.get(evaluator)
        subject = informer.get(key) if informer is not None else None
        if subject is not None and subject.metadata.uid == uid:
            self._changed(evaluator, Change(subject, subject))
