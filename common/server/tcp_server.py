"""The connections of a server: accepted, counted before TLS, and ended in time. What is said on them, others decide:
common/server/http_server.py for webhooks and the health port, common/server/web_server.py for aiohttp's applications.

Connections are accepted here, not by the event loop: they are counted before TLS. Who may keep one,
`common/server/connections.py` decides.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from common.runtime.waiting import within
from common.server.connections import Connections, party_of
from common.server.handshakes import Handshakes
from common.server.held import Held
from common.server.http_parser import RefusedError, Response
from common.server.listening import accept, listen

log = logging.getLogger(__name__)

FIRST_SECONDS = 5.0  # from a connection's beginning until its first request has named its caller
READ_SECONDS = 30.0  # from the first byte of a request to its last
WRITE_SECONDS = 30.0  # until a caller takes what fills the connection's buffer
IDLE_SECONDS = 120.0  # API servers close their idle connections after 90: they, not we, so no request is lost
DRAIN_SECONDS = 2.0  # in which a refused caller may read why, though it goes on sending
CLOSE_SECONDS = 5.0
SWEEP_SECONDS = 1.0
NEVER = float("inf")
BUSY = Response(503, b"too much is waiting here\n")
_SLOW = Response(408, b"the request did not come in time\n")


class TcpServer:
    """While `stopping`, and once stopped, each answer ends its connection, so that callers find another replica."""

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self.port = 0  # where it listens, once it does
        self.tls: ssl.SSLContext | None = None
        self.held = Held()
        self._connections: set[Served] = set()
        self._places = Connections[Served]()
        self._opening: set[asyncio.Task[None]] = set()
        self._handshakes = Handshakes()
        self._empty = asyncio.Event()
        self._empty.set()
        self._asked_to_stop = stopping
        self._stopped = False
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._sweeping: asyncio.TimerHandle | None = None

    @abstractmethod
    def serve(self, address: str, accepted: socket.socket) -> Served:
        """What speaks on a connection that has come."""

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

    def prove(self, connection: Served, caller: str) -> None:
        """Raises RefusedError where no other connection can give way to it."""
        stays, victim = self._places.proved(connection, connection.address, caller)
        if victim is not None:
            victim.abort()
        if not stays:
            raise RefusedError(503, "too many connections are busy here")

    def forget(self, connection: Served) -> None:
        self._connections.discard(connection)
        self._places.left(connection, connection.address, connection.caller)
        if not self._connections:
            self._empty.set()

    def _arrived(self, accepted: socket.socket, peer: object) -> None:
        loop = asyncio.get_running_loop()
        connection = self.serve(party_of(peer), accepted)
        victim = self._places.arrived(connection, connection.address)
        if victim is not None:
            victim.abort()
        self._connections.add(connection)
        self._empty.clear()
        opening = connection.opening = loop.create_task(self._open(connection, accepted, loop))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: Served, accepted: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
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


class Served(asyncio.Protocol):
    """One connection, also where its class has another protocol as a base. `due`: when what is being waited for must
    have come.

    `caller`: who its first request was from; None until that has come, and UNNAMED for somebody without a name. Until
    it has come, `due` stays as it is.
    """

    def __init__(self, server: TcpServer, address: str, accepted: socket.socket) -> None:
        self.address = address
        self.caller: str | None = None
        self.due = asyncio.get_running_loop().time() + FIRST_SECONDS
        self.opening: asyncio.Task[None] | None = None
        self.tls: ssl.SSLContext | None = None  # by which it was opened
        self._server = server
        self._accepted = accepted
        self._waits = False  # for its turn to make the handshake
        self._transport: asyncio.Transport | None = None  # until TLS is there
        self._party = address  # by whom is counted what is held
        self._held = 0
        self._ended = False  # nothing is read or written any more
        self._reading = False  # a request has begun to come
        self._blocked = False  # the caller does not read

    @property
    @abstractmethod
    def answering(self) -> bool:
        """A request has come, and not all of its answer is written."""

    @abstractmethod
    def refuse(self, response: Response) -> None:
        """The connection ends with this answer."""

    @property
    def idle(self) -> bool:
        """No request is coming or being answered."""
        made = self._transport is not None
        return made and not (self.answering or self._reading or self._blocked or self._ended)

    @property
    def outdated(self) -> bool:
        """The server has another certificate, or trusts other callers, since this was opened."""
        return self.tls is not self._server.tls

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
        if self._ended:
            self._transport.abort()
        super().connection_made(transport)

    def connection_lost(self, _error: BaseException | None) -> None:
        self._ended = True
        self._server.forget(self)
        self._hold(0)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = True
        self.due = asyncio.get_running_loop().time() + WRITE_SECONDS

    def resume_writing(self) -> None:
        """Who answers says what is due then."""
        super().resume_writing()
        self._blocked = False

    def expire(self) -> None:
        """What was due has not come."""
        if self._ended or self._blocked or self._transport is None:
            self.abort()
        elif self._reading:
            self.refuse(_SLOW)
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

    def name(self, caller: str) -> None:
        """Raises RefusedError. The first request that names somebody proves whose the connection is."""
        if self.caller is not None and (self.caller or not caller):
            return
        if caller:
            self._server.prove(self, caller)
        self.caller = caller
        self._server.held.change(self._party, -self._held)
        self._party = caller or self.address
        self._server.held.change(self._party, self._held)
        if self.holds_too_much():
            raise RefusedError(503, "too much is waiting here")

    def holds_too_much(self) -> bool:
        return self._server.held.too_much(self._party, self._held)

    @property
    def _made(self) -> asyncio.Transport:
        assert self._transport is not None, "nothing comes before it is made"
        return self._transport

    def _hold(self, size: int) -> None:
        self._server.held.change(self._party, size - self._held)
        self._held = size

    def _end(self) -> None:
        self._ended = True
        self.due = asyncio.get_running_loop().time() + CLOSE_SECONDS
        self._made.close()
