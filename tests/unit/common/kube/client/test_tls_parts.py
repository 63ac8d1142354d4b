"""By real sockets and TLS, on the event loop of the programs and on Python's."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from common.kube.client import tls_parts, transport
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import Access
from common.kube.client.transport import BoundedProtocol
from common.runtime.event_loop import EventLoop
from devcluster import certificates

LOOPS = pytest.mark.parametrize("loop", [EventLoop, asyncio.new_event_loop])

Loop = Callable[[], asyncio.AbstractEventLoop]


class Server:
    """In a thread. One answer for each connection, in records of that many bytes; then it ends without a word."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        self.body, self.record = b"", 0
        self.ended = threading.Event()
        self._listener = listener
        self._tls = tls

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
                with suppress(OSError), self._tls.wrap_socket(connection, server_side=True) as wrapped:
                    self._answer(wrapped)
                self.ended.set()

    def _answer(self, wrapped: ssl.SSLSocket) -> None:
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            asked += wrapped.recv(1000)
        wrapped.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.body))
        for begin in range(0, len(self.body), self.record):
            wrapped.sendall(self.body[begin : begin + self.record])


@contextmanager
def serving(directory: Path) -> Iterator[tuple[Server, Access]]:
    made = certificates.serving("server", "127.0.0.1")
    files = directory / "certificate", directory / "key"
    for file, content in zip(files, (made.certificate, made.key), strict=True):
        file.write_text(content)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*files)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener, tls)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            port = listener.getsockname()[1]
            yield server, Access(f"https://127.0.0.1:{port}", tls=ssl.create_default_context(cadata=made.ca))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@LOOPS
def test_of_a_large_answer_one_part_comes_in_each_turn(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0
    sizes: list[int] = []
    parts: Counter[int] = Counter()  # by turn
    take = BoundedProtocol.data_received

    def received(protocol: BoundedProtocol, data: bytes) -> None:
        if data:  # else it goes on with what has come
            sizes.append(len(data))
            parts[turn] += 1
        take(protocol, data)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def ask(access: Access) -> bytes:
        counting = asyncio.create_task(count_turns())
        cluster = Cluster(access, name="c")
        try:
            return await cluster.request("GET", "/")
        finally:
            counting.cancel()
            await cluster.close()

    monkeypatch.setattr(BoundedProtocol, "data_received", received)
    with serving(tmp_path) as (server, access), asyncio.Runner(loop_factory=loop) as runner:
        server.body, server.record = bytes(range(256)) * (7 * 2**12), 2**20
        assert runner.run(ask(access)) == server.body
    assert max(sizes) <= 100 * 1024
    assert max(parts.values()) <= 2  # of what was read before the turn, and what is read in it


@LOOPS
@pytest.mark.parametrize("record", [1_400, 16_384])
def test_nothing_is_lost_of_an_answer_whose_end_is_there_before_it_is_read(
    tmp_path: Path, loop: Loop, record: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, make = BoundedProtocol.data_received, transport._socket

    def roomy(*of: Any) -> socket.socket:
        made = make(*of)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        return made

    async def ask(access: Access) -> bytes:
        cluster = Cluster(access, name="c")
        try:
            return await cluster.request("GET", "/")
        finally:
            await cluster.close()

    with serving(tmp_path) as (server, access), asyncio.Runner(loop_factory=loop) as runner:

        def received(protocol: BoundedProtocol, data: bytes) -> None:
            server.ended.wait(2)  # the loop stands still until all has come
            take(protocol, data)

        monkeypatch.setattr(BoundedProtocol, "data_received", received)
        monkeypatch.setattr(transport, "_socket", roomy)
        server.record = record
        for parts, more in itertools.product((1, 2, 3), (200, 5_000, 12_000, 40_000)):  # 200: of the last record
            server.body = b"%9d " % more * ((parts * tls_parts.PART + more) // 10)
            server.ended.clear()
            assert runner.run(ask(access)) == server.body
            assert server.ended.is_set()
