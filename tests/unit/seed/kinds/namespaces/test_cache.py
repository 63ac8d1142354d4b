"""Which quotas count a namespace, and when that is not known."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.client.meta import ObjectMeta
from common.kube.controller.reflector import Reflector
from common.quota.object_names import GroupResource
from seed.kinds.namespaces import cache as namespaces
from seed.kinds.namespaces.cache import NamespaceCache
from seed.model import reserved_object
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.model.source_key import OWN_API_SERVER, SourceKey
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, eventually, fake_api_server
from tests.unit.namespaces_world import ANN, PROD, World


@pytest.fixture
def world() -> World:
    return World()


def test_a_namespace_is_in_every_quota_that_selects_it_in_a_cluster_that_takes_part(world: World) -> None:
    world.cluster("c1", tier="prod")
    world.cluster("c2", tier="dev")
    world.cluster("c3", "Disabled", tier="prod")
    world.seed("Enabled")
    world.quota("all", selector={"matchLabels": ANN})
    world.quota("prod", selector={"matchLabels": ANN}, clusters=PROD)
    assert world.selected("alpha/c1", ANN) == ["all", "prod"]
    assert world.selected("alpha/c2", ANN) == ["all"]
    assert world.selected("alpha/c3", ANN) == []
    assert world.selected(OWN_API_SERVER, ANN) == ["all"]
    assert world.selected("alpha/c1", {"owner": "bob"}) == []
    assert world.selected("alpha/unknown", ANN) == []
    assert world.sources("all") == ["alpha/c1", "alpha/c2", "seed"]
    assert world.sources("prod") == ["alpha/c1"]


def test_what_takes_part_no_more_is_no_source_and_that_is_told(world: World) -> None:
    world.quota("all", selector={"matchLabels": ANN})
    for change in (
        lambda: world.cluster("c1"),
        lambda: world.cluster("c1", tier="prod"),
        lambda: world.cluster("c1", "Disabled"),
        lambda: world.seed("Enabled"),
        lambda: world.seed("Disabled"),
    ):
        before = world.changes
        change()
        assert world.changes == before + 1
    assert world.sources("all") == []


def test_a_selector_that_changes_selects_others_at_once(world: World) -> None:
    world.cluster("c1")
    world.quota("all", selector={"matchLabels": ANN})
    assert world.selected("alpha/c1", ANN) == ["all"]
    world.quota("all", selector={"matchLabels": {"owner": "bob"}})
    assert world.selected("alpha/c1", ANN) == []
    assert world.selected("alpha/c1", {"owner": "bob"}) == ["all"]


async def test_a_namespace_is_looked_up_in_its_own_cluster(world: World) -> None:
    """Tenants choose the names: another cluster may have one of that name, with other labels."""
    world.quota("all", selector={"matchLabels": ANN})
    labels = {"alpha/c1": ANN, "alpha/c2": {"owner": "bob"}, "alpha/c3": None}
    for key, of in labels.items():
        world.cluster(key.partition("/")[2])
        watched = world.cache._watched[key] = namespaces._Watched(world.clusters.user_clusters.store.get(key))
        found = {} if of is None else {"web": {"metadata": {"name": "web", "uid": key, "labels": of}}}
        watched.cluster = cast(Cluster, Reads(found))
        watched.reflector = Reflector(watched.cluster, namespaces.NAMESPACES)
        for name, body in found.items():
            watched.reflector.store._set(name, msgspec.convert(body, namespaces.Namespace))
        watched.reflector.synced.set()
        watched.reflector.proven_at = time.monotonic()

    def names(quotas: Sequence[Quota]) -> list[str]:
        return [quota.name for quota in quotas]

    selected = {key: world.cache.select(key, "web") for key in (*labels, OWN_API_SERVER)}
    assert {key: (names(found.quotas), found.known) for key, found in selected.items()} == {
        "alpha/c1": (["all"], True),
        "alpha/c2": ([], True),
        "alpha/c3": ([], False),
        OWN_API_SERVER: ([], False),
    }
    assert [names((await world.cache.read(key, "web")).quotas) for key in labels] == [["all"], [], []]
    world.cache._watched["alpha/c1"].reflector = None
    assert world.cache.select("alpha/c1", "web") == ([], False, "", ""), "nothing was seen there yet"


class Reads:
    name = "user-cluster"

    def __init__(self, found: Mapping[str, object]) -> None:
        self._found = found

    async def find(self, _resource: object, name: str) -> namespaces.Namespace | None:
        body = self._found.get(name)
        return msgspec.convert(body, namespaces.Namespace) if body is not None else None


def test_what_is_in_namespaces_is_counted_by_one_quota_alone(world: World) -> None:
    world.quota("all", selector={"matchLabels": ANN})
    world.quota("other", selector={"matchLabels": ANN})
    assert [quota.name for quota in world.quotas.quotas_of(Consumer("", "alpha/c1", "all"))] == ["all"]
    assert world.quotas.quotas_of(Consumer("", "alpha/c1", "gone")) == []


def test_a_source_and_its_objects_are_named_so_that_they_can_be_found_again() -> None:
    key = SourceKey.of_namespaces("uid-1", "alpha/c1")
    assert (key.quota, key.cluster, key.project) == ("uid-1", "alpha/c1", "") and SourceKey(key).quota == "uid-1"
    assert SourceKey("alpha/c1").quota == ""
    assert {
        type(text) for text in (key.text, key.shown, SourceKey(key).cluster, SourceKey(SourceKey("a/b")).shown)
    } == {str}
    deployments = GroupResource("deployments", "apps")
    named = reserved_object.object_in_namespace(deployments, "web", "shop.v2")
    assert reserved_object.parse_object(named) == (deployments, "web", "shop.v2")
    assert reserved_object.parse_object("pods:web/x") == (GroupResource("pods"), "web", "x")


def test_an_update_is_in_what_has_a_later_version_than_the_one_it_changed() -> None:
    old = ObjectMeta(resource_version="41")
    assert reserved_object.generation_after(old) == 42
    assert reserved_object.generation_of(ObjectMeta(resource_version="41")) < reserved_object.generation_after(old)
    assert reserved_object.generation_of(ObjectMeta(resource_version="opaque")) == 0


class Followed:
    def __init__(self, world: World, api: FakeApiServer, cache: NamespaceCache) -> None:
        self.world = world
        self.api = api
        self.cache = cache

    def known(self, namespace: str) -> tuple[list[str], bool]:
        found = self.cache.select(OWN_API_SERVER, namespace)
        return [quota.name for quota in found.quotas], found.known


@asynccontextmanager
async def followed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Followed]:
    """The seed's own API server takes part, and namespace web of ann is there."""
    monkeypatch.setitem(fakes.PLURALS, "namespaces", ("v1", "Namespace"))
    world = World()
    world.seed("Enabled")
    world.quota("all", selector={"matchLabels": ANN})
    async with fake_api_server() as api:
        await api.put("namespaces", "", "web", metadata={"labels": ANN})
        cluster = api.cluster()
        cache = NamespaceCache(cluster, world.quotas, world.clusters)
        running = asyncio.create_task(cache.run())
        try:
            yield Followed(world, api, cache)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_labels_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with followed(monkeypatch) as found:
        await eventually(lambda: found.known("web") == (["all"], True))
        await found.api.put("namespaces", "", "web", metadata={"labels": {"owner": "bob"}})
        await eventually(lambda: found.known("web") == ([], True))


