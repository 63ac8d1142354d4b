"""A hostile API server, in a process of its own: a real one, whose answers it spoils. `Orders` as JSON on stdin.

The n-th answer is spoilt by chance, from the seed and n. With `Orders.worlds`, it then spoils none for a while, and
lists a world that is very large and valid instead of the real one (large_world.py). Then all of that is gone again, and
so on.
SIGUSR1 lets it begin: until then all answers are as they are.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import logging
import os
import random
import resource
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.fuzz import large_world
from tests.fuzz.large_world import Kind, World

MEGABYTE = 2**20
MOST = 12 * MEGABYTE  # bytes of one answer: more than is read
PLAIN = 0.4  # of the answers, so that what comes after them is reached as well
MEMORY = 8 * 1024 * MEGABYTE  # bytes, of this process: more would take them from the program that is tried
FLOOD_SECONDS = 3.0
CUT_SECONDS = 1.5
SPOILING_SECONDS, LARGE_SECONDS = 15.0, 30.0
BETWEEN_BURSTS = 0.2, 2.0  # seconds


class Orders(msgspec.Struct):
    """`upstream` is the real API server. `log` gets a line for each answer: its number, what was asked and done."""

    seed: int
    port: int
    certificate: str
    key: str
    upstream: str
    upstream_ca: str
    log: str
    of_seed: bool  # else of a tenant
    nice: int
    worlds: bool  # large ones come, too


class Asked(msgspec.Struct):
    """`body` is the real answer's; empty for a watch, whose lines are `lines`."""

    status: int
    body: bytes
    lines: AsyncIterator[bytes] | None
    chance: random.Random
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def plain(self, body: bytes | None = None, status: int | None = None, *fields: bytes) -> None:
        body = self.body if body is None else body
        head = b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\n" % (status or self.status)
        head += b"".join(field + b"\r\n" for field in fields)
        if self.lines is None:
            await self.send(head + b"Content-Length: %d\r\n\r\n" % len(body), body)
            return
        await self.send(head + b"Transfer-Encoding: chunked\r\n\r\n", chunk(body) if body else b"")
        async with aclosing(self.lines) as lines:  # type: ignore[type-var]
            async for line in lines:
                await self.send(chunk(line))
        await self.send(b"0\r\n\r\n")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


Spoil = Callable[[Asked], Awaitable[None]]
SPOILS: list[Spoil] = []
TOKENS = (b"[", b"]", b"{", b"}", b'"', b":", b",", b"null", b"-1", b"1e999", b"9" * 5000, b"\xda", b"\\ud800", b"\x00")
VALUES: tuple[Callable[[random.Random], object], ...] = (
    lambda chance: "x" * chance.choice([300, 5000, 2 * MEGABYTE]),
    lambda chance: "\u0000\u202e\ud7ff" * chance.choice([1, 500]),
    lambda _: 10**400,
    lambda _: -(2**70),
    lambda _: 1e308,
    lambda _: None,
    lambda _: True,
    lambda _: [],
    lambda _: {},
    lambda chance: {f"l{number}": "v" for number in range(chance.choice([10, 300_000]))},
    lambda chance: ["v"] * chance.choice([10, 500_000]),
    lambda chance: json.loads("[" * 500 + "]" * 500) if chance.random() < 0.5 else [[{}] for _ in range(100_000)],
    lambda _: "9999-12-31T23:59:59+99:99",
    lambda _: "../../../../api/v1/secrets?watch=1#",
)


def spoil(how: Spoil) -> Spoil:
    SPOILS.append(how)
    return how


def mangled(body: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(body) + 1)
        until = min(at + chance.randrange(60), len(body))
        body = chance.choice(
            [
                lambda body=body, at=at, until=until: body[:at] + body[until:],
                lambda body=body, at=at, until=until: (
                    body[:until] + body[at:until] * chance.randrange(3000) + body[until:]
                ),
                lambda body=body, at=at: body[:at] + chance.choice(TOKENS) * chance.choice([1, 3, 15_000]) + body[at:],
                lambda body=body, at=at: body[:at] + chance.randbytes(6) + body[at:],
            ]
        )()[:MOST]
    return body


