"""One cluster that is the master and a seed, installed with Helm from the charts as they are, on a real node."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devcluster import images, isolation
from devcluster.manifests import MACHINE_CRDS, Manifest, load
from devcluster.node import SANDBOX_IMAGE
from devcluster.objects import named, namespace, project, quota
from tests import last_release
from tests.e2e.cluster import (
    IMAGE,
    NAMESPACE,
    PATIENT,
    PLENTY,
    REPOSITORY,
    TAG,
    Answer,
    Cluster,
    Machines,
    chart,
    restricted,
    site,
    until,
    values,
)
from tests.e2e.fitted import FITTED, UID

PROJECT = "alpha"
QUOTA = "project-alpha"
LAST_TAG = "last-release"
SHOP, PODS_QUOTA, MOST_PODS = "shop", "owner-ann", 3
ANN = {"owner": "ann"}
SEED = {
    "seedName": "home",
    "ownMachines__namespaces": [PROJECT],
    "providers__enabled": ["fake"],
    "namespaceQuotas__enabled": True,
    **PATIENT,
}
MASTER = {**FITTED, "seeds": [{"name": "home", "inCluster": True}]}
POD = {"containers": [{"name": "waits", "image": SANDBOX_IMAGE}], "terminationGracePeriodSeconds": 0}


@pytest_asyncio.fixture(scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with site(tmp_path_factory.mktemp("one")) as started:
        cluster = await started.cluster("home", isolation.FIRST)
        await cluster.apply(*load(MACHINE_CRDS))
        yield cluster


@pytest.fixture(scope="module")
def before() -> set[str]:
    """All objects that were there before the installation."""
    return set()


@pytest.fixture
def machines(home: Cluster) -> Machines:
    return Machines(home.server, PROJECT)


async def limit(home: Cluster, cpu: str) -> None:
    await home.apply(quota(QUOTA, PROJECT, {"cpu": cpu}))
    await home.enforced(QUOTA)


async def test_from_helm_install_to_the_first_refused_machine(
    home: Cluster, machines: Machines, before: set[str]
) -> None:
    before.update(await home.everything())
    await home.apply(restricted(NAMESPACE), namespace(PROJECT))
    started = time.monotonic()
    await home.install("master", **MASTER)
    await home.install("seed", **SEED, **FITTED, webhook__port=10443)
    assert "/seedquota-clusters" in await home.kubectl("get", "validatingwebhookconfigurations", "-o", "name"), (
        "Helm has waited until the webhook answered"
    )
    cluster_of_its_own = named("UserCluster", "home", project=PROJECT)
    cluster_of_its_own = {**cluster_of_its_own, "metadata": {"name": "home", "namespace": PROJECT}}
    await home.kubectl("patch", "sqseed/home", "--type=merge", "-p", '{"spec": {"namespaceQuotas": "Enabled"}}')
    await home.apply(project(PROJECT), cluster_of_its_own)
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
        assert pod["spec"]["securityContext"]["runAsUser"] == UID
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert status["restartCount"] == 0 and status["ready"]
        assert pod["metadata"]["labels"]["example.com/team"] == "quotas"
        assert pod["spec"]["priorityClassName"] == "system-node-critical" and pod["spec"]["dnsPolicy"] == "Default"
    found = await home.kubectl("-n", NAMESPACE, "get", "configmaps", "-o", "name")
    assert "seedquota-master-extra" in found and "seedquota-seed-extra" in found


async def test_a_deployment_stops_exactly_at_a_quota_of_namespaces(home: Cluster) -> None:
    subject = {"kind": "namespaces", "selector": {"matchLabels": ANN}}
    limits = {"pods": str(MOST_PODS)}
    shop = namespace(SHOP)
    await home.apply({**shop, "metadata": {"name": SHOP, "labels": ANN}})
    await home.apply(named("ResourceQuota", PODS_QUOTA, subject=subject, quota=limits))
    await home.enforced(PODS_QUOTA)
    await home.apply(deployment("web", SHOP, MOST_PODS + 2), deployment("free", PROJECT, MOST_PODS + 2))
    words = "exceeded quota: owner-ann, requested: pods=1, used: pods=3, limited: pods=3"

    async def stopped() -> None:
        status = (await home.get(f"/apis/apps/v1/namespaces/{SHOP}/deployments/web"))["status"]
        failures = [each["message"] for each in status.get("conditions", ()) if each["type"] == "ReplicaFailure"]
        assert status.get("availableReplicas") == MOST_PODS and words in "".join(failures), status

    async def not_limited() -> None:
        status = (await home.get(f"/apis/apps/v1/namespaces/{PROJECT}/deployments/free"))["status"]
        assert status.get("availableReplicas") == MOST_PODS + 2, status

    await until(stopped, 120)
    await until(not_limited, 120)
    assert len((await home.get(f"/api/v1/namespaces/{SHOP}/pods"))["items"]) == MOST_PODS
    answer = await one_more_pod(home)
    assert answer.status == 403 and words in answer.message, answer
    await home.kubectl("-n", PROJECT, "delete", "deployment", "free")
    shown = await home.kubectl("-n", SHOP, "get", "lsq", "--no-headers")
    assert PODS_QUOTA in shown and "pods 3/3" in shown, shown
    started = time.monotonic()
    await home.apply(named("ResourceQuota", PODS_QUOTA, subject=subject, quota={"pods": str(MOST_PODS + 2)}))

    async def grown() -> None:
        assert len((await home.get(f"/api/v1/namespaces/{SHOP}/pods"))["items"]) == MOST_PODS + 2

    await until(grown, 120)
    print(f"\nthe Deployment grew {time.monotonic() - started:.1f} s after the limit was raised")
    (replica_set,) = (await home.get(f"/apis/apps/v1/namespaces/{SHOP}/replicasets"))["items"]
    assert "seedquota.io/capacity-freed" in replica_set["metadata"]["annotations"]


def deployment(name: str, in_namespace: str, replicas: int) -> Manifest:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": POD}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": in_namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


async def one_more_pod(home: Cluster) -> Answer:
    body = {"metadata": {"name": "one-more"}, "spec": POD}
    path = f"/api/v1/namespaces/{SHOP}/pods?dryRun=All"
    async with home.server.session() as session, session.post(path, json=body) as answer:
        return Answer(answer.status, str((await answer.json()).get("message", "")))


async def test_a_rolling_update_under_load_loses_no_request(home: Cluster, machines: Machines) -> None:
    await limit(home, PLENTY)
    async with machines.under_load() as load:
        await home.restart("seedquota-seed")
    print(f"\nrolling update: {load.none_lost()}")


async def test_a_rolling_update_of_the_master_under_load_keeps_no_request_waiting(
    home: Cluster, machines: Machines
) -> None:
    await limit(home, PLENTY)
    async with machines.under_load() as load:
        await home.restart("seedquota-master")
    print(f"\nrolling update of the master: {load.none_lost()}")
    assert load.repeated == 0


@pytest_asyncio.fixture(scope="module")
async def last(home: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the last release's source is; the node has its image."""
    if why := last_release.missing():
        pytest.skip(why)
    source = tmp_path_factory.mktemp("last") / "source"
    last_release.unpack(source)
    image = source.with_suffix(".tar")
    await asyncio.to_thread(images.product, image, f"{REPOSITORY}:{LAST_TAG}", source)
    await home.node.load(image)
    return source


