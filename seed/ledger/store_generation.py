"""Which store keeps a seed's accounts, and which generation of it. Replicas must agree on this outside of the store.

A **store generation** is a time in which one store's memory was continuous: what was written in it is still there. Its
marker is the Lease object `seedquota-ledger` in the seed's API server. It has the store's kind, its **store run id**
(what the store says of itself and changes whenever it may have lost writes; always empty for the API server) and a
random name. Without a marker the API server keeps the accounts.

1. A replica writes only while it knows that its store is in force: a consistent read of the marker, begun less than
   two thirds of `lease_duration` ago by its own clock, said so. It looks again *after* each write, before it answers.
2. Only the replica that leads the seed changes the marker, and only after its own store has answered: because another
   kind of store was in force, or because the store run id is another than the marker's. It begins a new generation.
3. A new generation is settling at first. It is in force only after the leader that saw it begin has seen it unchanged
   for all of `lease_duration`: by then no replica acts on the generation before (rule 1; two thirds to one pays for
   clocks of unequal speed).
4. In a new generation every account begins a new life, fenced: a store hands out no account of an earlier generation
   but through `fencing.rebuild`, which the leader opens only after the in-flight window and a recount. Accounts in the
   API server are rebuilt one by one before a generation that ends or begins there (`fence_all`).

So two stores, or two servers that both believe to be the primary, never admit for one account at the same time: the
later one's accounts open only when the earlier one's writers have stopped and what they admitted has been counted.
Only leaders begin generations, so replicas that see different servers do not compete. While the configuration of the
replicas differs, the leader's counts, and the others refuse (503) until they are replaced.

Deleting the marker of another store than the API server makes its replicas stop, and the leader begin anew. If replicas
configured for the API server run at that moment, they find accounts that were fenced by rule 4.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from common.api.labels import BACKUP_LABEL, MANAGED_BY_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import LEASES, MICRO_TIME, LeaseObject, LeaseSpec
from common.quota import fencing
from common.quota.account import Account, AccountKey
from common.runtime.listeners import Listeners
from common.runtime.waiting import within
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import ConflictError, Store, Stored, StoreUnavailableError

log = logging.getLogger(__name__)

NAME = "seedquota-ledger"
API_SERVER = "apiserver"
REDIS = "redis"

STORE_ANNOTATION = "seedquota.io/store"
STORE_RUN_ID_ANNOTATION = "seedquota.io/reign"
STORE_GENERATION_ANNOTATION = "seedquota.io/tenure"
STATE_ANNOTATION = "seedquota.io/state"
SETTLING = "Settling"
IN_FORCE = "InForce"

PASSING = 120.0  # seconds
READ_WITHIN = 0.4  # of the lease's duration: a slow answer still confirms, a lost one leaves time for another
FENCE_ATTEMPTS = 20  # for one account that others write at the same time


class Marker(msgspec.Struct, frozen=True):
    store: str = API_SERVER
    run_id: str = ""
    generation: str = ""
    settled: bool = True


class Held(msgspec.Struct, frozen=True):
    """A generation that is in force. The store must still answer with this `run_id`."""

    generation: str
    run_id: str


def elapsing() -> float:
    """Seconds that also pass while the machine sleeps, where the system can tell: a confirmation ages then too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class StoreGeneration:
    """One replica's knowledge of the generation in force; `run` keeps it fresh."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        store: str,
        *,
        run_id: Callable[[], Awaitable[str]],
        fence: Callable[[], Awaitable[None]],
        leads: Callable[[], bool],
        lease_duration: float,
        clock: Callable[[], float] = elapsing,
    ) -> None:
        """`run_id` asks the store for its run id, or raises StoreUnavailableError. `fence` does `fence_all` to the API
        server's accounts. `lease_duration` is in seconds."""
        self._cluster = cluster
        self._namespace = namespace
        self._store = store
        self._run_id = run_id
        self._fence = fence
        self._leads = leads
        self._duration = lease_duration
        self._clock = clock
        self._marker: Marker | None = None
        self._since = 0.0  # when the marker was first seen as it is
        self._valid_until = 0.0
        self._wake = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._changed: Listeners[[]] = Listeners()
        self._passing_since: float | None = None
        self._problem: str | None = "the store generation is not known yet"

    def held(self) -> Held:
        """The generation in force, if it is this store's. Raises StoreUnavailableError."""
        if self._marker is None or self._clock() >= self._valid_until:
            raise StoreUnavailableError(
                self._problem or "the API server has not confirmed the store generation in time"
            )
        return Held(self._marker.generation, self._marker.run_id)

    async def wait(self) -> Held:
        """As `held`, but gives a generation the time to be settled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._duration * 2):
                while self._clock() >= self._valid_until:
                    self._confirmed.clear()
                    await self._confirmed.wait()
        return self.held()

    def not_ready(self) -> str | None:
        """Fits a check of /readyz. A problem that ends with a change of generation, or of all replicas'
        configuration, is given time: in a rollout new replicas must become ready before the old ones are ended."""
        since = self._passing_since
        return None if since is not None and self._clock() < since + PASSING else self._problem

    def look_again(self) -> None:
        """The store may have another run id by now."""
        self._wake.set()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls the listener when another generation is in force."""
        self._changed.add(listener)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = self._clock()
            try:
                await self._look()
            except (ApiError, TimeoutError) as error:
                self._note(
                    f"the store generation cannot be confirmed: {str(error) or 'no answer in time'}",
                    passes=False,
                )
            except StoreUnavailableError as error:
                self._note(str(error), passes=False)
            # Where the answer took long, the next look begins at once: what was confirmed is old already.
            await within(self._wake, max(self._duration / 8 - (self._clock() - began), 0.0))
            self._wake.clear()

    async def _look(self) -> None:
        sent = self._clock()
        found = await self._read()
        marker = read(found)
        if marker != self._marker:
            self._marker, self._since = marker, self._clock()
            self._valid_until = 0.0
        mine = marker.store == self._store
        if mine and marker.settled:
            self._confirm(sent)
        elif mine:
            self._note("a store generation has just begun: replicas that acted on the one before must stop first")
        else:
            self._note(f"the ledger is kept in {marker.store}, this replica is configured for {self._store}")
        run_id = await self._run_id()
        if mine and marker.settled and marker.run_id == run_id:
            self._problem = self._passing_since = None
        elif self._leads():
            await self._advance(found, marker, run_id)
        elif mine and marker.settled:
            self._note(
                "the ledger's redis restarted, failed over or was replaced: the leader begins a new store generation"
            )

    def _confirm(self, sent: float) -> None:
        news = self._valid_until == 0.0
        self._valid_until = sent + self._duration * 2 / 3
        self._confirmed.set()
        if news:
            self._changed.call()

    async def _advance(self, found: LeaseObject | None, marker: Marker, run_id: str) -> None:
        """As the leader: begin a generation, or settle the one that was begun."""
        if marker.store == self._store and marker.run_id == run_id:
            if not marker.settled and self._clock() >= self._since + self._duration:
                await self._write(found, msgspec.structs.replace(marker, settled=True))
                log.info(
                    "store generation is in force",
                    extra={"store": self._store, "generation": marker.generation},
                )
                self._wake.set()
            return
        if marker.store != self._store:
            await self._fence()
        began = Marker(self._store, run_id, secrets.token_hex(8), settled=False)
        await self._write(found, began)
        why = "another store was in force" if marker.store != self._store else "the store may have lost writes"
        log.warning(
            "new store generation begins",
            extra={"store": self._store, "generation": began.generation, "why": why},
        )

    async def _read(self) -> LeaseObject | None:
        try:
            async with asyncio.timeout(self._duration * READ_WITHIN):
                return await self._cluster.get(LEASES, NAME, self._namespace)
        except NotFound:
            return None

    async def _write(self, found: LeaseObject | None, marker: Marker) -> None:
        """Compare-and-set. If another write was first, the next look sees it."""
        now = datetime.now(UTC).strftime(MICRO_TIME)  # for people
        if found is None:
            found = LeaseObject(metadata=ObjectMeta(name=NAME, namespace=self._namespace))
        meta = msgspec.structs.replace(
            found.metadata,
            labels={**found.metadata.labels, MANAGED_BY_LABEL: "seedquota", BACKUP_LABEL: "true"},
            annotations={**found.metadata.annotations, **_annotations(marker)},
        )
        number = (found.spec.lease_transitions or 0) + (not marker.settled)
        spec = LeaseSpec(holder_identity=marker.store, acquire_time=now, lease_transitions=number)
        body = LeaseObject(metadata=meta, spec=spec)
        try:
            if found.metadata.uid:
                await self._cluster.replace(LEASES, body)
            else:
                await self._cluster.create(LEASES, body)
        except (Conflict, AlreadyExists):
            self._wake.set()

    def _note(self, problem: str, *, passes: bool = True) -> None:
        if not passes:
            self._passing_since = None
        elif self._passing_since is None:
            self._passing_since = self._clock()
        if problem != self._problem:
            log.warning("ledger is not ready", extra={"store": self._store, "problem": problem})
        self._problem = problem


