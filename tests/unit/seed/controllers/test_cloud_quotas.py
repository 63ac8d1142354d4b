"""What clouds let accounts have, as it comes into the status of UserClusters."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.quota import resources
from seed.controllers import cloud_quotas
from seed.controllers.cloud_quotas import CloudQuotas
from seed.providers.flavour import AccountQuota, Place
from seed.providers.size import CredentialsRejected

PLACE = Place("openstack", "https://keystone.example.com/v3", "RegionOne")
QUOTA = AccountQuota(resources.parse({"cpu": "20", "memory": "50Gi"}), resources.parse({"cpu": "12", "memory": "1Gi"}))
TOLD = {
    "place": "openstack RegionOne",
    "limits": {"cpu": "20", "memory": "50Gi"},
    "used": {"cpu": "12", "memory": "1Gi"},
}
BEFORE = {**TOLD, "asOf": "2026-11-20T10:00:00Z"}


def cluster(name: str, *, generation: int = 1, before: dict[str, object] | None = None) -> UserCluster:
    metadata = {"name": name, "namespace": "alpha", "uid": name, "generation": generation}
    status = {"cloudQuota": before} if before else {}
    return msgspec.convert({"metadata": metadata, "spec": {"project": "alpha"}, "status": status}, UserCluster)


class World:
    """An API server that takes statuses, and a cloud: what it tells by user cluster, or raises."""

    def __init__(self) -> None:
        self.written: dict[str, Any] = {}
        self.asked: list[str] = []
        self.clusters = [cluster("c1")]
        self.told: dict[str, Any] = {"c1": (PLACE, QUOTA)}
        self.at_once = self.most_at_once = 0
        self.quotas = CloudQuotas(cast(Cluster, self), lambda: self.clusters, self.ask)

    async def ask(self, cluster: UserCluster) -> Any:
        self.asked.append(cluster.metadata.name)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        told = self.told.get(cluster.metadata.name)
        if isinstance(told, Exception):
            raise told
        return told

    async def apply(self, _resource: object, body: dict[str, Any], *, manager: str, subresource: str) -> None:
        assert (manager, subresource) == ("seedquota-seed-cloud-quota", "status")
        assert body["metadata"]["uid"] == body["metadata"]["name"]
        self.written[body["metadata"]["name"]] = body["status"]
        if body["metadata"]["name"] == "unwritable":
            raise Unavailable(0, "Unavailable", "no answer")


async def test_what_a_cloud_tells_is_published_with_its_time_and_asked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await world.quotas.look()
    await world.quotas.look()
    assert world.asked == ["c1"]
    found = dict(world.written["c1"]["cloudQuota"])
    assert found.pop("asOf") and found == TOLD
    world.clusters = [cluster("c1", generation=2)]
    await world.quotas.look()
    assert world.asked == ["c1", "c1"], "its spec may name another account"
    monkeypatch.setattr(cloud_quotas, "EVERY", 0.0)
    world = World()
    await world.quotas.look()
    await world.quotas.look()
    assert world.asked == ["c1", "c1"]


async def test_what_was_told_stays_with_its_time_while_the_cloud_refuses() -> None:
    world = World()
    world.clusters = [cluster("c1", before=BEFORE), cluster("c2")]
    refused = CredentialsRejected("openstack RegionOne", "refuses these credentials (401)")
    world.told = {"c1": refused, "c2": refused}
    await world.quotas.look()
    problem = {"problem": str(refused)}
    assert world.written == {"c1": {"cloudQuota": {**BEFORE, **problem}}, "c2": {"cloudQuota": problem}}
    assert "refuses these credentials (401)" in str(refused)
    world.clusters = [cluster("c1", generation=2, before={**BEFORE, **problem})]
    world.written.clear()
    await world.quotas.look()
    assert world.written == {}, "nothing is new"


async def test_of_an_account_that_is_not_told_any_more_nothing_stays() -> None:
    world = World()
    world.told = {}
    await world.quotas.look()
    assert world.written == {}
    world.clusters = [cluster("c1", generation=2, before=BEFORE)]
    await world.quotas.look()
    assert world.written == {"c1": {}}


async def test_few_are_asked_at_once_and_one_that_cannot_be_written_stops_no_other() -> None:
    world = World()
    names = ["unwritable", *(f"c{number}" for number in range(20))]
    world.clusters = [cluster(name) for name in names]
    world.told = dict.fromkeys(names, (PLACE, QUOTA))
    await world.quotas.look()
    assert world.written.keys() == set(names)
    assert world.most_at_once == cloud_quotas.AT_A_TIME
