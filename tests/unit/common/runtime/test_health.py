from __future__ import annotations

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from common.runtime import health
from common.runtime.flags import Address
from common.runtime.health import Health

LOCAL = Address("127.0.0.1", 0)


async def get(serving: Health, path: str, accept: str = "*/*") -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{serving.port}{path}", headers={"Accept": accept}) as answer,
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
