"""Keeps the LocalResourceQuotas of one user cluster as they should be, for as long as one connection lasts.

It follows nothing there. What somebody changes or deletes is written again with the next change, and at the latest
after REFRESH seconds. Nothing waits for it: a user cluster that is slow or refuses loses only this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from common.api import conditions
from common.api.labels import MANAGED_BY_LABEL, SEED_MANAGER, SUBJECT_KIND_LABEL, UID_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound, TooManyRequests, Unauthorized
from common.runtime.waiting import within
from seed import metrics
from seed.projections import definition, local_quota
from seed.projections.local_quota import LOCAL_QUOTAS, Known, LocalQuota
from seed.projections.pace import Pace

log = logging.getLogger(__name__)

EVERY = 1.0  # seconds between two looks at one user cluster
REFRESH = 60.0  # ... between two writes of what has not changed, so that its age says how old it is
INSTALL_AGAIN = 3600.0  # ... between two looks after the definition and the role
RETRY = (1.0, 60.0)  # first and longest pause after a failure
BEING_SERVED = 4  # failures in a row that are usual where the kind is new: it is not served yet, or its storage starts
MAX_COPIES = 32  # of one user cluster; the first by name


class _Written(msgspec.Struct, frozen=True):
    local: LocalQuota
    current_time: str
    at: float  # monotonic


class ClusterCopies:
    """`written`: all of them are there as they should be; None: not tried yet. `problem` says why not, for people."""

    def __init__(
        self,
        key: str,
        cluster: Cluster,
        namespace: str,
        known: Callable[[], Iterable[Known]],
        pace: Pace,
        *,
        enabled: bool = True,
        on_state: Callable[[], None] = lambda: None,
    ) -> None:
        """`known`: of each quota that counts the cluster. Not `enabled`: what is there is removed, once."""
        self.written: bool | None = None
        self.problem = ""
        self._key = key
        self._cluster = cluster
        self._namespace = namespace
        self._known = known
        self._pace = pace
        self._enabled = enabled
        self._on_state = on_state
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._installed_at: float | None = None
        self._kept: frozenset[str] | None = None  # uids of the quotas beside which nothing is left there
        self._copies: dict[str, _Written] = {}  # by name
        self._failures = 0

    def wake(self) -> None:
        """A quota, or what is used of it, may have changed."""
        self._wake.set()

    def reached(self) -> None:
        """The user cluster may be in reach again: what failed is tried at once."""
        self._wake.set()
        self._retry.set()

    def shows(self, quota: str) -> bool:
        return quota in self._copies

    async def run(self) -> None:
        """Until cancelled. What was written stays: see `remove`."""
        while True:
            self._wake.clear()
            self._retry.clear()
            try:
                await self._pace.turn()
                await self._look()
            except (ApiError, TimeoutError) as error:
                self._failed(error)
            except Exception as error:
                log.error("local copies failed", exc_info=error, extra={"cluster": self._key})
                self._failed(error)
            else:
                self._failures = 0
                self._said(True, "")
                if not self._enabled:
                    return
                await asyncio.sleep(EVERY)
                await within(self._wake, max(self._refresh_at() - time.monotonic(), 0.0))
                continue
            await within(self._retry, min(RETRY[0] * 2.0 ** min(self._failures - 1, 20), RETRY[1]))

    async def remove(self) -> None:
        """Not while `run` runs. Raises ApiError."""
        with suppress(NotFound):  # the kind is not there
            await self._prune(frozenset())

    async def _look(self) -> None:
        if not self._enabled:
            with suppress(Forbidden):  # who may not write them has written none
                await self.remove()
            return
        now = time.monotonic()
        if self._installed_at is None or now - self._installed_at >= INSTALL_AGAIN:
            await self._cluster.apply(definition.DEFINITIONS, definition.DEFINITION, SEED_MANAGER)
            await self._cluster.apply(definition.ROLES, definition.ROLE, SEED_MANAGER)
            self._installed_at = now
        known = sorted(self._known(), key=lambda each: each.quota.name)[:MAX_COPIES]
        uids = frozenset(each.quota.key.uid for each in known)
        if uids != self._kept:
            await self._prune(uids)
        for each in known:
            await self._write(each)

    def _refresh_at(self) -> float:
        oldest = min((copy.at for copy in self._copies.values()), default=time.monotonic())
        return oldest + REFRESH

    async def _prune(self, uids: frozenset[str]) -> None:
        """Removes those of all other quotas, whoever has written them for this project. Those of quotas of kind
        namespaces are not looked at here."""
        selector = f"{MANAGED_BY_LABEL}={SEED_MANAGER},!{SUBJECT_KIND_LABEL}"
        if uids:
            selector += f",{UID_LABEL} notin ({','.join(sorted(uids))})"
        await self._cluster.delete_all(LOCAL_QUOTAS, self._namespace, label_selector=selector)
        self._kept = uids
        self._copies = {name: kept for name, kept in self._copies.items() if kept.local.uid in uids}

    async def _write(self, known: Known) -> None:
        local, before, now = local_quota.desired(known), self._copies.get(known.quota.name), time.monotonic()
        if before is not None and before.local == local and now - before.at < REFRESH:
            return
        current_time = before.current_time if before is not None and before.local.uid == local.uid else ""
        if not local.stale:
            current_time = conditions.now(-(known.master_silent or 0.0))
        body = local_quota.manifest(local, self._namespace, current_time)
        try:
            await self._cluster.apply(LOCAL_QUOTAS, body, SEED_MANAGER)
        except BaseException:
            self._copies.pop(local.name, None)  # whether it was written is not known
            raise
        self._copies[local.name] = _Written(local, current_time, now)
        metrics.local_copy_written(ok=True)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        metrics.local_copy_written(ok=False)
        if isinstance(error, NotFound):  # the kind is not served yet, or was deleted
            self._installed_at = self._kept = None
        if isinstance(error, NotFound | TooManyRequests) and self._failures <= BEING_SERVED:
            return
        message = str(error) or type(error).__name__
        if isinstance(error, Forbidden | Unauthorized):
            message += "; bind charts/rbac/user-cluster.yaml"
        self._said(False, message)

    def _said(self, written: bool, problem: str) -> None:
        if self._enabled:
            metrics.local_copies(self._key, success=written)
        if (written, problem) == (self.written, self.problem):
            return
        if problem:
            log.warning("local copies not written", extra={"cluster": self._key, "error": problem})
        self.written, self.problem = written, problem
        self._on_state()
