"""Bad days that users make: quotas that contradict, exceed or vanish."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from common.quota import resources
from devcluster.load import Size, machine
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION
from tests.integration.installed.site import (
    API,
    BREAK_GLASS,
    CLUSTERS,
    LEDGERS,
    MACHINES,
    QUOTA,
    SMALL,
    WINDOW,
    Site,
    cpus,
    named,
    quota_manifest,
    until,
)
from tests.unit.fake_api_server import within

pytestmark = pytest.mark.integration

EVENTS = "/apis/events.k8s.io/v1/events"
SOON = 15.0  # seconds: what no event brings about is looked at again after half a minute, or never


def unsizable(name: str) -> dict[str, object]:
    value = {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": "many", "memory": "1Gi"}}
    return {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": name},
        "spec": {"providerSpec": {"value": value}},
    }


async def test_a_quota_for_a_project_that_does_not_exist_says_so_and_is_ready_when_it_comes(site: Site) -> None:
    await site.apply("master", quota_manifest(cpus(2), "early", subject="later"))
    await site.comes(
        "master", "resourcequotas/early", "Ready", "False", "SubjectNotFound", "no Project later", "create it"
    )
    await site.apply("master", named("Project", "later"))
    try:
        async with within(SOON):
            await site.comes("master", "resourcequotas/early", "Ready", "True", "Enforced")
        await site.comes("master", "projects/later", "Ready", "True")
    finally:
        await site.delete("master", "projects/later")
    async with within(SOON):
        await site.comes("master", "resourcequotas/early", "Ready", "False", "SubjectNotFound")


async def test_a_quota_that_is_deleted_and_applied_again_is_enforced_soon_each_time(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted("user-1")
    large = Size("1500m", "1Gi", "1Gi")

    async def enforced(limit: str) -> None:
        """By its account: what is larger than the limit itself is refused without one."""
        refused = await site.create("user-1", large, dryRun="All")
        assert refused.status == 403 and f"limited: cpu={limit};" in refused.message, refused
        admitted = await site.create("user-1", dryRun="All")
        assert admitted.status == 201, admitted

    for number in range(1, 8):
        limit = f"{2000 + number}m"  # tells this quota from the one before
        await site.delete("master", f"resourcequotas/{QUOTA}")
        await asyncio.sleep(number % 3 * 0.4)
        await site.apply("master", quota_manifest({"cpu": limit}))
        async with within(30):  # what nobody wakes gets 503 for minutes
            await until(partial(enforced, limit), 30)


async def test_the_most_restrictive_of_several_quotas_wins_and_nothing_stays_reserved_in_the_others(site: Site) -> None:
    await site.apply("master", named("Organization", "acme"))
    await site.project(organization="acme")
    try:
        await site.quota({"cpu": "10", "memory": "3Gi"}, "by-memory")
        await site.quota(cpus(5), "by-cpu")
        await site.quota(cpus(4), "by-organization", kind="organization", subject="acme")

        text = "exceeded quota: by-memory, requested: memory=4Gi, used: memory=0, limited: memory=3Gi"
        await until(partial(refused_and_nothing_reserved, site, "user-1", Size("1", "4Gi", "1Gi"), text), 60)
        text = "exceeded quota: by-organization, requested: cpu=5, used: cpu=0, limited: cpu=4"
        await until(partial(refused_and_nothing_reserved, site, "user-2", Size("5", "1Gi", "1Gi"), text), 60)
        await site.admitted("user-1", 2, Size("2", "1Gi", "1Gi"))
        answer = await site.refused("user-2", SMALL)
        assert "exceeded quota: by-organization" in answer.message
        for name in ("by-memory", "by-cpu", "by-organization"):
            await site.uses(cpus(4), name)
            await site.reserves_nothing("seed-1", "seed-2", name=name)
        await shows(site, "projects/alpha", Quota="by-cpu, by-memory", Usage="cpu 4/5, memory 2Gi/3Gi", Ready="True")
        await shows(site, "organizations/acme", Projects=1, Usage="cpu 4/4", Ready="True")
    finally:
        await site.project()
        await site.delete("master", "organizations/acme")


async def shows(site: Site, path: str, **expected: object) -> None:
    """Waits until kubectl's columns on the master are these."""

    async def holds() -> None:
        accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        table = (await site.call("master", "GET", path, headers=accept)).body
        names = [column["name"] for column in table["columnDefinitions"]]
        columns = dict(zip(names, table["rows"][0]["cells"], strict=True))
        assert {name: columns[name] for name in expected} == expected, columns

    await until(holds, 30)


