"""How many clusters a project has. Pure but for being mutable.

A reservation of nothing is for an object that stands for a cluster which is there already. Until that object was seen
it keeps its cluster in the count: else the other could go meanwhile, and its place be given away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.quota.account import Reservation
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from common.runtime.lru import LruDict
from seed.kinds.clusters.evaluator import RESOURCE, Owned
from seed.usage.source import MAX_REMEMBERED


class ClusterTotals:
    """Two objects of one namespace and name stand for one cluster, as a UserCluster and its Cluster of Cluster API."""

    guessed: Mapping[str, ResourceList] = {}
    line = None
    unadmitted = None

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}  # by uid
        self._objects: dict[str, set[str]] = {}  # uids by namespace/name
        self._gone: LruDict[str, None] = LruDict()

    @property
    def used(self) -> ResourceList:
        return {RESOURCE: len(self._objects) * UNIT} if self._objects else {}

    def used_beside(self, reservations: Mapping[str, Reservation]) -> ResourceList:
        kept = {
            reservation.object
            for uid, reservation in reservations.items()
            if not any(reservation.amount.values()) and uid not in self._generations and uid not in self._gone
        }
        count = len(self._objects.keys() | kept)
        return {RESOURCE: count * UNIT} if count else {}

    def add(self, cluster: Owned) -> None:
        metadata = cluster.metadata
        self._generations[metadata.uid] = metadata.generation
        self._objects.setdefault(metadata.key, set()).add(metadata.uid)
        self._gone.pop(metadata.uid, None)

    def remove(self, cluster: Owned) -> bool:
        """True if something became free."""
        uid, key = cluster.metadata.uid, cluster.metadata.key
        if self._generations.pop(uid, None) is None:
            return False
        self._gone.keep(uid, None, MAX_REMEMBERED)
        objects = self._objects[key]
        objects.discard(uid)
        if not objects:
            del self._objects[key]
        return not objects

    def seen(self, reservations: Iterable[str]) -> dict[str, int]:
        return {uid: self._generations[uid] for uid in reservations if uid in self._generations}

    def gone(self, reservations: Iterable[str]) -> set[str]:
        return {uid for uid in reservations if uid in self._gone}

    def sizes(self, uids: Iterable[str]) -> dict[str, ResourceList]:
        return {uid: {RESOURCE: UNIT} for uid in uids if uid in self._generations}
