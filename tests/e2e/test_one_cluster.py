"""One cluster that is the master and a seed, installed with Helm from the charts as they are, on a real node."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devcluster import isolation
from devcluster.manifests import MACHINE_CRDS, load
from devcluster.objects import named, namespace, project, quota
from tests.e2e.cluster import (
    IMAGE,
    NAMESPACE,
    PATIENT,
    PLENTY,
    Cluster,
    Machines,
    chart,
    restricted,
    site,
    until,
    values,
)

PROJECT = "alpha"
QUOTA = "project-alpha"
SEED = {
    "seedName": "home",
    "ownMachines__namespaces": [PROJECT],
    "providers__enabled": ["fake"],
    **PATIENT,
}


@pytest_asyncio.fixture(scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with site(tmp_path_factory.mktemp("one")) as started:
        cluster = await started.cluster("home", isolation.FIRST)
        await cluster.apply(*load(MACHINE_CRDS))
        yield cluster


@pytest.fixture
def machines(home: Cluster) -> Machines:
    return Machines(home.server, PROJECT)


@pytest_asyncio.fixture(autouse=True)
async def explained(home: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(await home.diagnosis())


async def limit(home: Cluster, cpu: str) -> None:
    await home.apply(quota(QUOTA, PROJECT, {"cpu": cpu}))
    await home.enforced(QUOTA)


async def test_from_helm_install_to_the_first_refused_machine(home: Cluster, machines: Machines) -> None:
    await home.apply(restricted(NAMESPACE), namespace(PROJECT))
    started = time.monotonic()
    await home.install("master")
    await home.install("seed", **SEED)
    cluster_of_its_own = named("UserCluster", "home", project=PROJECT)
    cluster_of_its_own = {**cluster_of_its_own, "metadata": {"name": "home", "namespace": PROJECT}}
    await home.apply(named("Seed", "home", inCluster=True), project(PROJECT), cluster_of_its_own)
    await home.apply(quota(QUOTA, PROJECT, {"cpu": "0"}))
    await until(lambda: machines.refused(dry_run=True), 120)  # what is admitted before that is not to count
    await machines.refused()
    print(f"\nhelm install to the first refused Machine: {time.monotonic() - started:.1f} s")


async def test_a_machine_is_admitted_and_one_refused_through_the_service(home: Cluster, machines: Machines) -> None:
    await limit(home, "1")
    await until(machines.admitted, 120)
    assert "used: cpu=1, limited: cpu=1" in (await machines.refused()).message
    webhooks = await home.kubectl("get", "validatingwebhookconfigurations", "-o", "jsonpath={..clientConfig}")
    assert '"service":{"name":"seedquota-seed","namespace":"seedquota"' in webhooks.replace(" ", "")


async def test_the_pods_are_restricted_and_nothing_restarted(home: Cluster) -> None:
    for deployment in ("seedquota-master", "seedquota-seed"):
        await home.rolled_out(deployment)
    pods = await home.get(f"/api/v1/namespaces/{NAMESPACE}/pods")
    assert len(pods["items"]) == 4, [pod["metadata"]["name"] for pod in pods["items"]]
    for pod in pods["items"]:
        (container,), (status,) = pod["spec"]["containers"], pod["status"]["containerStatuses"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert status["restartCount"] == 0 and status["ready"]


async def test_a_rolling_update_under_load_loses_no_request(home: Cluster, machines: Machines) -> None:
    await limit(home, PLENTY)
    async with machines.under_load() as load:
        await home.restart("seedquota-seed")
    print(f"\nrolling update: {load.none_lost()}")


async def test_helm_upgrade_and_rollback_under_load_lose_no_request(home: Cluster, machines: Machines) -> None:
    async with machines.under_load() as load:
        changed = values(**IMAGE, **SEED, podAnnotations={"example.com/changed": "yes"})
        await home.helm("upgrade", "seedquota-seed", chart("seed"), "-n", NAMESPACE, "--wait", *changed)
        await home.helm("rollback", "seedquota-seed", "1", "-n", NAMESPACE, "--wait")
        await home.rolled_out("seedquota-seed")
    print(f"\nhelm upgrade and rollback: {load.none_lost()}")


async def test_helm_uninstall_in_the_documented_order_leaves_no_webhook_and_keeps_quotas(
    home: Cluster, machines: Machines
) -> None:
    await home.kubectl("delete", "userclusters", "-A", "--all")

    async def not_asked() -> None:
        found = await home.kubectl("get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-o", "name")
        assert "seedquota-machines" not in found

    await until(not_asked, 120)
    await home.helm("uninstall", "seedquota-seed", "-n", NAMESPACE, "--wait")
    await home.helm("uninstall", "seedquota-master", "-n", NAMESPACE, "--wait")
    await home.kubectl(
        "delete",
        "validatingwebhookconfigurations,mutatingwebhookconfigurations",
        "--selector=app.kubernetes.io/managed-by=seedquota",
    )
    found = await home.kubectl("get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-o", "name")
    assert found == ""
    await machines.admitted()
    assert QUOTA in await home.kubectl("get", "resourcequotas.seedquota.io", "-o", "name")
    left = await home.kubectl("-n", NAMESPACE, "get", "deployments,services,serviceaccounts", "-o", "name")
    assert "seedquota" not in left
