"""Keeps the LocalResourceQuotas of one user cluster as they should be, for as long as one connection lasts.

It follows nothing there. What somebody changes or deletes is written again with the next change, and at the latest
after REFRESH seconds. Nothing waits for it: a user cluster that is slow or refuses loses only this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from common.api.labels import MANAGED_BY_LABEL, SEED_MANAGER, SUBJECT_KIND_LABEL, UID_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, NotFound
from seed import metrics
from seed.projections import copies, definition, local_quota
from seed.projections.copies import Copies, Key
from seed.projections.local_quota import LOCAL_QUOTAS, KnownQuota
from seed.projections.pace import Pace

INSTALL_AGAIN = 3600.0  # seconds between two looks after the definitions and the role
MAX_COPIES = 32  # of one user cluster; the first by name


class ClusterCopies(Copies):
    """`written`: all of them are there as they should be."""

    rights = "charts/rbac/user-cluster.yaml"

    def __init__(
        self,
        key: str,
        cluster: Cluster,
        namespace: str,
        known: Callable[[], Iterable[KnownQuota]],
        pace: Pace,
        *,
        enabled: bool = True,
        on_state: Callable[[], None] = lambda: None,
    ) -> None:
        """`known`: of each quota that counts the cluster."""
        super().__init__(key, cluster, pace, enabled=enabled, on_state=on_state)
        self._namespace = namespace
        self._known = known
        self._installed_at: float | None = None
        self._kept: frozenset[str] | None = None  # uids of the quotas beside which nothing is left there

    async def remove(self) -> None:
        with suppress(NotFound):  # the kind is not there
            await self._prune(frozenset())

    async def _look(self) -> float:
        await self._pace.turn()
        if self._enabled:
            await self._keep()
        else:
            with suppress(Forbidden):  # who may not write them has written none
                await self.remove()
        self._said(True, "")
        now = time.monotonic()
        return min((copy.at for copy in self._copies.values()), default=now) + copies.REFRESH - now

    async def _keep(self) -> None:
        now = time.monotonic()
        if self._installed_at is None or now - self._installed_at >= INSTALL_AGAIN:
            await definition.install(self._cluster)
            self._installed_at = now
        known = sorted(self._known(), key=lambda each: each.quota.name)[:MAX_COPIES]
        uids = frozenset(each.quota.key.uid for each in known)
        if uids != self._kept:
            await self._prune(uids)
        for each in known:
            local = local_quota.desired(each)
            before = self._copies.get(Key(self._namespace, local.uid))
            if before is None or before.local != local or now - before.at >= copies.REFRESH:
                await self._write(self._namespace, local, each.master_silent or 0.0)

    async def _prune(self, uids: frozenset[str]) -> None:
        """Removes those of all other quotas, whoever has written them for this project. Those of quotas of kind
        namespaces are not looked at here."""
        selector = f"{MANAGED_BY_LABEL}={SEED_MANAGER},!{SUBJECT_KIND_LABEL}"
        if uids:
            selector += f",{UID_LABEL} notin ({','.join(sorted(uids))})"
        await self._cluster.delete_all(LOCAL_QUOTAS, self._namespace, label_selector=selector)
        self._kept = uids
        self._copies = {key: kept for key, kept in self._copies.items() if key.uid in uids}

    def _failed(self, error: Exception) -> float:
        if isinstance(error, NotFound):  # the kind is not served yet, or was deleted
            self._installed_at = self._kept = None
        return super()._failed(error)

    def _said(self, written: bool | None, problem: str) -> None:
        if self._enabled:
            metrics.local_copies(self._key, success=bool(written))
        super()._said(written, problem)
