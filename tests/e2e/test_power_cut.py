"""The power of a whole cluster is cut, with a quota that selects everything: it comes back alone, and enforces."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devcluster import isolation
from devcluster.node import SANDBOX_IMAGE
from devcluster.objects import named, namespace
from tests.e2e.cluster import NAMESPACE, PATIENT, Answer, Cluster, Site, restricted, site, until

QUOTA, SHOP, MASTERS = "everything", "shop", "quota-master"
EVERYTHING = {
    "kind": "namespaces",
    "selector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]},
}
POD = {"containers": [{"name": "waits", "image": SANDBOX_IMAGE}], "terminationGracePeriodSeconds": 0}
SEED = {"seedName": "home", "namespaceQuotas__enabled": True, **PATIENT}
if window := os.environ.get("IN_FLIGHT_WINDOW"):
    SEED["inFlightWindow"] = window  # to measure with the one of an installation
_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site(tmp_path_factory.mktemp("cut")) as found:
        home = await found.cluster("home", isolation.FIRST)
        await home.apply(restricted(NAMESPACE), namespace(SHOP))
        await home.install("seed", **SEED)
        await home.install("master", seeds=[{"name": "home", "inCluster": True}])
        await home.kubectl("patch", "sqseed/home", "--type=merge", "-p", '{"spec": {"namespaceQuotas": "Enabled"}}')
        yield found


async def test_master_and_seed_in_one_namespace(started: Site) -> None:
    await comes_back(started, masters=NAMESPACE)


async def test_master_in_a_namespace_of_its_own(started: Site) -> None:
    (home,) = started.clusters
    await home.kubectl("delete", "seedquota", QUOTA)  # it would refuse the pods of a namespace that is not exempt yet
    await home.helm("uninstall", "seedquota-master", "-n", NAMESPACE, "--wait")
    await home.apply(restricted(MASTERS))
    await home.install("master", into=MASTERS)
    await comes_back(started, masters=MASTERS)


async def comes_back(started: Site, masters: str) -> None:
    """The pods of SeedQuota are lost, too, as with a node that stays away: all of them must be created anew."""
    (home,) = started.clusters
    await limit(home, await pods(home) + 1)
    await until(lambda: admitted(home), 60)
    await limit(home, await pods(home) + 1)
    await cut(started)
    began = await boot(started)
    for each in {NAMESPACE, masters}:
        await home.kubectl("-n", each, "delete", "pods", "--all", "--force", "--grace-period=0")
    await home.node.boot()
    await until(lambda: admitted(home), 300)
    seconds = time.monotonic() - began
    print(f"\nthe master in {masters}: from the API server's start to an admission {seconds:.1f} s")
    answer = await one_more(home)
    assert answer.status == 403 and f"exceeded quota: {QUOTA}, requested: pods=1" in answer.message, answer
    for each, name in ((NAMESPACE, "seed"), (masters, "master")):
        await home.rolled_out(f"seedquota-{name}", into=each)
    await home.enforced(QUOTA)


async def cut(started: Site) -> None:
    """Everything at once."""
    (home,) = started.clusters
    plane, server = started.plane, home.server
    parts = (server, plane.etcd, plane.manager_of(server.name))
    await asyncio.gather(*(part.kill() for part in parts), home.node.kill())


async def boot(started: Site) -> float:
    """All but the node. Returns when the API server was there."""
    (home,) = started.clusters
    await started.plane.etcd.start()
    await home.server.start()
    began = time.monotonic()
    await started.plane.manager_of(home.server.name).start()
    return began


async def limit(home: Cluster, most: int) -> None:
    await home.apply(named("ResourceQuota", QUOTA, subject=EVERYTHING, quota={"pods": str(most)}))
    await home.enforced(QUOTA)


async def pods(home: Cluster) -> int:
    return len((await home.get(f"/api/v1/namespaces/{SHOP}/pods"))["items"])


async def admitted(home: Cluster) -> None:
    answer = await one_more(home)
    assert answer.status == 201, answer


async def one_more(home: Cluster) -> Answer:
    body = {"metadata": {"name": f"web-{next(_numbers)}"}, "spec": POD}
    async with home.server.session() as session, session.post(f"/api/v1/namespaces/{SHOP}/pods", json=body) as answer:
        return Answer(answer.status, str((await answer.json()).get("message", "")))
