"""A source: one API server whose Machines are counted. The leader keeps one for each UserCluster.

It follows the user cluster's Machines through a watch cache and keeps their sum up to date change by change, so that
a count costs nothing when it is asked for. What cannot be reached keeps its last sum and says since when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from common import resources
from common.api import UserCluster
from common.kube.client import Cluster, RequestHook
from common.kube.errors import Malformed, Unavailable
from common.kube.kubeconfig import InvalidKubeconfig
from common.kube.reflector import Change, Reflector
from common.kube.resource import Resource
from common.resources import ResourceList
from seed.drift import Drift, audit
from seed.machines.footprint import footprint, least
from seed.machines.machine_controller import GROUP, KIND, PLURAL, VERSION, Machine
from seed.own_secret import SECRETS, Secret
from seed.providers.size import CONDITIONS, Footprint, NotSized, ProviderUnavailable
from seed.sizing import Sizing
from seed.stamp import spec_hash

log = logging.getLogger(__name__)

MACHINES = Resource(GROUP, VERSION, PLURAL, KIND, True, Machine)
MAX_REMEMBERED = 20_000  # deleted Machines whose reservation may still turn up
MAX_UNSIZED_NAMED = 5
MAX_ASKED = 16  # sizes of one source that are asked for at a time
ASK_SECONDS = 30.0
FIRST_ASK_PAUSE = 2.0  # seconds before asking again for what could not be told; then doubled
LONGEST_ASK_PAUSE = 60.0
AUDIT_SECONDS = 3600.0


class Counted(msgspec.Struct, frozen=True):
    """One Machine as it stands in the sum. `waiting`: its cloud has not told its size yet.

    `unsized`: why its size is not known, and as which `condition`. `unknown`: set where it takes something in an amount
    that its spec does not tell.
    """

    size: ResourceList
    generation: int
    unsized: str = ""
    condition: str = ""
    unknown: Footprint | None = None
    waiting: bool = False


class Unsized(msgspec.Struct, frozen=True):
    """Machines that are counted without their size: how many by condition, and a few of them in words."""

    counts: Mapping[str, int]
    named: Sequence[str] = ()

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    @property
    def condition(self) -> str:
        """What people must put right first; empty if there is none."""
        return next((condition for condition in CONDITIONS if condition in self.counts), "")


class Tally:
    """The sum over a source's Machines, kept up to date change by change. Pure but for being mutable."""

    def __init__(self, before: Tally | None = None, size: Callable[[Machine], Footprint] = footprint) -> None:
        """`before` is asked for the last known size of what cannot be sized now.

        `size` raises NotSized, and ProviderUnavailable for what a cloud has to be asked: see `waiting`.
        """
        self.used: dict[str, int] = {}
        self.waiting: dict[str, Machine] = {}  # by uid: look again with `apply(Change(machine, machine))`
        self._footprint = size
        self._guessed: set[str] = set()  # uids of the first list that stand in the sum without ever having been sized
        self._last_known: Mapping[str, Counted] = before._machines if before is not None else {}
        self._machines: dict[str, Counted] = {}
        self._names: dict[str, str] = {}  # uid -> namespace/name of what is not sized, for people
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._machines)

    def apply(self, change: Change[Machine]) -> bool:
        """True if something became free."""
        before: Counted | None = None
        if change.old is not None:
            before = self._machines.pop(change.old.metadata.uid, None)
            self._names.pop(change.old.metadata.uid, None)
            self.waiting.pop(change.old.metadata.uid, None)
        after: ResourceList = {}
        if change.new is not None:
            uid = change.new.metadata.uid
            counted = self._size(change.new, before or self._last_known.get(uid))
            self._machines[uid] = counted
            if counted.unsized or counted.unknown is not None:
                self._names[uid] = change.new.metadata.key
            if counted.waiting:
                self.waiting[uid] = change.new
            after = counted.size
        elif change.old is not None:
            self._deleted[change.old.metadata.uid] = None
            if len(self._deleted) > MAX_REMEMBERED:
                self._deleted.popitem(last=False)
        gone = before.size if before is not None else {}
        self.used = {
            name: amount for name, amount in resources.add(resources.subtract(self.used, gone), after).items() if amount
        }
        return any(after.get(name, 0) < amount for name, amount in gone.items())

    def _size(self, machine: Machine, before: Counted | None) -> Counted:
        try:
            size = self._footprint(machine)
        except (NotSized, ProviderUnavailable) as error:
            # Counted at its last known size (docs/protocol.md section 5); as a machine it counts whatever its size.
            known = before.size if before is not None else least(machine)
            waiting = isinstance(error, ProviderUnavailable)
            return Counted(known, machine.metadata.generation, str(error), error.condition, waiting=waiting)
        return Counted(size.resources, machine.metadata.generation, unknown=size if size.unknown else None)

    def seen(self, reservations: Iterable[str]) -> dict[str, int]:
        """Which of the reserved objects stand in the sum, and at which generation.

        One whose size is waited for does not: its reservation holds what it costs.
        """
        machines = self._machines
        return {uid: machines[uid].generation for uid in reservations if uid in machines and not machines[uid].waiting}

    def listed(self) -> None:
        """The first list is complete."""
        self._guessed = {uid for uid in self.waiting if uid not in self._last_known or self._last_known[uid].waiting}

    @property
    def too_low(self) -> bool:
        """True while the sum lacks Machines that were there before this tally and may have been counted by another."""
        return any(uid in self.waiting for uid in self._guessed)

    def explain(self, uid: str, error: NotSized | ProviderUnavailable) -> None:
        """Why a Machine still waits, for people."""
        self._machines[uid] = msgspec.structs.replace(
            self._machines[uid], unsized=str(error), condition=error.condition
        )

    def gone(self, reservations: Iterable[str]) -> set[str]:
        """Which of the reserved objects have been seen and deleted since."""
        return {uid for uid in reservations if uid in self._deleted}

    def unsized(self, limited: Iterable[str] = ()) -> Unsized:
        """`limited`: the resources of which no Machine may take an unknown amount, because a quota limits them."""
        counts: Counter[str] = Counter()
        named: list[str] = []
        for uid, name in self._names.items():
            condition, why = _why(self._machines[uid], limited)
            if not condition:
                continue
            counts[condition] += 1
            if len(named) < MAX_UNSIZED_NAMED:
                named.append(f"{name}: {why}")
        return Unsized(counts, named)

    @property
    def unknown(self) -> bool:
        """True if there are Machines that a quota of another resource would leave without a size."""
        return any(self._machines[uid].unknown is not None for uid in self._names)