def replaced(body: bytes, chance: random.Random) -> bytes:
    """One or more of its fields have another value: chosen by walking down from the root."""
    try:
        root = json.loads(body)
    except ValueError:
        return body
    for _ in range(chance.randint(1, 3)):
        place: Any = root
        while isinstance(place, dict | list) and place:
            key: Any = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
            if chance.random() < 0.35 or not isinstance(place[key], dict | list) or not place[key]:
                place[key] = chance.choice(VALUES)(chance)
                break
            place = place[key]
    return json.dumps(root, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass")[:MOST]


@spoil
async def mangle(asked: Asked) -> None:
    await asked.plain(mangled(asked.body, asked.chance))


@spoil
@spoil
@spoil
async def replace(asked: Asked) -> None:
    await asked.plain(replaced(asked.body, asked.chance))


@spoil
async def another_status(asked: Asked) -> None:
    status = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "m", "details": {"causes": [{}] * 3}}
    body = replaced(json.dumps(status).encode(), asked.chance)
    await asked.plain(
        body,
        asked.chance.choice([199, 200, 201, 204, 299, 302, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 999]),
        b"Location: https://127.0.0.1:1/",
        b"Retry-After: " + asked.chance.choice([b"-1", b"9" * 300, b"1"]),
    )


@spoil
async def interim(asked: Asked) -> None:
    for _ in range(200):
        await asked.send(b"HTTP/1.1 103 x\r\nLink: <x>\r\n\r\n" * 500)


@spoil
async def head(asked: Asked) -> None:
    fields = [
        b"X-%d: %b" % (number, b"y" * asked.chance.choice([1, 8000, 70_000]))
        for number in range(asked.chance.choice([1, 120, 5000]))
    ]
    await asked.plain(
        None,
        None,
        *fields,
        *asked.chance.choice([(), (b"Content-Length: 7",), (b"Transfer-Encoding: chunked",), (b"X: \x00",)]),
    )


@spoil
async def compressed(asked: Asked) -> None:
    body = gzip.compress(b"[" + b" " * 64 * MEGABYTE + b"]", 1)
    await asked.plain(body, None, b"Content-Encoding: " + asked.chance.choice([b"gzip", b"deflate", b"br", b"zstd"]))


