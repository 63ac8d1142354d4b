"""Bad days of clusters: seeds and user clusters that are down, cut off or unreadable."""

from __future__ import annotations

import asyncio
import base64

import pytest

from common.runtime.metrics import build_version
from devcluster.install import MASTER_USER, NAMESPACE, SEED_USER
from devcluster.load import Outcome, fill, machine
from tests.integration.installed.site import (
    API,
    CLUSTERS,
    MACHINES,
    PROJECT,
    QUOTA,
    SMALL,
    WINDOW,
    Json,
    Site,
    cpus,
    quota_manifest,
    until,
)

pytestmark = pytest.mark.integration

WEBHOOK_CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-machines"
NOBODY_LISTENS = "https://127.0.0.1:1"


async def test_a_seed_that_comes_later_delays_nobody_and_is_taken_up(site: Site) -> None:
    await site.admitted("user-2", 2)  # before there is any quota
    await site.kill(site.program("master"), site.program("seed-2"), site.server("seed-2"))
    await site.start(site.program("master"))
    await site.comes("master", "seeds/seed-2", "Connected", "False", "Unreachable")

    await site.apply("master", quota_manifest(cpus(6)))
    await site.comes("master", f"resourcequotas/{QUOTA}", "Enforced", "Unknown", "SeedNotSynced", "seed-2")
    await site.comes("master", f"resourcequotas/{QUOTA}", "Ready", "Unknown", "Degraded", "seed-2")
    await until(lambda: site.get("seed-1", f"resourcequotas/{QUOTA}"), 30)
    async with site.no_overshoot(cpus(6)):
        attempts = await fill([site.one], SMALL, 3)
        assert [attempt.outcome for attempt in attempts] == [Outcome.ADMITTED] * 3

        await site.start(site.server("seed-2"), site.program("seed-2"))
        await site.comes("master", "seeds/seed-2", "Connected", "True", seconds=60)
        await site.uses(cpus(5), seconds=60)
        await site.installed.enforced(QUOTA, 60)
        await site.comes("master", f"resourcequotas/{QUOTA}", "UsageCurrent", "True", "AllReported")
        await site.settled()
        await site.admitted("user-2")
        await site.refused("user-1")
        await site.refused("user-2")


async def test_the_use_of_a_lost_seed_stays_and_what_it_holds_idle_is_given_to_nobody(site: Site) -> None:
    await site.quota(cpus(10))
    names = await site.admitted("user-1", 4)
    await site.admitted("user-2")
    await site.uses(cpus(5))
    for name in names[:2]:  # now it holds some that it does not use
        await site.delete("user-1", f"/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines/{name}")
    view = await site.uses(cpus(3))
    held = {seed.name: int(seed.granted["cpu"]) for seed in view.seeds}
    assert held["seed-1"] > 2, "the test needs idle capacity there"

    await site.kill(site.server("seed-1"))
    async with site.no_overshoot(cpus(10)):
        admitted = await site.admitted("user-2", 10 - held["seed-1"] - 1)
        attempts = [await site.create("user-2") for _ in range(2)]
        assert [attempt for attempt in attempts if attempt.status == 201] == []
        await site.comes("master", "seeds/seed-1", "Connected", "False", "Unreachable")
        await site.comes("master", "seeds/seed-1", "WebhookServing", "Unknown", "NotConnected")
        await counts_clusters(site, 1)

        async def unavailable() -> None:
            answer = await site.create("user-2")
            assert answer.status == 503, answer
            assert answer.body["details"]["retryAfterSeconds"] == 1, answer.body
            assert f"quota {QUOTA} cannot decide: cpu={held['seed-1'] - 2} is free" in answer.message, answer
            assert "held by seed seed-1, unreachable for " in answer.message, answer

        await until(unavailable, 30)
        answer = await site.create("user-1")
        assert answer.status in (500, 503), answer  # its agent cannot write: it never guesses

        path = f"resourcequotas/{QUOTA}"
        await site.comes("master", path, "UsageCurrent", "False", "SeedUnreachable", "seed-1 last", "ago", seconds=60)

        async def kept() -> None:
            view = await site.view()
            lines = {seed.name: seed for seed in view.seeds}
            assert lines["seed-1"].state == "Stale"
            assert lines["seed-1"].local_usage == cpus(2)
            assert view.used["cpu"] == (2 + 1 + len(admitted)) * 10**9

        await until(kept, 30)

        await site.start(site.server("seed-1"))
        await site.comes("master", path, "UsageCurrent", "True", "AllReported", seconds=60)
        await site.installed.enforced(QUOTA, 60)
        await site.settled()
        await site.ready()
        filled = await fill(site.tenants, SMALL, 20)
        assert {attempt.outcome for attempt in filled} == {Outcome.ADMITTED, Outcome.REFUSED}, filled
    await site.uses(cpus(10))


