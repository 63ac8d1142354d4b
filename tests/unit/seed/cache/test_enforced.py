"""Which clusters a quota's report names as those where Machines are not checked."""

from __future__ import annotations

import msgspec

from common.api.types import UserCluster
from seed.cache.consumer import Consumer
from seed.cache.source_keys import CLUSTER_API, KUBERMATIC, hosted_key
from tests.unit.seed_world import PROJECT, seed_world


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


async def test_a_user_cluster_is_named_by_its_own_condition() -> None:
    async with seed_world() as world:
        await world.quota(limits="cpu=64")
        (quota,) = world.quota_cache.quotas_of(Consumer(PROJECT))
        store = world.cluster_cache.user_clusters.store
        for status, named in (("True", []), ("Unknown", []), ("False", [f"{PROJECT}/c1"])):
            known = store.get(f"{PROJECT}/c1")
            conditions = [{"type": "Enforced", "status": status, "reason": "R", "message": ""}]
            body = {**msgspec.to_builtins(known), "status": {"conditions": conditions}}
            store._set(f"{PROJECT}/c1", msgspec.convert(body, UserCluster))
            assert world.cluster_cache.unenforced(quota) == named
