"""The roles of charts/rbac are what the programs call, by the audit logs of real API servers: nothing is refused, and
nothing is granted that nobody asks for."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from cli.__main__ import run as seedquota
from common.api.labels import MANAGED_BY_LABEL
from devcluster.cluster_api import INFRASTRUCTURE_GROUP, infrastructure_crd
from devcluster.controlplane import AUDIT_LOG
from devcluster.install import NAMESPACE, SEED_USER, Installation
from devcluster.load import machine
from devcluster.manifests import MACHINE_CRDS, Manifest, apply, load
from devcluster.objects import API, CHARTS, named, namespace, rights, secret
from seed.projections import definition
from tests.integration import allocation_webhook
from tests.integration.installed.site import CLUSTERS, LEDGERS, MACHINES, QUOTA, SMALL, Json, Site, cpus, until
from tests.integration.installed.test_kubermatic import crd as kubermatic_crd
from tests.running import running

pytestmark = pytest.mark.integration

SEED, USER, OWN = "seed-1", "user-1", "own"
GROUP = "cluster.k8s.io/v1alpha1"
CAPI = "cluster.x-k8s.io/v1beta2"
KINDS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
WEBHOOK_KINDS = dict(zip(KINDS, ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"), strict=True))
PATH = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
KUBERMATIC = "kubermatic.k8c.io/v1"
SECRETS = "/api/v1/namespaces/seedquota/secrets"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ROLES = {
    "master": ["master", "master-api", "master-client-ca", "master-start-check", "master-values"],
    SEED: [
        "seed",
        "seed-namespace",
        "seed-kubermatic",
        "seed-own-machines",
        "seed-own-webhooks",
        "seed-local-quotas",
        "seed-start-check",
        "master-on-seed",
    ],
    USER: ["user-cluster", "user-cluster-namespaces", "user-cluster-secrets"],
}
"""The files of charts/rbac, by the cluster in which the programs have them."""
WORKLOADS = ("apps/v1", "batch/v1", "resource.k8s.io/v1")


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
            for rule in found.get("rules", ()):
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
            call = Call(
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
            yield call
            yield from also_asked(call, event.get("responseStatus", {}).get("code", 0))


def also_asked(call: Call, status: int) -> Iterator[Call]:
    """What an API server has asked its authorizer about beside: the audit log has only the request itself."""
    if (call.verb, status) == ("patch", 201):  # server-side apply of what was not there
        yield replace(call, verb="create")
    if call.resource == "clusterroles" and status in (200, 201):
        found: Any = definition.ROLE
        for rule in found["rules"]:
            for verb in rule["verbs"]:  # nobody gives a right that he does not have
                for resource in rule["resources"]:
                    yield replace(call, verb=verb, group=rule["apiGroups"][0], resource=resource, name="")


def cluster_api_crd(kind: str) -> Manifest:
    found: Any = infrastructure_crd(kind, "v1beta2")
    names = found["spec"]["names"]
    (version,) = found["spec"]["versions"]
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    versions = [{**version, "subresources": {"status": {}, "scale": scale}}]
    spec = {**found["spec"], "group": "cluster.x-k8s.io", "versions": versions}
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
    reference = {key: of[key] for key in ("apiVersion", "kind")} | {key: of["metadata"][key] for key in ("name", "uid")}
    return {"ownerReferences": [{**reference, "controller": True}]}


@pytest_asyncio.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    directory = tmp_path_factory.mktemp("rights")
    async with Installation(directory, seeds=1, audited=True, api=True, also_served=WORKLOADS) as installed:
        site = Site(installed)
        yield site
        await site.close()


async def use_what_there_is(site: Site) -> None:
    """Everything that makes the programs call an API server, once."""
    await defaults_and_quotas(site)
    await owners_of_machines(site, USER, "kube-system")
    await namespaces(site)
    await secrets_of_the_release(site)
    await contention(site)
    await cluster_api(site)
    await own_machines(site)
    await kubermatic(site)
    await decisions(site)
    await added_by_command(site)
    await http_api(site)
    await notifications(site)
    await jobs_of_charts(site)
    await ends(site)


async def notifications(site: Site) -> None:
    """Of the master's own namespace, whose Secrets it knows. To read others it has no right until a tenant gives it."""
    told = named("QuotaNotification", "told", events=["Full"], form="slack", secretRef={"name": "missing"})
    await site.apply("master", {**told, "metadata": {"name": "told", "namespace": NAMESPACE}})
    path = f"namespaces/{NAMESPACE}/quotanotifications/told"
    await site.comes("master", path, "Ready", "False", "SecretNotFound")


