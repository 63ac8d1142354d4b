"""The life of things with real programs: what becomes of use when something goes, stays too long or comes again.

Elsewhere: quotas made again and limits lowered (installed/test_quotas.py), labels that move
(../cluster_api/test_cluster_api.py).
docs/reference/object-changes.md has a table of them all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from devcluster.cluster_api import INFRASTRUCTURE_GROUP, infrastructure_crd
from devcluster.load import machine
from devcluster.objects import named
from tests.integration.installed.site import (
    CLUSTERS,
    MACHINES,
    PROJECT,
    QUOTA,
    SMALL,
    Json,
    Site,
    cpus,
    until,
)
from tests.integration.installed.test_default_quotas import gone, limited_to, limits, set_defaults

pytestmark = pytest.mark.integration

EXISTING = 300
CLIENTS = 16
FINALIZER = "example.com/slow-cloud"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
CAPI = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{PROJECT}"
INFRASTRUCTURE = f"/apis/{INFRASTRUCTURE_GROUP}/v1beta1/namespaces/{PROJECT}"


async def without_project_on_seeds(site: Site) -> None:
    for seed in site.installed.seeds:
        assert (await site.call(seed, "GET", f"projects/{PROJECT}")).status == 404, seed


async def test_a_project_that_is_deleted_leaves_its_quota_which_counts_and_limits_what_runs(site: Site) -> None:
    await site.quota(cpus(3))
    names = await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    await site.delete("master", f"projects/{PROJECT}")
    try:
        await site.comes("master", f"resourcequotas/{QUOTA}", "Ready", "False", "SubjectNotFound", "no Project alpha")
        await until(lambda: without_project_on_seeds(site), 30)
        await site.admitted("user-2")
        await site.uses(cpus(3))
        for cluster in ("user-1", "user-2"):
            assert "used: cpu=3, limited: cpu=3" in (await site.refused(cluster)).message
        assert len(await site.items("user-1", MACHINES)) == 2
        await site.delete("user-1", f"{MACHINES}/{names[0]}")
        await site.uses(cpus(2))
    finally:
        await site.apply("master", named("Project", PROJECT))
    await site.comes("master", f"resourcequotas/{QUOTA}", "Ready", "True", "Enforced")
    await site.admitted("user-1")
    await site.refused("user-2")


async def test_a_projects_default_quota_goes_with_it_and_a_new_one_counts_what_runs(site: Site) -> None:
    await set_defaults(site, project=limits(cpu="3"))
    try:
        await limited_to(site, QUOTA, "3")
        await site.installed.enforced(QUOTA, 60)
        await site.admitted("user-1", 2)
        await site.uses(cpus(2))
        await site.delete("master", f"projects/{PROJECT}")
        await gone(site, QUOTA)

        async def undecided(**parameters: str) -> None:
            answer = await site.create("user-1", **parameters)
            assert answer.status == 503, answer

        await until(lambda: undecided(dryRun="All"), 30)  # its agent hears of it a moment later
        await undecided()
        assert len(await site.items("user-1", MACHINES)) == 2
        await site.apply("master", named("Project", PROJECT))
        await limited_to(site, QUOTA, "3")
        await site.uses(cpus(2))
        await site.installed.enforced(QUOTA, 60)
        await site.admitted("user-2")
        await site.refused("user-1")
    finally:
        await site.delete("master", "quotasettings/default")


async def test_an_organization_forgets_nothing_while_its_projects_copy_is_missing_on_a_seed(site: Site) -> None:
    """The copy goes while the master is away, and the agent starts without having seen it."""
    name, master, agent = "by-organization", site.program("master"), site.program("seed-1")
    await site.apply("master", named("Organization", "acme"))
    await site.project(organization="acme")
    try:
        await site.quota(cpus(4), name, kind="organization", subject="acme")
        await site.admitted("user-1", 3)
        await site.uses(cpus(3), name)
        await site.kill(master)
        await site.delete("seed-1", f"projects/{PROJECT}")

        async def undecided() -> None:
            answer = await site.create("user-1", dryRun="All")
            assert answer.status == 503, answer
            assert "project alpha has not come from the master" in answer.message

        await until(undecided, 30)

        async def led() -> None:
            await site.comes("seed-1", f"{CLUSTERS}/user-1", "UsageCurrent", "True")
            assert (await site.ledger("seed-1", name))["account"]["epoch"] > before

        before = (await site.ledger("seed-1", name))["account"]["epoch"]
        await site.kill(agent)
        await site.start(agent)
        await until(led, 60)
        for _ in range(4):  # in which the leader looks more than once what to forget
            await asyncio.sleep(2)
            assert (await site.ledger("seed-1", name))["account"]["used"][f"{PROJECT}/user-1"]["cpu"] == "3"
        await until(undecided, 10)

        await site.start(master)
        await until(lambda: site.get("seed-1", f"projects/{PROJECT}"), 60)

        async def decided() -> None:
            assert (await site.create("user-1", dryRun="All")).status == 201

        await until(decided, 60)
        await site.admitted("user-1")
        assert "used: cpu=4, limited: cpu=4" in (await site.refused("user-1")).message
    finally:
        await site.start(*(program for program in (master, agent) if program in site.down))
        await site.project()
        await site.delete("master", "organizations/acme")


async def configurations(site: Site, cluster: str) -> set[str]:
    return {
        found["metadata"]["name"]
        for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
        for found in await site.items(cluster, f"{CONFIGURATIONS}/{kind}")
    }


@asynccontextmanager
async def without_user_cluster(site: Site) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Takes user-1 from its seed. Yields what adds it again, which happens at the end anyway."""
    found = await site.get("seed-1", f"{CLUSTERS}/user-1")
    body = {**{key: found[key] for key in ("apiVersion", "kind", "spec")}}
    body["metadata"] = {"name": "user-1", "namespace": PROJECT}

    async def add() -> None:
        await site.apply("seed-1", body)

    await site.delete("seed-1", f"{CLUSTERS}/user-1")
    try:
        yield add
    finally:
        await add()


