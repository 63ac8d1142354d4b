"""Real programs with a real Redis for the ledger: it crashes in a storm, and the ledger moves to it and away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from common.quota import resources
from devcluster.load import Attempt, Outcome, Size, fill, storm, unjustified
from devcluster.observe import Overshoot
from devcluster.patience import patient_timeout
from devcluster.redis import RedisServer, Settings
from seed.ledger.backend import PASSWORD_VARIABLE
from tests.integration.installed.site import NAMESPACE, SMALL, Answer, Json, Site, cpus, until
from tests.integration.installed.test_surge import Rollout, in_force, shown
from tests.integration.redis_servers import Rack, rack
from tests.running import running

pytestmark = pytest.mark.integration

LIMIT = cpus(60)
MARKER = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/seedquota-ledger"
BACK = 60.0  # seconds: notice, settle, nonce, in-flight window, recount
PASSWORD = "of-the-ledger"


class Place:
    """The installation, the Redis, and which store the agents are started with."""

    def __init__(self, site: Site, redis: RedisServer, configure: Callable[[str], None]) -> None:
        self.site = site
        self.redis = redis
        self.configure = configure

    async def marker(self, seed: str) -> Json:
        found = (await self.site.get(seed, MARKER))["metadata"]["annotations"]
        return {name.removeprefix("seedquota.io/"): value for name, value in found.items()}

    async def kept_in(self, store: str, *, seed: str = "seed-1", not_in: Json | None = None) -> Json:
        """Waits until the store is in force, in another generation than `not_in`. The marker."""

        async def holds() -> Json:
            said = await self.marker(seed)
            assert (said["store"], said["state"]) == (store, "InForce"), said
            assert not_in is None or said["tenure"] != not_in["tenure"]
            return said

        return await until(holds, BACK)

    async def roll_to(self, store: str) -> None:
        """Every replica of the seed is replaced, one after the other, by one with the other configuration."""
        self.configure(store)
        for name in ("seed-1-b", "seed-1"):
            await self.site.stop(self.site.program(name))
            await self.site.start(self.site.program(name))


@pytest_asyncio.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rack]:
    async with rack(tmp_path_factory.mktemp("redis")) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module")
async def place(installation: Site, servers: Rack) -> AsyncIterator[Place]:
    """Both replicas of each seed's agent run."""
    site = installation
    await site.left_nothing()
    redis = await servers.server("ledger", Settings(persistence="rdb", password=PASSWORD))
    first, second = [[site.program(seed + suffix) for seed in site.installed.seeds] for suffix in ("", "-b")]
    with pytest.MonkeyPatch.context() as environment:
        place = Place(site, redis, lambda store: environment.setenv("SEEDQUOTA_LEDGER_STORE", store))
        environment.setenv("SEEDQUOTA_REDIS_URL", redis.url)
        environment.setenv(PASSWORD_VARIABLE, PASSWORD)
        place.configure("redis")
        await site.stop(*first)
        try:
            await site.start(*first, *second)
            for seed in site.installed.seeds:
                await place.kept_in("redis", seed=seed)
            yield place
        finally:
            environment.undo()
            await site.stop(*first, *second)
            await site.start(*first)
            for seed in site.installed.seeds:
                await place.kept_in("apiserver", seed=seed)


@asynccontextmanager
async def in_a_storm(place: Place) -> AsyncIterator[list[Attempt]]:
    """Clients create Machines in two user clusters while the block runs; the limit holds all the time and after."""
    site = place.site
    attempts: list[Attempt] = []
    sizes = [Size(str(1 + number % 3), "1Gi", "1Gi") for number in range(60)]
    async with (
        site.no_overshoot(LIMIT) as overshoot,
        running(storm(site.tenants, sizes, 12, attempts.append)) as (storming,),
    ):
        async with patient_timeout(BACK):
            while len(attempts) < 12:
                await asyncio.sleep(0.01)
        yield attempts
        await storming
        assert [a.message for a in attempts if a.outcome is Outcome.FAILED] == []
        assert unjustified(attempts, resources.parse(LIMIT), {}) == []
        await can_be_filled(site, overshoot)


async def can_be_filled(site: Site, overshoot: Overshoot) -> None:
    async def filled() -> None:
        await overshoot.look()
        await fill(site.tenants, SMALL, overshoot.room() + 10)
        await overshoot.look()
        assert overshoot.room() == 0

    await until(filled, BACK)
    await site.uses(LIMIT, seconds=60)


