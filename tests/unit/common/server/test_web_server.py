"""What aiohttp's server does not bound. What both servers do is in test_both_servers.py."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from common.server import connections
from common.server.http_parser import RefusedError
from common.server.web_server import WebServer, ask_later, connection_of, read_body
from devcluster import certificates
from devcluster.certificates import Serving
from tests.client_certificates import Authority, Issued
from tests.unit.common.server.test_http_server import Client, post
from tests.unit.fake_api_server import eventually

MAX_BODY = 1000
SERVING = certificates.serving("server")


@dataclass
class Service:
    """Answers with the body. The caller is the path, and nobody's is /nobody."""

    asked: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    certificates: list[bytes] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    known: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        connection, path = connection_of(request), request.path
        self.certificates.append(connection.certificate)
        try:
            await self.known.wait()
            if path == "/nobody":
                raise RefusedError(401, "who are you")
            connection.name(path)
            body = await read_body(request, MAX_BODY)
            self.asked.append(path)
            if path == "/wait":
                await self.go_on.wait()
        except RefusedError as refused:
            return web.Response(status=refused.response.status)
        except asyncio.CancelledError:
            self.cancelled.append(path)
            raise
        return web.Response(body=b"x" * 4 * 2**20 if path == "/large" else body)


@dataclass
class Running:
    server: WebServer
    service: Service
    clients: list[Client]

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, ssl=tls)
        client = Client(reader, writer)
        self.clients.append(client)
        return client


@asynccontextmanager
async def running(tls: ssl.SSLContext | None = None) -> AsyncIterator[Running]:
    service = Service()
    service.known.set()
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", service.handle, expect_handler=ask_later)
    server = WebServer(app, lambda status, text: web.Response(status=status, text=text), lambda: service.stopping)
    await server.start("127.0.0.1", 0, tls)
    clients: list[Client] = []
    try:
        yield Running(server, service, clients)
    finally:
        await server.stop(0)
        await asyncio.gather(*(client.close() for client in clients))
        assert server.held.total == 0, "what was held is given back with its connection"
        assert len(server._places) == 0


@pytest.fixture
async def world() -> AsyncIterator[Running]:
    async with running() as found:
        yield found


