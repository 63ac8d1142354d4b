"""How many clusters a project has. Pure but for being mutable.

A reservation of nothing is for an object that stands for a cluster which is there already. Until that object was seen
it keeps its cluster in the count: else the other could go meanwhile, and its place be given away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from common.quota.account import Reservation
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from seed.kinds.clusters.evaluator import ONE, RESOURCE, Owned
from seed.usage.object_sum import Counted, ObjectSum, add


class ClusterTotals(ObjectSum[Counted]):
    """Two objects of one namespace and name stand for one cluster, as a UserCluster and its Cluster of Cluster API."""

    def __init__(self) -> None:
        super().__init__()
        self._clusters: Counter[str] = Counter()  # how many objects stand for each, by namespace/name

    def put(self, cluster: Owned) -> None:
        metadata = cluster.metadata
        self.keep(metadata.uid, Counted(metadata.generation, ONE, metadata.key))

    def remove(self, uid: str) -> bool:
        before = len(self._clusters)
        super().remove(uid)
        return len(self._clusters) < before

    def used_beside(self, reservations: Mapping[str, Reservation]) -> ResourceList:
        kept = {
            reservation.object
            for uid, reservation in reservations.items()
            if not any(reservation.amount.values()) and uid not in self._objects and uid not in self._gone
        }
        count = len(self._clusters.keys() | kept)
        return {RESOURCE: count * UNIT} if count else {}

    def _moved(self, place: str, before: ResourceList, _after: ResourceList) -> None:
        self._clusters[place] += -1 if before else 1
        if not self._clusters[place]:
            del self._clusters[place]
            add(self.used, ONE, -1)
        elif not before and self._clusters[place] == 1:
            add(self.used, ONE, 1)
