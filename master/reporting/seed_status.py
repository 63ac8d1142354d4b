"""The status of each Seed: looked at every second, written when it says something new, and else every half minute."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from common.api.conditions import now
from common.api.labels import MASTER_MANAGER
from common.api.status import write_status
from common.api.types import SEEDS, AgentStatus, Seed
from common.kube.client.api_client import Cluster
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


class _Status(AgentStatus):
    """What the master writes. A number of fenced accounts is written, also 0."""

    observed_generation: int = 0
    fenced_accounts: int | None = None
    master_namespace: str = ""


class _Shown(NamedTuple):
    """What was last written. `seen_at`: the link's last contact then."""

    uid: str
    status: _Status
    seen_at: float | None = None


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
            shown = _Shown(seed.metadata.uid, msgspec.convert(seed.status, _Status, from_attributes=True))
        said = link.reported if link.reported is not None else shown.status
        fenced = sorted(self._quotas.fenced.get(name, ()))
        status = _Status(
            observed_generation=seed.metadata.generation,
            fenced_accounts=len(fenced),
            conditions=seed_conditions(self._health(seed, link, fenced), shown.status.conditions, now()),
            last_seen_time=shown.status.last_seen_time,
            version=said.version,
            clusters=said.clusters,
            exempt_namespaces=said.exempt_namespaces,
            master_namespace=self._namespace if seed.spec.in_cluster else "",
        )
        contact = link.last_contact
        seen = contact is not None and (shown.seen_at is None or contact - shown.seen_at >= SEEN_EVERY)
        if status == shown.status and not seen:
            return LOOK_EVERY
        if contact is not None:
            status.last_seen_time = now(contact - time.monotonic())
        if await write_status(self._cluster, SEEDS, seed, status, MASTER_MANAGER):
            self._shown[name] = _Shown(seed.metadata.uid, status, contact if contact is not None else shown.seen_at)
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
            synced=sync is not None and sync.all_in_sync,
            outstanding=sync.outstanding if sync is not None else 0,
            failing=min(sync.failing.values(), default="") if sync is not None else "",
            fenced=fenced,
            learning=sorted(self._quotas.learning.get(seed.metadata.name, ())),
        )
