"""What a leader knows when its term begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.controller.reflector import Reflector
from seed.cache.watches import Watches
from seed.controllers import leader as leaders
from seed.controllers.leader import Leader
from tests.running import running
from tests.unit.fake_api_server import PATIENCE, FakeApiServer, eventually, fake_api_server

CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=Object)


async def is_silent(request: web.Request) -> web.StreamResponse:
    """A watch that tells nothing any more, and does not end."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.get_running_loop().create_future()
    return response


class Lease:
    held = True

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[int]:
        yield 1


@asynccontextmanager
async def replica_with_a_silent_watch(api: FakeApiServer) -> AsyncIterator[tuple[Reflector[Object], Any]]:
    """What it knows is from before something was made, and nothing has told it so."""

    async def lists(_request: web.Request) -> None:
        """As usual."""

    api.answers = [lists, is_silent]
    quotas = Reflector(api.cluster(), CONFIGMAPS)
    async with running(quotas.run()):
        await quotas.wait_synced(PATIENCE)
        await eventually(lambda: api.watches == 1)
        await api.put("configmaps", "n", "later")
        assert quotas.store.get("n/later") is None
        yield quotas, SimpleNamespace(lease=Lease(), caches=SimpleNamespace(watches=Watches(quotas)))


async def test_a_term_begins_with_lists_that_began_after_the_lease_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader before may have counted by what this replica has not seen: it would take that for nothing."""
    known: list[bool] = []
    async with fake_api_server() as api, replica_with_a_silent_watch(api) as (quotas, replica):

        class Leadership:
            def __init__(self, _replica: object, _term: int) -> None:
                known.append(quotas.store.get("n/later") is not None)

            async def run(self) -> None:
                await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(leaders, "Leadership", Leadership)
        async with running(Leader(cast(Any, replica)).run()):
            await eventually(lambda: known)
    assert known == [True]


async def test_a_term_does_not_begin_while_nothing_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends: another replica may be in a better place."""
    terms: list[int] = []
    monkeypatch.setattr(leaders, "Leadership", lambda _replica, term: terms.append(term))
    monkeypatch.setattr(leaders, "REFRESH_TIMEOUT", 0.05)
    paused = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        paused.set()
        await asyncio.get_running_loop().create_future()

    async with fake_api_server() as api, replica_with_a_silent_watch(api) as (_, replica):
        api.unlistable["configmaps"] = "no"
        monkeypatch.setattr(leaders, "asyncio", SimpleNamespace(sleep=sleep))
        async with running(Leader(cast(Any, replica)).run()):
            await asyncio.wait_for(paused.wait(), PATIENCE)
    assert terms == []
