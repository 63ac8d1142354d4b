from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.server import connections, handshakes, held, tcp_server
from common.server.http_parser import MAX_CHUNKS, MAX_HEAD, Head, RefusedError, Request, RequestReader, Response, render
from common.server.http_server import HttpServer
from devcluster import certificates
from tests.unit.fake_api_server import PATIENCE, eventually

MAX_BODY = 1000
POST = b"POST /a?b=c HTTP/1.1\r\nHost: h\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def read(*parts: bytes) -> list[Request]:
    reader = RequestReader(MAX_BODY)
    found = []
    for part in parts:
        reader.feed(part)
        while (request := reader.next()) is not None:
            found.append(request)
    return found


def refusal(data: bytes) -> int:
    with pytest.raises(RefusedError) as caught:
        read(data)
    return caught.value.response.status


# The reader


def test_a_request_is_its_method_path_query_body_and_fields() -> None:
    (request,) = read(POST + b"Content-Length: 3\r\n\r\nxyz")
    fields = {b"host": [b"h"], b"content-length": [b"3"]}
    assert request == Request(method="POST", path="/a", query="b=c", body=b"xyz", close=False, fields=fields)


def test_a_field_has_a_value_where_it_comes_once() -> None:
    (request,) = read(b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nB: 2\r\nb: 3\r\n\r\n")
    assert [request.field(name) for name in ("a", "b", "c")] == ["1", None, None]


def test_a_request_without_a_length_has_no_body() -> None:
    assert [request.body for request in read(POST + b"\r\n" + GET)] == [b"", b""]


def test_an_empty_line_before_a_request_is_forgiven_once() -> None:
    assert len(read(GET + b"\r\n" + GET)) == 2
    assert refusal(b"\r\n\r\n" + GET) == 400


def test_nothing_is_unquoted() -> None:
    (request,) = read(b"GET /%61//b/../c?x=%20 HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (request.path, request.query) == ("/%61//b/../c", "x=%20")


@pytest.mark.parametrize(
    ("line", "path", "query"),
    [
        (b"GET http://h/a?b=c", "/a", "b=c"),
        (b"GET HTTPS://other:8443/a//b", "/a//b", ""),
        (b"GET http://[2001:db8::1]:80", "/", ""),
        (b"GET http://h?b=c", "/", "b=c"),
        (b"OPTIONS *", "*", ""),
        (b"OPTIONS http://h", "*", ""),
        (b"OPTIONS http://h/", "/", ""),
    ],
)
def test_a_target_may_be_absolute_and_that_of_options_the_whole_server(line: bytes, path: str, query: str) -> None:
    """RFC 9112, section 3.2: a server must take the absolute form, and the host of it means as little as Host."""
    (request,) = read(line + b" HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (request.path, request.query) == (path, query)


@pytest.mark.parametrize(
    "target",
    [b"*", b"*?a", b"a", b"?a", b"h:443", b"http:/a", b"http:///a", b"http://u:p@h/a", b"ftp://h/a", b"http://h#a"],
)
def test_no_other_target_is_taken(target: bytes) -> None:
    assert refusal(b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n") == 400


@pytest.mark.parametrize(
    ("head", "close"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: h\r\nconnection:\tx ,CLOSE\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: x\r\nConnection: close\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_who_wants_the_connection_to_end_is_understood(head: bytes, close: bool) -> None:
    assert [request.close for request in read(head)] == [close]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"0\r\n\r\n", b""),
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"3\r\nabc\r\n00a\r\n0123456789\r\n000\r\n\r\n", b"abc0123456789"),
        (b"2;name=value\r\n\r\n\r\n0;x\r\n\r\n", b"\r\n"),
        (b"1\r\na\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n", b"a"),
    ],
)
def test_chunks_are_put_together(body: bytes, expected: bytes) -> None:
    first, second = read(CHUNKED + body + GET)
    assert (first.body, second.method) == (expected, "GET")


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"Content-Length: 3\r\nContent-Length: 3",
        b"Content-Length: 3\r\nContent-Length: 4",
        b"Content-Length: 3, 3",
        b"Content-Length: +3",
        b"Content-Length: -1",
        b"Content-Length: 0x3",
        b"Content-Length: 3 3",
        b"Content-Length: 3\xb2",
        b"Content-Length:",
        b"Content-Length: " + b"9" * 16,
        b"Content-Length : 3",
        b" Content-Length: 3",
        b"X: y\r\n Content-Length: 3",
        b"X: y\r\n\tfolded",
        b"Content-Length: 3\nX: y",
        b"Content-Length: 3\rX: y",
        b"X: a\x00b",
        b"X: a\x7fb",
        b"X\xff: a",
        b": a",
        b"no colon",
        b"Host: other",
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(framing: bytes) -> None:
    assert refusal(POST + framing + b"\r\n\r\nxyz") == 400


@pytest.mark.parametrize(
    ("coding", "status"),
    [
        (b"gzip", 501),
        (b"gzip, chunked", 501),
        (b"chunked, chunked", 501),
        (b"identity", 501),
        (b"xchunked", 501),
        (b"chunked\r\nTransfer-Encoding: chunked", 501),
        (b"\x0bchunked", 400),
    ],
)
def test_no_transfer_coding_but_chunked_is_taken(coding: bytes, status: int) -> None:
    assert refusal(POST + b"Transfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n") == status


def test_chunks_are_not_of_http_1_0() -> None:
    assert refusal(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n") == 400


@pytest.mark.parametrize(
    "body",
    [
        b"g\r\n",
        b"\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"123456789\r\n",
        b"1 1\r\na\r\n",
        b"1\na\r\n",
        b"1;a\nb\r\na\r\n",
        b"1;a\rb\r\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n0\r\n\r\n",
        b"1;" + b"x" * 300,
        b"0\r\nno colon\r\n\r\n",
        b"0\r\nX: y\r\n folded\r\n\r\n",
    ],
)
def test_malformed_chunks_are_refused(body: bytes) -> None:
    assert refusal(CHUNKED + body) == 400


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/2.0", 505),
        (b"PRI * HTTP/2.0", 505),
        (b"GET / HTTP/1.2", 505),
        (b"GET / HTTP/1.1 ", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET /", 400),
        (b"GET / http/1.1", 400),
        (b"GET /a b HTTP/1.1", 400),
        (b"GET /\xe4 HTTP/1.1", 400),
        (b"GET /\x00 HTTP/1.1", 400),
        (b" GET / HTTP/1.1", 400),
        (b"G(T / HTTP/1.1", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
def test_a_line_that_is_no_request_is_refused(line: bytes, status: int) -> None:
    assert refusal(line + b"\r\nHost: h\r\n\r\n") == status


def test_a_request_names_one_host() -> None:
    assert refusal(b"GET / HTTP/1.1\r\n\r\n") == 400
    assert refusal(b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n") == 400


def test_a_body_may_be_as_large_as_allowed_and_no_larger() -> None:
    assert len(read(POST + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000)) == 1
    assert refusal(POST + b"Content-Length: 1001\r\n\r\n") == 413
    assert len(read(CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n")) == 1
    assert refusal(CHUNKED + b"3e7\r\n" + b"x" * 999 + b"\r\n2\r\n") == 413


def test_a_head_may_be_as_large_as_allowed_and_no_larger() -> None:
    rest = MAX_HEAD - len(POST) - len(b"X: \r\n\r\n")
    assert len(read(POST + b"X: " + b"x" * rest + b"\r\n\r\n")) == 1
    assert refusal(POST + b"X: " + b"x" * (rest + 1) + b"\r\n\r\n") == 431
    assert refusal(b"x" * MAX_HEAD) == 431
    assert refusal(CHUNKED + b"0\r\nX: " + b"x" * MAX_HEAD) == 431


def test_a_body_in_crumbs_is_refused() -> None:
    reader = RequestReader(MAX_CHUNKS + 1)
    reader.feed(CHUNKED + b"1\r\nx\r\n" * MAX_CHUNKS)
    assert reader.next() is None
    reader.feed(b"1\r\nx\r\n")
    with pytest.raises(RefusedError):
        reader.next()


def test_who_waits_to_be_asked_for_his_body_is_asked_once() -> None:
    reader = RequestReader(MAX_BODY)
    for _ in range(2):
        reader.feed(POST + b"Expect: 100-Continue\r\nContent-Length: 1\r\n")
        assert reader.next() is None
        assert not reader.asks_to_continue(), "the head is not complete"
        reader.feed(b"\r\n")
        assert reader.next() is None
        assert [reader.asks_to_continue(), reader.asks_to_continue()] == [True, False]
        reader.feed(b"x")
        assert reader.next() is not None


def test_who_has_sent_his_body_is_not_asked_for_it() -> None:
    reader = RequestReader(MAX_BODY)
    reader.feed(POST + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx")
    assert reader.next() is not None
    assert not reader.asks_to_continue()


def test_nothing_else_can_be_expected() -> None:
    assert refusal(POST + b"Expect: 200-ok\r\n\r\n") == 417


_NAMES = st.text(alphabet="abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(lambda name: f"x-{name}")
_VALUES = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
_BODIES = st.binary(max_size=200) | st.sampled_from([b"\r\n\r\n", b"0\r\n\r\n", GET])


@st.composite
def _message(draw: st.DrawFn) -> tuple[bytes, Request]:
    method = draw(st.sampled_from(["GET", "POST", "PUT", "HEAD"]))
    path = "/" + draw(st.text(alphabet="abc/%2.", max_size=10))
    query = draw(st.text(alphabet="abc=&?", max_size=10))
    headers = [f"{name}: {value}" for name, value in draw(st.lists(st.tuples(_NAMES, _VALUES), max_size=4))]
    body = draw(_BODIES)
    if draw(st.booleans()):
        headers.append(draw(st.sampled_from(["Transfer-Encoding: chunked", "transfer-encoding:CHUNKED "])))
        cuts = sorted({0, len(body), *draw(st.lists(st.integers(0, len(body)), max_size=4))})
        pieces = [body[begin:end] for begin, end in itertools.pairwise(cuts)]
        content = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n"
        content += draw(st.sampled_from([b"\r\n", b"X-Sum: 1\r\n\r\n"]))
    else:
        headers.append(f"Content-Length: {len(body)}")
        content = body
    headers = draw(st.permutations([*headers, "Host: h"]))
    line = f"{method} {path}{'?' if query else ''}{query} HTTP/1.1"
    head = "\r\n".join([line, *headers]).encode() + b"\r\n\r\n"
    fields: dict[bytes, list[bytes]] = {}
    for header in headers:
        name, _, value = header.partition(":")
        fields.setdefault(name.lower().encode(), []).append(value.strip(" \t").encode())
    return head + content, Request(method=method, path=path, query=query, body=body, close=False, fields=fields)


@given(st.lists(_message(), max_size=4), st.data())
def test_requests_are_the_same_however_their_bytes_are_split(
    messages: list[tuple[bytes, Request]], data: st.DataObject
) -> None:
    stream = b"".join(message for message, _ in messages)
    cuts = sorted({0, len(stream), *data.draw(st.lists(st.integers(0, len(stream)), max_size=8))})
    parts = [stream[begin:end] for begin, end in itertools.pairwise(cuts)]
    assert read(*parts) == [request for _, request in messages]


@given(st.lists(_message(), min_size=1, max_size=2))
def test_requests_are_the_same_byte_by_byte(messages: list[tuple[bytes, Request]]) -> None:
    stream = b"".join(message for message, _ in messages)
    assert read(*(stream[index : index + 1] for index in range(len(stream)))) == [request for _, request in messages]


@given(st.binary(max_size=300) | st.lists(st.sampled_from([POST, b"\r\n", b"0", b":", b" ", b"\n"])).map(b"".join))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    reader = RequestReader(MAX_BODY)
    reader.feed(data)
    try:
        while reader.next() is not None:
            pass
    except RefusedError as refused:
        assert 400 <= refused.response.status < 600


def test_an_answer_tells_its_length_and_whether_it_is_the_last() -> None:
    answer = render(Response(200, b"{}", "application/json"), last=True)
    head, body = answer.split(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[:3] == [b"HTTP/1.1 200 OK", b"Content-Type: application/json", b"Connection: close"]
    assert lines[3].startswith(b"Date: ") and lines[3].endswith(b" GMT")
    assert (lines[4:], body) == ([b"Content-Length: 2"], b"{}")
    assert b"Connection" not in render(Response(200, b"{}"), last=False)


# The server


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE):
            head = await self.reader.readuntil(b"\r\n\r\n")
            start, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            length = int(headers.get("content-length", 0)) if body else 0
            return int(start.split(" ")[1]), headers, await self.reader.readexactly(length)

    async def ended(self) -> bytes:
        """What came before the server closed the connection."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


class Service:
    """What the tests' server answers, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.cancelled: list[Request] = []
        self.go_on = asyncio.Event()
        self.stopping = False
        self.large = b"x" * 4 * 2**20

    async def handle(self, request: Request) -> Response:
        self.asked.append(request)
        if request.path == "/wait":
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.append(request)
                raise
        if request.path == "/fail":
            raise ValueError("it broke")
        if request.path == "/large":
            return Response(200, self.large)
        return Response(200, request.body)


class Running:
    def __init__(self, server: HttpServer, service: Service, clients: list[Client]) -> None:
        self.server = server
        self.service = service
        self._clients = clients

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, ssl=tls)
        client = Client(reader, writer)
        self._clients.append(client)
        return client

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually(condition)


@asynccontextmanager
async def running(tls: ssl.SSLContext | None = None) -> AsyncIterator[Running]:
    service = Service()
    server = HttpServer(service.handle, max_body=MAX_BODY, stopping=lambda: service.stopping)
    await server.start("127.0.0.1", 0, tls)
    clients: list[Client] = []
    try:
        yield Running(server, service, clients)
    finally:
        await server.stop(0)
        await asyncio.gather(*(client.close() for client in clients))
        assert server.held.total == 0, "what was held is given back with its connection"


@pytest.fixture
async def world() -> AsyncIterator[Running]:
    async with running() as found:
        yield found


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose seconds are short."""
    monkeypatch.setattr(tcp_server, "SWEEP_SECONDS", 0.01)
    for name in ("FIRST_SECONDS", "READ_SECONDS", "WRITE_SECONDS", "IDLE_SECONDS", "DRAIN_SECONDS"):
        monkeypatch.setattr(tcp_server, name, 30.0)


def post(path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def test_a_connection_is_kept_from_request_to_request(world: Running) -> None:
    client = await world.connect()
    for body in (b"one", b"two"):
        client.send(post("/", body))
        status, headers, answer = await client.answer()
        assert (status, answer, headers.get("connection")) == (200, body, None)


async def test_requests_that_come_together_are_answered_one_by_one_in_order(world: Running) -> None:
    client = await world.connect()
    client.send(post("/wait", b"1") + post("/", b"2") + post("/", b"3"))
    await world.until(lambda: world.service.asked)
    await asyncio.sleep(0.02)
    assert len(world.service.asked) == 1
    world.service.go_on.set()
    assert [(await client.answer())[2] for _ in range(3)] == [b"1", b"2", b"3"]


async def test_who_sends_ahead_without_end_is_not_read(world: Running) -> None:
    client = await world.connect()
    client.send(post("/wait"))
    await world.until(lambda: world.service.asked)
    one = post("/", b"x" * 900)
    client.send(one * 20_000)
    await asyncio.sleep(0.2)
    assert world.server.held.total < 2**20
    world.service.go_on.set()
    for _ in range(1000):
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize("request_bytes", [b"GET / HTTP/1.0\r\n\r\n", post("/", b"", "Connection: close")])
async def test_a_connection_ends_when_its_caller_says_so(world: Running, request_bytes: bytes) -> None:
    client = await world.connect()
    client.send(request_bytes + post("/", b"more"))
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await client.ended() == b""
    assert len(world.service.asked) == 1


async def test_head_is_answered_without_a_body(world: Running) -> None:
    client = await world.connect()
    client.send(b"HEAD / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
    assert (await client.answer(body=False))[1]["content-length"] == "3"
    client.send(post("/", b"next"))
    assert (await client.answer())[2] == b"next"


async def test_who_waits_before_his_body_is_told_to_go_on(world: Running) -> None:
    client = await world.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert (await client.answer())[0] == 100
    client.send(b"ab")
    assert (await client.answer())[::2] == (200, b"ab")


async def test_what_is_refused_is_answered_and_ends_the_connection(world: Running) -> None:
    client = await world.connect()
    client.send(post("/", b"fine") + b"nonsense\r\n\r\n" + post("/"))
    assert (await client.answer())[0] == 200
    status, headers, text = await client.answer()
    assert (status, headers["connection"], text) == (400, "close", b"not a request of HTTP/1.1\n")
    assert len(world.service.asked) == 1


@pytest.mark.usefixtures("hasty")
async def test_a_refused_connection_ends_though_its_caller_does_not_close_it(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_server, "DRAIN_SECONDS", 0.05)
    client = await world.connect()
    client.send(b"nonsense\r\n\r\n")
    assert (await client.answer())[0] == 400
    assert await client.ended() == b""


async def test_a_handler_that_fails_is_a_500_and_the_next_request_is_served(
    world: Running, caplog: pytest.LogCaptureFixture
) -> None:
    client = await world.connect()
    with caplog.at_level(logging.ERROR):
        client.send(post("/fail?token=secret", b"secret"))
        assert (await client.answer())[::2] == (500, b"the request failed here\n")
    assert "it broke" in caplog.text
    assert "secret" not in caplog.text
    client.send(post("/", b"next"))
    assert (await client.answer())[2] == b"next"


@pytest.mark.usefixtures("hasty")
async def test_a_byte_now_and_then_does_not_prolong_a_request(world: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "READ_SECONDS", 0.2)
    client = await world.connect()

    async def drip() -> None:
        for byte in post("/", b"x" * 900):
            client.send(bytes([byte]))
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    assert (await client.answer())[0] == 408
    dripping.cancel()


@pytest.mark.usefixtures("hasty")
async def test_a_request_that_is_being_answered_may_take_longer_than_any_other_wait(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await world.connect()
    await world.until(lambda: world.server._connections)
    for name in ("READ_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(tcp_server, name, 0.05)
    client.send(post("/wait", b"1"))
    await world.until(lambda: world.service.asked)
    await asyncio.sleep(0.2)
    world.service.go_on.set()
    assert (await client.answer())[::2] == (200, b"1")


async def proven(world: Running, caller: str) -> Client:
    """Idle, and known."""
    client = await world.connect()
    client.send(post(f"/{caller}"))
    assert (await client.answer())[0] == 200
    return client


def named(head: Head) -> str | None:
    return None if head.path == "/nobody" else head.path


async def test_where_all_places_are_taken_the_caller_with_most_gives_one_up(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_PROVEN", 3)
    world.server.identify = named
    small, large, _, newest = [await proven(world, caller) for caller in ("b", "a", "a", "c")]
    assert await large.ended() == b""
    for client in (small, newest):
        client.send(post("/b", b"still here"))
        assert (await client.answer())[2] == b"still here"


async def test_a_caller_that_keeps_all_places_busy_keeps_no_other_out(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_PROVEN", 4)
    world.server.identify = lambda _head: "a"
    busy = [await world.connect() for _ in range(4)]
    for client in busy:
        client.send(post("/wait"))
    await world.until(lambda: len(world.service.asked) == len(busy))
    world.server.identify = named
    others = [await proven(world, caller) for caller in ("b", "c")]
    for client in busy[:2]:
        assert await client.ended() == b"", "of the one that has most"
    for client, path in zip(others, ("/b", "/c"), strict=True):
        client.send(post(path, b"still here"))
        assert (await client.answer())[2] == b"still here"


async def test_where_each_caller_has_one_busy_place_none_gives_it_up(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_PROVEN", 2)
    callers = ["a", "b"]
    world.server.identify = lambda head: head.path if not callers else callers.pop()
    for client in [await world.connect() for _ in callers[:]]:
        client.send(post("/wait"))
    await world.until(lambda: len(world.service.asked) == 2)
    refused = await world.connect()
    refused.send(post("/c"))
    assert (await refused.answer())[0] == 503


async def test_who_has_not_proven_itself_costs_nobody_who_has(world: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_UNPROVEN_OF_ONE", 3)
    monkeypatch.setattr(connections, "MAX_PROVEN", 2)
    world.server.identify = named
    known = [await proven(world, caller) for caller in ("a", "b")]
    silent = [await world.connect() for _ in range(10)]
    for client in silent[:7]:
        assert await client.ended() == b"", "the oldest of an address give way"
    for client in known:
        client.send(post("/a", b"still here"))
        assert (await client.answer())[2] == b"still here"


async def test_a_body_is_not_read_of_a_path_that_nobody_is_known_by(world: Running) -> None:
    world.server.identify = named
    client = await world.connect()
    client.send(b"POST /nobody HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")
    assert (await client.answer())[0] == 404
    assert not world.service.asked


async def test_who_is_served_without_a_name_is_counted_by_address_and_proven_when_it_gives_one(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_UNPROVEN_OF_ONE", 2)
    world.server.identify = lambda head: "" if head.path == "/public" else head.path
    first, second = [await world.connect() for _ in range(2)]
    for client in (first, second):
        client.send(post("/public"))
        assert (await client.answer())[0] == 200
    second.send(post("/a"))
    assert (await second.answer())[0] == 200
    assert (world.server._places.unproven, len(world.server._places)) == (1, 2)
    others = [await world.connect() for _ in range(2)]
    assert await first.ended() == b"", "the oldest of its address"
    for client in (second, *others):
        client.send(post("/public"))
        assert (await client.answer())[0] == 200


async def test_too_much_that_is_held_is_refused_to_whoever_holds_much(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MAX_HELD", 2000)
    monkeypatch.setattr(held, "FAIR_SHARE", 1000)
    first, second, small = [await world.connect() for _ in range(3)]
    first.send(post("/", b"x" * 1000)[:-1])
    await world.until(lambda: world.server.held.total > 900)
    second.send(post("/", b"x" * 1000)[:-1])
    assert (await second.answer())[0] == 503
    small.send(post("/", b"small"))
    assert (await small.answer())[2] == b"small"
    waiting = await world.connect()
    waiting.send(post("/", b"x" * 900)[:-1])
    await world.until(lambda: world.server.held.total > 1950)
    waiting.send(b"x")
    assert (await waiting.answer())[0] == 200
    waiting.send(post("/", b"x" * 940)[:-1])
    await world.until(lambda: world.server.held.total > 2000)
    first.send(b"x")
    assert (await first.answer())[0] == 503, "it holds much, too"


async def test_stopping_waits_no_longer_than_it_may(world: Running) -> None:
    client = await world.connect()
    client.send(post("/wait"))
    await world.until(lambda: world.service.asked)
    await asyncio.wait_for(world.server.stop(0.05), PATIENCE)
    assert await client.ended() == b""
    await world.until(lambda: world.service.cancelled)


async def test_connections_live_on_while_it_is_about_to_stop(world: Running) -> None:
    client = await world.connect()
    client.send(post("/"))
    await client.answer()
    world.server.end_soon()
    client.send(post("/", b"last"))
    _, headers, answer = await client.answer()
    assert (headers["connection"], answer) == ("close", b"last")


def load(context: ssl.SSLContext, made: certificates.Serving, directory: Path) -> None:
    (directory / "tls.crt").write_text(made.certificate)
    (directory / "tls.key").write_text(made.key)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")


async def test_over_tls_new_connections_get_the_certificate_that_was_loaded_last(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old, new = certificates.serving("webhook"), certificates.serving("webhook")
    load(context, old, tmp_path)
    async with running(context) as world:
        first = await world.connect(ssl.create_default_context(cadata=old.ca))
        load(context, new, tmp_path)
        second = await world.connect(ssl.create_default_context(cadata=new.ca))
        for client in (first, second):
            client.send(post("/", b"x" * 1000))
            assert (await client.answer())[::2] == (200, b"x" * 1000)


async def test_http_2_is_not_offered(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made = certificates.serving("webhook")
    load(context, made, tmp_path)
    async with running(context) as world:
        trusting = ssl.create_default_context(cadata=made.ca)
        trusting.set_alpn_protocols(["h2", "http/1.1"])
        client = await world.connect(trusting)
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2"
        client.send(post("/", b"x"))
        assert (await client.answer())[2] == b"x"


@pytest.mark.usefixtures("hasty")
async def test_a_storm_of_connections_begins_no_more_handshakes_than_the_loop_bears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_UNPROVEN_OF_ONE", 20)
    monkeypatch.setattr(handshakes, "BURST", 4)
    monkeypatch.setattr(handshakes, "PER_SECOND", 0.001)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made = certificates.serving("webhook")
    load(context, made, tmp_path)
    async with running(context) as world:
        trusting = ssl.create_default_context(cadata=made.ca)
        opened = [await world.connect(trusting) for _ in range(4)]
        storm = [await world.connect() for _ in range(60)]
        for client in (*opened, *storm[:36]):
            assert await client.ended() == b"", "the oldest of the address gives way"
        assert world.server._places.unproven == 20
        await eventually(
            lambda: len(world.server._opening) == 20 == len(world.server._handshakes._queue._waiting["127.0.0.1"])
        )


async def test_what_is_no_tls_leaves_no_connection(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, certificates.serving("webhook"), tmp_path)
    async with running(context) as world:
        for _ in range(50):
            client = await world.connect()
            client.send(GET)
            await client.ended()
        await world.until(lambda: not world.server._connections)
        assert len(world.server._places) == 0


@pytest.mark.parametrize(
    ("peer", "party"),
    [
        (("192.0.2.1", 1), "192.0.2.1"),
        (("::ffff:192.0.2.1", 1, 0, 0), "192.0.2.1"),
        (("::1", 1, 0, 0), "::1"),
        (("2001:db8:1:2:3::4", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 3), "fe80::/64"),
        ("", ""),
    ],
)
def test_who_has_a_network_of_ipv6_is_one_party(peer: object, party: str) -> None:
    assert connections.party_of(peer) == party
