"""What tenants see of their quotas in their own clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.integration.installed.site import CLUSTERS, GROUP_PATH, QUOTA, Json, Site, cpus, named, until

pytestmark = pytest.mark.integration

ONE, TWO = "user-1", "user-2"
COPIES = f"{GROUP_PATH}/namespaces/kube-system/localresourcequotas"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/seedquota-user-cluster"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/localresourcequotas.seedquota.io"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
SEE = "; see: kubectl get lsq -n kube-system; decision "
WRITTEN = "LocalQuotasWritten"


async def shows(site: Site, cluster: str, used: Mapping[str, str], here: Mapping[str, str], name: str = QUOTA) -> Json:
    """Waits until it does. The object."""

    async def holds() -> Json:
        found = await site.get(cluster, f"{COPIES}/{name}")
        status = found["status"]
        assert (status["total"]["used"], status["here"]["used"]) == (used, here), status
        assert "currentTime" in status and "stale" not in status, status
        return found

    return await until(holds, 60)


async def gone(site: Site, cluster: str) -> None:
    async def holds() -> None:
        assert await site.items(cluster, COPIES) == []

    await until(holds, 30)


async def test_a_tenant_sees_the_totals_what_is_used_here_and_nothing_of_others(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted(ONE, 2)
    await site.admitted(TWO, 1)
    found = await shows(site, ONE, cpus(3), cpus(2))
    assert found["status"]["total"]["hard"] == cpus(4)
    await shows(site, TWO, cpus(3), cpus(1))
    answer = await site.call(ONE, "GET", COPIES, headers=TABLE)
    columns = [column["name"] for column in answer.body["columnDefinitions"] if not column["priority"]]
    assert columns == ["Name", "Usage", "Here", "Current"]
    (row,) = answer.body["rows"]
    assert row["cells"][:3] == [QUOTA, "cpu 3/4", "cpu 2"]
    assert row["cells"][3].endswith(("s", "m")), "an age"
    for other in (TWO, "seed-", "master-"):
        assert other not in str(found["status"]), found

    await site.admitted(TWO, 1)
    refused = await site.refused(ONE)
    assert SEE in refused.message
    await site.comes("seed-1", f"{CLUSTERS}/{ONE}", WRITTEN, "True", "Written")

    await site.delete("master", f"resourcequotas/{QUOTA}")
    for cluster in (ONE, TWO):
        await gone(site, cluster)


async def test_a_project_sees_the_totals_of_its_organization(site: Site) -> None:
    await site.apply("master", named("Organization", "acme"))
    await site.project(organization="acme")
    try:
        await site.quota(cpus(3), "org-acme", kind="organization", subject="acme")
        await site.admitted(TWO, 2)
        await shows(site, ONE, cpus(2), cpus(0), "org-acme")
    finally:
        await site.delete("master", "resourcequotas/org-acme")
        await site.project()
        await site.delete("master", "organizations/acme")


async def test_what_a_tenant_changes_or_deletes_is_restored_with_the_next_change(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted(ONE)
    await shows(site, ONE, cpus(1), cpus(1))
    lie = {"total": {"hard": cpus(99), "used": cpus(0)}, "stale": "never", "currentTime": "2026-11-20T10:00:03Z"}
    await site.patch(ONE, f"{COPIES}/{QUOTA}", {"status": lie, "metadata": {"labels": None}})
    await site.admitted(ONE)
    found = await shows(site, ONE, cpus(2), cpus(2))
    assert found["status"]["total"]["hard"] == cpus(4)
    await site.delete(ONE, f"{COPIES}/{QUOTA}")
    await site.admitted(TWO)
    await shows(site, ONE, cpus(3), cpus(2))
    await site.delete(ONE, DEFINITION)
    await site.admitted(ONE)
    await shows(site, ONE, cpus(4), cpus(3))
    await site.refused(ONE)


@asynccontextmanager
async def without_rights(site: Site) -> AsyncIterator[None]:
    rules = (await site.get(ONE, ROLE))["rules"]
    kept = [rule for rule in rules if "localresourcequotas" not in rule["resources"]]
    assert len(kept) < len(rules)
    await site.patch(ONE, ROLE, {"rules": kept})
    try:
        yield
    finally:
        await site.patch(ONE, ROLE, {"rules": rules})


async def test_where_they_cannot_be_written_machines_are_admitted_and_counted_all_the_same(site: Site) -> None:
    await site.quota(cpus(2))
    async with without_rights(site):
        await site.admitted(ONE)
        await site.comes("seed-1", f"{CLUSTERS}/{ONE}", WRITTEN, "False", "NotWritten", "charts/rbac/user-cluster.yaml")
        await site.comes("seed-1", f"{CLUSTERS}/{ONE}", "Ready", "True")
        await site.admitted(ONE)
        await site.uses(cpus(2))

        async def does_not_name_them() -> None:
            """The condition has to come to the replica that answers."""
            assert SEE not in (await site.refused(ONE)).message

        await until(does_not_name_them, 30)
        await shows(site, TWO, cpus(2), cpus(0))
    await site.comes("seed-1", f"{CLUSTERS}/{ONE}", WRITTEN, "True", seconds=90)


async def test_while_another_seed_is_out_of_reach_it_says_that_the_totals_may_be_old(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted(ONE)
    await site.admitted(TWO)
    before = await shows(site, ONE, cpus(2), cpus(1))
    await site.kill(site.server("seed-2"))

    async def says_so() -> None:
        status = (await site.get(ONE, f"{COPIES}/{QUOTA}"))["status"]
        assert "was not reported lately" in status.get("stale", ""), status
        assert status["total"]["used"] == cpus(2)

    await until(says_so, 60)
    at = (await site.get(ONE, f"{COPIES}/{QUOTA}"))["status"]["currentTime"]
    assert at >= before["status"]["currentTime"]
    await site.start(site.server("seed-2"))
    await shows(site, ONE, cpus(2), cpus(1))


async def test_switched_off_there_are_none_and_nothing_names_them(site: Site) -> None:
    await site.quota(cpus(1))
    await site.admitted(ONE)
    await shows(site, ONE, cpus(1), cpus(1))
    agent = site.program("seed-1")
    agent._command.append("--local-copies=off")
    try:
        await agent.stop()
        await agent.start()
        await gone(site, ONE)
        await site.settled()
        await site.comes("seed-1", f"{CLUSTERS}/{ONE}", WRITTEN, "")
        assert SEE not in (await site.refused(ONE)).message
    finally:
        agent._command.remove("--local-copies=off")
        await agent.stop()
        await agent.start()
    await shows(site, ONE, cpus(1), cpus(1))
