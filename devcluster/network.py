"""A network between two programs that can be cut: connections are forwarded, hang, or are refused."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import socket
import struct
import tempfile
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path

from common.runtime.waiting import first_of

_CHUNK = 64 * 1024
_PORTS = range(20_000, 32_000)  # no system hands these out for outgoing connections
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing resets the connection


_claims: set[int] = set()


@cache
def _claims_of_all() -> int:
    """A file of which each process locks the bytes of its ports. The locks end with the process."""
    path = Path(tempfile.gettempdir()) / f"seedquota-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _claimed(port: int) -> bool:
    """For this process, once."""
    if port in _claims:
        return False
    try:
        fcntl.lockf(_claims_of_all(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _claims.add(port)
    return True


class Traffic(Enum):
    FORWARDED = "forwarded"
    DROPPED = "dropped"  # connections stay open and new ones begin, but nothing passes any more
    REFUSED = "refused"  # connections are reset and nobody listens


class Link:
    """The way to `target`, a port of this machine, by way of `port`. Whoever uses it sees the target's certificate.

    What is sent while traffic is dropped arrives once it is forwarded again, as TCP repeats what was lost: late, and
    perhaps after its sender has given up on it.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._flows = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def set(self, traffic: Traffic) -> None:
        if traffic is Traffic.REFUSED:
            await self.close()
            return
        if traffic is Traffic.FORWARDED:
            self._flows.set()
        else:
            self._flows.clear()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def hang(self) -> None:
        """The connections that there are stay open and silent for ever, new ones are forwarded, as behind a router that
        has lost what it knew of connections."""
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers, flows = [writer], self._flows
        try:
            await flows.wait()
            with suppress(OSError):
                target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target)
                writers.append(target_writer)
                await self._join(flows, (reader, target_writer), (target_reader, writer))
        finally:
            for end in writers:
                _reset(end)

    async def _join(self, flows: asyncio.Event, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Until either side ends the connection: that of the other ends with it."""
        await first_of(*(self._copy(flows, reader, writer) for reader, writer in ways))

    async def _copy(self, flows: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK):
                await flows.wait()
                writer.write(chunk)
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Unlike an end in good order, it also ends what the other side still wants to send."""
    if not writer.is_closing():
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def free_port() -> int:
    """A port that nobody listens on, that no outgoing connection will take while its owner restarts, and that no other
    process of this user gets here while this one lives: many begin at once, and listen seconds later."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 (no secret)
        if not _claimed(port):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
