"""A hostile API server, byte by byte. Each attack took seconds of the event loop, or gigabytes."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.bounds import MAX_INTERIM
from common.kube.client.errors import ApiError, Malformed, Unavailable
from common.kube.client.kubeconfig import Access
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from tests.unit.fake_api_server import eventually

THINGS = Resource("", "v1", "things", "Thing", namespaced=True, type=Object)
OK = b"HTTP/1.1 200 OK\r\n"

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Hostile:
    """Answers each request with the bytes of `says`, or as `say` does; `sent` counts them."""

    def __init__(self) -> None:
        self.says = b""
        self.say: Say | None = None
        self.heads: list[bytes] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                if self.say is not None:
                    await self.say(writer)
                else:
                    writer.write(self.says)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def attacked(timeout: float = 30.0) -> AsyncIterator[tuple[Hostile, Cluster]]:
    hostile = Hostile()
    server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cluster = Cluster(Access(f"http://127.0.0.1:{port}"), name="hostile", timeout=timeout)
    try:
        yield hostile, cluster
    finally:
        await cluster.close()
        for writer in hostile.writers:
            writer.transport.abort()
        server.close()


def whole(body: bytes, *fields: bytes) -> bytes:
    head = b"".join(field + b"\r\n" for field in (*fields, b"Content-Length: %d" % len(body)))
    return OK + head + b"\r\n" + body


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"x-gzip", b"br", b"identity, gzip"])
async def test_a_compressed_answer_is_refused_whatever_was_asked_for(encoding: bytes) -> None:
    body = gzip.compress(b'{"metadata": {}}') if b"gzip" in encoding else zlib.compress(b'{"metadata": {}}')
    async with attacked() as (hostile, cluster):
        hostile.says = whole(body, b"Content-Encoding: " + encoding)
        for ask in (
            lambda: cluster.get(THINGS, "a", "n"),
            lambda: cluster.list(THINGS),
            lambda: cluster.create(THINGS, {"metadata": {"name": "a", "namespace": "n"}}),
            lambda: cluster.merge_patch(THINGS, "a", {}, "n"),
            lambda: cluster.delete(THINGS, "a", "n"),
        ):
            with pytest.raises(Malformed, match="is compressed"):
                await ask()
        with pytest.raises(Malformed, match="is compressed"):
            async with cluster.open_watch(THINGS, resource_version="1") as stream:
                await stream.read()
        assert all(head.lower().count(b"accept-encoding: identity\r\n") == 1 for head in hostile.heads)


async def test_identity_is_no_compression() -> None:
    async with attacked() as (hostile, cluster):
        hostile.says = whole(b'{"metadata": {"name": "a"}}', b"Content-Encoding: Identity")
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"


async def test_interim_answers_have_an_end() -> None:
    interim = b"HTTP/1.1 103 x\r\nX: " + b"y" * 100 + b"\r\n\r\n"

    async def endless(writer: asyncio.StreamWriter) -> None:
        for _ in range(400):
            writer.write(interim * 1000)
            await writer.drain()

    async with attacked() as (hostile, cluster):
        hostile.say = endless
        began = time.process_time()
        with pytest.raises(Malformed, match="more than 8 interim answers"):
            await cluster.get(THINGS, "a", "n")
        with pytest.raises(Malformed, match="more than 8 interim answers"):
            async with cluster.open_watch(THINGS, resource_version="1"):
                raise AssertionError("never entered")
        assert time.process_time() - began < 1.0  # without the bound 2 s for each
        hostile.say = None
        hostile.says = interim * MAX_INTERIM + whole(b'{"metadata": {"name": "a"}}')
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (OK + b"".join(b"X-%d: %b\r\n" % (number, b"y" * 4000) for number in range(100)), "head is larger"),
        (OK + b"".join(b"X-%d: y\r\n" % number for number in range(1000)) + b"\r\n", "Too many headers|400"),
        (b"HTTP/1.1 200 " + b"x" * 100_000, "head is larger|400"),
        (b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "another protocol"),
        (whole(b"{}") + whole(b"{}"), "more was sent than one answer"),
        (whole(b"{}") * 1000, "more was sent than one answer"),
        (b"HTTP/1.1 204 x\r\n\r\n" * 1000, "truncated"),
    ],
)
async def test_a_head_is_bounded_and_there_is_one_answer(says: bytes, why: str) -> None:
    async with attacked() as (hostile, cluster):
        hostile.says = says
        with pytest.raises(ApiError, match=why) as refused:
            await cluster.get(THINGS, "a", "n")
        assert isinstance(refused.value, Malformed | Unavailable)
        with suppress(ApiError):
            await cluster.get(THINGS, "a", "n")
        assert hostile.connections == 2


async def test_what_is_no_body_is_bounded() -> None:
    """Extensions of chunks and trailers are neither a head nor a body: no other bound meets them."""
    for framing in (b"1;" + b"e" * 16_000 + b"\r\nx\r\n", b"1\r\nx\r\n" * 4000):

        async def endless(writer: asyncio.StreamWriter, framing: bytes = framing) -> None:
            writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(1000):
                writer.write(framing)
                await writer.drain()

        async with attacked() as (hostile, cluster):
            hostile.say = endless
            with pytest.raises(Malformed, match="more framing than content"):
                await cluster.get(THINGS, "a", "n")


async def test_what_comes_after_an_answer_ends_the_connection() -> None:
    """An idle connection would read it until the next request, or for ever."""
    async with attacked() as (hostile, cluster):
        hostile.says = whole(b'{"metadata": {"name": "a"}}')
        await cluster.get(THINGS, "a", "n")
        hostile.writers[0].write(whole(b'{"metadata": {"name": "b"}}') * 1000)
        await eventually(lambda: not any(cluster._requests.connector._conns.values()) or closed(cluster))
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"
        assert hostile.connections == 2


def closed(cluster: Cluster) -> bool:
    (kept,) = cluster._requests.connector._conns.values()  # type: ignore[union-attr]
    return not any(protocol.is_connected() for protocol, _ in kept)
