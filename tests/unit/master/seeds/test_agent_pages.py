"""Agents of several seeds are asked at once: what one of them answers keeps no other from being shown."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from common.api.types import Seed
from common.kube.client.api_client import Cluster
from common.server.agents import ACCOUNT
from master.cache.informers import Caches
from master.seeds import agent_pages
from master.seeds.agent_pages import NO_TIME, SEEDS_AT_A_TIME, AgentPages
from tests.unit.fake_api_server import PLURALS, FakeApiServer, fake_api_server
from tests.unit.odd_errors import odd_errors

NAMESPACE = "seedquota"
TOKEN = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
PROXY = f"/api/v1/namespaces/{NAMESPACE}/pods/agent:8081/proxy/page"
SEEDS = [
    msgspec.convert({"metadata": {"name": name}, "spec": {"kubeconfigSecretRef": {"name": name}}}, Seed)
    for name in ("bad", "good")
]


class Pages(AgentPages):
    def __init__(self, servers: dict[str, FakeApiServer]) -> None:
        super().__init__(cast(Caches, None), NAMESPACE)
        self._servers = servers

    async def _connection(self, seed: Seed) -> Cluster:
        return self._servers[seed.metadata.name].cluster()


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLURALS, "pods", ("v1", "Pod"))


async def prepare(server: FakeApiServer, token: str = "token", agent: str = "agent") -> None:
    await server.put("pods", NAMESPACE, agent, status={"phase": "Running"})
    server.discovery |= {TOKEN: {"status": {"token": token}}, PROXY: {"page": 1}}


@pytest.mark.parametrize("wrong", [{"token": "a\nb"}, {"agent": "a\r\nb"}, {"agent": "a\x00b"}])
async def test_a_seed_with_a_token_or_a_name_that_no_request_has_is_not_asked(wrong: dict[str, Any]) -> None:
    async with fake_api_server() as bad, fake_api_server() as good:
        await prepare(bad, **wrong)
        await prepare(good)
        found = await Pages({"bad": bad, "good": good}).find([(seed, "page") for seed in SEEDS], "ann")
    assert [seed for seed, _ in found.answers] == ["good"]
    assert "good" not in found.not_asked


@odd_errors
async def test_an_error_that_nobody_expected_of_one_seed_stops_no_other(error: Exception) -> None:
    async def ask(seed: str, _cluster: Cluster) -> None:
        if seed == "bad":
            raise error
        asked.append(seed)

    asked: list[str] = []
    async with fake_api_server() as bad, fake_api_server() as good:
        failed = await Pages({"bad": bad, "good": good}).on_each(SEEDS, "ann", ask)
    assert asked == ["good"]
    assert list(failed) == ["bad"]


async def test_seeds_that_do_not_answer_leave_time_for_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are asked at a time: those that are known to be away come last, and an end is found for the rest."""

    def named(name: str, connected: str) -> Seed:
        status = {"conditions": [{"type": "Connected", "status": connected}]}
        return msgspec.convert({"metadata": {"name": name}, "spec": {}, "status": status}, Seed)

    async def ask(seed: str, _cluster: Cluster) -> None:
        asked.append(seed)
        if seed != "good":
            await asyncio.Event().wait()

    monkeypatch.setattr(agent_pages, "ALL_SECONDS", 3.0)  # the good one is asked in the second half
    asked: list[str] = []
    away = [named(f"away-{number}", "False") for number in range(SEEDS_AT_A_TIME)]
    hanging = [named(f"hangs-{number}", "True") for number in range(SEEDS_AT_A_TIME - 1)]
    async with fake_api_server() as server:
        pages = Pages(dict.fromkeys([seed.metadata.name for seed in [*away, *hanging]] + ["good"], server))
        failed = await pages.on_each([*away, *hanging, named("good", "True")], "ann", ask)
    assert "good" in asked and "good" not in failed
    assert all(failed[seed.metadata.name] == "it does not answer" for seed in hanging)
    assert [failed[seed.metadata.name] for seed in away].count(NO_TIME) == SEEDS_AT_A_TIME - 1, "one after the good one"
