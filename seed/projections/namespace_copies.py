"""Keeps a LocalResourceQuota in each namespace that quotas count in one cluster, for as long as one connection lasts;
for a ResourceQuotaAllocation a LocalResourceQuotaAllocation.

There may be thousands, and each admission changes the totals that all of them show. So only a few are written in a
second: those of namespaces whose own use changed before those of which only the totals changed. Nothing waits for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

import msgspec

from common.api.labels import MANAGED_BY_LABEL, SEED_MANAGER, SUBJECT_KIND_LABEL, UID_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from common.quota.resources import ResourceList
from common.runtime.pieces import in_pieces
from seed import metrics
from seed.model.quota import NAMESPACES
from seed.projections import copies, local_quota
from seed.projections.copies import Copies, Key, Written
from seed.projections.local_quota import LOCAL_ALLOCATIONS, LOCAL_QUOTAS, LocalQuota
from seed.projections.pace import Pace

AT_ONCE = 25  # writes in one look
REFRESH_EACH = 0.15  # seconds for each copy that there is, if that is longer than REFRESH: 1,000 cost 7 writes a second
OWN_FIRST = 30.0  # seconds that a copy whose namespace's own use changed is before others
ASIDE = 60.0  # ... for which one namespace is left alone after it refused
MAX_COPIES = 10_000  # of one cluster; the first by namespace
MOST_LEFT = 64 * 2**20  # bytes of what an earlier leader may have left: tenants can write what looks like it
AT_THE_END = 8  # requests at a time when a cluster is let go

_OURS = f"{MANAGED_BY_LABEL}={SEED_MANAGER},{SUBJECT_KIND_LABEL}={NAMESPACES}"
_KINDS = {kind.plural: kind for kind in (LOCAL_QUOTAS, LOCAL_ALLOCATIONS)}


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What one quota says in this cluster. `local`: without a namespace's own use. `here`: that of each namespace that
    it selects; None while these are not known. `master_silent`: seconds since the last sign of the master."""

    local: LocalQuota
    here: Mapping[str, ResourceList] | None
    master_silent: float


class NamespaceCopies(Copies):
    """`written`: False while nothing can be written; None also where there is nothing to write."""

    rights = "charts/rbac/user-cluster.yaml, on a seed charts/rbac/seed-local-quotas.yaml"

    def __init__(
        self,
        key: str,
        cluster: Cluster,
        selections: Callable[[], Iterable[Selection]],
        pace: Pace,
        *,
        enabled: bool = True,
        on_state: Callable[[], None] = lambda: None,
    ) -> None:
        """`selections`: of each quota that counts namespaces there."""
        super().__init__(key, cluster, pace, enabled=enabled, on_state=on_state)
        self._selections = selections
        self._found = False
        self._aside: dict[Key, float] = {}  # until when (monotonic)

    async def remove(self) -> None:
        if not self._found:
            await self._find()
        left = list(self._copies)
        for start in range(0, len(left), AT_THE_END):
            await asyncio.gather(*(self._remove(key) for key in left[start : start + AT_THE_END]))

    async def _look(self) -> float | None:
        if not self._found:
            await self._find()
        wanted, kept = await self._wanted() if self._enabled else ({}, set())
        gone = [key for key in self._copies if key not in wanted and (key.uid, key.plural) not in kept][:AT_ONCE]
        for key in gone:
            await self._pace.turn()
            await self._remove(key)
        now = time.monotonic()
        self._aside = {key: until for key, until in self._aside.items() if key in wanted and until > now}
        refresh = max(copies.REFRESH, REFRESH_EACH * len(wanted))
        able = {key: value for key, value in wanted.items() if key not in self._aside}
        due = due_now(able, self._copies, now, refresh, AT_ONCE - len(gone))
        await self._write_all(due, wanted)
        if len(gone) + len(due) >= AT_ONCE:
            return 0.0
        if not wanted:
            self._said(None, "")
        oldest = min((self._copies[key].at for key in wanted if key not in self._aside), default=None)
        times = [*self._aside.values(), *([oldest + refresh] if oldest is not None else [])]
        return max(min(times) - time.monotonic(), 0.0) if times else None

    async def _wanted(self) -> tuple[dict[Key, tuple[LocalQuota, float]], set[tuple[str, str]]]:
        """And the uids of quotas of which it is not known what they select, with the kind of copy: theirs stay."""
        found: dict[Key, Selection] = {}
        kept: set[tuple[str, str]] = set()
        for selection in self._selections():
            uid, plural = selection.local.uid, selection.local.resource.plural
            if selection.here is None:
                kept.add((uid, plural))
                continue
            async for namespace in in_pieces(selection.here):
                found[Key(namespace, uid, plural)] = selection
        keys: Iterable[Key] = found if len(found) <= MAX_COPIES else heapq.nsmallest(MAX_COPIES, found)
        return {key: _said(found[key], key.namespace) for key in keys}, kept

    async def _find(self) -> None:
        """What an earlier leader has written."""
        for plural, kind in _KINDS.items():
            listed = dataclasses.replace(kind, metadata_only=True, most=MOST_LEFT)
            with suppress(NotFound, Forbidden):  # the kind is not there, or who may not read them has written none
                for each in (await self._cluster.list(listed, label_selector=_OURS)).items:
                    uid = each.metadata.labels.get(UID_LABEL, "")
                    self._copies.setdefault(Key(each.metadata.namespace, uid, plural), Written())
        self._found = True

    async def _remove(self, key: Key) -> None:
        of_quota = f"{UID_LABEL}={key.uid}" if key.uid else f"!{UID_LABEL}"
        with suppress(NotFound):  # with its namespace
            await self._cluster.delete_all(_KINDS[key.plural], key.namespace, label_selector=f"{_OURS},{of_quota}")
        self._copies.pop(key, None)

    async def _write_all(self, due: Collection[Key], wanted: Mapping[Key, tuple[LocalQuota, float]]) -> None:
        """A namespace that refuses keeps no other from being written. Raises ApiError where nothing can be."""
        refused: list[ApiError] = []
        for key in due:
            await self._pace.turn()
            try:
                await self._write(key.namespace, *wanted[key])
            except (Forbidden, NotFound, Conflict, Invalid) as error:
                refused.append(error)
                self._aside[key] = time.monotonic() + ASIDE
        if refused and len(refused) == len(due) and (len(due) > 1 or len(wanted) == 1):
            self._aside.clear()
            raise refused[0]
        for _ in refused:
            metrics.local_copy_written(ok=False)
        if len(refused) < len(due):
            self._said(True, "")


def _said(selection: Selection, namespace: str) -> tuple[LocalQuota, float]:
    here = selection.here[namespace] if selection.here is not None else {}
    return local_quota.in_namespace(selection.local, here), selection.master_silent


def due_now(
    wanted: Mapping[Key, tuple[LocalQuota, float]], copies: Mapping[Key, Written], now: float, refresh: float, most: int
) -> list[Key]:
    """Which to write now, at most so many. Pure.

    Whoever waits for longest comes first; where the namespace's own use changed it counts as OWN_FIRST longer. So no
    namespace, however often it changes, keeps others from being written.
    """
    found: list[tuple[float, Key]] = []
    for key, (local, _) in wanted.items():
        before = copies.get(key)
        if before is None or before.local is None:
            found.append((float("-inf"), key))
        elif before.local.here != local.here:
            found.append((before.at - OWN_FIRST, key))
        elif before.local != local or now - before.at >= refresh:
            found.append((before.at, key))
    return [key for _, key in heapq.nsmallest(most, found)]
