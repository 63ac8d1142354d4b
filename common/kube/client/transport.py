"""HTTP connections to an API server, or to another host that a tenant may choose: what comes is counted (bounds.py)."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any, Protocol, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

from common.kube.client.bounds import AT_ONCE, MAX_HEAD, MAX_INTERIM, MAX_OVERHEAD, Room
from common.kube.client.errors import BadAnswer, TooLarge
from common.kube.client.tenant_hosts import TenantHosts
from common.kube.client.tls_parts import SSLTransport, read_in_parts
from common.runtime.pieces import SMALL, in_one_piece


class Closable(Protocol):
    def close(self) -> Awaitable[None]: ...


async def close_all(clients: Iterable[Closable]) -> None:
    """Also those that come after one whose closing fails or is cancelled."""
    async with AsyncExitStack() as stack:
        for client in clients:
            stack.push_async_callback(client.close)


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


BUFFER = 16 * 1024  # bytes that are read ahead, and a sixteenth as many chunks: each chunk takes as long as 1 KiB
_HEAD_PIECE = 4 * 1024  # bytes of a head that are parsed before interim answers are counted


class RefusedAnswer(aiohttp.ClientPayloadError):
    """The answer is beyond a bound. `str()` says beyond which."""

    def __init__(self, wrong: BadAnswer, why: str) -> None:
        super().__init__(why)
        self.wrong = wrong


class BoundedProtocol(ResponseHandler):
    """Counts what comes over one connection, before and after HTTP is parsed. The first excess ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._refused: RefusedAnswer | None = None
        self._expect_answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if transport.get_extra_info("sslcontext") is not None:
            read_in_parts(cast(SSLTransport, transport), self)

    def _expect_answer(self) -> None:
        self._received = 0
        self._interim = 0
        self._answer: StreamReader | None = None  # the body of the answer, once its head is there

    def set_response_params(self, **params: Any) -> None:
        self._expect_answer()
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """`data` is empty where what was kept back is parsed."""
        begin = 0
        while self._answer is None and begin < len(data) and self._refused is None:
            piece = data[begin : begin + _HEAD_PIECE]
            begin += len(piece)
            self._received += len(piece)
            super().data_received(piece)
            if self._answer is None and self._received > MAX_HEAD:
                self._refuse(BadAnswer.HEAD_TOO_LARGE, f"its head is larger than {MAX_HEAD} bytes")
        if self._refused is not None or (data and begin == len(data)):
            return
        if data and self._answer is not None and self._answer.is_eof():
            self._refuse(BadAnswer.SECOND_ANSWER, "more was sent than one answer")
            return
        self._received += len(data) - begin
        super().data_received(data[begin:])
        body = self._answer.total_bytes if self._answer is not None else 0
        if self._received - body > body + MAX_OVERHEAD:
            self._refuse(BadAnswer.FRAMING, "it has more framing than content")

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        message, body = data
        if self._answer is not None:
            self._refuse(BadAnswer.SECOND_ANSWER, "more was sent than one answer")
        elif message.code == 101:
            self._refuse(BadAnswer.ANOTHER_PROTOCOL, "it changes to another protocol")
        elif message.code < 200:
            self._interim += 1
            if self._interim > MAX_INTERIM:
                self._refuse(BadAnswer.INTERIM_ANSWERS, f"more than {MAX_INTERIM} interim answers")
        elif message.headers.get("Content-Encoding", "identity").lower() != "identity":
            self._refuse(BadAnswer.COMPRESSED, "it is compressed")
        else:
            self._answer = body
            super().feed_data(data, size)

    def _refuse(self, wrong: BadAnswer, why: str) -> None:
        if self._refused is not None:
            return
        self._refused = RefusedAnswer(wrong, why)
        if self._answer is not None:
            self._answer.set_exception(self._refused)
        self.set_exception(self._refused)
        self._parser = self._payload = None
        self.abort()

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """That the connection was lost thereupon tells nothing."""
        super().set_exception(self._refused or exc, *cause)

    def abort(self) -> None:
        super().abort()
        self._exception = self._refused


class BoundedConnector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(BoundedProtocol, loop=self._loop)  # type: ignore[assignment]


IDENTITY = {"Accept-Encoding": "identity"}
"""Without it aiohttp asks for compressed answers."""


@contextmanager
def reading() -> Iterator[None]:
    """Raises ClientConnectionError where aiohttp raises RuntimeError: the connection was closed before it is read."""
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise
        raise aiohttp.ClientConnectionError(str(error)) from None


async def read_body(response: aiohttp.ClientResponse, limit: int, room: Room, what: str) -> bytes:
    """Raises TooLarge. Others run after each part."""
    parts: list[bytes] = []
    size = response.content_length or 0
    if size > limit:
        raise TooLarge(f"{what}: answer is larger than {limit} bytes")
    with room.of(what) as taken, reading():
        if size:
            taken.add(size)
            return await response.read()
        async for part in response.content.iter_any():
            size += len(part)
            if size > limit:
                raise TooLarge(f"{what}: answer is larger than {limit} bytes")
            taken.add(len(part))
            parts.append(part)
            await (asyncio.sleep(0) if len(parts) <= SMALL else in_one_piece())
        return b"".join(parts)


class Pace:
    """Limits the share of the event loop's time for what one API server sends. Who has used more than AT_ONCE pauses.

    A tenant's server can send valid events without a pause, to each of a dozen watches. A share of 1 is no limit.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._left = AT_ONCE  # seconds
        self._as_of = time.monotonic()

    async def turn(self) -> None:
        self.took(0.0)
        if self._left < 0 and self.share < 1:
            await asyncio.sleep(-self._left / self.share)

    def took(self, seconds: float) -> None:
        now = time.monotonic()
        self._left = min(self._left + (now - self._as_of) * self.share, AT_ONCE) - seconds
        self._as_of = now


def new_session(
    tls: ssl.SSLContext | None, connections: int, hosts: TenantHosts | None = None
) -> aiohttp.ClientSession:
    """`hosts`: where a tenant names the host."""
    connector = BoundedConnector(
        limit=connections,
        ssl=tls if tls is not None else True,
        keepalive_timeout=60,
        resolver=hosts,
        socket_factory=partial(_socket, hosts),
    )
    return aiohttp.ClientSession(
        connector=connector,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=IDENTITY,
        auto_decompress=False,
        read_bufsize=BUFFER,
    )


def _socket(hosts: TenantHosts | None, address: aiohttp.AddrInfoType) -> socket.socket:
    """A silent connection to a machine that is gone is noticed within 45 seconds."""
    if hosts is not None:
        hosts.check(address)
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):  # not every system has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
