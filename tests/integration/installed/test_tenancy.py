"""Quotas of projects and organizations limit what is in namespaces: of a project's own clusters, and of shared ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from tests.integration.installed.site import CLUSTERS, QUOTA, SMALL, Answer, Json, Site, named, quota_manifest, until

pytestmark = pytest.mark.integration

OWN, SHARED = "user-1", "user-2"  # user clusters; both UserClusters are of project alpha
ORGANIZATION = "org-acme"
LABEL = "seedquota.io/project"
TENANT = {"Impersonate-User": "tenant"}
USED = re.compile(r"exceeded quota: (\S+), requested: pods=1, used: pods=(\d+), limited: pods=(\d+);")
RBAC = "rbac.authorization.k8s.io"


class Pods:
    """Namespaces, and pods in them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.made: list[tuple[str, str]] = []
        self._number = 0

    async def namespace(self, cluster: str, name: str, project: str = "", **headers: str) -> Answer:
        path = f"/api/v1/namespaces/{name}"
        body = {"metadata": {"name": name, "labels": {LABEL: project} if project else {}}}
        answer = await self.site.call(cluster, "POST", "/api/v1/namespaces", body, headers=headers)
        if answer.status == 201:
            self.made.append((cluster, path))
            account = {"metadata": {"name": "default"}}
            assert (await self.site.call(cluster, "POST", f"{path}/serviceaccounts", account)).status == 201
        return answer

    async def label(self, cluster: str, name: str, project: str | None, **headers: str) -> Answer:
        body = {"metadata": {"labels": {LABEL: project}}}
        return await self.site.call(cluster, "PATCH", f"/api/v1/namespaces/{name}", body, headers=headers)

    async def create(self, cluster: str, namespace: str) -> Answer:
        """One pod, tried again while nobody can decide."""
        self._number += 1
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        body: Json = {"metadata": {"name": f"p{self._number}"}, "spec": spec}

        async def decided() -> Answer:
            answer = await self.site.call(cluster, "POST", f"/api/v1/namespaces/{namespace}/pods", body)
            assert answer.status != 503 and not answer.is_late, answer
            return answer

        return await until(decided, 90)

    async def fill(self, places: Mapping[tuple[str, str], int], quotas: Mapping[str, int], *, more: int) -> None:
        """So many pods at once in each place, then one by one until one of these is full: exactly so many are admitted.

        What the one quota refuses is reserved in the other for a moment, and that may refuse meanwhile. What an API
        server did not wait for is reserved until evidence shows that it never came.
        """
        asked = [self.create(*place) for place, number in places.items() for _ in range(number)]
        answers = await asyncio.gather(*asked)

        async def is_full() -> None:
            answers.append(await self.create(*next(iter(places))))
            for answer in answers:
                assert answer.status == 201 or (answer.status == 403 and USED.search(answer.message)), answer
            full = [(name, str(most), str(most)) for name, most in quotas.items()]
            assert USED.findall(answers[-1].message) in [[each] for each in full], answers[-1]
            assert sum(answer.status == 201 for answer in answers) == more

        await until(is_full, 90)

    async def number(self, *places: tuple[str, str]) -> int:
        found = [await self.site.items(cluster, f"/api/v1/namespaces/{name}/pods") for cluster, name in places]
        return sum(map(len, found))


@pytest_asyncio.fixture
async def pods(site: Site) -> AsyncIterator[Pods]:
    """Projects alpha and beta are of organization acme. The namespaces of one cluster are of alpha, those of the other
    of the projects that their labels name."""
    found = Pods(site)
    await site.apply("master", named("Organization", "acme"), named("Project", "beta", organization="acme"))
    await site.project(organization="acme")
    await site.patch("seed-1", f"{CLUSTERS}/{OWN}", {"spec": {"namespaceQuotas": "Enabled"}})
    await made_shared(site)
    yield found
    await site.start_all()
    for cluster, path in found.made:
        await site.delete(cluster, f"{path}/pods?gracePeriodSeconds=0")
        await site.patch(cluster, path, {"metadata": {"labels": {LABEL: None}}})  # nobody finalizes it here