async def test_namespaces_with_very_many_labels_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace may have a megabyte of them, and a cluster thousands of such namespaces. Each is read when needed."""
    monkeypatch.setattr(namespaces, "NAMESPACES", dataclasses.replace(namespaces.NAMESPACES, most=5_000))
    monkeypatch.setattr(namespaces, "FRESH", 3.0)  # what was read before is believed for so long
    async with followed(monkeypatch) as found:
        await eventually(lambda: found.known("web") == (["all"], True))
        labels = {f"label{number}": "value" for number in range(50)}
        await found.api.put("namespaces", "", "many", metadata={"labels": labels})
        await eventually(lambda: "namespaces take more than" in (found.cache.problem(OWN_API_SERVER) or ""))
        assert found.cache.select(OWN_API_SERVER, "many") == ([], False, "", "")
        assert [quota.name for quota in (await found.cache.read(OWN_API_SERVER, "web")).quotas] == ["all"]


def test_of_a_namespace_nothing_is_kept_that_nobody_reads() -> None:
    owner = {"apiVersion": "v1", "kind": "x" * 1000, "name": "x", "uid": "u"}
    metadata = {
        "name": "web",
        "labels": ANN,
        "finalizers": ["x"],
        "ownerReferences": [owner],
        "annotations": {"a": "b"},
    }
    found = namespaces.NAMESPACES.decode(msgspec.json.encode({"metadata": metadata}))
    assert (found.metadata.finalizers, found.metadata.owner_references, found.metadata.annotations) == ((), (), {})
    assert found.metadata.labels == ANN


async def test_a_namespace_that_has_not_been_seen_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with followed(monkeypatch) as found:
        await eventually(lambda: found.known("web") == (["all"], True))
        found.api.objects["namespaces", "", "new"] = {"metadata": {"name": "new", "uid": "n", "labels": ANN}}
        assert found.known("new") == ([], False)
        assert [quota.name for quota in (await found.cache.read(OWN_API_SERVER, "new")).quotas] == ["all"]
        assert (await found.cache.read(OWN_API_SERVER, "none")).quotas == []


async def test_a_cache_that_proves_nothing_is_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with followed(monkeypatch) as found:
        await eventually(lambda: found.known("web") == (["all"], True))
        monkeypatch.setattr(namespaces, "FRESH", -1.0)
        assert found.known("web") == (["all"], False)


async def test_a_namespace_that_is_being_deleted_is_read_since_another_may_have_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch has not brought that it is gone, and was made again with other labels."""
    async with followed(monkeypatch) as found:
        await eventually(lambda: found.known("web") == (["all"], True))
        ending = {"labels": ANN, "deletionTimestamp": "2026-11-20T10:00:00Z"}
        await found.api.put("namespaces", "", "web", metadata=ending)
        await eventually(lambda: found.known("web") == (["all"], False))
        found.api.objects["namespaces", "", "web"] = {"metadata": {"name": "web", "uid": "new", "labels": {}}}
        assert (await found.cache.read(OWN_API_SERVER, "web")).quotas == []
        await found.api.put("namespaces", "", "web", metadata={"labels": ANN})
        await eventually(lambda: found.known("web") == (["all"], True))


async def test_what_takes_part_no_more_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with followed(monkeypatch) as found:
        await eventually(lambda: found.known("web") == (["all"], True))
        found.world.seed("Disabled")
        assert found.known("web")[0] == []
        await eventually(lambda: found.known("web") == ([], False))
        with pytest.raises(Unavailable):
            await found.cache.read(OWN_API_SERVER, "web")
