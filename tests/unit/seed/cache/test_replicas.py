"""Which replicas may admit, and when a quota is known by all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from common.api.labels import BLOCKS_ANNOTATION, UID_LABEL
from common.api.types import ResourceQuota
from common.kube.client.errors import ApiError
from common.kube.client.resource import Broken
from common.kube.controller.leader_election import LEASES
from common.kube.controller.store import Change
from common.quota import account as accounts
from common.quota.account import Reservation
from common.quota.quantity import QuantityError
from seed.admission.admitter import Admission
from seed.admission.types import Request
from seed.cache import quotas
from seed.cache import replicas as module
from seed.cache.quotas import QuotaCache
from seed.cache.replicas import (
    FORGOTTEN,
    FRESH,
    LAPSED,
    RENEW,
    VERSION_ANNOTATION,
    Record,
    Replicas,
    Seen,
    blocks_allowed,
    known_by_all,
    reaches,
    record_name,
)
from seed.cache.watches import Watches
from seed.model.consumer import Consumer
from tests.clock import Clock
from tests.running import running
from tests.unit.fake_api_server import FakeApiServer, eventually, fake_api_server
from tests.unit.seed_world import PROJECT, SeedWorld, nanos, quota_copy

LEASE = "seedquota-seed"
NAMESPACE = "n"
NOW = 1000.0


class Seed:
    """Its API server, and a replica whose watch caches the test fills by hand."""

    def __init__(self, api: FakeApiServer) -> None:
        self.api = api
        self.clock = Clock(NOW)
        self.cluster = api.cluster()
        self.quota_cache = QuotaCache(self.cluster)
        self.watches = Watches(*self.quota_cache.reflectors)
        self.heard("")
        self.known: list[str] = []
        self.allowed: list[bool] = []

    def record(self, identity: str = "one") -> Record:
        return Record(self.cluster, NAMESPACE, LEASE, identity, self.quota_cache, self.watches, clock=self.clock)

    def replicas(self) -> Replicas:
        heard = self.known.append, self.allowed.append
        return Replicas(self.cluster, NAMESPACE, LEASE, self.quota_cache, *heard, clock=self.clock)

    def listed(self) -> None:
        """Every list that was asked for is complete."""
        quotas = self.quota_cache.quotas
        quotas.lists_completed = quotas.lists_started = quotas.lists_started + 1
        quotas.synced.set()
        done, quotas._list_done = quotas._list_done, asyncio.Event()
        done.set()
        self.proven()

    def proven(self) -> None:
        for reflector in self.quota_cache.reflectors:
            reflector.proven_at = self.clock.now

    def heard(self, version: str) -> None:
        self.quota_cache.quotas.version = version

    def quota(
        self,
        version: int,
        *,
        generation: int = 1,
        said: int | None = None,
        name: str = "q",
        raised: str = "",
        said_raised: str = "",
    ) -> None:
        """The seed's copy comes by on the watch. `raised`: the cpu that an override has raised."""
        account = {"incarnation": "life", **({"enforcedGeneration": said} if said is not None else {})}
        account |= {"enforcedRaised": {"cpu": said_raised}} if said_raised else {}
        metadata = {"name": name, "uid": f"{name}-copy", "labels": {UID_LABEL: f"{name}-uid"}}
        body = {
            "metadata": {**metadata, "generation": generation, "resourceVersion": str(version)},
            "spec": {"subject": {"kind": "project", "name": PROJECT}, "quota": {"cpu": "8"}},
            "status": {"account": account, "grant": {"raised": {"cpu": raised}} if raised else {}},
        }
        copy = msgspec.convert(body, ResourceQuota)
        self.quota_cache._quota_changed(Change(None, copy))

    async def other(self, name: str, version: str) -> None:
        """Another replica writes its record."""
        metadata = {"annotations": {VERSION_ANNOTATION: version}}
        await self.api.put("leases", NAMESPACE, name, metadata=metadata, spec={"holderIdentity": name})

    @property
    def writes(self) -> int:
        return self.api.count("PUT", "leases") + self.api.count("POST", "leases")

    async def written(self, identity: str = "one") -> dict[str, Any]:
        found = await self.cluster.get(LEASES, record_name(LEASE, identity), NAMESPACE)
        return {"version": found.metadata.annotations[VERSION_ANNOTATION], **found.metadata.labels}

    def generation(self, replicas: Replicas, name: str = "q") -> int:
        quota = self.quota_cache.quota(name)
        assert quota is not None
        return replicas.in_force(quota)[0]


@pytest_asyncio.fixture
async def seed() -> AsyncIterator[Seed]:
    async with fake_api_server() as api:
        yield Seed(api)


