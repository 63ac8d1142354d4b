"""The programs of the last release beside those of this one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
import pytest_asyncio

from common.quota import resources
from common.quota.account import BLOCKS
from devcluster.load import Attempt, Outcome, Tenant, fill, parse_refusal, unjustified
from tests import last_release
from tests.integration.installed.site import SMALL, Json, Site, cpus, until
from tests.running import running

pytestmark = pytest.mark.integration

AGENTS = (("seed-1", "seed-1-b"), ("seed-2", "seed-2-b"))
ROOM = 24  # by so much the limit is raised while programs are replaced
PAUSE_SECONDS = 0.2
KEPT_SECONDS = 8.0  # a leader of 0.2.0 forgets a cluster that is gone within less


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the last release's source is."""
    if why := last_release.missing():
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("last-release")
    last_release.unpack(directory)
    return directory


@pytest_asyncio.fixture
async def rolling(site: Site, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """With two replicas of each agent, as installed. Whatever fails, this release runs again in the end."""
    await site.start(*(site.program(second) for _, second in AGENTS))
    failed = request.session.testsfailed
    yield site
    await site.stop(*(site.program(second) for _, second in AGENTS))
    if request.session.testsfailed > failed:
        await asyncio.gather(*(replace(site, [name], None) for name in ("master", *(first for first, _ in AGENTS))))


async def replace(site: Site, names: Sequence[str], source: Path | None) -> None:
    """One replica after the other, as a Deployment does it."""
    for name in names:
        program = site.program(name)
        await site.stop(program)
        program.run_from(source)
        await site.start(program)


async def move(site: Site, what: str, source: Path | None) -> None:
    if what == "master":
        await replace(site, ["master"], source)
    else:
        await asyncio.gather(*(replace(site, replicas, source) for replicas in AGENTS))


@asynccontextmanager
async def tenants_ask(site: Site) -> AsyncIterator[list[Attempt]]:
    """While the block runs, two clients in each user cluster create Machines, as client-go does it."""
    attempts: list[Attempt] = []
    ended = asyncio.Event()

    async def client(tenant: Tenant) -> None:
        while not ended.is_set():
            attempts.append(await tenant.create(SMALL))
            await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for tenant in (*site.tenants, *site.tenants):
            group.create_task(client(tenant))
        try:
            yield attempts
        finally:
            ended.set()


def are_right(attempts: Sequence[Attempt], before: int, limits: Sequence[int]) -> None:
    """None failed, and each refusal was by a limit that was in force during this time and had no room for it.

    On a busy machine a client may give up before a program is back. Whoever is asked to come again has not failed.
    """
    failed = [one for one in attempts if one.outcome is Outcome.FAILED]
    assert [(one.status, one.tries, one.lost, one.message) for one in failed] == []
    assert {one.outcome for one in attempts} >= {Outcome.ADMITTED, Outcome.REFUSED}, "both must have been asked for"
    known = [resources.parse(cpus(limit)) for limit in limits]
    for one in attempts:
        refusal = parse_refusal(one.message) if one.outcome is Outcome.REFUSED else None
        assert refusal is None or refusal.limited in known, one.message
    for limit in known:
        unfounded = unjustified(attempts, limit, resources.parse(cpus(before)))
        assert [why for one, why in unfounded if (found := parse_refusal(one.message)) and found.limited == limit] == []
        assert [one.message for one, _ in unfounded if parse_refusal(one.message) is None] == []


async def test_a_leader_of_the_last_release_keeps_what_others_have_reserved_ahead(rolling: Site, last: Path) -> None:
    """Both replicas of a seed stop while one has a block (rule 4.15), and one of the last release leads meanwhile."""
    site, (first, second) = rolling, AGENTS[0]
    old, second_replica = site.program(first), site.program(second)
    await site.quota(cpus(1000))

    async def account() -> Json:
        return dict((await site.ledger("seed-1"))["account"])

    async def has_block() -> list[str]:
        lines = unquote((await account()).get("reservations", "")).splitlines()
        found = [line for line in lines if BLOCKS in line]
        assert found
        return found

    await site.stop(old)

    async def storm() -> None:
        while True:
            await site.one.create(SMALL, again=False)

    async def stopped_with_block() -> list[str]:
        await until(has_block, 60)
        second_replica.pause()
        await asyncio.sleep(PAUSE_SECONDS)  # a write that was under way is done
        try:
            return await has_block()
        except AssertionError:
            second_replica.resume()
            raise

    async with running(storm(), storm()):  # whose last requests nobody answers
        before = await until(stopped_with_block, 60)
    try:
        epoch = (await account())["epoch"]
        old.run_from(last)
        await site.start(old)

        async def leads() -> None:
            assert (await account())["epoch"] > epoch

        await until(leads, 60)
        await asyncio.sleep(KEPT_SECONDS)
        assert await has_block() == before
    finally:
        await site.kill(second_replica)  # it has lost its lease meanwhile, and would say so
        await site.start(second_replica)
        await replace(site, [first], None)
    await site.reserves_nothing("seed-1", seconds=60)


async def test_an_upgrade_and_the_way_back_under_load_fail_no_request_and_exceed_nothing(
    rolling: Site, last: Path
) -> None:
    """Back to the last release and on to this one, agents first each time: so each side is once the older one.

    The limit is changed while the programs are replaced, and in the end it can be filled exactly.
    """
    site, limit = rolling, ROOM
    await site.quota(cpus(limit))
    async with site.no_overshoot(cpus(limit)) as overshoot:
        for source in (last, None):
            for what in ("seeds", "master"):
                limits = (limit, limit + ROOM)
                await overshoot.limit(resources.parse(cpus(limits[-1])))
                used = overshoot.used.get("cpu", 0) // 10**9
                async with tenants_ask(site) as attempts:
                    await asyncio.gather(move(site, what, source), site.quota(cpus(limits[-1])))
                await site.reserves_nothing(*site.installed.seeds, seconds=60)  # of tries without an answer
                more = await fill(site.tenants, SMALL, ROOM * 10)
                assert {one.outcome for one in more} <= {Outcome.ADMITTED, Outcome.REFUSED}, more[-1].message
                are_right([*attempts, *more], used, limits)
                await overshoot.look()
                assert overshoot.room() == 0, f"{what} of {source or 'this release'}"
                limit = limits[-1]
        await site.reserves_nothing(*site.installed.seeds, seconds=60)
        await site.uses(cpus(limit), seconds=60)
