"""`clusters` in a quota: how many a project, or an organization, may have over all seeds, of whichever API they are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from devcluster.manifests import Manifest
from devcluster.objects import API, named
from tests.integration.installed.declared import delete
from tests.integration.installed.site import Answer, Json, Site, quota_manifest, until

pytestmark = pytest.mark.integration

SEEDS = ("seed-1", "seed-2")
USER_CLUSTERS = "namespaces/alpha/userclusters"
CAPI = "/apis/cluster.x-k8s.io/v1beta2/namespaces/alpha/clusters"
LABEL = "seedquota.io/project"
QUOTA = "limited"


def crd_of_cluster_api() -> Manifest:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.cluster.x-k8s.io"},
        "spec": {
            "group": "cluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "Cluster", "plural": "clusters", "singular": "cluster", "listKind": "ClusterList"},
            "versions": [
                {"name": "v1beta2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


def user_cluster(name: str, project: str = "beta", **metadata: object) -> Json:
    """Nobody reaches it, but it is there."""
    spec = {"project": project, "kubeconfigSecretRef": {"name": "none"}}
    return {"apiVersion": API, "kind": "UserCluster", "metadata": {"name": name, **metadata}, "spec": spec}


async def create(site: Site, seed: str, name: str, project: str = "beta", **parameters: str) -> Answer:
    return await site.decision(seed, "POST", USER_CLUSTERS, user_cluster(name, project), **parameters)


async def create_in_cluster_api(site: Site, seed: str, name: str, project: str = "beta", **parameters: str) -> Answer:
    metadata = {"name": name, "labels": {LABEL: project} if project else {}}
    body = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata, "spec": {}}
    return await site.decision(seed, "POST", CAPI, body, **parameters)


async def created(site: Site, seed: str, *names: str, project: str = "beta") -> None:
    for name in names:
        answer = await site.that_fits(partial(create, site, seed, name, project))
        assert answer.status == 201, answer


def says_full(answer: Answer, used: int, limit: int) -> bool:
    text = f"exceeded quota: {QUOTA}, requested: clusters=1, used: clusters={used}, limited: clusters={limit}"
    return answer.status == 403 and text in answer.message


async def limit(site: Site, clusters: int, kind: str = "project", subject: str = "beta") -> None:
    await site.quota({"clusters": str(clusters)}, QUOTA, kind=kind, subject=subject)


async def uses(site: Site, clusters: int) -> None:
    await site.uses({"clusters": str(clusters)}, QUOTA)


@pytest_asyncio.fixture(scope="module")
async def projects(installation: Site) -> AsyncIterator[Site]:
    site, crd = installation, crd_of_cluster_api()

    async def asked() -> None:
        """Creates nothing: a Cluster from before there was a webhook would count its UserCluster in."""
        for seed in SEEDS:
            for ask in (create, create_in_cluster_api):
                answer = await ask(site, seed, "probe", "probe", dryRun="All")
                assert answer.status == 403, answer

    try:
        await asyncio.gather(*(site.apply(seed, crd) for seed in SEEDS))
        await site.apply(
            "master",
            named("Organization", "acme"),
            *(named("Project", name, organization="acme") for name in ("beta", "gamma")),
            named("Project", "probe"),
            quota_manifest({"clusters": "0"}, "probe", subject="probe"),
        )
        await until(asked, 60)
        yield site
    finally:  # others share the installation
        for seed in SEEDS:
            await site.delete(seed, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusters.cluster.x-k8s.io")


@pytest_asyncio.fixture
async def site(projects: Site) -> AsyncIterator[Site]:
    yield projects
    await projects.start_all()
    for seed in SEEDS:
        for path in (CAPI, USER_CLUSTERS):
            for found in await projects.items(seed, path):
                if found["metadata"]["name"] not in ("user-1", "user-2"):
                    await delete(projects, seed, f"{path}/{found['metadata']['name']}", found)
    await projects.delete("master", f"resourcequotas/{QUOTA}")

    async def gone() -> None:
        for cluster in ("master", *SEEDS):
            assert (await projects.call(cluster, "GET", f"resourcequotas/{QUOTA}")).status == 404

    await until(gone, 60)


async def test_a_third_cluster_of_two_is_refused_on_every_seed_until_one_is_gone(site: Site) -> None:
    await limit(site, 2)
    held = user_cluster("one", finalizers=["example.com/machines"])
    assert (await site.decision("seed-1", "POST", USER_CLUSTERS, held)).status == 201
    await created(site, "seed-2", "two")
    await uses(site, 2)
    for seed in SEEDS:
        assert says_full(await create(site, seed, "three"), 2, 2)
        assert says_full(await create(site, seed, "three", dryRun="All"), 2, 2)
    await created(site, "seed-1", "free", project="gamma")  # no quota limits that one

    await site.delete("seed-1", f"{USER_CLUSTERS}/one")
    assert (await site.get("seed-1", f"{USER_CLUSTERS}/one"))["metadata"]["deletionTimestamp"]
    assert says_full(await create(site, "seed-2", "three"), 2, 2)
    await site.patch("seed-1", f"{USER_CLUSTERS}/one", {"metadata": {"finalizers": None}})
    await uses(site, 1)

    async def foreseen() -> None:  # from what the master showed the seed last
        assert (await create(site, "seed-2", "three", dryRun="All")).status == 201

    await until(foreseen, 30)
    await created(site, "seed-2", "three")
    assert says_full(await create(site, "seed-1", "one"), 2, 2)


async def test_creations_at_the_same_time_fill_it_exactly(site: Site) -> None:
    await limit(site, 5)

    async def made(number: int) -> int:
        make = create_in_cluster_api if number % 4 == 0 else create
        return (await site.that_fits(partial(make, site, SEEDS[number % 2], f"c-{number}"))).status

    answers = Counter(await asyncio.gather(*(made(number) for number in range(16))))
    assert answers == {201: 5, 403: 11}
    await uses(site, 5)
    await site.reserves_nothing(*SEEDS, name=QUOTA)


async def test_an_organizations_projects_share_its_clusters(site: Site) -> None:
    await limit(site, 2, "organization", "acme")
    await created(site, "seed-1", "one", project="beta")
    await created(site, "seed-2", "two", project="gamma")
    for seed, project in (("seed-1", "gamma"), ("seed-2", "beta")):
        assert says_full(await create(site, seed, "three", project), 2, 2)
    await site.delete("seed-1", f"{USER_CLUSTERS}/one")
    await uses(site, 1)
    await created(site, "seed-1", "three", project="gamma")


async def test_clusters_from_before_the_quota_count_and_are_left_alone(site: Site) -> None:
    await created(site, "seed-1", "one", "two")
    await created(site, "seed-2", "three")
    await limit(site, 2)
    await uses(site, 3)
    assert says_full(await create(site, "seed-2", "four"), 3, 2)
    await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "True")
    await site.delete("seed-1", f"{USER_CLUSTERS}/one")
    await uses(site, 2)
    assert says_full(await create(site, "seed-1", "four"), 2, 2)


async def test_clusters_of_cluster_api_count_and_one_with_its_user_cluster_counts_once(site: Site) -> None:
    await limit(site, 2)
    assert (await create_in_cluster_api(site, "seed-1", "one")).status == 201
    await uses(site, 1)
    await created(site, "seed-2", "two")
    await uses(site, 2)
    await created(site, "seed-1", "one")  # which says with whose credentials its Machines are sized
    assert (await create_in_cluster_api(site, "seed-2", "two")).status == 201
    await site.reserves_nothing(*SEEDS, name=QUOTA)
    await uses(site, 2)
    await site.delete("seed-2", f"{CAPI}/two")
    for seed in SEEDS:
        assert says_full(await create_in_cluster_api(site, seed, "three"), 2, 2)
        assert (await create_in_cluster_api(site, seed, "of-nobody", "")).status == 201
    await site.delete("seed-1", f"{USER_CLUSTERS}/one")
    assert says_full(await create(site, "seed-2", "three"), 2, 2)
    await site.delete("seed-1", f"{CAPI}/one")
    await uses(site, 1)


async def test_a_cluster_whose_label_moves_counts_where_it_went(site: Site) -> None:
    await limit(site, 1)
    assert (await create_in_cluster_api(site, "seed-1", "mine")).status == 201
    assert (await create_in_cluster_api(site, "seed-2", "other", "gamma")).status == 201
    await uses(site, 1)
    await site.patch("seed-2", f"{CAPI}/other", {"metadata": {"labels": {LABEL: "beta"}}})
    await uses(site, 2)
    assert says_full(await create(site, "seed-2", "more"), 2, 1)
    for seed, name in (("seed-1", "mine"), ("seed-2", "other")):
        await site.patch(seed, f"{CAPI}/{name}", {"metadata": {"labels": {LABEL: "gamma"}}})
    await uses(site, 0)
    await created(site, "seed-2", "more")


async def test_an_agent_killed_while_clusters_are_made_loses_none_of_them(site: Site) -> None:
    await limit(site, 3)
    await created(site, "seed-1", "one", "two")
    program = site.program("seed-1")
    await site.kill(program)
    refused = await create(site, "seed-1", "three")
    assert refused.status == 500, "nobody answers, and without an answer there is no cluster"
    await site.start(program)

    async def again() -> None:
        assert (await create(site, "seed-1", "three")).status == 201

    await until(again, 60)
    assert says_full(await create(site, "seed-2", "four"), 3, 3)
    await uses(site, 3)