async def namespaces(site: Site) -> None:
    """All that the roles name is counted in a user cluster that takes part."""
    await apply(site.server(USER), rights("user-cluster-secrets", SEED_USER))
    of_namespaces = [right for right in granted() if "-user-cluster-" in right.role]
    counted = {(right.group, right.resource) for right in of_namespaces if "webhook" not in right.resource}
    names = sorted(f"count/{resource}.{group}".removesuffix(".") for group, resource in counted)
    subject = {"kind": "namespaces", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}
    quota = {name: 1000 for name in names if name != "count/namespaces"}
    await site.apply("master", named("ResourceQuota", "namespaces", subject=subject, quota=quota))
    path = f"namespaces/alpha/userclusters/{USER}"
    await site.patch(SEED, path, {"spec": {"namespaceQuotas": "Enabled"}})

    async def counts() -> None:
        account = (await site.ledger(SEED, "namespaces"))["account"]
        assert account.get("used") and not account.get("nonce"), account

    configuration = f"{HOOKS}/{KINDS[0]}/seedquota-namespaces"

    async def asks(status: int, *, services: bool = False) -> None:
        answer = await site.call(USER, "GET", configuration)
        assert (answer.status, "'services'" in str(answer.body)) == (status, services), answer

    await until(counts, 60)
    await until(partial(asks, 200, services=True), 60)
    fewer = dict.fromkeys(quota, None) | {"pods": 5}
    await site.patch("master", "resourcequotas/namespaces", {"spec": {"quota": fewer}})
    await until(partial(asks, 200), 60)
    await owners_of_pods(site)
    await own_namespaces(site)
    await site.patch(SEED, path, {"spec": {"namespaceQuotas": "Disabled"}})
    await until(partial(asks, 404), 60)
    await site.delete("master", "resourcequotas/namespaces")


