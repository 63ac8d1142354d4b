"""Writes the status of quotas on the master, beside the decisions."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from common.api import conditions
from common.api.labels import MASTER_MANAGER
from common.api.status import ECHO, write_status
from common.kube.client.api_client import Cluster
from common.kube.controller.controller import Controller, ReconcileHook
from common.runtime.burst import PATIENCE, PAUSE
from master.cache.informers import Caches
from master.cache.objects import MASTER_QUOTAS, MasterQuota
from master.quotas.condition_events import LIMITS_CHANGED, changed_limits, new_warnings
from master.quotas.events import QuotaEvents
from master.quotas.override_conditions import ENDS, new_events
from master.quotas.quota_view import QuotaView
from master.quotas.state import QuotaState
from master.quotas.status import quota_status, same
from master.seeds.registry import Seeds

WORKERS = 8  # what people read must not crowd out what programs wait for
TIMEOUT = 30.0  # seconds for one status
EVERY = 0.1  # seconds between writes of one quota's status
SETTLING_EVERY = 1.0  # ... while it is on its way to the seeds: mostly it is there sooner
RESERVED_EVERY = 1.0  # ... where only what is reserved has changed


class StatusWriter:
    """`run` works until cancelled. `states` are the quotas by name; of each the latest `view` is written."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        seeds: Seeds,
        events: QuotaEvents,
        states: Mapping[str, QuotaState],
        *,
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._seeds = seeds
        self._events = events
        self._states = states
        self._controller: Controller[str] = Controller(
            "quota-status", self._write, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )

    async def run(self) -> None:
        await self._controller.run()

    def seen(self, quota: MasterQuota) -> None:
        """The watch brought a quota: a status that is not what was written here is written again."""
        state = self._states.get(quota.metadata.name)
        if state is not None and not same(quota.status, state.shown):
            self._controller.queue.add_after(state.name, ECHO)

    def offer(self, state: QuotaState, view: QuotaView, now: float) -> None:
        """Write the status of this view, soon. `now` is monotonic, in seconds."""
        state.view = view
        settling = _settling(view)
        state.rushed = state.rushed and settling
        every = (PATIENCE if state.rushed else SETTLING_EVERY) if settling else EVERY
        self._controller.queue.add_after(state.name, max(every - EVERY, state.shown_at + every - now))

    async def _write(self, name: str) -> float | None:
        """If it says something new."""
        state = self._states.get(name)
        if state is None or state.view is None:
            return None
        arrives = state.shown.observed_generation != state.view.generation or _settling(state.view)
        if arrives and self._seeds.rush.defers(("status", name)):
            return PAUSE
        now = time.monotonic()
        status = quota_status(state.view, state.shown, conditions.now())
        if same(status, state.shown):
            there = self._caches.quotas.store.get(name)
            if there is None or now - state.shown_at < ECHO or same(status, there.status):
                return None
        elif same(msgspec.structs.replace(status, reserved=state.shown.reserved), state.shown):
            wait = state.shown_at + RESERVED_EVERY - now
            if wait > 0:
                return wait
        if not await write_status(self._cluster, MASTER_QUOTAS, state.quota, status, MASTER_MANAGER):
            return None
        changed = changed_limits(state.shown.hard, status.hard)
        if changed:
            self._events.add(name, state.uid, LIMITS_CHANGED, changed, warning=False)
        for reason, note in new_events(state.shown.overrides, status.overrides):
            self._events.add(name, state.uid, reason, note, warning=reason == ENDS)
        for reason, note in new_warnings(state.shown.conditions, status.conditions):
            self._events.add(name, state.uid, reason, note, warning=True)
        state.shown, state.shown_at = status, now
        return None


def _settling(view: QuotaView) -> bool:
    """Not in force yet on a seed that is in reach."""
    return any(
        seed.synced is False or (seed.connected and (seed.behind or seed.fenced or not seed.reported))
        for seed in view.seeds
        if seed.limited and not seed.gone
    )
