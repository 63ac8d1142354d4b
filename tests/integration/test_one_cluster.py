"""One cluster is an installation: the master's own API server is a seed, beside another one."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from devcluster.install import MASTER_USER, NAMESPACE, Installation
from devcluster.manifests import ManifestError
from devcluster.objects import API, named
from tests.integration.installed.commands import Commands
from tests.integration.installed.site import (
    LEDGERS,
    MACHINES,
    QUOTA,
    WINDOW,
    Answer,
    Json,
    Site,
    cpus,
    quota_manifest,
    until,
)
from tests.running import running
from tests.unit.fake_api_server import within

pytestmark = pytest.mark.integration

SOON = 15.0  # seconds: what no event brings about is looked at again after half a minute, or never


@pytest_asyncio.fixture(scope="module")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """seed-1 is the master's own cluster, seed-2 another one; both have a user cluster."""
    directory = tmp_path_factory.mktemp("one-cluster")
    async with Installation(
        directory, in_flight_window=WINDOW, in_cluster=True, breakable=True, master_replicas=2, api=True
    ) as installed:
        site = Site(installed)
        await site.remember()
        yield site
        await site.left_nothing()
        await site.close()


@pytest_asyncio.fixture
async def site(installation: Site) -> AsyncIterator[Site]:
    async with installation.emptied() as site:
        yield site


async def ledgers(site: Site) -> list[str]:
    return sorted(found["metadata"]["name"] for found in await site.items("master", LEDGERS))


async def test_a_quota_is_its_own_copy_and_is_filled_exactly_from_both_seeds(site: Site) -> None:
    await site.quota(cpus(4))
    quota: Json = (await site.get("master", f"resourcequotas/{QUOTA}"))["metadata"]
    assert "seedquota.io/uid" not in quota.get("labels", {}), "nothing marks it as a copy"
    assert [found["metadata"]["name"] for found in await site.items("master", "resourcequotas")] == [QUOTA]
    assert await ledgers(site) == sorted([quota["uid"], f"master-{quota['uid']}"])
    async with site.no_overshoot(cpus(4)):
        answers = await asyncio.gather(*(site.asked(name) for name in ("user-1", "user-2") * 6))
        statuses = Counter(answer.status for answer in answers)
        assert statuses[201] <= 4 and statuses.total() == statuses[201] + statuses[403], answers
        for _ in range(4 - statuses[201]):  # what was answered late has kept room for itself
            await until(lambda: site.admitted("user-2"), 60)
        await site.uses(cpus(4))
        for cluster in ("user-1", "user-2"):
            assert "used: cpu=4, limited: cpu=4" in (await site.refused(cluster)).message
    names = [found["metadata"]["name"] for found in await site.items("user-1", MACHINES)]
    if names:
        await site.delete("user-1", f"{MACHINES}/{names[0]}")
        await site.uses(cpus(3))
        await until(lambda: site.admitted("user-2"), 30)


def raised(seconds: float, **amounts: str) -> Json:
    end = datetime.now(UTC) + timedelta(seconds=seconds)
    override = {"until": end.strftime("%Y-%m-%dT%H:%M:%SZ"), "quota": amounts, "reason": "launch"}
    return {"spec": {"overrides": [override]}}