async def owners_of_pods(site: Site) -> None:
    """What makes pods is woken when there is room for the pod that was refused."""
    await site.call(USER, "POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    container = {"name": "c", "image": "i"}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}
    several = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    once = {"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
    owners = []
    for api, kind, spec in (
        ("apps/v1", "ReplicaSet", several),
        ("apps/v1", "StatefulSet", {**several, "serviceName": "a"}),
        ("apps/v1", "DaemonSet", {"selector": several["selector"], "template": template}),
        ("v1", "ReplicationController", {**several, "selector": {"app": "a"}}),
        ("batch/v1", "Job", once),
    ):
        path = f"/api{'s' if '/' in api else ''}/{api}/namespaces/default/{kind.lower()}s"
        answer = await site.call(USER, "POST", path, made(api, kind, "a", "default", spec))
        assert answer.status == 201, answer
        owners.append((f"{path}/a", answer.body))
    await site.patch("master", "resourcequotas/namespaces", {"spec": {"quota": {"pods": 0}}})

    async def refused(of: Json) -> None:
        pod = made("v1", "Pod", "p", "default", {"containers": [container]}, **owner(of))
        answer = await site.call(USER, "POST", "/api/v1/namespaces/default/pods?dryRun=All", pod)
        assert answer.status == 403, answer
        answer = await site.call(USER, "POST", "/api/v1/namespaces/default/pods", pod)
        assert answer.status == 403, answer

    for _, of in owners:
        await until(partial(refused, of), 60)
    await site.patch("master", "resourcequotas/namespaces", {"spec": {"quota": {"pods": 5}}})

    async def woken(path: str) -> None:
        annotations = (await site.get(USER, path))["metadata"].get("annotations", {})
        assert "seedquota.io/capacity-freed" in annotations, annotations

    for path, _ in owners:
        await until(partial(woken, path), 60)
        await site.delete(USER, path)


async def own_namespaces(site: Site) -> None:
    """Those of the seed's own API server take part, too, for a while."""
    rules = [*rights("user-cluster-namespaces", SEED_USER), *rights("seed-local-quotas", SEED_USER)]
    await apply(site.server(SEED), rules)
    await site.patch("master", f"seeds/{SEED}", {"spec": {"namespaceQuotas": "Enabled"}})
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    promised = {"hard": {"pods": "5"}}
    await site.apply("master", named("ResourceQuotaAllocation", "ann", selector=selector, allocation=promised))
    paths = [f"namespaces/default/localresourcequota{kind}" for kind in ("s/namespaces", "allocations/ann")]
    for path in paths:
        await until(partial(site.get, SEED, path), 60)
        await until(partial(site.get, USER, path), 60)
    for kind in ("NamespacesEnforced", "LocalQuotasWritten"):
        await site.comes("master", f"seeds/{SEED}", kind, "True", seconds=60)
    await site.patch("master", f"seeds/{SEED}", {"spec": {"namespaceQuotas": "Disabled"}})
    await until(lambda: gone(site, SEED, *paths, f"{HOOKS}/{KINDS[0]}/seedquota-namespaces"), 60)
    await site.delete("master", "resourcequotaallocations/ann")
    await until(lambda: gone(site, USER, paths[1]), 60)


async def defaults_and_quotas(site: Site) -> None:
    await site.apply("master", named("Organization", "acme"), named("Project", "beta", organization="acme"))
    await namespace_is_owned(site, "acme")
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
    await site.apply("master", named("Organization", "acme"))
    await namespace_is_owned(site, "acme")
    await site.delete("master", "organizations/acme")
    await quotas_of_allocations(site)


async def quotas_of_allocations(site: Site) -> None:
    selector, allocation = {"matchLabels": {"owner": "bob"}}, {"hard": {"pods": "5"}}
    await site.apply("master", named("ResourceQuotaAllocation", "bob", selector=selector, allocation=allocation))

    async def shown() -> None:
        assert (await site.get("master", "resourcequotaallocations/bob"))["status"]["conditions"]

    await until(shown, 60)
    await site.delete("master", "resourcequotaallocations/bob")
    await until(lambda: gone(site, "master", "resourcequotas/allocation.bob"), 60)


async def namespace_is_owned(site: Site, organization: str) -> None:
    """It is made, or taken over from an Organization of that name that was deleted."""

    async def owned() -> None:
        found = (await site.get("master", f"organizations/{organization}"))["metadata"]["uid"]
        there = await site.get("master", f"/api/v1/namespaces/org-{organization}")
        assert [each["uid"] for each in there["metadata"]["ownerReferences"]] == [found]

    await until(owned, 60)


async def owners_of_machines(
    site: Site, cluster: str, in_namespace: str, api: str = GROUP, spec: object = None, template: object = None
) -> None:
    """A Machine is refused, its owners are told, and they are woken when there is room."""
    path = f"/apis/{api}/namespaces/{in_namespace}"
    any_machine: Any = machine("any", SMALL)
    spec, template = spec or any_machine["spec"], template or any_machine["spec"]

    async def create(kind: str, name: str, spec: object, status: int = 201, **metadata: object) -> Json:
        answer = await site.decision(
            cluster, "POST", f"{path}/{kind.lower()}s", made(api, kind, name, in_namespace, spec, **metadata)
        )
        assert answer.status == status, answer
        return answer.body

    await limit(site, machines="1", surge={"machines": "1"})
    pool = {
        "clusterName": "c1",
        "replicas": 3,
        "template": {"metadata": {"labels": {"pool": "p"}}, "spec": template},
        "selector": {"matchLabels": {"pool": "p"}},
    }
    deployment = await create("MachineDeployment", "pool", pool)
    machine_set = await create("MachineSet", "pool", pool, **owner(deployment))
    for kind in ("machinedeployments", "machinesets"):
        scaled = await site.call(cluster, "PATCH", f"{path}/{kind}/pool/scale", {"spec": {"replicas": 4}})
        assert scaled.status == 200, scaled
    await create("Machine", "first", spec, labels={"pool": "p"}, **owner(machine_set))
    await site.uses({"machines": "1"})

    async def refused() -> None:
        await create("Machine", "second", spec, 403, labels={"pool": "p"}, **owner(machine_set))

    async def told(series: bool) -> None:
        events = await site.items(cluster, f"/apis/events.k8s.io/v1/namespaces/{in_namespace}/events")
        about = [event for event in events if event["regarding"]["kind"] == "MachineDeployment"]
        assert [True for event in about if not series or "series" in event]

    await until(refused, 30)
    await until(lambda: told(False), 60)
    await refused()
    await until(lambda: told(True), 60)
    await limit(site, machines="2")

    async def woken() -> None:
        found = await site.get(cluster, f"{path}/machinesets/pool")
        assert "seedquota.io/capacity-freed" in found["metadata"].get("annotations", {})

    await until(woken, 60)
    for kind, name in (("machines", "first"), ("machinesets", "pool"), ("machinedeployments", "pool")):
        await site.delete(cluster, f"{path}/{kind}/{name}")
    await site.uses({"machines": "0"})


async def limit(site: Site, surge: Json | None = None, **limits: str) -> None:
    subject = {"kind": "project", "name": "alpha"}
    more = {"surge": surge} if surge else {}
    await site.apply("master", named("ResourceQuota", QUOTA, subject=subject, quota=limits, **more))
    await site.installed.enforced(QUOTA, 60)


async def contention(site: Site) -> None:
    """Somebody else writes the ledger while a Machine is claimed, until the writer takes it (rule 4.1)."""

    async def taken() -> None:
        ledger = (await site.ledger(SEED))["metadata"]["name"]

        async def disturb() -> None:
            for number in range(20):
                patch = {"metadata": {"annotations": {"example.com/number": str(number)}}}
                await site.patch(SEED, f"{LEDGERS}/{ledger}", patch)

        async with running(disturb()) as (disturbing,):
            answer = await site.create(USER)
            await disturbing
        if answer.status == 201:
            await site.delete(USER, f"{MACHINES}/{answer.body['metadata']['name']}")
        assert any((call.resource, call.verb) == ("quotaledgers", "patch") for call in calls(site.installed))

    await until(taken, 90)
    await site.uses({"machines": "0"})


async def secrets_of_the_release(site: Site) -> None:
    for name, key in (("seedquota-webhook-key", "seal-key"), ("seedquota-webhook-tls", "tls.crt")):
        path = f"{SECRETS}/{name}"
        before = (await site.get(SEED, path))["data"][key]
        await site.patch(SEED, path, {"data": {key: ""}})

        async def corrected(path: str = path, key: str = key) -> None:
            assert (await site.get(SEED, path))["data"][key]

        await until(corrected, 60)
        if name.endswith("key"):
            assert (await site.get(SEED, path))["data"][key] == before
    places = [(SEED, f"{HOOKS}/{KINDS[0]}/seedquota-clusters")]
    places += [(USER, f"{HOOKS}/{kind}/seedquota-machines") for kind in KINDS]
    for place in places:
        await site.patch(*place, {"webhooks": []})
        await until(partial(kept, site, *place), 60)


async def kept(site: Site, cluster: str, path: str) -> None:
    assert (await site.get(cluster, path))["webhooks"]


async def kubermatic(site: Site) -> None:
    """Its Project, and its Cluster, which is the one that had a UserCluster before."""
    project = {"apiVersion": KUBERMATIC, "kind": "Project", "metadata": {"name": "shop"}, "spec": {"name": "Shop"}}
    await apply(site.server("master"), [kubermatic_crd("Project"), project])
    await until(lambda: site.get(SEED, "projects/shop"), 60)
    await site.delete(SEED, f"{CLUSTERS}/{USER}")
    await until(lambda: gone(site, USER, *(f"{HOOKS}/{kind}/seedquota-machines" for kind in KINDS)), 60)
    metadata = {"name": "k1", "labels": {"project-id": "alpha"}}
    cloud = {"dc": "dc1", "providerName": "openstack", "openstack": {}}
    cluster = {"apiVersion": KUBERMATIC, "kind": "Cluster", "metadata": metadata, "spec": {"cloud": cloud}}
    place = {"openstack": {"authURL": "https://127.0.0.1:1/v3", "region": "RegionOne"}}
    datacenters = {"datacenters": {"dc1": {"spec": place}}}
    account = {"applicationCredentialID": "id", "applicationCredentialSecret": "s3cret"}
    credentials = {"apiVersion": "v1", "kind": "Secret", "stringData": account}
    clouds = [
        kubermatic_crd("Seed", "Namespaced"),
        namespace("kubermatic"),
        made(KUBERMATIC, "Seed", "seed", "kubermatic", datacenters),
        {**credentials, "metadata": {"name": "cloud-credentials", "namespace": "cluster-k1"}},
    ]
    kubeconfig = secret("admin-kubeconfig", "cluster-k1", site.server(USER).kubeconfig(SEED_USER))
    role = rights("seed-kubermatic", SEED_USER)
    crd = kubermatic_crd("Cluster")
    await apply(site.server(SEED), [crd, namespace("cluster-k1"), *role, kubeconfig, *clouds, cluster])
    await until(lambda: site.get(USER, f"{HOOKS}/{KINDS[0]}/seedquota-machines"), 60)
    await site.call(
        USER, "POST", f"{PATH}/machinedeployments", made(GROUP, "MachineDeployment", "pool", "kube-system", {})
    )

    async def asked() -> None:
        """A replica connects with the kubeconfig when it has something to read there."""
        scaled = await site.call(USER, "PATCH", f"{PATH}/machinedeployments/pool/scale", {"spec": {"replicas": 9}})
        assert scaled.status == 200, scaled
        reads = [call for call in calls(site.installed) if call.name == "admin-kubeconfig" and call.verb == "get"]
        assert reads

    await until(asked, 60)
    flavored: Any = machine("flavored", SMALL)
    flavored["spec"]["providerSpec"]["value"] = {
        "cloudProvider": "openstack",
        "cloudProviderSpec": {"flavor": "m1.small"},
    }

    async def sized() -> None:
        """Nobody answers there; the credentials for it are read before."""
        answer = await site.call(USER, "POST", MACHINES, flavored)
        assert "https://127.0.0.1:1/v3 cannot be reached" in answer.message, answer

    await until(sized, 30)
    await site.delete(SEED, f"/apis/{KUBERMATIC}/clusters/k1")
    await site.delete("master", f"/apis/{KUBERMATIC}/projects/shop")
    await until(lambda: gone(site, SEED, "projects/shop"), 60)


async def gone(site: Site, cluster: str, *paths: str) -> None:
    for path in paths:
        assert (await site.call(cluster, "GET", path)).status == 404


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
    for kind in KINDS:
        path = f"{HOOKS}/{kind}/seedquota-machines.{OWN}.c"
        await site.patch(SEED, path, {"webhooks": []})
        await until(partial(kept, site, SEED, path), 60)
    token = {"configMapKeyRef": {"namespace": OWN, "name": "none", "key": "token"}}
    value = {"cloudProvider": "hetzner", "cloudProviderSpec": {"serverType": "cx22", "token": token}}
    unsized = made(GROUP, "Machine", "unsized", OWN, {"providerSpec": {"value": value}})
    answer = await site.call(SEED, "POST", f"/apis/{GROUP}/namespaces/{OWN}/machines", unsized)
    assert answer.status == 422, answer
    await site.delete(SEED, f"namespaces/{OWN}/userclusters/c")
    await until(lambda: gone(site, SEED, *(f"{HOOKS}/{kind}/seedquota-machines.{OWN}.c" for kind in KINDS)), 60)


async def cluster_api(site: Site) -> None:
    kinds = ("Cluster", "Machine", "MachinePool", "MachineSet", "MachineDeployment")
    infrastructure = ("VSphereMachine", "VSphereMachineTemplate")
    size = {"numCPUs": 1, "memoryMiB": 1024, "diskGiB": 1}
    kind = f"{INFRASTRUCTURE_GROUP}/v1beta1"
    await apply(
        site.server(SEED),
        [
            *(cluster_api_crd(kind) for kind in kinds),
            *(infrastructure_crd(kind, "v1beta1") for kind in infrastructure),
            metal3_crd(),
            made(kind, "VSphereMachine", "small", "alpha", size),
            made(kind, "VSphereMachineTemplate", "small", "alpha", {"template": {"spec": size}}),
            made(CAPI, "Cluster", "c1", "alpha", {}, labels={"seedquota.io/project": "alpha"}),
        ],
    )
    configuration = f"{HOOKS}/{KINDS[0]}/seedquota-cluster-api"
    await until(lambda: site.get(SEED, configuration), 60)
    await site.patch(SEED, configuration, {"webhooks": []})
    await until(lambda: kept(site, SEED, configuration), 60)
    await withdrawn(site)

    def spec(kind: str, name: str, of: str = "c1") -> Json:
        reference = {"apiGroup": INFRASTRUCTURE_GROUP, "kind": kind, "name": name}
        return {"clusterName": of, "bootstrap": {"dataSecretName": "none"}, "infrastructureRef": reference}

    small, template = spec("VSphereMachine", "small"), spec("VSphereMachineTemplate", "small")
    await owners_of_machines(site, SEED, "alpha", CAPI, small, template)
    path = f"/apis/{CAPI}/namespaces/alpha"
    for unknown in (spec("VSphereMachine", "none"), spec("VSphereMachine", "none", "ghost")):
        answer = await site.call(SEED, "POST", f"{path}/machines", made(CAPI, "Machine", "m", "alpha", unknown))
        assert answer.status in (403, 404, 422, 503), answer
    pool = {"clusterName": "c1", "replicas": 0, "template": {"spec": template}}
    await site.call(SEED, "POST", f"{path}/machinepools", made(CAPI, "MachinePool", "pool", "alpha", pool))
    await site.call(SEED, "PATCH", f"{path}/machinepools/pool/scale", {"spec": {"replicas": 1}})
    twin = made(CAPI, "Cluster", USER, "alpha", {}, labels={"seedquota.io/project": "alpha"})
    await limit(site, clusters="2")
    answer = await site.call(SEED, "POST", f"{path}/clusters", twin)
    assert answer.status == 201, "the UserCluster of that name stands for the same cluster"
    await site.delete(SEED, f"{path}/clusters/{USER}")
    await limit(site, machines="2")
    await site.delete(SEED, f"{path}/machinepools/pool")
    await site.uses({"machines": "0"})
    await site.delete(SEED, f"{path}/clusters/c1")
    for kind in ("machines", "machinepools"):
        await site.delete(SEED, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.cluster.x-k8s.io")
    await until(lambda: gone(site, SEED, configuration), 60)


async def decisions(site: Site) -> None:
    """As a request of somebody else looks."""
    pages = [("GET", "decisions/ABCDEFGH", 404), ("GET", "namespaces/none", 404), ("GET", "machinetypes/none", 200)]
    pages.append(("POST", "needs", 400))
    headers = {"X-Forwarded-For": "192.0.2.1"}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/seedquota-explain/token"
    await apply(site.server(SEED), load(CHARTS / "rbac" / "explain.yaml"))
    for audience, refused in (("", 401), ("https://kubernetes.default.svc", 401), ("seedquota", 0)):
        if audience:
            request = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": [audience]},
            }
            token = (await site.call(SEED, "POST", path, request)).body["status"]["token"]
            headers["Authorization"] = f"Bearer {token}"
        for method, page, status in pages:
            url = f"{site.program(SEED).health}/{page}"
            async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as answer:
                assert answer.status == (refused or status), (audience, url, await answer.text())


async def command(site: Site, *arguments: str) -> None:
    assert await asyncio.to_thread(seedquota, arguments) == 0, arguments


async def added_by_command(site: Site) -> None:
    """The seed's kubeconfig becomes one with a token, whose life is half over soon after. The master renews it."""
    files = {name: site.installed.directory / f"{name}-admin.kubeconfig" for name in ("master", SEED)}
    for name, file in files.items():
        file.write_text(site.server(name).kubeconfig())
    await site.patch("master", f"{SECRETS}/{SEED}", {"metadata": {"labels": {MANAGED_BY_LABEL: "seedquota"}}})
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUBECONFIG", str(files["master"]))
        await command(site, "seed", "add", SEED, "--seed-kubeconfig", str(files[SEED]))
        await asyncio.to_thread(seedquota, ("doctor", "--seed", SEED))
        await command(site, "denials", "--seed", SEED)

    async def token() -> str:
        text = base64.b64decode((await site.get("master", f"{SECRETS}/{SEED}"))["data"]["kubeconfig"]).decode()
        return str(yaml.safe_load(text)["users"][0]["user"]["token"])

    new = await token()
    old = aged(new, site.server(SEED).service_account_key, 600)
    text = base64.b64decode((await site.get("master", f"{SECRETS}/{SEED}"))["data"]["kubeconfig"]).decode()
    data = {"kubeconfig": base64.b64encode(text.replace(new, old).encode()).decode()}
    await site.patch("master", f"{SECRETS}/{SEED}", {"data": data})

    async def renewed() -> None:
        assert await token() not in (old, new)

    await until(renewed, 60)
    await site.comes("master", f"seeds/{SEED}", "Connected", "True")


def aged(token: str, key: Path, seconds: int) -> str:
    """The same token as the API server would have issued it so long ago, for twice as long."""
    head, claims, _ = token.split(".")
    changed = json.loads(base64.urlsafe_b64decode(claims + "=="))
    issued = int(time.time()) - seconds
    changed |= {"iat": issued, "nbf": issued, "exp": issued + 2 * seconds}
    body = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")
    signing = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(signing.sign(f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256())))
    signature = base64.urlsafe_b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode().rstrip("=")
    return f"{head}.{body}.{signature}"


async def withdrawn(site: Site) -> None:
    """The command has the agents' own rights, as in a Job of their ServiceAccount."""
    kubeconfig = site.installed.directory / f"{SEED}-agent.kubeconfig"
    kubeconfig.write_text(site.server(SEED).kubeconfig(SEED_USER))
    places = [f"{HOOKS}/{KINDS[0]}/{name}" for name in ("seedquota-clusters", "seedquota-cluster-api")]
    await command(site, "uninstall", "seed", "--kubeconfig", str(kubeconfig))
    await gone(site, SEED, *places)
    await gone(site, USER, *(f"{HOOKS}/{kind}/seedquota-machines" for kind in KINDS))
    await command(site, "uninstall", "seed", "--kubeconfig", str(kubeconfig), "--undo")
    for place in places:
        await until(partial(kept, site, SEED, place), 60)


async def jobs_of_charts(site: Site) -> None:
    """What they run, by accounts of their own. That a pod is there, and where, says an object."""
    for cluster, what in (("master", "master"), (SEED, "seed")):
        name = f"seedquota-{what}"
        program = site.program("master" if what == "master" else SEED)
        where = {"name": "health", "containerPort": int(program.health.rpartition(":")[2])}
        container = {"name": "c", "image": "i", "ports": [where]}
        labels = {"app.kubernetes.io/name": name}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        await site.call(
            cluster, "POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": name}}
        )
        spec = {"serviceAccountName": name, "containers": [container]}
        answer = await site.call(cluster, "POST", path, made("v1", "Pod", name, NAMESPACE, spec, labels=labels))
        assert answer.status == 201, answer
        at = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        await site.patch(cluster, f"{path}/{name}/status", {"status": at})
        kubeconfig = await of_account(site, cluster, f"{what}-start-check")
        await command(site, "start-check", what, "--timeout=30s", f"--kubeconfig={kubeconfig}")
        await site.delete(cluster, f"{path}/{name}?gracePeriodSeconds=0")
    objects = site.installed.directory / "objects.yaml"
    from_values = named("Seed", "values", kubeconfigSecretRef={"name": "values"})
    objects.write_text(yaml.safe_dump_all([from_values, named("QuotaSettings", "default", scaleCheck="warn")]))
    kubeconfig = await of_account(site, "master", "master-values")
    await command(site, "apply", f"--filename={objects}", f"--kubeconfig={kubeconfig}")
    await site.delete("master", "seeds/values")
    await site.delete("master", "quotasettings/default")


