"""What comes over a TLS connection, in parts: one in each turn of the event loop.

By default all is decrypted and parsed in one turn that is there, 256 KiB, and as much again as often as there is more:
a turn would be as long as the API servers of tenants like.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

PART = 64 * 1024  # bytes
_RECORD = 16 * 1024 + 256  # the largest one of TLS
_LAST = PART + 2 * _RECORD


class _Own(threading.local):
    """One buffer for all connections of a thread: between `get_buffer` and `buffer_updated` nothing else runs there."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_LAST))


_own = _Own()


class SSLTransport(Protocol):
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def set_read_buffer_limits(self, high: int, low: int) -> None: ...


def read_in_parts(transport: SSLTransport, protocol: asyncio.Protocol) -> None:
    """`protocol` goes on to get what comes. Nothing is read from the socket while something that was read waits: its
    end would be taken for the end of all, and what waits would be lost."""
    transport.set_protocol(_InParts(protocol))
    transport.set_read_buffer_limits(high=1, low=0)


class _InParts(asyncio.BufferedProtocol):
    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def get_buffer(self, sizehint: int) -> memoryview:
        """`sizehint`: what waits. A part leaves more than a record: one that TLS has begun is not seen to wait."""
        return _own.buffer if sizehint <= _LAST else _own.buffer[:PART]

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.data_received(bytes(_own.buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