async def is_kept(site: Site) -> None:
    path = f"{CLUSTERS}/user-1"
    await site.comes("seed-1", path, "UsageCurrent", "False", "Unreachable")
    await site.comes("seed-1", path, "Ready", "False", "Unreachable")
    await site.comes("seed-1", path, "Enforced", "Unknown", "Unreachable", seconds=0)
    status = (await site.get("seed-1", path))["status"]
    assert (status["machines"], status["resourceUsage"]["cpu"]) == (2, "2")
    await site.comes(
        "master", f"resourcequotas/{QUOTA}", "UsageCurrent", "False", "SourceUnreachable", "alpha/user-1 on seed-1"
    )


async def test_the_count_of_an_unreachable_user_cluster_is_kept(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    await site.kill(site.server("user-1"))
    await is_kept(site)
    await site.admitted("user-2", 2)
    answer = await site.refused("user-2")
    assert "used: cpu=4, limited: cpu=4" in answer.message
    await site.uses(cpus(4))

    await site.start(site.server("user-1"))
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "Ready", "True", seconds=90)
    await site.comes("master", f"resourcequotas/{QUOTA}", "UsageCurrent", "True", "AllReported")
    await site.refused("user-1")


async def test_machines_that_are_not_served_keep_their_count(site: Site) -> None:
    """They are stored, and there again when they are served again."""
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/machines.cluster.k8s.io"
    served = (await site.get("user-1", definition))["spec"]["versions"]
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.admitted("user-2", 2)
    await site.uses(cpus(4))
    await site.reserves_nothing("seed-1", "seed-2")

    async def is_held() -> None:
        path = f"{CLUSTERS}/user-1"
        await site.comes("seed-1", path, "UsageCurrent", "False", "MachineAPIMissing", seconds=90)
        status = (await site.get("seed-1", path))["status"]
        assert (status["machines"], status["resourceUsage"]["cpu"]) == (2, "2")
        await site.comes(
            "master", f"resourcequotas/{QUOTA}", "UsageCurrent", "False", "SourceUnreachable", "alpha/user-1 on seed-1"
        )
        answer = await site.refused("user-2")
        assert "used: cpu=4, limited: cpu=4" in answer.message

    agent = site.program("seed-1")
    try:
        unserved = [{**version, "served": False} for version in served]
        await site.patch("user-1", definition, {"spec": {"versions": unserved}})
        await is_held()
        await site.kill(agent)
        await site.start(agent)
        await is_held()
        await asyncio.sleep(2 * WINDOW)  # nothing is released as time goes by
        await is_held()
    finally:
        await site.patch("user-1", definition, {"spec": {"versions": served}})
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "UsageCurrent", "True", seconds=90)
    await site.comes("master", f"resourcequotas/{QUOTA}", "UsageCurrent", "True", "AllReported", seconds=60)
    assert len(await site.items("user-1", MACHINES)) == 2
    await site.refused("user-2")
    (gone, _) = await site.items("user-1", MACHINES)
    await site.delete("user-1", f"{MACHINES}/{gone['metadata']['name']}")
    await site.uses(cpus(3))
    await site.admitted("user-2")


async def test_an_agent_that_restarts_keeps_the_count_of_a_user_cluster_that_it_never_reached(site: Site) -> None:
    await site.quota(cpus(4))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    agent = site.program("seed-1")
    await site.kill(site.server("user-1"), agent)
    await site.start(agent)
    await is_kept(site)
    await site.admitted("user-2", 2)
    await site.refused("user-2")
    await site.uses(cpus(4))

    await site.kill(agent)
    await site.start(site.server("user-1"), agent)
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "Ready", "True", seconds=90)
    await site.comes("master", f"resourcequotas/{QUOTA}", "UsageCurrent", "True", "AllReported")
    await site.refused("user-1")