async def of_account(site: Site, cluster: str, role: str) -> Path:
    """A kubeconfig of the ServiceAccount that has this role and no other."""
    account = f"seedquota-{role}"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    bound = [{**each, "subjects": [subject]} if "roleRef" in each else each for each in rights(role, account)]
    await apply(site.server(cluster), bound)
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    answer = await site.call(cluster, "POST", path, {"metadata": {"name": account}})
    assert answer.status == 201, answer
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await site.call(cluster, "POST", f"{path}/{account}/token", request)).body["status"]["token"]
    config = yaml.safe_load(site.server(cluster).kubeconfig())
    config["users"][0]["user"] = {"token": token}
    kubeconfig = site.installed.directory / f"{account}.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    return kubeconfig


async def http_api(site: Site) -> None:
    """By the CA in the Secret, which the program renews when it is lost."""
    path = f"{SECRETS}/seedquota-api-tls"
    before = (await site.get("master", path))["data"]["tls.crt"]
    await site.patch("master", path, {"data": {"tls.crt": ""}})
    headers = {"Authorization": f"Bearer {site.server('master').tokens['admin']}"}

    async def asked() -> aiohttp.ClientSession:
        found = (await site.get("master", path))["data"]
        assert found["tls.crt"] not in ("", before)
        tls = ssl.create_default_context(cadata=base64.b64decode(found["ca.crt"]).decode())
        session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=tls))
        try:
            async with session.get(f"{site.installed.api_url}/api/v2/quotas/{QUOTA}") as answer:
                assert (answer.status, (await answer.json())["name"]) == (200, QUOTA)
        except BaseException:
            await session.close()
            raise
        return session

    async with await until(asked, 60) as session, allocation_webhook.serving() as webhook:
        webhook.limits = {"servers": 9}
        await site.apply("master", webhook.configuration(), named("Organization", "http"))
        await site.apply("master", named("Project", "http", organization="http"))
        await namespace_is_owned(site, "http")
        await allocated(session, f"{site.installed.api_url}/api/v1/organizations/http/projects/http/allocations")
        await edited(session, site)
        for there in (f"{HOOKS}/{KINDS[0]}/seedquota-allocations", "projects/http", "organizations/http"):
            await site.delete("master", there)


