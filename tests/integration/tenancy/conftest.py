from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from devcluster.install import Installation
from devcluster.objects import named
from tests.integration.installed.site import WINDOW, Site, until

SEEDS = ("seed-1", "seed-2")
USER_CLUSTERS = {
    "user-1": ("seed-1", "namespaces/alpha/userclusters/user-1"),
    "user-2": ("seed-2", "namespaces/alpha/userclusters/user-2"),
    "user-3": ("seed-2", "namespaces/beta/userclusters/user-3"),
}


@pytest_asyncio.fixture(scope="package")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """One for all that is here. seed-1 is the master's own cluster, so Allocations are counted. No agent is killed
    here, so their leases last as long as by default: on a busy machine they are lost less often.

    Machines of user-1 and user-2 are of project alpha in organization solo, those of user-3 of project beta in
    organization acme. The namespaces of all three are of the projects that their labels name.
    """
    async with Installation(
        tmp_path_factory.mktemp("tenancy"),
        in_flight_window=WINDOW,
        in_cluster=True,
        api=True,
        seed_flags={seed: ["--lease-duration=15s"] for seed in SEEDS},
        # From the beginning: after a change of namespaceProjects, half a minute passes before quotas are in force.
        user_cluster_spec={"namespaceQuotas": "Enabled", "namespaceProjects": "FromLabel"},
    ) as installed:
        site = Site(installed)
        await site.apply(
            "master",
            *(named("Organization", name) for name in ("solo", "acme", "elsewhere")),
            named("Project", "alpha", organization="solo"),
            named("Project", "beta", organization="acme"),
            named("Project", "gamma", organization="elsewhere"),
        )
        await installed.add_user_cluster("user-3", "seed-2", "beta")
        site.add(installed.cluster("user-3"))
        yield site
        await site.left_nothing()
        await site.close()


async def make_namespace(site: Site, cluster: str, name: str, labels: Mapping[str, str]) -> None:
    body = {"metadata": {"name": name, "labels": dict(labels)}}
    assert (await site.call(cluster, "POST", "/api/v1/namespaces", body)).status == 201
    account = {"metadata": {"name": "default"}}
    answer = await site.call(cluster, "POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
    assert answer.status == 201, answer


async def leave_namespace(site: Site, cluster: str, name: str, labels: Mapping[str, str]) -> None:
    """It stays, of nobody and empty: nobody finalizes it here."""
    path = f"/api/v1/namespaces/{name}"

    async def left() -> None:  # an API server may cut off what takes it too long
        await site.delete(cluster, f"{path}/pods?gracePeriodSeconds=0")
        answer = await site.call(cluster, "PATCH", path, {"metadata": {"labels": dict.fromkeys(labels)}})
        assert answer.status in (200, 404), answer

    await until(left, 60)