async def not_asked_any_more(site: Site, cluster: str) -> None:
    async def holds() -> None:
        assert await configurations(site, cluster) == set()
        answer = await site.create(cluster, dryRun="All")  # API servers heed that they are gone a moment later
        assert answer.status == 201, answer

    await until(holds, 30)


async def test_a_user_cluster_that_is_removed_takes_its_use_along_and_is_counted_when_added_again(site: Site) -> None:
    await site.quota(cpus(3))
    await site.admitted("user-1", 3)
    await site.uses(cpus(3))
    async with without_user_cluster(site) as add:
        await site.uses(cpus(0))
        await not_asked_any_more(site, "user-1")
        await site.admitted("user-2", 2)
        assert (await site.create("user-1")).status == 201  # nobody limits it
        await add()
        await site.uses(cpus(6))
        await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "True", "UsageNotAdmitted", "cpu 6/3")
        await site.settled()
        for cluster in ("user-1", "user-2"):
            await site.refused(cluster)


async def test_a_user_cluster_that_is_deleted_with_its_machines_frees_what_they_used(site: Site) -> None:
    """Its API server is gone first: no Machine of it was ever seen to go."""
    await site.quota(cpus(2))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    await site.kill(site.server("user-1"))
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "UsageCurrent", "False", "Unreachable")
    await site.refused("user-2")  # as long as it is only out of reach
    async with without_user_cluster(site):
        await site.uses(cpus(0))
        await site.admitted("user-2", 2)
        await site.refused("user-2")
        await site.start(site.server("user-1"))


