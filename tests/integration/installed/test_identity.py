"""Bad days of kubeconfigs: they lead to another cluster than before, or two of them to one."""

from __future__ import annotations

import pytest

from devcluster.install import SEED_USER
from tests.integration.installed.site import API, CLUSTERS, PROJECT, QUOTA, Json, Site, cpus, until
from tests.integration.installed.test_clusters import put_secret
from tests.integration.installed.test_lives import configurations, without_user_cluster

pytestmark = pytest.mark.integration

OTHER = "other"
PATH = f"{CLUSTERS}/user-1"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-machines"
ACCEPT = "seedquota.io/accept-cluster"


async def identity(site: Site, cluster: str) -> str:
    return str((await site.get(cluster, "/api/v1/namespaces/kube-system"))["metadata"]["uid"])


async def lead_to(site: Site, cluster: str, name: str = "user-1") -> None:
    await put_secret(site, "seed-1", name, PROJECT, {"kubeconfig": site.server(cluster).kubeconfig(SEED_USER)})


async def accept(site: Site, uid: str | None) -> None:
    await site.patch("seed-1", PATH, {"metadata": {"annotations": {ACCEPT: uid}}})


async def is_kept(site: Site, *uids: str) -> None:
    await site.comes("seed-1", PATH, "UsageCurrent", "False", "ClusterChanged", *uids)
    await site.comes("seed-1", PATH, "Enforced", "Unknown", "ClusterChanged")
    status = (await site.get("seed-1", PATH))["status"]
    assert (status["machines"], status["clusterUID"]) == (2, uids[0])
    await site.comes("master", f"resourcequotas/{QUOTA}", "UsageCurrent", "False", "SourceUnreachable", "alpha/user-1")
    assert (await site.ledger("seed-1"))["account"]["used"][f"{PROJECT}/user-1"]["cpu"] == "2"
    assert await configurations(site, OTHER) == set()


async def test_a_kubeconfig_that_leads_to_another_cluster_is_not_followed_until_that_is_accepted(site: Site) -> None:
    await site.installed.start_user_cluster(OTHER)
    site.add(site.server(OTHER))
    first, second = await identity(site, "user-1"), await identity(site, OTHER)
    agent = site.program("seed-1")
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    try:
        await lead_to(site, OTHER)
        await is_kept(site, first, second)
        epoch = (await site.ledger("seed-1"))["account"]["epoch"]
        await site.kill(agent)
        await site.start(agent)

        async def led() -> None:
            assert (await site.ledger("seed-1"))["account"]["epoch"] > epoch

        await until(led, 60)
        await is_kept(site, first, second)
        await site.admitted("user-2", 2)
        await site.refused("user-2")

        await accept(site, second)
        await site.comes("seed-1", PATH, "Ready", "True", seconds=60)
        await site.uses(cpus(2))  # user-2's
        assert (await site.get("seed-1", PATH))["status"]["clusterUID"] == second
        assert "seedquota-machines" in await configurations(site, OTHER)

        await lead_to(site, "user-1")
        await site.comes("seed-1", PATH, "UsageCurrent", "False", "ClusterChanged", second, first)
        await accept(site, first)
        await site.uses(cpus(4))
    finally:
        await lead_to(site, "user-1")
        await accept(site, first)
        await site.settled()
        await accept(site, None)
        await site.server(OTHER).kill()


def twin() -> Json:
    spec = {"project": PROJECT, "kubeconfigSecretRef": {"name": "twin"}}
    return {
        "apiVersion": API,
        "kind": "UserCluster",
        "metadata": {"name": "twin", "namespace": PROJECT},
        "spec": spec,
    }


async def test_of_two_user_clusters_with_one_cluster_the_earlier_is_followed_and_the_later_takes_over(
    site: Site,
) -> None:
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    before = (await site.get("user-1", CONFIGURATION))["metadata"]["uid"]

    async def is_there() -> None:
        """As it was made once: nobody has deleted it meanwhile."""
        assert (await site.get("user-1", CONFIGURATION))["metadata"]["uid"] == before

    try:
        for _ in range(2):
            version = (await site.get("user-1", CONFIGURATION))["metadata"]["resourceVersion"]
            await lead_to(site, "user-1", "twin")
            await site.apply("seed-1", twin())
            message = await site.comes("seed-1", f"{CLUSTERS}/twin", "UsageCurrent", "False", "DuplicateCluster")
            assert f"{PROJECT}/user-1" in message
            await site.admitted("user-1")
            await site.delete("seed-1", f"{CLUSTERS}/twin")
            assert (await site.get("user-1", CONFIGURATION))["metadata"]["resourceVersion"] == version
        await site.uses(cpus(4))
        await site.refused("user-1")

        await site.apply("seed-1", twin())
        await site.comes("seed-1", f"{CLUSTERS}/twin", "UsageCurrent", "False", "DuplicateCluster")
        async with without_user_cluster(site) as add:
            await site.comes("seed-1", f"{CLUSTERS}/twin", "Ready", "True")
            await site.uses(cpus(4))
            await is_there()
            await add()
            await site.comes("seed-1", PATH, "UsageCurrent", "False", "DuplicateCluster", f"{PROJECT}/twin")
            await site.delete("seed-1", f"{CLUSTERS}/twin")
            await site.comes("seed-1", PATH, "Ready", "True")
            await is_there()
            await site.uses(cpus(4))

            async def refused() -> None:
                await site.refused("user-1")

            await until(refused, 30)
    finally:
        await site.delete("seed-1", f"{CLUSTERS}/twin")
        await site.delete("seed-1", f"/api/v1/namespaces/{PROJECT}/secrets/twin")