async def allocated(session: aiohttp.ClientSession, path: str) -> None:
    """Made, changed and released."""
    spec = {"kind": "server", "id": "1", "resources": [{"type": "servers", "committed": 1}]}

    async def made() -> None:
        async with session.post(path, json={"metadata": {"id": "one"}, "spec": spec}) as answer:
            assert answer.status in (200, 201), await answer.text()

    await until(made, 60)
    async with session.put(f"{path}/one", json={"spec": {"resources": []}}) as answer:
        assert answer.status == 200, await answer.text()
    async with session.delete(f"{path}/one") as answer:
        assert answer.status == 204, await answer.text()


async def edited(session: aiohttp.ClientSession, site: Site) -> None:
    """A default quota, where there are no settings yet and where there are, and the state of a seed that nobody has."""
    await site.delete("master", "quotasettings/default")
    await site.apply("master", named("Seed", "http", kubeconfigSecretRef={"name": "none"}))
    default, seed = (
        f"{site.installed.api_url}/api/v1/{path}" for path in ("defaults/organization", "seeds/http/state")
    )

    async def known() -> None:
        for path, body in ((default, {"quota": {"clusters": 9}}), (seed, {"state": "Draining"})):
            async with session.put(path, json=body) as answer:
                assert answer.status == 200, await answer.text()

    await until(known, 30)
    async with session.delete(default) as answer:
        assert answer.status == 204, await answer.text()
    for there in ("seeds/http", "quotasettings/default"):
        await site.delete("master", there)


