"""From a refusal to whom it wakes, on a seed without Kubernetes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import msgspec
import pytest

from common.api.types import SecretRef, SeedCopy, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.meta import ObjectMeta
from common.kube.controller.store import Change
from common.quota.account import Reservation
from seed.admission.types import Verdict
from seed.model.consumer import Consumer
from seed.notifications import refusals as module
from seed.notifications.refusals import Refusals
from seed.notifications.wake_queue import SETTLE
from tests.running import running
from tests.unit.fake_api_server import eventually, within
from tests.unit.seed.admission.test_admitter import request
from tests.unit.seed.notifications.test_notifier import Server, machine_set, metadata
from tests.unit.seed_world import CLUSTER_UID, PROJECT, SeedWorld, nanos, seed_world


class SeedServer(Server):
    """The seed's own API server, which has this cluster's Machines, too."""

    name = "seed"


class World:
    def __init__(self, world: SeedWorld) -> None:
        self.seed = world
        self.server = SeedServer()
        self.counts: Counter[str] = Counter()
        self.refusals = Refusals(
            cast(Cluster, self.server),
            world.quota_cache,
            world.cluster_cache,
            world.registry,
            "replica",
            count=lambda result, number: self.counts.update({result: number}),
        )
        cluster = world.cluster_cache.user_cluster_by_uid(CLUSTER_UID)
        assert cluster is not None
        self.cluster = cluster

    async def decided(self, uid: str = "u", machine: ObjectMeta | None = None, need: str = "cpu=8") -> Verdict:
        found = await self.seed.admission.decide(request(uid, need))
        self.refusals.decided(self.cluster, machine or metadata(), found)
        return found

    async def until(self, **counts: int) -> None:
        await eventually(lambda: all(self.counts[result] >= number for result, number in counts.items()))

    def remote(self, name: str) -> UserCluster:
        """A user cluster with a kubeconfig, whose Secret is never answered."""
        self.server.hangs = True
        spec = msgspec.structs.replace(self.cluster.spec, kubeconfig_secret_ref=SecretRef(name=name))
        of = ObjectMeta(name=name, namespace=PROJECT, uid=f"uid of {name}")
        cluster = msgspec.structs.replace(self.cluster, metadata=of, spec=spec)
        self.seed.cluster_cache.user_clusters.store._set(of.key, cluster)
        return cluster


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with seed_world() as seed:
        made = World(seed)
        async with running(made.refusals.run()):
            await asyncio.sleep(0)
            yield made


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_owners_are_told_and_the_machine_set_is_woken_when_there_is_room(world: World) -> None:
    world.server.sets["pool"] = machine_set()
    await world.seed.quota(limits="cpu=4", granted="cpu=4")
    assert (await world.decided()).refusal is not None
    await world.until(written=2)
    assert world.server.about() == [
        ("MachineSet", "pool", "QuotaExceeded"),
        ("UserCluster", "c1", "QuotaExceeded"),
    ]
    assert world.refusals.waiting == 1
    world.seed.limit("project-alpha", {"cpu": "6"})
    await asyncio.sleep(0.3)
    assert world.server.patches == [], "not even a part of it would fit"
    world.seed.limit("project-alpha", {"cpu": "8"})
    await world.until(woken=1)


async def test_an_event_never_has_the_limit_of_before(world: World) -> None:
    """Its note cannot be changed, so another limit is another series."""
    await world.seed.quota(limits="cpu=4", granted="cpu=4")
    bare = ObjectMeta(name="bare", namespace="ns", uid="bare")
    for limit in ("4", "6"):
        world.seed.limit("project-alpha", {"cpu": limit})
        await world.decided(machine=bare)
        await world.decided(machine=bare)
    await world.until(written=2)
    notes = [found["note"] for found in world.server.events]
    assert ["limited: cpu=4" in notes[0], "limited: cpu=6" in notes[1]] == [True, True]


async def test_what_is_deleted_here_wakes_although_the_master_has_not_heard_of_it(world: World) -> None:
    world.server.sets["pool"] = machine_set()
    handle = await world.seed.quota(limits="cpu=8", granted="cpu=8", used="cpu=8")
    world.seed.tell(usage="cpu=8")
    assert (await world.decided()).refusal is not None
    await handle.writer.change(lambda account: (msgspec.structs.replace(account, used={}), None))
    await world.until(woken=1)


async def test_what_one_does_not_need_any_more_is_for_the_next_at_once(world: World) -> None:
    world.server.sets.update(first=machine_set("first", has=3), second=machine_set("second"))
    await world.seed.quota(limits="cpu=4", granted="cpu=4")
    for name in ("first", "second"):
        await world.decided(name, metadata(name))
    async with within(SETTLE):
        world.seed.limit("project-alpha", {"cpu": "8"})
        await world.until(woken=1)
    assert [name for name, _ in world.server.patches] == ["second"]


async def test_nobody_waits_for_what_no_room_helps(world: World) -> None:
    await world.seed.quota(limits="cpu=4", granted="cpu=4")
    await world.decided(machine=ObjectMeta(name="bare", namespace="ns", uid="bare"))
    await world.until(written=1)
    assert world.server.about() == [("UserCluster", "c1", "QuotaExceeded")]
    assert (await world.decided(need="cpu=1")).refusal is None
    assert world.refusals.waiting == 0


async def test_owners_are_told_that_the_seed_is_lost_and_nobody_waits(world: World) -> None:
    body = {"metadata": {"name": "seed"}, "spec": {"copyOf": "u", "state": "Lost"}}
    world.seed.quota_cache.seed.store._set("seed", msgspec.convert(body, SeedCopy))
    await world.seed.quota(limits="cpu=64", granted="cpu=64")
    assert (await world.decided()).refusal is not None
    await world.until(written=2)
    assert world.server.about() == [("MachineSet", "pool", "SeedLost"), ("UserCluster", "c1", "SeedLost")]
    assert world.refusals.waiting == 0


async def test_a_user_cluster_that_is_gone_is_forgotten_with_all_who_wait_there(world: World) -> None:
    await world.seed.quota(limits="cpu=4", granted="cpu=4")
    cluster = world.remote("c2")
    world.refusals.decided(cluster, metadata(), await world.seed.admission.decide(request()))
    await eventually(lambda: "owners of alpha/c2" in tasks())
    assert world.refusals.waiting == 1
    cluster_cache = world.seed.cluster_cache
    cluster_cache.user_clusters.store._remove(cluster.metadata.key)
    cluster_cache._cluster_changed(Change(cluster, None))
    assert world.refusals.waiting == 0
    await eventually(lambda: "owners of alpha/c2" not in tasks())


async def test_of_too_many_user_clusters_the_one_heard_of_first_is_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SERVERS", 3)  # one of them is the seed
    await world.seed.quota(limits="cpu=4", granted="cpu=4")
    found = await world.seed.admission.decide(request())
    for name in ("c2", "c3", "c2", "c4"):
        world.refusals.decided(world.remote(name), metadata(), found)
    expected = {"owners of seed", "owners of alpha/c2", "owners of alpha/c4"}
    await eventually(lambda: {name for name in tasks() if name.startswith("owners of")} == expected)
    assert world.refusals.waiting == 2


class TestPods:
    """In namespaces, of which each quota counts another part of a pod."""

    POD = metadata("web", "ReplicaSet", "apps/v1")

    async def decided(self, world: World, cluster: UserCluster | None, uid: str = "p", **shares: str) -> Verdict:
        parts = {
            quota: Reservation(source="namespaces:q:seed", object="pods:ns/p", amount=nanos(need))
            for quota, need in shares.items()
        }
        asked = msgspec.structs.replace(
            request(uid), consumer=Consumer("", "seed"), need=nanos("pods=1,requests.cpu=2"), shares=parts
        )
        quotas = [world.seed.quota_cache.quota(name) for name in shares]
        found = await world.seed.admission.decide(asked, quotas=[quota for quota in quotas if quota is not None])
        world.refusals.pod_decided(cluster, self.POD, found)
        return found

    @pytest.mark.parametrize("own", [True, False], ids=["the seed's own API server", "a user cluster"])
    async def test_what_makes_a_refused_pod_is_woken_once_each_quota_has_room_for_its_part(
        self, world: World, own: bool
    ) -> None:
        world.server.sets["web"] = machine_set("web")
        await world.seed.quota("few", limits="pods=0", granted="pods=0", kind="organization")
        await world.seed.quota("small", limits="requests.cpu=1", granted="requests.cpu=1", kind="organization")
        found = await self.decided(world, None if own else world.cluster, few="pods=1", small="requests.cpu=2")
        assert found.refusal is not None
        assert world.refusals.waiting == 1
        world.seed.limit("few", {"pods": "1"})
        await asyncio.sleep(0.3)
        assert not world.server.patches, "the other has no room yet"
        world.seed.limit("small", {"requests.cpu": "2"})
        await world.until(woken=1, written=1)
        assert world.server.plurals == ["replicasets"]
        assert world.server.about() == [("ReplicaSet", "web", "CapacityFreed")], "its controller tells of the refusal"

    async def test_a_quota_that_is_gone_keeps_nobody_waiting(self, world: World) -> None:
        world.server.sets["web"] = machine_set("web")
        await world.seed.quota("few", limits="pods=0", granted="pods=0", kind="organization")
        await self.decided(world, None, few="pods=1")
        world.seed.remove("few")
        await world.until(woken=1)

    async def test_a_pod_of_nobody_waits_for_nothing(self, world: World) -> None:
        await world.seed.quota("few", limits="pods=0", granted="pods=0", kind="organization")
        self.POD = ObjectMeta(name="bare", namespace="ns", uid="bare")
        assert (await self.decided(world, None, few="pods=1")).refusal is not None
        assert world.refusals.waiting == 0
