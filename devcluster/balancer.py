"""Spreads TCP connections over several ports, as a Service does over the replicas of a program."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress

from common.runtime.waiting import first_of

_CHUNK = 64 * 1024


class Balancer:
    """Listens from its making; `port` is where, at `address`. A backend that refuses the connection is passed over.

    While it is `cut` it ends every connection, those that it had as well.
    """

    def __init__(self, backends: Sequence[int], address: str = "127.0.0.1") -> None:
        self.cut = False
        self._backends = list(backends)
        self._next = 0
        self._socket = socket.create_server((address, 0))
        self.port: int = self._socket.getsockname()[1]
        self._connections: set[asyncio.Task[None]] = set()
        self._serving = asyncio.create_task(asyncio.start_server(self._accept, sock=self._socket))

    async def close(self) -> None:
        server = await self._serving
        server.close()
        await self.end_connections()

    async def end_connections(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A turn is one connection's: others come while it tries, and must not make it try one backend twice.
        first, self._next = self._next, (self._next + 1) % len(self._backends)
        try:
            for port in () if self.cut else (*self._backends[first:], *self._backends[:first]):
                try:
                    backend = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    continue
                await _join((reader, writer), backend)
                return
        finally:
            writer.close()


_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(client: _Pair, backend: _Pair) -> None:
    """Until either side ends the connection: that of the other ends with it."""
    try:
        await first_of(_copy(client[0], backend[1]), _copy(backend[0], client[1]))
    finally:
        backend[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