async def test_an_override_raises_the_limit_on_both_kinds_of_seeds_until_its_end(site: Site) -> None:
    """One seed gets a copy with the limits in force, the other reads the master's own object and no clock."""
    path = f"resourcequotas/{QUOTA}"
    await site.quota(cpus(2))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    for cluster in ("user-1", "user-2"):
        assert "used: cpu=2, limited: cpu=2" in (await site.refused(cluster)).message
    await site.patch("master", path, raised(600, cpu="4"))
    await site.comes("master", path, "Overridden", "True", "EndsSoon", "cpu=4 until", "(launch)")
    await site.comes("master", path, "Enforced", "True")
    for cluster in ("user-1", "user-2"):
        await until(partial(site.admitted, cluster), 30)
    await site.uses(cpus(4))
    for cluster in ("user-1", "user-2"):
        assert "used: cpu=4, limited: cpu=4" in (await site.refused(cluster)).message
    status: Json = (await site.get("master", path))["status"]
    assert status["hard"] == cpus(4)
    assert status["summary"]["raisedUntil"] == status["overrides"][0]["until"]
    assert status["account"]["enforcedRaised"] == cpus(4)

    async def told(**wanted: int) -> Counter[str]:
        events = await site.items("master", "/apis/events.k8s.io/v1/events")
        found = Counter(str(each["reason"]) for each in events if "launch" in each.get("note", ""))
        assert found >= Counter(wanted), found
        return found

    await site.patch("master", path, raised(16, cpu="4"))
    await until(partial(told, OverrideEnds=2), 30)  # so the status had it before its end
    await site.comes("master", path, "Overridden", "False", "Ended", seconds=60)
    await site.comes("master", path, "Exceeded", "True", "LimitLowered", "nothing is removed")
    await site.comes("master", path, "Enforced", "True")
    account: Json = (await site.get("master", path))["status"]["account"]
    assert "enforcedRaised" not in account, "no replica admits by it any more"
    await until(partial(told, OverrideEnds=2, OverrideEnded=1), 30)
    programs = site.program("master"), site.program("master-b")
    await site.kill(*programs)  # the next leader decides by its own clock, and by what the status says
    await site.start(*programs)
    await site.ready()
    for cluster in ("user-1", "user-2"):
        assert "used: cpu=4, limited: cpu=2" in (await site.refused(cluster)).message
    assert (await site.uses(cpus(4))).hard == cpus(2)
    assert await told() == {"OverrideEnds": 2, "OverrideEnded": 1}
    for machine in await site.items("user-1", MACHINES):
        await site.delete("user-1", f"{MACHINES}/{machine['metadata']['name']}")
    await site.uses(cpus(1))
    await until(lambda: site.admitted("user-2"), 30)
    assert "used: cpu=2, limited: cpu=2" in (await site.refused("user-2")).message


async def test_a_quota_of_other_seeds_is_here_and_limits_nothing_here(
    site: Site,
) -> None:
    """The object is in this cluster in any case."""
    quota = quota_manifest(cpus(2), "eu")
    quota["spec"]["subject"]["seeds"] = {"matchLabels": {"region": "eu"}}

    async def move(seed: str, region: str | None) -> None:
        await site.patch("master", f"seeds/{seed}", {"metadata": {"labels": {"region": region}}})

    async def limited_on(*seeds: str) -> None:
        await site.installed.enforced("eu", 60)

        async def holds() -> None:
            lines = (await site.get("master", "resourcequotas/eu"))["status"]["seeds"]
            assert {line["name"]: line["state"] for line in lines} == dict.fromkeys(seeds, "Current")

        await until(holds, 60)

    try:
        await move("seed-2", "eu")
        await site.apply("master", quota)
        await limited_on("seed-2")
        await site.admitted("user-1", 1)
        await move("seed-1", "eu")
        await limited_on("seed-1", "seed-2")
        await site.uses(cpus(1), "eu")
        await site.admitted("user-1", 1)
        assert "exceeded quota: eu," in (await site.refused("user-2")).message
        for region, use in (("us", 0), ("eu", 3)):
            await move("seed-1", region)
            await limited_on("seed-2", *(["seed-1"] if region == "eu" else []))
            await site.uses(cpus(use), "eu")
            if region == "us":
                await site.admitted("user-1", 1)
        assert "exceeded quota: eu," in (await site.refused("user-1")).message
    finally:
        for seed in ("seed-1", "seed-2"):
            await move(seed, None)