def kubeconfig_secret(name: str, namespace: str, data: dict[str, str]) -> Json:
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": encoded}


async def put_secret(site: Site, cluster: str, name: str, namespace: str, data: dict[str, str] | None) -> None:
    """None: deletes it."""
    path = f"/api/v1/namespaces/{namespace}/secrets"
    if data is None:
        await site.delete(cluster, f"{path}/{name}")
        return
    secret = kubeconfig_secret(name, namespace, data)
    answer = await site.call(cluster, "PUT", f"{path}/{name}", secret)
    if answer.status == 404:
        answer = await site.call(cluster, "POST", path, secret)
    assert answer.status in (200, 201), answer


BROKEN = {
    "missing": ("InvalidKubeconfig", "does not exist"),
    "wrong-token": ("Unauthorized", "Unauthorized"),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_broken_kubeconfig_is_named_stops_nobody_else_and_a_good_one_is_picked_up(site: Site, how: str) -> None:
    reason, text = BROKEN[how]
    await site.quota(cpus(4))
    await site.admitted("user-1")
    await site.admitted("user-2")
    await site.uses(cpus(2))

    def broken(cluster: str, user: str) -> dict[str, str] | None:
        if how == "missing":
            return None
        server = site.server(cluster)
        return {"kubeconfig": server.kubeconfig(user).replace(server.tokens[user], "sesame")}

    mended = {
        "master": (("seed-2", NAMESPACE), {"kubeconfig": site.server("seed-2").kubeconfig(MASTER_USER)}),
        "seed-1": (("user-1", PROJECT), {"kubeconfig": site.server("user-1").kubeconfig(SEED_USER)}),
    }
    try:
        await put_secret(site, "master", "seed-2", NAMESPACE, broken("seed-2", MASTER_USER))
        await put_secret(site, "seed-1", "user-1", PROJECT, broken("user-1", SEED_USER))
        named = {"master": f"secret {NAMESPACE}/seed-2", "seed-1": f"secret {PROJECT}/user-1"}
        for cluster, path, kinds in (
            ("master", "seeds/seed-2", ("Connected", "Ready")),
            ("seed-1", f"{CLUSTERS}/user-1", ("UsageCurrent", "Ready")),
        ):
            for kind in kinds:
                message = await site.comes(cluster, path, kind, "False", reason, named[cluster], text)
                assert "sesame" not in message
        await asyncio.sleep(2)  # and stays named
        await site.comes("seed-1", f"{CLUSTERS}/user-1", "Ready", "False", reason, seconds=0)
        await site.comes("master", "seeds/seed-2", "Ready", "False", reason, seconds=0)
        await site.admitted("user-1")  # a copy and an account are there: the seed goes on
    finally:
        for cluster, (place, good) in mended.items():
            await put_secret(site, cluster, *place, good)
    # A Secret that nobody looks at when it changes is never looked at.
    await site.comes("master", "seeds/seed-2", "Ready", "True")
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "Ready", "True")
    await site.uses(cpus(3))
    await site.admitted("user-2")
    await site.refused("user-1")


async def test_a_seed_that_never_connected_limits_no_readiness_but_its_own(site: Site) -> None:
    await site.quota(cpus(2))
    spec = {"kubeconfigSecretRef": {"name": "typo"}}
    await site.apply("master", {"apiVersion": API, "kind": "Seed", "metadata": {"name": "typo"}, "spec": spec})
    try:
        await site.comes("master", "seeds/typo", "Ready", "False", "InvalidKubeconfig")
        path = f"resourcequotas/{QUOTA}"
        await site.comes("master", path, "Enforced", "True", "AllSeeds", "not on typo: never connected")
        await site.comes("master", path, "UsageCurrent", "True", "AllReported", "typo")
        await site.comes("master", path, "Ready", "True", "Enforced")
        await site.comes("master", f"projects/{PROJECT}", "Ready", "True", "AllSeeds", "but typo")
        await site.apply("master", quota_manifest(cpus(1)))
        await site.installed.enforced(QUOTA, 60)
        await site.admitted("user-1")
        await site.refused("user-2")
    finally:
        await site.delete("master", "seeds/typo")


