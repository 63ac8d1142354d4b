"""A replica of the seed's program: the real admission, writers, accounts, counting and lease, on simulated watches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

import msgspec

from common.api.convert import report_from_wire
from common.api.labels import SETTINGS
from common.api.types import (
    PROJECTS,
    RESOURCE_QUOTAS,
    Project,
    ProjectSpec,
    SecretRef,
    UserCluster,
    UserClusterSpec,
)
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import Lease, LeaseLost, Term
from common.kube.controller.reflector import Reflector, moment
from common.kube.controller.store import Change
from common.quota.account import Account, AccountKey, StaleEpochError
from common.quota.escrow import Report
from common.quota.resources import ResourceList
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountRegistry
from seed.accounts.usage_writer import Counting
from seed.admission.admitter import Admission
from seed.admission.refusal import Refusal
from seed.admission.types import Request
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.kinds.machines.source import Source as RealSource
from seed.kinds.machines.totals import MachineTotals
from seed.kinds.registry import OF_PROJECTS
from seed.ledger.store import Store, Stored, StoreUnavailableError
from seed.model import source_key
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.usage.source import Problem
from seed.usage.source import UsageSource as AnySource
from tests.sim import servers
from tests.sim.loop import Loop
from tests.sim.network import Network, Process
from tests.sim.servers import PARTICIPANT, Copy, Machine, away

API_TIMEOUT = 12.0  # real seconds in which an admitted request persists, or never
WINDOW = 14.5  # ... and what the leader waits by its own clock, which is up to a tenth too fast
WEBHOOK_TIMEOUT = 1.5
LEASE_DURATION = 5
RENEW_DEADLINE = 4.0
RETRY = 1.0


class Clusters(ClusterCache):
    """Only user clusters are simulated, not that they themselves are counted."""

    def __init__(self, cluster: Cluster, quota_cache: QuotaCache) -> None:
        simulated = [each for each in OF_PROJECTS if each.kind != source_key.CLUSTERS]
        super().__init__(cluster, quota_cache, of_projects=simulated)
        self._sources: dict[str, list[SourceKey]] = {}

    def sources_of(self, project: str, quota: Quota) -> list[SourceKey]:
        """Asked for much more often than clusters come and go. Here, no quota of Machines is of some clusters alone."""
        assert quota.clusters is None
        if project not in self._sources:
            self._sources[project] = super().sources_of(project, quota)
        return list(self._sources[project])

    def hear(self, key: str, new: UserCluster | None) -> None:
        self._sources.clear()
        tell(self.user_clusters, self._cluster_changed, key, new)


class View:
    """The real caches, whose watches the schedule feeds: their reflectors do not run."""

    def __init__(self, api: servers.Seed) -> None:
        cluster = cast("Cluster", api)
        self.quota_cache = QuotaCache(cluster)
        self.cluster_cache = Clusters(cluster, self.quota_cache)
        self.quota_cache.in_cluster = api.in_cluster
        if api.settings is not None:
            self.quota_cache.settings.store._set(SETTINGS, api.settings)
        self.copies: dict[str, Copy] = {}
        self.limits: dict[str, str] = {}  # by name: the uid of the quota that limits, so far as anybody has said
        for name, both in api.copies.items():
            self.hear("copy", name, both)
        for key, project in api.clusters.items():
            self.hear("cluster", key, project)
        for name, organization in api.projects.items():
            self.hear("project", name, organization)

    def hear(self, what: str, name: str, value: Any) -> None:
        known = self.quota_cache
        if what == "copy":
            if value is None:
                self.copies.pop(name, None)
            else:
                self.copies[name] = value[0]
                self.limits[name] = "" if value[0].released or value[0].withdrawn else value[0].key.uid
            tell(known.quotas, known._quota_changed, name, value[1] if value is not None else None)
        elif what == "cluster":
            self.cluster_cache.hear(name, _cluster(name, value) if value is not None else None)
        else:
            tell(known.projects, known._project_changed, name, _project(name, value) if value is not None else None)


def tell(reflector: Reflector[Any], changed: Callable[[Change[Any]], None], key: str, new: Any) -> None:
    """As the reflector would: the store first; what is made again under its name is two changes."""
    old = reflector.store.get(key)
    if old is None and new is None:
        return
    if new is None:
        reflector.store._remove(key)
    else:
        reflector.store._set(key, new)
    if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
        changed(Change(old, None))
        old = None
    changed(Change(old, new))


@cache
def _cluster(key: str, project: str) -> UserCluster:
    namespace, _, name = key.partition("/")
    spec = UserClusterSpec(project=project)
    if project == PARTICIPANT:
        spec = UserClusterSpec(
            project=project,
            namespace_quotas="Enabled",
            namespace_projects="FromLabel",
            kubeconfig_secret_ref=SecretRef(name="kubeconfig"),
        )
    return UserCluster(metadata=ObjectMeta(namespace=namespace, name=name, uid=key), spec=spec)


@cache
def _project(name: str, organization: str) -> Project:
    return Project(metadata=ObjectMeta(name=name, uid=name), spec=ProjectSpec(organization=organization))


class Decided(NamedTuple):
    """What was known when a write was decided: the term, the sources, when each was listed, and the limits."""

    term: int
    sources: Mapping[str, UsageSource]
    listed: Mapping[str, int]
    limits: ResourceList | None


class LedgerClient:
    """What a replica has for a store: calls that take their time, and news that come late."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.subscribers: dict[str, Callable[[Stored | None], None]] = {}

    async def load(self, key: AccountKey) -> Stored | None:
        replica, api = self._replica, self._replica.api
        return await replica.call(f"load {key.name}", lambda: api.load(key))

    async def take(self, key: AccountKey) -> Stored | None:
        replica, api = self._replica, self._replica.api
        return await replica.call(f"take {key.name}", lambda: api.take(key))

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        replica, api = self._replica, self._replica.api

        leader = replica.led.get(account.epoch, replica.leader)  # it may have waited since an earlier term
        quota = replica.view.quota_cache.quota(key.name)
        decided = Decided(
            leader.accounts.term if leader is not None else replica.last_term,
            leader.known() if leader is not None else {},
            leader.listed() if leader is not None else {},
            quota.ceilings if quota is not None and quota.key == key else None,
        )

        def write() -> str:
            before = api.ledger.get(key.uid)
            written = api.save(key, account, version)
            if before is not None and before.account.incarnation == account.incarnation:
                replica.written(replica, key.uid, before.account, account, decided)
            if replica.network.sends_again():
                api.save(key, account, version)  # a conflict with what it did the first time
            return written

        return await replica.call(f"save {key.name}", write)

    async def delete(self, key: AccountKey) -> None:
        replica, api = self._replica, self._replica.api
        await replica.call(f"delete {key.name}", lambda: api.delete(key))

    async def keys(self) -> list[AccountKey]:
        replica, api = self._replica, self._replica.api
        return await replica.call("list of ledgers", lambda: [api.keys[uid] for uid in api.ledger])

    def subscribe(self, uid: str, on_change: Callable[[Stored | None], None]) -> Callable[[], None]:
        self.subscribers[uid] = on_change
        return lambda: self.subscribers.pop(uid, None) and None


