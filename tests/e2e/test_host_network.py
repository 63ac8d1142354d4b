"""Master and agents in a namespace each, with all that other people's clusters ask for; agents on the network of nodes.

So it is where the API server cannot reach addresses of pods, and where the platform chooses users of pods.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devcluster import isolation
from devcluster.manifests import MACHINE_CRDS, load
from devcluster.objects import named, namespace, project, quota
from tests.e2e.cluster import IMAGE, NAMESPACE, PATIENT, PLENTY, Cluster, Machines, chart, restricted, site, values
from tests.e2e.fitted import FITTED, UID

MASTERS, PROJECT, QUOTA = "quota-master", "alpha", "project-alpha"
MASTER = {**FITTED, "seeds": [{"name": "home", "inCluster": True}]}
SEED = {
    **FITTED,
    "seedName": "home",
    "hostNetwork": True,
    "dnsPolicy": "",
    "updateStrategy": {},
    "replicas": 1,  # two do not fit on one node: each needs the same ports
    "webhook__port": 19443,
    "healthPort": 18081,
    "ownMachines__namespaces": [PROJECT],
    "providers__enabled": ["fake"],
    **PATIENT,
}


@pytest_asyncio.fixture(scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with site(tmp_path_factory.mktemp("host")) as started:
        cluster = await started.cluster("home", isolation.FIRST)
        await cluster.apply(*load(MACHINE_CRDS), restricted(MASTERS), namespace(NAMESPACE), namespace(PROJECT))
        yield cluster


async def violations(home: Cluster) -> set[str]:
    """What `restricted` would refuse of the pods in the agents' namespace."""
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    path = f"/api/v1/namespaces/{NAMESPACE}?dryRun=All"
    async with home.server.session() as session, session.patch(path, json=label, headers=merge) as answer:
        assert answer.status == 200, await answer.text()
        said = [re.sub(r"^299 - \"|\"$", "", each) for each in answer.headers.getall("Warning", ())]
    of_pods = [found for each in said if (found := re.search(rf"{NAMESPACE}-seed-\S+: (.*)", each))]
    assert of_pods, said
    return {part for found in of_pods for part in found[1].split(", ")}


async def test_it_enforces(home: Cluster) -> None:
    await home.install("master", into=MASTERS, **MASTER)
    await home.install("seed", **SEED)
    (pod,) = (await home.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]
    assert pod["spec"]["hostNetwork"] is True and pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert pod["status"]["podIP"] == pod["status"]["hostIP"]
    assert await violations(home) == {"host namespaces", "hostPort"}, "what this network needs, and nothing else"
    masters = (await home.get(f"/api/v1/namespaces/{MASTERS}/pods"))["items"]
    assert {each["spec"]["securityContext"]["runAsUser"] for each in (pod, *masters)} == {UID}
    its_own = named("UserCluster", "home", project=PROJECT)
    await home.apply(project(PROJECT), {**its_own, "metadata": {"name": "home", "namespace": PROJECT}})
    await home.apply(quota(QUOTA, PROJECT, {"cpu": "1"}))
    await home.enforced(QUOTA)
    machines = Machines(home.server, PROJECT)
    await machines.admitted()
    assert "used: cpu=1, limited: cpu=1" in (await machines.refused()).message


async def test_helm_upgrade_of_the_master_under_load_keeps_no_request_waiting(home: Cluster) -> None:
    await home.apply(quota(QUOTA, PROJECT, {"cpu": PLENTY}))
    await home.enforced(QUOTA)
    changed = {**MASTER, "podAnnotations": {"example.com/scan": "on"}}
    async with Machines(home.server, PROJECT).under_load() as load:
        given = ("-n", MASTERS, "--wait", *values(**IMAGE, **changed))
        await home.helm("upgrade", "seedquota-master", chart("master"), *given)
        await home.rolled_out("seedquota-master", into=MASTERS)
    print(f"\nhelm upgrade of the master: {load.none_lost()}")
    assert load.repeated == 0


async def test_agents_are_replaced_and_removed(home: Cluster) -> None:
    await home.restart("seedquota-seed")
    await home.helm("uninstall", "seedquota-seed", "-n", NAMESPACE, "--wait")
    await home.helm("uninstall", "seedquota-master", "-n", MASTERS, "--wait")
    webhooks = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
    assert await home.kubectl("get", webhooks, "-o", "name") == ""
