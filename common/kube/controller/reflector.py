"""A local copy of a kind's objects that follows the API server: list, then watch, for as long as it runs."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic

from common.kube.client.api_client import BROKEN, Cluster
from common.kube.client.errors import ApiError, Gone, TooMany
from common.kube.client.resource import Broken, Listing, Resource, WatchEvent
from common.kube.controller.malformed import MalformedObjects
from common.kube.controller.store import Change, IndexFunction, Store, T, by_key
from common.runtime.large_dict import taken_from
from common.runtime.pieces import in_pieces
from common.runtime.unexpected import contained

LIST_TIMEOUT = 60.0  # seconds for one page
# How long watches are, spread so that they do not all end at once. An API server sends no bookmark where nothing
# changes, so only the end of a watch proves that it was followed. It costs one request from the API server's memory.
WATCH_SECONDS = (60, 90)
PROMPT_SECONDS = (5, 8)  # ... of the few kinds that decide what may be admitted; see `FRESH` in seed/cache/replicas.py
FIRST_BACKOFF = 0.2  # seconds
MAX_BACKOFF = 30.0
AT_ONCE = 3.0  # seconds between a list or watch and the next watch; an API server takes longer to start
EARLY = 0.5  # seconds that clocks may differ by over a whole watch
SHORT_WATCH = 1.0  # seconds; a watch that ends sooner and brought nothing counts as a failure
MAX_OBJECTS = 500_000

log = logging.getLogger(__name__)


_moments = itertools.count(1)


def moment() -> int:
    """Each call returns more than all before it in this process: what comes first is known without a clock."""
    return next(_moments)


class State(Enum):
    STOPPED = "stopped"
    LISTING = "listing"
    WATCHING = "watching"
    BACKOFF = "backoff"


class Reflector(Generic[T]):
    """Keeps `store` equal to what the API server has, and calls `on_change` for every difference.

    A watch that ends in good order goes on where it ended; after anything else comes a new list. As long as `unbroken`
    is the same number, whatever happened there was reported: no API server is stopped, restored from a backup and
    started in the pause between two watches. It is None while a list is read.

    Lists are consistent, never from a cache that may lag. The store is replaced at once when a list is complete; then
    come the changes that it brought, then `synced`. An object deleted and made again under its name is two changes.
    Nothing that had happened by `proven_at` is missing in it, as far as the API server's own cache follows its etcd.
    A malformed object keeps its last good version in the store, is named in `malformed`, and stops no other. Without a
    good version, what `unread` makes of it stands there. One whose name or uid cannot be read makes a list malformed:
    nobody knows which one is missing in it. One for which `on_change` failed stops no other either: it is called again
    for that after each watch. `untaken` names both until then.

    `indexes` must be pure functions that do not raise. `on_change` runs on the event loop and must not block. So does
    `on_state`, which is called after each list that is complete, and whenever `error` or `untaken` has become another.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        on_change: Callable[[Change[T]], None] | None = None,
        on_state: Callable[[], None] = lambda: None,
        known: Store[T] | None = None,
        unread: Callable[[Broken], T] | None = None,
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> None:
        """`known`: what `on_change` was called for before: the first list brings what differs from it."""
        self.store: Store[T] = known if known is not None else Store(indexes or {})
        self.state = State.STOPPED
        self.synced = asyncio.Event()
        self.error: str | None = None  # why it does not follow the API server now
        self.error_status = 0  # the HTTP status behind `error`; 0 when there was no answer
        self.last_contact: float | None = None  # time.monotonic() of the last list, event or bookmark
        self.proven_at = float("-inf")  # time.monotonic() before what proved it was asked for
        self.version = ""  # the resourceVersion as of which the store is
        self.malformed = MalformedObjects(cluster.name, resource.plural)
        # By key and uid: for which changes `on_change` failed last, and why.
        self._untaken: dict[tuple[str, str], tuple[Change[T], str]] = {}
        self._weight = 0  # of what is in the store
        self.lists_started = 0
        self.lists_completed = 0  # the number, as counted by lists_started, of the latest list that completed
        self.listed_from = 0  # the moment at which that list began
        self._cluster = cluster
        self._resource = resource
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._on_change = on_change
        self._unread = unread
        self._on_state = on_state
        self._watch_seconds = watch_seconds
        self._version = ""  # where the watch goes on; empty: a list is needed
        self._list_done = asyncio.Event()
        self._relist_asked = False
        self._progress = False  # whether the present attempt brought anything, so that backoff begins anew
        self._watching: asyncio.Task[None] | None = None
        self._pause: asyncio.Future[None] | None = None  # of a backoff; done: it ends now
        self.unbroken: int | None = None
        self._runs = 0  # of watches without a break
        self._ended_at = float("-inf")  # when a list was complete, or a watch ended in good order (monotonic)
        self._open = False  # a watch is
        self._broken = True  # something failed since the latest list was complete
        self._facts = {"cluster": cluster.name, "resource": resource.plural}

    @property
    def live(self) -> bool:
        """True while it is certain that nothing has happened there since the latest list but what the watch tells: no
        backup was restored, which undoes what was reported."""
        if self._broken:
            return False
        return self.unbroken is not None if self._open else time.monotonic() - self._ended_at <= AT_ONCE

    @property
    def untaken(self) -> str | None:
        """Which objects cannot be read, or were not taken by `on_change`, and why; None: there is none."""
        if not self._untaken:
            return self.malformed.text
        (key, _), (_, error) = next(iter(self._untaken.items()))
        return f"{len(self._untaken)} {self._resource.plural} cannot be taken in, such as {key}: {error}"

    async def wait_synced(self, timeout: float) -> None:
        """Until the first list is complete. Raises TimeoutError that says what is missing."""
        await self.wait_listed(1, timeout)

    def relist(self, *, impatient: bool = False) -> int:
        """Asks for a fresh list now; if `impatient`, not only after a backoff. What it returns is for `wait_listed`."""
        self._relist_asked = True
        if self._watching is not None:
            self._watching.cancel()
        if impatient and self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
        return self.lists_started + 1

    async def wait_listed(self, number: int, timeout: float) -> None:
        """Until a list that began after `relist()` returned `number` is complete. Raises TimeoutError."""
        try:
            async with asyncio.timeout(timeout):
                while self.lists_completed < number:
                    await self._list_done.wait()
        except TimeoutError:
            what = f"cluster {self._cluster.name}: {self._resource.plural} not listed within {timeout:g} s"
            raise TimeoutError(f"{what}: {self.error or self.state.value}") from None

    async def run(self) -> None:
        """Follows the API server until cancelled."""
        failures = 0
        try:
            while True:
                self._progress, status = False, 0
                try:
                    while not self._version or self._relist_asked:
                        await self._list()
                    await self._watch()
                    await self._tell_again()
                    problem = None if self._progress or self._relist_asked else "the watch ended at once"
                    level = logging.WARNING
                except ApiError as error:
                    status, problem = error.status, error.message
                    # that it was away for too long happens to everyone
                    level = logging.INFO if isinstance(error, Gone) else logging.WARNING
                except Exception as error:  # the outermost edge: whatever it was, a fresh list is the way out
                    log.exception("reflector failed", extra=self._facts)
                    problem, level = f"{type(error).__name__}: {error}", logging.WARNING
                failures = 1 if self._progress else failures + 1
                if problem is None:
                    failures = 0
                    continue
                # The server may have come back with older data, restored from a backup: then only a list tells what
                # is there. A watch from a version that does not exist yet just stays silent.
                self._version, self._broken = "", True
                self.error_status = status
                await self._back_off(failures, problem, level)
        finally:
            self.state = State.STOPPED
            self.malformed.clear()

    async def _back_off(self, failures: int, problem: str, level: int) -> None:
        self.state = State.BACKOFF
        if problem != self.error:
            log.log(level, "not following the API server", extra={**self._facts, "error": problem})
            self.error = problem
            self._on_state()
        # What must be proven every few seconds is not left unread for longer than a watch of it lasts.
        most = min(MAX_BACKOFF, self._watch_seconds[1])
        longest = min(most, FIRST_BACKOFF * 2 ** min(failures - 1, 20))
        self._pause = asyncio.get_running_loop().create_future()
        try:
            pause = longest * random.uniform(0.5, 1.0)  # noqa: S311 (spread, not a secret)
            await asyncio.wait([self._pause], timeout=pause)
        finally:
            self._pause = None

    async def _list(self) -> None:
        self.state = State.LISTING
        self.lists_started += 1
        self.unbroken = None
        number, listed_from, began = self.lists_started, moment(), time.monotonic()
        self._relist_asked = False
        self._version = ""
        listing = await self._cluster.list(
            self._resource,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout=LIST_TIMEOUT,
            afresh=self.error is not None,
        )
        self.last_contact = time.monotonic()
        with self.store.freed_in_pieces(listing.items):
            await self._replace(listing)
        await self._tell_again()
        self._version = self.version = listing.resource_version
        self._ended_at, self.proven_at = time.monotonic(), began
        self._runs += 1
        self._broken = False
        self.lists_completed, self.listed_from = number, listed_from
        self.synced.set()
        done, self._list_done = self._list_done, asyncio.Event()
        done.set()
        self._on_state()

    async def _replace(self, listing: Listing[T]) -> None:
        """Changes come in pieces, what is gone last: meanwhile there never seems to be less than there is."""
        if len(listing.items) > MAX_OBJECTS:
            raise self._cluster.refused(TooMany(f"more than {MAX_OBJECTS} {self._resource.plural}"))
        before, after = self.store.objects, await by_key(listing.items)
        self.malformed.keep(listing.broken)
        for broken in listing.broken:
            self.malformed.add(broken)
            last_good = before.get(broken.key)
            if last_good is not None and last_good.metadata.uid == broken.uid:
                after[broken.key] = last_good
            elif self._unread is not None:
                after[broken.key] = self._unread(broken)
        await self.store._replace_in_pieces(after)
        weight = 0
        async for key, new in in_pieces(after.items()):
            weight += self._weigh(new)
            found = before.get(key)
            if found is None or found.metadata.resource_version != new.metadata.resource_version:
                self._tell(found, new)
        self._weight = weight
        async for key, old in in_pieces(taken_from(before)):
            if key not in after:
                self._tell(old, None)

    async def _watch(self) -> None:
        """Returns when the watch ended normally, or when a fresh list was asked for."""
        self._watching = asyncio.create_task(self._follow())
        try:
            await self._watching
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._relist_asked or (task is not None and task.cancelling()):
                raise
        finally:
            self._watching = None

    async def _follow(self) -> None:
        seconds = random.randint(*self._watch_seconds)  # noqa: S311
        began = time.monotonic()
        opened = self._cluster.open_watch(
            self._resource,
            self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=seconds,
        )
        async with opened as stream:
            if time.monotonic() - self._ended_at <= AT_ONCE:
                self.unbroken = self._runs
            else:
                self._runs += 1
                self.unbroken = None  # what this watch tells may have happened before it
            self.state, self._open = State.WATCHING, True
            self.last_contact = time.monotonic()
            if self.error is not None:
                log.info("following the API server again", extra=self._facts)
                self.error = None
                self._on_state()
            try:
                while (events := await stream.read()) is not None:
                    self.last_contact = time.monotonic()
                    async for event in in_pieces(events):
                        self._apply(event)
                        self._progress = True
                # One that ends early may have been ended before all was sent that had happened when it began.
                if time.monotonic() - began >= seconds - EARLY:
                    self.proven_at = began
            finally:
                self._open = False
                self._ended_at = time.monotonic()
                if self._ended_at - began >= SHORT_WATCH:
                    self._progress = True

    def _apply(self, event: WatchEvent[T]) -> None:
        if event.broken is not None:
            self._apply_broken(event.type, event.broken)
        elif event.object is not None:
            key = event.object.metadata.key
            if self.malformed and self.malformed.discard(key):
                self._on_state()
            if event.type == "DELETED":
                self._drop(key)
            else:
                self._put(event.object)
        if event.resource_version:
            self._version = self.version = event.resource_version

    def _apply_broken(self, event_type: str, broken: Broken) -> None:
        if self.malformed.add(broken):
            self._bound(self._weight)
            self._on_state()
        if event_type == "DELETED":
            self.malformed.discard(broken.key)
            self._drop(broken.key)
            self._on_state()
            return
        last_good = self.store.get(broken.key)
        if last_good is None or last_good.metadata.uid != broken.uid:
            self._drop(broken.key)
            if self._unread is not None:
                self._put(self._unread(broken))

    def _put(self, new: T) -> None:
        key = new.metadata.key
        if key not in self.store and len(self.store) >= MAX_OBJECTS:
            raise self._cluster.refused(TooMany(f"more than {MAX_OBJECTS} {self._resource.plural}"))
        old = self.store.get(key)
        weight = self._weight + self._weigh(new) - (self._weigh(old) if old is not None else 0)
        if weight > self._weight:
            self._bound(weight)
        self._weight = weight
        self.store._set(key, new)
        self._tell(old, new)

    def _drop(self, key: str) -> None:
        old = self.store._remove(key)
        if old is not None:
            self._weight -= self._weigh(old)
            self._tell(old, None)

    def _weigh(self, found: T) -> int:
        return self._resource.weigh(found) if self._resource.weigh is not None else 0

    def _bound(self, weight: int) -> None:
        """Raises Malformed where so much in the store, beside what cannot be read, is more than there may be."""
        most = self._resource.most
        if most is not None and weight + BROKEN * len(self.malformed) > most:
            raise self._cluster.refused(TooMany(f"its {self._resource.plural} take more than {most // 2**20} MiB"))

    def _tell(self, old: T | None, new: T | None) -> None:
        if self._on_change is None:
            return
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            changes = [Change(old, None), Change(None, new)]
        else:
            changes = [Change(old, new)]
        for change in changes:
            known = change.new if change.new is not None else change.old
            assert known is not None, "a change has an object before or after"
            key = known.metadata.key, known.metadata.uid
            with contained("changes", f"{self._cluster.name} {self._resource.plural} {key[0]}") as attempt:
                self._on_change(change)
            if attempt.error is not None:
                self._untaken[key] = change, type(attempt.error).__name__
                self._on_state()
            elif self._untaken.pop(key, None) is not None:
                self._on_state()

    async def _tell_again(self) -> None:
        async for (key, uid), (change, _) in in_pieces(list(self._untaken.items())):
            found = self.store.get(key)
            now = found if found is not None and found.metadata.uid == uid else None
            if now is not None or change.old is not None:
                self._tell(change.old, now)
            else:
                del self._untaken[key, uid]