def capi_crd(kind: str) -> Json:
    """As Cluster API's, and takes any spec."""
    crd: Any = dict(infrastructure_crd(kind, "v1beta2"))
    crd["metadata"] = {
        "name": f"{kind.lower()}s.cluster.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    }
    crd["spec"]["group"] = "cluster.x-k8s.io"
    return dict(crd)


def of_cluster_api(kind: str, name: str, spec: Json, **metadata: object) -> Json:
    body = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind}
    return {**body, "metadata": {"name": name, "namespace": PROJECT, **metadata}, "spec": spec}


def capi_machine(name: str) -> Json:
    reference = {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "VSphereMachine", "name": "two-cpus"}
    spec = {"clusterName": "c1", "bootstrap": {"dataSecretName": "none"}, "infrastructureRef": reference}
    return of_cluster_api("Machine", name, spec)


async def test_what_a_paused_cluster_has_counts_on_and_nothing_more_gets_in(site: Site) -> None:
    crds = [capi_crd("Cluster"), capi_crd("Machine"), infrastructure_crd("VSphereMachine", "v1beta1")]
    await site.apply("seed-1", *crds)
    size = {"numCPUs": 2, "memoryMiB": 1024, "diskGiB": 1}
    infrastructure = {"apiVersion": f"{INFRASTRUCTURE_GROUP}/v1beta1", "kind": "VSphereMachine", "spec": size}
    await site.apply(
        "seed-1",
        {**infrastructure, "metadata": {"name": "two-cpus", "namespace": PROJECT}},
        of_cluster_api("Cluster", "c1", {}, labels={"seedquota.io/project": PROJECT}),
    )
    await site.quota(cpus(4))
    try:

        async def asked() -> None:
            assert "seedquota-cluster-api" in await configurations(site, "seed-1")

        await until(asked, 60)

        async def made(name: str) -> None:
            answer = await site.decision("seed-1", "POST", f"{CAPI}/machines", capi_machine(name))
            assert answer.status == 201, answer

        await until(lambda: made("first"), 60)
        await site.uses(cpus(2))
        await site.patch("seed-1", f"{CAPI}/clusters/c1", {"spec": {"paused": True}})
        await until(lambda: made("second"), 60)
        await site.uses(cpus(4))
        answer = await site.decision("seed-1", "POST", f"{CAPI}/machines", capi_machine("third"))
        assert answer.status == 403, answer
        await site.refused("user-2")
    finally:
        for path in (f"{CAPI}/machines/first", f"{CAPI}/machines/second", f"{CAPI}/clusters/c1"):
            await site.delete("seed-1", path)
    await site.uses(cpus(0))


async def test_a_machine_that_is_stuck_in_deletion_counts_until_it_is_gone(site: Site) -> None:
    await site.quota(cpus(2))
    stuck = machine("stuck", SMALL)
    stuck["metadata"] = {"name": "stuck", "finalizers": [FINALIZER]}
    assert (await site.decided("user-1", stuck)).status == 201
    await site.uses(cpus(1))
    await site.delete("user-1", f"{MACHINES}/stuck")
    assert (await site.get("user-1", f"{MACHINES}/stuck"))["metadata"]["deletionTimestamp"]
    taken = await site.decided("user-1", machine("stuck", SMALL))
    assert (taken.status, taken.body["reason"]) == (409, "AlreadyExists"), taken
    # What was admitted and never stored is given back; what is only being deleted is not.
    await site.reserves_nothing("seed-1", seconds=60)
    await site.uses(cpus(1))
    await site.admitted("user-2")
    assert "used: cpu=2, limited: cpu=2" in (await site.refused("user-1")).message
    await site.uses(cpus(2))
    await site.patch("user-1", f"{MACHINES}/stuck", {"metadata": {"finalizers": None}})
    await site.uses(cpus(1))
    await site.admitted("user-1")