async def emptied(place: Place) -> None:
    await place.site.clean()
    await place.site.quota(LIMIT)


async def test_a_crash_that_loses_the_ledger_overdraws_nothing(place: Place) -> None:
    await place.site.quota(LIMIT)
    before = await place.kept_in("redis")
    assert await place.site.items("seed-1", f"namespaces/{NAMESPACE}/quotaledgers") == []
    async with in_a_storm(place):
        await place.redis.kill()
        await place.redis.start()
        after = await place.kept_in("redis", not_in=before)
        assert after["reign"] != before["reign"]


async def test_an_older_snapshot_overdraws_nothing(place: Place) -> None:
    await emptied(place)
    before = await place.kept_in("redis")
    await place.redis.command("SAVE")
    async with in_a_storm(place):
        await place.redis.kill()
        await place.redis.start()
        assert await place.redis.command("DBSIZE") != b"0", "the snapshot was loaded"
        await place.kept_in("redis", not_in=before)


async def test_flushing_it_overdraws_nothing_and_heals(place: Place) -> None:
    await emptied(place)
    async with in_a_storm(place):
        await place.redis.command("FLUSHALL")


async def test_what_was_lent_when_the_ledger_was_lost_is_not_lent_again_until_an_older_machine_goes(
    place: Place,
) -> None:
    site = place.site
    await site.clean()
    await in_force(site, cpus(3), cpus(2))
    rollout = await Rollout.of(site, "user-1", 3)
    await site.uses(cpus(3))

    async def one_comes() -> Answer:
        answer = await rollout.one_comes()
        assert answer.status != 503, answer
        return answer

    for _ in range(2):
        answer = await until(one_comes, BACK)
        assert answer.status == 201, answer
    await shown(site, 3, 2)
    before = await place.kept_in("redis")
    await place.redis.kill()
    await place.redis.start()
    await place.kept_in("redis", not_in=before)
    answer = await until(one_comes, BACK)
    assert answer.status == 403, answer
    assert "its rollout may not use surge now: surge.cpu=2 is taken by use" in answer.message
    await shown(site, 5, 2)
    await rollout.one_goes()
    await rollout.one_goes()
    await shown(site, 3, 0)
    answer = await until(one_comes, BACK)
    assert answer.status == 201, answer


async def test_a_redis_that_hangs_is_refused_with_a_reason_in_time(place: Place) -> None:
    await emptied(place)
    await place.site.admitted("user-1", 1)
    place.redis.pause()
    try:

        async def refused_in_time() -> None:
            """Once of several times: a busy machine may be late, and one that waits for the Redis always is."""
            late, answer = place.site.late, await place.site.create("user-1")
            assert answer.status == 503, answer
            assert place.site.late == late, "the API server waits for three seconds"
            assert "the ledger does not answer" in answer.message, answer

        await until(refused_in_time, 30)
    finally:
        place.redis.resume()

    async def again() -> None:
        await place.site.admitted("user-1", 1)

    await until(again, BACK)


@pytest.mark.parametrize("target", ["apiserver", "redis"])
async def test_the_ledger_moves_while_machines_are_created(place: Place, target: str) -> None:
    await emptied(place)
    async with in_a_storm(place):
        await place.roll_to(target)
        await place.kept_in(target)


async def test_a_replica_with_another_configuration_admits_nothing(place: Place) -> None:
    await emptied(place)
    await place.kept_in("redis")
    odd = place.site.program("seed-1-b")
    await place.site.stop(odd)
    place.configure("apiserver")
    await place.site.start(odd)
    place.configure("redis")
    try:
        await place.kept_in("redis")
        answers = [await place.site.create("user-1") for _ in range(8)]
        assert {answer.status for answer in answers} <= {201, 503}
        ledgers = await place.site.items("seed-1", f"namespaces/{NAMESPACE}/quotaledgers")
        assert [ledger for ledger in ledgers if ledger["account"].get("state") == "Open"] == []
    finally:
        await place.site.stop(odd)
        await place.site.start(odd)


async def test_an_agent_that_ends_in_order_closes_its_connections_to_redis(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python warns of those that are open when they are collected."""
    monkeypatch.setenv("PYTHONWARNINGS", "always::ResourceWarning")
    program = place.site.program("seed-1-b")
    await place.site.stop(program)
    before = program.log.stat().st_size
    place.configure("redis")
    await place.site.start(program)
    await place.site.stop(program)
    said = program.log.read_text()[before:]
    assert "unclosed" not in said
    assert '"message":"ended"' in said
