"""One cluster that is the master and a seed, installed with Helm from the charts as they are, on a real node."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devcluster.install import CHARTS, named, namespace, project, quota
from tests.e2e.cluster import NAMESPACE, REPOSITORY, TAG, Answer, Cluster, cluster, restricted, until, values

PROJECT = "alpha"
QUOTA = "project-alpha"
PLENTY = "100000"
IMAGE = {"image__repository": REPOSITORY, "image__tag": TAG}
SEED = {
    **IMAGE,
    "seedName": "home",
    "ownMachines__namespaces": [PROJECT],
    "providers__enabled": ["fake"],
    "inFlightWindow": "12s",
}


@pytest_asyncio.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path_factory.mktemp("one")) as started:
        yield started


@pytest_asyncio.fixture(autouse=True)
async def explained(site: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(await site.diagnosis())


def chart(name: str) -> str:
    return str(CHARTS / f"seedquota-{name}")


async def limit(site: Cluster, cpu: str) -> None:
    await site.apply(quota(QUOTA, PROJECT, {"cpu": cpu}))

    async def enforced() -> None:
        found = await site.get(f"/apis/seedquota.io/v1alpha1/resourcequotas/{QUOTA}")
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
        assert conditions.get("Enforced", {}).get("status") == "True", conditions
        assert conditions["Enforced"].get("observedGeneration") == found["metadata"]["generation"]

    await until(enforced, 60)


async def admitted(site: Cluster) -> None:
    answer = await site.create_machine(PROJECT)
    assert answer.status == 201, answer


async def refused(site: Cluster, *, dry_run: bool = False) -> Answer:
    answer = await site.create_machine(PROJECT, dry_run=dry_run)
    assert answer.status == 403 and "exceeded quota" in answer.message, answer
    return answer


async def test_from_helm_install_to_the_first_refused_machine(
    site: Cluster,
) -> None:
    await site.apply(restricted(NAMESPACE), namespace(PROJECT))
    started = time.monotonic()
    await site.helm("install", "seedquota-master", chart("master"), "-n", NAMESPACE, *values(**IMAGE))
    await site.helm("install", "seedquota-seed", chart("seed"), "-n", NAMESPACE, *values(**SEED))
    cluster_of_its_own = named("UserCluster", "home", project=PROJECT)
    cluster_of_its_own = {**cluster_of_its_own, "metadata": {"name": "home", "namespace": PROJECT}}
    await site.apply(named("Seed", "home", inCluster=True), project(PROJECT), cluster_of_its_own)
    await site.apply(quota(QUOTA, PROJECT, {"cpu": "0"}))
    await until(lambda: refused(site, dry_run=True), 120)  # what is admitted before that is not to count
    await refused(site)
    print(f"\nhelm install to the first refused Machine: {time.monotonic() - started:.1f} s")


async def test_a_machine_is_admitted_and_one_refused_through_the_service(site: Cluster) -> None:
    await limit(site, "1")
    await until(lambda: admitted(site), 30)
    assert "used: cpu=1, limited: cpu=1" in (await refused(site)).message
    webhooks = await site.kubectl("get", "validatingwebhookconfigurations", "-o", "jsonpath={..clientConfig}")
    assert '"service":{"name":"seedquota-seed","namespace":"seedquota"' in webhooks.replace(" ", "")


async def test_the_pods_are_restricted_and_nothing_restarted(site: Cluster) -> None:
    for deployment in ("seedquota-master", "seedquota-seed"):
        await site.rolled_out(deployment)
    pods = await site.get(f"/api/v1/namespaces/{NAMESPACE}/pods")
    assert len(pods["items"]) == 4, [pod["metadata"]["name"] for pod in pods["items"]]
    for pod in pods["items"]:
        (container,), (status,) = pod["spec"]["containers"], pod["status"]["containerStatuses"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert status["restartCount"] == 0 and status["ready"]


async def test_a_rolling_update_under_load_loses_no_request(site: Cluster) -> None:
    await limit(site, PLENTY)
    async with site.under_load(PROJECT) as load:
        await site.kubectl("-n", NAMESPACE, "rollout", "restart", "deployment/seedquota-seed")
        await site.rolled_out("seedquota-seed")
    assert load.lost == [] and len(load.answers) > 20, f"{len(load.lost)} of {len(load.answers)}: {load.lost[:3]}"
    print(f"\nrolling update: {len(load.answers)} requests, none lost")


async def test_helm_upgrade_and_rollback_under_load_lose_no_request(site: Cluster) -> None:
    async with site.under_load(PROJECT) as load:
        changed = values(**SEED, podAnnotations={"example.com/changed": "yes"})
        await site.helm("upgrade", "seedquota-seed", chart("seed"), "-n", NAMESPACE, "--wait", *changed)
        await site.helm("rollback", "seedquota-seed", "1", "-n", NAMESPACE, "--wait")
        await site.rolled_out("seedquota-seed")
    assert load.lost == [] and len(load.answers) > 20, f"{len(load.lost)} of {len(load.answers)}: {load.lost[:3]}"
    print(f"\nhelm upgrade and rollback: {len(load.answers)} requests, none lost")


async def test_helm_uninstall_in_the_documented_order_leaves_no_webhook_and_keeps_quotas(site: Cluster) -> None:
    await site.kubectl("delete", "userclusters", "-A", "--all")

    async def not_asked() -> None:
        found = await site.kubectl("get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-o", "name")
        assert "seedquota-machines" not in found

    await until(not_asked, 30)
    await site.helm("uninstall", "seedquota-seed", "-n", NAMESPACE, "--wait")
    await site.helm("uninstall", "seedquota-master", "-n", NAMESPACE, "--wait")
    await site.kubectl(
        "delete",
        "validatingwebhookconfigurations,mutatingwebhookconfigurations",
        "--selector=app.kubernetes.io/managed-by=seedquota",
    )
    found = await site.kubectl("get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-o", "name")
    assert found == ""
    await admitted(site)
    assert QUOTA in await site.kubectl("get", "resourcequotas.seedquota.io", "-o", "name")
    left = await site.kubectl("-n", NAMESPACE, "get", "deployments,services,serviceaccounts", "-o", "name")
    assert "seedquota" not in left