@spoil
async def chunks(asked: Asked) -> None:
    await asked.send(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = asked.chance.choice(
        [
            b"1\r\n \r\n" * 5000,
            b"1;" + b"e" * 60_000 + b"\r\n \r\n",
            b"fffffffffffffffff\r\n",
            b"-1\r\n",
            b"0\r\n" + b"T: x\r\n" * 50_000,
        ]
    )
    for _ in range(200):
        await asked.send(piece)


@spoil
async def wrong_length(asked: Asked) -> None:
    length = asked.chance.choice([0, 1, len(asked.body) + 1, 2**31, 2**63, 10**30])
    await asked.send(b"HTTP/1.1 200 x\r\nContent-Length: %d\r\n\r\n" % length + asked.body)
    await asyncio.sleep(asked.chance.choice([0.0, 1.0]))
    asked.writer.transport.abort()


@spoil
async def drip(asked: Asked) -> None:
    for byte in (b"HTTP/1.1 200 x\r\nContent-Length: %d\r\n\r\n" % len(asked.body) + asked.body)[:100]:
        await asked.send(bytes([byte]))
        await asyncio.sleep(0.02)


@spoil
async def reset(asked: Asked) -> None:
    await asked.send(
        asked.chance.choice([b"", b"HTTP/1.1 200 x\r\n", b"\x16\x03\x01" + b"x" * 1000, b"GET / HTTP/1.1\r\n\r\n"])
    )
    asked.writer.transport.abort()


@spoil
async def items(asked: Asked) -> None:
    one = asked.chance.choice([b"1", b"{}", b'{"metadata":{}}', b'{"metadata":{"name":"m"},"spec":7}', b"[]", b"null"])
    count = asked.chance.choice([400, 501, 10 * MEGABYTE // (len(one) + 1)])
    more = asked.chance.choice([b"", b"x", b"x" * 5000])
    await asked.plain(
        b'{"metadata":{"resourceVersion":"1","continue":"%b"},"items":[%b]}' % (more, b",".join([one] * count))
    )


@spoil
async def deep(asked: Asked) -> None:
    depth = asked.chance.choice([900, 9000, MEGABYTE])
    await asked.plain(asked.body[:-1] + b',"deep":' + b"[" * depth + b"]" * depth + b"}")


@spoil
async def many_answers(asked: Asked) -> None:
    await asked.plain()
    await asked.send(b"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\n{}" * 20_000)


@spoil
async def events(asked: Asked) -> None:
    """Of a watch as long as it lasts; elsewhere it is a body without end."""
    names = itertools.count()
    await asked.send(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")
    kind = asked.chance.choice([b"ADDED", b"MODIFIED", b"DELETED", b"BOOKMARK", b"ERROR", b"x"])
    padding = b"x" * asked.chance.choice([0, 0, 5000, MEGABYTE, 9 * MEGABYTE])
    what = asked.chance.choice([b"{}", b"7", b'{"providerSpec":{"value":{}}}', b"[]"])
    end = asyncio.get_running_loop().time() + FLOOD_SECONDS
    while asyncio.get_running_loop().time() < end:
        lines = [
            b'{"type":"%b","object":{"metadata":{"name":"e%d","namespace":"n","uid":"u%d","resourceVersion":"%d"},'
            b'"spec":%b,"x":"%b"}}\n' % (kind, number % 500, number % 500, number, what, padding)
            for number in itertools.islice(names, 1 if padding else 100)
        ]
        await asked.send(chunk(b"".join(lines)))
    asked.writer.transport.abort()


class Server:
    def __init__(self, orders: Orders, upstream: aiohttp.ClientSession) -> None:
        self._orders = orders
        self._upstream = upstream
        self._numbers = itertools.count(1)
        self._begun = asyncio.Event()
        self._world: World | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._log = Path(orders.log).open("w", buffering=1)  # noqa: SIM115 (as long as the process)

    async def run(self) -> None:
        await self._begun.wait()
        made = large_world.seed if self._orders.of_seed else large_world.tenant
        for number in itertools.count(1):
            await self._cut_for(SPOILING_SECONDS)
            if not self._orders.worlds:
                continue
            self._world = made(random.Random(f"{self._orders.seed}/{number}"))
            self._log.write(f"0 a large world: {self._world} -\n")
            self._cut()
            await asyncio.sleep(LARGE_SECONDS)
            self._world = None
            self._cut()

    async def _cut_for(self, seconds: float) -> None:
        """Connections end now and then: watches would hold them for a minute, and little would be asked."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(CUT_SECONDS)
            self._cut()

    def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def begin(self) -> None:
        self._begun.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(
            OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, aiohttp.ClientError, TimeoutError
        ):
            while True:
                first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.split(": ", 1) for line in rest if line)
                size = int({name.lower(): value for name, value in headers.items()}.get("content-length", 0))
                await self._answer(first, headers, await reader.readexactly(size), writer)
        writer.transport.abort()
        self._open.discard(writer)

    async def _answer(self, first: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        method, path, _ = first.split(" ")
        number = next(self._numbers)
        chance = random.Random(f"{self._orders.seed}/{number}")
        world = self._world
        large = world.asked(method, path) if world is not None else None
        spoils = self._begun.is_set() and world is None
        how = chance.choice(SPOILS) if spoils and chance.random() > PLAIN else None
        done = how.__name__ if how is not None else "large" if large is not None else "-"
        self._log.write(f"{number} {method} {path[:120]} {done}\n")
        if large is not None and large[1].keys() & {"watch", "continue"}:
            await self._go_on(*large, Asked(200, b"", None, chance, writer))
            return
        url = self._orders.upstream + path
        async with self._upstream.request(method, url, headers=headers, data=body or None) as real:
            watch = "watch=1" in path and real.status == 200
            lines = self._lines(real, chance, how is not None) if watch else None
            asked = Asked(real.status, b"" if watch else await real.read(), lines, chance, writer)
            if large is not None and real.status == 200:
                asked.body = large[0].page(large[1], asked.body, chance)
            await (how or Asked.plain)(asked)

    async def _go_on(self, kind: Kind, query: dict[str, str], asked: Asked) -> None:
        """The next page of a large list, or a watch of what it listed: the real API server knows neither."""
        if "continue" in query:
            await asked.plain(kind.page(query, b"{}", asked.chance))
            return
        world, loop = self._world, asyncio.get_running_loop()
        end = loop.time() + float(query.get("timeoutSeconds", 60))
        await asked.send(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (left := end - loop.time()) > 0 and self._world is world:
            await asyncio.sleep(min(asked.chance.uniform(*BETWEEN_BURSTS), left))
            await asked.send(chunk(kind.burst(asked.chance)))
        await asked.send(b"0\r\n\r\n")

    async def _lines(self, real: aiohttp.ClientResponse, chance: random.Random, spoilt: bool) -> AsyncIterator[bytes]:
        async for line in real.content:
            if not spoilt or chance.random() < 0.5:
                yield line
            else:
                yield mangled(line, chance) if chance.random() < 0.5 else replaced(line, chance) + b"\n"


async def main(orders: Orders) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(orders.certificate, orders.key)
    trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=orders.upstream_ca), limit=0)
    async with aiohttp.ClientSession(
        connector=trusting, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=16 * MEGABYTE
    ) as upstream:
        server = Server(orders, upstream)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, server.begin)
        serving = await asyncio.start_server(server.serve, "127.0.0.1", orders.port, ssl=tls)
        async with serving:
            await server.run()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.WARNING)  # of writes to connections that were cut
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=Orders)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # a real-time class knows no nice values
    os.nice(orders.nice)
    asyncio.run(main(orders))