# The decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "version", "reached"),
    [
        ("9", "10", False),
        ("10", "10", True),
        ("11", "10", True),
        ("", "10", False),
        ("a", "10", False),
        ("a", "a", True),
        ("b", "a", False),
        ("9" * 5000, "10", False),
    ],
)
def test_versions_of_one_kind_are_numbers_that_grow_and_others_are_only_equal(
    heard: str, version: str, reached: bool
) -> None:
    assert reaches(heard, version) is reached


def seen(version: str, ago: float = 0.0, unread: str = "") -> Seen:
    return Seen(version, "1", NOW - ago, frozenset([unread]))


def test_a_quota_is_known_by_all_when_every_replica_that_may_admit_has_heard_of_it() -> None:
    quota = msgspec.structs.replace(quota_copy("q", limits="cpu=8"), version="10")
    assert known_by_all(quota, [seen("10"), seen("12")], NOW)
    assert not known_by_all(quota, [seen("10"), seen("9")], NOW)
    assert not known_by_all(quota, [seen("10"), seen("9", ago=FRESH + 1)], NOW), "it may still admit by its own clock"
    assert known_by_all(quota, [seen("10"), seen("9", ago=LAPSED)], NOW), "it refuses everything by now"
    assert not known_by_all(quota, [], NOW), "not even one's own is there"
    assert not known_by_all(quota, [seen("10"), seen("12", unread="q")], NOW), "it goes on with the copy before"
    assert known_by_all(quota, [seen("10"), seen("12", unread="another")], NOW)
    assert FRESH + 4 < LAPSED, "clocks run at different speeds, and an answer takes its time"


def test_every_identity_has_a_valid_name_of_its_own() -> None:
    assert record_name(LEASE, "seed-7d4-x") == "seedquota-seed-replica-seed-7d4-x"
    odd = {record_name(LEASE, identity) for identity in ("Node_1", "node_1", "node-1", "a" * 300, "a" * 301, "ä")}
    assert len(odd) == 6
    for name in odd:
        assert len(name) < 250 and name.strip("-") == name
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


# A replica's own record -------------------------------------------------------------------------------------------


async def test_a_replica_admits_nothing_before_it_has_a_record_and_lists_that_began_later(seed: Seed) -> None:
    record = seed.record()
    assert record.stale() == "this replica has had no answer from the API server yet"
    async with running(record.run()):
        await asyncio.wait_for(record.kept.wait(), 30)
        assert record.stale() is not None
        seed.listed()
        assert record.stale() is None


async def test_a_replica_that_hears_nothing_refuses_by_its_own_clock_and_its_record_lapses(seed: Seed) -> None:
    record = seed.record()
    await record._keep()
    seed.listed()
    seed.clock.now += FRESH
    assert await record._keep() == RENEW
    assert record.stale() is None
    seed.clock.now += 6
    assert record.stale() == "this replica has had no answer from the API server for 31 s"
    written = seed.writes
    assert await record._keep() < RENEW
    assert seed.writes == written, "others need not wait for it"
    seed.proven()
    await record._keep()
    assert record.stale() is None and seed.writes == written + 1


async def test_a_replica_whose_record_is_not_written_refuses_although_it_hears_everything(seed: Seed) -> None:
    record = seed.record()
    await record._keep()
    seed.listed()

    async def away(_request: object) -> None:
        raise ConnectionResetError

    for _ in range(3):
        seed.clock.now += 10
        seed.proven()
        seed.api.answers.append(away)
        await record._keep()
    assert record.stale() == "this replica has had no answer from the API server for 30 s"
    await record._keep()
    assert record.stale() == "this replica was out of reach and lists the quotas again"
    seed.listed()
    assert record.stale() is None


async def test_a_replica_whose_record_somebody_deleted_lists_again_what_was_known_without_it(seed: Seed) -> None:
    record = seed.record()
    await record._keep()
    seed.listed()
    await seed.api.remove("leases", NAMESPACE, record_name(LEASE, "one"))
    await record._keep()
    assert record.stale() is not None
    seed.listed()
    assert record.stale() is None


async def test_a_replica_started_again_takes_the_record_over_and_says_that_it_knows_nothing(seed: Seed) -> None:
    seed.heard("500")
    await seed.record()._keep()
    assert (await seed.written())["version"] == "500"
    seed.heard("")
    again = seed.record()
    await again._keep()
    assert await seed.written() == {"version": "", module.LABEL: LEASE}
    assert again.stale() is not None


