"""What follows from a refusal, on the replica that refused: Events on the owners, and waking them when there is room.

None of it is done while a request waits: here it is only noted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import chain

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.meta import ObjectMeta
from common.kube.client.reach import DEFAULT, Reach
from common.kube.controller.events import Regarding, microtime
from common.quota.account import Account
from common.runtime.unexpected import contained, kept_task
from common.runtime.waiting import within
from seed.accounts.registry import AccountRegistry
from seed.admission.refusal import Refusal
from seed.admission.types import Verdict
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.cache.user_cluster_clients import Connections
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.notifications.event_series import Occurrence
from seed.notifications.notifier import OwnerNotifier, Refused
from seed.notifications.owners import machine_set_of, workload_of
from seed.notifications.regarding import regarding
from seed.notifications.wake_queue import Room, Waiter, Waiting, room

log = logging.getLogger(__name__)

MAX_SERVERS = 512
MAX_WAITERS = 2048
LOOK_EVERY = 0.1  # seconds between two looks at what is free
NO_ROOM = Room(open=False, surge={}, here={}, anywhere={})
SEED = ""  # the seed's own API server, where others go by their UserCluster's uid

EVENT_REASONS = frozenset({"QuotaExceeded", "QuotaUnavailable", "MachineNotSized", "SeedLost", "UnknownProject"})
_WAITS = frozenset({"QuotaExceeded", "QuotaUnavailable"})


class Refusals:
    """`run()` it. `count(result, number)`: see Owners."""

    def __init__(
        self,
        seed: Cluster,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        registry: AccountRegistry,
        instance: str,
        *,
        reach: Reach = DEFAULT,
        count: Callable[[str, int], None] = lambda _result, _number: None,
    ) -> None:
        self._seed = seed
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._registry = registry
        self._connections = Connections(seed, reach=reach)  # admission waits for the others
        self._instance = instance
        self._count = count
        self._waiting = Waiting(MAX_WAITERS)
        self._owners: OrderedDict[str, OwnerNotifier] = OrderedDict()
        self._clusters: dict[str, str] = {}  # by server: the UserCluster's key
        self._look = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Owners that are to be woken."""
        return len(self._waiting)

    def decided(self, cluster: UserCluster, machine: ObjectMeta, found: Verdict) -> None:
        """A decision about a Machine that is no dry run. Fits Decisions."""
        refusal = found.refusal
        if refusal is None:
            if len(self._waiting):
                self._admitted(cluster, machine)
        elif refusal.cause in EVENT_REASONS:
            self._refused(cluster, machine, found, refusal)

    def pod_decided(self, cluster: UserCluster | None, pod: ObjectMeta, found: Verdict) -> None:
        """A decision about a pod that is to be created, and no dry run. `cluster`: None for the seed's own API server.
        What makes pods writes an Event of a refusal itself."""
        refusal = found.refusal
        if refusal is None and not len(self._waiting):
            return
        owner, server = workload_of(pod), SEED if cluster is None else _server(cluster)
        if owner is None:
            return
        if refusal is None:
            self._waiting.admitted(server, owner.uid)
        elif found.request is not None and found.attempts and refusal.cause in _WAITS:
            self._to(server, cluster)
            request = found.request
            self._waiting.refused(
                server,
                owner,
                request.consumer,
                request.need,
                found.attempts,
                final=refusal.code == 403,
                now=time.monotonic(),
                shares={quota: share.amount for quota, share in (request.shares or {}).items()},
            )
            self._look.set()

    def _admitted(self, cluster: UserCluster, machine: ObjectMeta) -> None:
        owner = machine_set_of(machine)
        if owner is not None:
            self._waiting.admitted(_server(cluster), owner.uid)

    def _refused(self, cluster: UserCluster, machine: ObjectMeta, found: Verdict, refusal: Refusal) -> None:
        owner, at = machine_set_of(machine), microtime()
        quota = self._quota_cache.quota(refusal.quota)
        # A note that names another limit, or another quota of this name, would be wrong.
        spec = f"{refusal.quota}/{quota.copy_uid}/{quota.generation}" if quota is not None else refusal.quota

        def occurrence(regarding: Regarding) -> Occurrence:
            return Occurrence(regarding=regarding, quota=spec, reason=refusal.cause, note=found.message, time=at)

        self._of(SEED, self._seed_itself).refused(Refused(occurrence(regarding(cluster)), False))
        if owner is None:
            return
        server = _server(cluster)
        self._to(server, cluster).refused(Refused(occurrence(owner), True))
        if found.request is not None and found.attempts and refusal.cause in _WAITS:
            self._waiting.refused(
                server,
                owner,
                found.request.consumer,
                found.request.need,
                found.attempts,
                final=refusal.code == 403,
                now=time.monotonic(),
            )
            self._look.set()

    def _to(self, server: str, cluster: UserCluster | None) -> OwnerNotifier:
        if server == SEED or cluster is None:
            return self._of(SEED, self._seed_itself)
        self._clusters[server] = cluster.metadata.key
        return self._of(
            server, lambda: self._connections.to(self._cluster_cache.user_cluster_by_uid(server) or cluster)
        )

    @asynccontextmanager
    async def _seed_itself(self) -> AsyncIterator[Cluster]:
        yield self._seed

    def _of(self, server: str, connect: Callable[[], AbstractAsyncContextManager[Cluster]]) -> OwnerNotifier:
        known = self._owners.get(server)
        if known is None:
            if len(self._owners) >= MAX_SERVERS:
                self._forget(next(other for other in self._owners if other != SEED))
            known = self._owners[server] = OwnerNotifier(
                self._clusters.get(server, self._seed.name),
                self._instance,
                connect,
                on_gone=self._gone,
                on_failed=self._not_woken,
                count=self._count,
            )
        self._owners.move_to_end(server)
        return known

    def _gone(self, waiter: Waiter) -> None:
        self._waiting.drop(waiter)
        self._look.set()  # what it was to be woken for is for the next

    def _not_woken(self, waiter: Waiter) -> None:
        waiter.refused_at = time.monotonic()  # as if it had tried in vain: others may have the room meanwhile
        self._look.set()

    def _forget(self, server: str) -> None:
        owners = self._owners.pop(server)
        self._clusters.pop(server, None)
        self._waiting.forget(server)
        ending = asyncio.create_task(owners.stop())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def run(self) -> None:
        """Until cancelled."""
        stops = [
            self._quota_cache.on_quota(self._changed),
            self._registry.on_account(self._account_changed),
            self._cluster_cache.on_user_cluster(self._cluster_changed),
        ]
        closing = kept_task("connections to owners", self._connections.run)
        try:
            again: float | None = None
            while True:
                await within(self._look, again)
                self._look.clear()
                again = self._wake()
                await asyncio.sleep(LOOK_EVERY)
        finally:
            for stop in stops:
                stop()
            await asyncio.gather(*(owners.stop() for owners in self._owners.values()), *self._ending)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)

    def _changed(self, _quota: str) -> None:
        if len(self._waiting):
            self._look.set()

    def _account_changed(self, _quota: str, _account: Account | None) -> None:
        if len(self._waiting):
            self._look.set()

    def _cluster_changed(self, key: str) -> None:
        for server, known in list(self._clusters.items()):
            if known == key and self._cluster_cache.user_cluster_by_uid(server) is None:
                self._forget(server)

    def _wake(self) -> float | None:
        """Whoever is to be woken; returns in how many seconds to look again although nothing changes."""
        moment = time.monotonic()
        refusing = {consumer: self._refusing(consumer) for consumer in self._waiting.consumers}
        named = map(self._quota_cache.quota, self._waiting.quotas)
        limiting = [quota for quota in named if quota is not None and quota.enforced]
        rooms: dict[str, Room] = {}
        for quota in chain(*refusing.values(), limiting):
            rooms[quota.name] = NO_ROOM
            with contained("refusals", quota.name):
                rooms[quota.name] = self._room(quota)
        choice = self._waiting.choose(
            {consumer: [quota.name for quota in quotas] for consumer, quotas in refusing.items()}.__getitem__,
            rooms,
            moment,
        )
        for waiter in choice.woken:
            owners = self._owners.get(waiter.server)
            if owners is None:
                self._waiting.drop(waiter)
                continue
            owners.wake(waiter)
        return max(choice.again - moment, 0.0) if choice.again is not None else None

    def _refusing(self, consumer: Consumer) -> Sequence[Quota]:
        return [quota for quota in self._quota_cache.quotas_of(consumer) if quota.enforced]

    def _room(self, quota: Quota) -> Room:
        return room(self._registry.snapshot(quota))


def _server(cluster: UserCluster) -> str:
    """Where its Machines are."""
    return cluster.metadata.uid if cluster.spec.kubeconfig_secret_ref is not None else SEED
