"""What clouds have said about their machine types: asked once, kept without limit of age, refreshed in the background.

A size does not change, so an old one is used while its cloud is down. A caller waits for an unknown size only until its
deadline. The request to the cloud goes on, and its answer serves the next caller. What other replicas have learned is
looked up first, in Redis if there is one, and for some tens of milliseconds at most.

User clusters share what was learned, and one request to a cloud where it serves several. Everything that has a bound
has it for each user cluster: the lookups under way, the places that are kept, the pause after a failure.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from seed.instance_types.catalogue import Known, ReportedSize, Shelves
from seed.instance_types.gate import Gates
from seed.instance_types.http_client import BoundedHttp, Transport
from seed.instance_types.sessions import Sessions
from seed.providers.flavour import ALL, AccountQuota, Catalogue, Cloud, CloudError, Place, Query, Settings
from seed.providers.size import CredentialsRejected, FlavourUnknown, NotSized, ProviderUnavailable

if TYPE_CHECKING:
    from seed.instance_types.redis_cache import SharedSizes

T = TypeVar("T")

log = logging.getLogger(__name__)

FRESH_SECONDS = 24 * 3600.0  # with a fifth of jitter either way
FETCH_SECONDS = 30.0  # for one question, however long its asker waits
MAX_FETCHES = 64  # of one asker; each has one request under way at a time, so connections have this bound, too
JOIN_SECONDS = 0.05  # after which a lookup of another asker is looked at again: does it still go well?
MAX_READINGS = 256
MAX_NAMED = 10  # entries that cannot be read, in one line of the log
SHARED_SECONDS = 0.05  # for which a lookup waits for what other replicas have learned
SHARED_LOOKS = 10  # within that time; a busy event loop takes longer, and gives Redis as many chances to answer


@dataclass(frozen=True, slots=True)
class Question:
    """One flavour that is asked for. `credentials` is called only when the cloud must be asked.

    `asker` is the user cluster: credentials and bounds are its own.
    """

    cloud: Cloud
    place: Place
    flavour: str
    where: Settings
    credentials: Callable[[], Awaitable[Settings]]
    asker: Hashable


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A question that is being asked, and the requests for it."""

    task: asyncio.Task[None]
    http: BoundedHttp

    @property
    def goes_well(self) -> bool:
        return not self.task.done() and not self.http.trouble


class _Reading(NamedTuple):
    """`task` may take its time; `patience` ends with it, or when nobody should wait for it any longer."""

    task: asyncio.Task[None]
    patience: asyncio.Task[None]