async def test_a_new_quota_is_told_at_once_a_thousand_of_them_together_and_a_status_not(seed: Seed) -> None:
    record = seed.record()
    async with running(record.run()):
        await asyncio.wait_for(record.kept.wait(), 30)
        seed.heard("100")
        seed.listed()
        await asyncio.sleep(2 * module.COALESCE)
        before, began = seed.writes, time.monotonic()
        for number in range(1000):
            seed.quota(101 + number, name=f"q-{number}")
            seed.heard(str(101 + number))
            if number % 100 == 0:
                await asyncio.sleep(0)

        async def told() -> bool:
            return (await seed.written())["version"] == "1100"

        async with asyncio.timeout(30):
            while not await told():
                await asyncio.sleep(0.01)
        assert seed.writes - before <= 3 + (time.monotonic() - began) / module.COALESCE
        before = seed.writes
        for number in range(1000):
            seed.quota(2000 + number, name=f"q-{number}")
        await asyncio.sleep(2 * module.COALESCE)
        assert seed.writes == before


async def test_a_replica_that_ends_leaves_no_record(seed: Seed) -> None:
    record = seed.record()
    await record._keep()
    await record.remove()
    assert not seed.api.objects


# The leader -------------------------------------------------------------------------------------------------------


async def test_the_leader_says_which_spec_all_replicas_have(seed: Seed) -> None:
    replicas = seed.replicas()
    await seed.other("one", "200")
    await seed.other("two", "150")
    async with running(replicas.run()):
        seed.quota(200)
        looks = seed.api.lists
        await eventually(lambda: seed.api.lists >= looks + 2)
        assert seed.known == [] and seed.generation(replicas) == 0
        await seed.other("two", "200")
        await eventually(lambda: seed.known == ["q"])
        assert seed.generation(replicas) == 1
        seed.quota(300, said=1)
        assert seed.generation(replicas) == 1, "another status is no other spec"
        seed.quota(400, generation=2, said=1)
        assert seed.generation(replicas) == 1, "as it was said last"
        for name in ("one", "two"):
            await seed.other(name, "400")
        await eventually(lambda: seed.known == ["q", "q"])
        assert seed.generation(replicas) == 2


async def test_a_limit_that_was_raised_is_said_until_no_replica_admits_by_it(seed: Seed) -> None:
    """In the master's own cluster the status tells it: the generation stays as it is."""
    seed.quota_cache.in_cluster = True
    replicas = seed.replicas()

    def raised() -> dict[str, int]:
        quota = seed.quota_cache.quota("q")
        assert quota is not None
        return {name: amount for name, amount in replicas.in_force(quota)[1].items() if amount}

    await seed.other("one", "200")
    async with running(replicas.run()):
        seed.quota(200, raised="16")
        assert raised() == nanos("cpu=16"), "this replica admits by it"
        await eventually(lambda: seed.known == ["q"])
        seed.quota(300, said=1, said_raised="16")
        looks = seed.api.lists
        await eventually(lambda: seed.api.lists >= looks + 2)
        assert (raised(), seed.generation(replicas)) == (nanos("cpu=16"), 1), "the replica may not know that it ended"
        await seed.other("one", "300")
        await eventually(lambda: seed.known == ["q", "q"])
        assert raised() == {}


async def test_a_limit_that_was_raised_for_a_moment_is_waited_for_although_nobody_has_said_it(seed: Seed) -> None:
    seed.quota_cache.in_cluster = True
    replicas = seed.replicas()
    await seed.other("one", "200")
    async with running(replicas.run()):
        await eventually(lambda: seed.api.lists == 1)
        for version, raised in ((200, ""), (300, "16"), (400, "")):
            seed.quota(version, said=1, raised=raised)
        looks = seed.api.lists
        await eventually(lambda: seed.api.lists >= looks + 2)
        assert seed.known == []
        await seed.other("one", "400")
        await eventually(lambda: seed.known == ["q"])


async def test_what_the_last_leader_said_stands_and_is_not_looked_for_again(seed: Seed) -> None:
    seed.quota(200, generation=3, said=3)
    replicas = seed.replicas()
    async with running(replicas.run()):
        await eventually(lambda: seed.api.lists == 1)
        assert seed.generation(replicas) == 3 and seed.known == []


async def test_a_replica_that_cannot_read_a_quota_says_so_and_others_are_known_by_all(seed: Seed) -> None:
    """As one of an earlier release: it goes on with the copy before, and has heard of all the same."""
    record, replicas = seed.record(), seed.replicas()
    broken = Broken("q", "q-copy", "7", "it is of another type")
    async with running(record.run(), replicas.run()):
        await record.kept.wait()
        seed.listed()
        seed.quota_cache.quotas.malformed.add(broken)
        seed.quota(7, name="q")
        seed.quota(8, name="other")
        seed.heard("8")
        await eventually(lambda: seed.known == ["other"])
        seed.quota_cache.quotas.malformed.discard("q")
        seed.quota(9, generation=2, name="q")
        seed.heard("9")
        await eventually(lambda: seed.known == ["other", "q"])


