"""What one caller may take of a replica."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.server.http_parser import Head, Request, Response
from seed import build
from seed.admission.types import Verdict
from seed.kinds.kind import Parts, Replica
from seed.kinds.machines.scale_webhook import ScaleWebhook
from seed.kinds.machines.webhook import MachineWebhook, StampWebhook
from seed.options import SeedOptions
from seed.webhooks import turns as module
from seed.webhooks.endpoint import Endpoint, Question, Webhook, WebhookAnswer
from seed.webhooks.review import MAX_QUOTES, MAX_UID, MAX_USER, RawRequest, RawReview
from seed.webhooks.router import identify, route
from seed.webhooks.turns import AT_A_TIME, BURST_SECONDS, LARGE, Turn, Turns
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.seed.kinds.machines.test_webhook import machine, review


def test_a_caller_has_its_rate_and_a_burst() -> None:
    turn = Turn(10).requests
    assert [turn.take(0.0) for _ in range(10 * BURST_SECONDS + 1)] == [True] * 10 * BURST_SECONDS + [False]
    assert [turn.take(0.5) for _ in range(6)] == [True] * 5 + [False]
    assert [turn.take(1e6) for _ in range(10 * BURST_SECONDS + 1)][-2:] == [True, False], "a pause earns one burst"


def test_one_caller_s_turns_are_not_another_s() -> None:
    turns = Turns(1, clock=lambda: 0.0)
    while turns.take("a") is not None:
        pass
    assert turns.take("b") is not None


def test_callers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CALLERS", 3)
    turns = Turns()
    for number in range(10):
        turns.take(str(number))
    assert len(turns._of) == 3


class Waiting(Webhook[RawRequest]):
    """Answers when it is allowed to."""

    about = "anything"

    def __init__(self) -> None:
        self.working = 0
        self.go_on = asyncio.Event()
        self.users: list[str] = []

    def decode(self, body: bytes) -> Question[RawRequest]:
        return Question(msgspec.json.decode(body, type=RawReview).request, None)

    async def decide(self, caller: str, question: Question[RawRequest], deadline: float) -> WebhookAnswer:
        self.users.append(question.head.user_info.username)
        self.working += 1
        await self.go_on.wait()
        self.working -= 1
        return WebhookAnswer(verdict=Verdict(), kind="Machine")


def asked(caller: str = "a", **more: object) -> Request:
    body = {"request": {"uid": "r-1", "operation": "CREATE", "resource": {}, **more}}
    return Request("POST", f"/any/{caller}/t", "timeout=30s", json.dumps(body).encode(), close=False)


def answer(response: Response) -> dict:
    assert response.status == 200, response.body
    return json.loads(response.body)["response"]


async def test_who_asks_too_often_is_told_to_try_again() -> None:
    webhook, seen = Waiting(), []
    webhook.go_on.set()
    endpoint = Endpoint(webhook, lambda *what: seen.append(what[:4]), None, Turns(1, clock=lambda: 0.0))
    for _ in range(BURST_SECONDS):
        assert answer(await endpoint.handle("a", asked()))["allowed"]
    refused = answer(await endpoint.handle("a", asked(dryRun=True)))
    assert (refused["uid"], refused["allowed"]) == ("r-1", False)
    assert (refused["status"]["code"], refused["status"]["details"]["retryAfterSeconds"]) == (503, 1)
    assert seen[-1] == ("Any", "denied", "TooManyRequests", "unavailable")
    assert answer(await endpoint.handle("b", asked("b")))["allowed"]


async def test_an_api_server_that_asks_for_many_tenants_is_not_limited_as_one() -> None:
    webhook = Waiting()
    webhook.go_on.set()
    endpoint = Endpoint(webhook, None, None, Turns(1, {"cluster-api"}, clock=lambda: 0.0))
    for _ in range(3 * BURST_SECONDS):
        assert answer(await endpoint.handle("cluster-api", asked()))["allowed"]


async def test_requests_about_objects_in_namespaces_take_no_turns_of_machines() -> None:
    options = SeedOptions(seed_name="seed-1", webhook_url="https://seed-1", webhook_requests_per_second=1)
    nothing: Any = None
    cluster = cast("Cluster", SimpleNamespace(name="seed-1"))
    replica = Replica(
        options=options,
        cluster=cluster,
        caches=build.caches_of(options, cluster),
        registry=nothing,
        sizing=nothing,
        lease=nothing,
        wanted=nothing,
        reach=build.reach_of(options),
    )
    found, _ = build.endpoints_of(Parts(replica=replica, connections=nothing, admission=nothing), nothing)
    objects, machines = found["namespaces"]._turns, found["machines"]._turns
    assert objects is not None and machines is not None
    assert machines is found["scale"]._turns
    taken = [objects.take("c1") is not None for _ in range(2 * BURST_SECONDS + 1)]
    assert taken == [True] * 2 * BURST_SECONDS + [False]
    assert machines.take("c1") is not None


async def test_what_only_advises_is_allowed_unasked() -> None:
    assert StampWebhook.advises
    assert ScaleWebhook.advises
    assert not MachineWebhook.advises


async def test_many_requests_of_one_caller_do_not_stand_before_another_s() -> None:
    webhook = Waiting()
    endpoint = Endpoint(webhook, None, None, Turns())
    storm = [asyncio.create_task(endpoint.handle("a", asked())) for _ in range(AT_A_TIME + 50)]
    await eventually(lambda: webhook.working == AT_A_TIME)
    other = asyncio.create_task(endpoint.handle("b", asked("b")))
    await eventually(lambda: webhook.working == AT_A_TIME + 1)
    webhook.go_on.set()
    assert all(answer(one)["allowed"] for one in await asyncio.gather(*storm, other))


async def test_a_place_is_given_back_by_a_caller_that_goes_away() -> None:
    webhook = Waiting()
    endpoint = Endpoint(webhook, None, None, Turns())
    async with running(*(endpoint.handle("a", asked()) for _ in range(AT_A_TIME + 5))):
        await eventually(lambda: webhook.working == AT_A_TIME)
    webhook.go_on.set()
    assert answer(await endpoint.handle("a", asked()))["allowed"]


async def test_a_review_of_many_names_is_refused_before_it_is_decoded() -> None:
    webhook = Waiting()
    endpoint = Endpoint(webhook)
    many = {f"k{number}": "v" for number in range(MAX_QUOTES // 4)}
    response = await endpoint.handle("a", asked(object={"metadata": {"labels": many}}))
    assert response.status == 400
    assert b"names and texts" in response.body


async def test_a_user_s_name_is_kept_no_longer_than_a_line() -> None:
    webhook = Waiting()
    webhook.go_on.set()
    await Endpoint(webhook).handle("a", asked(userInfo={"username": "u" * 1_000_000, "groups": ["g" * 1_000_000]}))
    (user,) = webhook.users
    assert len(user) <= MAX_USER + 3


@pytest.mark.parametrize("long", [{"uid": "u" * (MAX_UID + 1)}, {"name": "n" * 300}, {"namespace": "n" * 300}], ids=str)
async def test_a_review_of_no_api_server_is_refused(long: dict[str, str]) -> None:
    assert (await Endpoint(Waiting()).handle("a", asked(**long))).status == 400


async def test_who_calls_is_told_by_the_head_as_it_is_by_the_request() -> None:
    endpoint = Endpoint(Waiting())
    names = {"any": endpoint}

    def verify(webhook: str, caller: str, token: str) -> bool:
        return (webhook, caller, token) == ("any", "a", "t")

    who = identify(names, verify)
    served = route(names, verify)
    for method, path, caller in (
        ("POST", "/any/a/t", "a"),
        ("GET", "/any/a/t", None),
        ("POST", "/any/a/x", None),
        ("POST", "/any/b/t", None),
        ("POST", "/other/a/t", None),
        ("POST", "/any/a/t/more", None),
        ("POST", f"/any/{'a' * 1000}/t", None),
        ("POST", "/" * 1000, None),
    ):
        assert who(Head(method, path, "", 0, close=False, expects=False)) == caller
        assert ((await served(Request(method, path, "", b"{", close=False))).status == 404) == (caller is None)


def test_the_review_of_an_api_server_is_far_below_the_bound() -> None:
    managed = {"managedFields": [{"manager": "m", "fieldsV1": {f"f:field-{number}": {} for number in range(400)}}]}
    large = machine(**managed)
    assert json.dumps(review(large, large)).count('"') < MAX_QUOTES / 4


async def test_large_requests_of_one_caller_are_read_one_by_one_with_turns_of_others_between() -> None:
    read: list[str] = []

    class Reading(Waiting):
        def decode(self, body: bytes) -> Question[RawRequest]:
            question = super().decode(body)
            read.append(question.head.uid)
            return question

    webhook = Reading()
    webhook.go_on.set()
    endpoint = Endpoint(webhook, None, None, Turns())
    storm = [asyncio.create_task(endpoint.handle("a", asked(junk="x" * LARGE))) for _ in range(AT_A_TIME)]
    other = asyncio.create_task(endpoint.handle("b", asked("b", uid="of another")))
    assert all(answer(one)["allowed"] for one in await asyncio.gather(other, *storm))
    assert read.index("of another") < 3
    assert len(read) == AT_A_TIME + 1
