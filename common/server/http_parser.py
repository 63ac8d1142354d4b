"""HTTP/1.1 without I/O: bytes in, requests out; answers in, bytes out. Strict: whatever two readers could understand
differently is refused (RFC 9112, section 11.2), and what a caller can make us keep of a request is bounded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import msgspec

Check = Callable[["Head"], None]
"""Raises RefusedError where nothing more is read."""

Fields = dict[bytes, list[bytes]]

MAX_HEAD = 16 * 1024
MAX_CHUNK_LINE = 256
SHARED = 64 * 1024  # bytes of a body from which on it is not copied
MAX_CHUNKS = 16_384  # of one body: each costs more than its bytes do

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Head(msgspec.Struct, frozen=True):
    """`length` of the body; None: it comes in chunks. `expects`: the caller waits to be asked for the body. `fields`:
    values by name in lower case.
    """

    method: str
    path: str
    query: str
    length: int | None
    close: bool
    expects: bool
    fields: Fields = {}


class Request(msgspec.Struct, frozen=True):
    """`path`, `query` and `fields` as they came, nothing is unquoted. After a `close` one no other can follow.
    `address`: of the caller, as `party_of` has it."""

    method: str
    path: str
    query: str
    body: bytes
    close: bool
    fields: Fields = {}
    address: str = ""

    def field(self, name: str) -> str | None:
        """Its value, if it comes once."""
        values = self.fields.get(name.encode(), ())
        return values[0].decode("latin-1") if len(values) == 1 else None


class Response(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class RefusedError(Exception):
    """The bytes are no request that is served here. Where the next one would begin is unknown."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = Response(status, f"{text}\n".encode())


_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]+) HTTP/([0-9]\.[0-9])")
_ABSOLUTE = re.compile(r"https?://[^/?#@]+(/[^?#]*)?(?:\?([^#]*))?", re.IGNORECASE)
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([ -~\t\x80-\xff]*)")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[ -~\t\x80-\xff]*)?")
_LENGTH = re.compile(rb"[0-9]{1,15}")


@lru_cache(maxsize=256)
def parse_head(head: bytes) -> Head:
    """What precedes the empty line. Raises RefusedError.

    Cached: on a connection that is kept, heads differ in little but the length.
    """
    start, *lines = head.removeprefix(b"\r\n").split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(start)
    if line is None:
        raise RefusedError(400, "not a request of HTTP/1.1")
    version = line[3]
    if version not in (b"1.1", b"1.0"):
        raise RefusedError(505, "only HTTP/1.1 is spoken here")
    fields = _fields(lines)
    if len(fields.get(b"host", [])) != 1 and (version == b"1.1" or b"host" in fields):
        raise RefusedError(400, "there must be one Host")
    length = _length(fields, version)
    expect = [value.lower() for value in fields.get(b"expect", [])]
    if expect not in ([], [b"100-continue"]):
        raise RefusedError(417, "nothing but 100-continue can be expected")
    options = {option.strip().lower() for value in fields.get(b"connection", []) for option in value.split(b",")}
    method = line[1].decode()
    path, query = _target(method, line[2].decode())
    return Head(
        method=method,
        path=path,
        query=query,
        length=length,
        close=version == b"1.0" or b"close" in options,
        expects=bool(expect) and version == b"1.1",
        fields=fields,
    )


def _target(method: str, target: str) -> tuple[str, str]:
    """Its path and query, or "*" for the whole server (RFC 9112, section 3.2). A host in it means as little as Host."""
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query
    if target == "*" and method == "OPTIONS":
        return target, ""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise RefusedError(400, "the target of the request is malformed")
    path, query = absolute[1] or "", absolute[2] or ""
    return path or ("*" if method == "OPTIONS" and not query else "/"), query


def _fields(lines: list[bytes]) -> dict[bytes, list[bytes]]:
    """Values by name in lower case. A line that continues the one before it (obs-fold) is malformed."""
    fields: dict[bytes, list[bytes]] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise RefusedError(400, "a header field is malformed")
        fields.setdefault(field[1].lower(), []).append(field[2].strip(b" \t"))
    return fields


def _length(fields: dict[bytes, list[bytes]], version: bytes) -> int | None:
    """Where the body ends must be said once, in one way."""
    coding, lengths = fields.get(b"transfer-encoding", []), fields.get(b"content-length", [])
    if coding:
        if lengths or version == b"1.0":
            raise RefusedError(400, "Transfer-Encoding goes with HTTP/1.1 and without Content-Length")
        if [value.lower() for value in coding] != [b"chunked"]:
            raise RefusedError(501, "no Transfer-Encoding but chunked is known here")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise RefusedError(400, "Content-Length is malformed")
    return int(lengths[0])


