"""A link that is cut behaves as a network does, not as a server that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from devcluster.network import Link, Traffic, free_port

SOON = 30.0
WHILE = 0.2


class Echo:
    """Answers each line with itself."""

    def __init__(self) -> None:
        self.port = free_port()
        self.lines: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.lines.append(line)
            writer.write(line)
        writer.close()


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[Echo]:
    made = Echo()
    server = await asyncio.start_server(made.serve, "127.0.0.1", made.port)
    yield made
    server.close()


@pytest_asyncio.fixture
async def link(echo: Echo) -> AsyncIterator[Link]:
    made = Link(free_port(), echo.port)
    await made.set(Traffic.FORWARDED)
    yield made
    await made.close()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(link: Link) -> Connection:
    return await asyncio.open_connection("127.0.0.1", link.port)


async def say(connection: Connection, line: bytes) -> None:
    connection[1].write(line)
    await connection[1].drain()


async def hear(connection: Connection, seconds: float = SOON) -> bytes:
    async with asyncio.timeout(seconds):
        return await connection[0].readline()


async def silent(connection: Connection) -> bool:
    try:
        await hear(connection, WHILE)
    except TimeoutError:
        return True
    return False


async def test_it_forwards_both_ways(link: Link) -> None:
    connection = await connect(link)
    await say(connection, b"there\n")
    assert await hear(connection) == b"there\n"
    connection[1].close()


async def test_dropped_traffic_keeps_connections_open_and_arrives_late(link: Link, echo: Echo) -> None:
    before = await connect(link)
    await say(before, b"one\n")
    assert await hear(before) == b"one\n"
    await link.set(Traffic.DROPPED)
    during = await connect(link)
    for connection in (before, during):
        await say(connection, b"two\n")
        assert await silent(connection)
    assert echo.lines == [b"one\n"]
    await link.set(Traffic.FORWARDED)
    for connection in (before, during):
        assert await hear(connection) == b"two\n"
        connection[1].close()


async def test_connections_that_hang_stay_silent_for_ever_and_new_ones_do_not(link: Link, echo: Echo) -> None:
    before = await connect(link)
    await say(before, b"one\n")
    assert await hear(before) == b"one\n"
    link.hang()
    await say(before, b"two\n")
    after = await connect(link)
    await say(after, b"three\n")
    assert await hear(after) == b"three\n"
    await link.set(Traffic.FORWARDED)
    assert await silent(before)
    assert echo.lines == [b"one\n", b"three\n"]
    for connection in (before, after):
        connection[1].close()


async def test_refused_traffic_ends_connections_and_lets_nobody_in(link: Link) -> None:
    before = await connect(link)
    await say(before, b"one\n")
    assert await hear(before) == b"one\n"
    await link.set(Traffic.REFUSED)
    with pytest.raises(ConnectionResetError):
        await hear(before)
    with pytest.raises(ConnectionRefusedError):
        await connect(link)
    await link.set(Traffic.FORWARDED)
    after = await connect(link)
    await say(after, b"two\n")
    assert await hear(after) == b"two\n"
    for connection in (before, after):
        connection[1].close()


async def test_what_one_side_ends_is_ended_for_the_other(link: Link) -> None:
    connection = await connect(link)
    await say(connection, b"one\n")
    assert await hear(connection) == b"one\n"
    connection[1].write_eof()
    with suppress(ConnectionResetError):
        assert await hear(connection) == b""
    connection[1].close()
