"""Which clusters a quota's report names as those where Machines are not checked."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import REGISTRY

from common.api.catalogue import Catalogue
from common.api.types import CatalogueEntry, UserCluster
from common.kube.controller.store import Change
from common.quota.escrow import Report
from common.runtime import metrics
from seed.model.asked_of_seed import ALLOCATIONS, CLUSTER_API, CLUSTERS
from seed.model.cluster_key import KUBERMATIC, hosted_key
from seed.model.consumer import Consumer
from seed.model.source_key import SourceKey
from tests.unit.seed_world import PROJECT, SeedWorld, seed_world


def hosted(name: str) -> UserCluster:
    body = {"metadata": {"name": name, "namespace": PROJECT, "uid": name}, "spec": {"project": PROJECT}}
    return msgspec.convert(body, UserCluster)


async def test_a_cluster_of_another_api_is_named_by_what_the_leader_saw_of_it() -> None:
    first, second, theirs = hosted_key(PROJECT, "c2"), hosted_key(PROJECT, "c3"), f"{PROJECT}/{KUBERMATIC}k1"
    async with seed_world() as world:
        await world.quota(limits="cpu=64")
        cluster_cache = world.cluster_cache
        for key in (first, second, theirs):
            cluster_cache.host(key, hosted(key.partition("/")[2]))
        (quota,) = world.quota_cache.quotas_of(Consumer(PROJECT))
        assert cluster_cache.unenforced(quota) == []
        assert cluster_cache.tell_enforced(theirs, False)
        assert cluster_cache.unenforced(quota) == [theirs]
        assert not cluster_cache.tell_enforced(theirs, False), "it is known"
        assert cluster_cache.tell_enforced(CLUSTER_API, False)
        assert sorted(cluster_cache.unenforced(quota)) == sorted([first, second, theirs])
        assert cluster_cache.tell_enforced(CLUSTER_API, True)
        assert cluster_cache.unenforced(quota) == [theirs]
        # A replica that has just begun to lead goes on with what the one before has published.
        published = msgspec.structs.replace(quota, published_unenforced=[SourceKey(first).shown])
        assert cluster_cache.unenforced(published) == [theirs], "what it saw itself is later"
        cluster_cache.forget_told()
        assert cluster_cache.unenforced(quota) == []
        assert cluster_cache.unenforced(published) == [first]


async def test_a_user_cluster_is_named_by_its_own_condition(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64")
    (quota,) = world.quota_cache.quotas_of(Consumer(PROJECT))
    store = world.cluster_cache.user_clusters.store
    for status, named in (("True", []), ("Unknown", []), ("False", [f"{PROJECT}/c1"])):
        known = store.get(f"{PROJECT}/c1")
        conditions = [{"type": "Enforced", "status": status, "reason": "R", "message": ""}]
        body = {**msgspec.to_builtins(known), "status": {"conditions": conditions}}
        store._set(f"{PROJECT}/c1", msgspec.convert(body, UserCluster))
        assert world.cluster_cache.unenforced(quota) == named


async def test_a_quota_of_namespaces_is_enforced_where_that_was_said_of_its_present_spec(world: SeedWorld) -> None:
    part = {
        "metadata": {"name": "c1", "namespace": PROJECT, "uid": "c1-uid"},
        "spec": {"project": PROJECT, "namespaceQuotas": "Enabled", "kubeconfigSecretRef": {"name": "c1"}},
    }
    cluster_cache = world.cluster_cache
    cluster_cache.user_clusters.store._set(f"{PROJECT}/c1", msgspec.convert(part, UserCluster))
    subject = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}
    await world.quota("ann", limits="pods=4", subject=subject)
    quota = world.quota_cache.quota("ann")
    assert quota is not None
    key = SourceKey.of_namespaces(quota.key.uid, f"{PROJECT}/c1")
    assert cluster_cache.unenforced(quota) == [key], "nothing was said of it yet"
    assert cluster_cache.tell_proven(key, True, quota)
    assert cluster_cache.unenforced(quota) == []
    assert not cluster_cache.tell_proven(key, True, quota), "it is known"
    # While there is no connection, nobody tells it of another spec: there may be more that must be asked about.
    asks_more = msgspec.structs.replace(quota, generation=1)
    assert cluster_cache.unenforced(asks_more) == [key]
    # A replica that has just begun to lead goes on with what the one before has published.
    published = msgspec.structs.replace(quota, published=Report(incarnation="life"), published_generation=0)
    assert cluster_cache.tell_proven(key, False, quota)
    cluster_cache.forget_told()
    assert cluster_cache.unenforced(published) == []
    edited = msgspec.structs.replace(published, generation=1)
    assert cluster_cache.unenforced(edited) == [key], "that was of another spec"
    unproven = msgspec.structs.replace(published, published_unenforced=[f"{PROJECT}/c1"])
    assert cluster_cache.unenforced(unproven) == [key]


@pytest.mark.parametrize("in_cluster", [True, False])
async def test_what_the_seed_itself_is_asked_about_is_named_until_it_is_proven(
    world: SeedWorld, in_cluster: bool
) -> None:
    cluster_cache, quota_cache = world.cluster_cache, world.quota_cache
    await world.quota("machines", limits="cpu=64")
    await world.quota("types", limits="cpu=64,servers=3,clusters=2")
    quota_cache.in_cluster = in_cluster
    entries = [CatalogueEntry(name="servers", count_from="Allocations")]
    quota_cache._catalogue = (quota_cache._catalogue[0], Catalogue(entries))
    machines, types = quota_cache.quota("machines"), quota_cache.quota("types")
    assert machines is not None and types is not None
    allocations = [ALLOCATIONS] if in_cluster else []
    assert cluster_cache.unenforced(machines) == []
    assert cluster_cache.unenforced(types) == [*allocations, CLUSTERS]
    assert cluster_cache.tell_proven(CLUSTERS, True)
    assert cluster_cache.unenforced(types) == allocations
    assert cluster_cache.tell_proven(ALLOCATIONS, True)
    assert cluster_cache.unenforced(types) == []
    assert cluster_cache.tell_proven(ALLOCATIONS, False) and cluster_cache.tell_proven(CLUSTERS, False)
    entries.append(CatalogueEntry(name="clusters", count_from="Allocations"))
    quota_cache._catalogue = (quota_cache._catalogue[0], Catalogue(entries))
    assert cluster_cache.unenforced(types) == allocations, "clusters are counted from Allocations then"


async def test_what_was_refused_of_its_api_server_s_answers_goes_with_a_user_cluster(world: SeedWorld) -> None:
    cluster = hosted("gone")
    metrics.api_answer_refused(f"{PROJECT}/gone", "Compressed")
    world.cluster_cache._cluster_changed(Change(cluster, None))
    labels = {"server": f"{PROJECT}/gone", "reason": "Compressed"}
    assert REGISTRY.get_sample_value("seedquota_api_answers_refused_total", labels) is None
