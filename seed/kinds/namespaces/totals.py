"""The sum over the objects in namespaces that a quota counts in one cluster. Pure but for being mutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from common.kube.client.meta import Object
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from common.runtime.lru import LruDict
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator, Terms, used
from seed.model.reserved_object import generation_of

MAX_GONE = 1_000  # deleted objects whose reservation may still turn up; of others a read shows that they are gone
MAX_SHARED = 1_000  # different uses that are kept once, for all objects that have the same


class _Counted(msgspec.Struct, frozen=True):
    """An object as it stands in the sum. One that uses nothing, as a pod that has ended, stands there, too."""

    namespace: str
    generation: int
    used: ResourceList


class ObjectTotals:
    """Kept up to date change by change: `put`, `remove`, `leave`. `by_namespace`: what of it each namespace uses."""

    unadmitted = None

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.line = object()
        self.guessed: dict[str, ResourceList] = {}  # by uid: nothing of what cannot be read, and was never counted here
        self.used: dict[str, int] = {}
        self.by_namespace: dict[str, dict[str, int]] = {}
        self._objects: dict[str, _Counted] = {}  # by uid
        self._uids: dict[str, set[str]] = {}  # by namespace
        self._gone: LruDict[str, None] = LruDict()
        self._shared: dict[tuple[tuple[str, int], ...], ResourceList] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, evaluator: NamespacedEvaluator[Any], subject: Object, now: float) -> tuple[bool, bool]:
        """Whether what is counted changed, and whether something became free. `now`: seconds since 1970, UTC."""
        uid, namespace = subject.metadata.uid, subject.metadata.namespace
        uses = self._share(self._uses(evaluator, subject, now))
        after = _Counted(namespace, generation_of(subject.metadata), uses)
        before = self._objects.get(uid)
        self._objects[uid] = after
        self._uids.setdefault(namespace, set()).add(uid)
        self._gone.pop(uid, None)  # a backup brought it back
        self.guessed.pop(uid, None)
        if before is None:
            self._moved(namespace, {}, after.used)
            return True, False
        if before.used == after.used:
            return False, False
        self._moved(namespace, before.used, after.used)
        return True, any(after.used.get(name, 0) < amount for name, amount in before.used.items())

    def put_unread(self, subject: Object) -> tuple[bool, bool]:
        """As `put`, of one of which nothing but its name is known."""
        uid, namespace = subject.metadata.uid, subject.metadata.namespace
        self._objects[uid] = _Counted(namespace, 0, {})
        self._uids.setdefault(namespace, set()).add(uid)
        self._gone.pop(uid, None)
        self.guessed[uid] = {}
        return True, False

    def remove(self, uid: str) -> bool:
        """True if something became free."""
        gone = self._objects.pop(uid, None)
        if gone is None:
            return False
        guessed = self.guessed.pop(uid, None)
        uids = self._uids[gone.namespace]
        uids.discard(uid)
        if not uids:
            del self._uids[gone.namespace]
        self._gone.keep(uid, None, MAX_GONE)
        self._moved(gone.namespace, gone.used, {})
        return guessed is not None or any(gone.used.values())

    def leave(self, namespace: str) -> None:
        """The namespace is not counted any more, with all that it has."""
        for uid in list(self._uids.get(namespace, ())):
            self.remove(uid)

    def used_beside(self, _reservations: Mapping[str, Reservation]) -> ResourceList:
        return self.used

    def seen(self, reservations: Iterable[str]) -> dict[str, int]:
        objects, guessed = self._objects, self.guessed
        return {uid: objects[uid].generation for uid in reservations if uid in objects and uid not in guessed}

    def gone(self, reservations: Iterable[str]) -> set[str]:
        return {uid for uid in reservations if uid in self._gone}

    def sizes(self, uids: Iterable[str]) -> dict[str, ResourceList]:
        return {uid: self._objects[uid].used for uid in uids if uid in self._objects}

    def _uses(self, evaluator: NamespacedEvaluator[Any], subject: Any, now: float) -> ResourceList:
        return used(evaluator, self.terms, subject, now)

    def _moved(self, namespace: str, before: ResourceList, after: ResourceList) -> None:
        """An object of the namespace uses this instead of that."""
        self._add(namespace, before, -1)
        self._add(namespace, after, 1)

    def _share(self, uses: ResourceList) -> ResourceList:
        """The pods of one Deployment are alike."""
        if len(self._shared) >= MAX_SHARED:
            self._shared.clear()
        return self._shared.setdefault(tuple(uses.items()), uses)

    def _add(self, namespace: str, amounts: ResourceList, sign: int) -> None:
        inside = self.by_namespace.setdefault(namespace, {})
        for sums in (self.used, inside):
            for name, amount in amounts.items():
                total = sums.get(name, 0) + sign * amount
                if total:
                    sums[name] = total
                else:
                    sums.pop(name, None)
        if not inside:
            del self.by_namespace[namespace]
