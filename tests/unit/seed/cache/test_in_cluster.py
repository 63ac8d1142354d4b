"""On a seed that is the master's own API server the master's objects stand for themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import MASTER_SEEN_ANNOTATION, UID_LABEL
from common.api.types import ResourceQuota, SeedCopy
from common.kube.client.api_client import Cluster
from common.kube.controller.store import Change
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.kinds.registry import OF_PROJECTS
from seed.model.selected_namespaces import OF_USER_CLUSTERS
from seed.model.source_key import OWN_API_SERVER
from tests.stores import fill


def quota(uid: str = "original", **labels: str) -> ResourceQuota:
    body: dict[str, Any] = {
        "metadata": {"name": "project-alpha", "uid": uid, "generation": 2, "labels": labels},
        "spec": {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "4"}},
        "status": {
            "globalUsage": {"cpu": "1"},
            "grant": {"incarnation": "m", "globalUsage": {"cpu": "3"}, "reserved": {"cpu": "2"}},
        },
    }
    return msgspec.convert(body, ResourceQuota)


def seed(**spec: object) -> SeedCopy:
    return msgspec.convert({"metadata": {"name": "eu-1", "uid": "s"}, "spec": spec}, SeedCopy)


class World:
    def __init__(self) -> None:
        self.cluster = cast(Cluster, SimpleNamespace(name="eu-1"))
        self.quota_cache = QuotaCache(self.cluster)

    def seed_is(self, now: SeedCopy | None, before: SeedCopy | None = None) -> None:
        self.quota_cache._seed_changed(Change(before, now))

    def quota_is(self, now: ResourceQuota | None, before: ResourceQuota | None = None) -> None:
        known = now or before
        assert known is not None
        fill(self.quota_cache.quotas.store, {known.metadata.name: now} if now is not None else {})
        self.quota_cache._quota_changed(Change(before, now))

    @property
    def limited_by(self) -> list[str]:
        return [found.key.uid for found in self.quota_cache.all_quotas()]


@pytest.fixture
def world() -> World:
    return World()


def test_an_object_without_the_masters_label_limits_nothing_on_another_seed(world: World) -> None:
    world.seed_is(seed(copyOf="uid"))
    world.quota_is(quota())
    assert world.limited_by == []


@pytest.mark.parametrize("seed_first", [True, False])
def test_in_the_masters_cluster_a_quota_is_its_own_copy_whichever_watch_is_first(
    world: World, seed_first: bool
) -> None:
    if seed_first:
        world.seed_is(seed(inCluster=True))
    world.quota_is(quota())
    if not seed_first:
        world.seed_is(seed(inCluster=True))
    assert world.limited_by == ["original"]
    found = world.quota_cache.quota("project-alpha")
    assert found is not None
    assert (found.global_usage, found.global_reserved) == ({"cpu": 3_000_000_000}, {"cpu": 2_000_000_000})


def test_a_label_of_a_copy_does_not_make_an_original_another_ones_copy(world: World) -> None:
    """A backup of a seed that was restored here, for example."""
    world.seed_is(seed(inCluster=True))
    world.quota_is(quota(**{UID_LABEL: "another"}))
    assert world.limited_by == ["original"]


def test_an_original_that_is_deleted_limits_nothing_from_then_on(world: World) -> None:
    world.seed_is(seed(inCluster=True))
    world.quota_is(quota())
    world.quota_is(None, quota())
    assert world.limited_by == []


def test_a_seed_that_is_deleted_takes_no_quota_with_it(world: World) -> None:
    world.seed_is(seed(inCluster=True))
    world.quota_is(quota())
    world.seed_is(None, seed(inCluster=True))
    assert world.limited_by == ["original"]
    world.quota_is(quota(), quota())
    assert world.limited_by == ["original"], "also when it is written again"
    assert world.quota_cache.in_cluster, "Allocations go on to be counted"


def test_a_lost_seed_admits_nothing_also_in_the_masters_cluster(world: World) -> None:
    for spec in ({"inCluster": True}, {"copyOf": "uid"}):
        lost = seed(state="Lost", confirmLost="its machines are gone", **spec)
        world.quota_cache.seed.store._set("eu-1", lost)
        assert world.quota_cache.lost
    world.quota_cache.seed.store._set("eu-1", seed(inCluster=True))
    assert not world.quota_cache.lost


@pytest.mark.parametrize("in_cluster", [True, False])
def test_a_sign_of_the_master_is_one_that_differs_from_the_one_before(
    world: World, monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> None:
    """The first that is seen may be old. On a copy, lastSeenTime is this agent's own sign."""

    def shown(master: str, agent: str = "2026-11-20T10:00:00Z") -> SeedCopy:
        annotations = {} if in_cluster else {MASTER_SEEN_ANNOTATION: master}
        body = {
            "metadata": {"name": "eu-1", "uid": "s", "annotations": annotations},
            "spec": {"inCluster": True} if in_cluster else {"copyOf": "uid"},
            "status": {"lastSeenTime": master, "agent": {"lastSeenTime": agent}}
            if in_cluster
            else {"lastSeenTime": agent},
        }
        return msgspec.convert(body, SeedCopy)

    moments = iter((1.0, 2.0))
    monkeypatch.setattr("seed.cache.quotas.time.monotonic", lambda: next(moments))
    first, second, third = shown("10:00"), shown("10:30"), shown("11:00")
    world.seed_is(first)
    assert world.quota_cache.master_seen_at is None
    world.seed_is(shown("10:00", "2026-11-20T11:00:00Z"), first)
    assert world.quota_cache.master_seen_at is None
    world.seed_is(second, first)
    assert world.quota_cache.master_seen_at == 1.0
    world.seed_is(None, second)
    world.seed_is(third, second)
    assert world.quota_cache.master_seen_at == 2.0


def test_the_masters_namespace_is_exempt_where_the_master_is_in_this_api_server(world: World) -> None:
    """Otherwise the master could not start: its pods would wait for the seed, which waits for the master."""
    clusters = ClusterCache(world.cluster, world.quota_cache, ["seedquota", "cni"], of_projects=OF_PROJECTS)
    told: list[str] = []
    clusters.on_participants(lambda: told.append("again"))
    before = clusters.exempt(OWN_API_SERVER)
    assert before.names == {"kube-system", "seedquota", "cni"}
    copy = msgspec.convert(
        {
            "metadata": {"name": "eu-1", "uid": "s"},
            "spec": {"inCluster": True},
            "status": {"masterNamespace": "seedquota-master"},
        },
        SeedCopy,
    )
    fill(world.quota_cache.seed.store, {"eu-1": copy})
    world.seed_is(copy)
    assert clusters.exempt(OWN_API_SERVER).names == before.names | {"seedquota-master"}
    assert told, "whoever follows the namespaces looks again"
    assert clusters.exempt("alpha/c1") == OF_USER_CLUSTERS
