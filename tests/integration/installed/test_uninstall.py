"""`seedquota uninstall seed` beside real agents: webhooks go from the seed and its user clusters, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cli.__main__ import run as seedquota
from devcluster.install import SEED_USER
from tests.integration.installed.site import CLUSTERS, QUOTA, Site, cpus, until
from tests.integration.installed.test_programs import keep_first, leader

pytestmark = pytest.mark.integration

HOOKS = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
OURS = {"labelSelector": "app.kubernetes.io/managed-by=seedquota"}


async def webhooks(site: Site, *clusters: str) -> list[str]:
    found = []
    for cluster in clusters:
        for kind in KINDS:
            answer = await site.call(cluster, "GET", f"{HOOKS}/{kind}", **OURS)
            found += [f"{cluster}/{each['metadata']['name']}" for each in answer.body["items"]]
    return found


async def uninstall(site: Site, directory: Path, *arguments: str) -> int:
    kubeconfig = directory / "seed-1.kubeconfig"
    kubeconfig.write_text(site.server("seed-1").kubeconfig(SEED_USER))  # the agents' own rights are enough
    return await asyncio.to_thread(seedquota, ["uninstall", "seed", "--kubeconfig", str(kubeconfig), *arguments])


@pytest_asyncio.fixture
async def site(site: Site, tmp_path: Path) -> AsyncIterator[Site]:
    yield site
    await site.start_all()
    assert await uninstall(site, tmp_path, "--undo") == 0  # others share the installation


async def put_back(site: Site) -> None:
    async def there() -> None:
        there_now = set(await webhooks(site, "seed-1", "user-1"))
        assert sorted(there_now - {"seed-1/seedquota-cluster-api"}) == [  # another file may have installed Cluster API
            "seed-1/seedquota-clusters",
            "user-1/seedquota-machines",
        ]

    await until(there, 30)


async def test_uninstall_removes_the_webhooks_of_one_seed_and_says_everywhere_that_nothing_is_enforced(
    site: Site, tmp_path: Path
) -> None:
    await site.quota(cpus(1))
    await put_back(site)
    others = await webhooks(site, "seed-2", "user-2")
    try:
        assert await uninstall(site, tmp_path) == 0
        assert await webhooks(site, "seed-1", "user-1") == []
        assert await webhooks(site, "seed-2", "user-2") == others
        await site.comes("seed-1", f"{CLUSTERS}/user-1", "Enforced", "False", "Uninstalled")
        await site.comes("seed-1", f"{CLUSTERS}/user-1", "Ready", "False", "Uninstalled")
        await site.comes("master", "seeds/seed-1", "WebhookServing", "False", "Uninstalled", "nothing is checked")
        await site.comes("master", f"resourcequotas/{QUOTA}", "Enforced", "False", "WebhookNotServing", "user-1")
        machines = await site.admitted("user-1", 2)
        await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "True")

        await site.start(site.program("seed-1-b"))
        stopped = await leader(site)
        await site.stop(site.program(stopped))

        async def succeeded() -> None:
            assert await leader(site) not in ("", stopped)

        await until(succeeded, 30)
        assert await uninstall(site, tmp_path) == 0, "the next leader keeps to it, and answers"
        assert await webhooks(site, "seed-1", "user-1") == []
        assert await uninstall(site, tmp_path, "--undo") == 0
        await put_back(site)
        for name in machines:
            await site.delete("user-1", f"/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines/{name}")
        await site.comes("seed-1", f"{CLUSTERS}/user-1", "Enforced", "True", seconds=90)
    finally:
        await keep_first(site)


async def test_agents_that_all_start_anew_enforce_again_after_an_uninstall(site: Site, tmp_path: Path) -> None:
    assert await uninstall(site, tmp_path) == 0
    await site.stop(site.program("seed-1"))
    assert await webhooks(site, "seed-1", "user-1") == []
    await site.start(site.program("seed-1"))
    await put_back(site)
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "Enforced", "True", seconds=90)


async def test_uninstall_names_the_user_cluster_that_it_cannot_reach(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await put_back(site)
    await site.kill(site.server("user-1"))
    try:

        async def names_it() -> None:
            """The leader answers in time: a busy one may not."""
            assert await uninstall(site, tmp_path, "--timeout=12s") == 1
            said = capsys.readouterr().err
            assert "webhooks may be left in alpha/user-1:" in said, said

        await until(names_it, 60)
    finally:
        await site.start(site.server("user-1"))

    async def gone() -> None:
        assert await webhooks(site, "seed-1", "user-1") == []

    await until(gone, 60)
    assert await uninstall(site, tmp_path, "--undo") == 0
    await put_back(site)
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "Enforced", "True", seconds=90)
