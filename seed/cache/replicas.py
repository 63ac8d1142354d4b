"""Which replicas may admit, and up to which version each of them knows quotas (docs/reference/protocol.md, rule 4.11).

Each replica keeps a record: a Lease object of its own that names the resourceVersion up to which its watch of quotas
has come. Its leader reads the records. A quota is known by all when each record has come as far as the quota's copy. A
record that is not renewed does not count: its replica refuses everything, by its own clock, before that.

A record also says that its replica knows blocks (rule 4.15). The leader allows them for its term while all records say
so: the leader of a release that does not know them would report them to the master as reserved.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from common.api.labels import BLOCKS_ANNOTATION, KNOWS_BLOCKS_ANNOTATION
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Conflict, NotFound
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import LEASES, MICRO_TIME, LeaseObject, LeaseSpec
from common.quota import resources
from common.quota.resources import ResourceList
from seed.cache.quotas import QuotaCache
from seed.cache.watches import Watches
from seed.model.quota import Quota

FRESH = 25.0  # seconds: a watch that proves itself, one after it that falls silent, and a list (PROMPT_SECONDS, SILENT)
LAPSED = 30.0  # ... clocks run at different speeds, and what was decided in time is still to be answered
FORGOTTEN = 300.0  # ... until the record of a replica that is gone is deleted
RENEW = 8.0  # seconds between two writes of a record; two more attempts fit into FRESH
WRITE_TIMEOUT = 5.0
RETRY = 1.0
COALESCE = 0.2  # seconds between two writes of a record when many quotas come at once
LOOK_SOON = 0.1  # ... between two looks at the records while a quota waits for them, at first ...
LOOK_LATER = 1.0  # ... and at last
LOOK_EVERY = 10.0  # ... while none does: so it is known by then which replicas are gone

LABEL = "seedquota.io/replica"
VERSION_ANNOTATION = "seedquota.io/quotas-version"
UNREAD_ANNOTATION = "seedquota.io/quotas-unread"
MOST_UNREAD = 100  # quotas that a record names; with more, it says of none that it is known

log = logging.getLogger(__name__)


class Seen(msgspec.Struct, frozen=True):
    """A record as the leader knows it: `written` is its own resourceVersion, seen first `at` (monotonic). `unread`: the
    names of quotas that its replica does not know up to `version`, since it cannot read them."""

    version: str
    written: str
    at: float
    unread: frozenset[str] = frozenset()
    knows_blocks: bool = False


def reaches(received: str, version: str) -> bool:
    """Whether a replica that received changes up to `received` knows `version`, both of quotas on one API server."""
    numbers = [int(text) for text in (received, version) if text.isascii() and text.isdigit() and len(text) < 20]
    return numbers[0] >= numbers[1] if len(numbers) == 2 else received == version


def known_by_all(quota: Quota, records: Iterable[Seen], now: float) -> bool:
    """Whether every replica that may admit knows this copy of it. The leader is one of them, so there is a record."""
    alive = _alive(records, now)
    return bool(alive) and all(
        reaches(record.version, quota.version) and quota.name not in record.unread for record in alive
    )


def all_know_blocks(records: Iterable[Seen], now: float) -> bool:
    alive = _alive(records, now)
    return bool(alive) and all(record.knows_blocks for record in alive)


def _alive(records: Iterable[Seen], now: float) -> list[Seen]:
    return [record for record in records if now - record.at < LAPSED]


def blocks_allowed(lease: Mapping[str, str], term: int) -> bool:
    """Whether the leader of the term, which claimed the account, allows blocks. `lease`: annotations of the Lease."""
    return lease.get(BLOCKS_ANNOTATION) == str(term)


def record_name(lease: str, identity: str) -> str:
    """A valid name for every identity, another one for each."""
    name = re.sub(r"[^a-z0-9]+", "-", identity.lower()).strip("-")[:100]
    if name != identity:
        name = f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}".strip("-")
    return f"{lease}-replica-{name}"


class Record:
    """This replica's own. `run()` it from before the quotas are listed: `kept` is set once there is a record."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        lease: str,
        identity: str,
        quota_cache: QuotaCache,
        watches: Watches,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kept = asyncio.Event()
        self._cluster = cluster
        self._namespace = namespace
        self._lease = lease
        self._identity = identity
        self._name = record_name(lease, identity)
        self._quota_cache = quota_cache
        self._watches = watches
        self._clock = clock
        self._record: LeaseObject | None = None
        self._sent = float("-inf")  # before the last write that arrived was sent
        self._list = 0  # the number of the list of quotas that must be complete
        self._wake = asyncio.Event()
        self._error = ""

    def stale(self) -> str | None:
        """Why this replica may not know what limits whom, so that it must not admit. None: it knows."""
        silent = self._clock() - min(self._sent, self._watches.proven_at)
        if silent > FRESH:
            since = "yet" if silent == float("inf") else f"for {silent:.0f} s"
            return f"this replica has had no answer from the API server {since}"
        if self._quota_cache.quotas.lists_completed < self._list:
            return "this replica was out of reach and lists the quotas again"
        return None

    async def run(self) -> None:
        """Until cancelled. Then `remove()` it, once this replica answers nobody any more."""
        end = self._quota_cache.on_spec(lambda _name: self._wake.set())
        try:
            while True:
                self._wake.clear()
                pause = await self._keep()
                await asyncio.sleep(COALESCE)
                with suppress(TimeoutError):
                    if self._quota_cache.quotas.lists_completed < self._list:
                        await self._quota_cache.quotas.wait_listed(self._list, pause)
                    else:
                        async with asyncio.timeout(pause):
                            await self._wake.wait()
        finally:
            end()

    async def remove(self) -> None:
        if self._record is None:
            return
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._cluster.delete(LEASES, self._name, self._namespace)
        except (ApiError, TimeoutError) as error:
            log.info("record of this replica not removed", extra={"record": self._name, "error": str(error)})

    async def _keep(self) -> float:
        """Returns in how many seconds to write again."""
        sent, proven = self._clock(), self._watches.proven_at
        if self._quota_cache.quotas.synced.is_set() and sent - proven > FRESH:
            return RETRY  # it refuses everything: the leader need not wait until it knows a quota
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._write(self._quota_cache.quotas.version, self._quota_cache.unread)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {WRITE_TIMEOUT:g} s"
            if why != self._error:
                log.warning("record of this replica not written", extra={"record": self._name, "error": why})
            self._error = why
            return RETRY
        self._error = ""
        if self._clock() - self._sent > FRESH:
            # The leader may have done without this replica. What it took for known by all is in the list that begins
            # from here on, for it looks at the records after it has seen a quota.
            self._list = self._quota_cache.quotas.relist()
        self._sent = sent
        self.kept.set()
        return RENEW

    async def _write(self, version: str, unread: Collection[str]) -> None:
        said = {VERSION_ANNOTATION: version, UNREAD_ANNOTATION: ",".join(sorted(unread))}
        if len(unread) > MOST_UNREAD:
            said = {VERSION_ANNOTATION: "", UNREAD_ANNOTATION: ""}
        said[KNOWS_BLOCKS_ANNOTATION] = "true"
        while True:
            try:
                if self._record is None:
                    self._record = await self._cluster.get(LEASES, self._name, self._namespace)
                self._record = await self._cluster.replace(LEASES, self._body(self._record.metadata, said))
            except NotFound:
                self._record, self._sent = None, float("-inf")
                metadata = ObjectMeta(namespace=self._namespace, name=self._name)
                self._record = await self._cluster.create(LEASES, self._body(metadata, said))
            except Conflict:  # an earlier write arrived although its answer did not
                self._record = None
                continue
            return

    def _body(self, metadata: ObjectMeta, said: Mapping[str, str]) -> LeaseObject:
        return LeaseObject(
            metadata=replace(
                metadata,
                labels={**metadata.labels, LABEL: self._lease},
                annotations={**metadata.annotations, **said},
            ),
            spec=LeaseSpec(
                holder_identity=self._identity,
                lease_duration_seconds=int(LAPSED),
                renew_time=datetime.now(UTC).strftime(MICRO_TIME),  # for people
            ),
        )


