from __future__ import annotations

import logging

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from common.runtime import health
from common.runtime.flags import Address
from common.runtime.health import AUDIENCE, TOKEN_HEADER, Health, PageAccess

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

    async def may_read(path: str, token: str) -> PageAccess:
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
