"""A source: one API server whose Machines are counted. The leader keeps one for each UserCluster.

It follows the user cluster's Machines through a watch cache and keeps their sum up to date change by change, so that
a count costs nothing when it is asked for. What cannot be reached keeps its last sum and says since when.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Conflict, Malformed, Unavailable
from common.kube.client.reach import DEFAULT, Reach
from common.kube.client.resource import by_name
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.runtime.pieces import in_pieces
from common.runtime.unexpected import contained, kept_task
from common.runtime.waiting import end_task, within
from seed.kinds.machines.kubeconfig_secret import INTERNAL, KubeconfigSecret
from seed.kinds.machines.machine_api import TAKEN_OVER, MachineApi
from seed.kinds.machines.size_backfill import SizeBackfill
from seed.kinds.machines.totals import MachineTotals
from seed.machines.machine_controller import MACHINES, Machine, UnreadSpec, unread
from seed.model.consumer import consumer_of
from seed.model.source_key import SourceKey
from seed.providers.size import Footprint, NotSized
from seed.sizing.sizer import Sizing
from seed.sizing.stamp import spec_hash
from seed.sizing.stamp_audit import Drift, audit
from seed.usage.source import UNREADABLE, Generation, Problem, Taken, reason_of
from seed.usage.unadmitted import Unadmitted

log = logging.getLogger(__name__)

AUDIT_SECONDS = 3600.0
CHECK_API_SECONDS = 30.0
IDENTIFY_AGAIN = 5.0  # seconds, while it leads to a cluster that it does not stand for
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # ... while it is not known where it leads


async def _any_cluster(_source: Source, _cluster: Cluster) -> Problem | None:
    return None


class Source:
    """Follows one UserCluster's Machines until `stop()`.

    `identify(source, cluster)` tells why the cluster that the kubeconfig leads to must not be followed, or raises
    ApiError. `on_change(source, freed)` tells of a new sum, `on_state(source)` that it is followed now, or no more."""

    in_namespaces: None = None

    def __init__(
        self,
        seed: Cluster,
        user_cluster: UserCluster,
        *,
        on_change: Callable[[Source, bool], None],
        on_state: Callable[[Source], None],
        sizing: Sizing,
        reach: Reach = DEFAULT,
        connected: Callable[[Source, Cluster], asyncio.Task[None] | None] = lambda _source, _cluster: None,
        identify: Callable[[Source, Cluster], Awaitable[Problem | None]] = _any_cluster,
    ) -> None:
        self.key, self.uid = SourceKey(user_cluster.metadata.key), user_cluster.metadata.uid
        self.consumer = consumer_of(user_cluster)
        self.user_cluster = user_cluster
        self.drift = Drift()
        self.identity = ""  # of the cluster that it was found to lead to
        self._followed = ""  # ... of the one whose list stands behind the totals
        self._sizing = sizing
        recorded = frozenset(user_cluster.status.unadmitted.uids)
        self.totals = MachineTotals(unadmitted=Unadmitted(recorded, on_found=lambda: self._on_state(self)))
        self._problem: Problem | None = None  # of the connection
        self._secret_problem: Problem | None = None  # the connection made before it may still work
        self.lost_at: float | None = None  # monotonic: since when the count is kept, not followed
        self.cluster: Cluster | None = None
        self._seed = seed
        self._on_change = on_change
        self._on_state = on_state
        self._connected, self._identify = connected, identify
        self._reflector: Reflector[Machine] | None = None  # whose complete list stands behind the totals
        self._following: Reflector[Machine] | None = None  # the latest connection's
        reference = user_cluster.spec.kubeconfig_secret_ref
        self._secret = (
            KubeconfigSecret(seed, user_cluster, reference, reach=reach, on_problem=self._secret_said)
            if reference is not None
            else None
        )
        self._task = kept_task("source", self._run, self.key)

    @property
    def on_seed(self) -> bool:
        """The seed itself holds this cluster's Machines, in the UserCluster's namespace."""
        return self.user_cluster.spec.kubeconfig_secret_ref is None

    @property
    def namespace(self) -> str:
        """Where its Machines are made, as far as we make any."""
        return self.key.split("/", 1)[0] if self.on_seed else "kube-system"

    @property
    def counted(self) -> bool:
        return self._reflector is not None and self._reflector.synced.is_set()

    @property
    def current(self) -> bool:
        reflector = self._reflector
        connected = self.cluster is not None
        return connected and reflector is not None and reflector.synced.is_set() and reflector.error is None

    @property
    def live(self) -> bool:
        return self._reflector is not None and self._reflector.live

    @property
    def listed_from(self) -> float:
        return self._reflector.listed_from if self._reflector is not None else 0

    @property
    def problem(self) -> Problem | None:
        return self._secret_problem or self._problem

    def relist(self) -> None:
        if self._following is not None:
            self._following.relist()

    def identify_again(self) -> None:
        """Ends the connection and makes it anew: another UserCluster stands for the cluster."""
        if self._secret is not None:
            self._secret.connect_again()

    async def stop(self) -> None:
        await end_task(self._task)

    async def generation(self, namespaced_name: str, uid: str) -> Generation:
        """By a list: an API that is not served answers a read of one object as if only the object were missing."""
        cluster = self.cluster
        if cluster is None:
            raise Unavailable(0, "Unavailable", f"source {self.key} is not connected")
        namespace, name = namespaced_name.split("/", 1)
        listing = await cluster.list(MACHINES, namespace, field_selector=by_name(name))
        if listing.may_hide(uid):
            raise Malformed(200, "Malformed", f"source {self.key}: {namespaced_name} cannot be read")
        missing = Taken.TAKEN if listing.items else None
        return next((found.metadata.generation for found in listing.items if found.metadata.uid == uid), missing)

    async def _run(self) -> None:
        if self.on_seed:
            await self._follow(self._seed, self.key.split("/", 1)[0])
            return
        assert self._secret is not None, "a source off the seed has a secret"
        await self._secret.run(self._connected_to)

    def _secret_said(self, problem: Problem | None) -> None:
        if problem is not None and self.current:
            problem = Problem(problem.reason, f"{problem.message}; the connection made before is still used")
        elif problem is not None and self.lost_at is None:
            self.lost_at = time.monotonic()
        if problem != self._secret_problem:
            self._secret_problem = problem
            if problem is not None:
                log.info("kubeconfig secret cannot be used", extra={"cluster": self.key, "error": problem.message})
            self._on_state(self)

    def _fail(self, problem: Problem) -> None:
        if self.lost_at is None:
            self.lost_at = time.monotonic()
        if problem != self._problem:
            self._problem = problem
            log.info("source is not followed", extra={"cluster": self.key, "reason": problem.reason})
            self._on_state(self)

    async def _connected_to(self, cluster: Cluster) -> None:
        with contained("source", self.key):
            try:
                await self._identified(cluster)
                await self._follow(cluster, None)
            finally:
                await cluster.close()
        self._fail(INTERNAL)  # else it goes on until it is cancelled
        await asyncio.sleep(LONGEST_PAUSE)
        self.identify_again()

    async def _identified(self, cluster: Cluster) -> None:
        """Until it is the cluster to follow."""
        pause = FIRST_PAUSE
        while True:
            try:
                problem = await self._identify(self, cluster)
                if problem is None:
                    return
                self._fail(problem)
                pause = IDENTIFY_AGAIN
            except Conflict:
                pass  # our own status was written meanwhile
            except ApiError as error:
                self._fail(self._problem_of(error.status, error.message))
                pause = min(pause * 2, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _follow(self, cluster: Cluster, namespace: str | None) -> None:
        self.cluster = cluster
        identity, unadmitted = self.identity, self.totals.unadmitted
        unadmitted = unadmitted.after() if identity == self._followed else unadmitted.elsewhere()
        totals = MachineTotals(self.totals, self._counted, unadmitted)

        asking = SizeBackfill(
            totals, self._ask, lambda freed: self._on_change(self, freed) if self.totals is totals else None
        )

        def changed(change: Change[Machine]) -> None:
            freed = totals.apply(change)
            asking.look()
            if self.totals is totals:
                self._on_change(self, freed)

        def listed() -> None:
            if self._reflector is reflector:
                self._on_state(self)

        reflector = Reflector(cluster, MACHINES, namespace=namespace, on_change=changed, on_state=listed, unread=unread)
        self._following = reflector
        running = asyncio.create_task(reflector.run(), name=f"machines of {self.key}")
        auditing: asyncio.Task[None] | None = None
        sizing, checking = kept_task("sizes", asking.run, self.key), None
        if isinstance(cluster, MachineApi):
            checking = kept_task("API of Machines", lambda: self._check_api(cluster, reflector), self.key)
        beside = self._connected(self, cluster)
        try:
            await self._first_list(reflector)
            # Only now does the new connection's state replace the old one's: never a moment without a count.
            self.totals, self._reflector, self._followed = totals, reflector, identity
            self._on_change(self, True)
            self._on_state(self)
            auditing = kept_task("stamps", lambda: self._audit(reflector), self.key)
            while True:
                self._judge(reflector)
                await asyncio.sleep(1)
        except Exception:
            self._fail(INTERNAL)
            raise
        finally:
            self.cluster = None
            await end_task(running)
            await end_task(sizing)
            await end_task(checking)
            await end_task(auditing)
            await end_task(beside)

    async def _ask(self, machine: Machine, deadline: float) -> None:
        await self._sizing.size(self.user_cluster, machine, deadline)

    async def _check_api(self, api: MachineApi, reflector: Reflector[Machine]) -> None:
        """A watch that is open goes on as if nothing had happened: a list shows who serves the Machines now."""
        while True:
            await asyncio.sleep(CHECK_API_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311
            with suppress(ApiError):
                await api.check()
            if api.taken_over is not None:
                reflector.relist()

    async def _audit(self, machines: Reflector[Machine]) -> None:
        while True:
            found = await audit(self._sizing, self.user_cluster, list(machines.store.values()), self.drift)
            if found != self.drift:
                before, self.drift = self.drift, found
                await self._count_again({*before.now, *found.now}, machines)
                self._on_state(self)
            await asyncio.sleep(AUDIT_SECONDS)

    async def _count_again(self, specs: set[str], machines: Reflector[Machine]) -> None:
        freed = [
            self.totals.apply(Change(machine, machine))
            async for machine in in_pieces(machines.store.values() if specs else ())
            if spec_hash(machine) in specs and machines.store.get(machine.metadata.key) is machine
        ]
        if freed:
            self._on_change(self, any(freed))

    def _counted(self, machine: Machine) -> Footprint:
        if isinstance(machine.spec, UnreadSpec):
            raise NotSized("", f"the Machine cannot be read: {machine.spec.error}")
        return self.drift.counted(machine, self._sizing.counted(self.uid, machine))

    async def _first_list(self, reflector: Reflector[Machine]) -> None:
        while not await within(reflector.synced, 1):
            self._judge(reflector)

    def _judge(self, reflector: Reflector[Machine]) -> None:
        if reflector.error is None and reflector.untaken is not None:
            self._fail(Problem(UNREADABLE, reflector.untaken))
        elif reflector.error is None:
            if reflector.synced.is_set() and (self._problem is not None or self.lost_at is not None):
                self._problem, self.lost_at = None, None
                log.info("source is followed", extra={"cluster": self.key})
                self._on_state(self)
        else:
            self._fail(self._problem_of(reflector.error_status, reflector.error))

    def _problem_of(self, status: int, message: str) -> Problem:
        if isinstance(self.cluster, MachineApi) and self.cluster.taken_over is not None:
            return Problem(TAKEN_OVER, self.cluster.taken_over)
        reason = reason_of(status)
        if reason == "Unauthorized" and self._secret is not None:
            message = f"{self._secret.where}: {message}"
        return Problem(reason, message)
