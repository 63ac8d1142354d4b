from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest
from aiohttp import web

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Unavailable
from common.kube.client.kubeconfig import InvalidKubeconfig, NotReadYet
from common.kube.controller.reflector import moment
from seed.kinds.machines import kubeconfig_secret
from seed.kinds.machines import source as user_cluster
from seed.kinds.machines.machine_api import MachineApi
from seed.kinds.machines.source import Source
from seed.machines.machine_controller import MACHINES
from seed.usage.source import Taken
from tests.running import running
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, eventually, fake_api_server, status
from tests.unit.seed_world import nanos, sizing


def on_seed() -> UserCluster:
    """Its Machines are in its own namespace on the seed."""
    body = {"metadata": {"name": "c1", "namespace": "alpha", "uid": "c1-uid"}, "spec": {"project": "alpha"}}
    return msgspec.convert(body, UserCluster)


class Following:
    def __init__(self, api: FakeApiServer, source: Source) -> None:
        self.api = api
        self.source = source
        self.changes: list[bool] = []
        self.told: list[float] = []  # from which lists, when its state was told

    async def machine(self, name: str, cpu: str = "8", generation: int = 1) -> str:
        provider = {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": cpu, "memory": "1Gi", "storage": "1Gi"}}
        made = await self.api.put(
            "machines", "alpha", name, metadata={"generation": generation}, spec={"providerSpec": {"value": provider}}
        )
        return made["metadata"]["uid"]


@asynccontextmanager
async def following(monkeypatch: pytest.MonkeyPatch, *, held: bool = False) -> AsyncIterator[Following]:
    """`held`: the first list waits until `api.page_hook` is called off by setting `release`."""
    monkeypatch.setitem(fakes.PLURALS, "machines", ("cluster.k8s.io/v1alpha1", "Machine"))
    async with fake_api_server() as api:
        if held:

            async def hold(request: web.Request) -> None:
                stale = await api.list(request, "machines", "alpha")
                await api.release.wait()
                return stale

            api.answers.append(hold)
        cluster = api.cluster()
        found: list[Following] = []
        source = Source(
            cluster,
            on_seed(),
            on_change=lambda _source, freed: found[0].changes.append(freed),
            on_state=lambda source: found[0].told.append(source.listed_from),
            sizing=sizing(),
        )
        found.append(Following(api, source))
        try:
            yield found[0]
        finally:
            await source.stop()


async def test_machines_are_followed_and_changes_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch) as there:
        await eventually(lambda: there.source.current)
        assert there.changes == [True]
        await there.machine("a")
        await eventually(lambda: there.source.totals.used.get("cpu") == nanos("cpu=8")["cpu"])
        await there.api.remove("machines", "alpha", "a")
        await eventually(lambda: there.changes == [True, False, True])
        assert there.source.totals.used == {}


async def test_a_demanded_list_begins_after_the_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch) as there:
        await eventually(lambda: there.source.current)
        demanded = moment()
        there.source.relist()
        assert there.source.listed_from <= demanded
        await eventually(lambda: there.told[-1] > demanded)
        assert there.api.lists == 2


async def test_a_first_list_that_is_under_way_is_not_the_one_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch, held=True) as there:
        await eventually(lambda: there.api.lists == 1)
        demanded = moment()
        there.source.relist()
        await there.machine("a")  # after that list began, and before it is complete
        there.api.release.set()
        await eventually(lambda: there.source.listed_from > demanded)
        assert there.api.lists == 2
        assert there.source.totals.used["cpu"] == nanos("cpu=8")["cpu"]


async def test_a_fresh_read_tells_the_generation_or_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch) as there:
        await eventually(lambda: there.source.current)
        uid = await there.machine("a", generation=3)
        assert await there.source.generation("alpha/a", uid) == 3
        assert await there.source.generation("alpha/a", "another one under its name") is Taken.TAKEN
        await there.api.remove("machines", "alpha", "a")
        assert await there.source.generation("alpha/a", uid) is None