async def ends(site: Site) -> None:
    """Copies change; a program that starts again takes over what it finds; what is gone goes everywhere."""
    await site.apply("master", named("Organization", "acme"))
    await until(lambda: site.get(SEED, "organizations/acme"), 60)
    await site.apply("master", named("Organization", "acme", displayName="Acme"))
    await site.apply("master", named("Project", "alpha", displayName="Alpha"))

    async def changed() -> None:
        assert (await site.get(SEED, "organizations/acme"))["spec"] == {"displayName": "Acme"}
        assert (await site.get(SEED, "projects/alpha"))["spec"] == {"displayName": "Alpha"}

    for program in site.installed.programs.values():
        await program.stop()
        await program.start()
    await site.ready()
    await until(changed, 60)
    await site.patch("master", f"resourcequotas/{QUOTA}", {"spec": {"quota": cpus(3)}})
    await site.comes("master", f"resourcequotas/{QUOTA}", "Enforced", "True")
    await site.delete("master", f"resourcequotas/{QUOTA}")
    await until(lambda: _no_ledgers(site), 60)
    await site.patch("master", f"seeds/{SEED}", {"spec": {"state": "Draining"}})

    async def drains() -> None:
        assert (await site.get(SEED, f"seeds/{SEED}"))["spec"]["state"] == "Draining"

    await until(drains, 60)
    await site.delete("master", f"seeds/{SEED}")
    await site.apply("master", named("Seed", SEED, kubeconfigSecretRef={"name": SEED}))

    async def made_again() -> None:
        uid = (await site.get("master", f"seeds/{SEED}"))["metadata"]["uid"]
        assert (await site.get(SEED, f"seeds/{SEED}"))["spec"]["copyOf"] == uid

    await until(made_again, 60)
    for program in site.installed.programs.values():
        await program.stop()


