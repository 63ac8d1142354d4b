"""/healthz, /readyz, /metrics and /log-level on a port of their own, so that probes and Prometheus need no certificate,
and pages of JSON that a program adds. A page is for requests from this very host, and for those with a token that may
read it.

Anybody who reaches the port may ask: it is served with the bounds of the webhooks (common/server/http_server.py), and
metrics are rendered once for all who ask (common/server/exposition.py).

Alive: the event loop turns. Ready: every named check says so, and the program is not stopping.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, unquote

from prometheus_client import REGISTRY, CollectorRegistry

from common.runtime import logs
from common.runtime.flags import Address
from common.server.connections import UNNAMED
from common.server.exposition import Exposition
from common.server.fair_queue import FairRate
from common.server.http_parser import Head, RefusedError, Request, Response
from common.server.http_server import HttpServer
from common.server.page_access import AUDIENCE, TOKEN_HEADER, PageAccess

log = logging.getLogger(__name__)

Check = Callable[[], str | None]  # why not ready, or None
Page = Callable[[str, Mapping[str, str]], bytes | None]
"""The path below its own, and the query, to JSON; None where there is nothing."""

Question = Callable[[bytes], Awaitable[bytes | None]]
"""What is sent to what is answered, both JSON; None where the question cannot be read."""

MayRead = Callable[[str, str, str], Awaitable[PageAccess]]
"""The page's path, the token, and the address that it comes from."""

_LOOPBACK = ("127.0.0.1", "::1")
_FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip")
_REFUSED = {
    PageAccess.UNAUTHENTICATED: f"a token for the audience {AUDIENCE} is needed, or a request from this host",
    PageAccess.FORBIDDEN: "the token may not get this path",
    PageAccess.NOT_KNOWN: "it cannot be checked now whether the token may get this path: ask again in a second",
}

MAX_BODY = 1024  # no request but a question needs one
MAX_QUESTION = 96 * 1024
PER_SECOND = 500  # requests of all who ask: the addresses take turns ...
METRICS_PER_SECOND = 50  # ... and those for metrics, each of which may be answered with megabytes
STOP_SECONDS = 1.0
BEAT_SECONDS = 1.0
BEAT_STALE_SECONDS = 10.0