def test_a_quota_is_unread_while_its_latest_copy_cannot_be_taken_up(
    seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise QuantityError("no amount")

    with monkeypatch.context() as patched:
        patched.setattr(quotas, "parse_quota", refuse)
        seed.quota(7)
    assert seed.quota_cache.unread == {"q"}
    seed.quota(8)
    assert seed.quota_cache.unread == set()


async def test_records_that_were_read_before_a_quota_came_prove_nothing_of_it(seed: Seed) -> None:
    """Another replica may have made its record meanwhile, from a list without this quota."""
    replicas = seed.replicas()
    seed.quota_cache.on_spec(replicas._spec_changed)
    await seed.other("one", "900")

    def comes() -> None:
        seed.quota(200)
        seed.api.page_hook = None

    seed.api.page_hook = comes
    await replicas._look()
    assert seed.known == []
    await replicas._look()
    assert seed.known == ["q"]


async def test_a_replica_that_is_gone_is_waited_for_until_it_must_refuse_and_then_forgotten(seed: Seed) -> None:
    replicas = seed.replicas()
    await seed.other("one", "200")
    await seed.other("gone", "150")
    seed.quota(200)
    replicas._spec_changed("q")
    await replicas._look()
    seed.clock.now += LAPSED - 1
    await seed.other("one", "201")
    await replicas._look()
    assert seed.known == []
    seed.clock.now += 1
    await replicas._look()
    assert seed.known == ["q"]
    seed.clock.now += FORGOTTEN
    await seed.other("one", "202")
    await replicas._look()
    assert [name for _, _, name in seed.api.objects] == ["one"]


async def test_a_record_that_cannot_be_read_is_of_a_replica_that_knows_nothing_until_it_lapses(seed: Seed) -> None:
    replicas = seed.replicas()
    await seed.other("one", "200")
    await seed.other("two", "200")
    two = next(found for (_, _, name), found in seed.api.objects.items() if name == "two")
    two["spec"] = 5
    seed.quota(200)
    replicas._spec_changed("q")
    await replicas._look()
    assert seed.known == []
    seed.clock.now += LAPSED
    await seed.other("one", "201")
    await replicas._look()
    assert seed.known == ["q"], "its replica cannot read it either, so it refuses everything"
    seed.clock.now += FORGOTTEN
    await seed.other("one", "202")
    await replicas._look()
    assert [name for _, _, name in seed.api.objects] == ["one"]


async def test_while_records_cannot_be_read_nothing_is_known(seed: Seed) -> None:
    replicas = seed.replicas()
    await seed.other("one", "200")
    seed.quota(200)
    replicas._spec_changed("q")

    async def away(_request: object) -> None:
        raise ConnectionResetError

    seed.api.answers.append(away)
    await replicas._look()
    assert seed.known == []
    with pytest.raises(ApiError):
        seed.api.answers.append(away)
        await seed.cluster.list(LEASES, NAMESPACE)


# Blocks -----------------------------------------------------------------------------------------------------------


async def test_blocks_are_allowed_while_every_replica_that_may_lead_knows_them(seed: Seed) -> None:
    """One of 0.2.0 has a record as well, until it ends, or for as long as it may still be alive."""
    record, replicas = seed.record(), seed.replicas()
    await replicas._look()
    await record._keep()
    await replicas._look()
    await seed.other("of-0.2.0", "1")
    await replicas._look()
    assert seed.allowed == [False, True, False], "nobody is there; all know them; one does not"
    seed.clock.now += LAPSED
    await record._keep()
    await replicas._look()
    assert seed.allowed[3:] == [True]


def test_what_a_leader_allowed_holds_for_its_term_alone() -> None:
    assert blocks_allowed({BLOCKS_ANNOTATION: "7"}, 7)
    for said in {}, {BLOCKS_ANNOTATION: ""}, {BLOCKS_ANNOTATION: "6"}, {BLOCKS_ANNOTATION: "77"}:
        assert not blocks_allowed(said, 7), said


# What it is for ---------------------------------------------------------------------------------------------------


async def test_whoever_asks_a_replica_that_is_deaf_is_told_so_and_nothing_is_reserved(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64")
    why: str | None = "this replica has had no answer from the API server for 31 s"
    admission = Admission(world.quota_cache, world.registry, lambda: why)
    kept = Reservation(source="alpha/c1", object="ns/u", amount=nanos("cpu=8"))
    request = Request(
        uid="u",
        consumer=Consumer(PROJECT),
        need=nanos("cpu=8"),
        reservation=kept,
        dry_run=False,
        deadline=asyncio.get_running_loop().time() + 30,
    )
    found = await admission.decide(request)
    assert found.refusal is not None
    assert (found.refusal.code, found.refusal.cause) == (503, "QuotaUnavailable")
    assert why in found.message
    assert accounts.use(world.account()) == {}
    why = None
    assert (await admission.decide(request)).refusal is None
