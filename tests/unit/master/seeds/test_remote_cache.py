"""When enough of a seed is known to write to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from common.kube.client.api_client import Cluster
from master.seeds.remote_cache import SeedCaches


def test_nothing_is_known_of_a_seed_before_it_is_which_master_serves_it() -> None:
    there = SeedCaches(cast(Cluster, SimpleNamespace(name="eu-1")), lambda _plural, _change: None)
    for reflector in there.all:
        reflector.synced.set()
    assert (there.synced, there.error) == (False, None), "the copy of the Seed was not read yet"
    there.seed.error, there.seed.error_status = "etcd has no leader", 500
    assert (there.synced, there.error) == (False, "etcd has no leader"), "it says why nothing is written"
    there.seed.error, there.seed.error_status = "forbidden", 403
    assert (there.synced, there.error) == (True, None), "a role from before the master read it"
    there.seed.error, there.seed.error_status = "etcd has no leader", 500
    there.seed.synced.set()
    assert (there.synced, there.error) == (True, None), "what it said last is known"