async def test_what_nothing_counts_is_not_shown_as_if_it_were_enforced(site: Site) -> None:
    namespaces = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}
    body = {"apiVersion": API, "kind": "ResourceQuota", "metadata": {"name": "of-namespaces"}}
    await site.apply("master", {**body, "spec": {"subject": namespaces, "quota": {"pods": "50"}}})
    await site.apply("master", quota_manifest({"cpu": "1", "gpus": "8"}, "of-gpus"))
    for kind in ("Ready", "Enforced", "UsageCurrent"):
        await site.comes("master", "resourcequotas/of-gpus", kind, "False", "NotSupported")
    for kind in ("Ready", "Enforced"):
        await site.comes("master", "resourcequotas/of-namespaces", kind, "False", "NoClusters")
    for name in ("of-namespaces", "of-gpus"):
        await shows(site, f"resourcequotas/{name}", Ready="False", Enforced="False")
    await site.admitted("user-1")
    await shows(site, "resourcequotas/of-gpus", Usage="cpu 1/1, gpus ?/8")
    await site.refused("user-1")  # the rest of it is enforced


async def refused_and_nothing_reserved(site: Site, cluster: str, size: Size, text: str) -> None:
    """Before it would be released for its age, also of a try that was not decided; and on the master a moment later.

    Once of several times: a busy machine may be late, and what is released for its age always is.
    """
    answer = await site.refused(cluster, size)
    assert text in answer.message
    for name in ("by-memory", "by-cpu", "by-organization"):
        async with within(WINDOW / 2):
            await site.reserves_nothing(*site.installed.seeds, name=name)

        async def heard(name: str = name) -> None:
            assert not any((await site.view(name)).used.values())

        await until(heard, 30)


async def test_a_limit_below_use_removes_nothing_refuses_everything_and_can_be_raised_again(site: Site) -> None:
    await site.quota(cpus(6))
    await site.admitted("user-1", 3)
    await site.admitted("user-2", 3)
    await site.uses(cpus(6))

    await site.apply("master", quota_manifest(cpus(4)))
    await site.comes(
        "master", f"resourcequotas/{QUOTA}", "Exceeded", "True", "LimitLowered", "cpu 6/4", "nothing is removed"
    )
    await site.comes("master", f"resourcequotas/{QUOTA}", "Ready", "True")
    for cluster in ("user-1", "user-2"):
        answer = await site.refused(cluster)
        assert "used: cpu=6, limited: cpu=4; short by cpu=3" in answer.message
        assert len(await site.items(cluster, MACHINES)) == 3

    await site.apply("master", quota_manifest(cpus(8)))
    await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "False", "WithinLimit")
    async with site.no_overshoot(cpus(8)):
        await site.admitted("user-1")
        await site.admitted("user-2")
        await site.refused("user-1")
        await site.refused("user-2")


