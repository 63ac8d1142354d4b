"""What every ledger store promises: the same tests for each, and for the API server's what only it can show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from common.kube.client.api_client import Cluster
from common.quota import account as accounts
from common.quota import reservations
from common.quota.account import (
    MAX_RESERVATIONS,
    MAX_TEXT,
    Account,
    AccountKey,
    Admitted,
    Ask,
    Full,
    Grant,
    Outcome,
    OverShare,
    Reservation,
    Short,
    Terms,
)
from common.quota.names import MAX_COUNTERS, MAX_DEVICES
from common.quota.quantity import UNIT
from common.quota.reservations import Reserving
from common.quota.resources import ResourceList
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.manifests import apply, load
from devcluster.patience import patient_timeout
from seed.ledger import apiserver, contention
from seed.ledger.apiserver import LEDGERS, ApiServerStore
from seed.ledger.batcher import MAX_BATCH
from seed.ledger.encoding import MAX_BYTES, MAX_SOURCES, Encoder, MalformedLedgerError, TooLargeError
from seed.ledger.redis import RedisStore
from seed.ledger.store import ConflictError, Store, Stored, StoreUnavailableError
from seed.ledger.writer import AccountWriter
from seed.model.cluster_key import HOSTED
from tests.integration.redis_servers import ByHand, be_patient, rack, store_at
from tests.memory_store import MemoryStore
from tests.running import running
from tests.unit.claims import reserve
from tests.unit.fake_api_server import eventually, within

pytestmark = pytest.mark.integration

CRD = Path(__file__).parents[2] / "charts" / "crds" / "quotaledger.yaml"
NAMESPACE = "seedquota"
OWN_WRITE_TIMEOUT = apiserver.WRITE_TIMEOUT
ACCOUNT = Account(incarnation="life", master="m", epoch=1, granted={"cpu": 1000 * UNIT})
TERMS = Terms(limits={"cpu": 10_000 * UNIT}, grant=Grant(incarnation="m", account="life"))

numbers = count()


@pytest_asyncio.fixture(scope="module")
async def api(control_plane: ControlPlane) -> AsyncIterator[ApiServer]:
    await control_plane.start(["ledger"])
    server = control_plane.cluster("ledger")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await apply(server, [*load(CRD), namespace])
    # For two seconds after a type is new, an API server keeps those who create waiting for two seconds.
    first = {
        "apiVersion": LEDGERS.api_version,
        "kind": LEDGERS.kind,
        "metadata": {"name": "first"},
        "quota": {"name": "first", "uid": "first"},
    }
    async with server.session() as session, session.post(LEDGERS.path(NAMESPACE), json=first) as answer:
        assert answer.status == 201, await answer.text()
    yield server
    await server.kill()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no store that hangs."""
    be_patient(monkeypatch)
    monkeypatch.setattr(apiserver, "WRITE_TIMEOUT", 10.0)


@asynccontextmanager
async def api_server_store(api: ApiServer) -> AsyncIterator[ApiServerStore]:
    cluster = await Cluster.from_kubeconfig(api.kubeconfig(), name="ledger")
    store = ApiServerStore(cluster, NAMESPACE)
    try:
        async with running(store.run()):
            await store.reflector.wait_synced(30)
            yield store
    finally:
        await cluster.close()


@asynccontextmanager
async def redis_stores(directory: Path) -> AsyncIterator[tuple[RedisStore, RedisStore]]:
    generation = ByHand()
    async with rack(directory) as servers:
        redis = await servers.server("redis")
        async with store_at(redis.url, generation) as one, store_at(redis.url, generation) as two:
            await generation.begin(one, "generation")
            yield one, two


@pytest_asyncio.fixture(params=["memory", "apiserver", "redis"])
async def replicas(
    request: pytest.FixtureRequest, api: ApiServer, tmp_path: Path
) -> AsyncIterator[tuple[Store, Store]]:
    """The same ledgers as two replicas reach them."""
    if request.param == "memory":
        store = MemoryStore()
        yield store, store
        return
    if request.param == "redis":
        async with redis_stores(tmp_path) as stores:
            yield stores
        return
    async with api_server_store(api) as one, api_server_store(api) as two:
        yield one, two


@pytest.fixture
def key() -> AccountKey:
    number = next(numbers)
    return AccountKey(uid=f"6d2b4f0e-{number:04}", name=f"project-{number}")