async def test_the_status_of_a_quota_shows_both_seeds_and_each_side_writes_its_own_fields(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    status: Json = (await site.get("master", f"resourcequotas/{QUOTA}"))["status"]
    assert {seed["name"]: seed.get("localUsage", {}).get("cpu", "0") for seed in status["seeds"]} == {
        "seed-1": "2",
        "seed-2": "0",
    }
    assert status["localUsage"]["cpu"] == "2" and status["globalUsage"]["cpu"] == "2"

    async def current() -> None:
        """By the signs of the master, which are in the Seed's own status here."""
        for cluster in ("user-1", "user-2"):
            shown = (await site.get(cluster, f"namespaces/kube-system/localresourcequotas/{QUOTA}"))["status"]
            assert shown["total"]["used"] == cpus(2) and "currentTime" in shown and "stale" not in shown, shown

    await until(current, 100)
    seed: Json = await site.get("master", "seeds/seed-1")
    assert seed["spec"] == {"inCluster": True, "state": "Active"}
    await site.comes("master", "seeds/seed-1", "Ready", "True")
    assert (await site.get("master", "seeds/seed-1"))["status"]["clusters"] == 1


async def test_describe_reads_the_seed_of_the_master_s_own_cluster_without_its_kubeconfig(
    site: Site, tmp_path: Path
) -> None:
    await site.quota(cpus(2))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    await site.refused("user-1")
    seedquota = Commands(site, tmp_path)

    async def told() -> None:
        status, said = await seedquota("master", "describe", QUOTA, "-o", "json")
        found = json.loads(said)
        assert status == 0, said
        assert [(each["name"], each["used"]) for each in found["consumers"]] == [("alpha/user-1", cpus(2))], said
        assert {each["object"] for each in found["denials"]} == {"usercluster/alpha/user-1"}, said
        (said,) = found["notKnown"]
        assert said == "user clusters and denials on seed-2: --seed NAME asks one, --all-seeds all of them"

    await until(told, 60)
    # Nobody asked for it, so that it may not be read is no failure.
    status, said = await seedquota("master", "describe", QUOTA, user="seedquota-seed")
    assert (status, "denials on seed-1: " in said) == (0, True), said
    assert "the right to list events.events.k8s.io" in said and "cluster/alpha/user-1" in said, said


async def test_a_quota_that_is_deleted_limits_no_more_at_once_and_both_ledgers_go(site: Site) -> None:
    await site.quota(cpus(1))
    await site.admitted("user-1")
    await site.refused("user-1")
    await site.delete("master", f"resourcequotas/{QUOTA}")
    async with within(SOON):
        await until(lambda: site.admitted("user-1"), 30)

    async def gone() -> None:
        assert await ledgers(site) == []

    await until(gone, 60)


async def test_both_programs_killed_at_once_lose_nothing(site: Site) -> None:
    await site.quota(cpus(3))
    await site.admitted("user-1", 2)
    programs = site.program("master"), site.program("seed-1")
    await site.kill(*programs)
    await site.start(*programs)
    await site.installed.enforced(QUOTA, 60)
    await until(lambda: site.admitted("user-2"), 60)
    await until(lambda: site.refused("user-1"), 60)


async def test_the_one_etcd_restored_from_a_snapshot_never_admits_too_much(site: Site) -> None:
    """Master and seed are set back to the same moment; what was admitted since exists in the user clusters."""
    await site.quota(cpus(4))
    await site.admitted("user-1")
    await site.uses(cpus(1))
    snapshot = site.installed.directory / "one-cluster.db"
    await site.installed.etcd_of("seed-1").snapshot(snapshot)
    await site.admitted("user-1")
    await site.admitted("user-2")
    await site.uses(cpus(3))
    programs = site.program("master"), site.program("seed-1")
    await site.kill(*programs)
    await restored(site, snapshot)
    await site.start(*programs)
    async with site.no_overshoot(cpus(4)):
        await until(lambda: site.admitted("user-2"), 120)
        await site.uses(cpus(4), seconds=60)
        for cluster in ("user-1", "user-2"):
            await until(lambda cluster=cluster: site.refused(cluster), 60)


async def restored(site: Site, snapshot: Path) -> None:
    etcd, server = site.installed.etcd_of("seed-1"), site.server("seed-1")
    await site.kill(server, etcd)
    await etcd.restore(snapshot)
    await site.start(etcd)
    await site.start(server)


async def test_another_seed_that_leads_to_the_master_is_a_duplicate(site: Site) -> None:
    kubeconfig = site.server("master").kubeconfig("seedquota-master")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "same", "namespace": NAMESPACE}}
    await site.apply("master", {**secret, "stringData": {"kubeconfig": kubeconfig}})
    await site.apply("master", named("Seed", "same", kubeconfigSecretRef={"name": "same"}))
    try:
        await site.comes("master", "seeds/same", "Connected", "False", "DuplicateCluster", "Seed seed-1")
    finally:
        await site.delete("master", "seeds/same")