async def test_a_user_cluster_that_was_never_readable_keeps_no_quota_from_opening(site: Site) -> None:
    unreachable = site.server("user-1").kubeconfig(SEED_USER).replace(site.server("user-1").url, NOBODY_LISTENS)
    secrets = {"no-secret": None, "garbage": "]", "nobody": unreachable}
    try:
        for name, kubeconfig in secrets.items():
            if kubeconfig is not None:
                await site.apply("seed-1", kubeconfig_secret(name, PROJECT, {"kubeconfig": kubeconfig}))
            spec = {"project": PROJECT, "kubeconfigSecretRef": {"name": name}}
            metadata = {"name": name, "namespace": PROJECT}
            cluster = {"apiVersion": API, "kind": "UserCluster", "metadata": metadata, "spec": spec}
            await site.apply("seed-1", cluster)
        await site.comes("seed-1", f"{CLUSTERS}/no-secret", "Ready", "False", "InvalidKubeconfig", "alpha/no-secret")
        await site.comes("seed-1", f"{CLUSTERS}/garbage", "Ready", "False", "InvalidKubeconfig", "alpha/garbage")
        await site.comes("seed-1", f"{CLUSTERS}/nobody", "Ready", "False", "Unreachable")
        await counts_clusters(site, 4)
        unproven = "not proven in alpha/garbage, alpha/no-secret, alpha/nobody"
        await site.comes("master", "seeds/seed-1", "WebhookServing", "True", "CanaryDenied", unproven)
        await site.apply("master", quota_manifest(cpus(2)))
        quota = f"resourcequotas/{QUOTA}"
        await site.comes("master", quota, "Enforced", "Unknown", "SourceUnreachable", "alpha/nobody", seconds=60)
        await site.admitted("user-1")
        await site.admitted("user-2")
        await site.refused("user-1")
        await site.comes(
            "master",
            quota,
            "UsageCurrent",
            "False",
            "SourceUnreachable",
            "alpha/garbage on seed-1 cannot be reached, and nothing of it is counted yet",
        )
        for kind in ("MachinesSized", "StampsCurrent"):
            await site.comes("seed-1", f"{CLUSTERS}/nobody", kind, "Unknown", "Unreachable")
        status = (await site.get("seed-1", f"{CLUSTERS}/nobody"))["status"]
        assert "machines" not in status, status
    finally:
        for name in secrets:
            await site.delete("seed-1", f"{CLUSTERS}/{name}")
            await site.delete("seed-1", f"/api/v1/namespaces/{PROJECT}/secrets/{name}")
    await site.comes("master", f"resourcequotas/{QUOTA}", "UsageCurrent", "True", "AllReported")
    await counts_clusters(site, 1)


async def counts_clusters(site: Site, count: int) -> None:
    async def holds() -> None:
        status = (await site.get("master", "seeds/seed-1"))["status"]
        assert (status["clusters"], status["version"]) == (count, build_version())

    await until(holds, 30)


async def test_a_seed_knows_of_its_seed_what_it_needs_and_no_secret(site: Site) -> None:
    copy, seed = await site.get("seed-1", "seeds/seed-1"), await site.get("master", "seeds/seed-1")
    assert copy["spec"] == {"copyOf": seed["metadata"]["uid"], "state": "Active"}
    assert (await site.call("seed-1", "PATCH", "seeds/seed-1", {"spec": {"state": "Draining"}})).status == 200

    async def put_right() -> None:
        assert (await site.get("seed-1", "seeds/seed-1"))["spec"]["state"] == "Active"

    await until(put_right, 20)
    await site.delete("seed-1", "seeds/seed-1")

    async def said_again() -> None:
        made = await site.get("seed-1", "seeds/seed-1")
        assert made["metadata"]["uid"] != copy["metadata"]["uid"]
        assert (made["status"]["clusters"], made["status"]["version"]) == (1, build_version())

    await until(said_again, 20)


