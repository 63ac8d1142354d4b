"""One cluster is an installation: the master's own API server is a seed, beside another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devcluster.install import NAMESPACE, Installation
from devcluster.objects import named
from tests.integration.installed.site import (
    LEDGERS,
    MACHINES,
    QUOTA,
    WINDOW,
    Json,
    Site,
    cpus,
    until,
)

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture(scope="module")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """seed-1 is the master's own cluster, seed-2 another one; both have a user cluster."""
    directory = tmp_path_factory.mktemp("one-cluster")
    async with Installation(directory, in_flight_window=WINDOW, in_cluster=True, breakable=True) as installed:
        site = Site(installed)
        yield site
        await site.close()


@pytest_asyncio.fixture
async def site(installation: Site) -> AsyncIterator[Site]:
    async with installation.emptied() as site:
        yield site


async def ledgers(site: Site) -> list[str]:
    return sorted(found["metadata"]["name"] for found in await site.items("master", LEDGERS))


async def test_a_quota_is_its_own_copy_and_is_filled_exactly_from_both_seeds(site: Site) -> None:
    await site.quota(cpus(4))
    quota: Json = (await site.get("master", f"resourcequotas/{QUOTA}"))["metadata"]
    assert "seedquota.io/uid" not in quota.get("labels", {}), "nothing marks it as a copy"
    assert [found["metadata"]["name"] for found in await site.items("master", "resourcequotas")] == [QUOTA]
    assert await ledgers(site) == sorted([quota["uid"], f"master-{quota['uid']}"])
    async with site.no_overshoot(cpus(4)):
        answers = await asyncio.gather(*(site.create(name) for name in ("user-1", "user-2") * 6))
        assert sorted(answer.status for answer in answers).count(201) == 4, answers
        await site.uses(cpus(4))
        for cluster in ("user-1", "user-2"):
            assert "used: cpu=4, limited: cpu=4" in (await site.refused(cluster)).message
    names = [found["metadata"]["name"] for found in await site.items("user-1", MACHINES)]
    if names:
        await site.delete("user-1", f"{MACHINES}/{names[0]}")
        await site.uses(cpus(3))
        await until(lambda: site.admitted("user-2"), 30)


async def test_the_status_of_a_quota_shows_both_seeds_and_each_side_writes_its_own_fields(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    status: Json = (await site.get("master", f"resourcequotas/{QUOTA}"))["status"]
    assert {seed["name"]: seed.get("localUsage", {}).get("cpu", "0") for seed in status["seeds"]} == {
        "seed-1": "2",
        "seed-2": "0",
    }
    assert status["localUsage"]["cpu"] == "2" and status["globalUsage"]["cpu"] == "2"

    async def current() -> None:
        """By the signs of the master, which are in the Seed's own status here."""
        for cluster in ("user-1", "user-2"):
            shown = (await site.get(cluster, f"namespaces/kube-system/localresourcequotas/{QUOTA}"))["status"]
            assert shown["total"]["used"] == cpus(2) and "currentTime" in shown and "stale" not in shown, shown

    await until(current, 100)
    seed: Json = await site.get("master", "seeds/seed-1")
    assert seed["spec"] == {"inCluster": True, "state": "Active"}
    await site.comes("master", "seeds/seed-1", "Ready", "True")
    assert (await site.get("master", "seeds/seed-1"))["status"]["clusters"] == 1


async def test_a_quota_that_is_deleted_limits_no_more_at_once_and_both_ledgers_go(site: Site) -> None:
    await site.quota(cpus(1))
    await site.admitted("user-1")
    await site.refused("user-1")
    await site.delete("master", f"resourcequotas/{QUOTA}")
    await until(lambda: site.admitted("user-1"), 10)

    async def gone() -> None:
        assert await ledgers(site) == []

    await until(gone, 60)


async def test_both_programs_killed_at_once_lose_nothing(site: Site) -> None:
    await site.quota(cpus(3))
    await site.admitted("user-1", 2)
    programs = site.program("master"), site.program("seed-1")
    await site.kill(*programs)
    await site.start(*programs)
    await site.installed.enforced(QUOTA, 60)
    await until(lambda: site.admitted("user-2"), 60)
    await until(lambda: site.refused("user-1"), 60)


async def test_the_one_etcd_restored_from_a_snapshot_never_admits_too_much(site: Site) -> None:
    """Master and seed are set back to the same moment; what was admitted since exists in the user clusters."""
    await site.quota(cpus(4))
    await site.admitted("user-1")
    await site.uses(cpus(1))
    snapshot = site.installed.directory / "one-cluster.db"
    await site.installed.etcd_of("seed-1").snapshot(snapshot)
    await site.admitted("user-1")
    await site.admitted("user-2")
    await site.uses(cpus(3))
    programs = site.program("master"), site.program("seed-1")
    await site.kill(*programs)
    await restored(site, snapshot)
    await site.start(*programs)
    async with site.no_overshoot(cpus(4)):
        await until(lambda: site.admitted("user-2"), 120)
        await site.uses(cpus(4), seconds=60)
        for cluster in ("user-1", "user-2"):
            await until(lambda cluster=cluster: site.refused(cluster), 60)


async def restored(site: Site, snapshot: Path) -> None:
    etcd, server = site.installed.etcd_of("seed-1"), site.server("seed-1")
    await site.kill(server, etcd)
    await etcd.restore(snapshot)
    await site.start(etcd)
    await site.start(server)


async def test_another_seed_that_leads_to_the_master_is_a_duplicate(site: Site) -> None:
    kubeconfig = site.server("master").kubeconfig("seedquota-master")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "same", "namespace": NAMESPACE}}
    await site.apply("master", {**secret, "stringData": {"kubeconfig": kubeconfig}})
    await site.apply("master", named("Seed", "same", kubeconfigSecretRef={"name": "same"}))
    try:
        await site.comes("master", "seeds/same", "Connected", "False", "DuplicateCluster", "Seed seed-1")
    finally:
        await site.delete("master", "seeds/same")


async def test_a_seed_needs_exactly_one_way_to_be_reached(site: Site) -> None:
    for spec in ({}, {"inCluster": False}, {"inCluster": True, "kubeconfigSecretRef": {"name": "x"}}):
        answer = await site.call("master", "POST", "seeds", named("Seed", "wrong", **spec))
        assert answer.status == 422 and "set either kubeconfigSecretRef" in answer.message, answer
