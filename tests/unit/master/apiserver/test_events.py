"""What is told to those who follow, by a server that runs, from changes of its watch caches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import msgspec
import pytest

from common.api.types import Allocation, AllocationSpec, WireGuarantee
from common.kube.client.meta import Object, ObjectMeta
from common.kube.controller.store import Change
from master.apiserver import auth, events
from master.cache.informers import Caches
from master.cache.objects import MasterQuota, Named, QuotaStatus
from tests.unit.fake_api_server import PATIENCE, eventually
from tests.unit.master.apiserver.test_app import World, serving

EVENTS = "/api/v1/events"


@pytest.fixture(autouse=True)
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caches, "not_synced", lambda _self: None)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as found:
        yield found


@asynccontextmanager
async def following(world: World, query: str = "") -> AsyncIterator[aiohttp.StreamReader]:
    url = f"http://127.0.0.1:{world.server.port}{EVENTS}{query}"
    async with world.session.get(url, headers={"Authorization": "Bearer token-of-ann"}) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream"), await answer.read()
        assert answer.headers["X-Accel-Buffering"] == "no", "or nginx keeps it back"
        assert await answer.content.readuntil(b"\n\n") == b": what changes from now on\n\n"
        yield answer.content


async def told(stream: aiohttp.StreamReader) -> Any:
    async with asyncio.timeout(PATIENCE):
        while (part := await stream.readuntil(b"\n\n")).startswith(b":"):
            pass
    name, data = part.decode().removesuffix("\n\n").split("\n")
    assert name == "event: change"
    return json.loads(data.removeprefix("data: "))


def quota(name: str, kind: str, subject: str) -> MasterQuota:
    return MasterQuota(metadata=ObjectMeta(name=name), spec={"subject": {"kind": kind, "name": subject}})


def change(world: World, resource: str, *objects: Object) -> None:
    for each in objects:
        world.app.caches._listeners.call(resource, Change(None, each))


async def test_what_changes_is_told_and_what_changes_together_is_told_together(world: World) -> None:
    async with following(world) as stream:
        secret = Object(metadata=ObjectMeta(name="eu-1"))
        change(world, "secrets", secret)
        change(world, "resourcequotas", quota("b", "project", "alpha"), quota("a", "namespaces", ""))
        change(world, "resourcequotas", quota("b", "project", "alpha"))
        change(world, "seeds", Named(metadata=ObjectMeta(name="eu-1")))
        assert await told(stream) == {
            "changed": [
                {"resource": "resourcequotas", "name": "a"},
                {"resource": "resourcequotas", "name": "b"},
                {"resource": "seeds", "name": "eu-1"},
            ],
            "more": False,
        }
        change(world, "projects", Named(metadata=ObjectMeta(name="alpha")))
        assert (await told(stream))["changed"] == [{"resource": "projects", "name": "alpha"}]
    await eventually(lambda: not world.app.events._streams and not world.app.events._of)


async def test_a_project_is_told_that_another_amount_is_guaranteed_to_it_and_not_by_which_quota(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    may(world, monkeypatch, ("get", "projects/quotas"))
    world.app.caches.projects.store._set("alpha", Named(metadata=ObjectMeta(name="alpha")))

    def of_organization(*given: WireGuarantee) -> MasterQuota:
        return msgspec.structs.replace(
            quota("org-acme", "organization", "acme"), status=QuotaStatus(guarantees=list(given))
        )

    def guarantee(project: str, hard: str, used: str = "0") -> WireGuarantee:
        return WireGuarantee(project=project, hard={"cpu": hard}, used={"cpu": used})

    nothing, given = of_organization(), of_organization(guarantee("alpha", "16"), guarantee("beta", "4"))
    used = of_organization(guarantee("alpha", "16", "3"), guarantee("beta", "5"))
    assert (
        events._guaranteed_otherwise(None, given) == events._guaranteed_otherwise(given, nothing) == {"alpha", "beta"}
    )
    assert events._guaranteed_otherwise(given, used) == {"beta"}, "use changes all the time"
    async with following(world, "?project=alpha") as stream:
        world.app.caches._listeners.call("resourcequotas", Change(nothing, given))
        assert await told(stream) == {"changed": [{"resource": "resourcequotas", "name": ""}], "more": False}


async def test_a_change_after_a_quiet_time_waits_for_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", 2 * PATIENCE)
    async with following(world) as stream:
        change(world, "resourcequotas", quota("a", "project", "alpha"))
        assert (await told(stream))["changed"] == [{"resource": "resourcequotas", "name": "a"}]


async def test_what_changes_soon_after_an_event_is_told_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    over = asyncio.Event()

    async def until_it_is_over(seconds: float) -> None:
        if seconds > 0:
            await over.wait()

    monkeypatch.setattr(events, "PAUSE_SECONDS", 600.0)
    monkeypatch.setattr(events, "TOGETHER_SECONDS", 0.0)
    monkeypatch.setattr(events, "asyncio", MagicMock(wraps=asyncio, sleep=until_it_is_over))
    async with following(world) as stream:
        change(world, "resourcequotas", quota("a", "project", "alpha"))
        await told(stream)
        for name in ("b", "c"):
            change(world, "resourcequotas", quota(name, "project", "alpha"))
            await asyncio.sleep(0.05)  # longer than what belongs together takes
        over.set()
        assert [each["name"] for each in (await told(stream))["changed"]] == ["b", "c"]


async def test_many_changes_are_told_by_their_first_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_NAMES", 3)
    async with following(world) as stream:
        change(world, "resourcequotas", *(quota(f"q{number}", "project", "alpha") for number in range(5)))
        found = await told(stream)
        assert (len(found["changed"]), found["more"]) == (3, True)
        change(world, "resourcequotas", quota("q9", "project", "alpha"))
        assert await told(stream) == {"changed": [{"resource": "resourcequotas", "name": "q9"}], "more": False}


def may(world: World, monkeypatch: pytest.MonkeyPatch, *rights: tuple[str, str]) -> list[tuple[str, str]]:
    """The verbs and resources that ann has; the list can be changed."""
    allowed = list(rights)

    async def has(_user: object, right: auth.Right) -> bool:
        return (right.verb, f"{right.resource}/{right.subresource}".strip("/")) in allowed

    monkeypatch.setattr(world.app.rights, "has", has)
    return allowed


async def test_a_stream_of_one_project_names_only_what_is_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    may(world, monkeypatch, ("get", "projects/quotas"))
    for name in ("alpha", "beta"):
        world.app.caches.projects.store._set(name, Named(metadata=ObjectMeta(name=name)))
    async with following(world, "?project=alpha") as stream:
        change(world, "resourcequotas", quota("of-beta", "project", "beta"), quota("org", "organization", "alpha"))
        change(world, "seeds", Named(metadata=ObjectMeta(name="eu-1")))
        change(world, "projects", Named(metadata=ObjectMeta(name="beta")))
        change(world, "resourcequotas", quota("of-alpha", "project", "alpha"))
        assert (await told(stream))["changed"] == [{"resource": "resourcequotas", "name": "of-alpha"}]


async def test_of_allocations_it_is_told_to_their_organization_and_project_that_some_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    may(world, monkeypatch, ("get", "projects/quotas"), ("list", "resourcequotas"))
    world.app.caches.projects.store._set("alpha", Named(metadata=ObjectMeta(name="alpha")))
    spec = AllocationSpec(organization="acme", project="alpha", kind="server", id="1", resources=[])
    made = Allocation(metadata=ObjectMeta(name="a-secret", namespace="org-acme", uid="u"), spec=spec)
    async with following(world, "?project=alpha") as of_project, following(world) as of_all:
        world.app.allocations._changed(Change(None, made))
        world.app.allocations._changed(Change(made, None))
        change(world, "projects", Named(metadata=ObjectMeta(name="other")))
        assert (await told(of_project))["changed"] == [{"resource": "allocations", "name": ""}]
        assert (await told(of_all))["changed"] == [{"resource": "projects", "name": "other"}]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 403),
        ("?project=alpha", 404),
        ("?project=none", 404),
        ("?organization=acme", 404),
        ("?project=a&organization=b", 422),
        ("?project=..", 400),
        ("?seed=eu-1", 400),
    ],
)
async def test_who_may_not_see_something_may_not_follow_it(
    world: World, monkeypatch: pytest.MonkeyPatch, query: str, status: int
) -> None:
    may(world, monkeypatch)
    world.app.caches.projects.store._set("alpha", Named(metadata=ObjectMeta(name="alpha")))
    assert (await world.ask(f"{EVENTS}{query}", token="token-of-ann")).status == status
    assert (await world.ask(f"{EVENTS}{query}", token="guess")).status == 401
    assert not world.app.events._streams


async def test_seeds_are_named_to_who_may_list_them_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    may(world, monkeypatch, ("list", "resourcequotas"))
    async with following(world) as stream:
        change(world, "seeds", Named(metadata=ObjectMeta(name="eu-1")))
        change(world, "resourcequotas", quota("a", "project", "alpha"))
        assert (await told(stream))["changed"] == [{"resource": "resourcequotas", "name": "a"}]


async def test_a_stream_ends_with_the_right_to_it_or_with_the_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(auth, "KEPT_SECONDS", 0.0)
    allowed = may(world, monkeypatch, ("list", "resourcequotas"))
    async with following(world) as stream:
        assert await stream.readuntil(b"\n\n") == b": still here\n\n"
        allowed.clear()
        async with asyncio.timeout(PATIENCE):
            await stream.read()
    allowed.append(("list", "resourcequotas"))
    async with following(world) as stream:
        world.cluster.down = True
        async with asyncio.timeout(PATIENCE):
            await stream.read()


async def test_streams_are_bounded_by_user_and_for_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound, status in (("MAX_STREAMS_OF_ONE", 429), ("MAX_STREAMS", 503)):
        with monkeypatch.context() as patched:
            patched.setattr(events, bound, 1)
            async with following(world):
                assert (await world.ask(EVENTS, token="token-of-ann")).status == status
            await eventually(lambda: not world.app.events._of)


async def test_a_replica_that_ends_ends_its_streams_at_once(world: World) -> None:
    async with following(world) as stream:
        world.app.events.end()
        async with asyncio.timeout(PATIENCE):
            assert await stream.read() == b""