def _why(counted: Counted, limited: Iterable[str]) -> tuple[str, str]:
    """The condition and the reason, empty where the size is known."""
    if counted.unsized:
        return counted.condition, counted.unsized
    try:
        if counted.unknown is not None:
            counted.unknown.require(limited)
    except NotSized as error:
        return error.condition, str(error)
    return "", ""


class ListToken(msgspec.Struct, frozen=True):
    """A demand for a list that begins after this moment: that list of that connection, or any of a later one."""

    connection: int
    number: int


class Problem(msgspec.Struct, frozen=True):
    """Why a source cannot be followed: a condition's reason and message."""

    reason: str
    message: str


class Source:
    """Follows one UserCluster's Machines until `stop()`.

    `on_change(source, freed)` tells of a new sum, `on_state(source)` that it is followed now, or not any more.
    """

    def __init__(
        self,
        seed: Cluster,
        user_cluster: UserCluster,
        *,
        on_change: Callable[[Source, bool], None],
        on_state: Callable[[Source], None],
        sizing: Sizing,
        on_request: RequestHook | None = None,
        connected: Callable[[Source, Cluster], asyncio.Task[None] | None] = lambda _source, _cluster: None,
    ) -> None:
        self.key = user_cluster.metadata.key
        self.uid = user_cluster.metadata.uid
        self.project = user_cluster.spec.project
        self.user_cluster = user_cluster
        self.drift = Drift()
        self._sizing = sizing
        self.tally = Tally()
        self._problem: Problem | None = None  # of the connection
        self._secret_problem: Problem | None = None  # the connection made before it may still work
        self.lost_at: float | None = None  # monotonic: since when the count is kept, not followed
        self.cluster: Cluster | None = None
        self._seed = seed
        self._on_change = on_change
        self._on_state = on_state
        self._on_request = on_request
        self._connected = connected
        self._reflector: Reflector[Machine] | None = None  # whose complete list stands behind the tally
        self._following: Reflector[Machine] | None = None  # the latest connection's
        self._connections = 0
        self._kubeconfig = ""
        self._changed_secret = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"source {self.key}")

    @property
    def on_seed(self) -> bool:
        """The seed itself holds this cluster's Machines, in the UserCluster's namespace."""
        return self.user_cluster.spec.kubeconfig_secret_ref is None

    @property
    def counted(self) -> bool:
        """True once a complete list stands behind the sum, however old it is."""
        return self._reflector is not None and self._reflector.synced.is_set()

    @property
    def current(self) -> bool:
        reflector = self._reflector
        return reflector is not None and reflector.synced.is_set() and reflector.error is None

    @property
    def problem(self) -> Problem | None:
        return self._secret_problem or self._problem

    def demand_list(self) -> ListToken:
        following = self._following
        return ListToken(self._connections, following.relist() if following is not None else 0)

    def listed_since(self, token: ListToken) -> bool:
        """True once a list that began after the demand is complete."""
        if not self.counted or self._reflector is None:
            return False
        if self._reflector is not self._following:
            return False  # a new connection was made, and what is counted is still the old one's
        return self._connections > token.connection or self._reflector.lists_completed >= token.number

    async def listed(self, token: ListToken) -> None:
        """Until `listed_since(token)` is true."""
        while not self.listed_since(token):
            following = self._following
            if following is not None and self._connections == token.connection:
                with suppress(TimeoutError):
                    await following.wait_listed(token.number, 5)
            await asyncio.sleep(0.2 if following is None or following.error else 0.02)

    async def stop(self) -> None:
        await _end(self._task)

    async def generation(self, namespaced_name: str, uid: str) -> int | None:
        """The object's generation by a consistent read, None if it does not exist (rule 4.5). Raises ApiError.

        It is a list: an API that is not served answers a read of one object as if only the object were missing.
        """
        cluster = self.cluster
        if cluster is None:
            raise Unavailable(0, "Unavailable", f"source {self.key} is not connected")
        namespace, name = namespaced_name.split("/", 1)
        listing = await cluster.list(MACHINES, namespace, field_selector=f"metadata.name={name}")
        if any(broken.uid == uid for broken in listing.broken):
            raise Malformed(200, "Malformed", f"source {self.key}: {namespaced_name} cannot be read")
        return next((found.metadata.generation for found in listing.items if found.metadata.uid == uid), None)

    async def _run(self) -> None:
        if self.on_seed:
            await self._follow(self._seed, self.key.split("/", 1)[0])
            return
        reference = self.user_cluster.spec.kubeconfig_secret_ref
        assert reference is not None, "a source off the seed has a secret"
        secret = Reflector(
            self._seed,
            SECRETS,
            namespace=self.user_cluster.metadata.namespace,
            field_selector=f"metadata.name={reference.name}",
            on_change=lambda _change: self._changed_secret.set(),
        )
        watching = asyncio.create_task(secret.run(), name=f"secret of {self.key}")
        following: asyncio.Task[None] | None = None
        try:
            with suppress(TimeoutError):
                await secret.wait_synced(10)
            while True:
                self._changed_secret.clear()
                kubeconfig = self._read(secret, reference.name, reference.key)
                if kubeconfig is not None and kubeconfig != self._kubeconfig:
                    cluster = await self._open(kubeconfig)
                    if cluster is not None:
                        await _end(following)
                        self._kubeconfig = kubeconfig
                        following = asyncio.create_task(self._connected_to(cluster), name=f"connection to {self.key}")
                elif kubeconfig is not None:
                    self._usable()
                await self._changed_secret.wait()
        finally:
            await _end(following)
            await _end(watching)

    def _read(self, secrets: Reflector[Secret], name: str, key: str) -> str | None:
        """The kubeconfig's text, or None with the problem noted. A source that works keeps on working meanwhile."""
        namespace = self.user_cluster.metadata.namespace
        secret = secrets.store.get(f"{namespace}/{name}")
        if secret is None:
            problem = f"secret {namespace}/{name} does not exist: create it with the key {key}"
        elif key not in secret.data:
            problem = f"secret {namespace}/{name} has no key {key}"
        else:
            try:
                return secret.data[key].decode()
            except UnicodeDecodeError:
                problem = f"secret {namespace}/{name}: the key {key} is not text"
        self._unusable(problem)
        return None

    def _usable(self) -> None:
        if self._secret_problem is not None:
            self._secret_problem = None
            self._on_state(self)

    def _unusable(self, message: str) -> None:
        if self.current:
            message = f"{message}; the connection made before is still used"
        elif self.lost_at is None:
            self.lost_at = time.monotonic()
        problem = Problem("InvalidKubeconfig", message)
        if problem != self._secret_problem:
            self._secret_problem = problem
            log.info("kubeconfig secret cannot be used", extra={"cluster": self.key, "error": message})
            self._on_state(self)

    def _fail(self, problem: Problem) -> None:
        if self.lost_at is None:
            self.lost_at = time.monotonic()
        if problem != self._problem:
            self._problem = problem
            log.info("source is not followed", extra={"cluster": self.key, "reason": problem.reason})
            self._on_state(self)

    def _where(self) -> str:
        reference = self.user_cluster.spec.kubeconfig_secret_ref
        assert reference is not None, "a source off the seed has a secret"
        return f"secret {self.user_cluster.metadata.namespace}/{reference.name}, key {reference.key}"

    async def _open(self, kubeconfig: str) -> Cluster | None:
        try:
            cluster = await Cluster.from_kubeconfig(kubeconfig, name=self.key, on_request=self._on_request)
        except InvalidKubeconfig as error:
            self._unusable(f"{self._where()}: {error}")
            return None
        self._usable()
        return cluster

    async def _connected_to(self, cluster: Cluster) -> None:
        try:
            await self._follow(cluster, None)
        finally:
            await cluster.close()

    async def _follow(self, cluster: Cluster, namespace: str | None) -> None:
        self.cluster = cluster
        tally = Tally(self.tally, lambda machine: self._sizing.counted(self.uid, machine))

        unsized = asyncio.Event()

        def heard(change: Change[Machine]) -> None:
            freed = tally.apply(change)
            if tally.waiting:
                unsized.set()
            if self.tally is tally:
                self._on_change(self, freed)

        reflector = Reflector(cluster, MACHINES, namespace=namespace, on_change=heard)
        self._connections += 1
        self._following = reflector
        running = asyncio.create_task(reflector.run(), name=f"machines of {self.key}")
        auditing: asyncio.Task[None] | None = None
        asking = asyncio.create_task(self._ask_sizes(tally, unsized), name=f"sizes of {self.key}")
        beside = self._connected(self, cluster)
        try:
            await self._first_list(reflector)
            tally.listed()
            # Only now does the new connection's state replace the old one's: never a moment without a count.
            self.tally, self._reflector = tally, reflector
            self._on_change(self, True)
            self._on_state(self)
            auditing = asyncio.create_task(self._audit(reflector), name=f"stamps of {self.key}")
            while True:
                self._judge(reflector)
                await asyncio.sleep(1)
        finally:
            self.cluster = None
            await _end(running)
            await _end(asking)
            await _end(auditing)
            await _end(beside)

    async def _audit(self, machines: Reflector[Machine]) -> None:
        while True:
            found = await audit(self._sizing, self.user_cluster, list(machines.store.values()))
            if found != self.drift:
                self.drift = found
                self._on_state(self)
            await asyncio.sleep(AUDIT_SECONDS)

    async def _ask_sizes(self, tally: Tally, wake: asyncio.Event) -> None:
        """Asks for what the tally waits for, each spec once, and counts it when the answer comes."""
        pause = FIRST_ASK_PAUSE
        while True:
            await wake.wait()
            wake.clear()
            waiting = {spec_hash(machine): machine for machine in tally.waiting.values()}
            limit = asyncio.Semaphore(MAX_ASKED)
            await asyncio.gather(*(self._ask_size(tally, digest, one, limit) for digest, one in waiting.items()))
            if not tally.waiting:
                pause = FIRST_ASK_PAUSE
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()
            wake.set()
            pause = min(pause * 2, LONGEST_ASK_PAUSE)

    async def _ask_size(self, tally: Tally, digest: str, machine: Machine, limit: asyncio.Semaphore) -> None:
        problem: NotSized | ProviderUnavailable | None = None
        async with limit:
            try:
                await self._sizing.size(self.user_cluster, machine, asyncio.get_running_loop().time() + ASK_SECONDS)
            except (NotSized, ProviderUnavailable) as error:
                problem = error
        freed = False
        for uid, waiting in list(tally.waiting.items()):
            if spec_hash(waiting) == digest:
                if problem is not None:
                    tally.explain(uid, problem)
                else:
                    freed |= tally.apply(Change(waiting, waiting))
        if self.tally is tally:
            self._on_change(self, freed)

    async def _first_list(self, reflector: Reflector[Machine]) -> None:
        while not reflector.synced.is_set():
            with suppress(TimeoutError):
                await reflector.wait_synced(1)
            self._judge(reflector)

    def _judge(self, reflector: Reflector[Machine]) -> None:
        if reflector.error is None:
            if reflector.synced.is_set() and (self._problem is not None or self.lost_at is not None):
                self._problem, self.lost_at = None, None
                log.info("source is followed", extra={"cluster": self.key})
                self._on_state(self)
            return
        reason, message = _reason(reflector.error_status), reflector.error
        if reason == "Unauthorized" and not self.on_seed:
            message = f"{self._where()}: {message}"
        self._fail(Problem(reason, message))


def _reason(status: int) -> str:
    match status:
        case 401 | 403:
            return "Unauthorized"
        case 404:
            return "MachineAPIMissing"
        case _:
            return "Unreachable"


async def _end(task: asyncio.Task[None] | None) -> None:
    """Cancel it and wait for its end. Unlike awaiting the task, this hears when we are cancelled ourselves."""
    if task is None:
        return
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task failed", extra={"task": task.get_name(), "error": repr(error)})