class UsageSource:
    """A watch cache of one user cluster's Machines. Takes the place of
    seed/kinds/machines/source.py; but the tally is real."""

    in_namespaces = None

    def __init__(self, replica: Replica, source: servers.Source) -> None:
        self.source = source
        self.key = SourceKey(source.key)
        self.consumer = Consumer(source.project, self.key)
        self.totals = MachineTotals(None, lambda machine: cast("Any", machine))
        self.counted = False
        self.problem: Problem | None = None
        self.lost_at: float | None = None
        self.at = 0
        self.listing = False
        self.listed_at = 0  # the number of events of the seed's API server when the last complete list began
        self.listed_from = 0  # the moment at which it began
        self._outages = -1  # of the source when that was taken: each ends the watch
        self._replica = replica
        self._store: dict[str, Machine] = {}
        self._wanted = 1
        self._started = 0
        self._done = 0

    @property
    def wants_list(self) -> bool:
        return not self.listing and (self._wanted > self._done or not self.live)

    @property
    def end(self) -> int:
        return len(self.source.log)

    @property
    def live(self) -> bool:
        return self._outages == self.source.outages

    @property
    def settled(self) -> bool:
        return self.counted and not self.listing and not self.wants_list

    def seen(self, name: str) -> int:
        """The generation at which it stands in the sum; 0 if it does not."""
        machine = self._store.get(name)
        return machine.metadata.generation if machine is not None else 0

    def relist(self) -> None:
        self._wanted = self._started + 1

    async def generation(self, name: str, _uid: str) -> int | None:
        def read() -> int | None:
            found = self.source.machines.get(name)
            return found.metadata.generation if found is not None else None

        network = self._replica.network
        return cast("int | None", await network.call("evidence", self._replica, self.source, read, away(self.key)))

    def look(self, upto: int) -> None:
        """Takes a list, if one is wanted; else hears events of the watch."""
        if self.wants_list:
            self._replica.loop.call(self._list_anew)
        else:
            self._replica.loop.call(self._follow, upto)

    def _list_anew(self) -> None:
        self.listing = True
        self._started += 1
        self._replica.loop.start(self._list(self._started))

    async def _list(self, number: int) -> None:
        source, began = self.source, moment()
        try:
            objects, at, listed_at, outages = await self._replica.network.call(
                f"list {self.key}",
                self._replica,
                source,
                lambda: (dict(source.machines), len(source.log), len(self._replica.api.events), source.outages),
                away(self.key),
            )
        except ApiError:
            self.listing = False
            self._fail()
            return
        self.listing, self.listed_at, self.listed_from, self._outages = False, listed_at, began, outages
        source.between.update(new.metadata.key for _, new in source.log[self.at : at] if new is not None)
        source.between.difference_update(objects)
        before, self._store, self.at = self._store, objects, at
        freed = False
        for uid, machine in before.items():
            if uid not in objects:
                freed |= self._apply(machine, None)
        for uid, machine in objects.items():
            if (known := before.get(uid)) != machine:
                freed |= self._apply(known, machine)
        self.counted, self._done = True, number
        self._changed(freed or number == 1)
        self.problem = self.lost_at = None
        self._state_changed()

    def _follow(self, upto: int) -> None:
        if self.listing or not self._done:
            return
        if not self._replica.network.reaches(self._replica.place, self.source):
            self._fail()
            return
        freed = False
        for old, new in self.source.log[self.at : upto]:
            if old is not None:
                self._store.pop(old.metadata.key, None)
            if new is not None:
                self._store[new.metadata.key] = new
            freed |= self._apply(old, new)
        if upto > self.at:
            self.at = upto
            self._changed(freed)
        self._follows()

    def _apply(self, old: Machine | None, new: Machine | None) -> bool:
        return self.totals.apply(Change(cast("Any", old), cast("Any", new)))

    def _changed(self, freed: bool) -> None:
        leader = self._replica.leader
        if leader is not None:
            leader.counting.changed(cast("RealSource", self), freed)

    def _fail(self) -> None:
        if self.problem is None:
            self.problem, self.lost_at = Problem("Unreachable", "no answer"), self._replica.loop.time()
            self._state_changed()

    def _follows(self) -> None:
        if self.problem is not None:
            self.problem = self.lost_at = None
            self._state_changed()

    def _state_changed(self) -> None:
        if self._replica.leader is not None:
            self._replica.leader.accounts.look_again(self.consumer)