# Allocations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tenancy:
    """An organization with one project, and its quota."""

    site: Site
    organization: str
    project: str

    @property
    def quota(self) -> str:
        return f"org-{self.organization}"

    def path(self, name: str = "") -> str:
        return f"namespaces/org-{self.organization}/allocations/{name}".rstrip("/")

    async def allocate(self, name: str, *, dry_run: bool = False, **amounts: int) -> Answer:
        parameters = {"dryRun": "All"} if dry_run else {}
        return await self.site.decision("master", "POST", self.path(), self.body(name, **amounts), **parameters)

    def body(self, name: str, **amounts: int) -> Json:
        whose = {"organization": self.organization, "project": self.project, "kind": "cluster", "id": name}
        listed = [
            {"type": type, "committed": amount // 2, "reserved": amount - amount // 2}
            for type, amount in amounts.items()
        ]
        return {
            "apiVersion": API,
            "kind": "Allocation",
            "metadata": {"name": name},
            "spec": {**whose, "resources": listed},
        }

    async def change(self, name: str, **amounts: int) -> Answer:
        spec = {"resources": self.body(name, **amounts)["spec"]["resources"]}
        return await self.site.decision("master", "PATCH", self.path(name), {"spec": spec})

    async def release(self, name: str) -> None:
        await self.site.delete("master", self.path(name))

    async def limit(self, **limits: str) -> None:
        await self.site.quota(limits, self.quota, kind="organization", subject=self.organization)

    async def uses(self, **used: str) -> None:
        await self.site.uses(used, self.quota)


async def catalogue(site: Site, **sides: str) -> None:
    """A change of side may leave limits without what they counted: that is meant. An API server finds the definitions
    that its policies refer to some time after they were made."""
    listed = [{"name": name, "countFrom": side} for name, side in sides.items()]
    settings = named("QuotaSettings", "default", resources=listed)
    changed = ",".join(f"{name}={sides.get(name, 'Objects')}" for name in ("servers", "clusters"))
    settings["metadata"] = {"name": "default", "annotations": {"seedquota.io/change-side": changed}}

    async def applied() -> None:
        try:
            await site.apply("master", settings)
        except ManifestError as error:
            assert "failed to find resource referenced by paramKind" not in str(error), error
            raise

    await until(applied, 90)


@pytest_asyncio.fixture
async def tenancy(installation: Site) -> AsyncIterator[Tenancy]:
    """Of names of its own: nobody waits until what the test before made is gone."""
    site, before, name = installation, installation.positions(), uuid.uuid4().hex[:8]
    found = Tenancy(site, f"o-{name}", f"p-{name}")
    await catalogue(site, servers="Allocations", clusters="Allocations")
    await site.apply("master", named("Organization", found.organization))
    await site.apply("master", named("Project", found.project, organization=found.organization))

    async def asked() -> None:
        status = (await site.get("master", f"organizations/{found.organization}"))["status"]
        assert status["namespace"] == f"org-{found.organization}"
        answer = await found.allocate("unknown", dry_run=True, server=1)
        assert answer.status == 422 and "known are clusters, servers" in answer.message, answer

    await until(asked, 60)
    yield found
    for allocation in await site.items("master", found.path()):
        await found.release(allocation["metadata"]["name"])
    quotas = f"resourcequotas/{found.quota}", f"resourcequotas/project-{found.project}"
    tenants = f"projects/{found.project}", f"organizations/{found.organization}"
    for path in (*quotas, *tenants, "quotasettings/default"):
        await site.delete("master", path)
    assert [line for line in site.said(before) if line["level"] not in ("debug", "info", "warning")] == []


def refused(answer: Answer, *texts: str, fields: frozenset[str] = frozenset({"servers"})) -> None:
    assert answer.status == 403 and all(text in answer.message for text in texts), answer
    assert {cause["field"] for cause in answer.causes} == fields


async def test_allocations_fill_the_quotas_of_organization_and_project_and_no_more(tenancy: Tenancy) -> None:
    site = tenancy.site
    await tenancy.limit(servers="10", clusters="5")
    assert (await tenancy.allocate("a", servers=8, clusters=1)).status == 201
    answer = await tenancy.allocate("b", servers=3, clusters=5)
    refused(answer, "clusters=5,servers=3, used: clusters=1,servers=8", fields=frozenset({"clusters", "servers"}))
    assert (await tenancy.allocate("b", dry_run=True, servers=2)).status == 201, "it reserves nothing"
    assert (await tenancy.allocate("b", servers=2)).status == 201
    await tenancy.uses(servers="10", clusters="1")
    refused(await tenancy.change("a", servers=9, clusters=1), "requested: servers=1, used: servers=10")
    assert (await tenancy.change("a", servers=3)).status == 200
    await tenancy.uses(servers="5", clusters="0")
    await site.quota({"servers": "6"}, f"project-{tenancy.project}", subject=tenancy.project)
    refused(await tenancy.allocate("c", servers=2), f"exceeded quota: project-{tenancy.project}, requested: servers=2")
    await tenancy.release("b")
    await until(partial(made, tenancy, "c", servers=3), 30)
    await tenancy.uses(servers="6")


async def made(tenancy: Tenancy, name: str, **amounts: int) -> None:
    answer = await tenancy.allocate(name, **amounts)
    assert answer.status == 201, answer


async def test_two_clients_at_once_fill_a_quota_exactly(tenancy: Tenancy) -> None:
    await tenancy.limit(servers="5")
    answers = await asyncio.gather(*(tenancy.allocate(f"a{number}", servers=1) for number in range(12)))
    assert sorted(answer.status for answer in answers) == [201] * 5 + [403] * 7, answers
    await tenancy.uses(servers="5")
    names = [f"a{number}" for number, answer in enumerate(answers) if answer.status == 201]
    await tenancy.limit(servers="8")
    changed = await asyncio.gather(*(tenancy.change(name, servers=2) for name in names))
    assert sorted(answer.status for answer in changed) == [200] * 3 + [403] * 2, changed
    await tenancy.uses(servers="8")


async def test_clusters_are_counted_from_allocations_alone_where_the_catalogue_says_so(tenancy: Tenancy) -> None:
    site = tenancy.site
    await tenancy.limit(clusters="1", servers="2")
    cluster = named("UserCluster", f"c-{tenancy.project}", project=tenancy.project)
    cluster["metadata"] = {"name": f"c-{tenancy.project}", "namespace": "alpha"}  # type: ignore[index]
    await site.apply("master", cluster)
    assert (await tenancy.allocate("a", clusters=1, servers=2)).status == 201
    await tenancy.uses(clusters="1", servers="2")
    await catalogue(site, servers="Allocations", clusters="Objects")
    await tenancy.uses(clusters="1")
    await site.delete("master", f"namespaces/alpha/userclusters/c-{tenancy.project}")
    await tenancy.uses(clusters="0", servers="2")
    answer = await tenancy.change("a", clusters=2, servers=2)
    assert answer.status == 422 and "unknown resource type: clusters" in answer.message, answer
    # A type that nobody names any more stays counted, and can be lowered.
    await catalogue(site)
    await tenancy.uses(clusters="1", servers="2")
    await until(partial(says_unknown, tenancy), 30)
    assert (await tenancy.change("a", servers=1)).status == 200
    await tenancy.uses(clusters="0", servers="1")


async def says_unknown(tenancy: Tenancy) -> None:
    answer = await tenancy.allocate("b", dry_run=True, servers=1)
    assert answer.status == 422 and "countFrom Allocations: there is none" in answer.message, answer


async def test_an_allocation_is_in_the_namespace_of_its_organization(tenancy: Tenancy) -> None:
    site, body = tenancy.site, tenancy.body("a", servers=1)
    answer = await site.call("master", "POST", "namespaces/default/allocations", body)
    assert answer.status == 403, answer
    assert f"belong in namespace org-{tenancy.organization}" in answer.message
    body["spec"]["project"] = "alpha"
    answer = await site.call("master", "POST", tenancy.path(), body)
    assert answer.status == 403, answer
    assert f"Organization {tenancy.organization} has no Project alpha" in answer.message


async def test_a_limit_below_what_is_allocated_keeps_it_and_admits_no_more(tenancy: Tenancy) -> None:
    site = tenancy.site
    await tenancy.limit(servers="4")
    assert (await tenancy.allocate("a", servers=4)).status == 201
    await tenancy.uses(servers="4")
    path = f"/api/v1/organizations/{tenancy.organization}/quotas"
    capacity = {"capacity": [{"type": "servers", "amount": 3}]}
    async with over_http(site) as http, http.put(f"{site.installed.api_url}{path}", json=capacity) as below:
        problem = await below.json()
        assert (below.status, problem["code"]) == (409, "capacity_below_allocated"), problem
        assert problem["detail"] == "servers: capacity 3, allocated 4"
    quota = f"resourcequotas/{tenancy.quota}"
    for limit, warned in (("5", False), ("3", True)):
        lowered = await site.call("master", "PATCH", quota, {"spec": {"quota": {"servers": limit}}})
        assert lowered.status == 200, lowered
        told = ["more is used than the limit: servers=4 of 3; nothing is removed" in each for each in lowered.warnings]
        assert told == [True] * warned, lowered.warnings
    again = await site.call("master", "PATCH", quota, {"spec": {"quota": {"servers": "3", "clusters": "7"}}})
    assert (again.status, again.warnings) == (200, []), "of what is as it was nobody is told"
    await tenancy.limit(servers="3")
    refused(await tenancy.allocate("b", servers=1), "used: servers=4, limited: servers=3")
    await site.comes("master", f"resourcequotas/{tenancy.quota}", "Exceeded", "True", "LimitLowered")
    assert (await tenancy.change("a", servers=3)).status == 200


@asynccontextmanager
async def without_right(site: Site, role: str, resource: str) -> AsyncIterator[None]:
    """The agent's ClusterRole without what it may do with the resource."""
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}"
    rules = (await site.get("master", path))["rules"]
    await site.patch("master", path, {"rules": [rule for rule in rules if resource not in rule["resources"]]})
    try:
        yield
    finally:
        await site.patch("master", path, {"rules": rules})


