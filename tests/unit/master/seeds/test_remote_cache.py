"""When enough of a seed is known to write to it, and how much of it is read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.api.labels import GROUP, VERSION
from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import Reflector
from master.seeds import remote_cache
from master.seeds.remote_cache import MOST, SeedCaches
from tests.running import running
from tests.unit.fake_api_server import PLURALS, FakeApiServer, eventually, fake_api_server


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    for plural in MOST:
        monkeypatch.setitem(PLURALS, plural, (f"{GROUP}/{VERSION}", "Any"))


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


async def caches_of(fake: FakeApiServer, plural: str, *, trusted: bool = False) -> Reflector[Any]:
    """What is read of a seed that has one object of a few megabytes and one of some bytes."""
    await fake.put(plural, "", "fake", spec={"x": [[]] * 70_000})
    await fake.put(plural, "", "small", spec={})
    there = SeedCaches(fake.cluster(), lambda _plural, _change: None, trusted=trusted)
    found = {each._resource.plural: each for each in (*there.all, there.seed)}
    return found[plural]


@pytest.mark.parametrize("plural", sorted(MOST))
async def test_a_seed_takes_no_more_memory_than_its_bound(plural: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compromised one could else end the master for all seeds. Another list is tried, later and later."""
    resources = {"resourcequotas": remote_cache._QUOTAS, **remote_cache._BOUNDED}
    assert resources[plural].most == MOST[plural] * 2**20
    small = replace(resources[plural], most=2 * 2**20)
    monkeypatch.setattr(remote_cache, "_QUOTAS", small)
    monkeypatch.setitem(remote_cache._BOUNDED, plural, small)
    async with fake_api_server() as fake:
        reflector = await caches_of(fake, plural)
        async with running(reflector.run()):
            await eventually(lambda: reflector.error is not None)
            assert reflector.error is not None
            assert "take more than 2 MiB" in reflector.error
            assert len(reflector.store) == 0
            await fake.remove(plural, "", "fake")
            await eventually(lambda: reflector.synced.is_set() and reflector.error is None)


async def test_the_master_s_own_objects_have_no_such_bound() -> None:
    async with fake_api_server() as fake:
        reflector = await caches_of(fake, "seeds", trusted=True)
        assert reflector._resource.most is None


async def test_a_report_that_no_ledger_takes_leaves_the_one_before() -> None:
    """An account with a nonce of 65 characters would be written into no ledger: then nothing is granted to any seed."""
    async with fake_api_server() as fake:
        account = {"incarnation": "a", "nonce": "n" * 64}
        await fake.put("resourcequotas", "", "q", status={"account": account})
        there = SeedCaches(fake.cluster(), lambda _plural, _change: None)
        async with running(there.quotas.run()):
            await eventually(there.quotas.synced.is_set)
            await fake.put("resourcequotas", "", "q", status={"account": {**account, "nonce": "o" * 65}})
            await eventually(lambda: list(there.quotas.malformed) == ["q"])
            (kept,) = there.quotas.store.values()
            assert kept.status.account.nonce == "n" * 64
