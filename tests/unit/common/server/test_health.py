from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from common.runtime.flags import Address
from common.server import connections, health
from common.server.health import Health
from common.server.page_access import AUDIENCE, TOKEN_HEADER, PageAccess
from tests.unit.fake_api_server import PATIENCE

LOCAL = Address("127.0.0.1", 0)


FROM_ELSEWHERE = {"X-Forwarded-For": "192.0.2.1"}


async def get(serving: Health, path: str, accept: str = "*/*", **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{serving.port}{path}", headers={"Accept": accept, **headers}) as answer,
    ):
        return answer.status, await answer.text(), answer.headers["Content-Type"]


async def test_ready_names_every_check() -> None:
    serving = Health(CollectorRegistry())
    serving.add("cache", lambda: None)
    async with serving.serve(LOCAL):
        status, body, _ = await get(serving, "/readyz")
    assert (status, body) == (200, "[+] serving\n[+] cache\n")


async def test_one_check_that_fails_makes_it_not_ready_and_says_why() -> None:
    serving = Health(CollectorRegistry())
    serving.add("cache", lambda: "userclusters: not listed yet")
    serving.add("certificate", lambda: None)
    async with serving.serve(LOCAL):
        status, body, _ = await get(serving, "/readyz")
        assert (status, body) == (503, "[+] serving\n[-] cache: userclusters: not listed yet\n[+] certificate\n")
        assert serving.not_ready() == {"cache": "userclusters: not listed yet"}
        serving.remove("cache")
        assert (await get(serving, "/readyz"))[0] == 200


async def test_stopping_is_not_ready_but_alive() -> None:
    serving = Health(CollectorRegistry())
    async with serving.serve(LOCAL):
        serving.stopping = True
        assert (await get(serving, "/readyz"))[:2] == (503, "[-] serving: stopping\n")
        assert (await get(serving, "/healthz"))[:2] == (200, "ok\n")


async def test_not_alive_while_the_loop_limps(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Health(CollectorRegistry())
    monkeypatch.setattr(health, "BEAT_STALE_SECONDS", -1.0)
    async with serving.serve(LOCAL):
        status, body, _ = await get(serving, "/healthz")
    assert status == 503
    assert body.startswith("event loop: last turned")


async def test_metrics_in_the_format_that_was_asked_for() -> None:
    registry = CollectorRegistry()
    Counter("seen", "x", registry=registry).inc(3)
    serving = Health(registry)
    async with serving.serve(LOCAL):
        _, plain, content_type = await get(serving, "/metrics")
        _, _, open_metrics = await get(serving, "/metrics", "application/openmetrics-text")
    assert "seen_total 3.0" in plain
    assert content_type.startswith("text/plain")
    assert open_metrics.startswith("application/openmetrics-text")


async def test_an_address_in_use_is_an_error_and_nothing_stays_open() -> None:
    first = Health(CollectorRegistry())
    async with first.serve(LOCAL):
        with pytest.raises(OSError, match="in use"):
            async with Health(CollectorRegistry()).serve(Address("127.0.0.1", first.port)):
                pass


def with_a_page() -> Health:
    serving = Health(CollectorRegistry())
    serving.pages["decisions"] = lambda rest, _query: b'{"kept": "ann wanted it"}' if rest in ("", "one") else None
    return serving


async def test_a_page_is_for_this_host_and_what_a_proxy_passes_on_is_not_from_it() -> None:
    serving = with_a_page()
    async with serving.serve(LOCAL):
        assert (await get(serving, "/decisions/one"))[0] == 200
        for header in ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP"):
            status, body, _ = await get(serving, "/decisions/one", **{header: "192.0.2.1"})
            assert (status, "ann" in body, AUDIENCE in body) == (401, False, True)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await get(serving, path, **FROM_ELSEWHERE))[0] == 200


