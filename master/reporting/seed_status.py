"""The status of each Seed: looked at every second, written when it says something new, and else every half minute."""

from __future__ import annotations

import time

from common.api.conditions import now
from common.api.labels import MASTER_MANAGER
from common.api.types import SEEDS, Condition, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.controller.controller import Controller, ReconcileHook
from common.runtime.metrics import build_version
from master.cache.informers import Caches
from master.quotas.controller import Quotas
from master.reporting.seed_conditions import SeedHealth, seed_conditions
from master.seeds.link import SeedLink
from master.seeds.phase import Phase
from master.seeds.registry import Seeds

LOOK_EVERY = 1.0  # seconds
SEEN_EVERY = 30.0  # seconds between writes of lastSeenTime alone
WORKERS = 16
TIMEOUT = 15.0


class _Shown:
    def __init__(self, uid: str, conditions: list[Condition]) -> None:
        self.uid = uid
        self.conditions = conditions
        self.fenced: int | None = None
        self.seen_at: float | None = None  # the link's last contact when lastSeenTime was last written
        self.last_seen_time = ""
        self.version = ""
        self.clusters: int | None = None
        self.exempt_namespaces: list[str] = []
        self.master_namespace: str | None = None  # not written yet


class SeedStatuses:
    """`run` works until cancelled; `look(seed)` has one looked at now."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        seeds: Seeds,
        quotas: Quotas,
        namespace: str,
        *,
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._seeds = seeds
        self._quotas = quotas
        self._namespace = namespace
        self._shown: dict[str, _Shown] = {}
        self._controller: Controller[str] = Controller(
            "seed-status", self._show, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )

    async def run(self) -> None:
        for seed in self._caches.seeds.store.keys():  # noqa: SIM118
            self.look(seed)
        await self._controller.run()

    def look(self, seed: str) -> None:
        self._controller.queue.add(seed)

    async def _show(self, name: str) -> float | None:
        seed, link = self._caches.seeds.store.get(name), self._seeds.links.get(name)
        if seed is None or link is None:
            self._shown.pop(name, None)
            return None
        shown = self._shown.get(name)
        if shown is None or shown.uid != seed.metadata.uid:
            shown = self._shown[name] = _Shown(seed.metadata.uid, seed.status.conditions)
            shown.last_seen_time = seed.status.last_seen_time
            shown.version, shown.clusters = seed.status.version, seed.status.clusters
            shown.exempt_namespaces = seed.status.exempt_namespaces
        said = link.reported if link.reported is not None else shown
        version, clusters, exempt = said.version, said.clusters, said.exempt_namespaces
        own = self._namespace if seed.spec.in_cluster else ""
        fenced = sorted(self._quotas.fenced.get(name, ()))
        conditions = seed_conditions(self._health(seed, link, fenced), shown.conditions, now())
        contact = link.last_contact
        seen = contact is not None and (shown.seen_at is None or contact - shown.seen_at >= SEEN_EVERY)
        same = (version, clusters, exempt, own, len(fenced)) == (
            shown.version,
            shown.clusters,
            shown.exempt_namespaces,
            shown.master_namespace,
            shown.fenced,
        )
        if conditions == shown.conditions and same and not seen:
            return LOOK_EVERY
        if contact is not None:
            shown.last_seen_time = now(contact - time.monotonic())
            shown.seen_at = contact
        status: dict[str, object] = {
            "observedGeneration": seed.metadata.generation,
            "fencedAccounts": len(fenced),
            "conditions": conditions,
        }
        if shown.last_seen_time:
            status["lastSeenTime"] = shown.last_seen_time
        if version:
            status["version"] = version
        if clusters is not None:
            status["clusters"] = clusters
        if exempt:
            status["exemptNamespaces"] = exempt
        if own:
            status["masterNamespace"] = own
        try:
            await self._cluster.apply(
                SEEDS,
                {"metadata": {"name": name, "uid": seed.metadata.uid}, "status": status},
                MASTER_MANAGER,
                "status",
            )
        except NotFound:
            return LOOK_EVERY
        shown.conditions, shown.fenced = conditions, len(fenced)
        shown.version, shown.clusters = version, clusters
        shown.exempt_namespaces, shown.master_namespace = exempt, own
        return LOOK_EVERY

    def _health(self, seed: Seed, link: SeedLink, fenced: list[str]) -> SeedHealth:
        generation = seed.metadata.generation
        if link.lost:
            return SeedHealth(
                generation=generation,
                connected=False,
                reason="Lost",
                message="declared lost: it is not contacted, and what it held is given to others",
            )
        if not link.connected:
            reason = Phase.UNREACHABLE if link.phase is Phase.CONNECTING else link.phase
            return SeedHealth(generation=generation, connected=False, reason=reason.value, message=link.problem)
        sync, reported = link.sync, link.reported
        return SeedHealth(
            generation=generation,
            connected=True,
            message=link.unidentified,
            own_version=build_version(),
            version=reported.version if reported is not None else "",
            said=reported.conditions if reported is not None else (),
            silent=time.monotonic() - link.reported_at,
            synced=sync is not None and sync.outstanding == 0,
            outstanding=sync.outstanding if sync is not None else 0,
            failing=sorted(sync.failing.values()) if sync is not None else (),
            fenced=fenced,
            learning=sorted(self._quotas.learning.get(seed.metadata.name, ())),
        )
