"""What a connection that was given up leaves behind."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from common.runtime.event_loop import EventLoop


async def given_up_in_the_handshake() -> socket.socket:
    """Whoever listens says nothing. The socket, when its connection has ended there."""
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    loop = asyncio.get_running_loop()
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, server.sockets[0].getsockname())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await loop.create_connection(
                    asyncio.Protocol, sock=sock, ssl=ssl.create_default_context(), server_hostname="nobody"
                )
        assert sock.fileno() == -1, "it is the transport's to close"
        async with asyncio.timeout(30):
            await ended.wait()
        return sock


def test_a_socket_whose_handshake_was_given_up_is_closed_once() -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(given_up_in_the_handshake()).fileno() == -1
