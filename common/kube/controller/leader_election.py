"""One leader among several: a coordination.k8s.io/v1 Lease, understood by client-go's leader election as well.

Only the local monotonic clock decides. A holder's time is up for others when they saw its record unchanged for the
whole lease duration; the holder itself gives up earlier, counted from before its last successful renewal was sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.kube.client.meta import ObjectMeta
from common.kube.controller.lease_record import (
    LEASES,
    MICRO_TIME,
    SETTLED_ANNOTATION,
    SINCE_ANNOTATION,
    WRITES_ANNOTATION,
    LeaseObject,
    LeaseSpec,
    count_of,
    timestamp,
    writes_of,
)
from common.runtime.own_loop import OwnLoop, on

RELEASE_TIMEOUT = 5.0  # seconds
LOOK_EVERY = 0.3  # ... at another's record, so that a lease that is released is taken within a second

__all__ = ["LEASES", "MICRO_TIME", "SINCE_ANNOTATION", "WRITES_ANNOTATION", "Lease", "LeaseLost", "LeaseObject"]
__all__ += ["LeaseSpec", "Term"]

log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """The lease is held by another, or can no longer be shown to be ours."""


@dataclass(frozen=True, slots=True)
class Term:
    """One time of holding the lease. `number` (leaseTransitions) grows with every acquisition, by whomever. A holder
    that lost it to nobody, because it could not renew it in time, goes on with the number that it had.

    `previous_holder` is empty if the lease was released, or `created` now. `was_expired`: the previous holder
    was silent for the whole duration. Neither, with our own identity as previous holder: a predecessor of this process.
    `continuous`: from before the previous holder ended until now this process has watched the record, and it never went
    back. If not, nobody who is alive knows whether the cluster was restored from a backup meanwhile: a cold start.

    A cold start begins a run of terms; each continuous one goes on with it. `since` is the first term of the run, and
    `settled` is true once a holder in it has called `Lease.settle`: what was in doubt when it began may outlive the
    holder who began it.
    """

    number: int
    previous_holder: str
    was_expired: bool
    created: bool
    continuous: bool
    since: int
    settled: bool = False


class Lease:
    """Take it with `async with lease.hold() as term`, or with `acquire` and `release`.

    While it is held, `lost` is not set and `held` is true; who acts on it stops at once when `lost` is set. Every
    acquisition has a `lost` of its own: read the attribute after `acquire` has returned.

    `identity` must be unique among processes that run at the same time: a record with our identity is taken at once.
    All times are in seconds. `renew_deadline` is less than `duration`: that pays for clocks of unequal speed.

    `trusted` is the first term that this process has seen alive, its own or another's; None while it has seen none, or
    lost sight of the record for longer than the duration, or saw it go back to an older state.

    `seen` is the annotations of the record as it was read or written last, whoever holds it.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration: int = 15,
        renew_deadline: float = 10.0,
        retry: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        loop: OwnLoop | None = None,
    ) -> None:
        """`loop`: where the lease is kept, and `cluster` was made; None: where it is acquired."""
        if not identity:
            raise ValueError("a lease needs an identity")
        if not 0 < retry < renew_deadline < duration:
            raise ValueError("a lease needs 0 < retry < renew_deadline < duration")
        self.lost = asyncio.Event()
        self.error: str | None = None  # why the last attempt failed
        self.trusted: int | None = None
        self.seen: Mapping[str, str] = {}
        self.uid = ""  # of the object, once the lease was ours
        self.notes: dict[str, str] = {}  # annotations that the next renewal writes
        self._cluster = cluster
        self.namespace = namespace
        self.name = name
        self._identity = identity
        self._duration = duration
        self._renew_deadline = renew_deadline
        self._retry = retry
        self._clock = clock
        self._own_loop = loop
        self._observed: LeaseSpec | None = None  # another's record, and when we saw it change
        self._observed_at = 0.0
        self._looked_at = float("-inf")  # when the record was read or written last, by whomever it was ...
        self._writes = 0  # ... and its count of writes then
        self._record: LeaseObject | None = None  # ours, while held
        self._number = 0  # of the last term that was ours ...
        self._since = 0  # ... the first one of its run ...
        self._settled = False  # ... and whether its doubts are settled
        self._valid_until = 0.0
        self._renewal: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._facts = {"lease": f"{namespace}/{name}", "identity": identity, "cluster": cluster.name}

    @property
    def held(self) -> bool:
        return self._record is not None and not self.lost.is_set() and self._clock() < self._valid_until

    @property
    def annotations(self) -> Mapping[str, str]:
        """Of the record as the last renewal left it, also those of others; empty while it is not held."""
        return self._record.metadata.annotations if self._record is not None else {}

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Term]:
        term = await self.acquire()
        try:
            yield term
        finally:
            await self.release()

    async def acquire(self) -> Term:
        """Waits until the lease is ours, however long that takes. Raises RuntimeError if it is held already."""
        if self._renewal is not None:
            raise RuntimeError("the lease is held already; release it first")
        lost, home = asyncio.Event(), asyncio.get_running_loop()
        tell = lost.set if self._own_loop is None else partial(home.call_soon_threadsafe, lost.set)
        try:
            term = await on(self._own_loop, self._acquire(tell))
        except asyncio.CancelledError:
            self.lost = lost
            await self.release()  # it may have been acquired at that moment
            raise
        self.lost = lost
        return term

    async def _acquire(self, tell: Callable[[], object]) -> Term:
        """`tell` is called when the lease is lost."""
        while True:
            try:
                term = await self._try_acquire()
                self.error = None
            except ApiError as error:
                term = None
                self._note(error)
            if term is not None:
                log.info("lease acquired", extra={**self._facts, "term": term.number})
                self._renewal = asyncio.create_task(self._renew_until_lost(tell))
                return term
            pause = min(self._retry, LOOK_EVERY)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 (spread, not a secret)

    async def raise_term(self, above: int) -> int:
        """Makes the term greater than `above` and returns it. Raises LeaseLost, ApiError.

        For when the Lease object was deleted, so that numbers began again. For those who come after, it begins another
        run of terms.
        """
        return await on(self._own_loop, self._raise_term(above))

    async def _raise_term(self, above: int) -> int:
        async with self._writing:
            if self._record is None or not self.held:
                raise LeaseLost("the lease is not held")
            number = self._record.spec.lease_transitions or 0
            if number <= above:
                number = above + 1
                self._since, self._settled = number, False
                await self._renew(number)
            return number

    def settle(self) -> None:
        """Nothing that was in doubt when this run of terms began is so any more. Said with the next renewal."""
        self._settled = True

    async def release(self) -> None:
        """Stops renewing and, if the lease is still ours, lets the next one have it at once. Sets `lost`."""
        await on(self._own_loop, self._stop_renewing())
        still_ours, record = self.held, self._record
        self.lost.set()
        self._record = None
        self._observed = None
        if not still_ours or record is None:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await on(self._own_loop, self._let_go(record))
        except (ApiError, TimeoutError) as error:
            log.info("lease not released, it will expire", extra={**self._facts, "error": str(error)})
        else:
            log.info("lease released", extra=self._facts)

    async def _stop_renewing(self) -> None:
        renewal, self._renewal = self._renewal, None
        if renewal is not None:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _let_go(self, record: LeaseObject) -> None:
        ours = (record.spec.holder_identity, record.spec.lease_transitions)
        while (record.spec.holder_identity, record.spec.lease_transitions) == ours:
            now = timestamp(record.spec.renew_time)
            spec = replace(record.spec, holder_identity="", lease_duration_seconds=1, acquire_time=now, renew_time=now)
            try:
                await self._write(record, spec)
            except Conflict:  # the renewal that was cancelled got through
                record = await self._cluster.get(LEASES, self.name, self.namespace)
            else:
                return

    async def _try_acquire(self) -> Term | None:
        """None while another holds it. The first request is a read: the usual case is that another holds it."""
        try:
            found = await self._cluster.get(LEASES, self.name, self.namespace)
        except NotFound:
            return await self._create()
        spec = found.spec
        holder = spec.holder_identity or ""
        now = self._clock()
        self._look(found, now)
        if spec != self._observed:
            self._observed, self._observed_at = spec, now
        longest = max(self._duration, spec.lease_duration_seconds or 0)
        expired = now >= self._observed_at + longest
        if holder not in ("", self._identity) and not expired:
            return None
        transitions = spec.lease_transitions or 0
        resumed = holder == self._identity and transitions == self._number and self.trusted is not None
        number = transitions if resumed else transitions + 1
        continuous = self._join(found, number)
        try:
            mine = self._spec(spec, number, timestamp(spec.renew_time))
            self._accept(await self._write(found, mine), now)
        except Conflict:
            return None
        if not continuous:
            self.trusted = number
        return Term(
            number,
            holder,
            was_expired=expired and holder not in ("", self._identity),
            created=False,
            continuous=continuous,
            since=self._since,
            settled=self._settled,
        )

    async def _create(self) -> Term | None:
        sent = self._clock()
        annotations = {WRITES_ANNOTATION: "1", SINCE_ANNOTATION: "1"}
        meta = ObjectMeta(namespace=self.namespace, name=self.name, annotations=annotations)
        spec = self._spec(LeaseSpec(), 1, timestamp(None))
        try:
            created = await self._cluster.create(LEASES, LeaseObject(metadata=meta, spec=spec))
        except AlreadyExists:
            return None
        self._accept(created, sent)
        self.trusted, self._since, self._settled = 1, 1, False
        return Term(1, "", was_expired=False, created=True, continuous=False, since=1)

    def _look(self, found: LeaseObject, now: float) -> None:
        """Only a record that grows while we look at it proves that a holder lives and that nothing was restored."""
        writes = writes_of(found)
        if writes < self._writes or now - self._looked_at > self._duration:
            self.trusted = None
        elif writes > self._writes and self.trusted is None:
            self.trusted = found.spec.lease_transitions or 0
        self._looked_at, self._writes, self.seen = now, writes, found.metadata.annotations

    def _join(self, found: LeaseObject, number: int) -> bool:
        """Whether the term that is to begin goes on with the run of the record."""
        since = count_of(found, SINCE_ANNOTATION)
        continuous = self.trusted is not None and since > 0
        self._since = since if continuous else number
        self._settled = continuous and count_of(found, SETTLED_ANNOTATION) == since
        return continuous

    async def _write(self, record: LeaseObject, spec: LeaseSpec) -> LeaseObject:
        annotations = {
            **record.metadata.annotations,
            **self.notes,
            WRITES_ANNOTATION: str(writes_of(record) + 1),
            SINCE_ANNOTATION: str(self._since),
        }
        if self._settled:
            annotations[SETTLED_ANNOTATION] = str(self._since)
        metadata = replace(record.metadata, annotations=annotations)
        return await self._cluster.replace(LEASES, replace(record, metadata=metadata, spec=spec))

    def _spec(self, previous: LeaseSpec, number: int, acquire_time: str | None) -> LeaseSpec:
        return replace(
            previous,
            holder_identity=self._identity,
            lease_duration_seconds=self._duration,
            acquire_time=acquire_time,
            renew_time=timestamp(previous.renew_time),
            lease_transitions=number,
        )

    def _accept(self, record: LeaseObject, sent: float) -> None:
        self._record, self.uid = record, record.metadata.uid
        self._number = record.spec.lease_transitions or 0
        self._observed = None
        self._looked_at, self._writes, self.seen = sent, writes_of(record), record.metadata.annotations
        self._valid_until = sent + self._renew_deadline

    async def _renew_until_lost(self, tell: Callable[[], object]) -> None:
        """Returns when the lease is lost, and has told so."""
        reason = f"not renewed within {self._renew_deadline:g} s"
        pause = self._retry
        try:
            while (remaining := self._valid_until - self._clock()) > 0:
                await asyncio.sleep(min(pause, remaining))
                pause = self._retry
                if (remaining := self._valid_until - self._clock()) <= 0:
                    break
                try:
                    # half the time at most for one attempt: the next goes over another connection
                    async with asyncio.timeout(min(remaining, self._renew_deadline / 2)), self._writing:
                        await self._renew(None)
                    self.error = None
                except TimeoutError:
                    pause = 0.0  # it has waited long enough
                except ApiError as error:
                    self._note(error)
            reason = f"{reason}: {self.error}" if self.error else reason
        except LeaseLost as error:
            reason = str(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever it is, nobody may believe that renewal goes on
            log.exception("lease renewal failed", extra=self._facts)
            reason = f"{type(error).__name__}: {error}"
        log.warning("lease lost", extra={**self._facts, "error": reason})
        self._valid_until = float("-inf")  # at once, for whoever reads `held` on another loop
        tell()

    async def _renew(self, number: int | None) -> None:
        """One renewal, with the term changed to `number` if given. Raises LeaseLost, ApiError."""
        record = self._record
        if record is None:
            raise LeaseLost("the lease is not held")
        term = record.spec.lease_transitions or 0
        while True:
            sent = self._clock()
            spec = self._spec(record.spec, number or term, record.spec.acquire_time)
            try:
                self._accept(await self._write(record, spec), sent)
            except NotFound:
                raise LeaseLost("the Lease object is gone") from None
            except Conflict:
                # someone touched the object, or an earlier renewal of ours got through although its answer did not
                record = await self._cluster.get(LEASES, self.name, self.namespace)
            else:
                return
            older = writes_of(record) < self._writes
            if older:
                self.trusted = None
            if record.spec.holder_identity != self._identity:
                raise LeaseLost(f"held by {record.spec.holder_identity or 'nobody'}")
            if record.spec.lease_transitions not in (term, number):
                raise LeaseLost("another process took it under our identity")
            if older:
                raise LeaseLost("the record is older than what was written: the cluster was restored")

    def _note(self, error: ApiError) -> None:
        if error.message != self.error:
            level = logging.INFO if isinstance(error, Conflict) else logging.WARNING
            log.log(level, "lease not reached", extra={**self._facts, "error": error.message})
        self.error = error.message
