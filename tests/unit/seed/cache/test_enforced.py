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
        catalog = world.catalog
        for key in (first, second, theirs):
            catalog.host(key, hosted(key.partition("/")[2]))
        (quota,) = catalog.quotas_of(Consumer(PROJECT))
        assert catalog.unenforced(quota) == []
        assert catalog.tell_enforced(theirs, False)
        assert catalog.unenforced(quota) == [theirs]
        assert not catalog.tell_enforced(theirs, False), "it is known"
        assert catalog.tell_enforced(CLUSTER_API, False)
        assert sorted(catalog.unenforced(quota)) == sorted([first, second, theirs])
        assert catalog.tell_enforced(CLUSTER_API, True)
        assert catalog.unenforced(quota) == [theirs]


async def test_a_user_cluster_is_named_by_its_own_condition() -> None:
    async with seed_world() as world:
        await world.quota(limits="cpu=64")
        (quota,) = world.catalog.quotas_of(Consumer(PROJECT))
        store = world.catalog.user_clusters.store
        for status, named in (("True", []), ("Unknown", []), ("False", [f"{PROJECT}/c1"])):
            known = store.get(f"{PROJECT}/c1")
            conditions = [{"type": "Enforced", "status": status, "reason": "R", "message": ""}]
            body = {**msgspec.to_builtins(known), "status": {"conditions": conditions}}
            store._set(f"{PROJECT}/c1", msgspec.convert(body, UserCluster))
            assert world.catalog.unenforced(quota) == named
