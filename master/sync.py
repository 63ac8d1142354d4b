"""Copies of the master's objects on one seed: level-triggered, nothing written where nothing differs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from common.api import MANAGED_BY_LABEL, MASTER_MANAGER, RELEASED_ANNOTATION, UID_LABEL
from common.kube.client import Cluster
from common.kube.controller import Controller, ReconcileHook
from common.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.kube.meta import Object
from common.kube.queue import WorkQueue
from common.kube.reflector import Change, Reflector
from common.kube.resource import Resource
from master.caches import Caches
from master.objects import ORGANIZATIONS, PROJECTS, QUOTA_COPIES, MasterQuota, Named, QuotaCopy

log = logging.getLogger(__name__)

WORKERS = 8
TIMEOUT = 30.0  # seconds for one object
FINALIZING = 1.0  # seconds until another look at a copy that is being deleted

Key = tuple[str, str]  # plural and name


class SeedCaches:
    """What one seed has, for as long as one connection lasts."""

    def __init__(self, cluster: Cluster, on_change: Callable[[str, Change[Object]], None]) -> None:
        def tells(plural: str) -> Callable[[Change[QuotaCopy] | Change[Named]], None]:
            return lambda change: on_change(plural, Change(change.old, change.new))

        self.quotas: Reflector[QuotaCopy] = Reflector(cluster, QUOTA_COPIES, on_change=tells("resourcequotas"))
        self.projects: Reflector[Named] = Reflector(cluster, PROJECTS, on_change=tells("projects"))
        self.organizations: Reflector[Named] = Reflector(cluster, ORGANIZATIONS, on_change=tells("organizations"))

    @property
    def all(self) -> tuple[Reflector[QuotaCopy], Reflector[Named], Reflector[Named]]:
        return self.quotas, self.projects, self.organizations

    @property
    def synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self.all)

    @property
    def error(self) -> str | None:
        """Why it does not follow the seed now."""
        return next((reflector.error for reflector in self.all if reflector.error is not None), None)


class CopySync:
    """Keeps the copies on one seed. `on_settled(plural, name)` is called when one was found or put right."""

    def __init__(
        self,
        seed: str,
        caches: Caches,
        cluster: Cluster,
        there: SeedCaches,
        *,
        on_settled: Callable[[str, str], None],
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self.failing: dict[Key, str] = {}  # why, by object
        self.same_cluster = False  # the kubeconfig leads to the master: its objects are no copies of themselves
        self._unsynced: set[Key] = set()
        self._seed = seed
        self._caches = caches
        self._cluster = cluster
        self._there = there
        self._on_settled = on_settled
        self._queue: WorkQueue[Key] = WorkQueue(max_backoff=15.0)
        self._controller = Controller(
            "sync", self._reconcile, workers=WORKERS, timeout=TIMEOUT, queue=self._queue, on_reconcile=on_reconcile
        )

    async def run(self) -> None:
        for reflector in self._there.all:
            await reflector.synced.wait()
        for key in self._keys():
            self.add(key)
        await self._controller.run()

    def add(self, key: Key) -> None:
        self._unsynced.add(key)
        self._queue.add(key)

    def in_sync(self, plural: str, name: str) -> bool:
        return self._there.synced and (plural, name) not in self._unsynced

    @property
    def outstanding(self) -> int:
        return len(self._unsynced)

    def _keys(self) -> set[Key]:
        keys: set[Key] = set()
        keys.update(("organizations", name) for name in self._caches.organizations.store.keys())  # noqa: SIM118
        keys.update(("organizations", name) for name in self._there.organizations.store.keys())  # noqa: SIM118
        keys.update(("projects", name) for name in self._caches.projects.store.keys())  # noqa: SIM118
        keys.update(("projects", name) for name in self._there.projects.store.keys())  # noqa: SIM118
        keys.update(("resourcequotas", name) for name in self._caches.quotas.store.keys())  # noqa: SIM118
        keys.update(("resourcequotas", name) for name in self._there.quotas.store.keys())  # noqa: SIM118
        return keys

    def _desired(self, key: Key) -> MasterQuota | Named | None:
        plural, name = key
        if plural == "resourcequotas":
            return self._caches.quotas.store.get(name)
        return (self._caches.projects if plural == "projects" else self._caches.organizations).store.get(name)

    def _actual(self, key: Key) -> QuotaCopy | Named | None:
        plural, name = key
        if plural == "resourcequotas":
            return self._there.quotas.store.get(name)
        return (self._there.projects if plural == "projects" else self._there.organizations).store.get(name)

    async def _reconcile(self, key: Key) -> float | None:
        try:
            again = await self._put_right(key)
        except ApiError as error:
            self.failing[key] = error.message
            raise
        self.failing.pop(key, None)
        if again is None:
            self._unsynced.discard(key)
            self._on_settled(*key)
        return again

    async def _put_right(self, key: Key) -> float | None:
        desired, actual = self._desired(key), self._actual(key)
        if desired is None:
            return await self._remove(key, actual)
        if actual is None:
            return await self._create(key, desired)
        if actual.metadata.uid == desired.metadata.uid:
            self.same_cluster = True
            raise Conflict(409, "Conflict", f"seed {self._seed} is the master itself")
        if actual.metadata.deletion_timestamp is not None:
            return FINALIZING
        of = actual.metadata.labels.get(UID_LABEL)
        if of and of != desired.metadata.uid:
            # Made again under its name: another quota, with an account of its own.
            await self._delete(key, actual)
            return await self._create(key, desired)
        labels = {**actual.metadata.labels, **_labels(desired)}
        if actual.spec == desired.spec and labels == actual.metadata.labels:
            return None
        metadata = replace(actual.metadata, labels=labels)
        if isinstance(actual, QuotaCopy):
            await self._cluster.replace(QUOTA_COPIES, replace(actual, metadata=metadata, spec=desired.spec))
        else:
            await self._cluster.replace(_named(key), replace(actual, metadata=metadata, spec=desired.spec))
        log.info("copy put right", extra=self._facts(key))
        return None

    async def _remove(self, key: Key, actual: Object | None) -> float | None:
        # What carries no label of ours was made by somebody else.
        if actual is None or not actual.metadata.labels.get(UID_LABEL):
            return None
        if actual.metadata.deletion_timestamp is not None:
            return FINALIZING
        await self._delete(key, actual)
        return None

    async def _delete(self, key: Key, actual: Object) -> None:
        resource: Resource[Any] = QUOTA_COPIES if key[0] == "resourcequotas" else _named(key)
        try:
            if isinstance(actual, QuotaCopy):
                # Without this the seed takes it for an accident, and goes on to enforce what it had.
                annotations = {**actual.metadata.annotations, RELEASED_ANNOTATION: "true"}
                metadata = replace(actual.metadata, annotations=annotations)
                await self._cluster.replace(QUOTA_COPIES, replace(actual, metadata=metadata))
            await self._cluster.delete(resource, key[1], uid=actual.metadata.uid)
        except NotFound:
            return  # gone already
        log.info("copy deleted", extra=self._facts(key))

    async def _create(self, key: Key, desired: MasterQuota | Named) -> float | None:
        resource: Resource[Any] = QUOTA_COPIES if key[0] == "resourcequotas" else _named(key)
        body = {"metadata": {"name": key[1], "labels": _labels(desired)}, "spec": desired.spec}
        try:
            await self._cluster.create(resource, body)
        except AlreadyExists:
            return FINALIZING  # the watch is behind, or a finalizer holds the former one
        log.info("copy created", extra=self._facts(key))
        return None

    def _facts(self, key: Key) -> dict[str, object]:
        return {"seed": self._seed, "kind": key[0], "object": key[1]}


def _labels(desired: Object) -> dict[str, str]:
    return {UID_LABEL: desired.metadata.uid, MANAGED_BY_LABEL: MASTER_MANAGER}


def _named(key: Key) -> Resource[Named]:
    return PROJECTS if key[0] == "projects" else ORGANIZATIONS
