"""uvloop, patched where it closes a file descriptor that is another connection's by then."""

from __future__ import annotations

import socket
from typing import Any

import uvloop


class EventLoop(uvloop.Loop):
    async def create_connection(self, *args: Any, sock: socket.socket | None = None, **options: Any) -> Any:
        """As uvloop's. A `sock` that could not be used is its transport's to close, and nobody else's.

        Where the TLS handshake is given up, uvloop leaves the Python socket open beside the transport, which closes the
        descriptor. Whoever drops the socket later closes it once more, in the middle of the connection that has got
        its number meanwhile (https://github.com/MagicStack/uvloop/issues/738, fixed there for the time before TLS).
        """
        try:
            return await super().create_connection(*args, sock=sock, **options)
        except BaseException:
            if sock is not None:
                sock.detach()
            raise

    async def connect_accepted_socket(self, protocol_factory: Any, sock: socket.socket, **options: Any) -> Any:
        """As uvloop's. Likewise, a `sock` that could not be used is its transport's to close."""
        try:
            return await super().connect_accepted_socket(protocol_factory, sock, **options)
        except BaseException:
            sock.detach()
            raise
