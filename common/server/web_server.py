"""An application of aiohttp.web, with the bounds that aiohttp's server does not have: how many connections there are,
of one address and of one user, how long a head may take to come, how much is held of what came, and how fast an answer
is taken. Routing, parsing and writing are aiohttp's.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http import RawRequestMessage
from yarl import URL

from common.server import tcp_server
from common.server.http_parser import RefusedError, Response, render
from common.server.tcp_server import BUSY, NEVER, Served, TcpServer

log = logging.getLogger(__name__)

MAX_HEAD = 16 * 1024
MAX_FIELDS = 64
READ_BUFFER = 32 * 1024  # of a body that nobody has read yet, twice as much is taken from a connection
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
_LARGE = Response(431, f"the head is larger than {MAX_HEAD} bytes\n".encode())

Refusal = Callable[[int, str], web.Response]


class WebServer(TcpServer):
    """`refusal` words the answer to what aiohttp does not understand, and what fails outside of all handlers.
    `prefix`: a path below which the application is reached, such as "/quota". It is taken off before anything else
    reads the path. Paths without it mean the same, for callers inside and for proxies that take it off themselves."""

    def __init__(
        self,
        app: web.Application,
        refusal: Refusal,
        stopping: Callable[[], bool] = lambda: False,
        *,
        prefix: str = "",
    ) -> None:
        super().__init__(stopping)
        self.refusal = refusal
        self._prefix = prefix
        self._runner = web.AppRunner(app, handler_cancellation=True)
        app.middlewares.insert(0, _watched)

    async def start(self, host: str | None, port: int, tls: ssl.SSLContext | None) -> None:
        """Raises OSError when the address cannot be had."""
        await self._runner.setup()
        if self._prefix and (server := self._runner.server) is not None:
            make = server.request_factory

            def below(message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
                return make(without_prefix(message, self._prefix), *rest)

            server.request_factory = below
        await super().start(host, port, tls)

    async def stop(self, timeout: float) -> None:
        """What has begun to come has `timeout` seconds to be answered."""
        await super().stop(timeout)
        await self._runner.cleanup()

    def serve(self, address: str, accepted: socket.socket) -> Served:
        manager = self._runner.server
        assert manager is not None, "it is started"
        return _Connection(self, manager, address, accepted)


class _Connection(Served, web.RequestHandler):
    def __init__(self, server: WebServer, manager: web.Server, address: str, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        web.RequestHandler.__init__(
            self,
            manager,
            loop=loop,
            keepalive_timeout=2 * tcp_server.IDLE_SECONDS,  # `due` says before when a connection ends
            access_log=None,  # type: ignore[arg-type]
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            max_headers=MAX_FIELDS,
            lingering_time=tcp_server.DRAIN_SECONDS,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
        )
        Served.__init__(self, server, address, accepted)
        self._serving = server
        self._shown = b""  # the caller's certificate
        self._answering = False
        self._draining = False  # what comes is not looked at
        self._refused = False  # its caller has no place here

    @property
    def answering(self) -> bool:
        return self._answering

    @property
    def certificate(self) -> bytes:
        """The caller's, which the handshake verified, as DER."""
        return b"" if self.outdated else self._shown

    def name(self, caller: str) -> None:
        """Raises RefusedError. Then the connection ends with the answer: it is counted nowhere."""
        try:
            super().name(caller)
        except RefusedError:
            self._refused = True
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.tls is not None and self.tls.verify_mode != ssl.CERT_NONE:
            self._shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""

    def connection_lost(self, error: BaseException | None) -> None:
        Served.connection_lost(self, error)
        web.RequestHandler.connection_lost(self, error)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._draining:
            web.RequestHandler.data_received(self, data)
            return
        self._hold(self._held + len(data))
        if self.holds_too_much():
            self.refuse(BUSY)
            return
        if data and not self._answering and not self._reading:
            self._reading = True
            if self.caller is not None:
                self.due = self._loop.time() + tcp_server.READ_SECONDS
        web.RequestHandler.data_received(self, data)
        if self._messages:  # whoever answers bounds how long that takes
            self._answering, self._reading, self.due = True, False, NEVER
        elif not self._answering and self._held > MAX_HEAD:
            self.refuse(_LARGE)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.due = NEVER if self._answering else self._loop.time() + tcp_server.IDLE_SECONDS

    def answered(self, *, whole: bool) -> bool:
        """Whether another request may follow on this connection. `whole`: all of this one has come."""
        self._draining = not whole  # for `lingering_time`, so that the answer is read
        if not self._messages:  # else what is held is of requests that came with this one
            self._answering = False
            self.due = self._loop.time() + (tcp_server.WRITE_SECONDS if self._blocked else tcp_server.IDLE_SECONDS)
            self._hold(0)
        return whole and not (self._refused or self._server.stopping or self.outdated)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """As aiohttp's, but that nobody fills the log with what is no request."""
        if status >= 500:
            log.error("request failed", exc_info=exc, extra={"caller": self._party})
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        response = self._serving.refusal(status, (message or "").partition("\n")[0].rstrip(":") or "malformed")
        response.force_close()
        return response

    def refuse(self, response: Response) -> None:
        """In the middle of an answer there is nothing to be said."""
        if self._answering or self._blocked:
            self.abort()
            return
        self._made.write(render(response, last=True))
        self._end()


def without_prefix(message: RawRequestMessage, prefix: str) -> RawRequestMessage:
    """The same where its path is not below the prefix."""
    path = message.path
    rest = path.removeprefix(prefix)
    if rest == path or rest[:1] not in ("", "/", "?"):
        return message
    rest = rest if rest.startswith("/") else f"/{rest}"
    raw_path, _, query = rest.partition("?")
    return message._replace(path=rest, url=URL.build(path=raw_path, query_string=query, encoded=True))


def connection_of(request: web.BaseRequest) -> _Connection:
    connection = request.protocol
    assert isinstance(connection, _Connection), "it is served by WebServer"
    return connection


async def read_body(request: web.Request, most: int) -> bytes:
    """Raises RefusedError. The caller is asked for it only now, where it waits for that."""
    length = request.content_length
    if length is not None and length > most:
        raise RefusedError(413, f"the body is larger than {most} bytes")
    expects = request.headers.get("Expect", "").lower()
    if expects not in ("", "100-continue"):
        raise RefusedError(417, "nothing but 100-continue can be expected")
    if expects and request.can_read_body:
        await request.writer.write(_GO_ON)
        request.writer.output_size = 0  # the answer has not begun
    connection, body = connection_of(request), bytearray()
    try:
        async with asyncio.timeout(tcp_server.READ_SECONDS):
            async for part in request.content.iter_any():
                body += part
                if len(body) > most:
                    raise RefusedError(413, f"the body is larger than {most} bytes")
                if connection.holds_too_much():
                    raise RefusedError(503, "too much is waiting here")
    except TimeoutError:
        raise RefusedError(408, "the request did not come in time") from None
    except web.RequestPayloadError as error:
        raise RefusedError(400, f"the body is malformed: {error}") from None
    return bytes(body)


async def ask_later(_request: web.Request) -> None:
    """What routes do with Expect: `read_body` asks for the body, when it is known who sends it."""


@web.middleware
async def _watched(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        response = await handler(request)
    finally:
        goes_on = connection_of(request).answered(whole=request.content.is_eof())
    if not goes_on and not response.prepared:
        response.force_close()
    return response