async def test_helm_upgrade_and_rollback_under_load_lose_no_request(
    home: Cluster, machines: Machines, last: Path
) -> None:
    """Back to the last release's charts and images, and to these again, in the order of docs/how-to/upgrade.md: the
    master's release has the definitions."""

    async def images_of(deployment: str) -> set[str]:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployment}"
        return {each["image"] for each in (await home.get(path))["spec"]["template"]["spec"]["containers"]}

    async def upgraded(name: str, source: str, *given: str) -> None:
        async with machines.under_load() as load:
            await home.helm("upgrade", name, source, "-n", NAMESPACE, "--wait", "--timeout=10m", *given)
            await home.rolled_out(name)
        print(f"\nhelm upgrade of {name} to {', '.join(await images_of(name))}: {load.none_lost()}")

    older = {name: str(last / "charts" / name) for name in ("seedquota-seed", "seedquota-master")}
    image = {"image__repository": REPOSITORY, "image__tag": LAST_TAG}
    await upgraded("seedquota-seed", older["seedquota-seed"], *values(**image, **SEED))
    await upgraded("seedquota-master", older["seedquota-master"], *values(**image))
    assert await images_of("seedquota-master") == await images_of("seedquota-seed") == {f"{REPOSITORY}:{LAST_TAG}"}
    await upgraded("seedquota-master", chart("master"), *values(**IMAGE, **MASTER))
    async with machines.under_load() as load:
        await home.helm("rollback", "seedquota-seed", "1", "-n", NAMESPACE, "--wait", "--timeout=10m")
        await home.rolled_out("seedquota-seed")
    print(f"\nhelm rollback of seedquota-seed to this release: {load.none_lost()}")
    assert await images_of("seedquota-master") == await images_of("seedquota-seed") == {f"{REPOSITORY}:{TAG}"}
    await home.enforced(QUOTA)


async def test_helm_uninstall_leaves_no_webhook_and_keeps_quotas(
    home: Cluster, machines: Machines, before: set[str]
) -> None:
    webhooks = ("get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-o", "name")
    found = await home.kubectl(*webhooks)
    assert "/seedquota-machines" in found and "/seedquota-namespaces" in found
    await home.helm("uninstall", "seedquota-seed", "-n", NAMESPACE, "--wait")
    assert await home.kubectl(*webhooks) == ""
    await home.helm("uninstall", "seedquota-master", "-n", NAMESPACE, "--wait")
    assert await home.kubectl(*webhooks) == ""
    await machines.admitted()
    assert (await one_more_pod(home)).status == 201
    found = await home.kubectl("get", "resourcequotas.seedquota.io", "-o", "name")
    assert QUOTA in found and PODS_QUOTA in found
    await until(lambda: nothing_else_is_left(home, before), 60)  # pods take a moment


async def nothing_else_is_left(home: Cluster, before: set[str]) -> None:
    """What docs/how-to/uninstall.md names, what the tests made, and the Leases of nodes."""
    made = f" ({PROJECT}|{SHOP}|kube-node-lease) | Namespace <none> ({NAMESPACE}|{PROJECT}|{SHOP})$"
    definitions = (
        r"[.]io CustomResourceDefinition <none> .*[.]seedquota[.]io$|APIService <none> v1alpha1[.]seedquota[.]io$"
    )
    left = {
        each for each in await home.everything() - before if not re.search(f"{made}|{definitions}|^seedquota.io ", each)
    }
    assert {re.sub("(replica-).*", r"\1", each) for each in left} == {
        f"v1 ServiceAccount {NAMESPACE} default",
        f"v1 ConfigMap {NAMESPACE} kube-root-ca.crt",
        f"v1 Secret {NAMESPACE} seedquota-webhook-key",
        f"v1 Secret {NAMESPACE} seedquota-webhook-tls",
        f"coordination.k8s.io Lease {NAMESPACE} seedquota-master",
        f"coordination.k8s.io Lease {NAMESPACE} seedquota-seed",
        f"coordination.k8s.io Lease {NAMESPACE} seedquota-seed-replica-",
    }
