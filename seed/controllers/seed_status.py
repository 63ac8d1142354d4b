"""What the seed says of itself, in the status of its Seed's copy, where the master reads it. In the master's own
cluster the Seed itself has it.

When something changed, at most every second; and else now and then, since a leader that is dead says nothing: that is
how the master knows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from common.api import conditions
from common.api.copies import original_uid
from common.api.labels import SEED_MANAGER
from common.api.types import SEED_COPIES, AgentStatus, Condition, SeedCopy
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.client.resource import by_name
from common.kube.controller.reflector import Reflector
from common.runtime.metrics import build_version
from common.runtime.waiting import within
from seed.cache.clusters import ClusterCache
from seed.model.asked_of_seed import asked_about
from seed.model.cluster_key import is_hosted
from seed.model.source_key import OWN_API_SERVER
from seed.registration import withdrawal
from seed.registration.health import Proof, unseen, webhook_serving

log = logging.getLogger(__name__)

EVERY = 30.0  # seconds between two signs of life; master/quotas/conditions.py waits for three
PACE = 1.0
RETRY = 5.0
PATIENCE = 30.0  # in which a new leader lets stand what the last one said, while it has not seen all itself


class SeedStatus:
    """`run()` it while this replica leads, on the seed's own cluster, which bears the seed's name."""

    def __init__(
        self,
        cluster: Cluster,
        cluster_cache: ClusterCache,
        enforces: Callable[[], bool] = lambda: True,
        of_namespaces: Callable[[], Sequence[Condition]] = lambda: (),
    ) -> None:
        """`enforces`: whether there are to be webhooks at all. `of_namespaces`: what is said of the namespaces of the
        seed's own API server. `look` when one of them has changed."""
        self._enforces = enforces
        self._of_namespaces = of_namespaces
        self._cluster = cluster
        self._cluster_cache = cluster_cache
        self._proofs: dict[str, Proof] = {}
        self._wake = asyncio.Event()
        self._copies: Reflector[SeedCopy] = Reflector(
            cluster,
            SEED_COPIES,
            field_selector=by_name(cluster.name),
            on_change=lambda _change: self._wake.set(),
        )
        self._began = time.monotonic()
        self._said: tuple[str, float] | None = None  # to the copy of which uid, and when (monotonic)

    def proven(self, key: str, proof: Proof | None) -> None:
        """Of a user cluster, or of what the seed is asked about. None: nothing, or it is gone."""
        if proof is None:
            self._proofs.pop(key, None)
        else:
            self._proofs[key] = proof
        self._wake.set()

    def look(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        changed = self._changed
        ends = self._cluster_cache.on_user_cluster(changed), self._cluster_cache.on_hosted(changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copies.run(), name="copy of the Seed")
                group.create_task(self._keep(), name="status of the Seed")
        finally:
            for end in ends:
                end()

    def _changed(self, _key: str) -> None:
        self._wake.set()

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            pause = await self._say()
            await asyncio.sleep(PACE)
            await within(self._wake, max(0.0, pause - PACE))

    async def _say(self) -> float:
        """Returns in how many seconds something must be said again."""
        copy = self._copies.store.get(self._cluster.name)
        if copy is None or not original_uid(copy, in_cluster=copy.spec.in_cluster):
            return EVERY
        before = copy.status.agent if copy.spec.in_cluster else copy.status
        found = self._conditions(copy, before)
        now = time.monotonic()
        version, clusters = build_version(), self._cluster_cache.count_clusters()
        exempt = tuple(sorted(self._cluster_cache.exempt(OWN_API_SERVER).names))
        left = 0.0
        if self._said is not None and self._said[0] == copy.metadata.uid:
            left = self._said[1] + EVERY - now
        said = before.version, before.clusters, before.exempt_namespaces, before.conditions
        if left > 0 and (version, clusters, exempt, found) == said:
            return left
        status: dict[str, object] = {
            "lastSeenTime": conditions.now(),
            "version": version,
            "clusters": clusters,
            "exemptNamespaces": exempt,
            "conditions": found,
        }
        body: dict[str, object] = {"metadata": {"name": copy.metadata.name, "uid": copy.metadata.uid}}
        # On the original, the rest of the status is the master's.
        body["status"] = {"agent": status} if copy.spec.in_cluster else status
        try:
            await self._cluster.apply(SEED_COPIES, body, manager=SEED_MANAGER, subresource="status")
        except ApiError as error:
            log.info("status of the seed not published", extra={"seed": copy.metadata.name, "error": str(error)})
            return RETRY
        self._said = copy.metadata.uid, now
        return EVERY

    def _conditions(self, copy: SeedCopy, published: AgentStatus) -> list[Condition]:
        before = published.conditions
        proofs = self._of_each()
        asked = (each.asked for each in self._cluster_cache.of_projects)
        of_seed = {key: self._proofs[key] for key in asked if key in self._proofs}
        serving = webhook_serving(proofs, of_seed) if self._enforces() else withdrawal.PROOF
        waits = time.monotonic() - self._began < PATIENCE
        if serving.enforced is not False and unseen(proofs) and waits:
            return before
        known = {each.type: each for each in before}
        said = [conditions.condition("WebhookServing", serving.enforced, serving.reason, serving.message)]
        said += [
            known.get(each.type, each) if waits and each.status == "Unknown" else each for each in self._of_namespaces()
        ]
        generation = copy.metadata.generation
        said = [
            msgspec.structs.replace(each, message=conditions.short(each.message), observed_generation=generation)
            for each in said
        ]
        return conditions.transition(before, said, conditions.now())

    def _of_each(self) -> dict[str, Proof | None]:
        keys = [cluster.metadata.key for cluster in self._cluster_cache.followed()]
        keys += filter(is_hosted, self._cluster_cache.hosted)
        return {key: self._proofs.get(asked_about(key)) for key in keys}
