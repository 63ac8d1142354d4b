"""What the server of webhooks and the one of aiohttp's applications do alike. A caller is the path of its request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from common.server import connections, held, tcp_server
from devcluster import certificates
from tests.unit.common.server import test_http_server as http
from tests.unit.common.server import test_web_server as web
from tests.unit.common.server.test_http_server import hasty, post  # noqa: F401 (a fixture)
from tests.unit.fake_api_server import PATIENCE, eventually

World = http.Running | web.Running
Serving = Callable[[ssl.SSLContext | None], AbstractAsyncContextManager[World]]


@asynccontextmanager
async def http_server(tls: ssl.SSLContext | None) -> AsyncIterator[World]:
    async with http.running(tls) as world:
        world.server.identify = http.named
        yield world


@asynccontextmanager
async def web_server(tls: ssl.SSLContext | None) -> AsyncIterator[World]:
    async with web.running(tls) as world:
        yield world


@pytest.fixture(params=[http_server, web_server], ids=["HttpServer", "WebServer"])
def serving(request: pytest.FixtureRequest) -> Serving:
    found: Serving = request.param
    return found


@pytest.fixture
async def world(serving: Serving) -> AsyncIterator[World]:
    async with serving(None) as found:
        yield found


@pytest.mark.usefixtures("hasty")
async def test_who_sends_too_much_is_told_so_though_he_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "DRAIN_SECONDS", 1.0)
    head = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\n\r\n"
    at_once, later = await world.connect(), await world.connect()
    at_once.send(head + b"x" * 9_000_000 + post("/a"))
    later.send(head)
    for client in (at_once, later):
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert world.server.held.total < 2**20
    later.send(b"x" * 9_000_000 + post("/a"))
    for client in (at_once, later):
        assert await client.ended() == b""
    assert world.service.asked == []


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("beginning", [b"", b"P"], ids=["nothing", "a byte"])
async def test_a_first_request_must_come_soon(world: World, monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    monkeypatch.setattr(tcp_server, "FIRST_SECONDS", 1.0)  # in which a busy machine makes the handshake and sends this
    monkeypatch.setattr(tcp_server, "DRAIN_SECONDS", 0.05)
    client = await world.connect()
    client.send(beginning)
    if beginning:
        assert (await client.answer())[0] == 408
    assert await client.ended() == b""


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("beginning", [b"P", post("/a", b"abc")[:-1]], ids=["head", "body"])
async def test_a_request_that_comes_too_slowly_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    client = await world.connect()
    client.send(post("/a"))
    assert (await client.answer())[0] == 200
    monkeypatch.setattr(tcp_server, "READ_SECONDS", 0.1)
    client.send(beginning)
    assert (await client.answer())[0] == 408


@pytest.mark.usefixtures("hasty")
async def test_an_idle_connection_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    used = await world.connect()
    used.send(post("/a"))
    await used.answer()
    monkeypatch.setattr(tcp_server, "FIRST_SECONDS", 1.0)  # the handshake is a part of them
    monkeypatch.setattr(tcp_server, "IDLE_SECONDS", 0.05)
    unused = await world.connect()
    used.send(post("/a"))
    assert (await used.answer())[0] == 200
    assert [await client.ended() for client in (used, unused)] == [b"", b""]


@pytest.mark.usefixtures("hasty")
async def test_who_does_not_read_his_answer_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "WRITE_SECONDS", 0.1)
    client = await world.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(post("/large") * 20)
    await eventually(lambda: world.service.asked)
    await eventually(lambda: not world.server._connections)
    assert len(world.service.asked) < 20, "no answer is made while the ones before it are not taken"


async def test_a_caller_who_goes_away_gives_his_request_up(world: World) -> None:
    client = await world.connect()
    client.send(post("/wait"))
    await eventually(lambda: world.service.asked)
    await client.close()
    await eventually(lambda: world.service.cancelled)


async def test_too_many_connections_of_a_caller_cost_its_own_that_is_idle_for_longest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_PROVEN_OF_ONE", 2)
    known = []
    for path in ("/b", "/a", "/a", "/a"):
        client = await world.connect()
        client.send(post(path))
        assert (await client.answer())[0] == 200
        known.append(client)
    other, first, second, third = known
    assert await first.ended() == b""
    for client in (second, third):
        client.send(post("/wait"))
    await eventually(lambda: len(world.service.asked) == 6)
    refused = await world.connect()
    refused.send(post("/a"))
    assert (await refused.answer())[0] == 503
    other.send(post("/b", b"still here"))
    assert (await other.answer())[2] == b"still here"


async def test_one_caller_who_holds_much_costs_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MAX_HELD_OF_ONE", 2000)
    monkeypatch.setattr(held, "FAIR_SHARE", 500)
    for _ in range(2):
        client = await world.connect()
        client.send(post("/a", b"x" * 900)[:-1])
    await eventually(lambda: world.server.held.total > 1800)
    third, other = await world.connect(), await world.connect()
    third.send(post("/a", b"x" * 900)[:-1])
    assert (await third.answer())[0] == 503
    other.send(post("/b", b"x" * 900))
    assert (await other.answer())[0] == 200


async def test_stopping_finishes_what_was_begun_and_closes_what_is_idle(world: World) -> None:
    busy, beginning, idle = await world.connect(), await world.connect(), await world.connect()
    busy.send(post("/wait", b"1"))
    beginning.send(post("/a", b"2")[:-1])
    idle.send(post("/a"))
    await idle.answer()
    await eventually(lambda: len(world.service.asked) == 2)
    stopping = asyncio.create_task(world.server.stop(PATIENCE))
    assert await idle.ended() == b""
    with pytest.raises(ConnectionRefusedError):
        await world.connect()
    beginning.send(b"2")
    world.service.go_on.set()
    for client, body in ((busy, b"1"), (beginning, b"2")):
        status, headers, answer = await client.answer()
        assert (status, headers["connection"], answer) == (200, "close", body)
    await asyncio.wait_for(stopping, PATIENCE)


async def test_while_it_is_about_to_stop_each_answer_ends_its_connection(world: World) -> None:
    client = await world.connect()
    world.service.stopping = True
    client.send(post("/a"))
    assert (await client.answer())[1]["connection"] == "close"
    assert await client.ended() == b""


@pytest.mark.usefixtures("hasty")
async def test_handshakes_that_never_end_are_counted_and_give_way(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_UNPROVEN_OF_ONE", 3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made = certificates.serving("webhook")
    http.load(context, made, tmp_path)
    async with serving(context) as world:
        trusting = ssl.create_default_context(cadata=made.ca)
        known = await world.connect(trusting)
        known.send(post("/a"))
        assert (await known.answer())[0] == 200
        silent = [await world.connect() for _ in range(10)]
        for client in silent[:7]:
            assert await client.ended() == b""
        assert world.server._places.unproven == 3
        later = await world.connect(trusting)
        for client in (known, later):
            client.send(post("/b", b"x"))
            assert (await client.answer())[2] == b"x"
        monkeypatch.setattr(tcp_server, "FIRST_SECONDS", 0.1)
        late = await world.connect()
        assert await late.ended() == b"", "a handshake has seconds"