InForce = tuple[tuple[str, int], ResourceList]
"""Of a quota: the spec of its copy, and what is raised where that does not say it."""


def _in_force(quota: Quota) -> InForce:
    return quota.spec, quota.raised


class Replicas:
    """Which specs of quotas all replicas know. `run()` it while this one leads; `on_known(name)` tells of another, and
    `on_blocks` at each look whether all know blocks."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        lease: str,
        quota_cache: QuotaCache,
        on_known: Callable[[str], None],
        on_blocks: Callable[[bool], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._selector = f"{LABEL}={lease}"
        self._quota_cache = quota_cache
        self._on_known = on_known
        self._on_blocks = on_blocks
        self._clock = clock
        self._records: dict[str, Seen] = {}
        self._known: dict[str, InForce] = {}  # by the quota's name
        self._waiting: dict[str, Quota] = {}  # as they were when their spec was first seen
        self._wake = asyncio.Event()
        self._error = ""

    def in_force(self, quota: Quota) -> tuple[int, ResourceList]:
        """The generation of the copy that all replicas have, as far as is known, and what overrides have raised of its
        limits, where a replica may admit by that."""
        if self._known.get(quota.name) == _in_force(quota):
            return quota.generation, quota.raised
        return quota.published_generation or 0, resources.maximum(quota.published_raised, quota.raised)

    async def run(self) -> None:
        """Until cancelled."""
        end = self._quota_cache.on_spec(self._spec_changed)
        try:
            for quota in self._quota_cache.all_quotas():
                self._spec_changed(quota.name)
            pause = LOOK_SOON
            while True:
                self._wake.clear()
                await self._look()
                try:
                    async with asyncio.timeout(pause if self._waiting else LOOK_EVERY):
                        await self._wake.wait()
                    await asyncio.sleep(LOOK_SOON)  # the replicas write their records meanwhile
                    pause = LOOK_SOON
                except TimeoutError:
                    pause = min(pause * 2, LOOK_LATER)
        finally:
            end()

    def _spec_changed(self, name: str) -> None:
        quota = self._quota_cache.quota(name)
        waited = self._waiting.pop(name, None)
        known = self._known.pop(name, None)
        if quota is None:
            return
        said = quota.published_generation == quota.generation and quota.published_raised == quota.raised
        first = known is None and waited is None
        if known == _in_force(quota) or (first and said):
            self._known[name] = _in_force(quota)
        else:
            self._waiting[name] = quota
            self._wake.set()

    async def _look(self) -> None:
        waiting = dict(self._waiting)  # who has no record yet lists after it has one, and finds these
        try:
            listing = await self._cluster.list(LEASES, self._namespace, label_selector=self._selector)
        except ApiError as error:
            if error.message != self._error:
                log.warning("records of replicas not read", extra={"error": error.message})
            self._error = error.message
            return
        self._error = ""
        now = self._clock()
        told = {
            each.metadata.name: (each.metadata.annotations, each.metadata.resource_version) for each in listing.items
        }
        # What cannot be read is of a replica of which nothing is known, until it must have noticed that itself.
        told |= {broken.metadata.name: ({}, broken.resource_version) for broken in listing.broken}
        self._records = {name: self._seen(name, said, written, now) for name, (said, written) in told.items()}
        self._on_blocks(all_know_blocks(self._records.values(), now))
        for name, quota in waiting.items():
            if self._waiting.get(name) is quota and known_by_all(quota, self._records.values(), now):
                del self._waiting[name]
                self._known[name] = _in_force(quota)
                self._on_known(name)
        await self._delete_forgotten(now)

    def _seen(self, name: str, said: Mapping[str, str], written: str, now: float) -> Seen:
        before = self._records.get(name)
        if before is not None and before.written == written:
            return before
        unread = frozenset(said.get(UNREAD_ANNOTATION, "").split(","))
        knows_blocks = said.get(KNOWS_BLOCKS_ANNOTATION) == "true"
        return Seen(said.get(VERSION_ANNOTATION, ""), written, now, unread, knows_blocks)

    async def _delete_forgotten(self, now: float) -> None:
        for name, record in self._records.items():
            if now - record.at < FORGOTTEN or not (name and record.written):
                continue
            with suppress(ApiError):  # it is looked at again
                await self._cluster.delete(LEASES, name, self._namespace, resource_version=record.written)
                log.info("record of a replica that is gone deleted", extra={"record": name})
