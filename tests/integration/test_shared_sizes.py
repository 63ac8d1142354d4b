"""Sizes in a real Redis: shared by replicas, there after a restart, and no harm when it is slow, gone or garbled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from common.quota.quantity import UNIT
from common.runtime.redis_access import RedisAccess, redis_url
from devcluster.patience import patient_timeout
from devcluster.redis import RedisServer, Settings
from seed.instance_types import cache as caches
from seed.instance_types import redis_cache as sharing
from seed.instance_types.redis_cache import SharedSizes
from seed.providers.flavour import ALL, Catalogue, Flavour, Place, Query
from seed.providers.size import ProviderUnavailable
from tests.integration.redis_servers import SEED, Rack, be_patient, rack
from tests.unit.fake_api_server import within
from tests.unit.seed.instance_types.test_cache import LARGE, PLACE, Kept, Told

pytestmark = pytest.mark.integration

KEY = f"{{seedquota:{SEED}}}:sizes:2:{sharing._hash(PLACE, '')}"
FILLED = f"{{seedquota:{SEED}}}:sizes:2"
PATIENCE = caches.SHARED_SECONDS
RIGHTS = "+hget +hset +hlen +del +expire +set ~{seedquota:" + SEED + "}*"
ODD = {
    "gpu": Flavour(
        cpu=UNIT // 2, memory=1500 * 10**6 * UNIT, storage=960 * 10**9 * UNIT, devices={"amd.com/gpu": UNIT}
    ),
    "diskless": Flavour(cpu=UNIT, memory=2**44 * UNIT, storage=None),
    "45": Flavour(cpu=UNIT, memory=UNIT, name="cax11"),
    "template": Flavour(cpu=UNIT, memory=UNIT, storage="rootDiskSizeGB is not set"),
}


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Rack]:
    async with rack(tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no Redis that hangs."""
    monkeypatch.setattr(caches, "SHARED_SECONDS", 5.0)
    be_patient(monkeypatch)


@asynccontextmanager
async def replica(url: str, access: RedisAccess | None = None, **options: float) -> AsyncIterator[Kept]:
    made = Kept(shared=SharedSizes(redis_url(url), access or RedisAccess(), SEED), **options)
    try:
        yield made
    finally:
        await made.close()


async def written(redis: RedisServer, count: int, by: Kept) -> None:
    """Until so many are there, and no more comes by itself."""
    async with patient_timeout(20):
        while int(await redis.command("HLEN", KEY)) < count:
            await asyncio.sleep(0.02)
            await by.share_again()  # as from time to time: a busy machine may have been too slow for the first write
    await all_written(by)


async def all_written(by: Kept) -> None:
    assert by._shared is not None
    async with patient_timeout(20):
        while by._shared._writes:
            await asyncio.sleep(0.01)


async def odd(_query: Query) -> Catalogue:
    return Catalogue(ODD)


def named(name: str) -> Callable[[Query], Awaitable[Catalogue]]:
    async def answer(_query: Query) -> Catalogue:
        return Catalogue({name: LARGE})

    return answer


async def nobody(_query: Query) -> Catalogue:
    raise AssertionError("the cloud was asked")


async def test_what_one_replica_was_told_the_others_know_and_one_that_restarts(servers: Rack) -> None:
    redis = await servers.server("redis")
    silent = Told(nobody)
    async with replica(redis.url) as first, replica(redis.url) as second:
        for name, flavour in ODD.items():
            assert await first.ask(Told(odd, lists=True).question(name)) == flavour
        await written(redis, len(ODD), first)
        for name, flavour in ODD.items():
            assert await second.ask(silent.question(name)) == flavour
            assert await second.ask(silent.question(name)) == flavour
        assert second.lookups == ["shared", "hit"] * len(ODD)
    async with replica(redis.url) as restarted:
        found = await asyncio.gather(*(restarted.ask(silent.question(name)) for name in [*ODD] * 100))
        assert found == [*ODD.values()] * 100
    assert silent.asked == []