async def test_of_another_host_the_token_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    async def may_read(path: str, token: str, _address: str) -> PageAccess:
        asked.append((path, token))
        return {"ann": PageAccess.ALLOWED, "bob": PageAccess.FORBIDDEN, "busy": PageAccess.NOT_KNOWN}[token]

    serving = with_a_page()
    serving.may_read = may_read
    monkeypatch.setattr(health, "_LOOPBACK", ())  # every request is from elsewhere
    async with serving.serve(LOCAL):
        for headers in ({"Authorization": "Bearer ann"}, {"Authorization": "bearer ann"}, {TOKEN_HEADER: "ann"}):
            assert (await get(serving, "/decisions/one", **headers))[:2] == (200, '{"kept": "ann wanted it"}')
        assert (await get(serving, "/decisions/two", **{TOKEN_HEADER: "ann"}))[0] == 404
        assert (await get(serving, "/decisions", **{TOKEN_HEADER: "bob"}))[0] == 403
        assert (await get(serving, "/decisions", **{TOKEN_HEADER: "busy"}))[0] == 503
        assert asked[0] == ("/decisions", "ann")
        asked.clear()
        assert (await get(serving, "/decisions"))[0] == 401
        assert (await get(serving, "/decisions", Authorization="Basic ann"))[0] == 401
        assert (await get(serving, "/other", **{TOKEN_HEADER: "ann"}))[0] == 404
        assert asked == []


async def test_a_question_may_be_longer_than_other_requests_and_has_a_right_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def post(path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{serving.port}{path}"
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def echo(content: bytes) -> bytes | None:
        return content if content != b"wrong" else None

    async def may_ask(path: str, token: str, _address: str) -> PageAccess:
        return PageAccess.ALLOWED if (path, token) == ("/needs", "ann") else PageAccess.FORBIDDEN

    serving = with_a_page()
    serving.questions["needs"], serving.may_ask = echo, may_ask
    long = b"x" * 60_000
    async with serving.serve(LOCAL):
        assert await post("/needs", long) == (200, long)
        assert (await post("/needs", b"wrong"))[0] == 400
        assert (await post("/needs", b"x" * (health.MAX_QUESTION + 1)))[0] == 413
        for path in ("/decisions", "/needs/below", "/healthz"):
            assert (await post(path, long))[0] == 413, path
            assert (await post(path, b"x"))[0] == 405, path
        assert (await get(serving, "/needs"))[0] == 404
        monkeypatch.setattr(health, "_LOOPBACK", ())  # every request is from elsewhere
        assert (await post("/needs", b"x", **{TOKEN_HEADER: "ann"}))[0] == 200
        assert (await post("/needs", b"x", **{TOKEN_HEADER: "bob"}))[0] == 403
        assert (await post("/needs", b"x"))[0] == 401


async def test_the_log_level_is_changed_from_this_host_alone() -> None:
    async def put(level: str, **headers: str) -> int:
        url = f"http://127.0.0.1:{serving.port}/log-level/{level}"
        async with aiohttp.ClientSession() as session, session.put(url, headers=headers) as answer:
            return answer.status

    root, aiohttp_log = logging.getLogger(), logging.getLogger("aiohttp.access")
    before, before_of_aiohttp = root.level, aiohttp_log.level
    serving = Health(CollectorRegistry())
    try:
        async with serving.serve(LOCAL):
            assert await put("debug") == 200 and root.level == logging.DEBUG
            assert aiohttp_log.level == logging.ERROR, "its lines have tokens"
            assert await put("error", **FROM_ELSEWHERE) == 403
            assert await put("loud") == 400
            assert root.level == logging.DEBUG
    finally:
        root.setLevel(before)
        aiohttp_log.setLevel(before_of_aiohttp)


async def test_what_is_not_known_or_malformed_is_refused() -> None:
    serving = with_a_page()
    async with serving.serve(LOCAL):
        for path, status in (("/", 404), ("/healthz/x", 404), ("/metrics/", 404), ("/decisions?a=%20&b", 200)):
            assert (await get(serving, path))[0] == status, path
        assert (await get(serving, "/decisions?" + "&".join(f"a{number}=1" for number in range(99))))[0] == 400
        url = f"http://127.0.0.1:{serving.port}"
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/healthz") as answer:
                assert answer.status == 405
            async with session.head(f"{url}/healthz") as answer:
                assert (answer.status, await answer.read()) == (200, b"")
            async with session.put(f"{url}/log-level/info", data=bytes(health.MAX_BODY + 1)) as answer:
                assert answer.status == 413


PROGRAM = """
import asyncio, sys
from prometheus_client import REGISTRY, Gauge
from common.runtime.flags import Address, CommonOptions
from common.server import program

class Counted:
    def describe(self):
        return []

    def collect(self):
        rendered.inc()
        return []

rendered = Gauge("renderings", "x")
REGISTRY.register(Counted())
series = Gauge("series", "x", ["one", "two"])
for number in range(5000):
    series.labels(f"one-{number % 70}", f"two-{number}").set(number)

async def main(running):
    await running.stop.wait()

options = CommonOptions(health_address=Address("127.0.0.1", 0), log_format="json", drain_delay=0.0, stop_timeout=5.0)
sys.exit(program.run("example", options, main))
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture
def program(process: subprocess.Popen[str]) -> int:
    """The health port of a program of its own: what it does not answer is not the test's own doing."""
    assert process.stderr is not None
    return int(json.loads(process.stderr.readline())["health_port"])


def ran(process: subprocess.Popen[str]) -> float:
    """Seconds for which it had a core: others may keep them busy."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(port: int, path: str, of: str) -> tuple[int, bytes]:
    """On a connection of its own, as a kubelet does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(of, 0))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def sample(text: bytes, name: str) -> float:
    (found,) = re.findall(rf"^{name} (\S+)$", text.decode(), re.MULTILINE)
    return float(found)


