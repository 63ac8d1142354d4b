from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
import yarl
from aiohttp import web

from common.server.web_server import WebServer
from master.apiserver import app as api
from master.apiserver.app import API, App, refusal
from master.apiserver.client_certificates import user_of
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from master.seeds.agent_pages import AgentPages
from tests.client_certificates import Authority
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.master.apiserver.test_auth import Reviewer, reviewer

QUOTAS = "/api/v2/quotas"


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])


@dataclass
class World:
    app: App
    cluster: Reviewer
    server: WebServer
    session: aiohttp.ClientSession

    async def ask(
        self, path: str, method: str = "GET", *, token: str = "", body: bytes | None = None, **fields: str
    ) -> Answer:
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        url = yarl.URL(f"http://127.0.0.1:{self.server.port}{path}", encoded=True)
        async with self.session.request(method, url, headers=headers, data=body) as found:
            return Answer(found.status, found.headers, await found.read())


@asynccontextmanager
async def serving(mount: api.Mount = lambda _app: None, prefix: str = "") -> AsyncIterator[World]:
    plain = aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=("Accept-Encoding", "Content-Type"))
    async with reviewer() as cluster, plain as session:
        caches = Caches(cluster, "seedquota")
        app = App(cluster, caches, AllocationCache(cluster), AgentPages(caches, "seedquota"), mount, prefix)
        server = WebServer(app.application, refusal, prefix=prefix)
        await server.start("127.0.0.1", 0, None)
        yield World(app, cluster, server, session)
        cluster.go_on.set()
        await server.stop(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as found:
        yield found


async def test_who_shows_no_token_is_refused_by_the_head_and_may_read_the_document(world: World) -> None:
    answer = await world.ask(QUOTAS, "POST", body=b"x" * 100)
    assert (answer.status, answer.code, answer.headers["WWW-Authenticate"]) == (401, "unauthenticated", "Bearer")
    assert answer.headers["Connection"] == "close"
    assert ((await world.ask("/openapi.json")).status, world.cluster.asked) == (200, [])


async def test_whose_a_token_is_is_asked_once(world: World) -> None:
    for _ in range(2):
        assert (await world.ask(QUOTAS, token="token-of-ann")).status == 503, "no cache is complete"
    assert len(world.cluster.asked) == 1 and world.server._places.unproven == 0
    answer = await world.ask(QUOTAS, token="guess")
    assert (answer.status, answer.headers["Connection"]) == (401, "close")
    world.cluster.down = True
    assert (await world.ask(QUOTAS, token="new")).status == 503


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        ({"Origin": "https://evil.example.com"}, True),
        ({"Origin": "null"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://api:8443"}, True),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://before.a.proxy"}, False),
        ({"Origin": "https://api:8443"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("by", ["certificate", "cookie"])
async def test_a_page_of_another_site_writes_nothing_by_what_a_browser_shows_by_itself(
    sent: dict[str, str], refused: bool, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token must be added by the page, which needs to know it."""
    async with serving() as world:
        if by == "certificate":
            certificate = Authority().issue("ann").der
            user = user_of(certificate)
            monkeypatch.setattr(api, "user_of", lambda _shown: user)
        else:
            world.app.session = lambda _request: "token-of-ann"
        for method, expected in (("POST", 403 if refused else 503), ("GET", 503)):
            body = b'{"subjectName": "a", "quota": {"cpu": 1}}' if method == "POST" else None
            answer = await world.ask(QUOTAS, method, body=body, Host="api:8443", **sent)
            assert answer.status == expected, answer
            assert (answer.code == "cross_site") == (expected == 403)
        if by == "cookie":
            by_token = await world.ask(QUOTAS, "POST", body=b"{}", token="token-of-ann", Host="api:8443", **sent)
            assert by_token.status == 422


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_who_has_the_document_is_told_so(world: World, path: str) -> None:
    answer = await world.ask(path)
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-cache")
    for method in ("GET", "HEAD"):
        again = await world.ask(path, method, If_None_Match=f'"x", W/{answer.headers["ETag"]}')
        assert (again.status, again.body, again.headers["ETag"]) == (304, b"", answer.headers["ETag"])
        assert "Content-Length" not in again.headers and "Content-Type" not in again.headers
    assert (await world.ask(path, If_None_Match='"x"')).status == 200


async def test_a_large_answer_is_compressed_for_who_takes_that_and_has_another_tag(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = await world.ask("/openapi.json", Accept_Encoding="gzip;q=0")
    small = await world.ask("/openapi.json", Accept_Encoding="br, gzip")
    assert gzip.decompress(small.body) == plain.body and len(small.body) < len(plain.body) / 4
    before, after = plain.headers, small.headers
    assert before["Vary"] == after["Vary"] == "Accept-Encoding"
    assert "Content-Encoding" not in before and after["Content-Encoding"] == "gzip"
    assert before["ETag"] != after["ETag"] and after["ETag"].endswith('.gz"'), "RFC 9110, section 8.8.3.3"
    for tag in (before["ETag"], after["ETag"]):
        same = await world.ask("/openapi.json", If_None_Match=tag)
        told = same.headers
        assert (same.status, told["ETag"], told["Vary"]) == (304, tag, "Accept-Encoding"), "RFC 9110, section 15.4.5"
    monkeypatch.setattr(api, "LARGE", 2**30)
    page = (await world.ask("/docs", Accept_Encoding="gzip")).headers
    assert page["Vary"] == "Accept-Encoding" and "Content-Encoding" not in page, "it is small, and may become large"


async def test_nothing_is_compressed_for_a_page_of_another_site_and_no_problem_is(world: World) -> None:
    """A page that chooses a part of an answer learns of the rest by the size of what is compressed (BREACH)."""
    for site in ("cross-site", "same-site"):
        answer = await world.ask("/openapi.json", Accept_Encoding="gzip", Sec_Fetch_Site=site)
        assert answer.status == 200 and "Content-Encoding" not in answer.headers
    answer = await world.ask("/openapi.json", Accept_Encoding="gzip", Sec_Fetch_Site="same-origin")
    assert answer.headers["Content-Encoding"] == "gzip"
    answer = await world.ask("/nowhere", Accept_Encoding="gzip")
    assert answer.status == 401 and "Content-Encoding" not in answer.headers


async def test_one_answer_is_compressed_at_a_time_and_none_waits_for_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(content: bytes) -> bytes:
        begun.set()
        assert go_on.wait(15)
        return content

    monkeypatch.setattr(api, "compressed", slowly)
    first = asyncio.create_task(world.ask("/openapi.json", Accept_Encoding="gzip"))
    try:
        await asyncio.to_thread(begun.wait, 15)
        others = [await world.ask("/openapi.json", Accept_Encoding="gzip") for _ in range(3)]
    finally:
        go_on.set()
    encodings = [each.headers.get("Content-Encoding") for each in (await first, *others)]
    assert encodings == ["gzip", None, None, None]


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        (QUOTAS, "GET, HEAD, OPTIONS, POST"),
        (f"{QUOTAS}/a", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("/api/v1/organizations/a/quotas", "GET, HEAD, OPTIONS, PUT"),
        ("/api/v1/fits", "OPTIONS, POST"),
    ],
)
async def test_what_a_path_has_is_told_without_a_token(world: World, path: str, allow: str) -> None:
    answer = await world.ask(path, "OPTIONS")
    assert (answer.status, answer.body, answer.headers["Allow"]) == (204, b"", allow)
    wrong = await world.ask(path, "PATCH", token="token-of-ann")
    assert (wrong.status, wrong.code, wrong.headers["Allow"]) == (405, "method_not_allowed", allow)
    assert wrong.headers["Content-Type"] == "application/problem+json"
    assert world.cluster.asked and not any("resourceAttributes" in each for each in world.cluster.asked)


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "//",
        f"{QUOTAS}/",
        f"{QUOTAS}/..",
        f"{QUOTAS}/a%2Fb",
        f"{QUOTAS}/a/b",
        f"{QUOTAS}/A",
        f"{QUOTAS}/a%00b",
        "/api/v1/organizations/../quotas",
        "/api/v1/organizations/%2e%2e%2fx/quotas",
        "/api/v1/organizations/a%00b/quotas",
    ],
)
async def test_what_a_path_has_that_does_not_exist_is_not_told(world: World, path: str) -> None:
    """Nor is there a path whose names no object has."""
    assert (await world.ask(path, "OPTIONS")).status == 401
    for method in ("GET", "OPTIONS"):
        answer = await world.ask(path, method, token="token-of-ann")
        assert (answer.status, answer.headers["Content-Type"]) == (404, "application/problem+json")


async def test_nothing_is_answered_from_caches_that_are_not_complete(world: World) -> None:
    answer = await world.ask(QUOTAS, token="token-of-ann")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


async def test_a_request_has_so_much_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SECONDS", 0.01)
    for cache in (Caches, AllocationCache):
        monkeypatch.setattr(cache, "not_synced", lambda _self: None)
    assert (await world.ask("/nowhere", token="token-of-ann")).status == 404, "who it is, is known by now"
    world.cluster.go_on.clear()
    answer = await world.ask(QUOTAS, token="token-of-ann")
    assert answer.status == 503 and json.loads(answer.body)["retryable"]


async def test_a_request_whose_caller_has_gone_is_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.cluster.go_on.clear()
    async with running(world.ask(QUOTAS, token="token-of-ann")):
        await eventually(lambda: world.cluster.asked)
    await eventually(lambda: any(record.message == "request" for record in caplog.records))
    (line,) = [vars(record) for record in caplog.records if record.message == "request"]
    assert (line["status"], line["route"], line["user"]) == (0, QUOTAS, "")


async def test_what_is_mounted_is_asked_with_the_rights_of_who_looks_and_is_in_the_same_logs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for cache in (Caches, AllocationCache):
        monkeypatch.setattr(cache, "not_synced", lambda _self: None)

    def mount(app: web.Application) -> None:
        async def show(request: web.Request) -> web.Response:
            async with app[API].viewer(request) as user:
                shown = await app[API].ask(request, "list_quotas", user)
                return web.json_response({"user": user.username, "shown": shown.content})

        async def delete(request: web.Request) -> web.Response:
            async with app[API].viewer(request) as user:
                try:
                    await app[API].ask(request, "delete_quota", user, parameters={"name": "a"})
                except Exception as error:  # noqa: BLE001
                    return web.Response(status=app[API].problem(request, error).status, text="<p>it could not be</p>")
            raise AssertionError("ann may not")

        app.router.add_get("/page/{which}", show)
        app.router.add_post("/page/{which}", delete)

    async with serving(mount) as world:
        assert (await world.ask("/page/a")).status == 401
        shown = await world.ask("/page/a", token="token-of-ann")
        assert (shown.status, json.loads(shown.body)) == (200, {"user": "ann", "shown": []})
        gone = await world.ask("/page/a", "POST", token="token-of-ann", body=b"")
        assert (gone.status, gone.body) == (403, b"<p>it could not be</p>")
    (line,) = [vars(record) for record in caplog.records if record.message == "write"]
    assert (line["user"], line["address"], line["route"]) == ("ann", "127.0.0.1", "/page/{which}")
    assert (line["status"], line["code"]) == (403, "forbidden")


async def test_below_a_path_each_route_is_where_it_was_and_logs_and_metrics_have_its_own_path(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(prefix="/tools/quota") as world:
        for path in ("/tools/quota/openapi.json", "/openapi.json"):
            answer = await world.ask(path)
            assert json.loads(answer.body)["servers"] == [{"url": "/tools/quota/"}]
        for path in ("/tools/openapi.json", "/tools/quotas", "/tools/quota", "/tools/quota/tools/quota/openapi.json"):
            assert (await world.ask(path, token="token-of-ann")).status == 404
        assert (await world.ask("/tools/quota/api/v2/quotas?limit=1")).status == 401
    lines = [vars(record) for record in caplog.records if record.message == "request"]
    assert [line["path"] for line in lines[:2]] == ["/openapi.json"] * 2
    assert (lines[-1]["path"], lines[-1]["route"]) == (QUOTAS, QUOTAS)


async def test_a_path_that_is_one_of_its_own_cannot_be_that_below_which_it_is() -> None:
    async with reviewer() as cluster:
        caches = Caches(cluster, "seedquota")
        allocations, decisions = AllocationCache(cluster), AgentPages(caches, "seedquota")
        with pytest.raises(ValueError, match="begin with /api"):
            App(cluster, caches, allocations, decisions, prefix="/api/quota")
