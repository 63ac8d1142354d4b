"""Copies of the master's objects on one seed: level-triggered, nothing written where nothing differs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from common.api.conditions import now
from common.api.labels import MASTER_ANNOTATION, MASTER_SEEN_ANNOTATION, RELEASED_ANNOTATION, UID_LABEL
from common.api.types import GENERATION_ANNOTATION
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Store
from common.kube.controller.workqueue import WorkQueue
from common.runtime.burst import PAUSE, BurstDetector
from common.runtime.freeing import free_in_pieces
from common.runtime.pieces import in_pieces
from common.runtime.token_bucket import TokenBucket
from common.runtime.waiting import within
from master.cache.informers import BY_SUBJECT, Caches, subject_of
from master.cache.objects import (
    ORGANIZATIONS,
    PROJECTS,
    QUOTA_COPIES,
    QUOTA_SETTINGS,
    SEED_COPIES,
    MasterQuota,
    Named,
    QuotaCopy,
)
from master.cache.picked_seeds import is_of_seeds, limits_on
from master.grants.overrides import in_force
from master.seeds.copy_contents import copied_generation, copy_labels, is_shown, seed_copy
from master.seeds.other_master import OtherMaster
from master.seeds.remote_cache import SeedCaches

log = logging.getLogger(__name__)

WORKERS = 8  # for quotas, and as many for the rest
TIMEOUT = 30.0  # seconds for one object
SEED_AGAIN = 0.1  # seconds
LOOK_EVERY = 0.1  # ... whether the seed's copy of the Seed was read, which names the master that serves it
BLOCKED = 10.0  # seconds until it is looked at again whether another master has gone
SIGN_EVERY = 30.0  # seconds between two signs of the master; seed/projections waits for three
SOON = 1.0  # ... until the next try
FINALIZING = 1.0  # seconds until another look at a copy that is being deleted
REVIEWED = 100  # copies of one subject that are looked at when another has come: all that wait are anyway, soon
SUCCEEDED = 1.0  # ... at one that must not go before another is here; that one's coming is reported sooner
# Of copies of what the master does not have. Before each, its API server is read, which all seeds need.
REMOVALS_PER_SECOND, REMOVALS_AT_ONCE = 100.0, 50.0
LONGEST_TURN = 60.0  # seconds until one that had no turn asks again
# Of a quota's copy. Master and seed apply each time all that they ever apply to its status: without an owner nothing is
# left over there.
NOT_KEPT: list[dict[str, str]] = [{}]

Key = tuple[str, str]  # plural and name


class CopySync:
    """Keeps the copies on one seed. `on_settled(plural, name)` is called when one is as it should be.

    `master`: the uid of this master's Lease. `in_cluster`: the seed is the master's own API server. Nothing is copied
    there; an object is in sync when the watch of that link has shown it.
    """

    def __init__(
        self,
        seed: str,
        caches: Caches,
        cluster: Cluster,
        there: SeedCaches,
        rush: BurstDetector,
        *,
        master: str,
        in_cluster: bool,
        on_settled: Callable[[str, str], None],
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self.failing: dict[Key, str] = {}  # why, by object
        self._master = master
        self._other_master = OtherMaster(master)
        self._in_cluster = in_cluster
        self._unsynced: set[Key] = set()
        self._added = False  # the keys of all that master and seed have
        self._withdrawn: dict[str, tuple[str, bool]] = {}  # see `withdraw`: uids by name, and whether that is over
        self._seed = seed
        self._caches = caches
        self._cluster = cluster
        self._there = there
        self._rush = rush
        self._removals = TokenBucket(REMOVALS_PER_SECOND, REMOVALS_AT_ONCE)
        self._on_settled = on_settled
        # A quota limits nothing on a seed before its copy is there: it does not wait behind a thousand projects.
        self._quotas, self._others = (
            Controller(
                "sync",
                self._reconcile,
                workers=WORKERS,
                timeout=TIMEOUT,
                queue=WorkQueue[Key](max_backoff=15.0),
                on_reconcile=on_reconcile,
            )
            for _ in range(2)
        )

    async def run(self) -> None:
        for reflector in self._there.all:
            await reflector.synced.wait()
        while not self._there.master_known:
            await within(self._there.seed.synced, LOOK_EVERY)
        try:
            await self._add_all()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._quotas.run())
                group.create_task(self._others.run())
        finally:
            free_in_pieces(list(self._unsynced))  # the queues have the same keys

    def add(self, key: Key) -> None:
        self._unsynced.add(key)
        (self._quotas if key[0] == "resourcequotas" else self._others).queue.add(key)

    def withdraw(self, quota: str, uid: str, *, over: bool) -> None:
        """The quota with this uid does not pick the seed. Until that is `over`, the seed needs the copy: there it says
        what it has given back. Then the copy may go. Empty: the quota is not withdrawn, as far as is known."""
        before = self._withdrawn.pop(quota, None)
        if uid:
            self._withdrawn[quota] = uid, over
            if before != (uid, over):
                self.add(("resourcequotas", quota))

    def seed_relabelled(self) -> None:
        """Quotas may pick the seed from now on, or not any more."""
        for quota in self._caches.quotas.store.values():
            if is_of_seeds(quota):
                self.add(("resourcequotas", quota.metadata.name))

    async def put_seed(self) -> None:
        """Writes the copy of the Seed itself, now. If the cache is behind, or the agent writes at the same time, it is
        tried again for as long as the caller waits. Raises ApiError."""
        while True:
            with suppress(Conflict):
                if await self._update(("seeds", self._seed)) is None:
                    return
            await asyncio.sleep(SEED_AGAIN)

    async def show_signs(self, connected: Callable[[], bool]) -> None:
        """Until cancelled: shows the seed, by its copy of the Seed, that the master is there. Where there is no copy,
        the status of the Seed shows that."""
        while not self._in_cluster:
            pause = SOON
            if connected():
                with suppress(ApiError):  # others say what is wrong with the connection
                    pause = SIGN_EVERY if await self._show_sign() else SOON
            await asyncio.sleep(pause)

    async def _show_sign(self) -> bool:
        """Raises ApiError."""
        key = "seeds", self._seed
        actual, desired = self._actual(key), self._desired(key)
        if not isinstance(actual, Named) or desired is None:
            return False
        if actual.metadata.labels.get(UID_LABEL) != desired.metadata.uid:
            return False
        annotations = {**actual.metadata.annotations, MASTER_SEEN_ANNOTATION: now()}
        metadata = replace(actual.metadata, annotations=annotations)
        await self._cluster.replace(SEED_COPIES, replace(actual, metadata=metadata))
        return True

    @property
    def blocked(self) -> str:
        """Why nothing may be written there now: another master serves the seed. Empty: none does."""
        if self._in_cluster:
            return ""
        seed = self._caches.seeds.store.get(self._seed)
        uid = seed.metadata.uid if seed is not None else ""
        there = self._there.seed
        return self._other_master.problem(there.store.get(self._seed), uid, there.proven_at)

    def in_sync(self, plural: str, name: str) -> bool:
        return self._added and self._there.synced and (plural, name) not in self._unsynced

    @property
    def crowded(self) -> bool:
        return len(self._quotas.queue) > WORKERS

    @property
    def all_in_sync(self) -> bool:
        return self._added and not self._unsynced

    @property
    def outstanding(self) -> int:
        return len(self._unsynced)

    async def _add_all(self) -> None:
        """In pieces: a seed decides how many there are."""
        self.add(("seeds", self._seed))
        for plural in ("quotasettings", "organizations", "projects", "resourcequotas"):
            for side in (self._caches, self._there):
                async for name in in_pieces(_store(side, plural).keys()):
                    self.add((plural, name))
        self._added = True

    def _desired(self, key: Key) -> MasterQuota | Named | None:
        plural, name = key
        if plural == "seeds":
            seed = self._caches.seeds.store.get(name)
            return seed_copy(seed) if seed is not None else None
        found: MasterQuota | Named | None = _store(self._caches, plural).get(name)
        if isinstance(found, MasterQuota) and not self._in_cluster:
            return replace(found, spec=in_force(found, found.status.overrides, time.time()).spec)
        return found

    def _actual(self, key: Key) -> QuotaCopy | Named | None:
        found: QuotaCopy | Named | None = _store(self._there, key[0]).get(key[1])
        return found

    async def _reconcile(self, key: Key) -> float | None:
        if key[0] == "projects" and self._rush.defers((self._seed, *key)):
            return PAUSE
        try:
            again = await self._update(key)
        except ApiError as error:
            self.failing[key] = error.message
            raise
        self.failing.pop(key, None)
        if again is None:
            self._unsynced.discard(key)
            self._on_settled(*key)
            if key[0] == "resourcequotas" and not self._in_cluster:
                self._review_predecessors(key[1])
        return again

    async def _update(self, key: Key) -> float | None:
        desired, actual = self._desired(key), self._actual(key)
        if self._in_cluster:
            return None if desired is None or is_shown(actual, desired) else SUCCEEDED
        if self.blocked and not (key[0] == "seeds" and self._other_master.silent):
            return BLOCKED
        if desired is None or (isinstance(desired, MasterQuota) and not self._is_needed(desired, actual)):
            return await self._remove(key, desired, actual)
        if actual is None:
            return await self._create(key, desired)
        if actual.metadata.uid == desired.metadata.uid:
            raise Conflict(
                409,
                "Conflict",
                f"the kubeconfig leads to the master itself; if that cluster is to be the seed {self._seed}, replace "
                "kubeconfigSecretRef with inCluster: true",
            )
        if key[0] == "seeds" and "copyOf" not in actual.spec:
            raise Conflict(409, "Conflict", f"seed {self._seed} is a master, too, with a Seed of that name")
        if actual.metadata.deletion_timestamp is not None:
            return FINALIZING
        of = actual.metadata.labels.get(UID_LABEL)
        if of and of != desired.metadata.uid and not (isinstance(actual, Named) and actual.spec == desired.spec):
            # Made again under its name: another quota, with an account of its own. The former one limits until then.
            # A Project or the like that says the same stays as it is, but for the label: it is never away.
            await self._caches.confirm(*key, desired)
            await self._delete(key, actual, released=False)
            return await self._create(key, desired)
        if copied_generation(actual) > desired.metadata.generation:
            # The cache is older than what the copy was made from, unless the master was restored from a backup.
            await self._caches.confirm(*key, desired)
        metadata = replace(
            actual.metadata,
            labels={**actual.metadata.labels, **copy_labels(desired)},
            annotations={**actual.metadata.annotations, **self._annotations(key, desired)},
        )
        if actual.spec == desired.spec and metadata == actual.metadata:
            return None
        if isinstance(actual, QuotaCopy):
            # Without its status, and who owns which field is forgotten: to read and compare them is half of the work.
            body = {"metadata": {**to_builtins(metadata), "managedFields": NOT_KEPT}, "spec": desired.spec}
            await self._cluster.replace(QUOTA_COPIES, body)
        else:
            await self._cluster.replace(_named(key), replace(actual, metadata=metadata, spec=desired.spec))
        log.info("copy reconciled", extra=self._facts(key))
        return None

    async def _remove(self, key: Key, original: Object | None, actual: Object | None) -> float | None:
        # What carries no label of ours was made by somebody else.
        if actual is None or not actual.metadata.labels.get(UID_LABEL):
            return None
        if actual.metadata.deletion_timestamp is not None:
            return FINALIZING
        if original is not None:  # it picks this seed no more
            await self._caches.confirm("seeds", self._seed, self._caches.seeds.store.get(self._seed))
        elif isinstance(actual, QuotaCopy) and self._successor_missing(actual):
            return SUCCEEDED
        if original is None and not self._removals.take(time.monotonic()):
            return min(SOON + len(self._unsynced) / REMOVALS_PER_SECOND, LONGEST_TURN)
        await self._caches.confirm(*key, original)
        await self._delete(key, actual, released=True)
        return None

    def _is_for_here(self, quota: MasterQuota) -> bool:
        seed = self._caches.seeds.store.get(self._seed)
        return seed is None or limits_on(quota, seed)

    def _is_needed(self, quota: MasterQuota, copy: Object | None) -> bool:
        """Whether the quota picks the seed, or may have something here still. A copy that was lost is made again where
        that is known."""
        uid = quota.metadata.uid
        of, over = self._withdrawn.get(quota.metadata.name, ("", False))
        if self._is_for_here(quota):
            return True
        there = copy is not None and copy.metadata.labels.get(UID_LABEL) == uid
        return not over if of == uid else there

    def _successor_missing(self, leaving: QuotaCopy) -> bool:
        """Whether another quota takes this one's place, and is not here yet: its subject is never without one."""
        kind, name = subject_of(leaving)
        if not name:
            return False
        subject = f"{kind}/{name}"
        all_of_it = self._caches.quotas.store.by_index(BY_SUBJECT, subject)
        successors = [quota for quota in all_of_it if self._is_for_here(quota)]
        if not successors:
            return self._caches.gets_default(kind, name)
        return not all(self._is_here(quota) for quota in successors)

    def _is_here(self, quota: MasterQuota) -> bool:
        copy = self._there.quotas.store.get(quota.metadata.name)
        return copy is not None and copy.metadata.labels.get(UID_LABEL) == quota.metadata.uid

    def _review_predecessors(self, arrived: str) -> None:
        """Of what the master has, and of nothing else: what waits, or is not ours, would be looked at without end."""
        ours = self._caches.quotas.store
        if (copy := self._there.quotas.store.get(arrived)) is None or arrived not in ours:
            return
        predecessors = self._there.quotas.store.by_index(BY_SUBJECT, "/".join(subject_of(copy)))
        for other in predecessors[:REVIEWED]:
            if other.metadata.name not in ours and other.metadata.labels.get(UID_LABEL):
                self._quotas.queue.add(("resourcequotas", other.metadata.name))

    async def _delete(self, key: Key, actual: Object, *, released: bool) -> None:
        resource: Resource[Any] = QUOTA_COPIES if key[0] == "resourcequotas" else _named(key)
        try:
            if isinstance(actual, QuotaCopy) and released:
                # Without this the seed takes it for an accident, and goes on to enforce what it had.
                annotations = {**actual.metadata.annotations, RELEASED_ANNOTATION: "true"}
                metadata = replace(actual.metadata, annotations=annotations)
                await self._cluster.replace(QUOTA_COPIES, replace(actual, metadata=metadata))
            # A sign of another master that comes meanwhile is not lost.
            version = actual.metadata.resource_version if key[0] == "seeds" else None
            await self._cluster.delete(resource, key[1], uid=actual.metadata.uid, resource_version=version)
        except NotFound:
            return  # gone already
        log.info("copy deleted", extra=self._facts(key))

    async def _create(self, key: Key, desired: MasterQuota | Named) -> float | None:
        resource: Resource[Any] = QUOTA_COPIES if key[0] == "resourcequotas" else _named(key)
        metadata = {"name": key[1], "labels": copy_labels(desired), "annotations": self._annotations(key, desired)}
        body = {"metadata": metadata, "spec": desired.spec}
        try:
            await self._cluster.create(resource, body)
        except AlreadyExists:
            return FINALIZING  # the watch is behind, or a finalizer holds the former one
        log.info("copy created", extra=self._facts(key))
        return None

    def _annotations(self, key: Key, desired: Object) -> dict[str, str]:
        found = {GENERATION_ANNOTATION: str(desired.metadata.generation)}
        return {**found, MASTER_ANNOTATION: self._master} if key[0] == "seeds" and self._master else found

    def _facts(self, key: Key) -> dict[str, object]:
        return {"seed": self._seed, "kind": key[0], "object": key[1]}


def _store(side: Caches | SeedCaches, plural: str) -> Store[Any]:
    reflectors: dict[str, Reflector[Any]] = {
        "seeds": side.seeds if isinstance(side, Caches) else side.seed,
        "quotasettings": side.settings,
        "organizations": side.organizations,
        "projects": side.projects,
        "resourcequotas": side.quotas,
    }
    return reflectors[plural].store


def _named(key: Key) -> Resource[Named]:
    named = {
        "projects": PROJECTS,
        "organizations": ORGANIZATIONS,
        "quotasettings": QUOTA_SETTINGS,
        "seeds": SEED_COPIES,
    }
    return named[key[0]]
