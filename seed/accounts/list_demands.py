"""Lists that sources owe an account: what is counted must come from a list that began late enough (rule 4.4)."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakSet

from common.kube.controller.reflector import moment
from seed.model.quota import Quota
from seed.usage.source import UsageSource


class ListDemands:
    """Each source is asked once for a list after a moment. Whether that is complete, its `listed_from` says."""

    def __init__(self) -> None:
        self._lists_from: dict[str, int] = {}  # by quota uid: the moment after which a list must begin to be counted
        self._asked: dict[str, WeakSet[UsageSource]] = {}  # by quota uid: after that moment

    def lists_from(self, uid: str) -> int:
        return self._lists_from.get(uid, 0)

    def demand_all(self, quota: Quota, sources: Iterable[UsageSource]) -> None:
        """Whatever is counted from now on must come from a list that begins after this moment."""
        self.forget(quota.key.uid)
        self._lists_from[quota.key.uid] = moment()
        for source in sources:
            self.demand(quota, source)

    def demand(self, quota: Quota, source: UsageSource) -> None:
        asked = self._asked.setdefault(quota.key.uid, WeakSet())
        if source not in asked:
            asked.add(source)
            source.relist()

    def forget(self, uid: str) -> None:
        self._lists_from.pop(uid, None)
        self._asked.pop(uid, None)