async def test_a_machine_counts_whether_or_not_it_has_a_node(site: Site) -> None:
    await site.quota(cpus(3))
    name, other = await site.admitted("user-1", 2)
    status = f"{MACHINES}/{name}/status"
    for patch in (
        {"nodeRef": {"kind": "Node", "name": name}},
        {"nodeRef": None, "errorReason": "CreateMachineError", "errorMessage": "the cloud has no room"},
    ):
        await site.patch("user-1", status, {"status": patch})
        await site.delete("user-1", f"{MACHINES}/{other}")  # which is seen after the patch
        await site.uses(cpus(1))
        (other,) = await site.admitted("user-1")
        await site.uses(cpus(2))
    await site.admitted("user-2")
    await site.refused("user-2")


async def test_a_machine_that_comes_again_under_its_name_is_another_and_counts_once(site: Site) -> None:
    await site.quota(cpus(2))
    await site.admitted("user-2")
    for _ in range(5):
        answer = await until(lambda: _made(site, "twin"), 30)
        assert "used: cpu=2" in (await site.refused("user-2")).message
        await site.delete("user-1", f"{MACHINES}/twin")
        assert answer
    await until(lambda: _made(site, "twin"), 30)
    await site.uses(cpus(2))
    await site.refused("user-1")


async def _made(site: Site, name: str) -> Json:
    answer = await site.call("user-1", "POST", MACHINES, machine(name, SMALL))
    assert answer.status == 201, answer  # the former one may be counted for a moment more
    return answer.body


async def run_already(site: Site, count: int) -> None:
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            answer = await site.call("user-1", "POST", MACHINES, machine(f"existing-{number}", SMALL))
            assert answer.status == 201, answer

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def test_over_machines_that_run_already_it_counts_first_then_warns_and_then_refuses(site: Site) -> None:
    path = f"resourcequotas/{QUOTA}"
    spec = {"subject": {"kind": "project", "name": PROJECT}, "enforcement": "warn", "quota": cpus(EXISTING + 20)}
    async with without_user_cluster(site) as add:
        await not_asked_any_more(site, "user-1")
        await run_already(site, EXISTING)
        await site.apply("master", named("ResourceQuota", QUOTA, **spec))
        await site.comes("master", path, "Enforced", "True", "AllSeeds")

        started = time.monotonic()
        await add()
        await site.uses(cpus(EXISTING), seconds=120)
        took = time.monotonic() - started
        print(f"\n{EXISTING} Machines that existed are in the master's globalUsage after {took:.1f} s")
    await site.settled()
    await site.comes("master", path, "Ready", "True", "WarnOnly")
    await site.comes("master", path, "NearLimit", "True", "AboveWarnPercent", "cpu 300/320")
    await site.patch("master", path, {"spec": {"quota": cpus(EXISTING - 100)}})
    await site.comes("master", path, "Exceeded", "True", "", "cpu 300/200")

    async def warned(cluster: str) -> None:
        answer = await site.create(cluster, dryRun="All")
        assert answer.status == 201, answer
        said = [text for text in answer.warnings if "allowed because enforcement is warn" in text]
        assert any(f"seedquota/{QUOTA}: over by cpu=101 (301/200)" in text for text in said), answer.warnings

    for cluster in ("user-1", "user-2"):
        await until(partial(warned, cluster), 30)
    await site.admitted("user-1")
    await site.uses(cpus(EXISTING + 1))

    await site.patch("master", path, {"spec": {"enforcement": "deny"}})

    async def refused(cluster: str) -> None:
        answer = await site.create(cluster, dryRun="All")  # as long as it only warns, it would be admitted
        assert answer.status == 403, answer
        assert f"used: cpu={EXISTING + 1}, limited: cpu={EXISTING - 100}" in answer.message

    for cluster in ("user-1", "user-2"):
        await until(partial(refused, cluster), 30)
    await site.comes("master", path, "Ready", "True", "Enforced")
    assert len(await site.items("user-1", MACHINES)) >= EXISTING + 1, "nothing is removed"
    # A busy API server does not end a deletion of so many within its request timeout.
    await until(lambda: site.delete("user-1", MACHINES), 60)
