"""Events for owners of Machines on one API server: on MachineSets and MachineDeployments; and when to try again, which
is told to what makes pods, too.

One task for each API server, so that a slow one delays no other. What waits to be written is bounded, and so is each
request's time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec

from common.api.conditions import now
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from common.kube.controller.events import EVENTS, Regarding, microtime
from common.runtime import unexpected
from common.runtime.lru import LruDict
from seed.notifications.event_series import RETRY, Occurrence, Series, SeriesTable, created, repeated
from seed.notifications.owners import Owner, owner_of, resource_of
from seed.notifications.wake_queue import Waiter

log = logging.getLogger(__name__)

CONTROLLER = "seedquota.io/webhook"
FREED_ANNOTATION = "seedquota.io/capacity-freed"
MAX_REFUSED = 256  # refusals that wait for their Events
MAX_WAKES = 256
MAX_SERIES = 512
MAX_PARENTS = 1024
PARENT_SECONDS = 300.0  # for which it is kept whose a MachineSet is
FIRST_PAUSE = 2.0  # seconds after a failure; it doubles with each until RETRY
AT_ONCE = 8  # requests to one API server
MAX_ROUND = 64  # refusals taken up before Events are written
PAUSE = 0.05  # seconds in which what belongs together comes together

T = TypeVar("T")


class Refused(msgspec.Struct, frozen=True):
    """What an Event is for, and whether it is about a MachineSet; else about what the occurrence names."""

    occurrence: Occurrence
    machine_set: bool


class OwnerNotifier:
    """Tells those of one API server. `stop()` it.

    `on_gone(waiter)`: the owner does not wait any more. `on_failed(waiter)`: it could not be woken now.
    `count(result, number)` is for metrics: Events written, failed, dropped; owners woken.
    """

    def __init__(
        self,
        name: str,
        instance: str,
        connect: Callable[[], AbstractAsyncContextManager[Cluster]],
        *,
        on_gone: Callable[[Waiter], None],
        on_failed: Callable[[Waiter], None],
        count: Callable[[str, int], None],
    ) -> None:
        self.name = name
        self._instance = instance
        self._connect = connect
        self._on_gone = on_gone
        self._on_failed = on_failed
        self._count = count
        self._refused: deque[Refused] = deque()
        self._wakes: deque[Waiter] = deque()
        self._series = SeriesTable(MAX_SERIES)
        self._dropped = 0  # of the table's, that were counted
        self._parents: LruDict[str, tuple[float, Regarding | None]] = LruDict()
        self._unreachable_until = 0.0
        self._failures = 0
        self._something = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def refused(self, refused: Refused) -> None:
        if len(self._refused) >= MAX_REFUSED:
            self._refused.popleft()
            self._count("dropped", 1)
        self._refused.append(refused)
        self._work()

    def wake(self, waiter: Waiter) -> None:
        if time.monotonic() < self._unreachable_until:
            self._on_failed(waiter)
            return
        if len(self._wakes) >= MAX_WAKES:
            self._on_failed(self._wakes.popleft())
        self._wakes.append(waiter)
        self._work()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _work(self) -> None:
        self._something.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"owners of {self.name}")

    async def _run(self) -> None:
        """Until there is nothing more to tell, nor a series that could go on."""
        while True:
            self._something.clear()
            try:
                await self._round()
            except (ApiError, TimeoutError) as error:
                self._failed()
                log.info("Events cannot be written", extra={"cluster": self.name, "error": str(error)})
            except Exception as error:  # noqa: BLE001 (logged; whatever it was, the next must be written)
                self._failed()
                unexpected.tell("owners", self.name, error)
            else:
                self._failures = 0
            if self._series.dropped > self._dropped:
                self._count("dropped", self._series.dropped - self._dropped)
                self._dropped = self._series.dropped
            if not await self._rest():
                return

    def _failed(self) -> None:
        self._unreachable_until = time.monotonic() + min(FIRST_PAUSE * 2**self._failures, RETRY)
        self._failures = min(self._failures + 1, 10)
        self._count("failed", 1)
        while self._wakes:
            self._on_failed(self._wakes.popleft())

    async def _rest(self) -> bool:
        """Until something is to be done; False when nothing will be."""
        soonest = self._series.next()
        moment = time.monotonic()
        waits = self._refused or self._wakes
        if soonest is None and not waits:
            return self._something.is_set()
        wait = PAUSE if waits else max((soonest or 0.0) - moment, PAUSE)
        wait = max(wait, self._unreachable_until - moment)
        try:
            async with asyncio.timeout(wait):
                while True:
                    await self._something.wait()
                    if time.monotonic() >= self._unreachable_until:
                        break
                    self._something.clear()
        except TimeoutError:
            pass
        else:
            await asyncio.sleep(PAUSE)
        return True

    async def _round(self) -> None:
        if not self._refused and not self._wakes and not self._series.due(time.monotonic()):
            return
        async with self._connect() as cluster:
            await self._wake_some(cluster)
            for _ in range(0, MAX_ROUND, AT_ONCE):
                refused = [self._refused.popleft() for _ in range(min(AT_ONCE, len(self._refused)))]
                await _all(self._note(cluster, each) for each in refused)
                await self._wake_some(cluster)
            due = self._series.due(time.monotonic())
            for start in range(0, len(due), AT_ONCE):
                await _all(self._write(cluster, series) for series in due[start : start + AT_ONCE])
                await self._wake_some(cluster)

    async def _wake_some(self, cluster: Cluster) -> None:
        """Between all else: whoever is to be woken has waited long enough."""
        wakes = [self._wakes.popleft() for _ in range(min(AT_ONCE, len(self._wakes)))]
        await _all(self._wake(cluster, waiter) for waiter in wakes)

    async def _note(self, cluster: Cluster, refused: Refused) -> None:
        occurrence = refused.occurrence
        self._series.note(occurrence, time.monotonic())
        if refused.machine_set:
            parent = await self._parent(cluster, occurrence.regarding)
            if parent is not None:
                self._series.note(msgspec.structs.replace(occurrence, regarding=parent), time.monotonic())

    async def _parent(self, cluster: Cluster, machine_set: Regarding) -> Regarding | None:
        known = self._parents.get(machine_set.uid)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        found = await self._read(cluster, machine_set)
        return self._keep_parent(machine_set.uid, found)

    def _keep_parent(self, uid: str, found: Owner | None) -> Regarding | None:
        parent = owner_of(found.metadata) if found is not None else None
        self._parents.keep(uid, (time.monotonic() + PARENT_SECONDS, parent), MAX_PARENTS)
        return parent

    async def _read(self, cluster: Cluster, owner: Regarding) -> Owner | None:
        """None where there is none any more, or another of its name."""
        resource = resource_of(owner)
        assert resource is not None, "no others are noted"
        found: Owner
        try:
            found = await cluster.get(resource, owner.name, owner.namespace)
        except (NotFound, ValueError):
            return None
        except Forbidden as error:
            log.info("owners cannot be read", extra={"cluster": self.name, "kind": owner.kind, "error": error.message})
            return None
        return found if found.metadata.uid == owner.uid else None

    async def _wake(self, cluster: Cluster, waiter: Waiter) -> None:
        regarding = waiter.regarding
        try:
            found = await self._touched(cluster, regarding)
        except (ApiError, TimeoutError):
            self._on_failed(waiter)
            raise
        if found is None:
            self._on_gone(waiter)
            return
        self._count("woken", 1)
        self._keep_parent(regarding.uid, found)
        what = "Machine" if regarding.kind == "MachineSet" else "Pod"
        self._series.note(
            Occurrence(
                regarding=regarding,
                quota="",
                reason="CapacityFreed",
                note=f"there is room for a {what} again: it is tried now",
                time=microtime(),
                warning=False,
                action="Retry",
            ),
            time.monotonic(),
        )

    async def _touched(self, cluster: Cluster, regarding: Regarding) -> Owner | None:
        """Its controller is to look at it now. None where it needs nothing any more, or may not be touched."""
        resource, found = resource_of(regarding), await self._read(cluster, regarding)
        if resource is None or found is None or found.complete:
            return None
        patch = {"metadata": {"uid": regarding.uid, "annotations": {FREED_ANNOTATION: now()}}}
        try:
            touched: Owner = await cluster.merge_patch(resource, regarding.name, patch, regarding.namespace)
        except (NotFound, Conflict):
            return None
        except Forbidden as error:
            facts = {"cluster": self.name, "kind": regarding.kind, "error": error.message}
            log.warning("owners cannot be woken", extra=facts)
            return None
        return touched

    async def _write(self, cluster: Cluster, series: Series) -> None:
        count, namespace = series.count, series.first.regarding.namespace or "default"
        try:
            if series.written:
                await cluster.merge_patch(EVENTS, series.name, repeated(series), namespace)
            else:
                await cluster.create(EVENTS, created(series, CONTROLLER, self._instance))
        except AlreadyExists:
            self._series.written(series, 1, time.monotonic())  # by a request of ours whose answer was lost
        except (NotFound, Forbidden, Invalid, Conflict) as error:
            # Its object or its namespace is gone, it has expired, or it may not be written: so it stays.
            log.info("Event not written", extra={"cluster": self.name, "error": error.message})
            self._count("failed", 1)
            self._series.failed(series, time.monotonic(), lasting=True)
        except ApiError:
            self._series.failed(series, time.monotonic(), lasting=False)
            raise
        else:
            self._count("written", 1)
            self._series.written(series, count, time.monotonic())


async def _all(works: Iterable[Awaitable[T]]) -> None:
    """All of them at once; raises the first error, when all have ended."""
    for ended in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
