"""HTTP/1.1 over TLS for the webhook: small requests, answered in order, at half the cost of aiohttp's server.

`RequestReader` turns bytes into requests and knows nothing of sockets; `HttpServer` has the connections. Callers are
API servers and whoever else reaches the port, so whatever two readers could understand differently is refused (RFC
9112, section 11.2), and all that a caller can make us keep is bounded: heads, bodies, connections, bytes and seconds.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import cast

import msgspec

log = logging.getLogger(__name__)

MAX_HEAD = 16 * 1024
MAX_CHUNK_LINE = 256
MAX_CHUNKS = 16_384  # of one body: each costs more than its bytes do
MAX_CONNECTIONS = 4096
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

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Head(msgspec.Struct, frozen=True):
    """`length` of the body; None: it comes in chunks. `expects`: the caller waits to be asked for the body."""

    method: str
    path: str
    query: str
    length: int | None
    close: bool
    expects: bool


class Request(msgspec.Struct, frozen=True):
    """`path` and `query` as they came, nothing is unquoted. After a `close` one no other can follow."""

    method: str
    path: str
    query: str
    body: bytes
    close: bool


class Response(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Handler = Callable[[Request], Awaitable[Response]]


class RefusedError(Exception):
    """The bytes are no request that is served here. Where the next one would begin is unknown."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = Response(status, f"{text}\n".encode())


_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]+) HTTP/([0-9]\.[0-9])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([ -~\t\x80-\xff]*)")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[ -~\t\x80-\xff]*)?")
_LENGTH = re.compile(rb"[0-9]{1,15}")


@lru_cache(maxsize=256)
def parse_head(head: bytes) -> Head:
    """What precedes the empty line. Raises RefusedError.

    Cached: on a connection that is kept, heads differ in little but the length.
    """
    start, *lines = head.removeprefix(b"\r\n").split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(start)
    if line is None:
        raise RefusedError(400, "not a request of HTTP/1.1")
    version = line[3]
    if version not in (b"1.1", b"1.0"):
        raise RefusedError(505, "only HTTP/1.1 is spoken here")
    fields = _fields(lines)
    if len(fields.get(b"host", [])) != 1 and (version == b"1.1" or b"host" in fields):
        raise RefusedError(400, "there must be one Host")
    length = _length(fields, version)
    expect = [value.lower() for value in fields.get(b"expect", [])]
    if expect not in ([], [b"100-continue"]):
        raise RefusedError(417, "nothing but 100-continue can be expected")
    options = {option.strip().lower() for value in fields.get(b"connection", []) for option in value.split(b",")}
    path, _, query = line[2].decode().partition("?")
    return Head(
        method=line[1].decode(),
        path=path,
        query=query,
        length=length,
        close=version == b"1.0" or b"close" in options,
        expects=bool(expect) and version == b"1.1",
    )


def _fields(lines: list[bytes]) -> dict[bytes, list[bytes]]:
    """Values by name in lower case. A line that continues the one before it (obs-fold) is malformed."""
    fields: dict[bytes, list[bytes]] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise RefusedError(400, "a header field is malformed")
        fields.setdefault(field[1].lower(), []).append(field[2].strip(b" \t"))
    return fields


def _length(fields: dict[bytes, list[bytes]], version: bytes) -> int | None:
    """Where the body ends must be said once, in one way."""
    coding, lengths = fields.get(b"transfer-encoding", []), fields.get(b"content-length", [])
    if coding:
        if lengths or version == b"1.0":
            raise RefusedError(400, "Transfer-Encoding goes with HTTP/1.1 and without Content-Length")
        if [value.lower() for value in coding] != [b"chunked"]:
            raise RefusedError(501, "no Transfer-Encoding but chunked is known here")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise RefusedError(400, "Content-Length is malformed")
    return int(lengths[0])


