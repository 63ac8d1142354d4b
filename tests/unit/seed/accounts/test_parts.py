"""Quotas of a part of their subject: what enters the part is counted first, what leaves it goes on proof alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.quota import account as accounts
from common.quota.account import Reservation
from seed.accounts import publisher, usage_writer
from seed.accounts.publisher import Publisher
from seed.accounts.waits import Waits
from seed.admission.types import Request, Verdict
from seed.cache import clusters
from seed.cache.replicas import FRESH
from seed.model.consumer import Consumer
from seed.model.source_key import SourceKey
from seed.usage.source import Problem
from tests.unit.fake_api_server import eventually
from tests.unit.seed.accounts.test_usage_writer import KEY, leading
from tests.unit.seed_world import ORGANIZATION, PROJECT, SeedWorld, nanos

WINDOW = 31.0
GPU = {"matchLabels": {"pool": "gpu"}}
OF_PROJECT = {"subject": {"kind": "project", "name": PROJECT, "clusters": GPU}}
OF_ORGANIZATION = {"subject": {"kind": "organization", "name": ORGANIZATION, "clusters": {"names": ["c1"]}}}


async def create(world: SeedWorld, name: str) -> Verdict:
    need = nanos("cpu=8")
    return await world.admission.decide(
        Request(
            uid=f"{name}-uid",
            consumer=Consumer(PROJECT, KEY),
            need=need,
            reservation=Reservation(source=KEY.text, object=f"ns/{name}", amount=need),
            dry_run=False,
            deadline=asyncio.get_running_loop().time() + 30,
        )
    )


def refused(found: Verdict) -> tuple[int, str]:
    assert found.refusal is not None
    return found.refusal.code, found.message


async def test_a_cluster_that_enters_is_counted_before_anything_is_admitted_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_writer, "CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch) as leader:
        world, leader.source.lists_at_once = leader.world, True
        await world.quota("gpu", limits="cpu=16", granted="cpu=16", **OF_PROJECT)
        leader.there("a")
        leader.changed()
        await eventually(lambda: KEY in world.account().used)
        leader.source.counted = False  # what the account lacks can be seen: otherwise it is counted at once
        world.label(pool="gpu")
        code, text = refused(await create(world, "b"))
        assert code == 503 and "quota gpu cannot decide: what is in this cluster is being counted" in text
        leader.source.counted = True
        await eventually(lambda: world.account("gpu").used.get(KEY, {}).get("cpu") == nanos("cpu=8")["cpu"])
        assert (await create(world, "b")).refusal is None
        code, text = refused(await create(world, "c"))
        assert code == 403 and text.startswith("exceeded quota: gpu,"), "the tighter one"
        reserved = accounts.of_source(world.account(), KEY)
        assert set(reserved) == {"b-uid"}, "what it refused is reserved in no other quota"


async def test_a_cluster_that_leaves_has_nothing_in_the_account_once_a_fresh_read_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_writer, "CHECK_INTERVAL", 0.01)
    async with leading(monkeypatch) as leader:
        world, leader.source.lists_at_once = leader.world, True
        await world.quota("gpu", limits="cpu=16", granted="cpu=16", **OF_PROJECT)
        world.label(pool="gpu")
        leader.there("a")
        leader.changed()
        await eventually(lambda: KEY in world.account("gpu").used)
        picked = world.present[KEY]
        world.label()
        world.present[KEY] = picked  # the watch cache alone proves nothing
        await asyncio.sleep(0.1)
        assert KEY in world.account("gpu").used
        world.present[KEY] = world.cluster_cache.user_clusters.store.get(KEY)
        await eventually(lambda: KEY not in world.account("gpu").used)
        assert KEY in world.account().used
        assert (await create(world, "b")).refusal is None and not accounts.of_source(world.account("gpu"), KEY)


@pytest.mark.parametrize("subject", [OF_PROJECT, OF_ORGANIZATION])
async def test_a_part_has_the_machines_of_its_clusters_and_nothing_that_is_in_none(
    world: SeedWorld, subject: dict[str, Any]
) -> None:
    await world.quota("part", limits="cpu=16", **subject)
    quota = world.quota_cache.quota("part")
    assert quota is not None

    def found() -> tuple[list[str], int, list[str]]:
        limiting = [each.name for each in world.registry.quotas_of(Consumer(PROJECT, KEY))]
        return list(world.registry.source_keys(quota)), world.cluster_cache.picked(quota), limiting

    if subject is OF_PROJECT:
        assert found() == ([], 0, [])
        world.label(pool="gpu")
    assert found() == ([KEY], 1, ["part"])
    assert world.registry.quotas_of(Consumer(PROJECT)) == [], "as the number of clusters, and Allocations"
    assert not world.cluster_cache.limited_on_seed(quota)


class Published:
    """What a leader publishes, on the test's clock."""

    def __init__(self, world: SeedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.written: list[dict[str, Any]] = []
        self._world = world
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(publisher, "time", clock)
        monkeypatch.setattr(clusters, "time", clock)
        cluster = cast(Cluster, SimpleNamespace(apply=self._apply))
        known = (1, dict[str, int]())
        self._leader = Publisher(cluster, world.cluster_cache, lambda _quota: known, Waits(), in_flight_window=WINDOW)

    async def _apply(self, _resource: object, body: dict[str, Any], **_how: object) -> None:
        self.written.append(msgspec.to_builtins(body["status"]["account"]))

    async def publish(self, *sources: Any) -> float | None:
        quota = self._world.quota_cache.quota("gpu")
        assert quota is not None
        return await self._leader.publish(quota, self._world.account("gpu"), sources)

    async def until_it_is_quiet(self) -> None:
        while again := await self.publish():
            self.now += again


async def test_it_is_enforced_in_a_cluster_when_every_replica_knows_and_nothing_from_before_can_appear(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Published(world, monkeypatch)
    written = leader.written
    handle = await world.quota("gpu", limits="cpu=16", granted="cpu=16", **OF_PROJECT)
    await leader.publish()
    assert "picked" not in written[-1] and "unenforced" not in written[-1]
    world.label(pool="gpu")
    leader.now += 1
    await leader.publish()
    assert (written[-1]["picked"], written[-1]["unenforced"]) == (1, (f"{KEY} (not counted yet)",))
    await handle.writer.change(lambda account: (accounts.count(account, 1, KEY, nanos("cpu=8"), {}), None))
    again = await leader.publish()
    assert written[-1]["unenforced"] == (f"{KEY} (its labels have changed)",)
    assert again is not None
    leader.now += again
    await leader.until_it_is_quiet()
    assert "unenforced" not in written[-1] and 100 + FRESH + WINDOW <= leader.now < 110 + FRESH + WINDOW


async def test_it_is_enforced_where_labels_say_whose_a_namespace_is_when_every_replica_knows_that(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is behind charges the project of the cluster."""
    leader = Published(world, monkeypatch)
    handle = await world.quota("gpu", limits="pods=16", granted="pods=16", subject={"kind": "project", "name": PROJECT})
    quota = world.quota_cache.quota("gpu")
    assert quota is not None
    key = SourceKey.of_namespaces(quota.key.uid, KEY)
    world.cluster_cache.tell_proven(key, True)
    world.share("FromCluster")
    await leader.publish()
    assert leader.written[-1]["unenforced"] == (f"namespaces of {KEY} (not counted yet)",), "all is refused with 503"
    await handle.writer.change(lambda account: (accounts.count(account, 1, key.text, {}, {}), None))
    await leader.publish()
    assert "unenforced" not in leader.written[-1]
    world.share("FromLabel")
    leader.now += 1
    again = await leader.publish()
    assert leader.written[-1]["unenforced"] == (f"namespaces of {KEY} (its namespaceProjects has changed)",)
    assert again is not None
    leader.now += again
    await leader.until_it_is_quiet()
    assert "unenforced" not in leader.written[-1] and leader.now >= 100 + FRESH + WINDOW


async def test_a_cluster_that_a_quota_of_namespaces_did_not_count_yet_is_named_once(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is refused there. Where it is known why it is not counted, that is said."""
    leader = Published(world, monkeypatch)
    subject = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}
    handle = await world.quota("gpu", limits="pods=16", granted="pods=16", subject=subject)
    key = SourceKey.of_namespaces(handle.key.uid, KEY)
    world.cluster_cache.tell_proven(key, True)
    world.share("FromCluster")
    await handle.writer.change(lambda account: (accounts.forget_source(account, 1, key.text), None))
    await leader.publish()
    assert leader.written[-1]["unenforced"] == (f"{KEY} (not counted yet)",)
    lost = Problem("Unreachable", "no route to host")
    await leader.publish(SimpleNamespace(key=key, problem=lost, lost_at=90.0, counted=False, in_namespaces=None))
    assert "unenforced" not in leader.written[-1]
    (stale,) = leader.written[-1]["stale"]
    assert (stale["source"], stale["neverCounted"]) == (KEY, True)
    await handle.writer.change(lambda account: (accounts.count(account, 1, key.text, {}, {}), None))
    await leader.publish()
    assert not leader.written[-1].keys() & {"unenforced", "stale"}, "it has nothing, and that is known"
