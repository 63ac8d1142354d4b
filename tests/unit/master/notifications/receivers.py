"""Receivers of messages: real servers on this machine, that answer as they are told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trustme

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Told:
    """One request, as it came."""

    head: dict[str, str]
    target: str
    body: bytes


@dataclass
class Web:
    """`answers`: what is sent to each request; the last one again and again."""

    ca: trustme.CA = field(default_factory=trustme.CA)
    answers: list[bytes | Answer] = field(default_factory=lambda: [OK])
    told: list[Told] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def authorities(self) -> bytes:
        return self.ca.cert_pem.bytes()

    def url(self, path: str = "/hook", host: str = "127.0.0.1", scheme: str = "https") -> bytes:
        return f"{scheme}://{host}:{self.port}{path}".encode()

    @asynccontextmanager
    async def serve(self, *names: str, tls: bool = True) -> AsyncIterator[Web]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*(names or ("127.0.0.1", "localhost"))).configure_cert(context)
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=context if tls else None)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            head = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}
            body = await reader.readexactly(int(head.get("content-length", "0")))
            self.told.append(Told(head, line.split(" ")[1], body))
            self.came.set()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        writer.close()