class RequestReader:
    """Bytes in, requests out. After a RefusedError it is of no more use."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._searched = 0  # no head ends before this
        self._head: Head | None = None
        self._chunked = bytearray()
        self._chunks = 0
        self._asked = False

    @property
    def kept(self) -> int:
        """Bytes that came and are not part of a request that was handed out."""
        return len(self._buffer) + len(self._chunked)

    @property
    def begun(self) -> bool:
        """A part of a request has come."""
        return self._head is not None or bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Request | None:
        """None until another whole request has come. Raises RefusedError."""
        head = self._head
        if head is None:
            head = self._read_head()
            if head is None:
                return None
            self._head = head
        body = self._read_chunks() if head.length is None else self._read_body(head.length)
        if body is None:
            return None
        self._head = None
        self._asked = False
        return Request(head.method, head.path, head.query, body, head.close)

    def asks_to_continue(self) -> bool:
        """True once for a request whose caller holds the body back until he is told to send it."""
        if self._asked or self._head is None or not self._head.expects:
            return False
        self._asked = True
        return True

    def _read_head(self) -> Head | None:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", self._searched, MAX_HEAD)
        if end < 0:
            if len(buffer) >= MAX_HEAD:
                raise RefusedError(431, f"the head is larger than {MAX_HEAD} bytes")
            self._searched = max(len(buffer) - 3, 0)
            return None
        head = parse_head(bytes(buffer[:end]))
        if head.length is not None and head.length > self._max_body:
            raise self._too_large()
        del buffer[: end + 4]
        self._searched = 0
        return head

    def _read_body(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _read_chunks(self) -> bytes | None:
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n", 0, MAX_CHUNK_LINE)
            if end < 0:
                if len(buffer) >= MAX_CHUNK_LINE:
                    raise RefusedError(400, "a chunk is malformed")
                return None
            line = _CHUNK_LINE.fullmatch(bytes(buffer[:end]))
            if line is None:
                raise RefusedError(400, "a chunk is malformed")
            size, begin = int(line[1], 16), end + 2
            if size == 0:
                return self._read_trailers(begin)
            if len(self._chunked) + size > self._max_body:
                raise self._too_large()
            if len(buffer) < begin + size + 2:
                return None
            self._chunks += 1
            if buffer[begin + size : begin + size + 2] != b"\r\n" or self._chunks > MAX_CHUNKS:
                raise RefusedError(400, "a chunk is malformed, or they are too many")
            self._chunked += memoryview(buffer)[begin : begin + size]
            del buffer[: begin + size + 2]

    def _read_trailers(self, begin: int) -> bytes | None:
        """The chunked body once its trailers have come. They must be well formed, and mean nothing here."""
        buffer = self._buffer
        # With the end of the chunk's line before them, no trailers look like an empty head.
        end = buffer.find(b"\r\n\r\n", begin - 2, begin + MAX_HEAD)
        if end < 0:
            if len(buffer) >= begin + MAX_HEAD:
                raise RefusedError(431, f"the trailers are larger than {MAX_HEAD} bytes")
            return None
        if end > begin:
            _fields(bytes(buffer[begin:end]).split(b"\r\n"))
        del buffer[: end + 4]
        body = bytes(self._chunked)
        self._chunked, self._chunks = bytearray(), 0
        return body

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"the body is larger than {self._max_body} bytes")


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
        self._listener: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def stopping(self) -> bool:
        return self._stopped or self._asked_to_stop()

    async def start(self, host: str | None, port: int, tls: ssl.SSLContext | None, *, backlog: int = 1024) -> None:
        """Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: _Connection(self, loop),
            host,
            port,
            ssl=tls,
            backlog=backlog,
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
        await self._wait_empty(timeout)
        for connection in tuple(self._connections):
            connection.abort()
        await self._wait_empty(CLOSE_SECONDS)
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _wait_empty(self, timeout: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._empty.wait()

    def admit(self, connection: _Connection) -> bool:
        """Where there are too many, whoever has been idle for longest goes."""
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
            self._transport.write(_CONTINUE)

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


def render(response: Response, *, last: bool, body: bool = True) -> bytes:
    head = b"%b%bDate: %b\r\nContent-Length: %d\r\n\r\n" % (
        _status(response.status, response.content_type),
        b"Connection: close\r\n" if last else b"",
        _date(int(time.time())),
        len(response.body),
    )
    return head + response.body if body else head


@lru_cache(maxsize=64)
def _status(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n".encode()


@lru_cache(maxsize=1)
def _date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()
