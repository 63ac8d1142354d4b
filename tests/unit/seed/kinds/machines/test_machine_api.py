"""Machines are read only while the user cluster's API server serves them itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from common.kube.client.errors import ApiError, Forbidden, Unavailable
from common.kube.client.kubeconfig import Access
from seed.kinds.machines import machine_api
from seed.kinds.machines.machine_api import NAME, MachineApi
from seed.machines.machine_controller import MACHINES
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, fake_api_server, status

TAKEN: dict[str, Any] = {"service": {"namespace": "alpha", "name": "mine"}}


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    monkeypatch.setitem(fakes.PLURALS, "machines", ("cluster.k8s.io/v1alpha1", "Machine"))
    monkeypatch.setitem(fakes.PLURALS, "apiservices", ("apiregistration.k8s.io/v1", "APIService"))
    async with fake_api_server() as api:
        await api.put("apiservices", "", NAME, spec={})
        await api.put("machines", "alpha", "m", spec={})
        yield api


@pytest_asyncio.fixture
async def cluster(server: FakeApiServer) -> AsyncIterator[MachineApi]:
    made = MachineApi(Access(server.url), name="c1")
    yield made
    await made.close()


async def names(cluster: MachineApi) -> list[str]:
    return [found.metadata.name for found in (await cluster.list(MACHINES)).items]


async def watch(cluster: MachineApi) -> None:
    async with cluster.open_watch(MACHINES, resource_version="1", timeout_seconds=1):
        pass


async def test_what_another_server_lists_or_tells_is_not_used(server: FakeApiServer, cluster: MachineApi) -> None:
    assert await names(cluster) == ["m"]
    await watch(cluster)
    await server.put("apiservices", "", NAME, spec=TAKEN)
    for reading in (names, watch):
        with pytest.raises(Unavailable, match="to Service alpha/mine"):
            await reading(cluster)
    assert cluster.taken_over is not None and "The last count stays" in cluster.taken_over


@pytest.mark.parametrize("reading", [names, watch])
async def test_who_takes_it_over_while_it_is_read_and_gives_it_back_gains_nothing(
    server: FakeApiServer, cluster: MachineApi, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await names(cluster)

    async def first(_request: web.Request) -> None:
        server.answers.append(toggled)

    async def toggled(_request: web.Request) -> None:
        await server.put("apiservices", "", NAME, spec=TAKEN)
        await server.put("apiservices", "", NAME, spec={})
        monkeypatch.setattr(machine_api, "SETTLED", 0.0)
        await cluster.check()  # another reader was told before

    server.answers.append(first)
    with pytest.raises(Unavailable, match="was changed a moment ago"):
        await reading(cluster)
    await reading(cluster)


async def test_after_a_change_an_api_server_is_given_time_to_take_it_up(
    server: FakeApiServer, cluster: MachineApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await names(cluster)
    await server.put("apiservices", "", NAME, spec=TAKEN)
    await server.put("apiservices", "", NAME, spec={})
    with pytest.raises(Unavailable, match="was changed a moment ago"):
        await names(cluster)
    monkeypatch.setattr(machine_api, "SETTLED", 0.0)
    assert await names(cluster) == ["m"]


async def test_without_the_right_to_look_nothing_is_read(server: FakeApiServer, cluster: MachineApi) -> None:
    async def forbidden(_request: web.Request) -> web.Response:
        return status(403, "Forbidden")

    server.answers.append(forbidden)
    with pytest.raises(Forbidden, match=r"proves nothing: bind charts/rbac/user-cluster\.yaml"):
        await names(cluster)
    assert cluster.taken_over is None


async def test_an_api_server_without_such_objects_serves_them_itself(
    server: FakeApiServer, cluster: MachineApi
) -> None:
    await server.remove("apiservices", "", NAME)
    assert await names(cluster) == ["m"]


async def test_nothing_else_is_guarded(server: FakeApiServer, cluster: MachineApi) -> None:
    await server.put("apiservices", "", NAME, spec=TAKEN)
    with pytest.raises(ApiError):
        await names(cluster)
    before = server.count("GET", "apiservices")
    await cluster.list(machine_api.API_SERVICES)
    assert server.count("GET", f"apiservices/{NAME}") == before
