from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import Access
from common.server import access_reviews, page_access
from common.server.page_access import PageAccess, PageReaders
from tests.running import running

HERE = "192.0.2.1"
TOKEN_OF = {"ann's": "ann", "bob's": "bob"}


class Reviews:
    """An API server that knows ann, who may read /decisions, and bob, who may not."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.audiences = ["seedquota"]
        self.down = False

    async def token(self, request: web.Request) -> web.Response:
        spec = await self._spec(request)
        user = TOKEN_OF.get(spec["token"])
        status = {"authenticated": user is not None, "audiences": self.audiences if user else []}
        return self._answer(status | ({"user": {"username": user, "groups": ["dev"]}} if user else {}))

    async def access(self, request: web.Request) -> web.Response:
        spec = await self._spec(request)
        right = {"path": "/decisions", "verb": "get"}
        return self._answer({"allowed": spec["user"] == "ann" and spec["nonResourceAttributes"] == right})

    async def _spec(self, request: web.Request) -> dict[str, Any]:
        body = await request.json()
        self.asked.append((body["kind"], body["spec"]))
        spec: dict[str, Any] = body["spec"]
        return spec

    def _answer(self, status: dict[str, Any]) -> web.Response:
        return web.Response(status=500) if self.down else web.json_response({"status": status}, status=201)


@asynccontextmanager
async def readers() -> AsyncIterator[tuple[PageReaders, Reviews]]:
    reviews = Reviews()
    app = web.Application()
    app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", reviews.token)
    app.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", reviews.access)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster = Cluster(Access(f"http://127.0.0.1:{runner.addresses[0][1]}"), name="seed")
    try:
        yield PageReaders(cluster), reviews
    finally:
        await cluster.close()
        await runner.cleanup()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy a review and a turn take long."""
    monkeypatch.setattr(access_reviews, "TIMEOUT", 600.0)
    monkeypatch.setattr(page_access, "PATIENCE", 60.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pass_(seconds: float) -> None:
        now[0] += seconds

    return pass_


async def test_the_api_server_says_who_it_is_and_whether_the_path_may_be_read() -> None:
    async with readers() as (pages, reviews):
        assert await pages.may_read("/decisions", "ann's", HERE) is PageAccess.ALLOWED
        assert await pages.may_read("/decisions", "bob's", HERE) is PageAccess.FORBIDDEN
        assert await pages.may_read("/decisions", "nobody's", HERE) is PageAccess.UNAUTHENTICATED
        assert reviews.asked[0] == ("TokenReview", {"token": "ann's", "audiences": ["seedquota"]})
        assert reviews.asked[1][1]["groups"] == ["dev"]


async def test_to_ask_a_question_is_another_right_than_to_read() -> None:
    async with readers() as (pages, reviews):
        assert await pages.may_read("/decisions", "ann's", HERE) is PageAccess.ALLOWED
        assert await pages.may_ask("/decisions", "ann's", HERE) is PageAccess.FORBIDDEN
        asked = [spec["nonResourceAttributes"]["verb"] for kind, spec in reviews.asked if kind == "SubjectAccessReview"]
        assert asked == ["get", "post"]


@pytest.mark.parametrize("audiences", [[], ["https://kubernetes.default.svc"]])
async def test_a_token_for_the_api_server_itself_is_not_accepted(audiences: list[str]) -> None:
    async with readers() as (pages, reviews):
        reviews.audiences = audiences
        assert await pages.may_read("/decisions", "ann's", HERE) is PageAccess.UNAUTHENTICATED
        assert [kind for kind, _ in reviews.asked] == ["TokenReview"]


async def test_an_answer_is_kept_for_seconds_only(clock: Callable[[float], None]) -> None:
    async with readers() as (pages, reviews):
        for _ in range(10):
            assert await pages.may_read("/decisions", "ann's", HERE) is PageAccess.ALLOWED
        assert len(reviews.asked) == 2
        clock(page_access.KEPT_SECONDS + 1)
        await pages.may_read("/decisions", "ann's", HERE)
        assert len(reviews.asked) == 4


async def test_many_tokens_cost_the_api_server_few_reviews_and_this_program_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with readers() as (pages, reviews):
        with monkeypatch.context() as patched:
            patched.setattr(page_access, "PATIENCE", 0.3)
            begun = time.monotonic()
            asking = (pages.may_read("/decisions", f"forged-{number}", HERE) for number in range(50))
            answers = await asyncio.gather(*asking)
        assert len(reviews.asked) <= page_access.REVIEWS_PER_SECOND * (1 + time.monotonic() - begun)
        assert answers[-1] is PageAccess.NOT_KNOWN
    monkeypatch.setattr(page_access, "REVIEWS_PER_SECOND", 1_000_000)
    async with readers() as (pages, _):
        for number in range(page_access.MAX_KEPT + 20):
            await pages.may_read("/decisions", f"later-{number}", HERE)
        assert len(pages._kept) == page_access.MAX_KEPT


async def test_who_forges_tokens_delays_nobody_at_another_address_by_more_than_a_turn() -> None:
    """With the reviews of all callers together counted in one, ann would be told to ask again for as long as somebody
    floods."""
    async with (
        readers() as (pages, reviews),
        running(*(pages.may_read("/decisions", f"forged-{number}", HERE) for number in range(1000))),
    ):
        await asyncio.sleep(0)
        assert await pages.may_read("/decisions", "ann's", "192.0.2.2") is PageAccess.ALLOWED
        asked = [spec.get("token") for _, spec in reviews.asked]
        assert asked.index("ann's") < 3 * page_access.REVIEWS_PER_SECOND, "after what is asked at once, and a turn"


async def test_while_the_api_server_does_not_answer_nobody_reads_and_nothing_is_kept() -> None:
    async with readers() as (pages, reviews):
        reviews.down = True
        assert await pages.may_read("/decisions", "ann's", HERE) is PageAccess.NOT_KNOWN
        reviews.down = False
        assert await pages.may_read("/decisions", "ann's", HERE) is PageAccess.ALLOWED
