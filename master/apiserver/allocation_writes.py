"""Creates Allocations so that a request can be sent again, and several all or not at all.

The webhook is asked about every Allocation by the API server, not from here; that it is asked is proven by dry runs. An
Allocation names in an annotation the request that created it. Whoever finds it there already and answers so removes the
annotation first: then the request that created it cannot undo it, for it deletes only what nobody has changed since.

The webhook is asked before the API server looks whether an Allocation is there. So two requests for the same would
take from each other what there is room for once. In one replica the second waits until the first has ended. In several,
each makes the first of its Allocations alone: who finds it waits until the other has made the rest, or has undone it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import msgspec

from common.api.types import ALLOCATIONS, AllocatedResource, Allocation, AllocationSpec
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.runtime.lru import LruDict
from master.apiserver import allocation_types as types
from master.apiserver.allocation_refusals import problem_of
from master.apiserver.allocation_types import NewAllocation
from master.apiserver.problem import ProblemError
from master.apiserver.serializers import MAX_TYPES
from master.apiserver.visibility import namespace_of
from master.cache.allocations import AllocationCache

log = logging.getLogger(__name__)

TRIES = 8  # writes by compare-and-set
AT_ONCE = 8  # allocations of one request that are read at a time ...
MADE_AT_ONCE = 16  # ... and that are created
PROVEN_SECONDS = 2.0  # for so long it is taken as proven that the webhook is asked
MAX_PROVEN = 4096  # namespaces
ARRIVAL_SECONDS = 2.0  # until the watch delivers what was created
IN_FLIGHT_SECONDS = 0.25  # from what the webhook admits until it is there
OTHERS_SECONDS = 3.0  # for so long a request waits for the same in another replica, which may have ended
LOOK_SECONDS = 0.1
NEVER = "seedquota.io/never"  # a type that no catalogue has
DENIED = 'admission webhook "allocations.seedquota.io" denied the request'


class _Request(msgspec.Struct, frozen=True):
    """`same`: what requests for the same have in common. `id`: begins with it, and no two have the same. `until`: how
    long it waits for others."""

    same: str
    id: str
    namespace: str
    names: Sequence[str]
    until: float


class _Turn:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class AllocationWrites:
    """Each method raises ProblemError. `subject_of`: what a quota limits, by the quota's name."""

    def __init__(self, cluster: Cluster, allocations: AllocationCache, subject_of: Callable[[str], str]) -> None:
        self._cluster = cluster
        self._allocations = allocations
        self._subject_of = subject_of
        self._proven: LruDict[str, float] = LruDict()
        self._proving: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, _Turn] = {}  # by Allocation, of the requests that are answered now

    async def prove(self, organization: str) -> None:
        """That the webhook is asked about the organization's Allocations: it must refuse one. Requests that come at one
        time ask once."""
        namespace = namespace_of(organization)
        proven = self._proven.get(namespace)
        if proven is not None and time.monotonic() - proven <= PROVEN_SECONDS:
            return
        task = self._proving.get(namespace)
        if task is None:
            task = self._proving[namespace] = asyncio.create_task(self._prove(organization), name="proof")
            task.add_done_callback(lambda done: self._proved(namespace, done))
        await asyncio.shield(task)  # others may wait for it, too

    def _proved(self, namespace: str, done: asyncio.Task[None]) -> None:
        del self._proving[namespace]
        if not done.cancelled():
            done.exception()  # everybody who waited for it may have gone

    async def _prove(self, organization: str) -> None:
        namespace, began = namespace_of(organization), time.monotonic()
        never = AllocatedResource(type=NEVER, committed=1)
        spec = AllocationSpec(organization=organization, project=organization, kind="proof", id="1", resources=[never])
        try:
            await self._dry_run(spec)
        except ApiError as error:
            if DENIED not in error.message:
                raise self._problem(error, "") from None
            self._proven.keep(namespace, began, MAX_PROVEN)
            return
        detail = "no Seed with inCluster admits Allocations on the master; see docs/how-to/allocations.md"
        raise ProblemError(503, detail)

    async def create(
        self, wanted: Sequence[NewAllocation], user: str
    ) -> tuple[dict[str, Allocation], list[NewAllocation]]:
        """All that are there then, by name, and which of them this call has made."""
        async with self._turn(wanted):
            return await self._create(wanted, _request(wanted), user)

    @asynccontextmanager
    async def _turn(self, wanted: Sequence[NewAllocation]) -> AsyncIterator[None]:
        """Taken in the order of names, so that no two wait for each other."""
        async with AsyncExitStack() as turns:
            for key in sorted(f"{each.spec.organization}/{each.name}" for each in wanted):
                await turns.enter_async_context(self._turn_of(key))
            yield

    @asynccontextmanager
    async def _turn_of(self, key: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]

    async def _create(
        self, wanted: Sequence[NewAllocation], request: _Request, user: str
    ) -> tuple[dict[str, Allocation], list[NewAllocation]]:
        there = await self._there(wanted, lambda each: self._found_early(each, request))
        new = [each for each in wanted if each.name not in there]
        if len(new) > 1:
            try:
                await self._ask_together(new)
            except ProblemError:  # some may be there that the cache does not show yet
                await self._found_soon(new[0], request)
                late = await self._there(new, lambda each: self._found(each, request))
                if not late:
                    raise
                there |= late
                new = [each for each in new if each.name not in late]
        found, failed = await self._make_all(new, user, request)
        made = {
            name: each
            for name, each in found.items()
            if each.metadata.annotations.get(types.REQUEST_ANNOTATION) == request.id
        }
        if failed is not None:
            raise await self._undone(failed, made.values())
        return there | found, [each for each in new if each.name in made]

    async def _make_all(
        self, new: Sequence[NewAllocation], user: str, request: _Request
    ) -> tuple[dict[str, Allocation], BaseException | None]:
        """What is there then, by name, and why not all: after one has failed no other is begun."""
        found: dict[str, Allocation] = {}
        left = list(reversed(new))

        async def work(most: int) -> None:
            try:
                for _ in range(most):
                    if left:
                        each = left.pop()
                        found[each.name] = await self._make(each, user, request)
            except BaseException:
                left.clear()
                raise

        failed: BaseException | None = None
        for workers, most in ((1, 1), (MADE_AT_ONCE, len(new))):
            ends = await asyncio.gather(*(work(most) for _ in new[:workers]), return_exceptions=True)
            failed = failed or next((end for end in ends if end is not None), None)
        return found, failed

    async def change(self, found: Allocation, resources: Sequence[AllocatedResource], display_name: str) -> Allocation:
        """Raises Conflict and NotFound, too, where it is not as it was found."""
        patch = {
            "metadata": {
                "resourceVersion": found.metadata.resource_version,
                "annotations": {types.NAME_ANNOTATION: display_name, types.REQUEST_ANNOTATION: None},
            },
            "spec": {"resources": msgspec.to_builtins(resources)},
        }
        try:
            return await self._patch(found, patch)
        except (Conflict, NotFound) as error:
            if error.causes:
                raise self._problem(error, "") from None
            raise
        except ApiError as error:
            raise self._problem(error, "") from None

    async def delete(self, found: Allocation) -> None:
        """Raises ApiError: Conflict where it has changed."""
        metadata = found.metadata
        await self._cluster.delete(
            ALLOCATIONS,
            metadata.name,
            metadata.namespace,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
        )

    async def read(self, organization: str, name: str) -> Allocation | None:
        """From the API server: a cache may be behind. Raises ApiError."""
        try:
            return await self._cluster.get(ALLOCATIONS, name, namespace_of(organization))
        except NotFound:
            return None

    async def _there(
        self, wanted: Sequence[NewAllocation], find: Callable[[NewAllocation], Awaitable[Allocation | None]]
    ) -> dict[str, Allocation]:
        there = {}
        for begin in range(0, len(wanted), AT_ONCE):
            some = wanted[begin : begin + AT_ONCE]
            for each, found in zip(some, await asyncio.gather(*map(find, some)), strict=True):
                if found is not None:
                    there[each.name] = found
        return there

    async def _found_early(self, wanted: NewAllocation, request: _Request) -> Allocation | None:
        """What the cache does not show is not asked for: creating it will tell."""
        spec, namespace = wanted.spec, namespace_of(wanted.spec.organization)
        for each in self._allocations.of_thing(namespace, spec.kind, spec.id):
            other = each.metadata.name
            if other != wanted.name and await self.read(spec.organization, other) is not None:
                raise _taken(wanted, other)
        return await self._found(wanted, request) if self._allocations.get(namespace, wanted.name) is not None else None

    async def _found_soon(self, wanted: NewAllocation, request: _Request) -> Allocation | None:
        """What takes the place may be the same, which another replica creates at this moment."""
        if (found := await self._found(wanted, request)) is not None:
            return found
        await asyncio.sleep(IN_FLIGHT_SECONDS)
        return await self._found(wanted, request)

    async def _found(self, wanted: NewAllocation, request: _Request) -> Allocation | None:
        """It is there by an earlier request, and that one cannot undo it any more."""
        conflicts = 0
        while conflicts < TRIES:
            found = await self.read(wanted.spec.organization, wanted.name)
            if found is None or found.metadata.deletion_timestamp is not None:
                return None
            if not wanted.is_there(found):
                detail = f"there is another allocation {wanted.name}"
                raise ProblemError(409, detail, code="id_conflict", existing=wanted.name)
            by = found.metadata.annotations.get(types.REQUEST_ANNOTATION)
            if by is None:
                return found
            if by.startswith(request.same) and not self._has_all(request) and time.monotonic() < request.until:
                await asyncio.sleep(LOOK_SECONDS)  # that one creates the rest, or undoes it
                continue
            version = found.metadata.resource_version
            patch = {"metadata": {"resourceVersion": version, "annotations": {types.REQUEST_ANNOTATION: None}}}
            try:
                return await self._patch(found, patch)
            except (Conflict, NotFound):
                conflicts += 1
        raise contended()

    def _has_all(self, request: _Request) -> bool:
        return all(self._allocations.get(request.namespace, name) is not None for name in request.names)

    async def _make(self, wanted: NewAllocation, user: str, request: _Request) -> Allocation:
        namespace = namespace_of(wanted.spec.organization)
        for _ in range(TRIES):
            arrival = self._allocations.expect(namespace, wanted.name)
            try:
                made = await self._cluster.create(ALLOCATIONS, wanted.body(user, request.id), namespace)
                await self._check_alone(made, wanted, arrival)
            except AlreadyExists:
                if (found := await self._found(wanted, request)) is not None:
                    return found
            except ApiError as error:
                # The webhook is asked before the API server looks whether it is there.
                if error.status == 403 and (found := await self._found_soon(wanted, request)) is not None:
                    return found
                raise self._problem(error, wanted.at) from None
            else:
                return made
            finally:
                self._allocations.expected(namespace, wanted.name, arrival)
        raise contended()

    async def _check_alone(
        self, made: Allocation, wanted: NewAllocation, arrival: asyncio.Future[tuple[str, str]]
    ) -> None:
        """Watches deliver Allocations to all replicas in one order. Of two for one thing the later one is deleted."""
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                uid, other = await arrival
        except TimeoutError:
            log.warning("the watch did not deliver what was created", extra={"allocation": made.metadata.key})
            return
        if uid != made.metadata.uid or not other:
            return
        with suppress(NotFound):
            await self.delete(made)
        raise _taken(wanted, other)

    async def _ask_together(self, new: Sequence[NewAllocation]) -> None:
        """Whether all of each project would be admitted: that names all that is short, and writes nothing."""
        by_project: dict[str, list[NewAllocation]] = {}
        for each in new:
            by_project.setdefault(each.spec.project, []).append(each)
        for some in by_project.values():
            sums = list(types.total(some).items())
            for begin in range(0, len(sums), MAX_TYPES):
                await self._ask_for(some[0], dict(sums[begin : begin + MAX_TYPES]))

    async def _ask_for(self, first: NewAllocation, sums: Mapping[str, AllocatedResource]) -> None:
        spec = msgspec.structs.replace(first.spec, id=str(uuid.uuid4()), resources=list(sums.values()))
        try:
            await self._dry_run(spec)
        except ApiError as error:
            raise problem_of(error, first.at, self._subject_of, list(sums)) from None

    async def _dry_run(self, spec: AllocationSpec) -> None:
        body = {"metadata": {"name": str(uuid.uuid4())}, "spec": types.spec_of(spec)}
        path = f"{ALLOCATIONS.path(namespace_of(spec.organization))}?dryRun=All"
        await self._cluster.request("POST", path, ALLOCATIONS.encode(body), verb="create", plural=ALLOCATIONS.plural)

    async def _undone(self, failed: BaseException, made: Iterable[Allocation]) -> BaseException:
        """Deletes what was made. Returns why, and what could not be deleted."""
        several = list(made)
        ends = await asyncio.gather(*(self.delete(each) for each in several), return_exceptions=True)
        left = [
            each.metadata.name
            for each, end in zip(several, ends, strict=True)
            if end is not None and not isinstance(end, NotFound)
        ]
        if left:
            log.warning("not undone", extra={"allocations": left})
            if isinstance(failed, ProblemError):
                failed.args = (f"{failed}; these are there and were not undone: {', '.join(left)}",)
        return failed

    async def _patch(self, found: Allocation, patch: Mapping[str, object]) -> Allocation:
        return await self._cluster.merge_patch(ALLOCATIONS, found.metadata.name, patch, found.metadata.namespace)

    def _problem(self, error: ApiError, at: str) -> ProblemError:
        return problem_of(error, at, self._subject_of)


def _request(wanted: Sequence[NewAllocation]) -> _Request:
    names = [each.name for each in wanted]
    same = hashlib.sha256("/".join(names).encode()).hexdigest()[:16]
    return _Request(
        same=same,
        id=f"{same}-{secrets.token_hex(8)}",
        namespace=namespace_of(wanted[0].spec.organization),
        names=names,
        until=time.monotonic() + OTHERS_SECONDS,
    )


def contended() -> ProblemError:
    return ProblemError(409, "others write the same allocation all the time", code="contended", retryable=True)


def _taken(wanted: NewAllocation, existing: str) -> ProblemError:
    detail = f"{wanted.spec.kind} {wanted.spec.id} has an allocation of another ID"
    return ProblemError(409, detail, code="already_allocated", existing=existing)
