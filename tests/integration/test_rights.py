"""The roles of charts/rbac are what the programs call, by the audit logs of real API servers: nothing is refused, and
nothing is granted that nobody asks for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from devcluster.cluster_api import INFRASTRUCTURE_GROUP, infrastructure_crd
from devcluster.controlplane import AUDIT_LOG
from devcluster.install import API, CHARTS, SEED_USER, Installation, named, namespace, quota, rights, secret
from devcluster.load import machine
from devcluster.manifests import MACHINE_CRDS, Manifest, apply, load
from tests.integration.installed.site import MACHINES, SMALL, Json, Site, cpus, until
from tests.integration.test_kubermatic import crd as kubermatic_crd

pytestmark = pytest.mark.integration

SEED, USER, OWN = "seed-1", "user-1", "own"
GROUP = "cluster.k8s.io/v1alpha1"
CAPI = "cluster.x-k8s.io/v1beta2"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
KUBERMATIC = "kubermatic.k8c.io/v1"
SECRETS = "/api/v1/namespaces/seedquota/secrets"
ROLES = {
    "master": ["master"],
    SEED: [
        "seed",
        "seed-namespace",
        "seed-kubermatic",
        "seed-own-machines",
        "seed-own-webhooks",
        "master-on-seed",
    ],
    USER: ["user-cluster"],
}
"""The files of charts/rbac, by the cluster in which the programs have them."""


@dataclass(frozen=True, order=True)
class Right:
    cluster: str
    role: str
    group: str
    resource: str
    verb: str
    name: str = ""


def granted() -> Iterator[Right]:
    for cluster, files in ROLES.items():
        for role in load(*(CHARTS / "rbac" / f"{file}.yaml" for file in files)):
            found: Any = role
            for rule in found["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            for name in rule.get("resourceNames", [""]):
                                yield Right(
                                    cluster, f"{found['kind']} {found['metadata']['name']}", group, resource, verb, name
                                )


@dataclass(frozen=True)
class Call:
    cluster: str
    user: str
    verb: str
    group: str
    resource: str
    name: str
    uri: str
    allowed: bool
    role: str

    def uses(self, right: Right) -> bool:
        return (
            (self.cluster, self.role, self.group, self.verb) == (right.cluster, right.role, right.group, right.verb)
            and right.resource in ("*", self.resource)
            and right.name in ("", self.name)
        )


def calls(installed: Installation) -> Iterator[Call]:
    for cluster in ROLES:
        for line in (installed.directory / cluster / AUDIT_LOG).read_text().splitlines():
            event = json.loads(line)
            of, said = event.get("objectRef"), event.get("annotations", {})
            if of is None or "authorization.k8s.io/decision" not in said:
                continue
            resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
            # RBAC: allowed by ClusterRoleBinding "a" of ClusterRole "b" to User "c"
            reason = said.get("authorization.k8s.io/reason", "").partition(" of ")[2]
            yield Call(
                cluster=cluster,
                user=event["user"]["username"],
                verb=event["verb"],
                group=of.get("apiGroup", ""),
                resource=resource,
                name=of.get("name", ""),
                uri=event["requestURI"],
                allowed=said["authorization.k8s.io/decision"] == "allow",
                role=reason.partition(" to ")[0].replace('"', ""),
            )


def cluster_api_crd(kind: str) -> Manifest:
    found: Any = infrastructure_crd(kind, "v1beta2")
    names = found["spec"]["names"]
    spec = {**found["spec"], "group": "cluster.x-k8s.io"}
    return {**found, "metadata": {"name": f"{names['plural']}.cluster.x-k8s.io"}, "spec": spec}


def metal3_crd() -> Manifest:
    found: Any = infrastructure_crd("BareMetalHost", "v1alpha1")
    return {**found, "metadata": {"name": "baremetalhosts.metal3.io"}, "spec": {**found["spec"], "group": "metal3.io"}}


def made(api: str, kind: str, name: str, in_namespace: str, spec: object, **metadata: object) -> Json:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": in_namespace, **metadata},
        "spec": spec,
    }


def owner(of: Json) -> Json:
    reference = {key: of[key] for key in ("apiVersion", "kind")} | {
        key: of["metadata"][key] for key in ("name", "uid")
    }
    return {"ownerReferences": [{**reference, "controller": True}]}


@pytest_asyncio.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with Installation(tmp_path_factory.mktemp("rights"), seeds=1, audited=True) as installed:
        site = Site(installed)
        yield site
        await site.close()


async def use_what_there_is(site: Site) -> None:
    """Everything that makes the programs call an API server, once."""
    await defaults_and_quotas(site)
    await owners_of_machines(site, USER, "kube-system")
    await secrets_of_the_release(site)
    await kubermatic(site)
    await own_machines(site)
    await cluster_api(site)
    await decisions(site)
    await ends(site)


async def defaults_and_quotas(site: Site) -> None:
    await site.apply("master", named("Organization", "acme"), named("Project", "beta", organization="acme"))
    default = {"project": {"quota": cpus(4)}, "organization": {"quota": cpus(40)}}
    await site.apply("master", named("QuotaSettings", "default", defaults=default))

    async def some(count: int) -> None:
        assert len(await site.items(SEED, "resourcequotas")) == count

    await until(lambda: some(3), 60)
    default["project"] = {"quota": cpus(5)}
    await site.apply("master", named("QuotaSettings", "default", defaults=default))

    async def changed() -> None:
        found = await site.items("master", "resourcequotas")
        assert cpus(5) in [each["spec"]["quota"] for each in found]

    await until(changed, 60)
    await site.patch("master", "quotasettings/default", {"spec": {"defaults": None}})
    await until(lambda: some(0), 60)
    await site.delete("master", "quotasettings/default")
    await site.delete("master", "projects/beta")
    await site.delete("master", "organizations/acme")
    await site.quota(cpus(2))


async def owners_of_machines(site: Site, cluster: str, in_namespace: str) -> None:
    """A Machine is refused, its owners are told, and they are woken when there is room."""
    path = f"/apis/{GROUP}/namespaces/{in_namespace}"

    async def create(body: Json) -> Json:
        answer = await site.call(cluster, "POST", f"{path}/{body['kind'].lower()}s", body)
        assert answer.status == 201, answer
        return answer.body

    template: Any = machine("any", SMALL)
    spec = {"replicas": 3, "template": {"spec": template["spec"]}, "selector": {"matchLabels": {"pool": "p"}}}
    deployment = await create(made(GROUP, "MachineDeployment", "pool", in_namespace, spec))
    machine_set = await create(made(GROUP, "MachineSet", "pool", in_namespace, spec, **owner(deployment)))
    for kind in ("machinedeployments", "machinesets"):
        scaled = await site.call(cluster, "PATCH", f"{path}/{kind}/pool/scale", {"spec": {"replicas": 4}})
        assert scaled.status == 200, scaled
    body = made(GROUP, "Machine", "one", in_namespace, template["spec"], **owner(machine_set))

    async def refused() -> None:
        answer = await site.call(cluster, "POST", f"{path}/machines", body, dryRun="All")
        assert answer.status == 403, answer

    await site.patch("master", "resourcequotas/project-alpha", {"spec": {"quota": cpus(0), "surge": cpus(1)}})
    await until(refused, 60)
    for number in range(2):
        refusal = await site.call(
            cluster, "POST", f"{path}/machines", {**body, "metadata": {**body["metadata"], "name": f"no-{number}"}}
        )
        assert refusal.status == 403, refusal

    async def told() -> None:
        events = await site.items(cluster, f"/apis/events.k8s.io/v1/namespaces/{in_namespace}/events")
        assert any(event["regarding"]["kind"] == "MachineDeployment" and "series" in event for event in events)

    await until(told, 90)
    await site.patch("master", "resourcequotas/project-alpha", {"spec": {"quota": cpus(2), "surge": None}})

    async def woken() -> None:
        found = await site.get(cluster, f"{path}/machinesets/pool")
        assert "seedquota.io/capacity-freed" in found["metadata"].get("annotations", {})

    await until(woken, 60)
    for kind in ("machinesets", "machinedeployments"):
        await site.delete(cluster, f"{path}/{kind}/pool")


async def secrets_of_the_release(site: Site) -> None:
    for name, key in (("seedquota-webhook-key", "key"), ("seedquota-webhook-tls", "tls.crt")):
        path = f"{SECRETS}/{name}"
        before = (await site.get(SEED, path))["data"][key]
        await site.patch(SEED, path, {"data": {key: ""}})

        async def corrected(path: str = path, key: str = key) -> None:
            assert (await site.get(SEED, path))["data"][key]

        await until(corrected, 60)
        if name.endswith("key"):
            assert (await site.get(SEED, path))["data"][key] == before
    for path in (f"{HOOKS}/validatingwebhookconfigurations/seedquota-clusters",):
        await site.patch(SEED, path, {"webhooks": []})

        async def kept(path: str = path) -> None:
            assert (await site.get(SEED, path))["webhooks"]

        await until(kept, 60)
    for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
        path = f"{HOOKS}/{kind}/seedquota-machines"
        await site.patch(USER, path, {"webhooks": []})
        await until(lambda path=path: _kept(site, USER, path), 60)


async def _kept(site: Site, cluster: str, path: str) -> None:
    assert (await site.get(cluster, path))["webhooks"]


async def kubermatic(site: Site) -> None:
    project = {"apiVersion": KUBERMATIC, "kind": "Project", "metadata": {"name": "shop"}, "spec": {"name": "Shop"}}
    await apply(site.server("master"), [kubermatic_crd("Project"), project])
    await until(lambda: site.get(SEED, "projects/shop"), 60)
    cluster = {
        "apiVersion": KUBERMATIC,
        "kind": "Cluster",
        "metadata": {"name": "k1", "labels": {"project-id": "shop"}},
        "spec": {},
    }
    kubeconfig = secret("admin-kubeconfig", "cluster-k1", site.server(USER).kubeconfig(SEED_USER))
    await apply(
        site.server(SEED),
        [
            kubermatic_crd("Cluster"),
            namespace("cluster-k1"),
            *rights("seed-kubermatic", SEED_USER),
            kubeconfig,
            cluster,
        ],
    )
    await apply(site.server("master"), [quota("shop", "shop", {"clusters": "1"})])
    await site.uses({"clusters": "1"}, "shop")
    await site.delete(SEED, f"/apis/{KUBERMATIC}/clusters/k1")
    await site.delete("master", f"/apis/{KUBERMATIC}/projects/shop")

    async def gone() -> None:
        assert (await site.call(SEED, "GET", "projects/shop")).status == 404

    await until(gone, 60)
    await site.delete("master", "resourcequotas/shop")


async def own_machines(site: Site) -> None:
    """A UserCluster without a kubeconfig."""
    cluster = made(API, "UserCluster", "c", OWN, {"project": "alpha"})
    await apply(
        site.server(SEED),
        [
            *load(MACHINE_CRDS),
            namespace(OWN),
            *rights("seed-own-machines", SEED_USER, OWN),
            *rights("seed-own-webhooks", SEED_USER),
            cluster,
        ],
    )
    await site.comes(SEED, f"namespaces/{OWN}/userclusters/c", "Enforced", "True", "CanaryDenied", seconds=60)
    await owners_of_machines(site, SEED, OWN)
    for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
        path = f"{HOOKS}/{kind}/seedquota-machines.{OWN}.c"
        await site.patch(SEED, path, {"webhooks": []})
        await until(lambda path=path: _kept(site, SEED, path), 60)
    await site.delete(SEED, f"namespaces/{OWN}/userclusters/c")

    async def gone() -> None:
        for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
            assert (await site.call(SEED, "GET", f"{HOOKS}/{kind}/seedquota-machines.{OWN}.c")).status == 404

    await until(gone, 60)


async def cluster_api(site: Site) -> None:
    kinds = ("Cluster", "Machine", "MachinePool", "MachineSet", "MachineDeployment")
    infrastructure = ("VSphereMachine", "VSphereMachineTemplate")
    await apply(
        site.server(SEED),
        [
            *(cluster_api_crd(kind) for kind in kinds),
            *(infrastructure_crd(kind, "v1beta1") for kind in infrastructure),
            metal3_crd(),
            made(CAPI, "Cluster", "c1", "alpha", {}, labels={"seedquota.io/project": "alpha"}),
        ],
    )
    configuration = f"{HOOKS}/validatingwebhookconfigurations/seedquota-cluster-api"
    await until(lambda: site.get(SEED, configuration), 60)
    await site.patch(SEED, configuration, {"webhooks": []})
    await until(lambda: _kept(site, SEED, configuration), 60)


async def decisions(site: Site) -> None:
    pass


async def ends(site: Site) -> None:
    await site.delete("master", "resourcequotas/project-alpha")
    await until(lambda: _no_ledgers(site), 60)
    for program in site.installed.programs.values():
        await program.stop()


async def _no_ledgers(site: Site) -> None:
    path = "/apis/seedquota.io/v1alpha1/namespaces/seedquota/quotaledgers"
    for cluster in ("master", SEED):
        assert await site.items(cluster, path) == []


async def test_the_programs_call_what_they_may_and_may_what_they_call(site: Site) -> None:
    await use_what_there_is(site)
    made = list(calls(site.installed))
    refused = sorted({f"{call.user} on {call.cluster}: {call.verb} {call.uri}" for call in made if not call.allowed})
    unused = [right for right in sorted(granted()) if not any(call.uses(right) for call in made)]
    print("\n".join(map(str, unused)))
    assert refused == []
    assert unused == []