async def made_shared(site: Site) -> None:
    """It is made again: after a change of namespaceProjects, quotas are not in force for half a minute."""
    path = f"{CLUSTERS}/{SHARED}"
    spec = (await site.get("seed-2", path))["spec"]
    again = named("UserCluster", SHARED, **spec, namespaceQuotas="Enabled", namespaceProjects="FromLabel")
    await site.delete("seed-2", path)
    answer = await site.call("seed-2", "POST", CLUSTERS, again)
    assert answer.status == 201, answer
    await site.comes("seed-2", path, "Ready", "True", seconds=60)


async def limit(site: Site, project: Mapping[str, str], organization: Mapping[str, str]) -> None:
    await site.apply(
        "master",
        quota_manifest(project),
        quota_manifest(organization, ORGANIZATION, kind="organization", subject="acme"),
    )
    for name in (QUOTA, ORGANIZATION):
        await site.comes("master", f"resourcequotas/{name}", "Enforced", "True", seconds=90)


async def test_a_project_and_its_organization_are_filled_exactly_in_its_own_and_in_shared_clusters(
    site: Site, pods: Pods
) -> None:
    await pods.namespace(OWN, "tweb", "beta")  # written by a tenant, who is admin there: it says nothing
    for name, project in (("ta", "alpha"), ("tb", "beta"), ("tc", "")):
        assert (await pods.namespace(SHARED, name, project)).status == 201
    assert (await pods.create(OWN, "tweb")).status == 201  # before there is a quota
    await limit(site, {"cpu": "2", "pods": "4"}, {"pods": "6", "requests.cpu": "100"})
    web, a, b, c = (OWN, "tweb"), (SHARED, "ta"), (SHARED, "tb"), (SHARED, "tc")
    await pods.fill({web: 6, a: 6}, {QUOTA: 4}, more=3)
    await pods.fill({b: 6}, {ORGANIZATION: 6}, more=2)
    assert await pods.number(web, a, b) == 6 and (await pods.create(*c)).status == 201, "it is of no project"
    await site.uses({"pods": "4", "cpu": "0"}, seconds=60)
    await site.uses({"pods": "6", "requests.cpu": "6"}, ORGANIZATION, seconds=60)

    async def by_namespace() -> None:
        status = (await site.get("master", f"resourcequotas/{ORGANIZATION}"))["status"]
        places = {(line["cluster"], line["namespace"]): line["used"]["pods"] for line in status["namespaces"]}
        assert places.keys() == {("alpha/user-1", "tweb"), ("alpha/user-2", "ta"), ("alpha/user-2", "tb")}
        assert sum(map(int, places.values())) == 6

    await until(by_namespace, 30)

    async def shown() -> None:
        found = (await site.get(SHARED, f"namespaces/tb/localresourcequotas/{ORGANIZATION}"))["status"]
        assert found["here"]["used"] == {"pods": "2", "requests.cpu": "2"}, found
        assert found["total"]["used"] == {"pods": "6", "requests.cpu": "6"}, found
        copies = await site.items(SHARED, "namespaces/ta/localresourcequotas")
        assert {each["metadata"]["name"] for each in copies} == {QUOTA, ORGANIZATION}

    await until(shown, 60)
    # What becomes free in one place is used in another, of both quotas.
    (gone, *_) = await site.items(OWN, "/api/v1/namespaces/tweb/pods")
    await site.delete(OWN, f"/api/v1/namespaces/tweb/pods/{gone['metadata']['name']}?gracePeriodSeconds=0")
    await site.uses({"pods": "3"}, seconds=60)
    await pods.fill({a: 2}, {QUOTA: 4, ORGANIZATION: 6}, more=1)
    # A namespace moves with all that it has: use that nobody admitted in its new place.
    assert (await pods.label(SHARED, "tb", "alpha")).status == 200
    await site.uses({"pods": "6"}, seconds=60)
    await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "True", "UsageNotAdmitted", "pods 6/4")
    assert (await pods.create(*a)).status == 403
    assert (await pods.label(SHARED, "tb", None)).status == 200
    await site.uses({"pods": "4"}, seconds=60)
    await site.uses({"pods": "4", "requests.cpu": "4"}, ORGANIZATION, seconds=60)
    # What is not counted in one cluster is named. Where nothing is it says so, and Machines are limited as before.
    await site.patch("seed-1", f"{CLUSTERS}/{OWN}", {"spec": {"namespaceQuotas": "Disabled"}})
    path, where = f"resourcequotas/{QUOTA}", "pods: not counted and not refused in alpha/user-1 on seed-1"
    await site.comes("master", path, "Enforced", "False", "ClustersNotCounted", where, seconds=120)
    await site.patch("seed-2", f"{CLUSTERS}/{SHARED}", {"spec": {"namespaceQuotas": "Disabled"}})
    texts = "not refused: pods; set spec.namespaceQuotas to Enabled", "the other resources of this quota are limited"
    await site.comes("master", f"resourcequotas/{QUOTA}", "Ready", "False", "NoClusters", *texts, seconds=120)
    assert "pods ?/4" in (await site.get("master", f"resourcequotas/{QUOTA}"))["status"]["summary"]["usage"]
    await site.quota({}, "nothing")  # it is in force, and limits nothing
    await site.admitted(OWN, 2)
    assert "limited: cpu=2" in (await site.refused(OWN, SMALL)).message