async def test_a_quota_is_not_in_force_where_the_webhook_for_allocations_is_not_asked(tenancy: Tenancy) -> None:
    """Nothing refuses an Allocation then, and a dry run shows it. What came in is counted."""
    site, quota = tenancy.site, f"resourcequotas/{tenancy.quota}"
    await tenancy.limit(servers="1")
    await site.quota(cpus(1), f"project-{tenancy.project}", subject=tenancy.project)
    kind = "validatingwebhookconfigurations"
    configuration = f"/apis/admissionregistration.k8s.io/v1/{kind}/seedquota-allocations"
    async with without_right(site, "seedquota-seed", kind):
        await site.delete("master", configuration)
        text = "Allocations on seed-1: no dry run has proven"
        await site.comes("master", quota, "Enforced", "False", "WebhookNotServing", text, seconds=120)
        await site.comes("master", quota, "Ready", "False", "Degraded")
        said = "a dry-run Allocation that we refuse was admitted"
        await site.comes("master", "seeds/seed-1", "WebhookServing", "False", "CanaryAdmitted", said)
        assert (await site.condition("master", f"resourcequotas/project-{tenancy.project}", "Enforced"))[0] == "True"
        assert (await tenancy.allocate("a", servers=2)).status == 201
        await tenancy.uses(servers="2")
    await until(lambda: site.get("master", configuration), 120)
    await site.comes("master", quota, "Enforced", "True", "AllSeeds", seconds=120)
    await site.comes("master", "seeds/seed-1", "WebhookServing", "True", seconds=60)
    refused(await tenancy.allocate("b", servers=1), "used: servers=2, limited: servers=1")