async def test_places_and_seeds_are_apart(servers: Rack) -> None:
    redis = await servers.server("redis")
    elsewhere = Place(PLACE.provider, PLACE.endpoint, "us-east-1")
    async with replica(redis.url) as first, replica(redis.url) as second:
        await first.ask(Told(odd).question("gpu"))
        await written(redis, len(ODD), first)
        cloud = Told(odd)
        await second.ask(cloud.question("gpu", place=elsewhere))
        assert cloud.asked == ["gpu"]
        other = SharedSizes(redis_url(redis.url), RedisAccess(), "us-1")
        assert await other.get(PLACE, "gpu") is None
        await other.close()


async def patiently(cache: Kept, name: str) -> Flavour:
    """A Redis that is slow, as on a busy machine, is not waited for: the cloud is asked then, and here is none."""
    for _ in range(50):
        try:
            return await cache.ask(Told(nobody).question(name))
        except ProviderUnavailable:
            await asyncio.sleep(0.2)
    raise TimeoutError(name)


async def test_a_redis_that_dies_costs_nothing_and_is_filled_again_when_it_is_back(servers: Rack) -> None:
    redis = await servers.server("redis")
    async with replica(redis.url) as first, replica(redis.url) as second:
        cloud = Told(odd)
        await first.ask(cloud.question("gpu"))
        await written(redis, len(ODD), first)
        await redis.kill()
        async with within(0.5):
            for name, flavour in ODD.items():
                assert await second.ask(cloud.question(name)) == flavour
        await redis.start()  # empty
        await written(redis, len(ODD), first)
        async with replica(redis.url) as third:
            assert await patiently(third, "gpu") == ODD["gpu"]


async def test_a_redis_that_hangs_delays_a_lookup_by_some_tens_of_milliseconds(
    servers: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "SHARED_SECONDS", PATIENCE)
    redis = await servers.server("redis")
    async with replica(redis.url) as first:
        cloud = Told(odd)
        await first.ask(cloud.question("gpu", place=Place("do", "https://api")))
        redis.pause()
        try:
            for lookups in (1, 100):  # one after the other, they would be delayed for five seconds
                async with within(0.5):
                    asked = [cloud.question("gpu", place=Place("do", f"https://{lookups}")) for _ in range(lookups)]
                    known = await asyncio.gather(*map(first.ask, asked))
                assert known == [ODD["gpu"]] * lookups
        finally:
            redis.resume()


async def test_tls_a_user_and_the_documented_rights_are_enough(servers: Rack) -> None:
    users = ["user default on >administrator ~* &* +@all", f"user sizes on >s3cret {RIGHTS}"]
    redis = await servers.server("redis", Settings(tls=True, users=users, password="administrator"))
    access = RedisAccess(username="sizes", password="s3cret", ca_file=redis.ca)
    async with replica(redis.url, access) as first, replica(redis.url, access) as second:
        cloud = Told(odd)
        await first.ask(cloud.question("gpu"))
        await written(redis, len(ODD), first)
        await second.prefetch(cloud.question(ALL))
        assert await second.ask(Told(nobody).question("gpu")) == ODD["gpu"]
    wrong = RedisAccess(username="sizes", password="wr0ng", ca_file=redis.ca)
    async with replica(redis.url, wrong) as locked_out:
        assert await locked_out.ask(cloud.question("gpu")) == ODD["gpu"]
        assert locked_out.lookups == ["fetched"]


async def test_the_primary_that_sentinels_name_and_the_owner_of_the_slot_are_found(servers: Rack) -> None:
    single = await servers.server("single")
    sentinel = await servers.sentinel(single)
    member = await servers.server("member", Settings(cluster=True))
    await member.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    async with patient_timeout(30):
        while b"cluster_state:ok" not in await member.command("CLUSTER", "INFO"):
            await asyncio.sleep(0.05)
    for url, redis in ((sentinel.url, single), (f"redis+cluster://127.0.0.1:{member.port}", member)):
        async with replica(url) as first, replica(url) as second:
            await first.ask(Told(odd).question("gpu"))
            await written(redis, len(ODD), first)
            async with patient_timeout(30):  # the first lookups may be faster than the search for the primary
                while "shared" not in second.lookups:
                    await second.ask(Told(odd).question("gpu", place=PLACE))
                    second._shelves.clear()