class Turns:
    """Takes the place of the controller around a reconcile function: the schedule says whose turn it is."""

    def __init__(self, loop: Loop, reconcile: Callable[[str], Coroutine[Any, Any, float | None]]) -> None:
        self.due: dict[str, None] = {}
        self.busy: set[str] = set()
        self.error: Exception | None = None
        self.queue = self
        self._loop = loop
        self._reconcile = reconcile

    def add(self, name: str) -> None:
        self.due[name] = None

    def add_after(self, name: str, seconds: float) -> None:
        if seconds <= 0:
            self.add(name)
        else:
            self._loop.call_later(seconds, self.add, name)

    async def run(self) -> None:
        await self._loop.create_future()

    def take(self, name: str) -> None:
        if name in self.busy:
            return
        del self.due[name]
        self.busy.add(name)
        self._loop.start(self._turn(name))

    async def _turn(self, name: str) -> None:
        try:
            wait = await self._reconcile(name)
        except (ApiError, LeaseLost, StaleEpochError, StoreUnavailableError, TimeoutError):
            wait = 0.5
        except Exception as error:  # noqa: BLE001 (the schedule fails by it)
            self.error, wait = error, None
        finally:
            self.busy.discard(name)
        if wait is not None:
            self.add_after(name, wait)


class SeedClient:
    """What the leader has for a client of the seed's API server."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def get(self, resource: object, name: str, namespace: str | None = None) -> object:
        found = await self.find(resource, name, namespace)
        if found is None:
            raise NotFound(404, "NotFound", name)
        return found

    async def find(self, resource: object, name: str, namespace: str | None = None) -> object | None:
        api = self._replica.api

        def read() -> object | None:
            if resource is RESOURCE_QUOTAS:
                return api.copies[name][1] if name in api.copies else None
            if resource is PROJECTS:
                return _project(name, api.projects[name]) if name in api.projects else None
            key = f"{namespace}/{name}"
            return _cluster(key, api.clusters[key]) if key in api.clusters else None

        return await self._replica.network.call(f"get {name}", self._replica, api, read, away(api.name))

    async def apply(self, _resource: object, body: dict[str, Any], **_options: object) -> None:
        api, replica = self._replica.api, self._replica
        name, copy_uid = body["metadata"]["name"], body["metadata"]["uid"]
        said, repeated = report_from_wire(body["status"]["account"]), body["status"]["account"].withdrawn

        def write() -> None:
            both = api.copies.get(name)
            if both is None or both[0].copy_uid != copy_uid:
                raise NotFound(404, "NotFound", name)
            api.write_copy(msgspec.structs.replace(both[0], report=said, repeated=repeated))

        replica.shows(name, said)
        await replica.network.call(f"publish {name}", replica, api, write, away(api.name))


class Leader:
    """What a replica does in one term."""

    def __init__(self, replica: Replica, term: Term) -> None:
        self.term = term.number
        self.sources: Mapping[str, UsageSource] = self._followed(replica)
        client = cast("Cluster", SeedClient(replica))
        quota_cache, cluster_cache = replica.view.quota_cache, replica.view.cluster_cache
        sources = cast("Mapping[str, RealSource]", self.sources)
        self.accounts = Accounts(
            client,
            replica.registry,
            sources,
            term=term,
            raise_term=replica.lease.raise_term,
            in_flight_window=WINDOW,
        )
        self.turns = Turns(replica.loop, self.accounts._reconcile)
        self.accounts._controller = cast("Any", self.turns)
        self.counting = Counting(
            client, quota_cache, cluster_cache, replica.registry, self.accounts, sources, in_flight_window=WINDOW
        )
        self._tasks = [replica.loop.create_task(run) for run in (self.accounts.run(), self.counting.run())]

    def _followed(self, replica: Replica) -> Mapping[str, UsageSource]:
        return {}

    def _changed(self, source: AnySource, freed: bool) -> None:
        self.counting.changed(source, freed)

    def _state_changed(self, source: AnySource) -> None:
        self.accounts.look_again(source.consumer)

    def known(self) -> dict[str, UsageSource]:
        return dict(self.sources)

    def listed(self) -> dict[str, int]:
        """As of which event of the seed's API server the last list of each source began."""
        return {key: followed.listed_at for key, followed in self.sources.items()}

    def follow_clusters(self, replica: Replica) -> None:
        assert isinstance(self.sources, dict), "what `_followed` made"
        there = replica.view.cluster_cache.user_clusters.store.keys()
        clusters = [key for key in there if replica.sources[key].has_machines]
        for key in clusters:
            if key not in self.sources:
                followed = self.sources[key] = UsageSource(replica, replica.sources[key])
                self.accounts.look_again(followed.consumer)
        for key in clusters:
            cluster = replica.view.cluster_cache.user_clusters.store.get(key)
            project = cluster.spec.project if cluster is not None else ""
            if self.sources[key].consumer.project != project:
                self.sources[key].consumer = Consumer(project, SourceKey(key))
                self.counting.changed(cast("RealSource", self.sources[key]), True)
        for key in [key for key in self.sources if key not in clusters]:
            followed = self.sources.pop(key)
            self.accounts.look_again(followed.consumer)

    @property
    def broken(self) -> bool:
        """Something failed that nothing but a new term makes good."""
        return any(task.done() for task in self._tasks)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