async def test_a_quota_of_clusters_is_not_in_force_where_a_webhook_for_clusters_does_not_answer(
    tenancy: Tenancy,
) -> None:
    site, quota = tenancy.site, f"resourcequotas/{tenancy.quota}"
    await catalogue(site)
    await tenancy.limit(clusters="1")
    configuration = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-clusters"
    balancer = site.installed.balancers["seed-2"]
    balancer.cut = True
    try:
        await balancer.end_connections()
        await site.delete("seed-2", configuration)  # whatever happens to it, it is tried again
        text = "clusters on seed-2: no dry run has proven"
        await site.comes("master", quota, "Enforced", "False", "WebhookNotServing", text, seconds=120)
        said = "no UserCluster can be created"
        await site.comes("master", "seeds/seed-2", "WebhookServing", "False", "NotServing", said)
        assert "/clusters/" not in str((await site.get("master", "seeds/seed-2"))["status"]), "the URL has a token"
    finally:
        balancer.cut = False
    await site.comes("master", quota, "Enforced", "True", "AllSeeds", seconds=120)
    await site.comes("master", "seeds/seed-2", "WebhookServing", "True", seconds=120)


def over_http(site: Site) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {site.server('master').tokens['admin']}"}
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    return aiohttp.ClientSession(headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(total=20))


