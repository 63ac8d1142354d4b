"""HTTP/1.1 for webhooks, the HTTP API and the health port: small requests, answered in order, at half the cost of
aiohttp's server.

Callers are API servers and whoever else reaches the port: connections, what is held of them, and how long anything
takes are bounded. What a request is, `common/server/http_parser.py` decides; who may keep a connection,
`common/server/connections.py`. Connections are accepted here, not by the event loop: they are counted before TLS.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import msgspec

from common.runtime.waiting import within
from common.server.connections import UNNAMED, Connections, Identify, party_of
from common.server.handshakes import Handshakes
from common.server.held import Held
from common.server.http_parser import CONTINUE, Head, RefusedError, Request, RequestReader, Response, render, rendered
from common.server.listening import accept, listen

log = logging.getLogger(__name__)

MAX_PIPELINED = 64 * 1024  # bytes taken from one connection while its request is being answered

FIRST_SECONDS = 5.0  # from a connection's beginning until its first request has named its caller
READ_SECONDS = 30.0  # from the first byte of a request to its last
WRITE_SECONDS = 30.0  # until a caller takes what fills the connection's buffer
IDLE_SECONDS = 120.0  # API servers close their idle connections after 90: they, not we, so no request is lost
DRAIN_SECONDS = 2.0  # in which a refused caller may read why, though it goes on sending
CLOSE_SECONDS = 5.0
SWEEP_SECONDS = 1.0

Handler = Callable[[Request], Awaitable[Response]]
_FAILED = Response(500, b"the request failed here\n")
_SLOW = Response(408, b"the request did not come in time\n")
_BUSY = Response(503, b"too much is waiting here\n")
_NEVER = float("inf")


class HttpServer:
    """Answers by `handle`, which is cancelled when its caller goes away. While `stopping`, and once stopped, each
    answer ends its connection, so that callers find another replica. A body is read only where `identify` knows the
    caller; else it is 404."""

    def __init__(
        self,
        handle: Handler,
        *,
        max_body: int,
        identify: Identify = lambda _head: UNNAMED,
        stopping: Callable[[], bool] = lambda: False,
        refusal: Callable[[Response], Response] = lambda response: response,
    ) -> None:
        """`refusal` words the answer to what was not handed to `handle`, or failed there."""
        self.handle = handle
        self.identify = identify
        self.refusal = refusal
        self.max_body = max_body
        self.port = 0  # where it listens, once it does
        self.tls: ssl.SSLContext | None = None
        self.held = Held()
        self._connections: set[_Connection] = set()
        self._places = Connections[_Connection]()
        self._opening: set[asyncio.Task[None]] = set()
        self._handshakes = Handshakes()
        self._empty = asyncio.Event()
        self._empty.set()
        self._asked_to_stop = stopping
        self._stopped = False
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def stopping(self) -> bool:
        return self._stopped or self._asked_to_stop()

    async def start(self, host: str | None, port: int, tls: ssl.SSLContext | None) -> None:
        """Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self.tls = tls
        self._listeners = await listen(host, port)
        self.port = self._listeners[0].getsockname()[1]
        self._accepting = [loop.create_task(accept(each, self._arrived), name="accept") for each in self._listeners]
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep, loop)

    def use(self, tls: ssl.SSLContext) -> None:
        """For connections that come. Those that are there end soon, and their certificates count no more."""
        self.tls = tls
        for connection in tuple(self._connections):
            connection.end_if_idle()

    def end_soon(self) -> None:
        """Takes no more connections; those that are open learn from their next answer that they end."""
        self._stopped = True
        for task in self._accepting:
            task.cancel()
        for listener in self._listeners:
            listener.close()

    async def stop(self, timeout: float) -> None:
        """What has begun to come has `timeout` seconds to be answered."""
        self.end_soon()
        for connection in tuple(self._connections):
            connection.end_if_idle()
        await within(self._empty, timeout)
        for connection in tuple(self._connections):
            connection.abort()
        await within(self._empty, CLOSE_SECONDS)
        await asyncio.gather(*self._accepting, *self._opening, return_exceptions=True)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def prove(self, connection: _Connection, caller: str) -> None:
        """Raises RefusedError where no other connection can give way to it."""
        stays, victim = self._places.proved(connection, connection.address, caller)
        if victim is not None:
            victim.abort()
        if not stays:
            raise RefusedError(503, "too many connections are busy here")

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._places.left(connection, connection.address, connection.caller)
        if not self._connections:
            self._empty.set()

    def _arrived(self, accepted: socket.socket, peer: object) -> None:
        loop = asyncio.get_running_loop()
        connection = _Connection(self, loop, party_of(peer), accepted)
        victim = self._places.arrived(connection, connection.address)
        if victim is not None:
            victim.abort()
        self._connections.add(connection)
        self._empty.clear()
        opening = connection.opening = loop.create_task(self._open(connection, accepted, loop))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: _Connection, accepted: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self.tls is not None:
                await connection.wait(self._handshakes)
            tls = connection.tls = self.tls
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=FIRST_SECONDS if tls is not None else None,
                ssl_shutdown_timeout=CLOSE_SECONDS if tls is not None else None,
            )
        except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError where the other side has gone
            log.debug("connection not opened", extra={"peer": connection.address, "error": str(error)})
            self.forget(connection)
        except asyncio.CancelledError:
            self.forget(connection)
            raise

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: a timer for each request would cost more than reading its head."""
        now = loop.time()
        for connection in tuple(self._connections):
            if connection.due <= now:
                connection.expire()
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep, loop)


class _Connection(asyncio.Protocol):
    """One request at a time, in order. `due`: when what is being waited for must have come.

    `caller`: who its first request was from; None until that has come, and UNNAMED for somebody without a name. Until
    it has come, `due` stays as it is.
    """

    def __init__(
        self, server: HttpServer, loop: asyncio.AbstractEventLoop, address: str, accepted: socket.socket
    ) -> None:
        self.address = address
        self.caller: str | None = None
        self.due = loop.time() + FIRST_SECONDS
        self.opening: asyncio.Task[None] | None = None
        self.tls: ssl.SSLContext | None = None  # by which it was opened
        self._shown = b""  # the caller's certificate
        self._accepted = accepted
        self._waits = False  # for its turn to make the handshake
        self._transport: asyncio.Transport | None = None  # until TLS is there
        self._server = server
        self._loop = loop
        self._reader = RequestReader(server.max_body, self._check)
        self._task: asyncio.Task[None] | None = None
        self._party = address  # by whom is counted what is held
        self._held = 0
        self._reading = False  # a request has begun to come
        self._full = False  # reading is paused
        self._blocked = False  # the caller does not read
        self._ended = False  # nothing is read or written any more

    @property
    def idle(self) -> bool:
        made = self._transport is not None
        return made and self._task is None and not self._reading and not self._blocked and not self._ended

    @property
    def _outdated(self) -> bool:
        return self.tls is not self._server.tls

    @property
    def _certificate(self) -> bytes:
        return b"" if self._outdated else self._shown

    async def wait(self, handshakes: Handshakes) -> None:
        """Until its handshake may begin."""
        self._waits = True
        try:
            await handshakes.turn(self.address)
        except asyncio.CancelledError:
            self._accepted.close()
            raise
        finally:
            self._waits = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.tls is not None and self.tls.verify_mode != ssl.CERT_NONE:
            self._shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        if self._ended:
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = True
        self._server.forget(self)
        self._hold(0)
        if self._task is not None:
            self._task.cancel()  # nobody is there to answer

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._reader.feed(data)
        self._hold(self._held + len(data))
        if self._holds_too_much():
            self._refuse(_BUSY)
        elif self._task is None and not self._blocked:
            self._go_on()
        elif not self._full and self._reader.kept > MAX_PIPELINED:
            self._full = True
            self._made.pause_reading()

    def pause_writing(self) -> None:
        self._blocked = True
        self.due = self._loop.time() + WRITE_SECONDS

    def resume_writing(self) -> None:
        self._blocked = False
        if self._task is None and not self._ended:
            self._go_on()

    def expire(self) -> None:
        if self._ended or self._blocked or self._transport is None:
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
        if self._transport is not None:
            self._transport.abort()
        elif self._waits and self.opening is not None:
            self.opening.cancel()
        else:
            with suppress(OSError):  # the handshake fails, and `_open` with it
                self._accepted.shutdown(socket.SHUT_RDWR)

    @property
    def _made(self) -> asyncio.Transport:
        assert self._transport is not None, "nothing comes before it is made"
        return self._transport

    def _hold(self, size: int) -> None:
        self._server.held.change(self._party, size - self._held)
        self._held = size

    def _holds_too_much(self) -> bool:
        return self._server.held.too_much(self._party, self._held)

    def _check(self, head: Head) -> bool:
        """Raises RefusedError."""
        head = msgspec.structs.replace(head, certificate=self._certificate, address=self.address)
        caller = self._server.identify(head)
        if caller is None or isinstance(caller, str):
            self._named(caller)
            return True
        self.due = _NEVER
        self._task = self._loop.create_task(self._identify(caller))
        return False

    async def _identify(self, asked: Awaitable[str | None]) -> None:
        refusal = None
        try:
            self._named(await asked)
        except RefusedError as refused:
            refusal = refused.response
        except Exception:  # as in `_answer`
            log.exception("caller not identified", extra={"caller": self._party})
            refusal = _FAILED
        self._task = None
        if self._ended:
            return
        self._go_on() if refusal is None else self._refuse(refusal)

    def _named(self, caller: str | None) -> None:
        """Raises RefusedError. The first request that names somebody proves whose the connection is."""
        if caller is None:
            raise RefusedError(404, "not found")
        if self.caller is not None and (self.caller or not caller):
            return
        if caller:
            self._server.prove(self, caller)
        self.caller = caller
        self._server.held.change(self._party, -self._held)
        self._party = caller or self.address
        self._server.held.change(self._party, self._held)
        self._reading = False  # for its body there is time anew
        if self._holds_too_much():
            raise RefusedError(503, "too much is waiting here")

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
        if self._task is not None:
            return  # it is being found out who asks
        if self._full:
            self._full = False
            self._made.resume_reading()
        if self.caller is None:
            self._reading = self._reader.begun
        elif not self._reader.begun:
            self.due = self._loop.time() + IDLE_SECONDS
        elif not self._reading:
            self._reading = True
            self.due = self._loop.time() + READ_SECONDS
        if self._reader.asks_to_continue():
            self._made.write(CONTINUE)

    async def _answer(self, request: Request) -> None:
        request = msgspec.structs.replace(request, certificate=self._certificate, address=self.address)
        try:
            response = await self._server.handle(request)
        except Exception:  # the outermost edge of a request; its path is a secret
            log.exception("request failed", extra={"caller": self._party})
            response = self._server.refusal(_FAILED)
        if self._ended:
            return
        last = request.close or response.close or self._server.stopping or self._outdated
        self._made.writelines(rendered(response, last=last, body=request.method != "HEAD"))
        self._task = None
        self._hold(self._reader.kept)
        if last:
            self._end()
        elif not self._blocked:
            self._go_on()

    def _refuse(self, response: Response) -> None:
        """Answer, and read on for a moment without looking: closing on unread bytes would take the answer away."""
        self._made.write(render(self._server.refusal(response), last=True))
        self._ended = True
        self._reader = RequestReader(0)
        self._hold(0)
        self.due = self._loop.time() + DRAIN_SECONDS
        if self._task is not None:
            self._task.cancel()
        if self._full:
            self._made.resume_reading()

    def _end(self) -> None:
        self._ended = True
        self.due = self._loop.time() + CLOSE_SECONDS
        self._made.close()
