"""The sum over the objects in namespaces that a quota counts in one cluster. Pure but for being mutable."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import islice
from typing import Any

from common.kube.client.meta import Object
from common.quota.resources import ResourceList
from common.runtime.freeing import free_in_pieces
from common.runtime.large_dict import grown, taken_from
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator, Terms, used
from seed.model.reserved_object import generation_of
from seed.usage.object_sum import Counted, ObjectSum, add

MAX_GONE = 1_000  # deleted objects whose reservation may still turn up; of others a read shows that they are gone
MAX_SHARED = 1_000  # different uses that are kept once, for all objects that have the same


class ObjectTotals(ObjectSum[Counted]):
    """Kept up to date change by change: `put`, `remove`, `leave`. `by_namespace`: what of it each namespace uses.

    `guessed`: nothing of what cannot be read, and was never counted here. An object stands in the sum while its uid is
    in `_uids`. What a namespace that left had may be very much: it is freed later, in pieces (`forget_left`).
    """

    def __init__(self, terms: Terms) -> None:
        super().__init__(MAX_GONE)
        self.terms = terms
        self.line = object()
        self.by_namespace: dict[str, dict[str, int]] = {}
        self._uids: dict[str, MutableMapping[str, None]] = {}  # by namespace
        self._left: list[MutableMapping[str, None]] = []  # what may still be in `_objects`
        self._shared: dict[tuple[tuple[str, int], ...], ResourceList] = {}

    def __del__(self) -> None:
        free_in_pieces(self._uids, self._objects)

    def __len__(self) -> int:
        return sum(map(len, self._uids.values()))

    def put(self, evaluator: NamespacedEvaluator[Any], subject: Object, now: float) -> tuple[bool, bool]:
        """Whether what is counted changed, and whether something became free. `now`: seconds since 1970, UTC."""
        metadata = subject.metadata
        uses = self._share(self._uses(evaluator, subject, now))
        before = self._known(metadata.uid)
        freed = self.keep(metadata.uid, Counted(generation_of(metadata), uses, metadata.namespace))
        return before is None or before.used != uses, freed

    def put_unread(self, subject: Object) -> tuple[bool, bool]:
        """As `put`, of one of which nothing but its name is known."""
        uid = subject.metadata.uid
        self.keep(uid, Counted(0, {}, subject.metadata.namespace))
        self.guessed[uid] = {}
        return True, False

    def keep(self, uid: str, after: Counted) -> bool:
        before = self._known(uid)
        if before is not None and before.place != after.place:
            ObjectTotals.remove(self, uid)  # an API server that lies: a uid is of one object
        freed = super().keep(uid, after)
        inside = self._uids[after.place] = grown(self._uids.get(after.place, {}))
        inside[uid] = None
        return freed

    def remove(self, uid: str) -> bool:
        gone = self._known(uid)
        freed = super().remove(uid)
        if gone is not None:
            uids = self._uids[gone.place]
            uids.pop(uid, None)
            if not uids:
                del self._uids[gone.place]
        return freed

    def enters(self) -> None:
        """A namespace is about to come in piece by piece. What left with it is there again, though not counted yet."""
        self._gone.clear()

    def leave(self, namespace: str) -> None:
        """The namespace is not counted any more, with all that it has. `forget_left` is for what stood there."""
        add(self.used, self.by_namespace.pop(namespace, {}), -1)
        uids = self._uids.pop(namespace, {})
        for uid in [uid for uid in self.guessed if uid in uids]:
            del self.guessed[uid]
        for uid in islice(uids, self._remembered):
            self._gone.keep(uid, None, self._remembered)
        self._left.append(uids)

    def forget_left(self) -> Iterator[str]:
        """Frees one object at each step. What came in again meanwhile stays."""
        while self._left:
            for uid, _ in taken_from(self._left.pop()):
                if self._known(uid) is None:
                    self._forget(uid)
                yield uid

    def _known(self, uid: str) -> Counted | None:
        found = self._objects.get(uid)
        return found if found is not None and uid in self._uids.get(found.place, ()) else None

    def _forget(self, uid: str) -> None:
        self._objects.pop(uid, None)

    def _uses(self, evaluator: NamespacedEvaluator[Any], subject: Any, now: float) -> ResourceList:
        return used(evaluator, self.terms, subject, now)

    def _moved(self, place: str, before: ResourceList, after: ResourceList) -> None:
        self._add(place, before, -1)
        self._add(place, after, 1)

    def _share(self, uses: ResourceList) -> ResourceList:
        """The pods of one Deployment are alike."""
        if len(self._shared) >= MAX_SHARED:
            self._shared.clear()
        return self._shared.setdefault(tuple(uses.items()), uses)

    def _add(self, namespace: str, amounts: ResourceList, sign: int) -> None:
        inside = self.by_namespace.setdefault(namespace, {})
        for sums in (self.used, inside):
            add(sums, amounts, sign)
        if not inside:
            del self.by_namespace[namespace]
