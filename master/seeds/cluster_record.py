"""Records which cluster a Seed is, before anything else of that cluster is read or written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from common.api.cluster_identity import KUBE_SYSTEM, NAMESPACES, order
from common.api.types import SEEDS, Seed
from common.kube.client.errors import Conflict, Forbidden, NotFound
from master.cache.informers import Caches
from master.seeds import identity
from master.seeds.seed_cluster import SeedCluster

log = logging.getLogger(__name__)

TIMEOUT = 5.0  # seconds for the question
RECORD_ATTEMPTS = 4


class Other(Protocol):
    """Another Seed, as far as it matters here. `reconsider`: its cluster was found to be this Seed's."""

    seed: Seed

    @property
    def cluster_uid(self) -> str: ...

    @property
    def lost(self) -> bool: ...

    def reconsider(self) -> None: ...


class ClusterRecord:
    """Of one Seed, whose object may change: `seed` gives the present one. It is stored where `caches` are of.

    `unidentified`: why it is not known which cluster it is, empty if that is known.
    """

    def __init__(self, caches: Caches, seed: Callable[[], Seed], others: Callable[[], Iterable[Other]]) -> None:
        self.unidentified = ""
        self._caches = caches
        self._seed = seed
        self._others = others
        self._recorded = ""

    @property
    def uid(self) -> str:
        """What is recorded; empty as long as nothing is."""
        return self._recorded or self._seed().status.cluster_uid

    async def verify(self, cluster: SeedCluster, *, identified: bool) -> None:
        """Raises Refused if it is not this Seed's cluster, or ApiError if that is not known.

        A role without the right to ask, where nothing is recorded yet, leaves the Seed unidentified. `identified`: the
        cluster of this connection was the Seed's before.
        """
        path = NAMESPACES.path(None, KUBE_SYSTEM)
        try:
            content = await cluster.request("GET", path, timeout=TIMEOUT, verb="get", plural=NAMESPACES.plural)
        except (Forbidden, NotFound) as error:
            if self.uid:
                what = f"it cannot be told whether this is still the cluster {self.uid}"
                raise type(error)(error.status, error.reason, f"{what}: {error.message}") from None
            self.unidentified = f"it is not known which cluster this is: {error.message}"
            return
        uid = NAMESPACES.decode(content).metadata.uid
        if not (identified and uid == self.uid):
            await self._judge(uid)

    async def _judge(self, uid: str) -> None:
        """Raises Refused. Where the cluster is this Seed's, that is durable when this returns."""
        if uid != self.uid:
            seed = await self._record(uid)
            self._recorded = uid
            self.unidentified = (
                "" if seed.status.cluster_uid == uid else "the CRD of Seeds on the master has no status.clusterUID"
            )
            for other in self._others():
                if other.cluster_uid == uid and order(self._seed()) < order(other.seed):
                    other.reconsider()
        self._refuse(self._seed(), self.uid, uid)

    @retry(retry=retry_if_exception_type(Conflict), stop=stop_after_attempt(RECORD_ATTEMPTS), reraise=True)
    async def _record(self, uid: str) -> Seed:
        """The Seed as it is stored then. Its status is written by others, too: a Conflict is read and judged anew."""
        own = self._seed().metadata
        master = self._caches.cluster
        seed = await master.get(SEEDS, own.name)
        before = seed.status.cluster_uid
        self._refuse(seed, before, uid)
        if uid == before:
            return seed
        about = {"uid": own.uid, "resourceVersion": seed.metadata.resource_version}
        patch = {"metadata": about, "status": {"clusterUID": uid}}
        seed = await master.merge_patch(SEEDS, own.name, patch, subresource="status")
        log.info("cluster recorded", extra={"seed": own.name, "cluster": uid, "before": before})
        return seed

    def _refuse(self, seed: Seed, recorded: str, uid: str) -> None:
        others = [(other.seed, other.cluster_uid) for other in self._others() if not other.lost]
        if (refused := identity.refusal(seed, recorded, uid, others)) is not None:
            raise refused