@asynccontextmanager
async def writing(store: Store, key: AccountKey, terms: Terms = TERMS) -> AsyncIterator[AccountWriter]:
    writer = AccountWriter(store, key, lambda: terms)
    async with running(writer.run()):
        yield writer


def reservation(uid: str, cpu: int = 1) -> Reservation:
    return Reservation(source="ns/c1", object=f"ns/{uid}", amount={"cpu": cpu * UNIT})


def uids(account: Account) -> set[str]:
    return {uid for _, uid in account.reservations}


async def claim(writer: AccountWriter, uid: str, cpu: int = 1) -> Outcome:
    async with patient_timeout(30):
        return await writer.claim(uid, reservation(uid, cpu))


async def stored(store: Store, key: AccountKey) -> Stored:
    found = await store.load(key)
    assert found is not None
    return found


async def test_what_is_written_is_read_by_every_replica(replicas: tuple[Store, Store], key: AccountKey) -> None:
    one, two = replicas
    assert await one.load(key) is None
    version = await one.save(key, ACCOUNT, None)
    assert await two.load(key) == Stored(ACCOUNT, version)
    after, _ = reserve(ACCOUNT, TERMS.limits, "u", reservation("u"))
    version = await two.save(key, after, version)
    assert await one.load(key) == Stored(after, version)


async def test_only_who_knows_the_present_version_writes(replicas: tuple[Store, Store], key: AccountKey) -> None:
    one, two = replicas
    first = await one.save(key, ACCOUNT, None)
    with pytest.raises(ConflictError):
        await two.save(key, ACCOUNT, None)
    second = await two.save(key, msgspec.structs.replace(ACCOUNT, sequence=1), first)
    with pytest.raises(ConflictError):
        await one.save(key, ACCOUNT, first)
    assert (await stored(one, key)).version == second
    await one.delete(key)
    with pytest.raises(ConflictError):
        await two.save(key, ACCOUNT, second)
    assert await two.load(key) is None


async def test_who_takes_an_account_reads_it_and_makes_others_read_again(
    replicas: tuple[Store, Store], key: AccountKey
) -> None:
    one, two = replicas
    assert await one.take(key) is None
    version = await one.save(key, ACCOUNT, None)
    taken = await two.take(key)
    assert taken is not None
    assert taken.account == ACCOUNT
    later = msgspec.structs.replace(ACCOUNT, sequence=1)
    with pytest.raises(ConflictError):
        await one.save(key, later, version)
    assert await stored(one, key) == taken
    await two.save(key, later, taken.version)
    assert (await stored(one, key)).account == later


async def test_deleting_what_is_not_there_is_no_error(replicas: tuple[Store, Store], key: AccountKey) -> None:
    one, two = replicas
    await one.delete(key)
    await one.save(key, ACCOUNT, None)
    await two.delete(key)
    await one.delete(key)
    await one.save(key, ACCOUNT, None)
    assert await two.load(key) is not None


async def test_every_account_is_listed(replicas: tuple[Store, Store], key: AccountKey) -> None:
    one, two = replicas
    other = AccountKey(uid=f"{key.uid}-other", name="other")
    for made in (key, other):
        await one.save(made, ACCOUNT, None)
    assert {key, other} <= set(await two.keys())
    await one.delete(other)
    found = await two.keys()
    assert key in found
    assert other not in found


async def test_writes_by_others_are_told_until_one_stops_listening(
    replicas: tuple[Store, Store], key: AccountKey
) -> None:
    one, two = replicas
    heard: list[Stored | None] = []
    stop = one.subscribe(key.uid, heard.append)
    version = await two.save(key, ACCOUNT, None)
    await eventually(lambda: heard and heard[-1] == Stored(ACCOUNT, version))
    await two.delete(key)
    await eventually(lambda: heard[-1] is None)
    stop()
    before = len(heard)
    await two.save(key, ACCOUNT, None)
    await asyncio.sleep(0.1)
    assert len(heard) == before