async def test_a_quota_made_again_under_its_name_is_another_quota(site: Site) -> None:
    await site.quota(cpus(3))
    await site.admitted("user-1", 3)
    await site.refused("user-2")
    old = (await site.get("master", f"resourcequotas/{QUOTA}"))["metadata"]["uid"]
    await site.apply("master", named("Project", "beta"))

    await site.delete("master", f"resourcequotas/{QUOTA}")
    await site.apply("master", quota_manifest(cpus(1), subject="beta"))
    new = (await site.get("master", f"resourcequotas/{QUOTA}"))["metadata"]["uid"]
    assert new != old
    await site.installed.enforced(QUOTA, 60)

    async def replaced() -> None:
        for cluster in ("master", *site.installed.seeds):
            assert (await site.ledger(cluster))["quota"]["uid"] == new, cluster
        for seed in site.installed.seeds:
            copy = await site.get(seed, f"resourcequotas/{QUOTA}")
            assert copy["metadata"]["labels"]["seedquota.io/uid"] == new
            assert copy["spec"]["subject"]["name"] == "beta"

    await until(replaced, 30)
    await site.admitted("user-1", 2)  # nothing limits alpha any more
    await site.admitted("user-2", 2)
    await site.uses(cpus(0))

    await site.delete("master", f"resourcequotas/{QUOTA}")
    await site.delete("master", "projects/beta")
    await site.quota(cpus(8))
    await site.uses(cpus(7))
    await site.admitted("user-2")
    await site.refused("user-1")


async def test_a_dry_run_decides_and_writes_nothing(site: Site) -> None:
    await site.quota(cpus(3))
    await site.admitted("user-2", 2)
    await site.uses(cpus(2))
    uid = (await site.get("master", f"resourcequotas/{QUOTA}"))["metadata"]["uid"]

    async def versions() -> list[str]:
        places = [("master", f"{LEDGERS}/master-{uid}"), *((seed, f"{LEDGERS}/{uid}") for seed in site.installed.seeds)]
        places += [(cluster, f"resourcequotas/{QUOTA}") for cluster in ("master", *site.installed.seeds)]
        found = [await site.get(cluster, path) for cluster, path in places]
        return [str(item["metadata"]["resourceVersion"]) for item in found]

    async def quiet() -> list[str]:
        """Everything that follows the two Machines is written."""
        found = await versions()
        await asyncio.sleep(3)
        assert await versions() == found
        return found

    before = await until(quiet, 60)
    for cluster in ("user-1", "user-2"):
        answer = await site.asked(cluster, dryRun="All")
        assert answer.status == 201, answer
        answer = await site.asked(cluster, Size("2", "1Gi", "1Gi"), dryRun="All")
        assert answer.status == 403, answer
        assert "requested: cpu=2, used: cpu=2, limited: cpu=3" in answer.message
    await asyncio.sleep(0.5)
    assert await versions() == before
    assert len(await site.items("user-1", MACHINES)) == 0


async def test_a_machine_without_a_size_is_refused_and_an_existing_one_stops_nothing(site: Site) -> None:
    await site.quota(cpus(3))
    answer = await site.call("user-1", "POST", MACHINES, unsizable("sizeless"))
    assert answer.status == 422, answer
    assert "cannot size machine" in answer.message and "many" in answer.message, answer.message
    assert [cause["reason"] for cause in answer.causes] == ["MachineNotSized"]

    await break_glass(site, "user-1", unsizable("sizeless"))
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "MachinesSized", "False", "", "kube-system/sizeless", "many")
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "UsageCurrent", "True")
    await site.admitted("user-1", 2)
    await site.admitted("user-2")
    await site.refused("user-1")
    await site.uses(cpus(3))
    await site.delete("user-1", f"{MACHINES}/sizeless")
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "MachinesSized", "True")