async def test_kubectl_and_http_share_one_limit_and_see_what_the_other_has_made(tenancy: Tenancy) -> None:
    site = tenancy.site
    await tenancy.limit(servers="6")
    path = f"/api/v1/organizations/{tenancy.organization}/projects/{tenancy.project}/allocations"
    async with over_http(site) as http:

        async def asked(method: str, name: str = "", body: Json = None) -> tuple[int, Json]:
            """Repeated while it cannot be decided, as a service does, by both replicas in turn."""

            async def once() -> tuple[int, Json]:
                url = f"{site.installed.api_urls[len(name) % 2]}{path}{name and '/'}{name}"
                async with http.request(method, url, json=body) as answer:
                    assert answer.status != 503, await answer.text()
                    return answer.status, await answer.json() if answer.status != 204 else None

            return await until(once, 60)

        def one(name: str, servers: int) -> Json:
            resources = [{"type": "servers", "committed": servers}]
            return {"metadata": {"id": name}, "spec": {"kind": "cluster", "id": name, "resources": resources}}

        kubectl, service = [f"k{number}" for number in range(6)], [f"http-{number}" for number in range(6)]
        made_by_kubectl, made_by_service = await asyncio.gather(
            asyncio.gather(*(tenancy.allocate(name, servers=1) for name in kubectl)),
            asyncio.gather(*(asked("POST", body=one(name, 1)) for name in service)),
        )
        statuses = Counter(each.status for each in made_by_kubectl) + Counter(each[0] for each in made_by_service)
        assert statuses[201] == 6 and statuses.keys() <= {201, 403, 409}, (made_by_kubectl, made_by_service)
        await tenancy.uses(servers="6")
        for name in (*kubectl, *service):
            await tenancy.release(name)
        await tenancy.uses(servers="0")

        await until(partial(made, tenancy, "mine", servers=4), 30)
        assert [each["amount"] for each in (await asked("GET", "mine"))[1]["spec"]["resources"]] == [4]
        status, taken = await asked("POST", body={**one("mine", 1), "metadata": {"id": "other"}})
        assert (status, taken["code"], taken["existing"]) == (409, "already_allocated", "mine")

        async def is_short() -> None:
            """By the numbers, once nothing is reserved any more for creations above whose answers were lost."""
            status, short = await asked("POST", body=one("theirs", 3))
            numbers = {"type": "servers", "requested": 3, "free": 2, "capacity": 6}
            assert (status, short["shortages"]) == (409, [numbers])

        await until(is_short, 30)
        assert (await asked("POST", body=one("theirs", 2)))[0] == 201
        refused(await tenancy.allocate("more", servers=1), "used: servers=6, limited: servers=6")
        assert (await asked("PUT", "mine", {"spec": one("mine", 3)["spec"]}))[0] == 200

        async def raised() -> None:
            answer = await tenancy.change("theirs", servers=3)
            assert answer.status == 200, answer

        await until(raised, 30)
        await tenancy.uses(servers="6")
        assert (await asked("DELETE", "mine"))[0] == 204
        await tenancy.release("theirs")
        await until(partial(made, tenancy, "last", servers=6), 30)


async def test_after_the_master_s_etcd_was_restored_allocations_are_those_of_the_snapshot_and_count(
    tenancy: Tenancy,
) -> None:
    site = tenancy.site
    await tenancy.limit(servers="4")
    assert (await tenancy.allocate("before", servers=1)).status == 201
    await tenancy.uses(servers="1")
    snapshot = site.installed.directory / f"{tenancy.organization}.db"
    await site.installed.etcd_of("seed-1").snapshot(snapshot)
    assert (await tenancy.allocate("since", servers=3)).status == 201
    await tenancy.release("before")
    await tenancy.uses(servers="3")
    programs = site.program("master"), site.program("seed-1")
    await site.kill(*programs)
    await restored(site, snapshot)
    await site.start(*programs)
    there = [found["metadata"]["name"] for found in await site.items("master", tenancy.path())]
    assert there == ["before"]

    async def no_more(name: str) -> None:
        refused(await tenancy.allocate(name, servers=4), "used: servers=1, limited: servers=4; short by servers=1")

    await until(partial(no_more, "large"), 120)
    await until(partial(made, tenancy, "since", servers=3), 120)
    await tenancy.uses(servers="4")
    refused(await tenancy.allocate("more", servers=1), "used: servers=4, limited: servers=4")


async def test_an_organization_that_is_deleted_takes_its_namespace_and_allocations_along(tenancy: Tenancy) -> None:
    """The garbage collector and the deletion of namespaces are Kubernetes' own."""
    site = tenancy.site
    await tenancy.limit(servers="4")
    assert (await tenancy.allocate("a", servers=4)).status == 201
    await tenancy.uses(servers="4")
    await site.installed.collect_garbage()
    await site.delete("master", f"organizations/{tenancy.organization}")

    async def gone() -> None:
        answer = await site.call("master", "GET", f"/api/v1/namespaces/org-{tenancy.organization}")
        assert answer.status == 404, answer

    await until(gone, 120)
    await tenancy.uses(servers="0")
    await site.comes("master", f"resourcequotas/{tenancy.quota}", "Ready", "False", "SubjectNotFound")


