"""Several quotas of one project: of all of it, of one cluster by name, and of clusters and seeds with a label."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.integration.installed.site import CLUSTERS, Answer, Json, Site, cpus, quota_manifest, until

pytestmark = pytest.mark.integration

SEED_OF = {"user-1": "seed-1", "user-2": "seed-2"}  # both UserClusters are of project alpha
GPU = {"matchLabels": {"pool": "gpu"}}


async def label(site: Site, cluster: str, pool: str | None) -> None:
    await site.patch(SEED_OF[cluster], f"{CLUSTERS}/{cluster}", {"metadata": {"labels": {"pool": pool}}})


async def move(site: Site, seed: str, region: str | None) -> None:
    await site.patch("master", f"seeds/{seed}", {"metadata": {"labels": {"region": region}}})


def part(name: str, limit: Mapping[str, str], clusters: Json) -> Json:
    manifest = quota_manifest(limit, name)
    manifest["spec"]["subject"]["clusters"] = clusters
    return manifest


async def sees(site: Site, cluster: str, *quotas: str) -> None:
    async def holds() -> None:
        found = await site.items(cluster, "namespaces/kube-system/localresourcequotas")
        assert {each["metadata"]["name"] for each in found} == set(quotas)

    await until(holds, 60)


def refusing(answer: Answer) -> str:
    return answer.message.partition("exceeded quota: ")[2].partition(",")[0]


async def test_the_tightest_of_several_quotas_decides_and_a_cluster_that_is_labelled_anew_is_counted_where_it_is(
    site: Site,
) -> None:
    await site.quota({"cpu": "5"})
    await site.apply("master", part("gpu", cpus(2), GPU), part("of-user-1", cpus(3), {"names": ["user-1"]}))
    await site.installed.enforced("of-user-1", 60)
    await site.comes("master", "resourcequotas/gpu", "Enforced", "False", "NoClusters", "picks no cluster")
    await site.admitted("user-1", 3)
    assert refusing(await site.refused("user-1")) == "of-user-1"
    await site.admitted("user-2", 2)
    assert refusing(await site.refused("user-2")) == "project-alpha"

    await label(site, "user-1", "gpu")
    await site.uses({"cpu": "3"}, "gpu", seconds=60)
    await site.comes("master", "resourcequotas/gpu", "Exceeded", "True", "UsageNotAdmitted")
    await sees(site, "user-1", "project-alpha", "of-user-1", "gpu")

    await label(site, "user-1", None)
    await label(site, "user-2", "gpu")
    await site.uses({"cpu": "2"}, "gpu", seconds=60)
    await site.quota({"cpu": "9"})
    assert refusing(await site.refused("user-2")) == "gpu"
    assert refusing(await site.refused("user-1")) == "of-user-1"
    await site.uses({"cpu": "5"})
    await sees(site, "user-1", "project-alpha", "of-user-1")
    await sees(site, "user-2", "project-alpha", "gpu")


async def limited_on(site: Site, *seeds: str) -> None:
    """The quota of the region is enforced, on these seeds alone."""
    await site.installed.enforced("eu", 60)

    async def holds() -> None:
        view = await site.get("master", "resourcequotas/eu")
        assert {seed["name"]: seed["state"] for seed in view["status"]["seeds"]} == dict.fromkeys(seeds, "Current")
        for seed in SEED_OF.values():
            found = {each["metadata"]["name"] for each in await site.items(seed, "resourcequotas")}
            assert ("eu" in found) == (seed in seeds), seed

    await until(holds, 60)


async def test_a_quota_of_the_seeds_of_a_region_limits_what_is_there_wherever_their_labels_move(site: Site) -> None:
    quota = quota_manifest(cpus(3), "eu")
    quota["spec"]["subject"]["seeds"] = {"matchLabels": {"region": "eu"}}
    await site.apply("master", quota)
    await site.comes("master", "resourcequotas/eu", "Enforced", "False", "NoSeeds", "spec.subject.seeds picks no Seed")
    await site.admitted("user-2", 2)

    await move(site, "seed-1", "eu")
    await limited_on(site, "seed-1")
    await site.admitted("user-1", 3)
    assert refusing(await site.refused("user-1")) == "eu"
    await site.admitted("user-2", 1)  # not there
    await site.uses(cpus(3), "eu")

    await move(site, "seed-2", "eu")
    await limited_on(site, "seed-1", "seed-2")
    await site.uses(cpus(6), "eu")
    await site.comes("master", "resourcequotas/eu", "Exceeded", "True", "UsageNotAdmitted")
    assert refusing(await site.refused("user-2")) == "eu"

    await move(site, "seed-2", "us")
    await limited_on(site, "seed-1")
    await site.uses(cpus(3), "eu")
    await site.admitted("user-2", 1)
    assert refusing(await site.refused("user-1")) == "eu"

    await move(site, "seed-1", "us")
    await move(site, "seed-2", "eu")
    await limited_on(site, "seed-2")
    await site.uses(cpus(4), "eu")
    await site.admitted("user-1", 1)
    assert refusing(await site.refused("user-2")) == "eu"
