"""/healthz, /readyz, /metrics and /log-level on a port of their own, so that probes and Prometheus need no certificate,
and pages of JSON that a program adds. A page is for requests from this very host, and for those with a token that may
read it.

Alive: the event loop turns. Ready: every named check says so, and the program is not stopping.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum

from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from common.runtime import logs
from common.runtime.flags import Address

log = logging.getLogger(__name__)

Check = Callable[[], str | None]  # why not ready, or None
Page = Callable[[str, Mapping[str, str]], bytes | None]
"""The path below its own, and the query, to JSON; None where there is nothing."""


class PageAccess(Enum):
    """Whether a token may read a page, as an HTTP status."""

    ALLOWED = 200
    UNAUTHENTICATED = 401
    FORBIDDEN = 403
    NOT_KNOWN = 503


MayRead = Callable[[str, str], Awaitable[PageAccess]]
"""The page's path and the token."""

AUDIENCE = "seedquota"
"""Of the tokens: the port has no TLS, so one that is sent there must be worth nothing elsewhere."""

TOKEN_HEADER = "Seedquota-Token"  # noqa: S105 (its name)
"""For requests through an API server's proxy, which keeps the Authorization header for itself."""

_LOOPBACK = ("127.0.0.1", "::1")
_FORWARDED = ("Forwarded", "Via", "X-Forwarded-For", "X-Real-Ip")
_REFUSED = {
    PageAccess.UNAUTHENTICATED: f"a token for the audience {AUDIENCE} is needed, or a request from this host\n",
    PageAccess.FORBIDDEN: "the token may not get this path\n",
    PageAccess.NOT_KNOWN: "it cannot be checked now whether the token may get this path: ask again in a second\n",
}

BEAT_SECONDS = 1.0
BEAT_STALE_SECONDS = 10.0


class Health:
    """Collects the checks and answers for them. `stopping` makes the program not ready, whatever the checks say."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.stopping = False
        self.port = 0  # where it is served, once it is
        self.pages: dict[str, Page] = {}  # by the first part of the path
        self.may_read: MayRead = _nobody
        self._checks: dict[str, Check] = {}
        self._registry = registry
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
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.put("/log-level/{level}", _set_log_level),
                web.get("/{name}", self._page),
                web.get("/{name}/{rest}", self._page),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        beating = asyncio.create_task(self._beat(), name="health heartbeat")
        try:
            site = web.TCPSite(runner, address.host or None, address.port)
            await site.start()
            self.port = runner.addresses[0][1]
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await runner.cleanup()

    async def _beat(self) -> None:
        while True:
            self._last_beat = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    def _results(self) -> dict[str, str | None]:
        results = {"serving": "stopping" if self.stopping else None}
        results.update((name, check()) for name, check in self._checks.items())
        return results

    async def _healthz(self, _request: web.Request) -> web.Response:
        # While the loop hangs nobody answers at all and the probe times out; this catches a loop that limps.
        age = time.monotonic() - self._last_beat
        if age > BEAT_STALE_SECONDS:
            return web.Response(status=503, text=f"event loop: last turned {age:.1f}s ago\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        results = self._results()
        lines = [f"[+] {name}" if reason is None else f"[-] {name}: {reason}" for name, reason in results.items()]
        ready = all(reason is None for reason in results.values())
        return web.Response(status=200 if ready else 503, text="\n".join(lines) + "\n")

    async def _page(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        page = self.pages.get(name)
        if page is None:
            return web.Response(status=404, text="not found\n")
        access = PageAccess.ALLOWED if _is_local(request) else await self._access(f"/{name}", request)
        if access is not PageAccess.ALLOWED:
            return web.Response(status=access.value, text=_REFUSED[access])
        content = page(request.match_info.get("rest", ""), request.query)
        if content is None:
            return web.Response(status=404, text="not found\n")
        return web.Response(body=content, content_type="application/json")

    async def _access(self, path: str, request: web.Request) -> PageAccess:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.headers.get(TOKEN_HEADER, "")
        return await self.may_read(path, token) if token else PageAccess.UNAUTHENTICATED

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})


async def _set_log_level(request: web.Request) -> web.Response:
    level = request.match_info["level"]
    if not _is_local(request):
        return web.Response(status=403, text="only from this host, such as by kubectl port-forward\n")
    if level not in logs.LEVELS:
        return web.Response(status=400, text=f"no level: {', '.join(logs.LEVELS)}\n")
    logs.set_level(level)
    log.warning("log level changed", extra={"to": level})
    return web.Response(text=f"{level}\n")


async def _nobody(_path: str, _token: str) -> PageAccess:
    return PageAccess.UNAUTHENTICATED


def _is_local(request: web.Request) -> bool:
    """Who is on this host, or came through `kubectl port-forward`. What a proxy passes on is not."""
    return request.remote in _LOOPBACK and not any(header in request.headers for header in _FORWARDED)