class Health:
    """Collects the checks and answers for them. `stopping` makes the program not ready, whatever the checks say."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.stopping = False
        self.port = 0  # where it is served, once it is
        self.pages: dict[str, Page] = {}  # by the first part of the path
        self.questions: dict[str, Question] = {}  # to which something is sent, by the path
        self.may_read: MayRead = _nobody
        self.may_ask: MayRead = _nobody
        self._checks: dict[str, Check] = {}
        self._exposition = Exposition(registry)
        self._turns = FairRate(PER_SECOND, PER_SECOND)
        self._metrics_turns = FairRate(METRICS_PER_SECOND, METRICS_PER_SECOND)
        self._last_beat = time.monotonic()

    def add(self, name: str, check: Check) -> None:
        """A check of the same name is replaced. It must be quick and must not raise: it is called for every probe."""
        self._checks[name] = check

    def remove(self, name: str) -> None:
        self._checks.pop(name, None)

    def not_ready(self) -> dict[str, str]:
        """Every check that does not hold, with its reason. Empty: ready."""
        return {name: reason for name, reason in self._results().items() if reason is not None}

    @asynccontextmanager
    async def serve(self, address: Address) -> AsyncIterator[None]:
        """Raises OSError when the address cannot be had."""
        server = HttpServer(self._answer, max_body=MAX_QUESTION, identify=self._unnamed)
        await server.start(address.host or None, address.port, None)
        self.port = server.port
        beating = asyncio.create_task(self._beat(), name="health heartbeat")
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await server.stop(STOP_SECONDS)

    async def _beat(self) -> None:
        while True:
            self._last_beat = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    def _results(self) -> dict[str, str | None]:
        results = {"serving": "stopping" if self.stopping else None}
        results.update((name, check()) for name, check in self._checks.items())
        return results

    async def _answer(self, request: Request) -> Response:
        await self._turns.turn(request.address)
        name, _, rest = request.path.removeprefix("/").partition("/")
        if name == "log-level" and request.method == "PUT":
            return _set_log_level(request, rest)
        if request.method == "POST" and (question := self.questions.get(request.path.removeprefix("/"))) is not None:
            return await self._asked(question, request)
        if request.method not in ("GET", "HEAD"):
            return _text(405, "only GET is known here")
        if request.path == "/healthz":
            return self._healthz()
        if request.path == "/readyz":
            return self._readyz()
        if request.path == "/metrics":
            await self._metrics_turns.turn(request.address)
            content, content_type = await self._exposition.read(request.field("accept") or "")
            return Response(200, content, content_type)
        return await self._page(request, name, unquote(rest))

    def _healthz(self) -> Response:
        # While the loop hangs nobody answers at all and the probe times out; this catches a loop that limps.
        age = time.monotonic() - self._last_beat
        if age > BEAT_STALE_SECONDS:
            return _text(503, f"event loop: last turned {age:.1f}s ago")
        return _text(200, "ok")

    def _readyz(self) -> Response:
        results = self._results()
        lines = [f"[+] {name}" if reason is None else f"[-] {name}: {reason}" for name, reason in results.items()]
        ready = all(reason is None for reason in results.values())
        return _text(200 if ready else 503, "\n".join(lines))

    async def _page(self, request: Request, name: str, rest: str) -> Response:
        page = self.pages.get(name)
        if page is None:
            return _text(404, "not found")
        access = await self._access(self.may_read, f"/{name}", request)
        if access is not PageAccess.ALLOWED:
            return _text(access.value, _REFUSED[access])
        try:
            query = dict(parse_qsl(request.query, keep_blank_values=True, max_num_fields=16))
        except ValueError:
            return _text(400, "the query is malformed")
        content = page(rest, query)
        if content is None:
            return _text(404, "not found")
        return Response(200, content, "application/json; charset=utf-8")

    async def _asked(self, question: Question, request: Request) -> Response:
        access = await self._access(self.may_ask, request.path, request)
        if access is not PageAccess.ALLOWED:
            return _text(access.value, _REFUSED[access])
        content = await question(request.body)
        if content is None:
            return _text(400, "the question cannot be read")
        return Response(200, content, "application/json; charset=utf-8")

    def _unnamed(self, head: Head) -> str:
        """Raises RefusedError for what only a question may be as large as."""
        asks = head.method == "POST" and head.path.removeprefix("/") in self.questions
        if not asks and (head.length is None or head.length > MAX_BODY):
            raise RefusedError(413, f"the body is larger than {MAX_BODY} bytes, or comes in chunks")
        return UNNAMED

    async def _access(self, may: MayRead, path: str, request: Request) -> PageAccess:
        if _is_local(request):
            return PageAccess.ALLOWED
        scheme, _, token = (request.field("authorization") or "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.field(TOKEN_HEADER.lower()) or ""
        return await may(path, token, request.address) if token else PageAccess.UNAUTHENTICATED


def _set_log_level(request: Request, level: str) -> Response:
    if not _is_local(request):
        return _text(403, "only from this host, such as by kubectl port-forward")
    if level not in logs.LEVELS:
        return _text(400, f"no level: {', '.join(logs.LEVELS)}")
    logs.set_level(level)
    log.warning("log level changed", extra={"to": level})
    return _text(200, level)


def _text(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode())


async def _nobody(_path: str, _token: str, _address: str) -> PageAccess:
    return PageAccess.UNAUTHENTICATED


def _is_local(request: Request) -> bool:
    """Who is on this host, or came through `kubectl port-forward`. What a proxy passes on is not."""
    return request.address in _LOOPBACK and not any(header in request.fields for header in _FORWARDED)
