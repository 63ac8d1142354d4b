"""A project gets what it is guaranteed while a sibling in another cluster tries to fill their organization."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.integration.installed.site import MACHINES, Answer, Json, Site, cpus, named, quota_manifest, until

pytestmark = pytest.mark.integration

ALPHA, SIBLING = ("user-1", "user-2"), "user-4"  # clusters: of alpha on both seeds, of delta on seed-1
ORGANIZATION, QUOTA = "org-solo", "project-alpha"
LIMIT, GUARANTEED = 6, 3


@pytest_asyncio.fixture(scope="module")
async def with_sibling(installation: Site) -> AsyncIterator[Site]:
    """With a cluster of the sibling, for all tests here."""
    found = installation
    await found.apply("master", named("Project", "delta", organization="solo"))

    async def gone() -> None:
        """Else the organization has one cluster more in other tests."""
        assert (await found.call("seed-1", "GET", f"namespaces/delta/userclusters/{SIBLING}")).status == 404

    try:
        await found.installed.add_user_cluster(SIBLING, "seed-1", "delta")
        found.add(found.installed.cluster(SIBLING))
        yield found
    finally:
        await found.delete("seed-1", f"namespaces/delta/userclusters/{SIBLING}")
        await until(gone, 60)
        await found.installed.cluster(SIBLING).kill()


@pytest_asyncio.fixture
async def site(with_sibling: Site) -> AsyncIterator[Site]:
    found = with_sibling
    try:
        await found.apply("master", of_alpha(GUARANTEED), of_organization(LIMIT))
        for name in (QUOTA, ORGANIZATION):
            await found.comes("master", f"resourcequotas/{name}", "Enforced", "True", seconds=90)
        yield found
    finally:
        for machine in await found.items(SIBLING, MACHINES):
            await found.delete(SIBLING, f"{MACHINES}/{machine['metadata']['name']}")
        await found.clean()


def of_alpha(guaranteed: int) -> Json:
    quota = quota_manifest(cpus(4))
    return {**quota, "spec": {**quota["spec"], "guaranteed": cpus(guaranteed)}}


def of_organization(limit: int) -> Json:
    return quota_manifest(cpus(limit), ORGANIZATION, kind="organization", subject="solo")


async def fills(site: Site, cluster: str, at_once: int) -> int:
    """How many Machines of one CPU are admitted until one is refused for good."""

    async def decided() -> Answer:
        answer = await site.asked(cluster)
        assert answer.status in (201, 403), answer
        return answer

    async def one() -> int:
        return int((await site.that_fits(lambda: until(decided, 60))).status == 201)

    admitted = sum(await asyncio.gather(*(one() for _ in range(at_once))))
    while await one():
        admitted += 1
    return admitted


async def test_siblings_cannot_take_what_a_project_is_guaranteed_on_any_seed(site: Site) -> None:
    await site.comes("master", f"resourcequotas/{ORGANIZATION}", "GuaranteesInForce", "True", seconds=30)
    async with site.no_overshoot(cpus(LIMIT)):
        assert await fills(site, SIBLING, 2 * LIMIT) == LIMIT - GUARANTEED
        refused = await site.refused(SIBLING)
        assert f"exceeded quota: {ORGANIZATION}, requested: cpu=1, used: cpu=6, limited: cpu=6" in refused.message
        assert "cpu=3 of used is guaranteed to other projects" in refused.message

        first, second = await asyncio.gather(*(site.admitted(cluster) for cluster in ALPHA))
        third = await site.admitted(ALPHA[1])
        await site.refused(ALPHA[0])
        await site.uses(cpus(LIMIT), ORGANIZATION, seconds=60)

        await site.delete(ALPHA[0], f"{MACHINES}/{first[0]}")
        await site.uses(cpus(LIMIT - 1), ORGANIZATION, seconds=60)
        await site.refused(SIBLING)
        assert len(await site.admitted(ALPHA[1])) == len(second) == len(third) == 1

    given = (await site.get("master", f"resourcequotas/{ORGANIZATION}"))["status"]["guarantees"]
    assert [(each["project"], each["hard"]) for each in given] == [("alpha", cpus(GUARANTEED))]


async def over_http(site: Site, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
    headers = {"Authorization": f"Bearer {site.server('master').tokens['admin']}"}
    async with (
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=False)) as session,
        session.request(method, f"{site.installed.api_url}/api{path}", json=body) as answer,
    ):
        return answer.status, await answer.json() if answer.status != 204 else {}


async def test_over_http_a_guarantee_is_seen_set_and_told_beforehand(site: Site) -> None:
    """What is said to fit is admitted, and what is not is refused."""

    async def in_force(amounts: Json) -> None:
        status, found = await over_http(site, "GET", f"/v2/quotas/{QUOTA}")
        assert (status, found["status"]["guaranteed"]) == (200, amounts), found
        _, found = await over_http(site, "GET", f"/v2/quotas/{ORGANIZATION}")
        assert (found["status"]["kept"], found["status"]["guarantees"]) == (
            amounts,
            [{"project": "alpha", "hard": amounts, "used": {"cpu": "0"}}],
        )

    async def fits(project: str, replicas: int) -> tuple[bool, int]:
        asked = {"project": project, "resources": cpus(1), "replicas": replicas}
        status, found = await over_http(site, "POST", "/v1/fits", asked)
        assert status == 200, found
        _, there = await over_http(site, "POST", "/v1/where", asked)
        assert max(each["byRecall"] for each in there["items"]) == found["fitting"], there
        return found["fits"], found["fitting"]

    limits = {"quota": cpus(4)}
    await until(lambda: in_force(cpus(GUARANTEED)), 60)
    assert await fits("delta", LIMIT) == (False, LIMIT - GUARANTEED)
    assert await fits("alpha", 4) == (True, 4)
    path = f"/v2/quotas/{QUOTA}"
    for below in ({"quota": cpus(2)}, {"quota": cpus(2), "guaranteed": cpus(GUARANTEED)}):
        status, refused = await over_http(site, "PUT", path, below)
        assert (status, refused["errors"][0]["pointer"]) == (422, "/guaranteed"), refused
        assert "guaranteed is more than the limit in quota" in refused["detail"]
    status, refused = await over_http(site, "PUT", path, {"quota": cpus(9), "guaranteed": cpus(LIMIT + 1)})
    assert (status, refused["code"]) == (422, "guarantees_exceed_organization"), refused
    status, changed = await over_http(site, "PUT", path, {**limits, "guaranteed": cpus(2)})
    assert (status, changed["guaranteed"]) == (200, cpus(2)), changed
    status, changed = await over_http(site, "PUT", path, {"quota": cpus(5)})
    assert (status, changed["guaranteed"]) == (200, cpus(2)), "what is not named stays"
    await until(lambda: in_force(cpus(2)), 60)
    new = {"subjectName": "delta", "quota": cpus(LIMIT), "guaranteed": cpus(LIMIT - 1)}
    status, refused = await over_http(site, "POST", "/v2/quotas", new)
    assert (status, refused["errors"][0]["pointer"]) == (422, "/guaranteed/cpu"), refused
    assert "4 of its limit of 6 is left" in refused["detail"]

    await site.comes("master", f"resourcequotas/{ORGANIZATION}", "GuaranteesInForce", "True", seconds=30)
    assert await fits("delta", LIMIT) == (False, LIMIT - 2)
    assert await fills(site, SIBLING, 2 * LIMIT) == LIMIT - 2
    await site.uses(cpus(LIMIT - 2), ORGANIZATION, seconds=60)
    assert (await fits("delta", 1), await fits("alpha", 3)) == ((False, 0), (False, 2))
    await site.admitted(ALPHA[0])
    await site.admitted(ALPHA[1])
    columns = await site.get("master", f"resourcequotas/{QUOTA}")
    assert columns["spec"]["guaranteed"] == cpus(2)

    async def said() -> None:
        for name in (QUOTA, ORGANIZATION):
            summary = (await site.get("master", f"resourcequotas/{name}"))["status"]["summary"]
            assert summary["guaranteed"] == "cpu 2/2", summary

    await until(said, 30)
    for limit in (4, 5):  # also where there is none
        status, gone = await over_http(site, "PUT", path, {"quota": cpus(limit), "guaranteed": {}})
        assert (status, gone["guaranteed"], gone["quota"]) == (200, {}, cpus(limit)), gone


async def test_a_guarantee_takes_nothing_from_who_uses_it_already(site: Site) -> None:
    await site.apply("master", of_alpha(1))
    await site.comes("master", f"resourcequotas/{ORGANIZATION}", "GuaranteesInForce", "True", seconds=30)

    async def all_but_one() -> None:
        made = 0
        while made < LIMIT - 1:
            made += (await site.asked(SIBLING)).status == 201

    await until(all_but_one, 120)
    await site.apply("master", of_alpha(GUARANTEED))
    reason = await site.comes("master", f"resourcequotas/{ORGANIZATION}", "GuaranteesInForce", "False", seconds=60)
    assert "cpu=2 of what is guaranteed is used by other projects" in str(reason)
    await site.refused(SIBLING)
    await site.admitted(ALPHA[0])
    await site.refused(ALPHA[1])


async def test_more_than_the_organization_has_is_not_guaranteed(site: Site) -> None:
    await site.comes("master", f"resourcequotas/{QUOTA}", "LimitsFit", "True", seconds=30)
    other = quota_manifest(cpus(4), "project-delta", subject="delta")
    await site.apply("master", {**other, "spec": {**other["spec"], "guaranteed": cpus(4)}})
    reason = await site.comes("master", "resourcequotas/project-delta", "LimitsFit", "False", seconds=30)
    assert "cpu=4 is not guaranteed" in str(reason)
    patch = {"spec": {"quota": cpus(8), "guaranteed": cpus(7)}}

    async def is_refused() -> None:
        answer = await site.call("master", "PATCH", f"resourcequotas/{QUOTA}", patch)
        assert answer.status in (400, 403, 422) and "more than the organization can guarantee" in answer.message, answer

    await until(is_refused, 60)
