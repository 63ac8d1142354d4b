"""Who floods the HTTP API by its sockets, from one address, and who comes new from another one."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from aiohttp import web

from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import Access
from common.runtime import logs
from common.runtime.log_limit import BURST, TOLD_SECONDS
from common.server import access_reviews
from common.server.web_server import WebServer
from master.apiserver import auth
from master.apiserver import server as api
from master.apiserver.app import App, refusal
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from master.seeds.agent_pages import AgentPages
from tests.running import running
from tests.unit.fake_api_server import PATIENCE

EVE, ANN = "127.0.0.2", "127.0.0.3"
TOKEN_TURNS, ACCESS_TURNS = 20, 20  # of the event loop: a busy machine takes longer for both, reviews and requests
SOON = 100  # reviews; those of the floods are more than twice as many at any time


@dataclass
class Reviews:
    """An API server that reviews one thing after the other, and counts. Of the tokens `user-NAME` is who is named; ann
    alone has rights."""

    one: asyncio.Lock = field(default_factory=asyncio.Lock)
    done: int = 0

    async def token(self, request: web.Request) -> web.Response:
        token = (await request.json())["spec"]["token"]
        async with self.one:
            for _ in range(TOKEN_TURNS):
                await asyncio.sleep(0)
            self.done += 1
        known = token.startswith("user-")
        status = {"authenticated": known, "user": {"username": token.removeprefix("user-")} if known else {}}
        return web.json_response({"status": status}, status=201)

    async def access(self, request: web.Request) -> web.Response:
        spec = (await request.json())["spec"]
        async with self.one:
            for _ in range(ACCESS_TURNS):
                await asyncio.sleep(0)
            self.done += 1
        return web.json_response({"status": {"allowed": spec["user"] == "ann"}}, status=201)


@asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[int, Reviews]]:
    """The port, and who reviews. A machine that is busy has no limit of time for that."""
    monkeypatch.setattr(access_reviews, "TIMEOUT", 600.0)
    monkeypatch.setattr(auth, "PATIENCE", 600.0)
    for cache in (Caches, AllocationCache):
        monkeypatch.setattr(cache, "not_synced", lambda _self: None)
    reviews = Reviews()
    fake = web.Application()
    fake.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", reviews.token)
    fake.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", reviews.access)
    runner = web.AppRunner(fake)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster = Cluster(Access(f"http://127.0.0.1:{runner.addresses[0][1]}"), name="master", connections=api.CONNECTIONS)
    caches = Caches(cluster, "seedquota")
    app = App(cluster, caches, AllocationCache(cluster), AgentPages(caches, "seedquota"))
    server = WebServer(app.application, refusal)
    await server.start("127.0.0.1", 0, None)
    try:
        yield server.port, reviews
    finally:
        await server.stop(0)
        await cluster.close()
        await runner.cleanup()


def request(path: str, token: str, length: int = 0) -> bytes:
    lines = [f"{'PUT' if length else 'GET'} {path} HTTP/1.1", "Host: h", f"Content-Length: {length}"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode()


async def connect(port: int, of: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(of, 0))


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return int(head.split()[1]), await reader.readexactly(length)


async def asks(port: int, token: str) -> int:
    """Ann, on a connection of her own: the status."""
    reader, writer = await connect(port, ANN)
    writer.write(request("/api/v2/quotas", token))
    status, body = await answer(reader)
    writer.close()
    assert status != 200 or json.loads(body) == []
    return status


async def ann_is_answered_soon(port: int, reviews: Reviews) -> None:
    """By what is reviewed meanwhile, not by a clock: this process and its machine may be busy."""
    before = reviews.done
    async with asyncio.timeout(PATIENCE):
        assert await asks(port, "user-ann") == 200
    assert reviews.done - before < SOON


@asynccontextmanager
async def flood(port: int, connections: int, sent: list[bytes]) -> AsyncIterator[None]:
    """Each connection sends its request again and again, and comes back when it is closed."""

    begun: set[int] = set()

    async def one(number: int) -> None:
        while True:
            try:
                reader, writer = await connect(port, EVE)
                try:
                    while True:
                        writer.write(sent[number % len(sent)])
                        begun.add(number)
                        await answer(reader)
                finally:
                    writer.close()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)

    async with running(*(one(number) for number in range(connections))):
        async with asyncio.timeout(PATIENCE):
            while len(begun) < connections:  # who comes before all of them waits until they are accepted
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        yield


async def test_who_holds_connections_with_tokens_of_nobody_keeps_no_new_user_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each names another token, and sends nothing of its body."""
    async with served(monkeypatch) as (port, reviews):
        sent = [request("/api/v2/quotas/a", f"guess-{number}", 1000) for number in range(520)]
        async with flood(port, 520, sent):
            for _ in range(5):
                await ann_is_answered_soon(port, reviews)
                await asyncio.sleep(0.1)


async def test_who_asks_with_tokens_of_nobody_keeps_no_new_user_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each asks with another token each time. All of them are reviewed in more than a second."""
    async with served(monkeypatch) as (port, reviews):
        sent = [request("/api/v2/quotas/a", f"guess-{number}") for number in range(250)]
        async with flood(port, 250, sent):
            await ann_is_answered_soon(port, reviews)


async def test_users_without_rights_keep_no_reader_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of them, each with as many requests as one may have, about another organization each."""
    async with served(monkeypatch) as (port, reviews):
        sent = [request(f"/api/v1/organizations/x{number}/quotas", f"user-{number % 8}") for number in range(256)]
        async with flood(port, 256, sent):
            for _ in range(5):
                await ann_is_answered_soon(port, reviews)
                await asyncio.sleep(0.1)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The log, as a program writes it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    found = io.StringIO()
    logs.setup("json", "info", found)
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.mark.parametrize(
    ("path", "token"), [("/docs", ""), ("/api/v2/quotas", ""), ("/api/v2/quotas", "guess"), ("/none", "user-eve")]
)
async def test_who_is_nobody_or_is_refused_fills_no_log(
    path: str, token: str, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    """16 connections wrote 8 MiB in 12 s. The lines of users go on, and all lines of what they write."""
    now = time.monotonic() + TOLD_SECONDS  # however long this takes, nobody may write more lines for it
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: now))
    async with served(monkeypatch) as (port, _), flood(port, 16, [request(path, token) * 50]):
        for _ in range(20):
            assert await asks(port, "user-ann") == 200
        reader, writer = await connect(port, ANN)
        for _ in range(150):
            writer.write(request("/api/v2/quotas/a", "user-ann", 2) + b"{}")
            assert (await answer(reader))[0] == 422
        writer.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    of_eve = [line for line in lines if line["message"] in ("request", "request refused") and line.get("user") != "ann"]
    assert 0 < len(of_eve) <= BURST, len(of_eve)
    assert sum(line["message"] == "request" and line["user"] == "ann" and line["status"] == 200 for line in lines) == 20
    assert sum(line["message"] == "write" and line["user"] == "ann" for line in lines) == 150
    assert any(line["message"] == "lines were left out" and line["count"] > 0 for line in lines)