async def test_one_of_the_replicas_lists_for_all(servers: Rack) -> None:
    redis = await servers.server("redis")
    cloud = Told(odd, lists=True)
    async with replica(redis.url) as first, replica(redis.url) as second:
        await asyncio.gather(*(one.prefetch(cloud.question(ALL)) for one in (first, second, first, second)))
        assert cloud.asked == [ALL]
        await written(redis, len(ODD), first)
        assert await second.ask(Told(nobody).question("gpu")) == ODD["gpu"]


async def test_what_is_shared_is_bounded(servers: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_SIZES", 5)
    monkeypatch.setattr(sharing, "MAX_PLACES", 4)
    redis = await servers.server("redis")
    async with replica(redis.url) as first:
        await first.ask(Told(odd).question("gpu", asker="ann"))
        for number in range(40):
            elsewhere = Place("do", f"https://{number}")
            await first.ask(Told(odd).question("gpu", place=elsewhere, asker="mallory"))
            await all_written(first)
        for name in ("a", "b", "c"):  # another name than those that are there: it starts anew
            await first.ask(Told(named(name)).question(name, asker="ann"))
            await all_written(first)
        await written(redis, 1, first)
        assert int(await redis.command("HLEN", KEY)) <= 5
        keys = (await redis.command("KEYS", f"{FILLED}*")).split()
        assert len(keys) == 2 + sharing.MAX_PLACES
        for key in keys:
            assert int(await redis.command("TTL", key.decode())) > 0


@pytest.mark.parametrize("value", ["", "{}", "garbage", '{"sizes": {"cpu": "-1", "memory": "1"}, "asOf": ""}'])
async def test_what_cannot_have_been_written_by_us_is_no_size(servers: Rack, value: str) -> None:
    redis = await servers.server("redis")
    async with replica(redis.url) as first, replica(redis.url) as second:
        await first.ask(Told(odd).question("gpu"))
        await written(redis, len(ODD), first)
        for field in (await redis.command("HKEYS", KEY)).split():
            await redis.command("HSET", KEY, field.decode(), value)
        assert await second.ask(Told(odd).question("gpu")) == ODD["gpu"]
        assert second.lookups == ["fetched"]


async def test_no_name_and_no_secret_stands_in_redis(servers: Rack) -> None:
    redis = await servers.server("redis")
    secret_place = Place("openstack", "https://keystone.secret.example/v3", "secret-region", "secret-account")
    async with replica(redis.url) as first:
        question = Told(odd, lists=True).question("gpu", place=secret_place, asker="secret-cluster")
        await first.prefetch(question)
        await first.ask(question)
        await all_written(first)
        dump = b""
        for key in (await redis.command("KEYS", "*")).split():
            dump += key + (await redis.command("DUMP", key.decode()))
        secret_key = f"{FILLED}:{sharing._hash(secret_place, '')}"
        dump += await redis.command("HGETALL", secret_key)
    assert b"amd.com/gpu" in dump
    assert b"secret" not in dump
    assert b"openstack" not in dump


async def test_sizes_that_were_told_long_ago_are_asked_for_again_in_the_background(servers: Rack) -> None:
    redis = await servers.server("redis")
    async with replica(redis.url) as first, replica(redis.url, fresh_seconds=0.0) as second:
        await first.ask(Told(odd).question("gpu"))
        await written(redis, len(ODD), first)
        changed = Told(large)
        assert await second.ask(changed.question("gpu")) == ODD["gpu"]
        assert await second.ask(changed.question("gpu")) == ODD["gpu"]
        async with patient_timeout(20):
            while await second.ask(changed.question("gpu")) != LARGE:
                await asyncio.sleep(0.01)


async def large(_query: Query) -> Catalogue:
    return Catalogue({"gpu": LARGE})
