"""The master on one cluster, a seed on another, each with a node; a user cluster reaches the webhook by URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from devcluster import isolation
from devcluster.install import MASTER_USER, SEED_USER
from devcluster.manifests import MACHINE_CRDS, apply, load
from devcluster.objects import named, namespace, project, quota, rights, secret
from tests.e2e.cluster import NAMESPACE, PATIENT, PLENTY, Cluster, Machines, restricted, site, until

PROJECT = "alpha"
QUOTA = "project-alpha"
NODE_PORT = 30443


@dataclass
class Installed:
    master: Cluster
    seed: Cluster
    user: Machines

    async def explain(self) -> None:
        for cluster in (self.master, self.seed):
            await cluster.explain()


@pytest_asyncio.fixture(scope="module")
async def installed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installed]:
    async with site(tmp_path_factory.mktemp("two")) as started:
        master = await started.cluster("master", isolation.FIRST)
        seed = await started.cluster("eu-1", isolation.SECOND)
        await started.plane.start(["user"], machine=isolation.FIRST)
        user = started.plane.cluster("user")
        await apply(user, [*load(MACHINE_CRDS), *rights("user-cluster", SEED_USER)])
        await _install(master, seed, user.kubeconfig(SEED_USER))
        yield Installed(master, seed, Machines(user, "kube-system"))


async def _install(master: Cluster, seed: Cluster, user_cluster: str) -> None:
    await master.apply(restricted(NAMESPACE))
    await seed.apply(restricted(NAMESPACE), namespace(PROJECT))
    await master.install("master")
    await seed.install(
        "seed",
        seedName="eu-1",
        userClusters__namespaces=[PROJECT],
        providers__enabled=["fake"],
        **PATIENT,
        webhook__externalURL=f"https://{isolation.SECOND.address}:{NODE_PORT}",
        webhook__service={"type": "NodePort", "nodePort": NODE_PORT, "port": 8443},
        master__subjects=[{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": MASTER_USER}],
    )
    await master.apply(
        secret("eu-1", NAMESPACE, seed.server.kubeconfig(MASTER_USER)),
        named("Seed", "eu-1", kubeconfigSecretRef={"name": "eu-1"}),
        project(PROJECT),
    )
    source = named("UserCluster", "user", project=PROJECT, kubeconfigSecretRef={"name": "user"})
    await seed.apply(
        secret("user", PROJECT, user_cluster), {**source, "metadata": {"name": "user", "namespace": PROJECT}}
    )


async def test_a_machine_is_admitted_and_one_refused_in_a_user_cluster(installed: Installed) -> None:
    await installed.master.apply(quota(QUOTA, PROJECT, {"cpu": "1"}))
    await installed.master.enforced(QUOTA)
    await until(installed.user.admitted, 120)
    assert "used: cpu=1, limited: cpu=1" in (await installed.user.refused()).message


async def test_a_rolling_update_of_both_programs_under_load_loses_no_request(installed: Installed) -> None:
    await installed.master.apply(quota(QUOTA, PROJECT, {"cpu": PLENTY}))
    await installed.master.enforced(QUOTA)
    async with installed.user.under_load() as load:
        for cluster, name in ((installed.seed, "seedquota-seed"), (installed.master, "seedquota-master")):
            await cluster.restart(name)
    print(f"\nrolling update of seed and master: {load.none_lost()}")