async def test_a_seed_that_drains_gives_back_what_it_does_not_use_and_gets_no_more_until_it_is_active(
    site: Site,
) -> None:
    await site.quota(cpus(8))
    names = await site.admitted("user-1", 4)
    await site.uses(cpus(4))
    try:
        await site.patch("master", "seeds/seed-1", {"spec": {"state": "Draining"}})

        async def drained() -> None:
            assert (await site.get("seed-1", "seeds/seed-1"))["spec"]["state"] == "Draining"
            held = {seed.name: seed.granted.get("cpu") for seed in (await site.view()).seeds}
            assert held["seed-1"] == "4", held

        await until(drained, 30)

        async def gets_no_more() -> None:
            """A grant that was decided before may come a moment later, and is used or returned."""
            answer = await site.create("user-1")
            if answer.status == 201:
                await site.delete("user-1", f"{MACHINES}/{answer.body['metadata']['name']}")
            assert answer.status == 503, answer
            assert "this seed is draining and gets no more capacity" in answer.message

        await until(gets_no_more, 30)
        assert (await site.create("user-1")).status == 503, "it got more although it drains"
        await site.delete("user-1", f"{MACHINES}/{names[0]}")
        await site.uses(cpus(3))
        await site.admitted("user-2", 5)
        await site.refused("user-2")
        await site.comes("master", "seeds/seed-1", "Ready", "True")
    finally:
        await site.patch("master", "seeds/seed-1", {"spec": {"state": "Active"}})
    await site.quota(cpus(9))

    async def active() -> None:
        answer = await site.create("user-1")
        assert answer.status == 201, answer

    await until(active, 30)
    await site.refused("user-1")
    await site.uses(cpus(9))


async def test_a_webhook_that_a_user_cluster_does_not_reach_is_noticed_and_the_master_says_so(site: Site) -> None:
    """A configuration that is in place proves nothing: a dry run must come back refused, by us."""
    path, quota = f"{CLUSTERS}/user-1", f"resourcequotas/{QUOTA}"
    await site.quota(cpus(4))
    await site.comes("seed-1", path, "Enforced", "True", "CanaryDenied")
    await site.comes("master", quota, "Enforced", "True", "AllSeeds")
    balancer = site.installed.balancers["seed-1"]
    balancer.cut = True
    try:
        await balancer.end_connections()
        await site.delete("user-1", WEBHOOK_CONFIGURATION)  # whatever happens to it, it is tried again
        await site.comes("seed-1", path, "Enforced", "False", "NotServing", "no Machine can be created")
        await site.comes("seed-1", path, "Ready", "False", "NotServing")
        assert "/machines/" not in str((await site.get("seed-1", path))["status"]), "the webhook's URL has a token"
        await site.comes("master", quota, "Enforced", "False", "WebhookNotServing", "alpha/user-1 on seed-1")
        for cluster in ("seed-1", "master"):
            await site.comes(cluster, "seeds/seed-1", "WebhookServing", "False", "NotServing", "alpha/user-1: ")
        await site.comes("master", "seeds/seed-1", "Ready", "False", "NotServing")
        await site.comes("master", "seeds/seed-2", "Ready", "True")
    finally:
        balancer.cut = False
    await site.comes("seed-1", path, "Enforced", "True", "CanaryDenied", seconds=60)
    await site.comes("master", quota, "Enforced", "True", "AllSeeds")
    await site.comes("master", "seeds/seed-1", "WebhookServing", "True", "CanaryDenied")
    await site.uses(cpus(0))  # a dry run costs nothing


async def test_without_the_right_to_create_machines_enforcement_is_in_place_but_not_proven(site: Site) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/seedquota-user-cluster"
    role = await site.get("user-1", path)
    verbs = [
        rule | {"verbs": ["get", "list", "watch"]} if rule["resources"] == ["machines"] else rule
        for rule in role["rules"]
    ]
    await site.patch("user-1", path, {"rules": verbs})

    async def without_the_right() -> None:
        agent = {"Impersonate-User": SEED_USER}
        body = machine("nobodys", SMALL)
        answer = await site.call("user-1", "POST", MACHINES, body, headers=agent, dryRun="All")
        assert answer.status == 403, answer
        assert "cannot create resource" in answer.message, answer

    try:
        await until(without_the_right, 30)  # API servers learn of rights a moment later
        await site.delete("user-1", WEBHOOK_CONFIGURATION)
        await site.comes(
            "seed-1", f"{CLUSTERS}/user-1", "Enforced", "True", "WebhookConfigured", "not proven", seconds=60
        )
        for kind in ("WebhookServing", "Ready"):
            await site.comes("master", "seeds/seed-1", kind, "Unknown", "NotProven", "alpha/user-1")
    finally:
        await site.patch("user-1", path, {"rules": role["rules"]})
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "Enforced", "True", "CanaryDenied", seconds=60)