async def test_who_floods_metrics_keeps_no_probe_waiting_and_they_are_rendered_once_a_second(
    program: int, process: subprocess.Popen[str]
) -> None:
    """Rendered for each who asks, 200 connections keep everybody else waiting for seconds."""
    over = asyncio.Event()

    async def flood() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", program, local_addr=("127.0.0.2", 0))
        while not over.is_set():
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = re.findall(rb"(?i)content-length: ([0-9]+)", head)
            await reader.readexactly(int(length))
        writer.close()

    before = sample((await ask(program, "/metrics", "127.0.0.3"))[1], "renderings")
    begun = time.monotonic()
    flooding = [asyncio.create_task(flood()) for _ in range(200)]
    took: list[float] = []
    while not took or time.monotonic() < begun + 5.0:
        asked = ran(process)
        for path in ("/healthz", "/readyz"):
            assert (await ask(program, path, "127.0.0.3"))[0] == 200
        took.append(ran(process) - asked)
        await asyncio.sleep(0.1)
    over.set()
    await asyncio.gather(*flooding)
    text = (await ask(program, "/metrics", "127.0.0.3"))[1]
    assert max(took) < 2.0, "the timeout of the readiness probe"
    assert sample(text, "renderings") - before <= time.monotonic() - begun + 1
    assert text.count(b"\nseries{") == 5000


async def test_silent_connections_are_counted_end_soon_and_keep_nobody_out(program: int) -> None:
    silent = [
        await asyncio.open_connection("127.0.0.1", program, local_addr=("127.0.0.2", 0))
        for _ in range(connections.MAX_UNPROVEN_OF_ONE + 50)
    ]
    assert (await ask(program, "/readyz", "127.0.0.3"))[0] == 200
    async with asyncio.timeout(PATIENCE):
        ended = await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
    assert all(each == b"" or isinstance(each, ConnectionResetError) for each in ended)
    for _, writer in silent:
        writer.close()