async def test_requests_are_answered_in_order_and_a_connection_is_kept(world: Running) -> None:
    client = await world.connect()
    client.send(post("/a", b"1") + post("/a", b"2"))
    client.send(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n" + post("/a", b"3"))
    answers = [await client.answer(body=number != 2) for number in range(4)]
    assert [body for _, _, body in answers] == [b"1", b"2", b"", b"3"]
    await eventually(lambda: world.server.held.total == 0)


async def test_a_body_is_not_asked_for_before_it_is_known_who_sends_it(world: Running) -> None:
    world.service.known.clear()
    client = await world.connect()
    client.send(post("/a", b"", "Expect: 100-continue").replace(b"Content-Length: 0", b"Content-Length: 3"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await client.reader.read(1)
    world.service.known.set()
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"abc" + post("/a", b"second"))
    assert [(await client.answer())[2] for _ in range(2)] == [b"abc", b"second"]
    assert (world.server._places.unproven, len(world.server._places)) == (0, 1)


async def test_of_nobody_no_body_is_read(world: Running) -> None:
    client = await world.connect()
    client.send(post("/nobody", b"", "Expect: 100-continue").replace(b"Content-Length: 0", b"Content-Length: 900"))
    status, headers, _ = await client.answer()
    assert (status, headers["connection"], world.service.asked) == (401, "close", [])


async def test_who_sends_without_end_is_not_read(world: Running) -> None:
    """Neither behind a request that is being answered nor into one of which nothing is read."""
    ahead, into = await world.connect(), await world.connect()
    ahead.send(post("/wait"))
    await eventually(lambda: world.service.asked)
    ahead.send(post("/a", b"x" * 900) * 20_000)
    world.service.known.clear()
    into.send(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 90000000\r\n\r\n" + b"x" * 20_000_000)
    await asyncio.sleep(0.3)
    assert world.server.held.total < 2 * 2**20
    world.service.known.set()
    assert (await into.answer())[0] == 413
    world.service.go_on.set()
    for _ in range(100):
        assert (await ahead.answer())[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 40_000, 400),
        (b"GET /a HTTP/1.1\r\nHost: h\r\n" + b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(200)), 400),
        (b"GET /a HTTP/1.1\r\nHost: h\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 900) for n in range(20)), 431),
        (post("/a", b"x" * 1001), 413),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001, 413),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length : 3\r\n\r\nabc", 400),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 200-ok\r\nContent-Length: 3\r\n\r\nabc", 417),
    ],
    ids=range(11),
)
async def test_what_is_malformed_or_too_large_is_refused(
    world: Running, sent: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = await world.connect()
    client.send(sent)
    assert (await client.answer())[0] == status
    assert not caplog.records, "nobody fills the log with it"


async def test_who_keeps_all_places_busy_gets_no_other_and_that_connection_ends(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be counted nowhere."""
    monkeypatch.setattr(connections, "MAX_PROVEN_OF_ONE", 1)
    busy, other = await world.connect(), await world.connect()
    busy.send(post("/wait"))
    await eventually(lambda: world.service.asked)
    other.send(post("/wait"))
    status, headers, _ = await other.answer()
    assert (status, headers["connection"]) == (503, "close")
    assert await other.ended() == b""
    assert len(world.server._places) == 1
    world.service.go_on.set()
    assert (await busy.answer())[0] == 200


def serves(directory: Path, authority: Authority, serving: Serving = SERVING) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, content in (("tls.crt", serving.certificate), ("tls.key", serving.key)):
        (directory / name).write_text(content)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    context.load_verify_locations(cadata=authority.pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def shows(certificate: Issued | None) -> ssl.SSLContext:
    trusting = ssl.create_default_context(cadata=SERVING.ca)
    if certificate is not None:
        certificate.present(trusting)
    return trusting


async def test_every_request_has_the_certificate_of_its_connection(tmp_path: Path) -> None:
    authority = Authority()
    ann = authority.issue("ann")
    async with running(serves(tmp_path, authority)) as world:
        for certificate, expected in ((ann, ann.der), (None, b"")):
            client = await world.connect(shows(certificate))
            for _ in range(2):
                client.send(post("/a"))
                assert (await client.answer())[0] == 200
            assert world.service.certificates[-2:] == [expected] * 2
        with pytest.raises((OSError, EOFError)):  # with TLS 1.3 the caller learns it when it reads
            client = await world.connect(shows(Authority().issue("ann")))
            client.send(post("/"))
            await client.answer()
        assert len(world.service.asked) == 4


async def test_another_context_ends_idle_connections_at_once_and_busy_ones_with_their_answer(tmp_path: Path) -> None:
    authority, other = Authority(), Authority()
    async with running(serves(tmp_path, authority)) as world:
        ann = authority.issue("ann")
        idle, busy, coming = [await world.connect(shows(ann)) for _ in range(3)]
        idle.send(post("/a"))
        await idle.answer()
        busy.send(post("/wait"))
        coming.send(post("/b")[:-2])
        await eventually(lambda: len(world.service.asked) == 2 and world.server.held.total)
        world.server.use(serves(tmp_path, other))
        assert await idle.ended() == b""
        world.service.go_on.set()
        coming.send(post("/b")[-2:])
        for client in (busy, coming):
            assert (await client.answer())[1]["connection"] == "close"
        assert world.service.certificates[-1] == b"", "whom it was issued for may not be known any more"
        bob = other.issue("bob")
        renewed = await world.connect(shows(bob))
        renewed.send(post("/a"))
        status, headers, _ = await renewed.answer()
        assert (status, world.service.certificates[-1], "connection" in headers) == (200, bob.der, False)
