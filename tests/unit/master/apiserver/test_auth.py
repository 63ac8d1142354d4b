from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.client.kubeconfig import Access
from common.server.access_reviews import User
from master.apiserver import auth
from master.apiserver.auth import Answers, Identities, Right, Rights
from master.apiserver.problem import ProblemError
from tests.running import running

HERE = "192.0.2.1"


class Reviewer(Cluster):
    """An API server that knows ann, who may list quotas. `go_on` lets it answer."""

    asked: list[dict[str, Any]]
    go_on: asyncio.Event
    down: bool

    async def request(self, method: str, path: str, body: bytes | None = None, *_: Any, **__: Any) -> bytes:
        review = json.loads(body or b"")
        self.asked.append(review["spec"])
        await self.go_on.wait()
        if self.down:
            raise Unavailable(503, "ServiceUnavailable", "down")
        if review["kind"] == "TokenReview":
            known = review["spec"]["token"] == "token-of-ann"
            user = {"username": "ann", "groups": ["dev"]} if known else {}
            return json.dumps({"status": {"authenticated": known, "user": user}}).encode()
        attributes = review["spec"]["resourceAttributes"]
        return json.dumps({"status": {"allowed": attributes["verb"] == "list"}}).encode()


@asynccontextmanager
async def reviewer() -> AsyncIterator[Reviewer]:
    cluster = Reviewer(Access("http://127.0.0.1:1"), name="master")
    cluster.asked, cluster.go_on, cluster.down = [], asyncio.Event(), False
    cluster.go_on.set()
    yield cluster
    await cluster.close()


async def test_many_requests_with_one_token_ask_once_and_all_get_the_answer() -> None:
    async with reviewer() as cluster:
        cluster.go_on.clear()
        identities = Identities(cluster)
        asking = [asyncio.create_task(identities.user("token-of-ann", HERE)) for _ in range(50)]
        await asyncio.sleep(0)
        asking[0].cancel()
        cluster.go_on.set()
        done = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert {user.username for user in done[1:] if isinstance(user, User)} == {"ann"}
        assert len(cluster.asked) == 1


async def test_a_token_that_is_nobodys_is_unauthenticated_and_pushes_out_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "MAX_KEPT", 4)
    async with reviewer() as cluster:
        identities = Identities(cluster)
        await identities.user("token-of-ann", HERE)
        for number in range(20):
            with pytest.raises(ProblemError) as refused:
                await identities.user(f"guess-{number}", HERE)
            assert refused.value.status == 401
        before = len(cluster.asked)
        await identities.user("token-of-ann", HERE)
        assert len(cluster.asked) == before


async def test_answers_end_after_seconds() -> None:
    now = [0.0]
    answers: Answers[str, bool] = Answers("it", lambda: now[0])
    given = iter((True, False, True))

    async def ask() -> bool:
        return next(given)

    assert await answers.get("a", HERE, ask)
    now[0] += auth.KEPT_SECONDS - 0.1
    assert await answers.get("a", HERE, ask)
    now[0] += 0.2
    assert not await answers.get("a", HERE, ask)
    now[0] += auth.DENIED_SECONDS - 0.1
    assert not await answers.get("a", HERE, ask), "the last answer, not the one before it"
    now[0] += 0.2
    assert await answers.get("a", HERE, ask)


async def test_reviews_at_a_time_are_bounded_and_addresses_take_turns() -> None:
    async with reviewer() as cluster:
        cluster.go_on.clear()
        identities = Identities(cluster)
        guesses = [f"guess-{number}" for number in range(auth.MAX_ASKED * 20)]
        asking = [asyncio.create_task(identities.user(guess, HERE)) for guess in guesses]
        await asyncio.sleep(0)
        new = asyncio.create_task(identities.user("token-of-ann", "192.0.2.2"))
        await asyncio.sleep(0.01)
        assert len(cluster.asked) == auth.MAX_ASKED
        cluster.go_on.set()
        assert (await new).username == "ann"
        asked = [spec["token"] for spec in cluster.asked]
        assert asked.index("token-of-ann") <= auth.MAX_ASKED + 1
        for found in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(found, ProblemError) and found.status == 401
        assert sorted(asked[: asked.index("token-of-ann")]) == sorted(guesses[: asked.index("token-of-ann")])


async def test_what_cannot_be_known_is_503_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reviewer() as cluster:
        identities = Identities(cluster)
        cluster.down = True
        cluster.go_on.clear()
        asking = [asyncio.create_task(identities.user("token-of-ann", HERE)) for _ in range(5)]
        await asyncio.sleep(0)
        cluster.go_on.set()
        for found in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(found, ProblemError) and found.status == 503
        assert len(cluster.asked) == 1, "those who ask at one time share also what fails"
        cluster.down = False
        cluster.go_on.clear()
        with monkeypatch.context() as patched:
            patched.setattr(auth, "PATIENCE", 0.05)
            with pytest.raises(ProblemError, match="too many ask") as refused:
                await identities.user("token-of-ann", HERE)
        assert refused.value.status == 503
        cluster.go_on.set()
        assert (await identities.user("token-of-ann", HERE)).username == "ann"


async def test_who_goes_away_gives_back_the_place_and_the_review() -> None:
    async with reviewer() as cluster:
        cluster.go_on.clear()
        identities = Identities(cluster)
        for _ in range(3):
            async with running(*(identities.user(f"guess-{number}", HERE) for number in range(100))):
                await asyncio.sleep(0)
        cluster.go_on.set()
        assert (await identities.user("token-of-ann", HERE)).username == "ann"


async def test_one_user_cannot_take_all_reviews_of_rights() -> None:
    async with reviewer() as cluster:
        cluster.go_on.clear()
        rights, eve = Rights(cluster), User(username="eve")
        many = [Right(verb="list", resource="resourcequotas", name=f"q-{number}") for number in range(500)]
        asking = [asyncio.create_task(rights.has(eve, right)) for right in many]
        await asyncio.sleep(0)
        other = asyncio.create_task(rights.has(User(username="ann"), many[0]))
        await asyncio.sleep(0)
        cluster.go_on.set()
        assert await other
        assert [spec["user"] for spec in cluster.asked].index("ann") <= auth.MAX_ASKED + 1
        assert all(await asyncio.gather(*asking))


async def test_a_right_is_asked_for_as_rbac_has_it() -> None:
    async with reviewer() as cluster:
        rights, user = Rights(cluster), User(username="ann", groups=["dev"], extra={"a": ["b"]})
        right = Right(verb="get", resource="organizations", subresource="quotas", name="acme", namespace="org-acme")
        assert await rights.has(user, Right(verb="list", resource="resourcequotas"))
        for _ in range(2):
            with pytest.raises(ProblemError, match=r"get organizations/quotas\.seedquota\.io acme"):
                await rights.require(user, right)
        assert len(cluster.asked) == 2
        assert cluster.asked[1] == {
            "user": "ann",
            "uid": "",
            "groups": ["dev"],
            "extra": {"a": ["b"]},
            "resourceAttributes": {
                "group": "seedquota.io",
                "version": "v1alpha1",
                "verb": "get",
                "resource": "organizations",
                "subresource": "quotas",
                "name": "acme",
                "namespace": "org-acme",
            },
        }