class RequestReader:
    """Bytes in, requests out. After a RefusedError it is of no more use."""

    def __init__(self, max_body: int, check: Check = lambda _head: None) -> None:
        """`check` is called with each head, before its body is read."""
        self._max_body = max_body
        self._check = check
        self._buffer = bytearray()
        self._searched = 0  # no head ends before this
        self._head: Head | None = None
        self._chunked = bytearray()
        self._chunks = 0
        self._asked = False

    @property
    def kept(self) -> int:
        """Bytes that came and are not part of a request that was handed out."""
        return len(self._buffer) + len(self._chunked)

    @property
    def begun(self) -> bool:
        """A part of a request has come."""
        return self._head is not None or bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Request | None:
        """None until another whole request has come. Raises RefusedError."""
        head = self._head
        if head is None:
            head = self._read_head()
            if head is None:
                return None
            self._check(head)
            self._head = head
        body = self._read_chunks() if head.length is None else self._read_body(head.length)
        if body is None:
            return None
        self._head = None
        self._asked = False
        return Request(head.method, head.path, head.query, body, head.close, head.fields)

    def asks_to_continue(self) -> bool:
        """True once for a request whose caller holds the body back until it is asked to send it."""
        if self._asked or self._head is None or not self._head.expects:
            return False
        self._asked = True
        return True

    def _read_head(self) -> Head | None:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", self._searched, MAX_HEAD)
        if end < 0:
            if len(buffer) >= MAX_HEAD:
                raise RefusedError(431, f"the head is larger than {MAX_HEAD} bytes")
            self._searched = max(len(buffer) - 3, 0)
            return None
        head = parse_head(bytes(buffer[:end]))
        if head.length is not None and head.length > self._max_body:
            raise self._too_large()
        del buffer[: end + 4]
        self._searched = 0
        return head

    def _read_body(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        with memoryview(self._buffer) as view:
            body = bytes(view[:length])  # of the buffer itself a slice would be a copy more
        del self._buffer[:length]
        return body

    def _read_chunks(self) -> bytes | None:
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n", 0, MAX_CHUNK_LINE)
            if end < 0:
                if len(buffer) >= MAX_CHUNK_LINE:
                    raise RefusedError(400, "a chunk is malformed")
                return None
            line = _CHUNK_LINE.fullmatch(bytes(buffer[:end]))
            if line is None:
                raise RefusedError(400, "a chunk is malformed")
            size, begin = int(line[1], 16), end + 2
            if size == 0:
                return self._read_trailers(begin)
            if len(self._chunked) + size > self._max_body:
                raise self._too_large()
            if len(buffer) < begin + size + 2:
                return None
            self._chunks += 1
            if buffer[begin + size : begin + size + 2] != b"\r\n" or self._chunks > MAX_CHUNKS:
                raise RefusedError(400, "a chunk is malformed, or they are too many")
            self._chunked += memoryview(buffer)[begin : begin + size]
            del buffer[: begin + size + 2]

    def _read_trailers(self, begin: int) -> bytes | None:
        """The chunked body once its trailers have come. They must be well formed, and mean nothing here."""
        buffer = self._buffer
        # With the end of the chunk's line before them, no trailers look like an empty head.
        end = buffer.find(b"\r\n\r\n", begin - 2, begin + MAX_HEAD)
        if end < 0:
            if len(buffer) >= begin + MAX_HEAD:
                raise RefusedError(431, f"the trailers are larger than {MAX_HEAD} bytes")
            return None
        if end > begin:
            _fields(bytes(buffer[begin:end]).split(b"\r\n"))
        del buffer[: end + 4]
        body = bytes(self._chunked)
        self._chunked, self._chunks = bytearray(), 0
        return body

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"the body is larger than {self._max_body} bytes")


def render(response: Response, *, last: bool, body: bool = True) -> bytes:
    head = b"%b%bDate: %b\r\nContent-Length: %d\r\n\r\n" % (
        _status(response.status, response.content_type),
        b"Connection: close\r\n" if last else b"",
        _date(int(time.time())),
        len(response.body),
    )
    return head + response.body if body else head


def rendered(response: Response, *, last: bool, body: bool = True) -> list[bytes]:
    """As `render`. A large body is apart: what is sent to many at once is not copied for each."""
    if not body or len(response.body) < SHARED:
        return [render(response, last=last, body=body)]
    return [render(response, last=last, body=False), response.body]


@lru_cache(maxsize=64)
def _status(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n".encode()


@lru_cache(maxsize=1)
def _date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()