async def test_an_api_that_is_not_served_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers 404, as for a Machine that does not exist: that must not release its reservation."""
    async with following(monkeypatch) as there:
        await eventually(lambda: there.source.current and there.api.watches)  # which would take the prepared answer

        async def not_served(_request: web.Request) -> web.Response:
            return web.Response(status=404, text="404 page not found")

        async def unknown_type(_request: web.Request) -> web.Response:
            return status(404, "NotFound", "the server could not find the requested resource")

        for answer in (not_served, unknown_type):
            there.api.answers.append(answer)
            with pytest.raises(ApiError):
                await there.source.generation("alpha/a", "uid")


async def test_without_a_connection_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch) as there:
        await eventually(lambda: there.source.current)
        await there.source.stop()
        with pytest.raises(Unavailable, match="alpha/c1 is not connected"):
            await there.source.generation("alpha/a", "uid")


@asynccontextmanager
async def by_secret(api: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """A source whose kubeconfig is in a Secret: its problems, as they are told."""
    monkeypatch.setitem(fakes.PLURALS, "secrets", ("v1", "Secret"))
    body = {
        "metadata": {"name": "c1", "namespace": "alpha", "uid": "c1-uid"},
        "spec": {"project": "alpha", "kubeconfigSecretRef": {"name": "c1"}},
    }
    states: list[str] = []

    def state(source: Source) -> None:
        states.append(f"{source.problem.reason}: {source.problem.message}" if source.problem is not None else "")

    source = Source(
        api.cluster(),
        msgspec.convert(body, UserCluster),
        on_change=lambda _source, _freed: None,
        on_state=state,
        sizing=sizing(),
    )
    try:
        yield states
    finally:
        await source.stop()


async def put_secret(api: FakeApiServer, **data: bytes) -> None:
    await api.put("secrets", "alpha", "c1", data={key: base64.b64encode(value).decode() for key, value in data.items()})


async def test_a_secret_that_may_not_be_read_is_said_with_the_role_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubeconfig_secret, "LIST_SECONDS", 0.2)

    async def forbidden(_request: web.Request) -> web.Response:
        api.answers.append(forbidden)
        return status(403, "Forbidden", "secrets is forbidden")

    async with fake_api_server() as api:
        api.answers.append(forbidden)
        async with by_secret(api, monkeypatch) as states:

            def told() -> list[str]:
                return [each for each in states if each.startswith("Unauthorized")]

            await eventually(told)  # before the first answer comes there is no reason
            assert told()[0].startswith("Unauthorized: secret alpha/c1, key kubeconfig: cannot be read: ")
            assert "secrets is forbidden; bind the role of charts/rbac/seed-namespace.yaml in that" in told()[0]
            api.answers.clear()  # the role was bound
            await eventually(lambda: "does not exist" in states[-1])


async def test_what_is_wrong_with_a_secret_is_said_whenever_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_api_server() as api, by_secret(api, monkeypatch) as states:
        for data, says in (
            ({"config": b"x"}, "secret alpha/c1 has no key kubeconfig"),
            ({"kubeconfig": b"\xff"}, "secret alpha/c1: the key kubeconfig is not text"),
            ({"kubeconfig": b"not: [a kubeconfig"}, "secret alpha/c1, key kubeconfig: "),
        ):
            await put_secret(api, **data)
            await eventually(lambda says=says: states and states[-1].startswith(f"InvalidKubeconfig: {says}"))
        await api.remove("secrets", "alpha", "c1")
        await eventually(lambda: states[-1].startswith("InvalidKubeconfig: secret alpha/c1 does not exist"))


async def test_a_kubeconfig_that_was_not_read_in_time_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig_secret, "READ_AGAIN", 0.05)
    reads: list[str] = []

    async def of_tenant(text: str, **_more: object) -> Cluster:
        reads.append(text)
        raise NotReadYet("kubeconfig was not read: not done within 30 s") if len(reads) < 3 else InvalidKubeconfig("no")

    monkeypatch.setattr(MachineApi, "of_tenant", of_tenant)
    async with fake_api_server() as api, by_secret(api, monkeypatch):
        await put_secret(api, kubeconfig=b"text")
        await eventually(lambda: len(reads) == 3)
        await asyncio.sleep(0.2)
        assert reads == ["text"] * 3, "what cannot be used waits for another Secret"


async def test_machines_that_take_too_much_are_not_read_and_the_last_count_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_cluster, "MACHINES", replace(MACHINES, most=20_000))
    async with following(monkeypatch) as there:
        await there.machine("a")
        await eventually(lambda: there.source.current and there.source.totals.used.get("cpu") == nanos("cpu=8")["cpu"])
        for number in range(20):
            await there.api.put("machines", "alpha", f"m{number}", metadata={"annotations": {"a": "x" * 5000}})
        await eventually(lambda: there.source.problem is not None)
        problem = there.source.problem
        assert problem is not None and problem.reason == "MachinesUnreadable"
        assert "machines take more than" in problem.message
        assert not there.source.current
        assert there.source.totals.used["cpu"] == nanos("cpu=8")["cpu"]


async def test_a_machine_that_cannot_be_read_counts_with_what_was_known_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also through a new connection, which has read nothing of it. A new one has a place, and no known size."""
    async with following(monkeypatch) as there:
        await there.machine("a")
        await there.machine("b", cpu="2")
        await eventually(lambda: there.source.totals.used.get("cpu") == nanos("cpu=10")["cpu"])

        async def spoil(name: str) -> str:
            made = await there.api.put(
                "machines", "alpha", name, spec={"providerSpec": {}}, metadata={"labels": {"a": 5}}
            )
            return str(made["metadata"]["uid"])

        await spoil("a")
        await eventually(lambda: there.source.problem is not None)
        new = await spoil("new")
        await eventually(lambda: there.source.totals.used.get("machines") == nanos("machines=3")["machines"])
        await eventually(lambda: "2 machines" in there.source.problem.message)
        assert there.source.problem.reason == "ObjectsUnreadable"
        assert "alpha/a: Expected `str`, got `int`" in there.source.problem.message
        assert there.source.current and there.source.lost_at is not None, "all others are followed"
        assert there.source.totals.used["cpu"] == nanos("cpu=10")["cpu"]
        with pytest.raises(ApiError, match="cannot be read"):
            await there.source.generation("alpha/new", new)
        assert there.source.totals.seen([new]) == {}, "what is reserved for it holds what it takes"
        assert "alpha/new: cannot size machine: the Machine cannot be read" in str(there.source.totals.unsized().named)

        before = there.source.totals
        connection = there.api.cluster()
        async with running(there.source._follow(connection, "alpha")):
            await eventually(lambda: there.source.totals is not before)
            assert there.source.totals.used == before.used
        await there.api.remove("machines", "alpha", "a")
        await there.api.remove("machines", "alpha", "new")
        await eventually(lambda: there.source.problem is None)
