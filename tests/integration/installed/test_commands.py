"""Commands that set limits and ask what fits, beside real programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devcluster.install import NAMESPACE
from devcluster.load import Size, machine
from devcluster.objects import named
from tests.integration.installed.commands import Commands
from tests.integration.installed.site import Site, cpus, until
from tests.integration.installed.test_scale_checks import deployment

POOLS = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machinedeployments"

pytestmark = pytest.mark.integration


async def test_limits_are_set_from_the_terminal_and_in_force(site: Site, tmp_path: Path) -> None:
    seedquota = Commands(site, tmp_path)
    status, said = await seedquota("master", "set", "project/alpha", "cpu=3", "memory=1Ti")
    assert (status, said.splitlines()[0]) == (0, "seedquota/project-alpha of project/alpha created")
    await site.installed.enforced("project-alpha", 60)
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    status, said = await seedquota("master", "set", "project/alpha", "cpu=1", "--dry-run=server")
    assert "changed (server dry run)" in said
    assert "cpu        3        1       2      1" in said, said
    assert (await site.get("master", "resourcequotas/project-alpha"))["spec"]["quota"]["cpu"] == "3"
    assert await seedquota("master", "set", "project/alpha", "cpu=2", "memory-") == (
        0,
        "seedquota/project-alpha of project/alpha changed\n"
        "Resource   Before   After       Used\n"
        "cpu        3        2           2\n"
        "memory     1Ti      unlimited   2Gi\n",
    )
    await site.installed.enforced("project-alpha", 60)
    await site.refused("user-2")
    status, said = await seedquota("master", "set", "project/alpha", "cpus=8")
    assert (status, "quota names an unknown resource: cpus" in said) == (1, True), said
    for asked, kept in (("guaranteed.cpu=1", {"cpu": "1"}), ("guaranteed.cpu-", None)):
        assert (await seedquota("master", "set", "project/alpha", asked))[0] == 0
        assert (await site.get("master", "resourcequotas/project-alpha"))["spec"].get("guaranteed") == kept
    status, said = await seedquota("master", "set", "seedquota/project-alpa", "cpu=8")
    assert (status, "did you mean project-alpha?" in said) == (1, True), said


async def test_default_quotas_are_set_shown_and_removed_from_the_terminal(site: Site, tmp_path: Path) -> None:
    seedquota = Commands(site, tmp_path)
    try:
        status, said = await seedquota("master", "default", "set", "project", "cpu=2")
        assert (status, said.splitlines()[0]) == (0, "default quota of projects created")

        async def followed() -> None:
            _, said = await seedquota("master", "default", "show", "-o", "json")
            assert [(each["quota"], each["followers"]) for each in json.loads(said)["items"]] == [
                ({"cpu": "2"}, 1),
                ({}, 0),
            ]

        await until(followed, 60)
        await site.installed.enforced("project-alpha", 60)
        await site.admitted("user-1", 2)
        await site.uses(cpus(2))
        _, said = await seedquota("master", "default", "set", "project", "cpu=1", "--dry-run=server")
        assert "More is used already in seedquota/project-alpha by cpu=1." in said, said
        _, said = await seedquota("master", "default", "unset", "project")
        assert said == "default quota of projects removed\n1 quota that followed it goes.\n"

        async def gone() -> None:
            assert (await site.call("master", "GET", "resourcequotas/project-alpha")).status == 404

        await until(gone, 60)
    finally:
        await site.delete("master", "quotasettings/default")


async def test_what_fits_is_told_by_what_admits(site: Site, tmp_path: Path) -> None:
    seedquota = Commands(site, tmp_path)
    await site.quota(cpus(8))
    await site.quota(cpus(100), "project-alpha-large")
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    body = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", **machine("m", Size("2", "1Gi", "1Gi"))}
    body["metadata"]["namespace"] = "kube-system"
    one = seedquota.file(json.dumps(body))
    pool_a = deployment("pool-a", 4, cpu="2", namespace="kube-system")
    pool = seedquota.file(json.dumps(pool_a))

    async def fits(*arguments: str) -> tuple[int, str]:
        return await seedquota("user-1", "fits", *arguments)

    async def told() -> None:
        """By copies of the quota that have come to the seed."""
        status, said = await fits("-f", one, "--replicas", "4")
        assert status == 2, said
        assert said.startswith("machine/m: does not fit: 3 of 4 do. "), said
        assert "cpu: need 8, free 6 (project-alpha)" in said and "project-alpha-large: fits" in said, said

    await until(told, 30)
    found = json.loads((await fits("-f", one, "--replicas", "4", "-o", "json"))[1])["items"]
    assert [(each["result"], each["asked"], each["fitting"]) for each in found] == [("does not fit", 4, 3)]
    status, said = await fits("-f", one, "--replicas", "3")
    assert (status, said.partition(". ")[0]) == (0, "machine/m: fits: 3")
    status, said = await fits("-f", pool)
    assert (status, said.partition(". ")[0]) == (2, "machinedeployment/pool-a: does not fit: 3 of 4 do"), said
    status, said = await fits("-f", pool, "--replicas", "3")
    assert (status, said.partition(". ")[0]) == (0, "machinedeployment/pool-a: fits: 3"), said
    # What exists costs its difference.
    assert (await site.call("user-1", "POST", POOLS, pool_a)).status == 201
    there = f"{POOLS}/pool-a"
    await site.patch("user-1", f"{there}/status", {"status": {"replicas": 2}})
    assert await fits("-f", pool) == (0, "machinedeployment/pool-a: costs nothing more\n")
    status, said = await fits("-f", pool, "--replicas", "5")
    assert (status, said.partition(". ")[0]) == (0, "machinedeployment/pool-a: fits: 3"), said
    status, said = await fits("-f", pool, "--replicas", "6")
    assert (status, said.partition(". ")[0]) == (2, "machinedeployment/pool-a: does not fit: 3 of 4 do"), said
    await site.delete("user-1", there)
    # Nothing was made and nothing is reserved.
    await site.uses(cpus(2))
    await site.admitted("user-1", 3, Size("2", "1Gi", "1Gi"))
    assert (await fits("-f", one))[0] == 2
    status, said = await fits("-f", seedquota.file(json.dumps({**body, "kind": "Machines"})))
    assert (status, "does not serve Machines of cluster.k8s.io/v1alpha1" in said) == (1, True), said


async def test_describe_names_the_top_consumers_and_the_last_denials_of_the_seeds_that_are_asked(
    site: Site, tmp_path: Path
) -> None:
    seedquota = Commands(site, tmp_path)
    (one, first), (two, second) = site.installed.user_clusters.items()
    await site.quota(cpus(3))
    await site.admitted(first)
    await site.admitted(second, 2)
    await site.uses(cpus(3))
    await site.refused(first)

    async def describe(*arguments: str) -> tuple[int, str]:
        return await seedquota("master", "describe", "project-alpha", *arguments)

    async def told() -> None:
        status, said = await describe("--all-seeds", "-o", "json")
        found = json.loads(said)
        assert (status, found["notKnown"]) == (0, []), said
        assert [(each["seed"], each["name"], each["used"]) for each in found["consumers"]] == [
            (two, f"alpha/{second}", cpus(2)),
            (one, f"alpha/{first}", cpus(1)),
        ]
        assert {(each["seed"], each["object"]) for each in found["denials"]} == {(one, f"usercluster/alpha/{first}")}
        (message,) = [each["message"] for each in found["denials"] if each["reason"] == "QuotaExceeded"]
        assert message.startswith("exceeded quota: project-alpha, requested: cpu=1, used: cpu=3, limited: cpu=3;"), said
        assert found["omitted"] == {"seeds": 0, "namespaces": 0, "consumers": 0, "denials": 0}

    await until(told, 60)
    status, said = await describe()
    assert (status, "Top consumers" in said, "Last denials" in said) == (0, False, False), said
    assert f"user clusters and denials on {two}, {one}: --seed NAME asks one, --all-seeds all of them" in said
    # A seed that is away is named, and all else is shown.
    kubeconfig = site.server(two).kubeconfig("admin").replace(site.server(two).url, "https://127.0.0.1:1")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "away", "namespace": NAMESPACE}}
    await site.apply("master", {**secret, "stringData": {"kubeconfig": kubeconfig}})
    await site.apply("master", named("Seed", "away", kubeconfigSecretRef={"name": "away"}))
    try:
        status, said = await describe("--seed", one, "--seed", "away")
        assert (status, "seed away cannot be asked: " in said) == (3, True), said
        assert f"cluster/alpha/{first}" in said and "requested: cpu=1" in said, said
    finally:
        await site.delete("master", "seeds/away")
        await site.delete("master", f"/api/v1/namespaces/{NAMESPACE}/secrets/away")
    status, said = await describe("--seed", "away")
    assert (status, "there is no Seed away" in said) == (1, True), said
    # Denials of the whole seed.
    status, said = await seedquota("master", "denials", "--seed", one, "-o", "json")
    assert (status, {each["seed"] for each in json.loads(said)["items"]}) == (0, {one}), said


async def test_history_tells_who_wrote_limits_what_they_were_and_what_was_refused(site: Site, tmp_path: Path) -> None:
    seedquota = Commands(site, tmp_path)
    seed = next(iter(site.installed.seeds))
    assert (await seedquota("master", "set", "project/alpha", "cpu=2"))[0] == 0
    await site.installed.enforced("project-alpha", 60)
    await site.admitted("user-1", 2)
    await site.refused("user-1")

    async def known_to_be_full() -> None:
        assert (await site.condition("master", "resourcequotas/project-alpha", "NearLimit"))[0] == "True"

    await until(known_to_be_full, 60)
    assert (await seedquota("master", "set", "project/alpha", "cpu=4"))[0] == 0

    async def told() -> None:
        status, said = await seedquota("master", "history", "project-alpha", "--seed", seed, "-o", "json")
        assert status == 0, said
        found = json.loads(said)
        told = {each["what"]: each["detail"] for each in found["items"]}
        assert told["LimitsWritten"] == "by seedquota, which owns cpu"
        assert told["LimitsChanged"] == "cpu 2 to 4", told
        assert told["NearLimit"] == "cpu 2/2" and "NearLimit=False" in told, told
        assert told["Created"] == "project/alpha"
        assert "usercluster/" in told["QuotaExceeded"] and "exceeded quota: project-alpha, " in told["QuotaExceeded"]
        assert not any("refusals" in each for each in found["notKnown"])

    await until(told, 60)
    status, said = await seedquota("master", "history", "project-alpha")
    assert (status, "refusals: --seed NAME asks a seed" in said) == (0, True), said
    # What cannot be read is named, and all else is shown.
    status, said = await seedquota("master", "history", "project-alpha", "--prometheus", "http://127.0.0.1:1")
    assert status == 3 and "use over time: Prometheus cannot be asked: " in said and "cpu 2 to 4" in said, said
    status, said = await seedquota("master", "history", "project-alpa")
    assert (status, "did you mean project-alpha?" in said) == (1, True), said