def read(found: LeaseObject | None) -> Marker:
    if found is None:
        return Marker()
    annotations = found.metadata.annotations
    return Marker(
        store=annotations.get(STORE_ANNOTATION, "nobody knows where"),
        run_id=annotations.get(STORE_RUN_ID_ANNOTATION, ""),
        generation=annotations.get(STORE_GENERATION_ANNOTATION, ""),
        settled=annotations.get(STATE_ANNOTATION) == IN_FORCE,
    )


def _annotations(marker: Marker) -> dict[str, str]:
    return {
        STORE_ANNOTATION: marker.store,
        STORE_RUN_ID_ANNOTATION: marker.run_id,
        STORE_GENERATION_ANNOTATION: marker.generation,
        STATE_ANNOTATION: IN_FORCE if marker.settled else SETTLING,
    }


def new_life(account: Account) -> Account:
    """What an account of an earlier generation is in a new one: its counts as a start, fenced."""
    rebuilt = fencing.rebuild(account, secrets.token_hex(8), secrets.token_hex(8))
    return msgspec.structs.replace(rebuilt, sequence=account.sequence + 1)


async def fence_all(store: Store) -> None:
    """Begin a new life of every account in a store that was not, or soon will not be, in force."""
    for key in await store.keys():
        for _ in range(FENCE_ATTEMPTS):
            try:
                stored = await store.load(key)
                if stored is not None:
                    await store.save(key, new_life(stored.account), stored.version)
                break
            except MalformedLedgerError:
                await store.delete(key)
                break
            except ConflictError:
                continue
        else:
            raise StoreUnavailableError(f"{key.name}: others write it all the time")


class InForce:
    """A store that answers only while it is the one in force."""

    def __init__(self, store: Store, generation: StoreGeneration) -> None:
        self._store = store
        self._generation = generation

    async def load(self, key: AccountKey) -> Stored | None:
        self._generation.held()
        return await self._store.load(key)

    async def take(self, key: AccountKey) -> Stored | None:
        self._generation.held()
        return await self._store.take(key)

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        held = self._generation.held()
        version = await self._store.save(key, account, version)
        if self._generation.held() != held:
            raise StoreUnavailableError(f"{key.name}: another generation of the store began during the write")
        return version

    async def delete(self, key: AccountKey) -> None:
        self._generation.held()
        await self._store.delete(key)

    async def keys(self) -> list[AccountKey]:
        await self._generation.wait()
        return await self._store.keys()

    def subscribe(self, uid: str, on_change: Callable[[Stored | None], None]) -> Callable[[], None]:
        return self._store.subscribe(uid, on_change)
