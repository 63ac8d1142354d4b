"""Which store is in force: never two at a time, and only a leader changes it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.quota.account import Account, AccountKey
from seed.ledger import store_generation as module
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import ConflictError, Stored, StoreUnavailableError
from seed.ledger.store_generation import API_SERVER, REDIS, Held, InForce, StoreGeneration, fence_all
from tests.clock import Clock
from tests.memory_store import MemoryStore
from tests.unit.fake_api_server import FakeApiServer, fake_api_server, status

D = 12.0  # the lease's duration
KEY = AccountKey(uid="u", name="q")
ACCOUNT = Account(incarnation="life", master="m", sequence=4, granted={"cpu": 5}, used={"c": {"cpu": 1}})


class Replica:
    """One process: a generation, whether it leads, and the run_id that its store shows it."""

    def __init__(self, cluster: Cluster, store: str, clock: Clock, *, leads: bool, run_id: str = "") -> None:
        self.leads = leads
        self.run_id: str | None = run_id
        self.fenced = 0
        self.on_fence: Callable[[], None] = lambda: None
        self.generation = StoreGeneration(
            cluster,
            "seedquota",
            store,
            run_id=self._run_id,
            fence=self._fence,
            leads=lambda: self.leads,
            lease_duration=D,
            clock=clock,
        )

    async def look(self) -> None:
        await self.generation._look()

    @property
    def holds(self) -> Held | None:
        try:
            return self.generation.held()
        except StoreUnavailableError:
            return None

    async def _run_id(self) -> str:
        if self.run_id is None:
            raise StoreUnavailableError("redis is away")
        return self.run_id

    async def _fence(self) -> None:
        self.fenced += 1
        self.on_fence()


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with fake_api_server() as server:
        yield server


@pytest.fixture
async def cluster(fake: FakeApiServer) -> AsyncIterator[Cluster]:
    made = fake.cluster()
    yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


def marker(fake: FakeApiServer) -> dict[str, Any]:
    found = fake.objects["leases", "seedquota", module.NAME]["metadata"]["annotations"]
    return {name.removeprefix("seedquota.io/"): value for name, value in found.items()}


async def settle(clock: Clock, *replicas: Replica) -> None:
    """Looks until the generation that the first one begins is in force."""
    for _ in range(2):
        for replica in replicas:
            await replica.look()
    clock.now += D
    for _ in range(2):
        for replica in replicas:
            await replica.look()


async def test_without_a_marker_the_api_server_keeps_the_accounts_and_nothing_is_written(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    one = Replica(cluster, API_SERVER, clock, leads=True)
    assert one.holds is None
    await one.look()
    assert one.holds == Held("", "")
    assert one.generation.not_ready() is None
    assert not fake.objects


async def test_nobody_goes_on_without_confirmation(fake: FakeApiServer, cluster: Cluster, clock: Clock) -> None:
    one = Replica(cluster, API_SERVER, clock, leads=True)
    await one.look()
    clock.now += D * 2 / 3 - 0.01
    assert one.holds is not None
    clock.now += 0.01
    assert one.holds is None

    async def fails(_request: object) -> object:
        return status(500, "InternalError")

    fake.answers.append(fails)
    with pytest.raises(module.ApiError):
        await one.look()
    assert one.holds is None
    await one.look()
    assert one.holds is not None


async def test_a_confirmation_counts_from_before_it_was_asked_for(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    one = Replica(cluster, API_SERVER, clock, leads=False)

    async def slow(_request: object) -> None:
        clock.now += D / 2

    fake.answers.append(slow)
    await one.look()
    clock.now += D * 2 / 3 - D / 2
    assert one.holds is None


async def test_the_leader_moves_the_ledger_and_waits_until_nobody_can_use_the_old_store(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    old = Replica(cluster, API_SERVER, clock, leads=False)
    new = Replica(cluster, REDIS, clock, leads=True, run_id="a")
    follower = Replica(cluster, REDIS, clock, leads=False, run_id="a")
    await old.look()
    await follower.look()
    assert not fake.objects, "a follower never moves it"
    new.on_fence = lambda: pytest.fail("too late") if fake.objects else None
    await new.look()
    assert new.fenced == 1
    assert marker(fake)["state"] == module.SETTLING
    labels = fake.objects["leases", "seedquota", module.NAME]["metadata"]["labels"]
    assert labels["velero.io/exclude-from-backup"] == "true"
    for passed in (0.0, D * 2 / 3, D - 0.01):
        clock.now = 1000.0 + passed
        for replica in (new, follower):
            await replica.look()
            assert replica.holds is None
        assert (old.holds is not None) == (passed < D * 2 / 3), "it has not heard of the move"
    clock.now += 0.01
    await settle(clock, new, follower, old)
    assert new.holds == follower.holds == Held(marker(fake)["tenure"], "a")
    assert old.holds is None


async def test_a_store_that_does_not_answer_is_not_moved_to(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    new = Replica(cluster, REDIS, clock, leads=True)
    new.run_id = None
    with pytest.raises(StoreUnavailableError):
        await new.look()
    assert not fake.objects
    assert new.fenced == 0


async def test_another_run_id_begins_another_generation(fake: FakeApiServer, cluster: Cluster, clock: Clock) -> None:
    leader = Replica(cluster, REDIS, clock, leads=True, run_id="a")
    follower = Replica(cluster, REDIS, clock, leads=False, run_id="a")
    await settle(clock, leader, follower)
    before = leader.holds
    assert before is not None
    follower.run_id = "b"  # it sees another server than the leader
    await follower.look()
    assert marker(fake)["tenure"] == before.generation
    assert follower.holds == before, "the server itself refuses what is meant for another"
    leader.run_id = "b"
    await leader.look()
    await leader.look()
    assert leader.holds is None
    await settle(clock, leader, follower)
    assert leader.holds == follower.holds
    assert leader.holds is not None
    assert leader.holds.generation != before.generation
    assert leader.holds.run_id == "b"
    assert leader.fenced == 1, "the API server's accounts were fenced when they were left"


async def test_a_leader_that_comes_settles_what_another_began_by_its_own_clock(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    first = Replica(cluster, REDIS, clock, leads=True, run_id="a")
    await first.look()
    clock.now += D
    second = Replica(cluster, REDIS, clock, leads=True, run_id="a")
    await second.look()
    clock.now += D - 0.01
    await second.look()
    await second.look()
    assert second.holds is None
    clock.now += 0.01
    await settle(clock, second)
    assert second.holds is not None


async def test_it_moves_back_through_a_fence_and_another_generation(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    redis = Replica(cluster, REDIS, clock, leads=True, run_id="a")
    await settle(clock, redis)
    redis.leads = False
    api = Replica(cluster, API_SERVER, clock, leads=True)
    api.on_fence = lambda: None if marker(fake)["store"] == REDIS else pytest.fail("too late")
    await settle(clock, api, redis)
    assert api.fenced == 1
    assert api.holds is not None
    assert api.holds.generation
    assert redis.holds is None
    back = api.holds
    api.leads, redis.leads = False, True
    await settle(clock, redis, api)
    assert redis.holds is not None
    assert redis.holds.generation != back.generation


async def test_two_stores_are_never_in_force_at_the_same_time(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    for seed in range(40):
        fake.objects.clear()
        pick = random.Random(seed)
        replicas = [
            Replica(cluster, store, clock, leads=False, run_id=run_id)
            for store, run_id in ((API_SERVER, ""), (REDIS, "a"), (REDIS, "b"))
        ]
        before: set[Held] = set()
        ended: set[Held] = set()
        for _ in range(60):
            clock.now += pick.choice((0.0, 0.1, D / 8, D / 3, D))
            replica = pick.choice(replicas)
            replica.leads = pick.random() < 0.6
            await replica.look()
            held = {found for found in (other.holds for other in replicas) if found is not None}
            assert len(held) <= 1, f"seed {seed}"
            current = marker(fake)["tenure"] if fake.objects else ""
            ended |= {found for found in before - held if found.generation != current}
            assert not held & ended, f"seed {seed}: a generation that had ended came back"
            before = held


async def test_a_marker_that_somebody_deletes_stops_redis_until_the_leader_begins_anew(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    leader = Replica(cluster, REDIS, clock, leads=True, run_id="a")
    await settle(clock, leader)
    before = leader.holds
    await fake.remove("leases", "seedquota", module.NAME)
    await leader.look()
    assert leader.holds is None
    await settle(clock, leader)
    assert leader.holds is not None
    assert leader.holds != before
    assert leader.fenced == 2


async def test_a_replica_of_another_store_gets_time_to_be_replaced_before_it_is_not_ready(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    redis = Replica(cluster, REDIS, clock, leads=True, run_id="a")
    odd = Replica(cluster, API_SERVER, clock, leads=False)
    await settle(clock, redis, odd)
    assert odd.generation.not_ready() is None
    clock.now += module.PASSING
    await odd.look()
    assert odd.generation.not_ready() == "the ledger is kept in redis, this replica is configured for apiserver"
    await redis.look()
    assert redis.generation.not_ready() is None


async def test_nothing_is_written_or_read_out_of_force_nor_answered_when_that_ended_meanwhile(
    fake: FakeApiServer, cluster: Cluster, clock: Clock
) -> None:
    one = Replica(cluster, API_SERVER, clock, leads=False)

    class Slow(MemoryStore):
        async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
            clock.now += D
            return await super().save(key, account, version)

    kept = Slow()
    store = InForce(kept, one.generation)
    with pytest.raises(StoreUnavailableError):
        await store.load(KEY)
    with pytest.raises(StoreUnavailableError):
        await store.save(KEY, ACCOUNT, None)
    with pytest.raises(StoreUnavailableError):
        await store.delete(KEY)
    assert await kept.keys() == []
    await one.look()
    assert await store.keys() == []
    with pytest.raises(StoreUnavailableError, match="confirmed"):
        await store.save(KEY, ACCOUNT, None)
    assert await kept.load(KEY) is not None, "the outcome of that write is unknown to the caller, and it is there"


async def test_fencing_begins_a_new_life_of_every_account_whoever_writes_meanwhile() -> None:
    class Contended(MemoryStore):
        conflicts = 3

        async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
            if version is not None and self.conflicts:
                self.conflicts -= 1
                found = await self.load(key)
                assert found is not None
                later = msgspec.structs.replace(found.account, sequence=found.account.sequence + 1)
                await super().save(key, later, found.version)
                raise ConflictError
            return await super().save(key, account, version)

        async def load(self, key: AccountKey) -> Stored | None:
            if key.name == "broken":
                raise MalformedLedgerError("edited by hand")
            return await super().load(key)

    store = Contended()
    for name in ("a", "b", "broken"):
        await store.save(AccountKey(uid=name, name=name), ACCOUNT, None)
    await fence_all(store)
    assert {key.name for key in await store.keys()} == {"a", "b"}
    lives = set()
    for key in await store.keys():
        found = await store.load(key)
        assert found is not None
        assert found.account.fenced
        assert found.account.granted == {}
        assert found.account.used == ACCOUNT.used
        assert found.account.sequence > ACCOUNT.sequence
        lives.add(found.account.incarnation)
    assert len(lives) == 2
    assert "life" not in lives