async def test_only_who_may_assign_projects_writes_the_label_and_only_in_shared_clusters(
    site: Site, pods: Pods
) -> None:
    def role(name: str, *rules: Json) -> list[Json]:
        subject = {"apiGroup": RBAC, "kind": "User", "name": TENANT["Impersonate-User"]}
        head = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
        return [
            {**head, "kind": "ClusterRole", "rules": list(rules)},
            {
                **head,
                "kind": "ClusterRoleBinding",
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
                "subjects": [subject],
            },
        ]

    everything = {"apiGroups": [""], "resources": ["*"], "verbs": ["*"]}
    for cluster in (OWN, SHARED):
        await site.apply(cluster, *role("tenant", everything))
    await limit(site, {"pods": "4"}, {"pods": "6"})
    said = "label seedquota.io/project says which project pays"

    async def is_refused(answer: Answer) -> None:
        assert answer.status == 403 and said in answer.message, answer

    await is_refused(await pods.namespace(SHARED, "tmine", "alpha", **TENANT))
    assert (await pods.namespace(SHARED, "tmine", **TENANT)).status == 201
    await is_refused(await pods.label(SHARED, "tmine", "alpha", **TENANT))
    finalize = {"metadata": {"name": "tmine", "labels": {LABEL: "alpha"}}, "spec": {"finalizers": ["kubernetes"]}}
    path = "/api/v1/namespaces/tmine/finalize"
    await is_refused(await site.call(SHARED, "PUT", path, finalize, headers=TENANT))
    assert (await pods.label(SHARED, "tmine", "alpha")).status == 200, "an admin of the cluster may"
    await is_refused(await pods.label(SHARED, "tmine", None, **TENANT))
    other = {"metadata": {"labels": {"tier": "web"}}}
    named_mine = "/api/v1/namespaces/tmine"
    assert (await site.call(SHARED, "PATCH", named_mine, other, headers=TENANT)).status == 200, "it stays as it is"
    of_beta = {"apiGroups": ["seedquota.io"], "resources": ["projects"], "verbs": ["assign"], "resourceNames": ["beta"]}
    await site.apply(SHARED, *role("assign-beta", of_beta))

    async def may_assign_beta() -> None:
        assert (await pods.namespace(SHARED, "tbeta", "beta", **TENANT)).status == 201

    await until(may_assign_beta, 15)
    await is_refused(await pods.label(SHARED, "tmine", "beta", **TENANT))  # alpha's namespace stays alpha's
    assert (await pods.namespace(OWN, "tmine", "beta", **TENANT)).status == 201, "there it says nothing"
