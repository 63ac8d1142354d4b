"""HTTP requests to one Kubernetes API server: connections, credentials, errors.

aiohttp carries. Nothing is retried here: who asks knows whether asking again is right.
"""

from __future__ import annotations

import time
from asyncio import Lock, Semaphore
from asyncio import timeout as timeout_after
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from common.kube.client.bounds import MAX_BODY, PAGES_AT_ONCE, SHARE, Room
from common.kube.client.errors import ApiError, BadAnswer, Malformed, TooLarge, Unavailable, api_error
from common.kube.client.kubeconfig import Access, InvalidKubeconfig
from common.kube.client.reach import RequestHook
from common.kube.client.tls import HandshakeTooLarge
from common.kube.client.transport import IDENTITY, Pace, RefusedAnswer, close_all, describe, new_session, read_body
from common.runtime import metrics

ONE_PIECE = 1024 * 1024  # bytes of a body that is sent in one piece
LEASE_CONNECTIONS = 4  # the lease, a replica's own record, the leader's look at all records, and one more
REFRESH_CREDENTIALS = 60.0  # seconds between looks at credentials that may expire
USER_AGENT = "seedquota"

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_UNLIMITED = aiohttp.ClientTimeout(total=None)
"""aiohttp's own `total` loses a cancellation that comes in the same round of the event loop as the end of the time.
Then whoever waits for the cancelled task, such as a leader that lost its lease, waits for ever."""


