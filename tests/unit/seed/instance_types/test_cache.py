"""Asked once, kept without limit of age, and never waited for longer than the caller can wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from unittest.mock import MagicMock

import pytest
from aiohttp import web

from common.quota.quantity import UNIT
from seed.instance_types import breaker as breakers
from seed.instance_types import cache as caches
from seed.instance_types import catalogue, gate
from seed.instance_types.breaker import FAILURES, FIRST_REST, LONGEST_REST, Breaker
from seed.instance_types.cache import FlavourCache, Question
from seed.instance_types.http_client import Transport
from seed.instance_types.sessions import Sessions
from seed.providers.flavour import Catalogue, Cloud, CloudError, Flavour, Place, Query, Session, Settings
from seed.providers.size import NotSized, ProviderUnavailable
from tests.unit.fake_api_server import eventually, within
from tests.unit.fake_cloud import answering, fake_cloud, hang

PLACE = Place("aws", "https://ec2.eu-central-1.amazonaws.com/", "eu-central-1")
LARGE = Flavour(cpu=2 * UNIT, memory=8 * 2**30 * UNIT)


@dataclass
class Told:
    """A cloud that answers what `answer` says, and what was asked of it."""

    answer: Callable[[Query], Awaitable[Catalogue]]
    lists: bool = False
    asked: list[str] = field(default_factory=list)

    async def fetch(self, query: Query) -> Catalogue:
        self.asked.append(query.flavour)
        return await self.answer(query)

    def question(self, flavour: str = "m5.large", *, place: Place = PLACE, asker: str = "c1") -> Question:
        settings = Settings("aws", {"secret": f"secret-of-{asker}"})

        async def credentials() -> Settings:
            return settings

        cloud = Cloud(place=lambda _where: place, fetch=self.fetch, lists=self.lists)
        return Question(cloud, place, flavour, Settings("aws", {}), credentials, asker)


async def large(_query: Query) -> Catalogue:
    return Catalogue({"m5.large": LARGE, "m5.xlarge": LARGE})


async def forever(_query: Query) -> Catalogue:
    await asyncio.Event().wait()
    raise AssertionError


def failing(error: Exception) -> Callable[[Query], Awaitable[Catalogue]]:
    async def fail(_query: Query) -> Catalogue:
        raise error

    return fail


class Kept(FlavourCache):
    def __init__(self, **options: float) -> None:
        self.lookups: list[str] = []
        self.fetches: list[str] = []
        super().__init__(
            Transport(),
            on_lookup=lambda _provider, result: self.lookups.append(result),
            on_fetch=lambda _provider, result, _seconds: self.fetches.append(result),
            **options,
        )

    async def ask(self, question: Question, seconds: float = 30.0) -> Flavour:
        return (await self.find(question, asyncio.get_running_loop().time() + seconds)).flavour

    async def refusal(self, question: Question, seconds: float = 30.0) -> str:
        with pytest.raises((NotSized, ProviderUnavailable)) as caught:
            await self.ask(question, seconds)
        return str(caught.value)


@pytest.fixture
async def cache() -> AsyncIterator[Kept]:
    made = Kept()
    yield made
    await made.close()


async def test_a_flavour_is_asked_for_once(cache: Kept) -> None:
    cloud = Told(large)
    assert await cache.ask(cloud.question()) == LARGE
    assert await cache.ask(cloud.question(asker="c2")) == LARGE
    assert cloud.asked == ["m5.large"]
    assert cache.lookups == ["fetched", "hit"]
    assert set(cache.oldest()) == {"aws"}


async def test_all_that_an_answer_tells_is_kept(cache: Kept) -> None:
    cloud = Told(large)
    await cache.ask(cloud.question())
    await cache.ask(cloud.question("m5.xlarge"))
    assert cloud.asked == ["m5.large"]


async def test_many_at_a_time_ask_once_for_each_flavour_or_once_for_a_list(cache: Kept) -> None:
    async def slow(query: Query) -> Catalogue:
        await asyncio.sleep(0.01)
        return Catalogue(
            {f"f{number}": LARGE for number in range(40)} if query.place.region else {query.flavour: LARGE}
        )

    lists, single = Told(slow, lists=True), Told(slow)
    elsewhere = Place("do", "https://api")
    await asyncio.gather(*(cache.ask(lists.question(f"f{number % 40}"), 30) for number in range(1000)))
    await asyncio.gather(
        *(cache.ask(single.question(f"f{number % 40}", place=elsewhere), 30) for number in range(1000))
    )
    assert len(lists.asked) == 1
    assert sorted(single.asked) == sorted(f"f{number}" for number in range(40))


async def test_places_are_apart(cache: Kept) -> None:
    cloud = Told(large)
    await cache.ask(cloud.question())
    await cache.ask(cloud.question(place=Place("aws", PLACE.endpoint, "eu-west-1")))
    await cache.ask(cloud.question(place=Place("aws", PLACE.endpoint, "eu-central-1", "account")))
    assert len(cloud.asked) == 3


@pytest.mark.parametrize(
    "later",
    [
        failing(CloudError("answered 500")),
        failing(CloudError("refuses these credentials (401)", refused=True)),
        failing(CloudError("answers too many requests (429)", retry_after=60)),
        failing(RuntimeError("a bug")),
        forever,
    ],
)
async def test_what_is_known_is_served_however_old_while_the_cloud_fails(
    later: Callable[[Query], Awaitable[Catalogue]],
) -> None:
    cache = Kept(fresh_seconds=0.0)
    cloud = Told(large)
    await cache.ask(cloud.question())
    cloud.answer = later
    for _ in range(20):
        assert await cache.ask(cloud.question(), seconds=0.0) == LARGE
        await asyncio.sleep(0)
    assert set(cache.lookups) == {"fetched", "stale"}
    await cache.close()


async def test_what_is_old_is_asked_for_again_in_the_background() -> None:
    cache = Kept(fresh_seconds=0.0)
    cloud = Told(large)
    await cache.ask(cloud.question())
    bigger = Flavour(cpu=4 * UNIT, memory=1)

    async def changed(_query: Query) -> Catalogue:
        return Catalogue({"m5.large": bigger})

    cloud.answer = changed
    assert await cache.ask(cloud.question(), seconds=0.0) == LARGE
    await eventually(lambda: "ok" in cache.fetches[1:])
    assert await cache.ask(cloud.question(), seconds=0.0) == bigger
    await cache.close()


async def test_a_flavour_that_the_cloud_dropped_keeps_its_size_and_is_not_asked_for_all_the_time() -> None:
    cache = Kept(fresh_seconds=0.0)
    cloud = Told(large)
    await cache.ask(cloud.question())

    async def dropped(_query: Query) -> Catalogue:
        return Catalogue({})

    cloud.answer = dropped
    for _ in range(20):
        assert await cache.ask(cloud.question()) == LARGE
        await asyncio.sleep(0)
    assert len(cloud.asked) == 2
    await cache.close()


async def test_an_unknown_flavour_is_refused_with_the_nearest_names_and_not_asked_for_again(cache: Kept) -> None:
    async def some(_query: Query) -> Catalogue:
        return Catalogue({}, names=("m5.large", "m5.xlarge", "c7g.medium"))

    cloud = Told(some)
    for _ in range(3):
        assert await cache.refusal(cloud.question("m5.larg")) == (
            "cannot size machine: aws eu-central-1 has no type m5.larg; nearest: m5.large, m5.xlarge"
        )
    assert cloud.asked == ["m5.larg"]
    assert cache.lookups == ["missing"] * 3


async def test_after_a_while_an_unknown_flavour_is_asked_for_again(
    cache: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_query: Query) -> Catalogue:
        return Catalogue({})

    cloud = Told(nothing)
    assert "has no type m5.large" in await cache.refusal(cloud.question())
    cloud.answer = large
    later = time.monotonic() + catalogue.MISSING_SECONDS
    monkeypatch.setattr(caches, "time", MagicMock(wraps=time, monotonic=lambda: later))
    assert await cache.ask(cloud.question()) == LARGE


async def test_one_list_answers_for_all_flavours_that_do_not_exist(cache: Kept) -> None:
    cloud = Told(large, lists=True)
    for name in ("a", "b", "c"):
        await cache.refusal(cloud.question(name))
    assert len(cloud.asked) == 1


async def test_a_name_that_is_no_word_is_quoted(cache: Kept) -> None:
    text = await cache.refusal(Told(large).question("m5\n; nearest: x" * 10))
    assert "\n" not in text
    assert len(text) < 200


async def test_whoever_cannot_wait_is_refused_in_time_and_the_answer_serves_the_next(cache: Kept) -> None:
    release = asyncio.Event()

    async def slow(query: Query) -> Catalogue:
        await release.wait()
        return await large(query)

    cloud = Told(slow)
    async with within(0.2):
        refused = await cache.refusal(cloud.question(), seconds=0.05)
    assert refused == "cannot size machine now: aws eu-central-1 has not answered yet"
    release.set()
    assert await cache.ask(cloud.question()) == LARGE
    assert len(cloud.asked) == 1


async def test_a_question_ends_by_itself_when_nobody_waits_any_more() -> None:
    cache = Kept(fetch_seconds=0.05)
    cloud = Told(forever)
    await cache.refusal(cloud.question(), seconds=0.01)
    await eventually(lambda: cache.fetches)
    assert cache.fetches == ["failed"]
    assert await cache.refusal(cloud.question()) == (
        "cannot size machine now: aws eu-central-1 did not answer within 0.05 s"
    )
    await cache.close()


async def test_a_cloud_that_fails_again_and_again_is_left_alone(cache: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakers, "FIRST_REST", 60.0)
    cloud = Told(failing(CloudError("answered 500")))
    for number in range(20):
        assert await cache.refusal(cloud.question(f"f{number}")) == (
            "cannot size machine now: aws eu-central-1 answered 500"
        )
    assert len(cloud.asked) == FAILURES


async def test_a_cloud_that_says_for_how_long_is_left_alone_at_once(cache: Kept) -> None:
    cloud = Told(failing(CloudError("answers too many requests (429)", retry_after=60)))
    for number in range(5):
        assert "(429)" in await cache.refusal(cloud.question(f"f{number}"))
    assert len(cloud.asked) == 1


async def test_credentials_that_are_refused_harm_nobody_else(cache: Kept) -> None:
    async def by_asker(query: Query) -> Catalogue:
        await asyncio.sleep(0.01)
        if query.credentials["secret"] == "secret-of-bad":
            raise CloudError("refuses these credentials (401)", refused=True)
        return await large(query)

    cloud = Told(by_asker)
    bad = [cache.refusal(cloud.question(asker="bad")) for _ in range(10)]
    good = [cache.ask(cloud.question(asker="good")) for _ in range(10)]
    results = await asyncio.gather(*bad[:1], *good, return_exceptions=True)
    assert results[1:] == [LARGE] * 10
    for refused in bad[1:]:
        refused.close()
    assert cache.fetches == ["refused", "ok"]


async def test_refused_credentials_are_not_tried_at_every_request(cache: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "REFUSED_SECONDS", 60.0)
    cloud = Told(failing(CloudError("refuses these credentials (401)", refused=True)))
    for _ in range(5):
        assert await cache.refusal(cloud.question()) == (
            "cannot size machine now: aws eu-central-1 refuses these credentials (401)"
        )
    assert len(cloud.asked) == 1


async def test_credentials_that_are_missing_are_named(cache: Kept) -> None:
    async def needs(query: Query) -> Catalogue:
        query.credentials["token"]
        return Catalogue({})

    assert await cache.refusal(Told(needs).question()) == "cannot size machine: aws token is missing"


async def test_a_session_is_made_once_and_anew_when_it_is_refused(cache: Kept) -> None:
    made: list[str] = []
    refused: set[str] = set()

    async def signed(query: Query) -> Catalogue:
        async def sign_in() -> Session:
            made.append(f"token-{len(made)}")
            return Session({"token": made[-1]}, 3600)

        if (await query.sign_in(sign_in))["token"] in refused:
            raise CloudError("refuses these credentials (401)", refused=True)
        return Catalogue({query.flavour: LARGE})

    cloud = Told(signed)
    for name in ("a", "b", "c"):
        await cache.ask(cloud.question(name))
    assert made == ["token-0"]
    refused.add("token-0")
    await cache.ask(cloud.question("d"))
    assert made == ["token-0", "token-1"]
    refused.add("token-1")
    refused.add("token-2")
    assert "401" in await cache.refusal(cloud.question("e"))
    assert made == ["token-0", "token-1", "token-2"]


async def test_hanging_lookups_of_one_user_cluster_refuse_no_other_s() -> None:
    """Over real connections: also those have a bound."""
    hosts = [f"hanging-{number}.example" for number in range(70)]

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (answering(200) if request.host == "api.hetzner.cloud" else hang)(request)

    async def fetch(query: Query) -> Catalogue:
        await query.http.request("GET", f"https://{query.place.endpoint}/")
        return Catalogue({"cax11": LARGE})

    async with fake_cloud(answer, "api.hetzner.cloud", *hosts) as cloud:
        cache = Kept()
        cache._transport = cloud.transport()
        asked = [Told(fetch).question("x", place=Place("openstack", host), asker="mallory") for host in hosts]
        hanging = [asyncio.create_task(cache.refusal(question)) for question in asked]
        await eventually(lambda: len(cloud.requests) == caches.MAX_FETCHES)
        hetzner = Place("hetzner", "api.hetzner.cloud")
        async with within(1.0):
            assert await cache.ask(Told(fetch).question("cax11", place=hetzner, asker="ann")) == LARGE
        refused = [task.result() for task in hanging if task.done()]
        assert len(refused) == len(hosts) - caches.MAX_FETCHES
        assert all(text.endswith("must wait: too much is being asked for this user cluster") for text in refused)
        await cache.close()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_lookup_is_shared_by_user_clusters_while_it_goes_well(cache: Kept) -> None:
    release = asyncio.Event()

    async def slow(query: Query) -> Catalogue:
        await release.wait()
        return await large(query)

    cloud = Told(slow, lists=True)
    asking = [asyncio.create_task(cache.ask(cloud.question(asker=f"c{number}"))) for number in range(20)]
    await asyncio.sleep(0)
    assert "has not answered yet" in await cache.refusal(cloud.question(asker="hasty"), seconds=0.01)
    release.set()
    assert await asyncio.gather(*asking) == [LARGE] * 20
    assert len(cloud.asked) == 1


async def test_a_lookup_that_goes_wrong_for_one_user_cluster_is_no_answer_for_another(
    cache: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Throttled, and tried again: the token's rate is used up, not the cloud's."""
    monkeypatch.setattr(breakers, "FIRST_REST", 60.0)

    async def by_asker(query: Query) -> Catalogue:
        if query.credentials["secret"] == "secret-of-mallory":
            query.http.trouble = "answers too many requests (429)"  # type: ignore[attr-defined]
            await asyncio.Event().wait()
        return await large(query)

    cloud = Told(by_asker, lists=True)
    throttled = asyncio.create_task(cache.refusal(cloud.question(asker="mallory"), seconds=1.0))
    await eventually(lambda: cloud.asked)
    async with within(0.5):
        assert await cache.ask(cloud.question(asker="ann")) == LARGE
    throttled.cancel()


