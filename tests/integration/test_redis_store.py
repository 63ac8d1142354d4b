"""Accounts in a real Redis, and every way in which it can forget: none goes unnoticed."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from common.quota import account as accounts
from common.quota.account import Account, AccountKey, Admitted, Grant, Reservation, Terms
from common.quota.quantity import UNIT
from common.runtime.redis_access import RedisAccess
from devcluster.patience import patient_timeout
from devcluster.redis import LONG, RedisServer, Settings
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.redis import RedisStore
from seed.ledger.store import ConflictError, Stored, StoreUnavailableError
from seed.ledger.store_generation import Held
from seed.ledger.writer import AccountWriter
from tests.integration.redis_servers import SEED, ByHand, Rack, be_patient, own_limits, rack, store_at
from tests.running import running
from tests.unit.fake_api_server import eventually, within

pytestmark = pytest.mark.integration

KEY = AccountKey(uid="6d2b4f0e", name="project-alpha")
ACCOUNT = Account(
    incarnation="life", master="m", epoch=3, sequence=7, granted={"cpu": 10 * UNIT}, used={"ns/c": {"cpu": UNIT}}
)
TERMS = Terms(limits={"cpu": 10 * UNIT}, grant=Grant(incarnation="m", account="life"))
RECORD = f"{{seedquota:{SEED}}}:account:{KEY.uid}"


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Rack]:
    async with rack(tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


def later(account: Account, **changes: object) -> Account:
    return msgspec.structs.replace(account, sequence=account.sequence + 1, **changes)


async def stored(store: RedisStore) -> Stored:
    found = await store.load(KEY)
    assert found is not None
    return found


async def refuses(store: RedisStore, account: Account, version: str | None) -> None:
    async with patient_timeout(30):
        while True:
            try:
                await store.keys()
            except StoreUnavailableError as error:
                if "loading the dataset" not in str(error):
                    break
    with pytest.raises(StoreUnavailableError, match="restarted, failed over or was replaced"):
        await store.save(KEY, account, version)
    with pytest.raises(StoreUnavailableError, match="restarted, failed over or was replaced"):
        await store.load(KEY)
    with pytest.raises(StoreUnavailableError, match="restarted, failed over or was replaced"):
        await store.keys()


def is_a_new_life_of(account: Account, before: Account) -> None:
    assert account.incarnation != before.incarnation
    assert account.fenced
    assert account.master == ""
    assert account.granted == {}
    assert account.returned == {}
    assert account.sequence > before.sequence
    assert account.used == before.used, "what it counted is a start"


async def test_a_restart_that_loses_everything_is_noticed_by_who_remembers_and_by_who_does_not(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        await redis.kill()
        await redis.start()
        await refuses(store, later(ACCOUNT), version)
        assert generation.elsewhere > 0
        async with store_at(redis.url, generation) as fresh:
            await refuses(fresh, later(ACCOUNT), version)
            await generation.begin(fresh, "generation-2")
            assert await fresh.load(KEY) is None
        with pytest.raises(ConflictError):
            await store.save(KEY, later(ACCOUNT), version)


async def test_a_restart_that_kept_every_write_is_fenced_too_as_nobody_can_tell(servers: Rack) -> None:
    redis, generation = await servers.server("redis", Settings(persistence="aof")), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        await redis.kill()
        await redis.start()
        await refuses(store, later(ACCOUNT), version)
        await generation.begin(store, "generation-2")
        with pytest.raises(ConflictError):
            await store.save(KEY, later(ACCOUNT), version)
        found = await stored(store)
        is_a_new_life_of(found.account, ACCOUNT)
        async with store_at(redis.url, generation) as other:
            assert await stored(other) == found, "the new life is stored before it is shown"
        assert await store.keys() == [KEY]


async def test_an_older_snapshot_is_never_taken_for_the_present(servers: Rack) -> None:
    redis, generation = await servers.server("redis", Settings(persistence="rdb")), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        await redis.command("SAVE")
        snapshot = redis.dump.with_suffix(".old")
        shutil.copy(redis.dump, snapshot)
        admitted = later(ACCOUNT, used={"ns/c": {"cpu": 9 * UNIT}})
        newer = await store.save(KEY, admitted, version)
        await redis.stop()
        shutil.copy(snapshot, redis.dump)
        await redis.start()
        await refuses(store, later(ACCOUNT), version)
        await refuses(store, later(admitted), newer)
        await generation.begin(store, "generation-2")
        for known in (version, newer):
            with pytest.raises(ConflictError):
                await store.save(KEY, later(admitted), known)
        is_a_new_life_of((await stored(store)).account, ACCOUNT)


@pytest.mark.parametrize("loss", ["FLUSHALL", "FLUSHDB", f"DEL {RECORD}", f"PEXPIRE {RECORD} 1"])
async def test_what_is_deleted_behind_our_back_begins_a_new_life(servers: Rack, loss: str) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        await redis.command(*loss.split())
        await asyncio.sleep(0.01)
        with pytest.raises(ConflictError):
            await store.save(KEY, later(ACCOUNT), version)
        assert await store.load(KEY) is None
        again = await store.save(KEY, ACCOUNT, None)
        assert again != version, "a writer from before must not fit by chance"


@pytest.mark.parametrize("loss", ["FLUSHALL", f"DEL {RECORD}"])
async def test_followers_hear_of_the_loss_of_an_account_that_nobody_uses(servers: Rack, loss: str) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as one, store_at(redis.url, generation) as two:
        await generation.begin(one, "generation-1")
        heard: list[Stored | None] = []
        one.subscribe(KEY.uid, heard.append)
        version = await two.save(KEY, ACCOUNT, None)
        await eventually(lambda: heard and heard[-1] == Stored(ACCOUNT, version))
        await redis.command(*loss.split())
        await eventually(lambda: heard[-1] is None)


async def test_followers_of_the_same_store_hear_of_its_deletions(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as store, store_at(redis.url, generation) as other:
        await generation.begin(store, "generation-1")
        heard: list[Stored | None] = []
        store.subscribe(KEY.uid, heard.append)
        version = await other.save(KEY, ACCOUNT, None)
        await eventually(lambda: heard and heard[-1] == Stored(ACCOUNT, version))
        await store.delete(KEY)
        await eventually(lambda: heard[-1] is None)


async def test_eviction_takes_an_account_only_as_a_loss(servers: Rack) -> None:
    settings = Settings(more={"maxmemory": "3mb", "maxmemory-policy": "allkeys-random"})
    redis, generation = await servers.server("redis", settings), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        for number in range(5000):
            await redis.command("SET", f"filling-{number}", "x" * 20_000)
            if await redis.command("EXISTS", RECORD) == b"0":
                break
        else:
            pytest.fail("it was not evicted")
        with pytest.raises(ConflictError):
            await store.save(KEY, later(ACCOUNT), version)
        assert await store.load(KEY) is None


async def test_full_memory_refuses_and_loses_nothing(servers: Rack) -> None:
    redis, generation = await servers.server("redis", Settings(more={"maxmemory-policy": "noeviction"})), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        await redis.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailableError, match=r"(?i)maxmemory"):
            await store.save(KEY, later(ACCOUNT), version)
        assert (await stored(store)).account == ACCOUNT
        await redis.command("CONFIG", "SET", "maxmemory", "0")
        await store.save(KEY, later(ACCOUNT), version)


async def test_another_redis_under_the_address_is_refused(servers: Rack) -> None:
    redis, generation = await servers.server("redis", Settings(persistence="rdb")), ByHand()
    other = await servers.server("other")
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        async with store_at(other.url, generation) as elsewhere:
            await refuses(elsewhere, later(ACCOUNT), version)
        await store.save(KEY, later(ACCOUNT), version)


async def test_a_primary_that_was_overwritten_while_it_was_a_replica_is_noticed(servers: Rack) -> None:
    """The process is the same all the time; only the replication id tells."""
    redis, generation = await servers.server("redis"), ByHand()
    older = await servers.server("older", Settings(replica_of=redis))
    async with store_at(redis.url, generation) as store:
        await linked(older)
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        await copied(older)
        await older.command("REPLICAOF", "NO", "ONE")
        newer = await store.save(KEY, later(ACCOUNT), version)
        await redis.command("REPLICAOF", "127.0.0.1", str(older.port))
        await linked(redis)
        with pytest.raises(StoreUnavailableError):
            await store.load(KEY)
        with pytest.raises(StoreUnavailableError, match="not a primary"):
            await store.run_id()
        await redis.command("REPLICAOF", "NO", "ONE")
        await refuses(store, later(ACCOUNT), version)
        await generation.begin(store, "generation-2")
        for known in (version, newer):
            with pytest.raises(ConflictError):
                await store.save(KEY, later(ACCOUNT), known)
        is_a_new_life_of((await stored(store)).account, ACCOUNT)


async def test_sentinel_promotes_a_replica_that_missed_writes(servers: Rack) -> None:
    primary, generation = await servers.server("primary"), ByHand()
    replica = await servers.server("replica", Settings(replica_of=primary))
    await linked(replica)
    sentinel = await servers.sentinel(primary)
    async with store_at(sentinel.url, generation) as store, store_at(primary.url, generation) as at_the_old_one:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        await copied(replica)
        await replicas_known(sentinel.port)
        await cut_off(replica, primary)
        lost = later(ACCOUNT, used={"ns/c": {"cpu": 9 * UNIT}})
        newer = await store.save(KEY, lost, version)
        primary.pause()
        await sentinel.down_after(0.7)
        with own_limits():
            async with patient_timeout(60):
                while await sentinel.primary() != replica.port:
                    await asyncio.sleep(0.05)
            await sentinel.down_after(LONG)  # nor is it the new primary that is down
            async with patient_timeout(60):
                while True:  # the old address is asked first, and hangs
                    try:
                        await refuses(store, later(lost), newer)
                        break
                    except (StoreUnavailableError, AssertionError):
                        await asyncio.sleep(0.1)
        old = generation.now
        await generation.begin(store, "generation-2")
        with pytest.raises(ConflictError):
            await store.save(KEY, later(lost), newer)
        is_a_new_life_of((await stored(store)).account, ACCOUNT)
        # The old primary comes back before Sentinel has told it: who is still connected there gets no write through.
        primary.resume()
        with pytest.raises(StoreUnavailableError):
            await at_the_old_one.save(KEY, later(lost), newer)
        assert generation.now != old


async def test_two_replicas_begin_the_same_new_life(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as one, store_at(redis.url, generation) as two:
        await generation.begin(one, "generation-1")
        await one.save(KEY, ACCOUNT, None)
        generation.now = Held("generation-2", generation.now.run_id)
        lives = await asyncio.gather(*(store.load(KEY) for store in (one, two) * 8))
        assert len({life.account.incarnation for life in lives if life is not None}) == 1
        assert None not in lives


async def test_followers_hear_of_a_new_generation_and_of_writes_that_a_broken_connection_hid(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as one, store_at(redis.url, generation) as two:
        await generation.begin(one, "generation-1")
        heard: list[Stored | None] = []
        one.subscribe(KEY.uid, heard.append)
        version = await two.save(KEY, ACCOUNT, None)
        await eventually(lambda: heard and heard[-1] == Stored(ACCOUNT, version))
        await redis.command("CLIENT", "KILL", "TYPE", "pubsub")
        hidden = later(ACCOUNT)
        version = await two.save(KEY, hidden, version)
        await eventually(lambda: heard[-1] == Stored(hidden, version))
        await generation.begin(one, "generation-2")
        await eventually(lambda: heard[-1] is not None and heard[-1].account.fenced)


async def test_functions_that_were_flushed_are_loaded_again(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        version = await store.save(KEY, ACCOUNT, None)
        await redis.command("FUNCTION", "FLUSH")
        await store.save(KEY, later(ACCOUNT), version)


async def test_a_server_that_hangs_is_unavailable_within_the_webhooks_time(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        await store.save(KEY, ACCOUNT, None)
        with own_limits(sockets=True):
            async with store_at(redis.url, generation) as hasty:
                writer = AccountWriter(hasty, KEY, lambda: TERMS)
                async with running(writer.run()):
                    await admitted(writer, "before")
                    redis.pause()
                    try:
                        for _ in range(3):
                            async with within(2):
                                with pytest.raises(StoreUnavailableError):
                                    await claim(writer, "meanwhile")
                    finally:
                        redis.resume()
                    await admitted(writer, "after")
        account = (await stored(store)).account
        accounts.check(account)
        assert {"before", "after"} <= {uid for _, uid in account.reservations} <= {"before", "meanwhile", "after"}


async def test_a_server_that_is_down_is_refused_at_once_without_retries(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        await store.save(KEY, ACCOUNT, None)
        await redis.kill()
        async with within(0.5):
            with pytest.raises(StoreUnavailableError):
                await store.load(KEY)


async def test_a_storm_uses_a_bounded_number_of_connections(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as store:
        await generation.begin(store, "generation-1")
        keys = [AccountKey(uid=f"u{number}", name=f"q{number}") for number in range(200)]
        await asyncio.gather(*(store.save(key, ACCOUNT, None) for key in keys))
        assert set(await store.keys()) == set(keys)
        clients = (await redis.command("CLIENT", "LIST", "TYPE", "normal")).decode().count("\n")
        assert clients <= 20


async def test_rights_and_passwords(servers: Rack, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    rights = "-@all +fcall +function|load +ping +subscribe +info +hget +hmget +hset +hdel +hgetall +del +publish"
    users = (
        "user default on >admin-secret ~* &* +@all",
        f"user seedquota on >seed-secret ~{{seedquota:{SEED}}}* &{{seedquota:{SEED}}}* {rights}",
    )
    redis, generation = await servers.server("redis", Settings(password="admin-secret", users=users)), ByHand()
    file = tmp_path / "password"
    file.write_text("wrong-secret\n")
    access = RedisAccess(username="seedquota", password_file=file)
    async with store_at(redis.url, generation, access) as store:
        with pytest.raises(StoreUnavailableError, match="not let in") as refused:
            await store.run_id()
        file.write_text("seed-secret\n")
        await generation.begin(store, "generation-1")
        heard: list[Stored | None] = []
        store.subscribe(KEY.uid, heard.append)
        version = await store.save(KEY, ACCOUNT, None)
        await store.save(KEY, later(ACCOUNT), version)
        assert await store.keys() == [KEY]
        async with store_at(redis.url, generation, RedisAccess(username="seedquota", password="seed-secret")) as other:
            await other.delete(KEY)
        await eventually(lambda: heard and heard[-1] is None)
    async with store_at(redis.url, generation, RedisAccess(password="")) as nobody:
        with pytest.raises(StoreUnavailableError, match="not let in"):
            await nobody.run_id()
    for secret in ("wrong-secret", "seed-secret"):
        assert secret not in caplog.text + str(refused.value) + repr(access)


async def test_tls_and_whom_to_trust(servers: Rack) -> None:
    redis, generation = await servers.server("redis", Settings(tls=True, password="secret")), ByHand()
    stranger = await servers.server("stranger", Settings(tls=True))
    async with store_at(redis.url, generation, RedisAccess(password="secret", ca_file=redis.ca)) as store:
        await generation.begin(store, "generation-1")
        heard: list[Stored | None] = []
        store.subscribe(KEY.uid, heard.append)
        async with store_at(redis.url, generation, RedisAccess(password="secret", ca_file=redis.ca)) as other:
            version = await other.save(KEY, ACCOUNT, None)
        await eventually(lambda: heard and heard[-1] == Stored(ACCOUNT, version))
    async with store_at(redis.url, generation, RedisAccess(password="secret", ca_file=stranger.ca)) as store:
        with pytest.raises(StoreUnavailableError, match=r"(?i)certificate"):
            async with patient_timeout(30):
                while True:
                    try:
                        await store.run_id()
                    except StoreUnavailableError as error:
                        if "Timeout" not in str(error):  # a busy machine shakes hands slowly
                            raise


async def test_one_member_of_a_cluster_keeps_all_accounts_of_a_seed(servers: Rack) -> None:
    one = await servers.server("one", Settings(cluster=True))
    two = await servers.server("two", Settings(cluster=True))
    await one.command("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
    await two.command("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
    await one.command("CLUSTER", "MEET", "127.0.0.1", str(two.port), two.settings.more["cluster-port"])
    async with patient_timeout(60):
        for server in (one, two):
            while b"cluster_state:ok" not in await server.command("CLUSTER", "INFO"):
                await asyncio.sleep(0.05)
    generation = ByHand()
    for asked in (one, two):
        async with store_at(f"redis+cluster://127.0.0.1:{asked.port}", generation) as store:
            await generation.begin(store, f"generation-{asked.port}")
            found = await store.load(KEY)
            if found is None:
                await store.save(KEY, ACCOUNT, None)
            else:
                is_a_new_life_of(found.account, ACCOUNT)
            assert await store.keys() == [KEY]
            await hears_of_writes_by_others(asked, store, generation)


async def test_what_somebody_put_into_the_record_is_named(servers: Rack) -> None:
    redis, generation = await servers.server("redis"), ByHand()
    async with store_at(redis.url, generation) as store, store_at(redis.url, generation) as other:
        await generation.begin(store, "generation-1")
        await store.save(KEY, ACCOUNT, None)
        await redis.command("HSET", RECORD, "object", '{"quota":{"name":"q","uid":"u"},"account":{"granted":3}}')
        with pytest.raises(MalformedLedgerError):
            await other.load(KEY)
        await other.delete(KEY)
        await redis.command("SET", RECORD, "nonsense")
        with pytest.raises(StoreUnavailableError, match="WRONGTYPE"):
            await other.load(KEY)


async def hears_of_writes_by_others(asked: RedisServer, store: RedisStore, generation: ByHand) -> None:
    heard: list[Stored | None] = []
    store.subscribe(KEY.uid, heard.append)
    async with store_at(f"redis+cluster://127.0.0.1:{asked.port}", generation) as other:
        found = await stored(other)
        written = later(found.account)
        version = await other.save(KEY, written, found.version)
        await eventually(lambda: heard and heard[-1] == Stored(written, version))


async def claim(writer: AccountWriter, uid: str) -> object:
    async with patient_timeout(30):
        return await writer.claim(uid, Reservation(source="ns/c", object=f"ns/{uid}", amount={"cpu": UNIT}))


async def admitted(writer: AccountWriter, uid: str) -> None:
    """A busy machine is no Redis that hangs, though it may take as long."""
    async with patient_timeout(30):
        while True:
            with suppress(StoreUnavailableError):
                assert isinstance(await claim(writer, uid), Admitted)
                return


async def linked(replica: RedisServer) -> None:
    async with patient_timeout(30):
        while b"master_link_status:up" not in await replica.command("INFO", "replication"):
            await asyncio.sleep(0.02)


async def copied(replica: RedisServer) -> None:
    async with patient_timeout(30):
        while await replica.command("EXISTS", RECORD) != b"1":
            await asyncio.sleep(0.02)


async def cut_off(replica: RedisServer, primary: RedisServer) -> None:
    """The replica gets no more writes: it cannot log in again."""
    await replica.command("CONFIG", "SET", "masterauth", "wrong")
    async with patient_timeout(30):
        while b"master_link_status:down" not in await replica.command("INFO", "replication"):
            await primary.command("CLIENT", "KILL", "TYPE", "replica")
            await asyncio.sleep(0.02)


async def replicas_known(port: int) -> None:
    """Sentinel reads every ten seconds which replicas there are; the first time soon after its start."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with patient_timeout(60):
            while True:
                writer.write(b"SENTINEL MASTER ledger\r\n")
                said = await reader.read(65536)
                if b"num-slaves\r\n$1\r\n1" in said:
                    return
                await asyncio.sleep(0.1)
    finally:
        writer.close()
