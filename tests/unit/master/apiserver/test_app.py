from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading

import msgspec
import pytest

from common.server.connections import UNNAMED
from common.server.http_parser import Head, RefusedError, Request, render
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


def reads(path: str, method: str = "GET", **fields: str) -> Request:
    found = {name.replace("_", "-").encode(): [value.encode()] for name, value in fields.items()}
    return Request(method, path, "", b"", False, found)


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_who_has_the_document_is_told_so(path: str) -> None:
    async with reviewer() as cluster:
        found = app(cluster)
        answer = await found.handle(reads(path))
        headers = dict(answer.headers)
        assert (answer.status, headers["Cache-Control"]) == (200, "no-cache")
        for method in ("GET", "HEAD"):
            again = await found.handle(reads(path, method, if_none_match=f'"x", W/{headers["ETag"]}'))
            assert (again.status, again.body, dict(again.headers)["ETag"]) == (304, b"", headers["ETag"])
            bytes_sent = render(again, last=False, body=method != "HEAD")
            assert b"Content-Length" not in bytes_sent and b"Content-Type:" not in bytes_sent
        assert (await found.handle(reads(path, if_none_match='"x"'))).status == 200


async def test_a_large_answer_is_compressed_for_who_takes_that_and_has_another_tag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reviewer() as cluster:
        found = app(cluster)
        plain = await found.handle(reads("/openapi.json", accept_encoding="gzip;q=0"))
        small = await found.handle(reads("/openapi.json", accept_encoding="br, gzip"))
        assert gzip.decompress(small.body) == plain.body and len(small.body) < len(plain.body) / 4
        before, after = dict(plain.headers), dict(small.headers)
        assert before["Vary"] == after["Vary"] == "Accept-Encoding"
        assert "Content-Encoding" not in before and after["Content-Encoding"] == "gzip"
        assert before["ETag"] != after["ETag"] and after["ETag"].endswith('.gz"'), "RFC 9110, section 8.8.3.3"
        for tag in (before["ETag"], after["ETag"]):
            same = await found.handle(reads("/openapi.json", if_none_match=tag))
            told = dict(same.headers)
            assert (same.status, told["ETag"], told["Vary"]) == (304, tag, "Accept-Encoding"), (
                "RFC 9110, section 15.4.5"
            )
        monkeypatch.setattr(api, "LARGE", 2**30)
        page = dict((await found.handle(reads("/docs", accept_encoding="gzip"))).headers)
        assert page["Vary"] == "Accept-Encoding" and "Content-Encoding" not in page, "it is small, and may become large"


async def test_nothing_is_compressed_for_a_page_of_another_site_and_no_problem_is() -> None:
    """A page that chooses a part of an answer learns of the rest by the size of what is compressed (BREACH)."""
    async with reviewer() as cluster:
        found = app(cluster)
        for site in ("cross-site", "same-site"):
            answer = await found.handle(reads("/openapi.json", accept_encoding="gzip", sec_fetch_site=site))
            assert answer.status == 200 and "Content-Encoding" not in dict(answer.headers)
        answer = await found.handle(reads("/openapi.json", accept_encoding="gzip", sec_fetch_site="same-origin"))
        assert dict(answer.headers)["Content-Encoding"] == "gzip"
        answer = await found.handle(reads("/" + "x" * 40_000, accept_encoding="gzip"))
        assert answer.status == 401 and "Content-Encoding" not in dict(answer.headers)


async def test_one_answer_is_compressed_at_a_time_and_none_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(content: bytes) -> bytes:
        begun.set()
        assert go_on.wait(15)
        return content

    monkeypatch.setattr(api, "compressed", slowly)
    async with reviewer() as cluster:
        found = app(cluster)
        first = asyncio.create_task(found.handle(reads("/openapi.json", accept_encoding="gzip")))
        try:
            await asyncio.to_thread(begun.wait, 15)
            others = [await found.handle(reads("/openapi.json", accept_encoding="gzip")) for _ in range(3)]
        finally:
            go_on.set()
        encodings = [dict(each.headers).get("Content-Encoding") for each in (await first, *others)]
        assert encodings == ["gzip", None, None, None]


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("*", "DELETE, GET, HEAD, OPTIONS, POST, PUT"),
        ("/api/v2/quotas", "GET, HEAD, OPTIONS, POST"),
        ("/api/v2/quotas/a", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("/api/v1/fits", "OPTIONS, POST"),
    ],
)
async def test_what_a_path_has_is_told_without_a_token(path: str, allow: str) -> None:
    async with reviewer() as cluster:
        found = app(cluster)
        asked = msgspec.structs.replace(head(path), method="OPTIONS")
        assert found.identify(asked) == UNNAMED
        answer = await found.handle(reads(path, "OPTIONS"))
        assert (answer.status, answer.body, dict(answer.headers)["Allow"]) == (204, b"", allow)
        wrong = await found.handle(request("PATCH", path))
        assert (wrong.status, dict(wrong.headers)["Allow"]) == (405, allow)
        assert cluster.asked and not any("resourceAttributes" in each for each in cluster.asked)


async def test_what_a_path_has_that_does_not_exist_is_not_told() -> None:
    async with reviewer() as cluster:
        with pytest.raises(RefusedError) as refused:
            app(cluster).identify(msgspec.structs.replace(head("/nothing"), method="OPTIONS"))
        assert refused.value.response.status == 401


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
