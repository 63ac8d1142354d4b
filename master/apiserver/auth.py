"""Who asks, and what they may: asked from the API server, kept for seconds, and never asked twice at a time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

import msgspec

from common.api.labels import GROUP, VERSION
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.runtime.lru import LruDict
from common.server.access_reviews import User, review_access, review_token
from common.server.http_parser import Head, Request
from master.apiserver.limits import ALL_AT_A_TIME
from master.apiserver.problem import ProblemError

log = logging.getLogger(__name__)

KEPT_SECONDS = 10.0  # for so long a token that was revoked, or a right that was taken, may still be used
DENIED_SECONDS = 2.0  # ... one that was given is not used yet, or is not known to an API server that has just started
MAX_KEPT = 4096  # answers that say yes, and as many that say no: those who have no right do not push out others
MAX_ASKED = 32  # reviews of tokens at a time; of rights, as many as requests, of which one user has a part
MAX_KNOWN = 4096  # tokens that were somebody's: their connections are counted by user

_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/=-]{1,8192})")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def bearer(request: Head | Request) -> str | None:
    """The token of its Authorization, if there is one."""
    match = _BEARER.fullmatch(request.field("authorization") or "")
    return match[1] if match else None


def from_another_site(request: Request) -> bool:
    """Whether a browser sent it for a page of another site. It shows the user's client certificate there, too."""
    site = request.field("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.field("origin")
    return origin is not None and origin.partition("://")[2].lower() != (request.field("host") or "").lower()


def unauthenticated(detail: str) -> ProblemError:
    return ProblemError(401, detail, headers=(("WWW-Authenticate", "Bearer"),))


class Answers(Generic[K, V]):
    """Answers of the API server. One that is true and one that is not are kept apart."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic, *, most: int = MAX_ASKED) -> None:
        """`most`: of what is asked at a time."""
        self._what = what
        self._most = most
        self._clock = clock
        self._yes: LruDict[K, tuple[V, float]] = LruDict()
        self._no: LruDict[K, tuple[V, float]] = LruDict()
        self._asking: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Raises ProblemError where it cannot be known now."""
        for kept in (self._yes, self._no):
            found = kept.get(key)
            if found is not None and self._clock() < found[1]:
                return found[0]
        task = self._asking.get(key)
        if task is None:
            if len(self._asking) >= self._most:
                raise ProblemError(503, f"too many ask: {self._what} cannot be checked now")
            task = self._asking[key] = asyncio.create_task(self._ask(key, ask()), name=self._what)
            task.add_done_callback(lambda done: self._asked(key, done))
        try:
            return await asyncio.shield(task)  # others may wait for it, too
        except ApiError as error:
            log.warning("not checked", extra={"what": self._what, "error": str(error)})
            raise ProblemError(503, f"{self._what} cannot be checked now") from None

    def _asked(self, key: K, done: asyncio.Task[V]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # everybody who waited for it may have gone

    async def _ask(self, key: K, asking: Coroutine[Any, Any, V]) -> V:
        asked = self._clock()
        answer = await asking
        kept, seconds = (self._yes, KEPT_SECONDS) if answer else (self._no, DENIED_SECONDS)
        kept.keep(key, (answer, asked + seconds), MAX_KEPT)
        return answer


class Identities:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._answers: Answers[bytes, User | None] = Answers("who the token is of")
        self._known: LruDict[bytes, str] = LruDict()

    def known(self, token: str) -> str | None:
        """Whose the token was when it was last reviewed: not a proof of who asks now."""
        return self._known.get(_digest(token))

    async def user(self, token: str) -> User:
        """Raises ProblemError."""
        digest = _digest(token)
        user = await self._answers.get(digest, lambda: review_token(self._cluster, token))
        if user is None or not user.username:
            self._known.pop(digest, None)
            raise unauthenticated("the token is not valid for the API server of the master")
        self._known.keep(digest, user.username, MAX_KNOWN)
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


class Rights:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._answers: Answers[tuple[bytes, Right], bool] = Answers("what the user may do", most=ALL_AT_A_TIME)

    async def has(self, user: User, right: Right) -> bool:
        """Raises ProblemError."""
        attributes = {
            "group": GROUP,
            "version": VERSION,
            **{name: value for name, value in msgspec.structs.asdict(right).items() if value},
        }
        key = hashlib.sha256(msgspec.json.encode(user)).digest(), right
        spec = {"resourceAttributes": attributes}
        return await self._answers.get(key, lambda: review_access(self._cluster, user, spec))

    async def require(self, user: User, right: Right) -> None:
        """Raises ProblemError, 403 without the right."""
        if not await self.has(user, right):
            raise ProblemError(403, f"you need the right: {right}")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
