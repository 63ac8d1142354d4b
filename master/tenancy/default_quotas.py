"""Keeps the default quotas: what `default_policy` decides for each project and organization, done at every change."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from common.api.labels import SETTINGS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, NotFound
from common.kube.client.meta import Object
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from master.cache.informers import BY_SUBJECT, Caches, changed_name, subject_of
from master.cache.objects import MASTER_QUOTAS, MasterQuota, Named, QuotaStatus
from master.tenancy.default_policy import Kind, decide, in_force, usual_name

log = logging.getLogger(__name__)

WORKERS = 16
TIMEOUT = 30.0  # seconds for one project or organization
WATCH_LAG = 1.0  # seconds to wait for the watch to show what the API server has already

Key = tuple[Kind, str]  # of the subject

_KINDS: dict[str, Kind] = {"project": "project", "organization": "organization"}


class DefaultQuotas:
    """`run` works until cancelled; the caches are synced."""

    def __init__(self, cluster: Cluster, caches: Caches, *, on_reconcile: ReconcileHook | None = None) -> None:
        self._cluster = cluster
        self._caches = caches
        self._controller: Controller[Key] = Controller(
            "default-quotas", self._reconcile, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            self._review_all()
            await self._controller.run()
        finally:
            ends()

    def _review_all(self) -> None:
        for name in self._caches.projects.store.keys():  # noqa: SIM118
            self._controller.queue.add(("project", name))
        for name in self._caches.organizations.store.keys():  # noqa: SIM118
            self._controller.queue.add(("organization", name))
        for quota in self._caches.quotas.store.values():
            self._review_subject(quota)

    def _review_subject(self, quota: MasterQuota) -> None:
        kind, name = subject_of(quota)
        if kind in _KINDS:
            self._controller.queue.add((_KINDS[kind], name))

    def _changed(self, plural: str, change: Change[Object]) -> None:
        old, new = change.old, change.new
        if plural == "quotasettings":
            self._review_all()
        elif plural in ("projects", "organizations"):
            if old is None or new is None or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp:
                self._controller.queue.add((_KINDS[plural.removesuffix("s")], changed_name(change)))
        elif plural == "resourcequotas" and _facts(old) != _facts(new):
            quota = new if new is not None else old
            assert isinstance(quota, MasterQuota)
            self._review_subject(quota)

    async def _reconcile(self, key: Key) -> float | None:
        kind, name = key
        quotas = self._caches.quotas.store
        decision = decide(
            kind,
            self._subjects(kind).store.get(name),
            self._caches.default(kind),
            quotas.by_index(BY_SUBJECT, f"{kind}/{name}"),
            quotas.get(usual_name(kind, name)),
        )
        for quota in decision.replace:
            # Without the status, which is written elsewhere: the API server need not read what it leaves out.
            await self._cluster.replace(MASTER_QUOTAS, replace(quota, status=QuotaStatus()))
            log.info("default quota changed", extra={"quota": quota.metadata.name})
        if decision.create is not None:
            try:
                made = await self._cluster.create(MASTER_QUOTAS, decision.create)
            except AlreadyExists:
                return WATCH_LAG
            log.info("default quota made", extra={"quota": made.metadata.name})
        if decision.delete:
            await self._confirm(key, decision.delete)
        for quota in decision.delete:
            metadata = quota.metadata
            try:
                await self._cluster.delete(
                    MASTER_QUOTAS, metadata.name, uid=metadata.uid, resource_version=metadata.resource_version
                )
            except NotFound:
                continue
            log.info("default quota deleted", extra={"quota": metadata.name})
        return None

    async def _confirm(self, key: Key, leaving: list[MasterQuota]) -> None:
        """That what the subject's default quotas go for is so: it is gone, nothing is the default, or others stay."""
        kind, name = key
        subject = self._subjects(kind).store.get(name)
        if subject is None:
            await self._caches.confirm(f"{kind}s", name, None)
        elif self._caches.default(kind) is None:
            await self._caches.confirm("quotasettings", SETTINGS, self._caches.settings.store.get(SETTINGS))
        else:
            for quota in self._caches.quotas.store.by_index(BY_SUBJECT, f"{kind}/{name}"):
                if quota not in leaving:
                    await self._caches.confirm("resourcequotas", quota.metadata.name, quota)

    def _subjects(self, kind: Kind) -> Reflector[Named]:
        return self._caches.projects if kind == "project" else self._caches.organizations


def _facts(quota: Object | None) -> object:
    """What decisions are made from: not what the status says all the time."""
    if not isinstance(quota, MasterQuota):
        return None
    metadata = quota.metadata
    return (
        metadata.uid,
        metadata.generation,
        metadata.labels,
        metadata.annotations,
        metadata.owner_references,
        metadata.deletion_timestamp,
        in_force(quota),
    )
