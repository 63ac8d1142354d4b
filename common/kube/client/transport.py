"""HTTP connections to an API server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack
from typing import Protocol

import aiohttp

from common.kube.client.errors import TooLarge


class Closable(Protocol):
    def close(self) -> Awaitable[None]: ...


async def close_all(clients: Iterable[Closable]) -> None:
    """Also those that come after one whose closing fails or is cancelled."""
    async with AsyncExitStack() as stack:
        for client in clients:
            stack.push_async_callback(client.close)


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def read_body(response: aiohttp.ClientResponse, limit: int, what: str) -> bytes:
    length = response.content_length
    if length is not None and length <= limit:
        return await response.read()
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            raise TooLarge(200, "Malformed", f"{what}: answer is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def new_session(tls: ssl.SSLContext | None, connections: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=connections,
        ssl=tls if tls is not None else True,
        keepalive_timeout=60,
        socket_factory=_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=256 * 1024,
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A silent connection to a machine that is gone is noticed within 45 seconds."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):  # not every system has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
