"""Who asks, and what they may: asked from the API server, kept for seconds, and never asked twice at a time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec
from aiohttp import web

from common.api.labels import GROUP, VERSION
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.runtime.lru import LruDict
from common.server.access_reviews import User, review_access, review_token
from common.server.fair_queue import FairPlaces
from master.apiserver.problem import ProblemError
from master.apiserver.reading import field

log = logging.getLogger(__name__)

KEPT_SECONDS = 10.0  # for so long a token that was revoked, or a right that was taken, may still be used
DENIED_SECONDS = 2.0  # ... one that was given is not used yet, or is not known to an API server that has just started
MAX_KEPT = 4096  # answers that say yes, and as many that say no: those who have no right do not push out others
MAX_ASKED = 16  # reviews of tokens at a time, for which addresses take turns; of rights as many, by user
PATIENCE = 10.0  # seconds for one's turn and the review

_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/=-]{1,8192})")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def bearer(request: web.BaseRequest) -> str | None:
    """The token of its Authorization, if there is one."""
    match = _BEARER.fullmatch(field(request, "Authorization"))
    return match[1] if match else None


def from_another_site(request: web.BaseRequest) -> bool:
    """Whether a browser sent it for a page of another site. It shows the user's certificate and cookies there, too."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2].lower() != field(request, "Host").lower()


def unauthenticated(detail: str) -> ProblemError:
    return ProblemError(401, detail, headers=(("WWW-Authenticate", "Bearer"),))


class Answers(Generic[K, V]):
    """Answers of the API server. One that is true and one that is not are kept apart. It is asked so much at a time;
    beyond that, the parties for which it is asked take turns."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._yes: LruDict[K, tuple[V, float]] = LruDict()
        self._no: LruDict[K, tuple[V, float]] = LruDict()
        self._asking: dict[K, asyncio.Future[V]] = {}
        self._reviewing: set[asyncio.Task[None]] = set()
        self._places = FairPlaces(MAX_ASKED)

    async def get(self, key: K, party: str, ask: Callable[[], Awaitable[V]]) -> V:
        """Raises ProblemError where it cannot be known now."""
        if (kept := self._kept(key)) is not None:  # nearly always: without a timer
            return kept[0]
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._get(key, party, ask)
        except TimeoutError:
            raise ProblemError(503, f"too many ask: {self._what} cannot be checked now") from None
        except ApiError as error:
            log.warning("not checked", extra={"what": self._what, "caller": party, "error": str(error)})
            raise ProblemError(503, f"{self._what} cannot be checked now") from None

    async def _get(self, key: K, party: str, ask: Callable[[], Awaitable[V]]) -> V:
        while (kept := self._kept(key)) is None:
            asking = self._asking.get(key) or await self._begin(key, party, ask)
            await asyncio.wait([asking])
            if not asking.cancelled():  # else who waited for a place has gone, and somebody else does
                return asking.result()
        return kept[0]

    def _kept(self, key: K) -> tuple[V, float] | None:
        for kept in (self._yes, self._no):
            found = kept.get(key)
            if found is not None and self._clock() < found[1]:
                return found
        return None

    async def _begin(self, key: K, party: str, ask: Callable[[], Awaitable[V]]) -> asyncio.Future[V]:
        asking = self._asking[key] = asyncio.get_running_loop().create_future()
        try:
            await self._places.take(party)
        except asyncio.CancelledError:
            del self._asking[key]
            asking.cancel()
            raise
        # A review that has begun keeps its place to its end, though who asked may go: the API server does its work.
        reviewing = asyncio.create_task(self._review(key, ask, asking), name=self._what)
        self._reviewing.add(reviewing)
        reviewing.add_done_callback(self._reviewing.discard)
        return asking

    async def _review(self, key: K, ask: Callable[[], Awaitable[V]], asking: asyncio.Future[V]) -> None:
        asked = self._clock()
        try:
            answer = await ask()
            kept, seconds = (self._yes, KEPT_SECONDS) if answer else (self._no, DENIED_SECONDS)
            kept.keep(key, (answer, asked + seconds), MAX_KEPT)
            asking.set_result(answer)
        except Exception as error:  # noqa: BLE001 (those who wait for it handle it)
            asking.set_exception(error)
            asking.exception()  # perhaps nobody does
        finally:
            del self._asking[key]
            asking.cancel()  # where the review was cancelled
            self._places.give_back()


class Identities:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._answers: Answers[bytes, User | None] = Answers("who the token is of")

    async def user(self, token: str, address: str) -> User:
        """`address`: where the request comes from. Raises ProblemError."""
        user = await self._answers.get(_digest(token), address, lambda: review_token(self._cluster, token))
        if user is None or not user.username:
            raise unauthenticated("the token is not valid for the API server of the master")
        return user


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """As RBAC has it. Without a namespace it is one for the whole cluster."""

    verb: str
    resource: str
    subresource: str = ""
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {what}.{GROUP}{f' {self.name}' if self.name else ''}"


LIST_QUOTAS = Right(verb="list", resource="resourcequotas")


class Rights:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._answers: Answers[tuple[bytes, Right], bool] = Answers("what the user may do")

    async def has(self, user: User, right: Right) -> bool:
        """Raises ProblemError."""
        key = hashlib.sha256(msgspec.json.encode(user)).digest(), right
        return await self._answers.get(key, user.username, lambda: self._review(user, right))

    async def _review(self, user: User, right: Right) -> bool:
        attributes = {name: value for name, value in msgspec.structs.asdict(right).items() if value}
        spec = {"resourceAttributes": {"group": GROUP, "version": VERSION, **attributes}}
        return await review_access(self._cluster, user, spec)

    async def require(self, user: User, right: Right) -> None:
        """Raises ProblemError, 403 without the right."""
        if not await self.has(user, right):
            raise ProblemError(403, f"you need the right: {right}")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