class Replica(Process):
    """One process. It knows what it has read since it started, and nothing else."""

    def __init__(
        self,
        name: str,
        api: servers.Seed,
        sources: dict[str, servers.Source],
        network: Network,
        loop: Loop,
        shows: Callable[[Replica, str, Report | None], None],
        written: Callable[[Replica, str, Account, Account, Decided], None],
    ) -> None:
        super().__init__(name, api.name, loop)
        self.api = api
        self.network = network
        self.sources = sources
        self.leader: Leader | None = None
        self.asked = 0  # requests that it has not answered yet
        self.error: Exception | None = None
        self.lease = Lease(
            cast("Cluster", servers.Leases(api)),
            "seedquota",
            "seedquota-seed",
            name,
            duration=LEASE_DURATION,
            renew_deadline=RENEW_DEADLINE,
            retry=RETRY,
            clock=loop.time,
        )
        self.view: View
        loop.call(self._begin_watching)
        self.at = len(api.events)
        self.store = LedgerClient(self)
        self.registry = AccountRegistry(
            self.view.quota_cache,
            self.view.cluster_cache,
            cast("Store", self.store),
            trusted=lambda: self.lease.trusted,
        )
        self.admission = Admission(self.view.quota_cache, self.registry)
        self._shows = shows
        self.written = written
        self.last_term = 0
        self.led: dict[int, Leader] = {}  # by term
        self.told: dict[str, list[tuple[float, ResourceList]]] = {}  # by quota uid: the use of all that it has heard of
        self.blind_until = 0.0  # its watch brings nothing
        loop.call(self._open_accounts)

    def parts(self) -> list[object]:
        handles = [
            part for handle in self.registry._handles.values() for part in (handle.writer, handle.requester, handle)
        ]
        leader = self.leader
        led = [leader.accounts, leader.counting, leader.turns, leader] if leader is not None else []
        return [
            *handles,
            *led,
            self.registry,
            self.admission,
            self.lease,
            self.view,
            self.view.quota_cache,
            self.view.cluster_cache,
            self.store,
        ]

    def _begin_watching(self) -> None:
        self.view = View(self.api)

    def _open_accounts(self) -> None:
        for quota in self.view.quota_cache.all_known():
            self.registry._quota_changed(quota.name)

    def shows(self, name: str, said: Report | None) -> None:
        self._shows(self, name, said)

    async def call(self, what: str, effect: Callable[[], Any]) -> Any:
        return await self.network.call(what, self, self.api.kept, effect, StoreUnavailableError("no answer"))

    # Watches -------------------------------------------------------------------------------------------------------

    def watch(self, upto: int) -> None:
        self.loop.call(self._watch, upto)

    def _watch(self, upto: int) -> None:
        events, values = self.api.events, self.api.values
        for place in range(self.at, upto):
            what, name = events[place]
            value = values[place]
            if what == "copy" and value is not None:
                self.told.setdefault(value[0].key.uid, []).append((self.loop.time(), value[0].usage))
            if what != "ledger":
                self.view.hear(what, name, value)
            elif (heard := self.store.subscribers.get(name)) is not None:
                heard(value)
        if self.leader is not None:
            self.leader.follow_clusters(self)
        self.at = max(self.at, upto)

    def followed(self) -> list[UsageSource]:
        """What the schedule brings news of to this replica."""
        return list(self.leader.sources.values()) if self.leader is not None else []

    # The lease -----------------------------------------------------------------------------------------------------

    def look_at_lease(self) -> None:
        """Renew it, try to get it, or notice that it is lost."""
        if self.loop.time() - self.lease._looked_at >= RETRY:
            self.loop.call(self._look_at_lease)

    def _look_at_lease(self) -> None:
        lease = self.lease
        if self.leader is not None and self.leader.broken:
            self.leader.stop()
            self.leader = None
            self.loop.start(lease.release())
            return
        if self.leader is not None:
            try:
                at_once(lease._renew(None))
            except LeaseLost:
                self.stop_leading()
            except ApiError:
                if not lease.held:
                    self.stop_leading()
            return
        try:
            term = at_once(lease._try_acquire())
        except ApiError:
            return
        if term is not None:
            lease.lost = asyncio.Event()
            self.last_term = term.number
            self.leader = self.led[term.number] = self._lead(term)
            self.leader.follow_clusters(self)

    def _lead(self, term: Term) -> Leader:
        return Leader(self, term)

    def stop_leading(self) -> None:
        if self.leader is not None:
            self.leader.stop()
            self.leader = None
            self.lease.lost.set()
            self.lease._record = None

    # Admission -----------------------------------------------------------------------------------------------------

    def ask(
        self, request: Request, replaces: list[str], heard: Callable[[Refusal | None, list[Quota]], None]
    ) -> asyncio.Task[None]:
        """An API server calls the webhook. `heard` is told the verdict, and the quotas that were asked."""
        source = self.sources[request.reservation.source]

        def covers(machine: Machine) -> bool:
            """As seed/machines/rollout.py: its place must be enough."""
            return all(machine.resources.get(name, 0) >= amount for name, amount in request.need.items())

        async def replaceable(_anew: bool) -> list[str]:
            def read() -> list[str]:
                there = (source.machines.get(name) for name in replaces)
                return [machine.metadata.uid for machine in there if machine is not None and covers(machine)]

            return cast("list[str]", await self.network.call("rollout", self, source, read, away(source.key)))

        async def answer() -> None:
            quotas = self.view.quota_cache.quotas_of(request.consumer)
            verdict = await self.admission.decide(request, replaceable if replaces else None)
            heard(verdict.refusal, quotas)

        return self.answers(answer())

    def answers(self, answering: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """It goes on when an API server that was restored waits no more. Who is gone cancels it."""

        async def answer() -> None:
            try:
                await answering
            except Exception as error:  # noqa: BLE001 (the schedule fails by it)
                self.error = error
            finally:
                self.asked -= 1

        self.asked += 1
        return self.loop.start(answer())


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def choose_lag(rng: random.Random, at: int, end: int) -> int:
    """How far a watch that lags has come: often to the end."""
    return end if rng.random() < 0.6 else rng.randint(at, end)