async def _no_ledgers(site: Site) -> None:
    for cluster in ("master", SEED):
        assert await site.items(cluster, LEDGERS) == []


async def test_the_programs_call_what_they_may_and_may_what_they_call(site: Site) -> None:
    await use_what_there_is(site)
    made = list(calls(site.installed))
    allowed, refused = (
        {f"{call.user} on {call.cluster}: {call.verb} {call.uri}" for call in made if call.allowed is said}
        for said in (True, False)
    )
    unused = [right for right in sorted(granted()) if not any(call.uses(right) for call in made)]
    print("\n".join(map(str, unused)))
    assert sorted(refused - allowed) == [], "nor would be, once the API server has heard of all rights"
    assert unused == []


def asks_about(
    name: str,
    group: str,
    resource: str,
    kind: str = "ValidatingWebhookConfiguration",
    *,
    operation: str = "*",
    scope: str = "*",
) -> Json:
    rule = {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": [operation],
        "resources": [resource],
        "scope": scope,
    }
    hook = {
        "name": "a.example.com",
        "clientConfig": {"url": "https://192.0.2.1/"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    api = "admissionregistration.k8s.io/v1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "webhooks": [hook]}


async def test_a_stolen_token_of_the_agent_gives_neither_secrets_nor_webhooks_of_others(site: Site) -> None:
    """After the other test: the agent has every role there is, and none of its programs runs."""
    seed = site.server(SEED)
    await site.call(SEED, "POST", f"{HOOKS}/{KINDS[0]}", asks_about("others", "apps", "deployments"))
    async with seed.session(SEED_USER) as session:

        async def send(method: str, path: str, body: object = None) -> tuple[int, str]:
            async with session.request(method, path, json=body) as answer:
                return answer.status, str((await answer.json()).get("message", ""))

        for name, group, resource, said in (
            ("mine", "cluster.k8s.io", "machines", "it is not its own"),
            ("seedquota-machines.a.b", "", "secrets", "may ask about clusters, Machines and Allocations only"),
            ("seedquota-clusters", "*", "*", "may ask about clusters, Machines and Allocations only"),
        ):
            for kind in KINDS:
                body = asks_about(name, group, resource, WEBHOOK_KINDS[kind])
                status, message = await send("POST", f"{HOOKS}/{kind}", body)
                assert (status, said in message) == (403, True), message
        for group, resource, operation, scope in (
            ("", "*", "CREATE", "Namespaced"),
            ("*", "pods", "CREATE", "Namespaced"),
            ("", "serviceaccounts/token", "CREATE", "Namespaced"),
            ("", "pods/exec", "CONNECT", "Namespaced"),
            ("authentication.k8s.io", "tokenreviews", "CREATE", "Cluster"),
            ("", "pods", "CREATE", "*"),
            ("", "nodes", "CREATE", "Cluster"),
        ):
            body = asks_about("seedquota-namespaces", group, resource, operation=operation, scope=scope)
            status, message = await send("POST", f"{HOOKS}/{KINDS[0]}", body)
            assert (status, "may ask about what is created and changed" in message) == (403, True), (resource, message)
        for kind, expected in zip(KINDS, (201, 403), strict=True):  # what it asks about in namespaces, it never changes
            known = {"operation": "CREATE", "scope": "Namespaced"}
            body = asks_about("seedquota-namespaces", "", "pods", WEBHOOK_KINDS[kind], **known)
            status, message = await send("POST", f"{HOOKS}/{kind}", body)
            assert status == expected, message
        path = f"{HOOKS}/{KINDS[0]}"
        whose = asks_about("seedquota-namespaces", "", "namespaces", operation="UPDATE", scope="Cluster")
        assert (await send("POST", f"{path}?dryRun=All", whose))[0] == 409, "the policy lets it: it is there already"
        assert (await send("DELETE", f"{path}/seedquota-namespaces"))[0] == 200
        secrets = asks_about("seedquota-namespaces", "", "secrets", **known)
        binding = next(each for each in rights("user-cluster-namespaces", SEED_USER) if "roleRef" in each)
        await site.delete(SEED, f"{BINDINGS}/{binding['metadata']['name']}")

        async def refused() -> None:
            status, message = await send("POST", f"{path}?dryRun=All", secrets)
            assert (status, "only with the rights of" in message) == (403, True), message

        await until(refused, 30)
        await apply(seed, [binding])

        async def allowed() -> None:
            assert (await send("POST", f"{path}?dryRun=All", secrets))[0] == 201

        await until(allowed, 30)
        assert (await send("DELETE", f"{HOOKS}/{KINDS[0]}/others"))[0] == 403
        status, message = await send(
            "POST", f"{HOOKS}/{KINDS[0]}", asks_about("seedquota-machines.a.b", "cluster.k8s.io", "machines")
        )
        assert status == 201, message
        for name, of in (("mine", "Opaque"), ("seedquota-webhook-key", "kubernetes.io/service-account-token")):
            metadata = {"name": name, "annotations": {"kubernetes.io/service-account.name": "seedquota-explain"}}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": of}
            status, message = await send("POST", SECRETS, body)
            assert (status, "may write the Secrets" in message) == (403, True), message
        for path in ("/api/v1/secrets", "/api/v1/namespaces/kube-system/secrets", SECRETS):
            assert (await send("GET", path))[0] == 403, path
        assert (await send("GET", "/api/v1/namespaces/alpha/secrets"))[0] == 200, "it has user clusters"
