"""The reader of HTTP beside h11: what both take, both understand alike, and where the next request begins as well."""

from __future__ import annotations

import re

import h11
from hypothesis import assume, given

from common.server.http_parser import RefusedError, Request, RequestReader
from tests.fuzz.inputs import FUZZ, bounded, mangled

MAX_BODY = 2**16

SAMPLES = [
    b"POST /machines/u/t?timeout=3s HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcdeGET / HTTP/1.1\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\nGET",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\nmore",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET http://h:80/a?b HTTP/1.1\r\nHost: h\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    b"HEAD /a%20b HTTP/1.1\r\nhost: h\r\nX-Long: y\r\nConnection: close\r\nExpect: 100-continue\r\n\r\n",
]
TOKENS = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b":",
        b";",
        b"0\r\n",
        b"0\r\n\r\n",
        b"\x00",
        b"\x0b",
        b"\x7f",
        b"\xe9",
        b"+",
        b"-",
    ),
    *(b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: x\r\n"),
    *(b"X: y\r\n z\r\n", b"Transfer-Encoding: identity\r\n", b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"ffffffff"),
]


def ours(data: bytes) -> tuple[Request, bytes] | str:
    """The first request and what follows it, or why there is none."""
    reader = RequestReader(MAX_BODY)
    reader.feed(data)
    try:
        request = reader.next()
    except RefusedError as refused:
        assert 400 <= refused.response.status < 600
        return "refused"
    assert reader.kept <= len(data)
    return (request, bytes(reader._buffer)) if request is not None else "incomplete"


def theirs(data: bytes) -> tuple[str, str, bytes, bytes] | str:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**17)
    try:
        connection.receive_data(data)
        head, body = None, bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                return "incomplete"
            if isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return head.method.decode(), head.target.decode(), bytes(body), connection.trailing_data[0]
            else:
                return "refused"
    except h11.RemoteProtocolError:
        return "refused"


@FUZZ
@given(mangled(SAMPLES, TOKENS))
def test_what_is_taken_is_what_h11_takes(data: bytes) -> None:
    assume(not data.startswith(b"\r\n"))  # taken here once, as RFC 9112 asks for
    with bounded():
        found = ours(data)
    if not isinstance(found, tuple):
        return
    request, rest = found
    if b" ;" in data or b"\t;" in data:
        return  # h11 takes no space before a chunk's extension
    target = f"{request.path}?{request.query}" if "?" in request.path + request.query or request.query else request.path
    other = theirs(data)
    assert isinstance(other, tuple), f"h11: {other}"
    assert (request.method, request.body, rest) == (other[0], other[2], other[3])
    theirs_target = re.sub("^[a-z]+://[^/?]+", "", other[1], flags=re.IGNORECASE)  # an absolute one names a host, too
    if theirs_target != other[1] and not theirs_target.startswith("/"):
        theirs_target = ("*" if request.path == "*" else "/") + theirs_target
    assert target == theirs_target or theirs_target == f"{request.path}?"


@FUZZ
@given(mangled(SAMPLES, TOKENS, 2**14))
def test_what_is_taken_in_pieces_is_what_is_taken_whole(data: bytes) -> None:
    found = ours(data)
    reader = RequestReader(MAX_BODY)
    with bounded():
        for at in range(0, len(data), 7):
            reader.feed(data[at : at + 7])
            try:
                request = reader.next()
            except RefusedError:
                assert found == "refused"
                return
            if request is not None:
                assert isinstance(found, tuple)
                assert request == found[0]
                return
    assert found == "incomplete"