class Connection:
    """One API server, by HTTP. Made on a running event loop; `close()` it.

    `on_request(verb, plural, status, seconds)` is called after each request; status 0 means no answer. Every method
    raises ApiError; a message names the cluster and the operation.
    """

    def __init__(
        self,
        access: Access,
        *,
        name: str,
        timeout: float = 10.0,
        connections: int = 64,
        on_request: RequestHook | None = None,
        max_body: int = MAX_BODY,
        foreign: bool = False,
    ) -> None:
        """`max_body`: bytes of an answer, where a request does not say otherwise. `foreign`: others run it."""
        self.name = name
        self._max_body = max_body
        self.on_request = on_request
        self.timeout = timeout
        self._access = access
        # Watches hold their connections: with a pool of their own they cannot starve requests. And who renews a lease
        # must not wait behind a pile of other requests until it is lost.
        self._requests = new_session(access.tls, connections, access.hosts)
        self._watches = new_session(access.tls, connections, access.hosts)
        self._leases = new_session(access.tls, LEASE_CONNECTIONS, access.hosts)
        # First come, first served. In aiohttp's pool whoever asks while a connection returns passes all who wait.
        self._turns = Semaphore(connections)
        self._pages = Semaphore(PAGES_AT_ONCE)
        self._room = Room()
        self._pace = Pace(SHARE if foreign else 1.0)
        self._headers: dict[str, CIMultiDict[str]] = {}
        self._set_authorization(access.authorization)
        self._refresh_lock = Lock()
        self._refresh_at = time.monotonic() + REFRESH_CREDENTIALS
        self._rejected: str | None = None  # the header that got 401 last

    @property
    def access(self) -> Access:
        """For another connection to the same API server."""
        return self._access

    @property
    def server(self) -> str:
        return self._access.server

    def authorize(self, authorization: str | None) -> None:
        """From the next request on, with this Authorization header. Watches that are open go on."""
        self._access = replace(self._access, authorization=authorization)
        self._set_authorization(authorization)

    def refused(self, error: Malformed) -> Malformed:
        """The error, which is counted: what this API server answered is not taken."""
        metrics.api_answer_refused(self.name, error.wrong.value)
        return error

    def impersonate(self, user: str, groups: Sequence[str]) -> None:
        """From the next request on, as this user. The API server asks whether we may."""
        named = (("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups))
        self._access = replace(self._access, impersonated=named)
        self._set_authorization(self._access.authorization)

    async def close(self) -> None:
        await close_all([self._requests, self._leases, self._watches])

    async def _open(
        self, path: str, limits: aiohttp.ClientTimeout, plural: str, accept: str = JSON
    ) -> aiohttp.ClientResponse:
        what = f"watch {plural}"
        headers = await self._headers_for("", what)
        if accept != JSON:
            headers = headers.copy()
            headers["Accept"] = accept
        started = time.monotonic()
        status = 0
        try:
            async with timeout_after(self.timeout):
                response = await self._watches.get(
                    URL(self._access.server + path, encoded=True),
                    headers=headers,
                    timeout=limits,
                    allow_redirects=False,
                    server_hostname=self._access.tls_server_name,
                )
                status = response.status
                if status == 200:
                    return response
                async with response:
                    content = await read_body(response, MAX_BODY, self._room, what)
                    raise self._error(status, content, what, response)
        except TooLarge as error:
            raise self.refused(error) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(what, error, self.timeout) from None
        finally:
            if self.on_request is not None:
                self.on_request("watch", plural, status, time.monotonic() - started)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
        *,
        verb: str = "",
        plural: str = "",
        max_body: int | None = None,
        accept: str = JSON,
        more_headers: Mapping[str, str] = {},
        pool: aiohttp.ClientSession | None = None,
    ) -> bytes:
        """The bare request; `path` includes the query, already quoted. Returns the body of a 2xx answer.

        `timeout` is in seconds, for everything from a free connection to the last byte, and once more for the wait for
        that connection. `verb` and `plural` are for `on_request` and messages.
        """
        verb = verb or method.lower()
        headers = await self._headers_for(content_type if body is not None else "", verb)
        if accept != JSON or more_headers:
            headers = headers.copy()
            headers["Accept"] = accept
            headers.update(more_headers)
        limit = self.timeout if timeout is None else timeout
        started = time.monotonic()
        status = 0
        try:
            async with (
                self._connection(plural, limit, pool) as session,
                timeout_after(limit),
                session.request(
                    method,
                    URL(self._access.server + path, encoded=True),
                    data=BytesIO(body) if body is not None and len(body) > ONE_PIECE else body,
                    headers=headers,
                    timeout=_UNLIMITED,
                    allow_redirects=False,
                    server_hostname=self._access.tls_server_name,
                ) as response,
            ):
                what = f"cluster {self.name}: {verb} {path}"
                content = await read_body(response, max_body or self._max_body, self._room, what)
                status = response.status
        except TooLarge as error:
            if verb == "list":  # it may be asked for in smaller pages
                raise
            raise self.refused(error) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(f"{verb} {path}", error, limit) from None
        finally:
            if self.on_request is not None:
                self.on_request(verb, plural, status, time.monotonic() - started)
        if 200 <= status < 300:
            return content
        raise self._error(status, content, f"{verb} {path}", response)

    @asynccontextmanager
    async def _connection(
        self, plural: str, timeout: float, pool: aiohttp.ClientSession | None
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """The pool to ask, when one of its connections is free."""
        if pool is not None or plural == "leases":
            yield pool or self._leases
            return
        if self._turns.locked():
            async with timeout_after(timeout):
                await self._turns.acquire()
        else:
            await self._turns.acquire()
        try:
            yield self._requests
        finally:
            self._turns.release()

    def _set_authorization(self, authorization: str | None) -> None:
        common = CIMultiDict({"User-Agent": USER_AGENT, "Accept": JSON, **IDENTITY})
        if authorization is not None:
            common["Authorization"] = authorization
        common.extend(self._access.impersonated)
        self._headers = {"": common}
        for content_type in (JSON, MERGE_PATCH, APPLY_PATCH):
            self._headers[content_type] = common.copy()
            self._headers[content_type]["Content-Type"] = content_type

    async def _headers_for(self, content_type: str, what: str) -> CIMultiDict[str]:
        if self._requests.closed:
            raise Unavailable(0, "Unavailable", f"cluster {self.name}: {what}: this client is closed")
        if self._access.refresh is not None and time.monotonic() >= self._refresh_at:
            await self._refresh_credentials(self._access, what)
        return self._headers[content_type]

    async def _refresh_credentials(self, access: Access, what: str) -> None:
        async with self._refresh_lock:
            if access.refresh is None or time.monotonic() < self._refresh_at:
                return
            try:
                self._set_authorization(await access.refresh(self._rejected))
            except InvalidKubeconfig as error:
                raise Unavailable(0, "Unavailable", f"cluster {self.name}: {what}: {error}") from None
            self._refresh_at = time.monotonic() + REFRESH_CREDENTIALS

    def _error(self, status: int, content: bytes, what: str, response: aiohttp.ClientResponse) -> ApiError:
        if status == 401:
            self._refresh_at, self._rejected = 0.0, response.request_info.headers.get("Authorization")
        return api_error(status, content, f"cluster {self.name}: {what}", response.headers.get("Retry-After"))

    def _failed(self, what: str, error: Exception, timeout: float) -> ApiError:
        if isinstance(error, RefusedAnswer):
            why = f"cluster {self.name}: {what}: answer is refused: {error}"
            return self.refused(Malformed(200, "Malformed", why, wrong=error.wrong))
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, HandshakeTooLarge):
            metrics.api_answer_refused(self.name, BadAnswer.HANDSHAKE_TOO_LARGE.value)
        elif isinstance(error, aiohttp.ClientResponseError):  # it is no HTTP, or a line of its head is too long
            metrics.api_answer_refused(self.name, BadAnswer.MALFORMED.value)
        why = f"no answer within {timeout:g} s" if isinstance(error, TimeoutError) else describe(error)
        if not isinstance(error, aiohttp.ClientError | OSError):  # a host, a path or a header that somebody else wrote
            why = f"it cannot be asked for: {type(error).__name__}"
        if self._access.hosts is not None:
            why = self._access.hosts.told(error, f"{what}: {why}")
        return Unavailable(0, "Unavailable", f"cluster {self.name}: {what}: {why}")
