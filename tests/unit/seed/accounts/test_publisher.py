"""What the leader writes into the status of a quota's copy, and at what cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import PROJECT_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.quota.account import Account
from common.quota.largest import MOST
from common.quota.resources import ResourceList
from common.runtime import pieces
from seed.accounts import publisher as module
from seed.accounts.publish import QUIET_INTERVAL
from seed.accounts.publisher import Publisher
from seed.accounts.waits import Waits
from seed.kinds.namespaces.cache import Namespace
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.source import NamespacedSource
from seed.kinds.namespaces.totals import ObjectTotals
from tests.unit.seed_world import SeedWorld, nanos, seed_world


class Totals(ObjectTotals):
    looks = 0
    sums: dict[str, ResourceList]

    @property  # type: ignore[override]
    def by_namespace(self) -> dict[str, ResourceList]:
        self.looks += 1
        return self.sums

    @by_namespace.setter
    def by_namespace(self, sums: dict[str, ResourceList]) -> None:
        self.sums = sums


class Leader:
    def __init__(self, world: SeedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.now = 100.0
        self.written: list[dict[str, Any]] = []
        self.not_served: frozenset[str] = frozenset()
        self.lacking: dict[str, list[str]] = {}
        self.older = False  # the CRD does not know what is for people only
        self.namespaces: dict[str, Namespace] = {}
        self.totals = Totals(Terms(limited=frozenset({"pods"})))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        cluster = cast(Cluster, SimpleNamespace(apply=self._apply))
        self.waits = Waits(lambda: self.now)
        self.publisher = Publisher(cluster, world.cluster_cache, lambda _quota: (1, {}), self.waits)

    async def _apply(self, _resource: object, body: dict[str, Any], **_how: object) -> None:
        account = msgspec.to_builtins(body["status"]["account"])
        of_projects = any("project" in each for each in account.get("namespaces", ()))
        if self.older and ("notServed" in account or of_projects):
            raise ApiError(500, "InternalError", ".status.account.notServed: field not declared in schema")
        self.written.append(account)

    async def publish(self, use: str) -> float | None:
        quota = self.world.quota_cache.quota("shop")
        assert quota is not None
        source = NamespacedSource(
            quota,
            "c",
            on_change=lambda *_: None,
            on_state=lambda _: None,
            unreached=lambda _: None,
            had=lambda *_: None,
        )
        counted = SimpleNamespace(
            totals=self.totals,
            lacking=lambda _limited: self.lacking,
            not_served=self.not_served,
            objects=SimpleNamespace(namespaces=SimpleNamespace(store=self.namespaces)),
        )
        source._counted = cast(Any, counted)
        account = Account(incarnation="life", master="m", epoch=1, used={source.key: nanos(use)})
        return await self.publisher.publish(quota, account, [source])


@pytest.fixture
async def leader(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leader]:
    async with seed_world() as world:
        selector = {"subject": {"kind": "namespaces", "selector": {"matchLabels": {"app": "shop"}}}}
        await world.quota("shop", limits="pods=100", granted="pods=100", **selector)
        yield Leader(world, monkeypatch)


async def test_all_namespaces_are_looked_at_now_and_then_and_what_is_shown_of_them_is_the_latest(
    leader: Leader,
) -> None:
    """A quota may have tens of thousands of them, and each admission in one of them is a reason to publish."""
    for pods in range(1, 10):
        leader.totals.sums = {"web": nanos(f"pods={pods}")}
        again = await leader.publish(f"pods={pods}")
        leader.now += QUIET_INTERVAL / 10
    assert leader.totals.looks == 1
    assert again is not None, "nobody else tells that the last of them is to be shown"
    for _ in range(3):
        leader.now += again or 0.0
        again = await leader.publish("pods=9")
    assert again is None and leader.totals.looks <= 3
    last = leader.written[-1]
    assert (last["used"], last["namespaces"][0]["used"]) == ({"pods": "9"}, {"pods": "9"})


async def test_very_many_namespaces_are_looked_at_in_pieces(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 10)
    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0.0)
    leader.totals.sums = {f"n{number}": nanos(f"pods={number}") for number in range(1, 1001)}
    turns, publishing = 0, asyncio.create_task(leader.publish("pods=500500"))
    while not publishing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 100
    shown = [each["namespace"] for each in leader.written[-1]["namespaces"]]
    assert shown == [f"n{number}" for number in range(1000, 1000 - MOST, -1)]
    assert leader.written[-1]["namespacesOmitted"] == 1000 - MOST


async def test_what_no_cluster_serves_is_reported_and_keeps_no_older_definition_from_the_rest(leader: Leader) -> None:
    leader.totals.sums = {}
    leader.not_served = frozenset({"pods", "count/widgets.example.com"})
    await leader.publish("pods=0")
    assert leader.written[-1]["notServed"] == ("pods",), "of what the quota limits"
    leader.older, leader.now = True, leader.now + 60.0
    await leader.publish("pods=3")
    assert (leader.written[-1]["used"], "notServed" in leader.written[-1]) == ({"pods": "3"}, False)


async def test_that_all_replicas_know_a_quota_is_published_once_its_account_was_open(leader: Leader) -> None:
    """Until then, nothing asks about a new quota. What was published of one whose ledger was lost stays."""
    leader.totals.sums = {}
    quota = leader.world.quota_cache.quota("shop")
    assert quota is not None
    fenced = Account(incarnation="life", epoch=1, nonce="n")
    await leader.publisher.publish(quota, fenced, [])
    assert leader.written[-1].get("enforcedGeneration") is None
    before = msgspec.structs.replace(quota, published_generation=7)
    await leader.publisher.publish_at_once(before, fenced, [])
    assert leader.written[-1]["enforcedGeneration"] == 7
    await leader.publisher.publish_at_once(quota, msgspec.structs.replace(fenced, master="m"), [])
    assert leader.written[-1]["enforcedGeneration"] == 1


async def test_each_namespace_is_reported_with_its_project_and_to_an_older_definition_without(leader: Leader) -> None:
    leader.totals.sums = {"web": nanos("pods=2"), "tools": nanos("pods=1")}
    body = {"metadata": {"name": "web", "labels": {PROJECT_LABEL: "alpha"}}}
    leader.namespaces = {"web": msgspec.convert(body, Namespace)}
    await leader.publish("pods=3")
    assert [(each["namespace"], each.get("project")) for each in leader.written[-1]["namespaces"]] == [
        ("web", "alpha"),
        ("tools", None),
    ]
    leader.older, leader.now = True, leader.now + 60.0
    await leader.publish("pods=4")
    assert leader.written[-1]["used"] == {"pods": "4"}
    assert all("project" not in each for each in leader.written[-1]["namespaces"])


async def test_a_namespace_with_a_name_that_no_api_server_takes_keeps_nothing_from_the_master(leader: Leader) -> None:
    """A tenant's API server may list it. The report of all clusters would be refused."""
    wrong = ["n" * 64, "Web", ""]
    leader.totals.sums = {name: nanos("pods=9") for name in wrong} | {"web": nanos("pods=1")}
    leader.lacking = {name: ["pods"] for name in (*wrong, "web")}
    await leader.publish("pods=28")
    assert [each["namespace"] for each in leader.written[-1]["namespaces"]] == ["web"]
    assert [each["namespace"] for each in leader.written[-1]["withoutQuota"]] == ["web"]
    omitted = leader.written[-1]["namespacesOmitted"], leader.written[-1]["withoutQuotaOmitted"]
    assert omitted == (len(wrong), len(wrong))