async def test_the_master_may_write_the_namespaces_of_organizations_alone(tenancy: Tenancy) -> None:
    site = tenancy.site
    namespaces, theirs = "/api/v1/namespaces", f"/api/v1/namespaces/org-{tenancy.organization}"
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    wrong = {"metadata": {"name": "org-mine", "labels": {"seedquota.io/organization": "other"}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    async with site.server("master").session(MASTER_USER) as session:
        for method, path, body, said in (
            ("POST", namespaces, {"metadata": {"name": "mine"}}, "namespaces of organizations only"),
            ("POST", namespaces, wrong, "namespaces of organizations only"),
            ("PATCH", f"{namespaces}/alpha", labels, "namespaces of organizations only"),
            ("PATCH", theirs, labels, "may not change the labels"),
            (
                "PATCH",
                theirs,
                {"metadata": {"annotations": {"node-selector": "gpu=yes"}}},
                "annotations and finalizers",
            ),
            ("PATCH", theirs, {"metadata": {"finalizers": ["example.com/mine"]}}, "annotations and finalizers"),
        ):
            headers = merge if method == "PATCH" else {}
            async with session.request(method, path, json=body, headers=headers) as answer:
                assert (answer.status, said in await answer.text()) == (403, True), (path, answer.status)


CAPACITY = 10
CLIENTS = int(os.environ.get("CLIENTS", "16"))
ROUNDS = 3  # allocations that each client makes and releases, one after the other


class HttpClient:
    """A service that sends a request again, with the same ID and to another replica, until it is answered."""

    def __init__(self, tenancy: Tenancy, session: aiohttp.ClientSession, number: int, holds: Counter[str]) -> None:
        self.number = number
        self.refused = 0
        self.again = 0
        self._urls = tenancy.site.installed.api_urls
        self._path = f"/api/v1/organizations/{tenancy.organization}/projects/{tenancy.project}/allocations"
        self._session = session
        self._holds = holds

    async def work(self) -> None:
        for round in range(ROUNDS):
            name = f"c{self.number}-{round}"
            body = {
                "metadata": {"id": name},
                "spec": {"kind": "server", "id": name, "resources": [{"type": "servers", "committed": 1}]},
            }
            while (status := await self._asked("POST", self._path, body)) == 409:
                self.refused += 1
                await asyncio.sleep(0.2)
            assert status in (200, 201), status
            self._holds[name] += 1
            assert self._holds.total() <= CAPACITY, self._holds
            await asyncio.sleep(0.1)
            self._holds[name] -= 1
            status = await self._asked("DELETE", f"{self._path}/{name}")
            assert status in (204, 404), status

    async def _asked(self, method: str, path: str, body: Json = None) -> int:
        for attempt in range(self.number, self.number + 600):
            with suppress(aiohttp.ClientError, TimeoutError):
                url = f"{self._urls[attempt % 2]}{path}"
                async with self._session.request(method, url, json=body) as answer:
                    problem = await answer.json() if answer.status == 409 else {}
                    if answer.status not in (429, 503) and not problem.get("retryable"):
                        assert not problem or problem["code"] == "quota_exceeded", problem
                        return answer.status
            self.again += 1
            await asyncio.sleep(0.1)
        raise AssertionError(f"{method} {path} is not answered")


async def test_clients_of_two_replicas_fill_an_organization_exactly_though_one_is_killed(tenancy: Tenancy) -> None:
    """Over HTTP. What is released is free for others at once or soon, nothing is lost, and nothing is there twice."""
    site = tenancy.site
    await tenancy.limit(servers=str(CAPACITY))
    holds: Counter[str] = Counter()
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            found = await site.items("master", tenancy.path())
            most = max(most, sum(each["committed"] for one in found for each in one["spec"]["resources"]))
            await asyncio.sleep(0.05)

    async with over_http(site) as session:
        clients = [HttpClient(tenancy, session, number, holds) for number in range(CLIENTS)]
        victim = site.program("master")

        async def begun() -> None:
            assert sum(holds.values()) > 0 and most > 0

        async with running(watch()), running(*(client.work() for client in clients)) as working:
            await until(begun, 60)
            await site.kill(victim)
            await asyncio.sleep(1)
            await site.start(victim)
            await asyncio.gather(*working)
        assert most <= CAPACITY
        assert await site.items("master", tenancy.path()) == [], "all is released, and nothing was there twice"
        path = f"{site.installed.api_urls[1]}/api/v1/organizations/{tenancy.organization}"
        spec = {"kind": "server", "id": "last", "resources": [{"type": "servers", "committed": CAPACITY}]}

        async def last() -> None:
            url = f"{path}/projects/{tenancy.project}/allocations"
            async with session.post(url, json={"spec": spec}) as answer:
                assert answer.status in (200, 201), await answer.text()

        await until(last, 60)
        async with session.get(f"{path}/quotas") as answer:
            assert (await answer.json())["free"] == [{"type": "servers", "amount": 0}]
    await tenancy.uses(servers=str(CAPACITY))