class FlavourCache:
    """Serves all user clusters of one replica. `close()` it, and with it the transport.

    `on_lookup(provider, result)`: hit, stale, shared, missing, fetched, unavailable. `on_fetch(provider, result,
    seconds)`: ok, refused, failed.
    """

    def __init__(
        self,
        transport: Transport,
        shared: SharedSizes | None = None,
        *,
        on_lookup: Callable[[str, str], None] = lambda _provider, _result: None,
        on_fetch: Callable[[str, str, float], None] = lambda _provider, _result, _seconds: None,
        fetch_seconds: float = FETCH_SECONDS,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._transport = transport
        self._shared = shared
        self._on_lookup = on_lookup
        self._on_fetch = on_fetch
        self._fetch_seconds = fetch_seconds
        self._fresh_seconds = fresh_seconds
        self._sessions = Sessions()
        self._shelves = Shelves()
        self._gates = Gates()
        self._fetches: dict[tuple[Place, str], dict[Hashable, _Fetch]] = {}  # by asker
        self._running: Counter[Hashable] = Counter()
        self._readings: dict[tuple[Place, str], _Reading] = {}

    def known(self, place: Place, flavour: str) -> Known | None:
        return self._shelves.known(place, flavour)

    def of_asker(self, asker: Hashable) -> Iterator[tuple[Place, Mapping[str, Known]]]:
        """Where this user cluster has machine types, and those that are known there. No cloud is asked."""
        return self._shelves.of_asker(asker)

    def keep(self, place: Place, asker: Hashable) -> None:
        """Also lists the types of this place for this user cluster. They were read for another one."""
        self._shelves.join(place, asker)

    async def find(self, question: Question, deadline: float) -> Known:
        """By `deadline`, on the event loop's clock.

        Raises NotSized where there is no such flavour, ProviderUnavailable with the cloud and why it cannot be known.
        """
        known = self.known(question.place, question.flavour)
        try:
            if known is None:
                self._known_missing(question)
                result = "shared"
                known = await self._recalled(question, deadline)
                if known is None:
                    result = "fetched"
                    known = await self._ask(question, deadline)
                self._on_lookup(question.place.provider, result)
                return known
        except NotSized:
            self._on_lookup(question.place.provider, "missing")
            raise
        except ProviderUnavailable:
            self._on_lookup(question.place.provider, "unavailable")
            raise
        self._shelves.used(question.place, question.asker)
        fresh = time.monotonic() < known.fresh_until
        if not fresh:
            self._refresh(question)
        self._on_lookup(question.place.provider, "hit" if fresh else "stale")
        return known

    async def prefetch(self, question: Question) -> None:
        """All that the place has, unless another replica asks for it or has done so lately; `question` is for ALL.

        Raises NotSized and ProviderUnavailable like `find`.
        """
        if self._shared is not None and not await self._shared.may_list(question.place):
            return
        fetch = self._own_fetch(question)
        await asyncio.wait({fetch.task})
        error = fetch.task.exception() if not fetch.task.cancelled() else asyncio.CancelledError()
        if error is not None:
            raise _for_caller(question.place, error)
        if self._shared is not None:
            await self._shared.list_again_after(question.place, self._fresh_seconds)

    async def account_quota(self, question: Question) -> AccountQuota:
        """What the cloud lets the account of these credentials have, asked now. A failure says nothing of machine
        types, so these are asked for all the same.

        Raises NotSized and ProviderUnavailable like `find`.
        """
        assert question.cloud.quota is not None, "the caller knows that this cloud tells it"
        self._gates.check(question.place, question.asker, time.monotonic())
        deadline = asyncio.get_running_loop().time() + self._fetch_seconds
        try:
            return await self._answer(question, question.cloud.quota, self._transport.within(deadline), deadline)
        except CloudError as error:
            raise _for_caller(question.place, error) from None

    async def share_again(self) -> None:
        """Tell the Redis all that is known here, if it has forgotten everything."""
        if self._shared is None or not self._shelves or not await self._shared.is_empty():
            return
        for place, flavours in self._shelves:
            sizes = {name: ReportedSize(known.flavour, known.as_of) for name, known in flavours.items()}
            self._shared.put(place, sizes, self._shelves.askers(place))

    def oldest(self) -> dict[str, float]:
        """The age in seconds of the oldest flavour that is kept, by provider."""
        return self._shelves.oldest(time.monotonic())

    async def close(self) -> None:
        tasks = [fetch.task for fetches in self._fetches.values() for fetch in fetches.values()]
        tasks += [task for reading in self._readings.values() for task in reading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._shared is not None:
            await self._shared.close()
        await self._transport.close()

    async def _recalled(self, question: Question, deadline: float) -> Known | None:
        """What another replica has learned, if that can be read at once."""
        key = (question.place, question.flavour)
        reading = self._readings.get(key)
        if reading is None:
            if self._shared is None or len(self._readings) >= MAX_READINGS:
                return None
            recall = self._recall(self._shared, question)
            task = asyncio.create_task(recall, name=f"recall {question.place}")
            reading = self._readings[key] = _Reading(task, asyncio.create_task(_patience(task)))
            task.add_done_callback(lambda _task: self._readings.pop(key))
        await asyncio.wait({reading.patience}, timeout=max(deadline - asyncio.get_running_loop().time(), 0))
        return self.known(question.place, question.flavour)

    async def _recall(self, shared: SharedSizes, question: Question) -> None:
        place, flavour = question.place, question.flavour
        reported = await shared.get(place, flavour)
        if reported is not None:
            # Our clock cannot tell how old it is, so it is asked for again at any time within the period.
            fresh = self._fresh_seconds * random.random()  # noqa: S311
            self._shelves.recall(
                place,
                flavour,
                reported.flavour,
                asker=question.asker,
                as_of=reported.as_of,
                now=time.monotonic(),
                fresh=fresh,
            )

    async def _ask(self, question: Question, deadline: float) -> Known:
        place = question.place
        loop = asyncio.get_running_loop()
        joined = self._of_others(question)
        while joined is not None and joined.goes_well and loop.time() < deadline:
            await asyncio.wait({joined.task}, timeout=min(JOIN_SECONDS, deadline - loop.time()))
        known = self.known(place, question.flavour)
        if known is not None:
            return known
        if joined is not None and joined.goes_well:
            raise ProviderUnavailable(str(place), "has not answered yet")
        fetch = self._own_fetch(question)
        await asyncio.wait({fetch.task}, timeout=max(deadline - loop.time(), 0))
        known = self.known(place, question.flavour)
        if known is not None:
            return known
        if not fetch.task.done():
            raise ProviderUnavailable(str(place), fetch.http.trouble or "has not answered yet")
        error = fetch.task.exception() if not fetch.task.cancelled() else asyncio.CancelledError()
        if error is None:
            self._known_missing(question)
            error = CloudError("answers what cannot be read")
        raise _for_caller(place, error)

    def _known_missing(self, question: Question) -> None:
        """Raises NotSized for a flavour that was asked for lately and does not exist or cannot be read."""
        place, name, now = question.place, question.flavour, time.monotonic()
        unreadable = self._shelves.unreadable(place, name, question.asker, now)
        if unreadable:
            raise NotSized(str(place), unreadable)
        if self._shelves.lacks(place, name, question.asker, now):
            raise FlavourUnknown(str(place), self._shelves.lacking(place, name))

    def _of_others(self, question: Question) -> _Fetch | None:
        """A lookup of the same by another user cluster. It is waited for only as long as it goes well, and its failure
        is no answer: the other's credentials may be wrong or throttled."""
        fetches = self._fetches.get(_key(question), {})
        if question.asker in fetches:
            return None
        return next((fetch for fetch in fetches.values() if fetch.goes_well), None)

    def _own_fetch(self, question: Question) -> _Fetch:
        """The asker's own, under way or new. Raises ProviderUnavailable where asking would do no good."""
        key, asker = _key(question), question.asker
        fetch = self._fetches.get(key, {}).get(asker)
        if fetch is not None:
            return fetch
        if self._running[asker] >= MAX_FETCHES:
            raise ProviderUnavailable(str(question.place), "must wait: too much is being asked for this user cluster")
        self._gates.check(question.place, asker, time.monotonic())
        deadline = asyncio.get_running_loop().time() + self._fetch_seconds
        http = self._transport.within(deadline)
        task = asyncio.create_task(self._fetch(question, http, deadline), name=f"fetch {question.place}")
        fetch = _Fetch(task, http)
        self._fetches.setdefault(key, {})[asker] = fetch
        self._running[asker] += 1
        task.add_done_callback(lambda _task: self._ended(key, asker))
        return fetch

    def _ended(self, key: tuple[Place, str], asker: Hashable) -> None:
        fetch = self._fetches[key].pop(asker)
        if not self._fetches[key]:
            del self._fetches[key]
        self._running[asker] -= 1
        if not self._running[asker]:
            del self._running[asker]
        if not fetch.task.cancelled():
            fetch.task.exception()  # each caller that waits gets it, and it is logged; none may wait

    def _refresh(self, question: Question) -> None:
        place, name, now = question.place, question.flavour, time.monotonic()
        if self._shelves.lacks(place, name, question.asker, now) or self._of_others(question) is not None:
            return  # the cloud has dropped it, and was asked just now; or it is being asked
        if self._shelves.unreadable(place, name, question.asker, now):
            return
        try:
            self._own_fetch(question)
        except ProviderUnavailable:
            return  # what is known serves on

    async def _fetch(self, question: Question, http: BoundedHttp, deadline: float) -> None:
        """Raises NotSized and CloudError. Their words go to users, so only ours are let through."""
        place = question.place
        started = time.monotonic()
        result = "failed"
        try:
            catalogue = await self._answer(question, question.cloud.fetch, http, deadline)
            result = "ok"
        except CloudError as error:
            result = "refused" if error.refused else "failed"
            self._gates.failed(place, question.asker, error, time.monotonic())
            log.warning("cloud not asked", extra={**_facts(question), "error": str(error), "refused": error.refused})
            raise
        except (NotSized, ProviderUnavailable):
            result = "refused"
            raise
        except Exception as error:
            log.exception("fetch failed", extra=_facts(question))
            unreadable = CloudError("answers what cannot be read")
            self._gates.failed(place, question.asker, unreadable, time.monotonic())
            raise unreadable from error
        finally:
            self._on_fetch(place.provider, result, time.monotonic() - started)
        self._gates.answered(place, question.asker)
        self._learn(question, catalogue)

    async def _answer(
        self, question: Question, ask: Callable[[Query], Awaitable[T]], http: BoundedHttp, deadline: float
    ) -> T:
        try:
            async with asyncio.timeout_at(deadline):
                credentials = await question.credentials()
                signing = self._sessions.of(question.asker, question.place, credentials)
                query = Query(question.place, question.flavour, question.where, credentials, http, signing.sign_in)
                while True:
                    try:
                        return await ask(query)
                    except CloudError as error:
                        if not (error.refused and signing.forget_old()):
                            raise
        except TimeoutError:
            raise CloudError(f"did not answer within {self._fetch_seconds:g} s") from None

    def _learn(self, question: Question, catalogue: Catalogue) -> None:
        as_of = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 (so that not all is asked again at once)
        unreadable = self._shelves.learn(
            question.place,
            question.flavour,
            catalogue,
            asker=question.asker,
            all_of_it=question.cloud.lists or question.flavour == ALL,
            as_of=as_of,
            now=time.monotonic(),
            fresh=self._fresh_seconds * jitter,
        )
        if unreadable:
            named = "; ".join(f"{name}: {why}" for name, why in islice(unreadable.items(), MAX_NAMED))
            facts = {**_facts(question), "count": len(unreadable), "entries": named}
            log.warning("machine types without a size that can be read", extra=facts)
        if self._shared is not None:
            sizes = {name: ReportedSize(flavour, as_of) for name, flavour in catalogue.flavours.items()}
            self._shared.put(question.place, sizes, [question.asker])


async def _patience(reading: asyncio.Task[None]) -> None:
    for _ in range(SHARED_LOOKS):
        if (await asyncio.wait({reading}, timeout=SHARED_SECONDS / SHARED_LOOKS))[0]:
            return


def _key(question: Question) -> tuple[Place, str]:
    """What one lookup answers."""
    return question.place, ALL if question.cloud.lists else question.flavour


def _for_caller(place: Place, error: BaseException) -> Exception:
    """Made anew: one exception is not raised to many."""
    if isinstance(error, (NotSized, ProviderUnavailable)):
        return type(error)(error.provider, error.reason)
    if isinstance(error, CloudError):
        kind = CredentialsRejected if error.refused else ProviderUnavailable
        return kind(str(place), str(error))
    return ProviderUnavailable(str(place), "was not asked to the end")


def _facts(question: Question) -> dict[str, str]:
    return {"provider": question.place.provider, "place": str(question.place), "flavour": question.flavour}