async def test_what_one_user_cluster_sends_closes_a_cloud_to_no_other(cache: Kept) -> None:
    async def by_asker(query: Query) -> Catalogue:
        if query.credentials["secret"] == "secret-of-mallory":
            raise ValueError("a token that is no header")
        return await large(query)

    cloud = Told(by_asker)
    for number in range(FAILURES + 3):
        assert "answers what cannot be read" in await cache.refusal(cloud.question(f"f{number}", asker="mallory"))
    assert await cache.ask(cloud.question(asker="ann")) == LARGE


async def test_sessions_of_one_user_cluster_push_out_no_other_s() -> None:
    sessions = Sessions()
    made: list[str] = []

    async def sign_in(asker: str, credentials: str) -> None:
        async def make() -> Session:
            made.append(asker)
            return Session({"token": "t"}, 3600)

        await sessions.of(asker, PLACE, Settings("aws", {"secret": credentials})).sign_in(make)

    await sign_in("ann", "hers")
    for number in range(2000):
        await sign_in("mallory", str(number))
    await sign_in("ann", "hers")
    assert made.count("ann") == 1


async def test_what_is_kept_is_bounded(cache: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_FLAVOURS", 10)

    async def many(query: Query) -> Catalogue:
        return Catalogue({**{f"f{number}": LARGE for number in range(100)}, query.flavour: LARGE})

    cloud = Told(many)
    assert await cache.ask(cloud.question("wanted")) == LARGE
    assert cache.known(PLACE, "wanted") is not None
    assert sum(cache.known(PLACE, f"f{number}") is not None for number in range(100)) <= 10


def test_a_breaker_lets_one_question_through_after_each_rest() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        assert breaker.closed_because(0) is None
        breaker.failed(0, "answered 500")
    assert breaker.closed_because(FIRST_REST - 0.1) == "answered 500"
    assert breaker.closed_because(FIRST_REST) is None
    assert breaker.closed_because(FIRST_REST) == "answered 500"  # while the one is asking
    breaker.failed(FIRST_REST, "answered 503")
    assert breaker.closed_because(FIRST_REST * 2.9) == "answered 503"
    breaker.succeeded()
    assert breaker.closed_because(FIRST_REST * 2.9) is None


def test_a_breaker_rests_no_longer_than_bounded() -> None:
    breaker = Breaker()
    for _ in range(100):
        breaker.failed(0, "answered 500")
    assert breaker.closed_because(LONGEST_REST) is None
