"""The master's connection to one seed, and what is known of it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable

import msgspec

from common.api.conditions import MAX_MESSAGE, check_reasons
from common.api.copies import original_uid
from common.api.types import ORGANIZATIONS, AgentStatus, Seed, SeedStatus
from common.kube.client import kubeconfig
from common.kube.client.errors import ApiError, Forbidden, Unauthorized
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.meta import Object
from common.kube.controller.store import Change, Store
from common.runtime.unexpected import kept_running, tell
from common.runtime.waiting import first_of
from master.cache.informers import changed_name
from master.cache.objects import Named, QuotaCopy
from master.seeds.cluster_record import ClusterRecord
from master.seeds.identity import Refused
from master.seeds.kubeconfig_secret import SeedKubeconfig, TokenRenewal, seed_kubeconfig
from master.seeds.master_side import MasterSide
from master.seeds.phase import AGENT_SILENT_AFTER, Phase
from master.seeds.remote_cache import SeedCaches
from master.seeds.replicator import CopySync
from master.seeds.seed_cluster import SeedCluster
from master.seeds.status_publisher import Publisher

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 10.0  # seconds, for every call to a seed
PROBE_EVERY = 5.0
PROBE_TIMEOUT = 5.0
LOOK_EVERY = 0.5  # at the reflectors' own errors
RESTART_AFTER = 1.0

Run = tuple[int, int]
"""One watch of a seed's copies without a break: everything that happens there meanwhile is reported."""

OnCopy = Callable[[str, Change[QuotaCopy], Run | None], None]  # seed, change, the run of the watch that reported it


