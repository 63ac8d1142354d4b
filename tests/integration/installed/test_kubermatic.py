"""A seed of Kubermatic's community edition: its Projects and Clusters are ours without being declared once more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from devcluster.install import SEED_USER
from devcluster.load import Size, machine
from devcluster.manifests import Manifest, apply
from devcluster.objects import namespace, quota, rights, secret
from tests.integration.installed.site import MACHINES, Answer, Json, Site, until

pytestmark = pytest.mark.integration

API = "kubermatic.k8c.io/v1"
PATH = f"/apis/{API}"
PROJECT, OTHER = "x7k2m9q4wz", "b3n8v5c1rt"  # ids as Kubermatic gives them
CLUSTER, SERVER = "qpwoeiruty", "kubermatic"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-machines"
LIMITS = {"clusters": "1", "cpu": "4"}


def crd(kind: str, scope: str = "Cluster") -> Manifest:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    served = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kubermatic.k8c.io"},
        "spec": {
            "group": "kubermatic.k8c.io",
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def project(name: str, display_name: str) -> Json:
    return {"apiVersion": API, "kind": "Project", "metadata": {"name": name}, "spec": {"name": display_name}}


def cluster(name: str, project: str) -> Json:
    labels = {"project-id": project} if project else {}
    return {"apiVersion": API, "kind": "Cluster", "metadata": {"name": name, "labels": labels}, "spec": {}}


@pytest_asyncio.fixture(scope="module")
async def site(installation: Site) -> AsyncIterator[Site]:
    await installation.installed.start_user_cluster(SERVER)
    installation.add(installation.server(SERVER))
    try:
        yield installation
        for where, plural in (("seed-1", "clusters"), ("master", "projects")):
            for found in await installation.items(where, f"{PATH}/{plural}"):
                await installation.delete(where, f"{PATH}/{plural}/{found['metadata']['name']}")

        async def forgotten() -> None:
            for where in ("master", *installation.installed.seeds):
                for name in (PROJECT, OTHER):
                    assert (await installation.call(where, "GET", f"projects/{name}")).status == 404

        await until(forgotten, 60)
    finally:  # others share the installation
        for where, plural in (("seed-1", "clusters"), ("seed-1", "seeds"), ("master", "projects")):
            await installation.delete(where, f"{CRDS}/{plural}.kubermatic.k8c.io")
        await installation.server(SERVER).kill()


async def create(site: Site, name: str, project: str = PROJECT) -> Answer:
    return await site.decision("seed-1", "POST", f"{PATH}/clusters", cluster(name, project))


async def create_machine(site: Site, name: str) -> Answer:
    return await site.decided(SERVER, machine(name, Size("3", "1Gi", "1Gi")))


async def test_projects_of_kubermatic_are_subjects_of_quotas_as_long_as_they_exist(site: Site) -> None:
    await apply(site.server("master"), [crd("Project"), project(PROJECT, "Shop"), project(OTHER, "Blog")])
    await apply(site.server("master"), [quota("shop", PROJECT, LIMITS)])
    await site.comes("master", "resourcequotas/shop", "Ready", "True")
    assert (await site.get("master", f"projects/{PROJECT}"))["spec"] == {"displayName": "Shop"}
    await until(lambda: site.get("seed-1", f"projects/{OTHER}"), 30)

    await site.delete("master", f"projects/{PROJECT}")

    async def again() -> None:
        assert not (await site.get("master", f"projects/{PROJECT}"))["metadata"].get("deletionTimestamp")

    await until(again, 30)

    await site.patch("master", f"projects/{OTHER}", {"spec": {"organization": "acme"}})

    async def in_organization() -> None:
        for where in ("master", "seed-1"):
            spec = {"displayName": "Blog", "organization": "acme"}
            assert (await site.get(where, f"projects/{OTHER}"))["spec"] == spec

    await until(in_organization, 30)
    await site.delete("master", f"{PATH}/projects/{OTHER}")

    async def gone() -> None:
        for where in ("master", "seed-1"):
            assert (await site.call(where, "GET", f"projects/{OTHER}")).status == 404
        assert (await site.get("master", "projects/alpha"))["metadata"]["name"] == "alpha", "it is none of Kubermatic's"

    await until(gone, 30)


async def test_clusters_of_kubermatic_are_limited_and_their_machines_too(site: Site) -> None:
    await apply(site.server("seed-1"), [crd("Cluster")])
    assert (await create(site, CLUSTER)).status == 201
    await site.uses({"clusters": "1", "cpu": "0"}, "shop")

    async def full() -> None:
        refused = await create(site, "another")
        assert refused.status == 403, refused
        assert "exceeded quota: shop, requested: clusters=1, used: clusters=1, limited: clusters=1" in refused.message

    await until(full, 30)
    assert (await create(site, "nobodys", "")).status == 201

    control_plane = f"cluster-{CLUSTER}"
    await site.call(
        "seed-1", "PATCH", f"{PATH}/clusters/{CLUSTER}/status", {"status": {"namespaceName": control_plane}}
    )
    kubeconfig = secret("admin-kubeconfig", control_plane, site.server(SERVER).kubeconfig(SEED_USER))
    assert (await create_machine(site, "before")).status == 201, "nobody was told of that server yet"
    role = rights("seed-kubermatic", SEED_USER, control_plane)
    await apply(site.server("seed-1"), [namespace(control_plane), *role, kubeconfig])
    await site.uses({"clusters": "1", "cpu": "3"}, "shop")

    async def refused() -> None:
        answer = await create_machine(site, "too-much")
        if answer.status == 201:  # the API server takes up a new webhook configuration a moment after it is written
            await site.delete(SERVER, f"{MACHINES}/too-much")
        assert answer.status == 403, answer
        assert "exceeded quota: shop, requested: cpu=3, used: cpu=3, limited: cpu=4" in answer.message

    await until(refused, 30)

    async def told() -> None:
        event = (await site.items("seed-1", f"/apis/events.k8s.io/v1/namespaces/{control_plane}/events"))[0]
        regarding = event["regarding"]
        assert (regarding["apiVersion"], regarding["kind"], regarding["name"]) == (API, "Cluster", CLUSTER)
        assert "exceeded quota: shop" in event["note"]

    await until(told, 60)
    await site.delete(SERVER, f"{MACHINES}/before")
    await site.uses({"cpu": "0"}, "shop")
    answer = await site.that_fits(partial(create_machine, site, "small"))
    assert answer.status == 201, answer


async def test_a_machine_s_size_is_asked_of_the_datacenter_of_its_cluster_alone(site: Site) -> None:
    datacenter = {"openstack": {"authURL": "https://127.0.0.1:1/v3", "region": "RegionOne"}}
    seed = {"apiVersion": API, "kind": "Seed", "metadata": {"name": "seed", "namespace": "kubermatic"}}
    credentials = {"applicationCredentialID": "id", "applicationCredentialSecret": "s3cret"}
    await apply(
        site.server("seed-1"),
        [
            crd("Seed", "Namespaced"),
            namespace("kubermatic"),
            {**seed, "spec": {"datacenters": {"dc1": {"spec": datacenter}}}},
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "cloud-credentials", "namespace": f"cluster-{CLUSTER}"},
                "stringData": credentials,
            },
        ],
    )
    cloud = {"dc": "dc1", "providerName": "openstack", "openstack": {}}
    await site.patch("seed-1", f"{PATH}/clusters/{CLUSTER}", {"spec": {"cloud": cloud}})

    async def create_in_openstack(**spec: str) -> Answer:
        made = machine("flavored", Size("1", "1Gi", "1Gi"))
        made["spec"]["providerSpec"]["value"] = {
            "cloudProvider": "openstack",
            "cloudProviderSpec": {"flavor": "m1.small", **spec},
        }
        return await site.call(SERVER, "POST", MACHINES, made)

    async def asked() -> None:
        answer = await create_in_openstack()
        assert "openstack RegionOne at https://127.0.0.1:1/v3 cannot be reached" in answer.message, answer

    await until(asked, 30)
    tenants = await create_in_openstack(identityEndpoint="https://127.0.0.1:2/v3")
    assert tenants.status == 422, tenants
    assert "identityEndpoint is not one that the platform has named" in tenants.message


async def test_a_cluster_that_moves_or_goes_takes_its_use_along(site: Site) -> None:
    label = {"metadata": {"labels": {"project-id": "alpha"}}}
    await apply(site.server("master"), [quota("of-alpha", "alpha", {"clusters": "5", "cpu": "10"})])
    await site.patch("seed-1", f"{PATH}/clusters/{CLUSTER}", label)
    await site.uses({"clusters": "0", "cpu": "0"}, "shop")
    await site.uses({"clusters": "3", "cpu": "3"}, "of-alpha")  # with user-1 and user-2
    assert (await create(site, "another")).status == 201

    await site.delete("seed-1", f"{PATH}/clusters/{CLUSTER}")
    await site.uses({"clusters": "2"}, "of-alpha")

    async def let_go() -> None:
        assert (await site.call(SERVER, "GET", CONFIGURATION)).status == 404

    await until(let_go, 30)
