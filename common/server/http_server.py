"""HTTP/1.1 over TLS for the webhook: small requests, answered in order, at half the cost of aiohttp's server.

Callers are API servers and whoever else reaches the port: connections, what is held of them, and how long anything
takes are bounded. What a request is, `common/server/http_parser.py` decides.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from common.runtime.waiting import within
from common.server.http_parser import CONTINUE, RefusedError, Request, RequestReader, Response, render

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 4096
BACKLOG = 1024  # connections that the kernel accepts ahead of us
MAX_HELD = 128 * 2**20  # bytes that came and are not answered yet, of all connections together
FAIR_SHARE = 32 * 1024  # of them; whoever holds no more is served even then
MAX_PIPELINED = 64 * 1024  # bytes taken from one connection while its request is being answered

HANDSHAKE_SECONDS = 10.0
READ_SECONDS = 30.0  # from the first byte of a request to its last
WRITE_SECONDS = 30.0  # until a caller takes what fills the connection's buffer
IDLE_SECONDS = 120.0  # API servers close their idle connections after 90: they, not we, so no request is lost
DRAIN_SECONDS = 2.0  # in which a refused caller may read why, though he goes on sending
CLOSE_SECONDS = 5.0
SWEEP_SECONDS = 1.0

Handler = Callable[[Request], Awaitable[Response]]

_FAILED = Response(500, b"the request failed here\n")
_SLOW = Response(408, b"the request did not come in time\n")
_BUSY = Response(503, b"too much is waiting here\n")
_NEVER = float("inf")


class HttpServer:
    """Answers by `handle`, which is cancelled when its caller goes away. While `stopping`, and once stopped, each
    answer ends its connection, so that callers find another replica.
    """

    def __init__(self, handle: Handler, *, max_body: int, stopping: Callable[[], bool] = lambda: False) -> None:
        self.handle = handle
        self.max_body = max_body
        self.port = 0  # where it listens, once it does
        self.held = 0
        self._connections: set[_Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._asked_to_stop = stopping
        self._stopped = False
        self._closed = False
        self._listener: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def stopping(self) -> bool:
        return self._stopped or self._asked_to_stop()

    async def start(self, host: str | None, port: int, tls: ssl.SSLContext | None) -> None:
        """Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: _Connection(self, loop),
            host,
            port,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if tls is not None else None,
            ssl_shutdown_timeout=CLOSE_SECONDS if tls is not None else None,
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep, loop)

    def end_soon(self) -> None:
        """Takes no more connections; those that are open learn from their next answer that they end."""
        self._stopped = True
        if self._listener is not None:
            self._listener.close()

    async def stop(self, timeout: float) -> None:
        """What has begun to come has `timeout` seconds to be answered."""
        self.end_soon()
        for connection in tuple(self._connections):
            connection.end_if_idle()
        await within(self._empty, timeout)
        self._closed = True
        for connection in tuple(self._connections):
            connection.abort()
        await within(self._empty, CLOSE_SECONDS)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def admit(self, connection: _Connection) -> bool:
        """Where there are too many, whoever has been idle for longest goes."""
        if self._closed:
            return False
        if len(self._connections) >= MAX_CONNECTIONS:
            idle = [other for other in self._connections if other.idle]
            if not idle:
                return False
            min(idle, key=lambda other: other.due).abort()
        self._connections.add(connection)
        self._empty.clear()
        return True

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: a timer for each request would cost more than reading its head."""
        now = loop.time()
        for connection in tuple(self._connections):
            if connection.due <= now:
                connection.expire()
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep, loop)


class _Connection(asyncio.Protocol):
    """One request at a time, in order. `due`: when what is being waited for must have come."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self.due = _NEVER
        self._server = server
        self._loop = loop
        self._reader = RequestReader(server.max_body)
        self._task: asyncio.Task[None] | None = None
        self._held = 0
        self._reading = False  # a request has begun to come
        self._full = False  # reading is paused
        self._blocked = False  # the caller does not read
        self._ended = False  # nothing is read or written any more

    @property
    def idle(self) -> bool:
        return self._task is None and not self._reading and not self._blocked and not self._ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._server.admit(self):
            self.due = self._loop.time() + IDLE_SECONDS
        else:
            self._ended = True
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = True
        self._server.forget(self)
        self._server.held -= self._held
        self._held = 0
        if self._task is not None:
            self._task.cancel()  # nobody can be told

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._reader.feed(data)
        self._held += len(data)
        self._server.held += len(data)
        if self._server.held > MAX_HELD and self._held > FAIR_SHARE:
            self._refuse(_BUSY)
        elif self._task is None and not self._blocked:
            self._go_on()
        elif not self._full and self._reader.kept > MAX_PIPELINED:
            self._full = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._blocked = True
        self.due = self._loop.time() + WRITE_SECONDS

    def resume_writing(self) -> None:
        self._blocked = False
        if self._task is None and not self._ended:
            self._go_on()

    def expire(self) -> None:
        if self._ended or self._blocked:
            self.abort()
        elif self._reading:
            self._refuse(_SLOW)
        else:
            self._end()

    def end_if_idle(self) -> None:
        if self.idle:
            self._end()

    def abort(self) -> None:
        self._ended = True
        self._transport.abort()

    def _go_on(self) -> None:
        """With the next request, or waiting for it."""
        try:
            request = self._reader.next()
        except RefusedError as refused:
            self._refuse(refused.response)
            return
        if request is not None:
            self.due = _NEVER
            self._reading = False
            self._task = self._loop.create_task(self._answer(request))
            return
        if self._full:
            self._full = False
            self._transport.resume_reading()
        if not self._reader.begun:
            self.due = self._loop.time() + IDLE_SECONDS
        elif not self._reading:
            self._reading = True
            self.due = self._loop.time() + READ_SECONDS
        if self._reader.asks_to_continue():
            self._transport.write(CONTINUE)

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._server.handle(request)
        except Exception:  # the outermost edge of a request; its path is a secret
            log.exception("request failed")
            response = _FAILED
        if self._ended:
            return
        last = request.close or self._server.stopping
        self._transport.write(render(response, last=last, body=request.method != "HEAD"))
        self._task = None
        kept = self._reader.kept
        self._server.held -= self._held - kept
        self._held = kept
        if last:
            self._end()
        elif not self._blocked:
            self._go_on()

    def _refuse(self, response: Response) -> None:
        """Answer, and read on for a moment without looking: closing on unread bytes would take the answer away."""
        self._transport.write(render(response, last=True))
        self._ended = True
        self.due = self._loop.time() + DRAIN_SECONDS
        if self._task is not None:
            self._task.cancel()
        if self._full:
            self._transport.resume_reading()

    def _end(self) -> None:
        self._ended = True
        self.due = self._loop.time() + CLOSE_SECONDS
        self._transport.close()
