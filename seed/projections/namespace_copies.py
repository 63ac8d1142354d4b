"""Keeps a LocalResourceQuota in each namespace that quotas of kind namespaces select in one cluster, for as long as one
connection lasts.

There may be thousands, and each admission changes the totals that all of them show. So only a few are written in a
second: those of namespaces whose own use changed before those of which only the totals changed. Nothing waits for it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

import msgspec

from common.api import conditions
from common.api.labels import MANAGED_BY_LABEL, SEED_MANAGER, SUBJECT_KIND_LABEL, UID_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TooManyRequests, Unauthorized
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.quota.resources import ResourceList
from common.runtime.waiting import within
from seed import metrics
from seed.cache.quota import NAMESPACES
from seed.projections import local_quota
from seed.projections.local_quota import LOCAL_QUOTAS, LocalQuota
from seed.projections.pace import Pace

log = logging.getLogger(__name__)

EVERY = 1.0  # seconds between two looks at one cluster, in each of which a copy is written once at most
AT_ONCE = 25  # writes in one look
REFRESH = 60.0  # seconds between two writes of what has not changed, so that its age says how old it is
REFRESH_EACH = 0.15  # ... for each copy that there is, if that is longer: 1,000 copies cost 7 writes a second
OWN_FIRST = 30.0  # seconds that a copy whose namespace's own use changed is before others
ASIDE = 60.0  # ... for which one namespace is left alone after it refused
RETRY = (1.0, 60.0)  # first and longest pause after a failure of all
BEING_SERVED = 4  # failures in a row that are usual where the kind is new
MAX_COPIES = 10_000  # of one cluster; the first by namespace
AT_THE_END = 8  # requests at a time when a cluster is let go

_OURS = f"{MANAGED_BY_LABEL}={SEED_MANAGER},{SUBJECT_KIND_LABEL}={NAMESPACES}"
_LISTED = Resource(
    LOCAL_QUOTAS.group,
    LOCAL_QUOTAS.version,
    LOCAL_QUOTAS.plural,
    LOCAL_QUOTAS.kind,
    True,
    Object,
    metadata_only=True,
)

Key = tuple[str, str]
"""A namespace, and the uid of a quota."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What one quota says in this cluster. `local`: without a namespace's own use. `here`: that of each namespace that
    it selects; None while these are not known. `master_silent`: seconds since the last sign of the master."""

    local: LocalQuota
    here: Mapping[str, ResourceList] | None
    master_silent: float


class Written(msgspec.Struct, frozen=True):
    """`local`: None for one that was found there, and of which nothing else is known."""

    local: LocalQuota | None = None
    current_time: str = ""
    at: float = float("-inf")  # monotonic


class NamespaceCopies:
    """`written`: False while nothing can be written, and `problem` says why; None: nothing was tried yet."""

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
        """`selections`: of each quota that counts namespaces there. Not `enabled`: what is there is removed, once."""
        self.written: bool | None = None
        self.problem = ""
        self._key = key
        self._cluster = cluster
        self._selections = selections
        self._pace = pace
        self._enabled = enabled
        self._on_state = on_state
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._found = False
        self._copies: dict[Key, Written] = {}
        self._aside: dict[Key, float] = {}  # until when (monotonic)
        self._failures = 0

    def wake(self) -> None:
        """A quota, what it selects, or what is used of it may have changed."""
        self._wake.set()

    def reached(self) -> None:
        """The cluster may be in reach again: what failed is tried at once."""
        self._wake.set()
        self._retry.set()

    def shows(self, quota: str) -> bool:
        return any(kept.local is not None and kept.local.name == quota for kept in self._copies.values())

    async def run(self) -> None:
        """Until cancelled. What was written stays: see `remove`."""
        while True:
            self._wake.clear()
            self._retry.clear()
            try:
                wait = await self._look()
            except (ApiError, TimeoutError) as error:
                await within(self._retry, self._failed(error))
                continue
            except Exception as error:
                log.error("local copies in namespaces failed", exc_info=error, extra={"cluster": self._key})
                await within(self._retry, self._failed(error))
                continue
            self._failures = 0
            if not self._enabled and not self._copies:
                return
            await asyncio.sleep(EVERY)
            if wait is None or wait > EVERY:
                await within(self._wake, None if wait is None else wait - EVERY)

    async def remove(self) -> None:
        """All of them. Not while `run` runs. Raises ApiError."""
        if not self._found:
            await self._find()
        left = list(self._copies)
        for start in range(0, len(left), AT_THE_END):
            await asyncio.gather(*(self._remove(key) for key in left[start : start + AT_THE_END]))

    async def _look(self) -> float | None:
        """Returns in how many seconds to look again although nobody wakes; None: only then."""
        if not self._found:
            await self._find()
        wanted, kept = self._wanted() if self._enabled else ({}, set())
        gone = [key for key in self._copies if key not in wanted and key[1] not in kept][:AT_ONCE]
        for key in gone:
            await self._pace.turn()
            await self._remove(key)
        now = time.monotonic()
        self._aside = {key: until for key, until in self._aside.items() if key in wanted and until > now}
        refresh = max(REFRESH, REFRESH_EACH * len(wanted))
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

    def _wanted(self) -> tuple[dict[Key, tuple[LocalQuota, float]], set[str]]:
        """And the uids of quotas of which it is not known what they select: theirs stay as they are."""
        wanted: dict[Key, tuple[LocalQuota, float]] = {}
        kept: set[str] = set()
        for selection in self._selections():
            local = selection.local
            if selection.here is None:
                kept.add(local.uid)
                continue
            for namespace, here in selection.here.items():
                wanted[namespace, local.uid] = local_quota.in_namespace(local, here), selection.master_silent
        if len(wanted) > MAX_COPIES:
            wanted = {key: wanted[key] for key in sorted(wanted)[:MAX_COPIES]}
        return wanted, kept

    async def _find(self) -> None:
        """What an earlier leader has written."""
        found: list[Object] = []
        with suppress(NotFound, Forbidden):  # the kind is not there, or who may not read them has written none
            found = (await self._cluster.list(_LISTED, label_selector=_OURS)).items
        for each in found:
            uid = each.metadata.labels.get(UID_LABEL, "")
            self._copies.setdefault((each.metadata.namespace, uid), Written())
        self._found = True

    async def _remove(self, key: Key) -> None:
        namespace, uid = key
        with suppress(NotFound):  # with its namespace
            await self._cluster.delete_all(
                LOCAL_QUOTAS, namespace, label_selector=f"{_OURS},{UID_LABEL}={uid}" if uid else f"{_OURS},!{UID_LABEL}"
            )
        self._copies.pop(key, None)

    async def _write_all(self, due: Collection[Key], wanted: Mapping[Key, tuple[LocalQuota, float]]) -> None:
        """A namespace that refuses keeps no other from being written. Raises ApiError where nothing can be."""
        refused: list[ApiError] = []
        for key in due:
            await self._pace.turn()
            try:
                await self._write(key, *wanted[key])
            except (Forbidden, NotFound, Conflict, Invalid) as error:
                refused.append(error)
                self._aside[key] = time.monotonic() + ASIDE
                metrics.local_copy_written(ok=False)
        if refused and len(refused) == len(due) and (len(due) > 1 or len(wanted) == 1):
            self._aside.clear()
            raise refused[0]
        if len(refused) < len(due):
            self._said(True, "")

    async def _write(self, key: Key, local: LocalQuota, master_silent: float) -> None:
        before, now = self._copies.get(key), time.monotonic()
        current_time = before.current_time if before is not None else ""
        if not local.stale:
            current_time = conditions.now(-master_silent)
        self._copies[key] = Written()  # it may be there, from now on
        await self._cluster.apply(LOCAL_QUOTAS, local_quota.manifest(local, key[0], current_time), SEED_MANAGER)
        self._copies[key] = Written(local, current_time, now)
        metrics.local_copy_written(ok=True)

    def _failed(self, error: Exception) -> float:
        """Returns the pause."""
        self._failures += 1
        message = str(error) or type(error).__name__
        if isinstance(error, Forbidden | Unauthorized):
            message += "; bind charts/rbac/user-cluster.yaml, on a seed charts/rbac/seed-local-quotas.yaml"
        if not isinstance(error, NotFound | TooManyRequests) or self._failures > BEING_SERVED:
            self._said(False, message)
        return min(RETRY[0] * 2.0 ** min(self._failures - 1, 20), RETRY[1])

    def _said(self, written: bool | None, problem: str) -> None:
        if (written, problem) == (self.written, self.problem):
            return
        if problem:
            log.warning("local copies in namespaces not written", extra={"cluster": self._key, "error": problem})
        self.written, self.problem = written, problem
        self._on_state()


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