async def test_what_comes_in_by_break_glass_is_counted_and_shown(site: Site) -> None:
    """Also one that has the genuine stamp of another Machine."""
    await site.quota(cpus(2))
    await site.admitted("user-1")
    await site.admitted("user-2")
    await site.uses(cpus(2))
    (admitted,) = await site.items("user-1", MACHINES)
    metadata = {
        "name": "urgent",
        "annotations": {FOOTPRINT_ANNOTATION: admitted["metadata"]["annotations"][FOOTPRINT_ANNOTATION]},
    }
    await break_glass(site, "user-1", {**machine("urgent", SMALL), "metadata": metadata})
    await site.uses(cpus(3))
    path = f"{CLUSTERS}/user-1"
    await site.comes("seed-1", path, "Enforced", "False", "UsageNotAdmitted", "1 machine was", "kube-system/urgent")
    urgent = await site.get("user-1", f"{MACHINES}/urgent")
    found = await site.get("seed-1", path)
    assert found["status"]["unadmitted"] == {"machines": 1, "uids": [urgent["metadata"]["uid"]]}

    async def event() -> None:
        events = await site.items("seed-1", EVENTS)
        uid = found["metadata"]["uid"]
        assert "UsageNotAdmitted" in [each["reason"] for each in events if each["regarding"].get("uid") == uid]

    await until(event, 30)
    await site.comes(
        "master", f"resourcequotas/{QUOTA}", "Exceeded", "True", "UsageNotAdmitted", "cpu 3/2", "not admitted"
    )
    for cluster in ("user-1", "user-2"):

        async def told(cluster: str = cluster) -> None:
            answer = await site.refused(cluster)
            assert "used: cpu=3, limited: cpu=2; short by cpu=2" in answer.message

        await until(told, 30)  # the global use goes to seeds that do not ask in rounds
    await site.delete("user-1", f"{MACHINES}/urgent")
    await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "False", "WithinLimit")
    await site.comes("seed-1", path, "Enforced", "True", "CanaryDenied")
    assert "unadmitted" not in (await site.get("seed-1", path))["status"]
    await site.refused("user-1")


async def test_what_somebody_changes_on_a_seed_is_put_right(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.admitted("user-2", 1)
    await site.uses(cpus(3))
    path = f"resourcequotas/{QUOTA}"

    async def restored() -> None:
        copy = await site.get("seed-1", path)
        assert copy["spec"]["quota"] == cpus(4)
        assert copy["metadata"]["labels"].get("seedquota.io/uid")

    async with site.no_overshoot(cpus(4)):
        for change in ({"spec": {"quota": cpus(100)}}, {"metadata": {"labels": {"seedquota.io/uid": None}}}):
            await site.patch("seed-1", path, change)
            async with within(SOON):
                await until(restored, 30)
        await site.admitted("user-1")
        await site.refused("user-1")
        await site.refused("user-2")


async def test_a_copy_that_somebody_deletes_comes_back_with_its_account(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    before = await site.ledger("seed-1")
    await site.delete("seed-1", f"resourcequotas/{QUOTA}")

    async def restored() -> None:
        copy = await site.get("seed-1", f"resourcequotas/{QUOTA}")
        assert copy["spec"]["quota"] == cpus(4)
        assert copy["status"]["hard"] == cpus(4)
        assert copy["status"]["localUsage"] == cpus(2)

    async with within(SOON):
        await until(restored, 30)
    after = await site.ledger("seed-1")
    assert after["account"]["incarnation"] == before["account"]["incarnation"]
    async with site.no_overshoot(cpus(4)):
        await site.admitted("user-1", 2)
        await site.refused("user-1")
        await site.refused("user-2")
    view = await site.uses(cpus(4))
    assert resources.render(view.limit) == cpus(4)


async def break_glass(site: Site, cluster: str, body: object) -> None:
    """As a person who may make Machines and impersonates the group."""
    await site.apply(cluster, *may_make_machines("ann"))

    async def made() -> None:
        answer = await site.call(cluster, "POST", MACHINES, body, headers=BREAK_GLASS)
        assert answer.status == 201, answer

    await until(made, 30)  # API servers learn of rights a moment later


def may_make_machines(user: str) -> list[dict[str, object]]:
    group = "rbac.authorization.k8s.io"
    role = {"apiGroups": ["cluster.k8s.io"], "resources": ["machines"], "verbs": ["create"]}
    subject = {"apiGroup": group, "kind": "User", "name": user}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "machine-maker"}
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "machine-maker"}, "rules": [role]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "machine-maker"},
            "roleRef": reference,
            "subjects": [subject],
        },
    ]
