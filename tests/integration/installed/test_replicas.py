"""Two replicas of a seed's agent, real processes, one of which does not hear what is new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import pytest_asyncio

from devcluster.install import NAMESPACE, SEED_USER, Program
from devcluster.network import Link, Traffic, free_port
from seed.cache.replicas import LAPSED, record_name
from tests.integration.installed.site import QUOTA, SMALL, Answer, Site, cpus, quota_manifest, until
from tests.unit.fake_api_server import within

pytestmark = pytest.mark.integration

HEARING = "seedquota-seed-1"
DEAF = "seedquota-seed-1-b"
RECORDS = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
ADMITS_OR_IS_OLD = (201, 503)  # where the machine is so busy that what it knows is too old already
LONGEST = 4 * LAPSED  # seconds; a replica that hears nothing is not waited for after a quarter of it


class Place:
    """The second replica reaches its API server by a link, and all that is asked here, it is asked."""

    def __init__(self, site: Site, link: Link) -> None:
        self.site = site
        self.link = link

    @property
    def deaf(self) -> Program:
        return self.site.installed.programs[DEAF]

    async def enforced(self) -> bool:
        quota = await self.site.get("master", f"resourcequotas/{QUOTA}")
        return any(
            (found["type"], found["status"], found["observedGeneration"])
            == ("Enforced", "True", quota["metadata"]["generation"])
            for found in quota.get("status", {}).get("conditions", ())
        )

    async def ask(self) -> Answer:
        """Whether one Machine would be admitted."""
        return await self.site.create("user-1", SMALL, dryRun="All")

    async def refuses_from_when_it_is_enforced(self, seconds: float) -> list[Answer]:
        """Asks again and again until the quota is enforced: from then on nothing may be admitted. All answers."""
        answers: list[Answer] = []
        deadline = time.monotonic() + seconds
        while not await self.enforced():
            answers.append(await self.ask())
            assert time.monotonic() < deadline, (answers[-1], await self.why())
            await asyncio.sleep(0.05)
        for _ in range(5):
            answers.append(await self.ask())
            assert answers[-1].status in (403, 503), answers[-1]
        return answers

    async def why(self) -> tuple[str, str, str]:
        return await self.site.condition("master", f"resourcequotas/{QUOTA}", "Enforced")

    async def good_again(self) -> None:
        async def holds() -> None:
            assert (await self.ask()).status == 403
            async with aiohttp.ClientSession() as session, session.get(f"{self.deaf.health}/readyz") as answer:
                assert answer.status == 200, await answer.text()

        await until(holds, LONGEST)


@pytest_asyncio.fixture(scope="module")
async def whole(installation: Site) -> AsyncIterator[Place]:
    installed = installation.installed
    agent, server, balancer = installed.programs[DEAF], installation.server("seed-1"), installed.balancers["seed-1"]
    command, backends = agent._command, balancer._backends
    link = Link(free_port(), server.port)
    await link.set(Traffic.FORWARDED)
    kubeconfig = installed.directory / "by-the-link.kubeconfig"
    kubeconfig.write_text(server.kubeconfig(SEED_USER, port=link.port))
    agent._command = [*command, f"--kubeconfig={kubeconfig}"]
    try:
        await agent.start()  # after the other one, which leads
        balancer._backends = backends[1:]  # of the second replica alone
        await balancer.end_connections()
        yield Place(installation, link)
    finally:
        await agent.stop()
        await link.close()
        agent._command, balancer._backends = command, backends
        await balancer.end_connections()


@pytest_asyncio.fixture
async def place(whole: Place) -> AsyncIterator[Place]:
    """Without a quota, so that all is admitted, and with all that is hears."""
    yield whole
    await whole.link.set(Traffic.FORWARDED)
    await whole.site.delete("master", f"resourcequotas/{QUOTA}")

    async def holds() -> None:
        assert (await whole.ask()).status == 201
        assert await whole.site.items("seed-1", "resourcequotas") == []

    await until(holds, LONGEST)


@asynccontextmanager
async def admitting(place: Place) -> AsyncIterator[None]:
    async def holds() -> None:
        assert (await place.ask()).status == 201

    await until(holds, 30)
    yield


async def test_a_new_quota_is_enforced_soon_where_all_replicas_hear(place: Place) -> None:
    async with admitting(place):
        await place.site.apply("master", quota_manifest(cpus(0)))
        async with within(LAPSED / 2):
            answers = await place.refuses_from_when_it_is_enforced(LONGEST)
        assert answers[-1].status == 403


async def test_a_new_quota_is_not_enforced_while_a_replica_that_is_cut_off_admits_past_it(place: Place) -> None:
    async with admitting(place):
        await place.link.set(Traffic.DROPPED)
        await place.site.apply("master", quota_manifest(cpus(0)))
        answers = await place.refuses_from_when_it_is_enforced(LONGEST)
        assert answers[0].status in ADMITS_OR_IS_OLD, "it does not know of the quota yet"
        assert "has had no answer from the API server for" in answers[-1].message
        await place.link.set(Traffic.FORWARDED)
        await place.good_again()
        records = {found["metadata"]["name"]: found for found in await place.site.items("seed-1", RECORDS)}
        assert {record_name("seedquota-seed", name) for name in (HEARING, DEAF)} <= records.keys()


async def test_a_change_to_deny_is_not_enforced_before_a_replica_whose_watch_is_silent_has_it(place: Place) -> None:
    async with admitting(place):
        warning = quota_manifest(cpus(0))
        warning["spec"] = {**warning["spec"], "enforcement": "warn"}  # type: ignore[dict-item]
        await place.site.apply("master", warning)
        await until(lambda: _true(place.enforced()), 30)
    async with admitting(place):
        place.link.hang()
        await place.site.apply("master", quota_manifest(cpus(0)))
        answers = await place.refuses_from_when_it_is_enforced(LONGEST)
        assert answers[0].status in ADMITS_OR_IS_OLD, "it does not know of the change yet"
        await place.good_again()


async def _true(answer: object) -> None:
    assert await answer  # type: ignore[misc]


async def test_a_replica_that_ends_takes_its_record_along(place: Place) -> None:
    await place.deaf.stop()
    records = [found["metadata"]["name"] for found in await place.site.items("seed-1", RECORDS)]
    assert record_name("seedquota-seed", DEAF) not in records
    await place.deaf.start()