class SeedLink:
    """The master's end of one seed.

    `problem` says why the phase is not CONNECTED, for people, without credentials. `settled`: it was connected once or
    has failed once. `listed`: what it has was listed since this link was made. `reported`: what the seed's
    agent said of the seed, at `reported_at`. `agent_silent`: it may be dead since. Times are of time.monotonic().
    """

    def __init__(
        self,
        seed: Seed,
        side: MasterSide,
        *,
        others: Callable[[], Iterable[SeedLink]],
        on_copy: OnCopy,
        on_phase: Callable[[str], None],
        on_settled: Callable[[str, str, str], None],
    ) -> None:
        self.name = seed.metadata.name
        self.seed = seed
        self.phase = Phase.CONNECTING
        self.problem = "connecting"
        self.settled = False
        self.listed = False
        self.last_contact: float | None = None
        self.reported: AgentStatus | None = None
        self.reported_at = 0.0
        self.agent_silent = False
        self.sync: CopySync | None = None
        self._record = ClusterRecord(side.caches, lambda: self.seed, others)
        self._identified = False  # in this session
        self._side = side
        self._on_copy = on_copy
        self._on_phase = on_phase
        self._on_settled = on_settled
        self._there: SeedCaches | None = None
        self._sessions = 0
        self._cluster: SeedCluster | None = None
        self._used: SeedKubeconfig | None = None
        self.renewal = TokenRenewal(side.caches, side.namespace, lambda: self.seed)
        self._changed = asyncio.Event()
        self._probe_now = False  # nobody knows yet what the present token may do
        self._task: asyncio.Task[None] | None = None
        self.publisher = Publisher(
            self.name,
            lambda: self.copies,
            lambda: self._cluster if self.connected else None,
            lambda: self.in_cluster,
            side.rush,
            on_reconcile=side.on_reconcile,
        )

    @property
    def connected(self) -> bool:
        return self.phase is Phase.CONNECTED

    @property
    def lost(self) -> bool:
        return self.seed.spec.state == "Lost"

    @property
    def in_cluster(self) -> bool:
        """The seed is the master's own API server: the master's objects stand for themselves there."""
        return self.seed.spec.in_cluster

    @property
    def cluster_uid(self) -> str:
        """What is recorded of the cluster that is this seed; empty as long as nothing is."""
        return self._record.uid

    @property
    def unidentified(self) -> str:
        """Why it is not known which cluster it is, empty if that is known."""
        return self._record.unidentified

    @property
    def never_connected(self) -> bool:
        """By this master or, as far as its status says, by one before: no quota was ever there."""
        known = self.seed.status.last_seen_time or self.cluster_uid
        return not self.listed and self.last_contact is None and not known

    @property
    def crowded(self) -> bool:
        """Quotas queue up that it should get."""
        return self.connected and self.sync is not None and self.sync.crowded

    @property
    def copies(self) -> Store[QuotaCopy] | None:
        """What the seed has; None until its first list of this connection."""
        there = self._there
        return there.quotas.store if there is not None and there.quotas.synced.is_set() else None

    def copy(self, quota: str, uid: str) -> QuotaCopy | None:
        """The seed's copy of the quota with this name and uid, as far as it was seen."""
        copies = self.copies
        found = copies.get(quota) if copies is not None else None
        return found if found is not None and self.is_copy(found, uid) else None

    def is_copy(self, found: Object, uid: str) -> bool:
        """Whether it is the seed's copy of the master's object with this uid."""
        return original_uid(found, in_cluster=self.in_cluster) == uid

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"seed {self.name}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self.phase, self.problem = Phase.CONNECTING, "stopped"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def check(self) -> None:
        """The Seed or a Secret changed: connect anew if that says something else than the present connection."""
        if self._used != self._kubeconfig():
            self._changed.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._connect()
            except Exception as error:  # noqa: BLE001 (told; a link that ended would say nothing for ever)
                tell("seed link", self.name, error)
                self._set(Phase.UNREACHABLE, f"internal error: {type(error).__name__}")
                await asyncio.sleep(RESTART_AFTER)

    async def _connect(self) -> None:
        self._changed.clear()
        self._used = used = self._kubeconfig()
        problem, cluster = used.problem, None
        try:
            cluster = await self._connection(used.text) if not problem else None
        except InvalidKubeconfig as error:
            problem = f"{self._where()}: {error}"
        if cluster is None:
            self._set(Phase.INVALID_KUBECONFIG, problem)
            await self._changed.wait()
            return
        cluster.verify = lambda: self._verify(cluster)
        self._set(Phase.CONNECTING, f"connecting to {cluster.server}")
        await self._while_unchanged(cluster)

    async def _connection(self, kubeconfig: str) -> SeedCluster:
        """Raises InvalidKubeconfig."""
        if self.in_cluster:
            access = self._side.caches.cluster.access
            return SeedCluster(access, name=self.name, timeout=REQUEST_TIMEOUT, on_request=self._side.on_request)
        return await SeedCluster.from_kubeconfig(
            kubeconfig, name=self.name, timeout=REQUEST_TIMEOUT, on_request=self._side.on_request
        )

    async def _while_unchanged(self, cluster: SeedCluster) -> None:
        try:
            ended = await first_of(self._session(cluster), self._until_changed(cluster))
            if not ended.cancelled():
                ended.result()
        finally:
            self._cluster = self._there = self.sync = None
            await cluster.close()

    async def _until_changed(self, cluster: SeedCluster) -> None:
        """Until another connection is needed. For another token alone none is: no request and no watch ends."""
        await self._changed.wait()
        while self.connected and self._used is not None:
            self._changed.clear()
            now = self._kubeconfig()
            if now.problem or now.about != self._used.about or now.text == self._used.text or self.in_cluster:
                return
            try:
                access = await kubeconfig.from_text(now.text)
            except InvalidKubeconfig:
                return
            if access.connection != cluster.access.connection:
                return
            cluster.authorize(access.authorization)
            self._used = now
            self._probe_now = True
            log.info("seed's token replaced", extra={"seed": self.name})
            await self._changed.wait()

    async def _session(self, cluster: SeedCluster) -> None:
        await self._identify(cluster)
        there = SeedCaches(cluster, self._seen, trusted=self.in_cluster)
        sync = CopySync(
            self.name,
            self._side.caches,
            cluster,
            there,
            self._side.rush,
            master=self._side.master,
            in_cluster=self.in_cluster,
            on_settled=lambda plural, name: self._on_settled(self.name, plural, name),
            on_reconcile=self._side.on_reconcile,
        )
        self._cluster, self._there, self.sync = cluster, there, sync
        self._sessions += 1
        async with asyncio.TaskGroup() as group:
            for reflector in (*there.all, there.seed):
                group.create_task(reflector.run())
            group.create_task(sync.run())
            group.create_task(self.publisher.run())
            group.create_task(sync.show_signs(lambda: self.connected))
            group.create_task(self._probe(cluster, there, sync))
            group.create_task(kept_running("token renewal", lambda: self.renewal.run(cluster), whose=self.name))

    async def _identify(self, cluster: SeedCluster) -> None:
        """Waits until the cluster is known to be this seed's. Nothing is read or written there before."""
        self._identified = False
        pause = LOOK_EVERY
        while True:
            try:
                await cluster.check(time.monotonic())
            except ApiError as error:
                self._fail(error)
            else:
                self._identified = True
                return
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 (spread, not a secret)
            pause = min(pause * 2, PROBE_EVERY)

    async def _verify(self, cluster: SeedCluster) -> None:
        """Raises Refused if it is not this seed's cluster, which ends the session, or ApiError if that is not known."""
        try:
            await self._record.verify(cluster, identified=self._identified)
        except Refused as refused:
            self._fail(refused)
            if self._identified:
                self._changed.set()
            raise

    def reconsider(self) -> None:
        """Another Seed's cluster was found to be this one's."""
        self._changed.set()

    def _fail(self, error: ApiError) -> None:
        if isinstance(error, Refused):
            self._set(Phase(error.reason), f"{self._where()}: {error.message}")
        elif isinstance(error, Unauthorized | Forbidden):
            self._set(Phase.UNAUTHORIZED, f"{self._where()}: {error.message}")
        else:
            self._set(Phase.UNREACHABLE, error.message)

    async def _probe(self, cluster: SeedCluster, there: SeedCaches, sync: CopySync) -> None:
        """Asks the seed now and then, for a dead connection is silent, and says in which phase the link is."""
        path = f"{ORGANIZATIONS.path()}?limit=1"
        known_error: str | None = None
        while True:
            self._probe_now = False
            self._notice_silence()
            try:
                await cluster.check(time.monotonic())
                if self.unidentified or not self.connected or there.error is not None:
                    await cluster.request("GET", path, timeout=PROBE_TIMEOUT, verb="list", plural=ORGANIZATIONS.plural)
            except ApiError as error:
                self._fail(error)
            else:
                self.last_contact = time.monotonic()
                if there.error is not None:
                    self._set(Phase.UNREACHABLE, there.error)
                elif there.synced and not sync.blocked:
                    self._set(Phase.CONNECTED, "")
                elif there.synced:
                    there.seed.relist()  # a watch that hangs would look like the other's silence
                    self._set(Phase.OTHER_MASTER, sync.blocked)
            until = time.monotonic() + PROBE_EVERY * random.uniform(0.8, 1.2)  # noqa: S311 (spread, not a secret)
            while time.monotonic() < until:
                await asyncio.sleep(0.05 if self.phase is Phase.CONNECTING else LOOK_EVERY)
                error_now = there.error
                turned = error_now is None and there.synced and self.connected == bool(sync.blocked)
                if turned or self._probe_now or error_now != known_error:
                    known_error = error_now
                    break

    def _set(self, phase: Phase, problem: str) -> None:
        self.settled = self.settled or phase is not Phase.CONNECTING
        self.listed = self.listed or phase is Phase.CONNECTED
        if phase is self.phase and problem == self.problem:
            return
        was_connected = self.connected
        self.phase, self.problem = phase, problem
        if self.connected and not was_connected:
            log.info("seed connected", extra={"seed": self.name})
            self.publisher.resume()
        elif phase is not Phase.CONNECTING and not self.connected:
            log.warning("seed not connected", extra={"seed": self.name, "reason": phase.value, "error": problem})
        self._on_phase(self.name)

    def _seen(self, plural: str, change: Change[Object]) -> None:
        self.last_contact = time.monotonic()
        old, new = change.old, change.new
        if self.sync is not None and (
            old is None
            or new is None
            or old.metadata.generation != new.metadata.generation
            or old.metadata.labels != new.metadata.labels
            or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        ):
            self.sync.add((plural, changed_name(change)))
        if plural == "resourcequotas":
            before = old if isinstance(old, QuotaCopy) else None
            after = new if isinstance(new, QuotaCopy) else None
            if after is not None:
                self.publisher.seen(after.metadata.name, after)
            self._on_copy(self.name, Change(before, after), self._run_of_watch())
        elif isinstance(new, Named) and plural == "seeds":
            self._receive(new)

    def _receive(self, copy: Named) -> None:
        if not self.is_copy(copy, self.seed.metadata.uid):
            return
        try:
            status = msgspec.convert(copy.status, SeedStatus)
            check_reasons((*status.conditions, *status.agent.conditions))
        except msgspec.ValidationError as error:
            facts = {"cluster": self.name, "error": str(error)[:MAX_MESSAGE]}
            log.warning("what the seed says of itself cannot be read", extra=facts)
            return
        reported = status.agent if self.in_cluster else status
        if reported.version and reported != self.reported:
            self.reported, self.reported_at = reported, time.monotonic()
            self._notice_silence()

    def _notice_silence(self) -> None:
        silent = self.reported is not None and time.monotonic() - self.reported_at >= AGENT_SILENT_AFTER
        if silent != self.agent_silent:
            self.agent_silent = silent
            self._on_phase(self.name)

    def _run_of_watch(self) -> Run | None:
        """Of the watch that reports a change of a copy; None while a list does."""
        unbroken = self._there.quotas.unbroken if self._there is not None else None
        return (self._sessions, unbroken) if unbroken is not None else None

    def _where(self) -> str:
        ref, namespace = self.seed.spec.kubeconfig_secret_ref, self._side.namespace
        return f"secret {namespace}/{ref.name}, key {ref.key}" if ref is not None else "the master's own cluster"

    def _kubeconfig(self) -> SeedKubeconfig:
        ref = self.seed.spec.kubeconfig_secret_ref
        namespace, secrets = self._side.namespace, self._side.caches.secrets.store
        secret = secrets.get(f"{namespace}/{ref.name}") if ref is not None else None
        return seed_kubeconfig(self.seed, secret, namespace)