async def test_two_replicas_race_for_one_account_and_fill_it_exactly(
    replicas: tuple[Store, Store], key: AccountKey
) -> None:
    one, two = replicas
    await one.save(key, ACCOUNT, None)
    async with writing(one, key) as first, writing(two, key) as second:

        async def client(number: int) -> list[tuple[str, Outcome]]:
            writer = (first, second)[number % 2]
            found = []
            for turn in range(20):
                uid = f"u{number}-{turn}"
                found.append((uid, await claim(writer, uid, 1 + number % 3)))
            return found

        outcomes = [outcome for found in await asyncio.gather(*map(client, range(32))) for outcome in found]
        rest = [await claim(writer, f"rest-{number}") for number, writer in enumerate((first, second) * 3)]
    account = (await stored(one, key)).account
    accounts.check(account)
    admitted = {uid for uid, outcome in outcomes if isinstance(outcome, Admitted)}
    assert admitted | {uid for uid in uids(account) if uid.startswith("rest")} == uids(account)
    assert accounts.use(account) == {"cpu": 1000 * UNIT}
    assert all(isinstance(outcome, Admitted | Short) for _, outcome in outcomes)
    assert isinstance(rest[-1], Short)


class Far:
    """The same store, but each call is on its way for a while. Counts how often in a row a write was refused."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._refused = 0
        self.most_refused = 0
        self.delete, self.keys, self.subscribe = store.delete, store.keys, store.subscribe

    async def load(self, key: AccountKey) -> Stored | None:
        await asyncio.sleep(self._seconds)
        return await self._store.load(key)

    async def take(self, key: AccountKey) -> Stored | None:
        await asyncio.sleep(self._seconds)
        return await self._store.take(key)

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        await asyncio.sleep(self._seconds)
        try:
            written = await self._store.save(key, account, version)
        except ConflictError:
            self._refused += 1
            self.most_refused = max(self.most_refused, self._refused)
            raise
        self._refused = 0
        return written


async def test_a_replica_far_from_the_store_is_not_kept_out_by_one_that_writes_all_the_time(
    replicas: tuple[Store, Store], key: AccountKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "LONGEST_TAKEN", 2.0)  # who took the account writes, however slow the machine is
    for most in ("MAX_RESERVATIONS", "MAX_TEXT"):  # a store in memory takes thousands of reservations in that time
        monkeypatch.setattr(reservations, most, 10**9)
    near, far = Far(replicas[0], 0.001), Far(replicas[1], 0.015)
    await near.save(key, ACCOUNT, None)
    async with writing(near, key) as first, writing(far, key) as second:

        async def client(number: int) -> None:
            for turn in count():
                assert isinstance(await claim(first, f"near{number}-{turn}", 0), Admitted)

        async with running(*(client(number) for number in range(4))) as clients:
            for turn in range(8):
                assert isinstance(await claim(second, f"far-{turn}"), Admitted)
                await asyncio.sleep(0.03)  # by now nobody waits for its writes any more
    assert all(each.cancelled() for each in clients)
    assert far.most_refused <= 3
    assert near.most_refused <= 3


async def test_a_leader_in_one_replica_counts_while_the_other_admits(
    replicas: tuple[Store, Store], key: AccountKey
) -> None:
    one, two = replicas
    await one.save(key, ACCOUNT, None)
    there: dict[str, int] = {}
    async with writing(one, key) as leader, writing(two, key) as other:

        async def count_all() -> None:
            while True:
                used, seen = {"cpu": sum(there.values()) * UNIT}, dict.fromkeys(there, 1)
                await leader.change(
                    lambda account, used=used, seen=seen: (accounts.count(account, 1, "ns/c1", used, seen), None)
                )
                await asyncio.sleep(0.002)

        async with running(count_all()):
            for number in range(300):
                assert isinstance(await claim(other, f"u{number}", 2), Admitted)
                there[f"u{number}"] = 2
            await eventually(
                lambda: leader.account is not None and sum(there.values()) * UNIT == _counted(leader.account)
            )
            await eventually(lambda: leader.account is not None and not leader.account.reservations)
    account = (await stored(one, key)).account
    assert account.used == {"ns/c1": {"cpu": 600 * UNIT}}
    assert accounts.use(account) == {"cpu": 600 * UNIT}


def _counted(account: Account) -> int:
    return sum(used.get("cpu", 0) for used in account.used.values())


async def test_a_replica_that_hears_nothing_denies_nobody_who_would_fit(
    replicas: tuple[Store, Store], key: AccountKey
) -> None:
    one, two = replicas
    await one.save(key, ACCOUNT, None)
    async with writing(one, key) as writer:
        writer._unsubscribe()
        writer._unsubscribe = lambda: None
        assert isinstance(await claim(writer, "a", 1000), Admitted)
        before = await stored(two, key)
        freed = accounts.count(before.account, 1, "ns/c1", {}, {}, gone={"a"})
        await two.save(key, msgspec.structs.replace(freed, sequence=freed.sequence + 1), before.version)
        assert isinstance(await claim(writer, "b", 1000), Admitted)


# The API server's alone ------------------------------------------------------------------------------------------


async def test_an_account_full_of_long_names_is_stored(api: ApiServer, key: AccountKey) -> None:
    async with api_server_store(api) as store:
        amount = {"cpu": 8 * UNIT, "machines": UNIT, "memory": 2**34 * UNIT, "storage": 2**36 * UNIT}
        source = f"{'n' * 40}/{'c' * 20}"
        full = msgspec.structs.replace(
            ACCOUNT,
            reservations={
                (source, f"6d2b4f0e-55a3-4f3e-9a42-{number:012}"): Reservation(
                    source=source, object=f"kube-system/{'m' * 63}", amount=amount, request=f"{number:08}"
                )
                for number in range(MAX_RESERVATIONS)
            },
        )
        await store.save(key, full, None)
        assert (await stored(store, key)).account == full


def long_names(count: int) -> list[str]:
    """As long as a name may be."""
    prefix = f"{'p' * 63}.{'p' * 63}.{'p' * 63}"
    return [f"{prefix}.{number:061}/{'n' * 63}" for number in range(count)]


def filled(account: Account, used: Iterable[tuple[str, ResourceList]]) -> Account:
    """With as many of these sources as fit into one object."""
    encoder = Encoder(AccountKey("u" * 36, "q" * 253), NAMESPACE)
    for source, amounts in used:
        more = msgspec.structs.replace(account, used={**account.used, source: amounts})
        try:
            encoder.encode(more, "1" * 20)
        except TooLargeError:
            return account
        account = more
    raise AssertionError("there is no end to them")


async def test_an_account_with_as_much_as_the_code_allows_is_stored(api: ApiServer, key: AccountKey) -> None:
    """Counters of all the names that they can have, claims until it is full, and then sources until no more fit."""
    named = long_names(MAX_COUNTERS)
    limits = dict.fromkeys(named, 10**30 * UNIT)
    held = msgspec.structs.replace(ACCOUNT, granted=limits, returned=dict.fromkeys(named, UNIT))
    ask = Ask(number=1, first=dict.fromkeys(named[:80], UNIT), wanted=dict.fromkeys(named[:80], UNIT))
    reserving = Reserving(msgspec.structs.replace(held, ask=ask), limits)
    turns = count()
    for devices, last in ((MAX_DEVICES, OverShare()), (1, Full())):  # many, and then few: until there is no room at all
        outcome: Outcome | None = None
        while outcome != last:
            number = next(turns)
            first = number * devices % MAX_COUNTERS
            wanted = Reservation(
                source=f"{'n' * 63}/{HOSTED}{number:0253}",
                object=f"{'n' * 63}/{number:0253}",
                amount=dict.fromkeys(named[first : first + devices], 123456789123456789),
                generation=2**63 - 1,
                replaces=f"{number:036}",
                request="q" * 26,
            )
            outcome = reserving.claim(f"{number:036}", wanted)
            assert isinstance(outcome, Admitted) or outcome == last
    assert reserving.load.text > MAX_TEXT * 0.99
    used = dict.fromkeys(named, 10**24)
    full = filled(reserving.account(), ((f"{'n' * 63}/{number:0253}", used) for number in count()))
    assert len(full.reserved) == MAX_COUNTERS
    encoded = Encoder(key, NAMESPACE).encode(full, None)
    assert MAX_BYTES * 0.8 < len(encoded) <= MAX_BYTES
    async with api_server_store(api) as store:
        await store.save(key, full, None)
        assert (await stored(store, key)).account == full


async def test_a_cluster_that_fills_its_share_of_a_ledger_keeps_no_other_out(api: ApiServer, key: AccountKey) -> None:
    """It asks as fast as it is answered for Machines that cost nothing, with names as long as there are."""
    async with api_server_store(api) as store, writing(store, key) as writer:
        await store.save(key, ACCOUNT, None)
        claims: list[asyncio.Future[Outcome]] = []
        for number in range(MAX_RESERVATIONS):
            name = f"{'n' * 63}/{number:0253}"
            wanted = Reservation(source="ns/greedy", object=name, amount={"cpu": 1}, request=f"{number:08}")
            claims.append(writer.claim(f"{number:036}", wanted))
            if number % MAX_BATCH == 0:
                await asyncio.gather(*claims)
        outcomes = await asyncio.gather(*claims)
        assert outcomes[-1] == OverShare()
        assert isinstance(await claim(writer, "a"), Admitted)
        accounts.check((await stored(store, key)).account)


async def test_an_account_with_as_many_sources_as_the_code_allows_is_stored(api: ApiServer, key: AccountKey) -> None:
    most = {f"cluster-{number}/c": {"cpu": UNIT} for number in range(MAX_SOURCES)}
    full = msgspec.structs.replace(ACCOUNT, used=most)
    async with api_server_store(api) as store:
        version = await store.save(key, full, None)
        with pytest.raises(TooLargeError, match=f"at most {MAX_SOURCES}"):
            await store.save(key, msgspec.structs.replace(full, used={**most, "one/more": {}}), version)
        assert (await stored(store, key)).account == full


async def test_an_api_server_does_not_keep_track_of_who_owns_a_ledgers_fields(api: ApiServer, key: AccountKey) -> None:
    async with api_server_store(api) as store:
        version = await store.save(key, ACCOUNT, None)
        await store.save(key, msgspec.structs.replace(ACCOUNT, sequence=1), version)
        body = await store._cluster.request("GET", LEDGERS.path(NAMESPACE, key.uid))
        assert "managedFields" not in json.loads(body)["metadata"]


async def test_a_ledger_edited_by_hand_is_named_and_can_be_mended(api: ApiServer, key: AccountKey) -> None:
    async with api_server_store(api) as store, writing(store, key) as writer:
        await store.save(key, ACCOUNT, None)
        assert isinstance(await claim(writer, "a"), Admitted)
        broken = {"metadata": {"name": key.uid}, "account": {"granted": {"cpu": "lots"}}}
        await store._cluster.merge_patch(LEDGERS, key.uid, broken, NAMESPACE)
        with pytest.raises(MalformedLedgerError, match="lots"):
            await claim(writer, "b")
        mended = {"account": {"granted": {"cpu": "1k"}}}
        await store._cluster.merge_patch(LEDGERS, key.uid, mended, NAMESPACE)
        assert isinstance(await claim(writer, "b"), Admitted)


async def test_an_api_server_that_hangs_is_unavailable_within_the_webhooks_time(
    api: ApiServer, key: AccountKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_server_store(api) as store, writing(store, key) as writer:
        await store.save(key, ACCOUNT, None)
        assert isinstance(await claim(writer, "before"), Admitted)
        api.pause()
        await asyncio.sleep(0.1)  # until the signal has reached every thread
        try:
            with monkeypatch.context() as while_it_hangs:
                while_it_hangs.setattr(apiserver, "WRITE_TIMEOUT", OWN_WRITE_TIMEOUT)
                async with within(2.5):
                    with pytest.raises(StoreUnavailableError, match="no answer within 2 s"):
                        await claim(writer, "meanwhile")
        finally:
            api.resume()
        assert isinstance(await claim(writer, "after", 998), Admitted)
        account = (await stored(store, key)).account
        accounts.check(account)
        assert {"before", "after"} <= uids(account) <= {"before", "meanwhile", "after"}


async def test_killed_in_the_middle_of_a_storm_it_loses_no_admission_that_was_answered(
    api: ApiServer, key: AccountKey
) -> None:
    async with api_server_store(api) as store, writing(store, key) as writer:
        await store.save(key, ACCOUNT, None)
        admitted: set[str] = set()
        unknown = 0

        async def client(number: int) -> None:
            nonlocal unknown
            for turn in range(40):
                try:
                    if isinstance(await claim(writer, f"u{number}-{turn}"), Admitted):
                        admitted.add(f"u{number}-{turn}")
                except StoreUnavailableError:
                    unknown += 1
                    await asyncio.sleep(0.05)

        clients = asyncio.gather(*map(client, range(16)))
        await eventually(lambda: len(admitted) > 50)
        await api.kill()
        await api.start()
        await clients
        account = (await stored(store, key)).account
        accounts.check(account)
        assert admitted <= uids(account)
        assert accounts.use(account)["cpu"] <= 1000 * UNIT
        assert unknown > 0, "it was not killed in the middle"
