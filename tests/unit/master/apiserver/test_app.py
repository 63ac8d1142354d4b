from __future__ import annotations

import asyncio
import json
import logging

import pytest

from common.server.connections import UNNAMED
from common.server.http_parser import Head, RefusedError, Request
from master.apiserver import app as api
from master.apiserver.app import App
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from tests.client_certificates import Authority
from tests.unit.master.apiserver.test_auth import Reviewer, reviewer


def request(method: str, path: str, token: str = "token-of-ann", body: bytes = b"") -> Request:
    fields = {b"authorization": [f"Bearer {token}".encode()]}
    return Request(method, path, "", body, False, fields)


def head(path: str, token: str = "") -> Head:
    fields = {b"authorization": [f"Bearer {token}".encode()]} if token else {}
    return Head("GET", path, "", 0, False, False, fields, address="192.0.2.1")


async def identified(found: App, path: str, token: str = "") -> str | None:
    caller = found.identify(head(path, token))
    return caller if caller is None or isinstance(caller, str) else await caller


def app(cluster: Reviewer) -> App:
    return App(cluster, Caches(cluster, "seedquota"), AllocationCache(cluster))


async def test_who_shows_no_token_is_refused_by_the_head_and_may_read_the_document() -> None:
    async with reviewer() as cluster:
        found = app(cluster)
        with pytest.raises(RefusedError) as refused:
            found.identify(head("/api/v2/quotas"))
        assert refused.value.response.status == 401
        assert json.loads(refused.value.response.body)["code"] == "unauthenticated"
        assert ("WWW-Authenticate", "Bearer") in refused.value.response.headers
        assert found.identify(head("/openapi.json")) == UNNAMED
        answer = await found.handle(request("GET", "/openapi.json", token=""))
        assert (answer.status, cluster.asked) == (200, [])


async def test_whose_a_token_is_is_asked_by_the_head_alone_and_once() -> None:
    async with reviewer() as cluster:
        found = app(cluster)
        for _ in range(2):
            assert await identified(found, "/api/v2/quotas", "token-of-ann") == "user ann"
        assert len(cluster.asked) == 1
        await found.handle(request("GET", "/api/v2/quotas", "token-of-ann"))
        assert len(cluster.asked) == 1
        with pytest.raises(RefusedError) as refused:
            await identified(found, "/api/v2/quotas", "guess")
        assert refused.value.response.status == 401 and refused.value.response.close
        cluster.down = True
        with pytest.raises(RefusedError) as refused:
            await identified(found, "/api/v2/quotas", "new")
        assert refused.value.response.status == 503


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        ({"origin": "https://evil.example.com"}, True),
        ({"origin": "null"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "https://api:8443"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://before.a.proxy"}, False),
        ({"origin": "https://api:8443"}, False),
        ({}, False),
    ],
)
async def test_a_page_of_another_site_writes_nothing_by_a_client_certificate(
    sent: dict[str, str], refused: bool
) -> None:
    """A browser shows it there without asking. A token must be added by the page, which needs to know it."""
    fields = {name.encode(): [value.encode()] for name, value in {"host": "api:8443", **sent}.items()}
    certificate = Authority().issue("ann").der
    async with reviewer() as cluster:
        found = app(cluster)
        for path, method, expected in (
            ("/api/v2/quotas", "POST", 403 if refused else 503),
            ("/api/v2/quotas", "GET", 503),
        ):
            answer = await found.handle(Request(method, path, "", b"{}", False, fields, certificate))
            assert answer.status == expected, answer
            assert (json.loads(answer.body)["code"] == "cross_site") == (expected == 403)
        by_token = Request("POST", "/api/v2/quotas", "", b"", False, fields | request("", "").fields)
        assert (await found.handle(by_token)).status == 503


async def test_nothing_is_answered_from_caches_that_are_not_complete() -> None:
    async with reviewer() as cluster:
        answer = await app(cluster).handle(request("GET", "/api/v2/quotas"))
        assert answer.status == 503 and ("Retry-After", "1") in answer.headers


async def test_a_request_has_so_much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SECONDS", 0.01)
    async with reviewer() as cluster:
        cluster.go_on.clear()
        answer = await app(cluster).handle(request("GET", "/api/v2/quotas"))
        cluster.go_on.set()
        assert answer.status == 503 and json.loads(answer.body)["retryable"]


async def test_a_request_whose_caller_has_gone_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with reviewer() as cluster:
        cluster.go_on.clear()
        asking = asyncio.create_task(app(cluster).handle(request("GET", "/api/v2/quotas")))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        cluster.go_on.set()
    (line,) = [vars(record) for record in caplog.records if record.message == "request"]
    assert (line["status"], line["route"], line["user"]) == (0, "/api/v2/quotas", "")
