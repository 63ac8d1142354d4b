"""The leader's counting, with real accounts and tallies; sources and leases are played by the test."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from common.api.convert import report_to_wire
from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound, Unavailable
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import Term
from common.kube.controller.reflector import moment
from common.kube.controller.store import Change
from common.quota import account as accounts
from common.quota import fencing, reservations
from common.quota.account import Account, AccountKey, Admitted, Grant, Reservation
from common.quota.escrow import report
from common.quota.names import FURTHER, MAX_DEVICES
from common.quota.quantity import UNIT
from seed.accounts import reservation_collector
from seed.accounts import usage_writer as countings
from seed.accounts.controller import Accounts
from seed.accounts.plan import Progress
from seed.accounts.registry import AccountHandle
from seed.accounts.reservation_gc import MOST_UNSEEN
from seed.accounts.usage_writer import Counting
from seed.admission.types import Request
from seed.kinds.clusters.evaluator import NOTHING, ONE, Owned
from seed.kinds.clusters.totals import ClusterTotals
from seed.kinds.machines.source import Source
from seed.kinds.machines.totals import MachineTotals
from seed.machines.footprint import footprint
from seed.machines.machine_controller import Machine
from seed.model import source_key
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.model.selected_namespaces import EVERY
from seed.model.source_key import SourceKey
from seed.providers.size import Footprint, ProviderUnavailable
from seed.usage.source import Generation, Taken
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.seed.kinds.machines.test_totals import machine
from tests.unit.seed_world import ORGANIZATION, PROJECT, SeedWorld, nanos, seed_world

KEY = SourceKey(f"{PROJECT}/c1")
CLUSTERS_KEY = SourceKey.of_project(source_key.CLUSTERS, PROJECT)
WINDOW = 0.05


class FakeSource:
    """Follows nothing: the test changes its tally and says what a consistent read finds."""

    key = KEY
    consumer = Consumer(PROJECT, KEY)
    problem = None
    lost_at = None
    in_namespaces = None
    live = True

    def __init__(self) -> None:
        self.totals = MachineTotals()
        self.counted = True
        self.listed_from = 0
        self.lists = 0
        self.demanded = 0
        self.lists_at_once = False
        self.generations: dict[str, Generation] = {}
        self.reads = 0
        self.unreachable = False
        self.hangs = False

    @property
    def lists(self) -> int:
        return self._lists

    @lists.setter
    def lists(self, completed: int) -> None:
        """The latest began just now."""
        self._lists, self.listed_from = completed, moment()

    def relist(self) -> None:
        self.demanded += 1
        if self.lists_at_once:
            self.lists += 1

    async def generation(self, _name: str, uid: str) -> Generation:
        self.reads += 1
        if self.unreachable:
            raise Unavailable(0, "Unavailable", "no answer")
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return self.generations.get(uid)


class FakeClusters(FakeSource):
    """The project has none, and they are listed as soon as somebody asks."""

    key = CLUSTERS_KEY
    consumer = Consumer(PROJECT)

    def __init__(self) -> None:
        super().__init__()
        self.totals = cast(MachineTotals, ClusterTotals())

    def relist(self) -> None:
        self.lists += 1


class FakeSeedCluster:
    """The seed's API server, as far as these controllers ask it."""

    name = "seed"

    def __init__(self, world: SeedWorld) -> None:
        self._world = world
        self.before_answer: Callable[[], None] = lambda: None
        self.published: list[dict[str, Any]] = []
        self.answers = True

    async def apply(self, _resource: object, body: dict[str, Any], **_kwargs: object) -> None:
        self.published.append(body["status"])
        if not self.answers:
            raise Unavailable(0, "Unavailable", "no answer")

    async def get(self, resource: object, name: str, namespace: str | None = None) -> object:
        found = await self.find(resource, name, namespace)
        if found is None:
            raise NotFound(404, "NotFound", name)
        return found

    async def find(self, _resource: object, name: str, namespace: str | None = None) -> object | None:
        self.before_answer()
        return self._world.present.get(f"{namespace}/{name}" if namespace else name)


class Leading:
    def __init__(self, world: SeedWorld, term: int = 1, *, cold: bool = False, window: float = WINDOW) -> None:
        self.world = world
        self.proven_at = math.inf  # of the caches of quotas and clusters
        self.cluster = FakeSeedCluster(world)
        self.source = FakeSource()
        self.source.lists = 1
        self.clusters = FakeClusters()
        self.sources: dict[str, FakeSource] = {KEY: self.source, CLUSTERS_KEY: self.clusters}
        sources = cast(dict[str, Source], self.sources)
        cluster = cast(Cluster, self.cluster)

        async def raise_term(above: int) -> int:
            return above + 1

        self.accounts = Accounts(
            cluster,
            world.registry,
            sources,
            term=Term(term, "", was_expired=False, created=False, continuous=not cold, since=0),
            raise_term=raise_term,
            in_flight_window=window,
            proven_at=lambda: self.proven_at,
        )
        self.counting = Counting(
            cluster,
            world.quota_cache,
            world.cluster_cache,
            world.registry,
            self.accounts,
            sources,
            in_flight_window=window,
            proven_at=lambda: self.proven_at,
        )

    def there(self, *names: str, cpu: str = "8", generation: int = 1) -> None:
        for name in names:
            self.source.totals.apply(Change(None, machine(name, cpu, generation=generation)))
            self.source.generations[f"{name}-uid"] = generation

    def changed(self) -> None:
        self.counting.changed(cast(Source, self.source), freed=True)


@asynccontextmanager
async def leading(
    monkeypatch: pytest.MonkeyPatch, term: int = 1, *, listed: bool = True, window: float = WINDOW, **quota: str
) -> AsyncIterator[Leading]:
    """`listed`: the lists that it demands when it takes over are complete already."""
    monkeypatch.setattr(countings, "RETRY_DELAY", 0.01)
    async with seed_world() as world:
        await world.quota(limits="cpu=64", granted="cpu=64", **quota)
        found = Leading(world, term, window=window)
        async with running(found.accounts.run(), found.counting.run()):
            if listed:
                await eventually(lambda: found.accounts._progress)
                found.source.lists = 2
            yield found
        accounts.check(world.account())


async def reserve(world: SeedWorld, name: str, cpu: str = "8", generation: int = 0) -> None:
    kept = Reservation(source=KEY, object=f"ns/{name}", amount=nanos(f"cpu={cpu}"), generation=generation)
    await world.handle().writer.claim(f"{name}-uid", kept)


async def update(world: SeedWorld, name: str, cpu: str) -> Admitted:
    """By a request of its own, as the webhook asks."""
    more = nanos(f"cpu={cpu}")
    found = await world.admission.decide(
        Request(
            uid=f"{name}-uid",
            consumer=Consumer(PROJECT),
            need=more,
            reservation=Reservation(source=KEY, object=f"ns/{name}", amount=more, generation=2),
            dry_run=False,
            deadline=asyncio.get_running_loop().time() + 30,
        )
    )
    (attempt,) = found.attempts
    assert attempt.admitted is not None
    return attempt.admitted


def use(world: SeedWorld) -> int:
    return accounts.use(world.account()).get("cpu", 0) // nanos("cpu=1")["cpu"]


async def test_what_appears_moves_from_reserved_to_used(leader: Leading) -> None:
    await reserve(leader.world, "a")
    leader.there("a")
    leader.changed()
    await eventually(lambda: not leader.world.account().reservations)
    assert leader.world.account().used[KEY]["cpu"] == nanos("cpu=8")["cpu"]


async def test_a_new_leader_counts_nothing_before_a_list_that_began_after_its_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(countings, "CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch, term=2, listed=False, used="cpu=8") as leader:
        leader.changed()
        await eventually(lambda: leader.accounts._progress)
        await asyncio.sleep(0.05)
        assert use(leader.world) == 8, "its first list lacks what the old leader counted since"
        leader.there("a", "b")
        leader.source.lists = 2
        await eventually(lambda: use(leader.world) == 16)


async def test_the_quotas_of_a_user_cluster_are_looked_at_when_it_says_that_machines_are_not_checked_there(
    leader: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    await eventually(lambda: leader.cluster.published)
    before = leader.world.cluster_cache.user_clusters.store.get(KEY)
    body = {**msgspec.to_builtins(before), "status": {"conditions": [{"type": "Enforced", "status": "False"}]}}
    now = msgspec.convert(body, UserCluster)
    looked_at: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(leader.accounts._controller.queue, "add", looked_at.append)
        leader.world.cluster_cache._cluster_changed(Change(before, now))
        leader.world.cluster_cache._cluster_changed(Change(now, now))
    assert looked_at == ["project-alpha"]


async def test_a_new_leader_publishes_what_changes_after_its_predecessor_published(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64")
    copy = world.copies["project-alpha"]
    said = msgspec.structs.replace(copy.status, account=report_to_wire(report(world.account())))
    world._put(msgspec.structs.replace(copy, status=said))
    leader = Leading(world, term=2)
    async with running(leader.accounts.run()):
        await reserve(world, "a")
        await eventually(lambda: leader.cluster.published)
        assert leader.cluster.published[-1]["localUsage"] == {"cpu": "8"}


async def test_what_changed_before_an_account_opened_is_counted_although_it_opened_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write that opens it was decided before, given up, and arrived all the same."""
    monkeypatch.setattr(countings, "RETRY_DELAY", 0.01)
    async with seed_world() as world:
        handle = await world.quota(limits="cpu=64")
        leader = Leading(world)
        await handle.writer.change(lambda account: (fencing.fence(account, "n"), None))
        leader.accounts._progress[handle.key.uid] = Progress(claimed=1, life="life")
        leader.there("a")
        await leader.counting._count(KEY)
        assert use(world) == 0
        async with running(leader.counting.run()):
            await handle.writer.change(lambda account: (msgspec.structs.replace(account, nonce=""), None))
            await eventually(lambda: use(world) == 8)


async def test_a_report_that_may_have_arrived_is_followed_by_another(leader: Leading) -> None:
    """Also when all is as it was before: the master would believe for ever what was true for a moment."""
    await eventually(lambda: leader.cluster.published)
    leader.cluster.answers = False
    leader.source.unreachable = True  # it stays until it was reported
    await reserve(leader.world, "a")
    await eventually(lambda: leader.cluster.published[-1]["account"].reserved)
    leader.source.unreachable = False
    await eventually(lambda: not leader.world.account().reservations)  # it never came
    leader.cluster.answers = True
    await eventually(lambda: not leader.cluster.published[-1]["account"].reserved)


async def test_a_count_that_waits_beside_the_claim_is_not_decided_with_it(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=8")
    leader = Leading(world, term=2)
    quota = world.quota_cache.quota("project-alpha")
    assert quota is not None
    assert not leader.accounts.may_count(quota, cast(Source, leader.source))
    claiming = asyncio.create_task(leader.accounts._tend(quota, world.handle()))
    await leader.counting._count(KEY)
    await claiming
    assert world.account().epoch == 2
    assert use(world) == 8
    assert not leader.accounts.may_count(quota, cast(Source, leader.source))


async def test_a_list_that_brought_no_change_is_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(monkeypatch, term=2, listed=False, used="cpu=8") as leader:
        leader.changed()  # the first list is complete: without a Machine, which was deleted while nobody led
        await eventually(lambda: leader.accounts._progress)
        leader.source.lists = 2
        await eventually(lambda: use(leader.world) == 0)


async def test_a_change_while_something_is_not_listed_is_counted_once_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several kinds one may come, and go again, while nobody looks: then nobody tells of a first list."""
    async with leading(monkeypatch, used="cpu=8") as leader:
        await eventually(lambda: leader.accounts._progress)
        leader.source.counted = False
        leader.changed()
        await asyncio.sleep(0.1)
        assert use(leader.world) == 8
        leader.source.counted = True
        await eventually(lambda: use(leader.world) == 0)


async def test_a_term_above_ours_is_answered_with_a_higher_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(countings, "CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch, used="cpu=8") as leader:
        await leader.world.handle().writer.change(lambda account: (accounts.claim_epoch(account, 7), None))
        await eventually(lambda: leader.accounts._progress["project-alpha-uid"].claimed == 8)
        leader.changed()
        await asyncio.sleep(0.05)
        assert use(leader.world) == 8
        leader.source.lists = 3
        await eventually(lambda: use(leader.world) == 0)


async def test_a_reservation_without_an_object_goes_on_evidence_after_the_window(leader: Leading) -> None:
    await reserve(leader.world, "a")
    await eventually(lambda: not leader.world.account().reservations)
    assert leader.source.reads == 1


async def counted_once(leader: Leading, *, generation: int) -> None:
    leader.there("a", generation=generation)
    leader.source.lists += 1
    leader.changed()
    await eventually(lambda: use(leader.world) == 8)


async def test_an_update_that_was_overtaken_keeps_nothing_until_the_window_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The object was changed in another way meanwhile, which changed no use."""
    async with leading(monkeypatch, window=3600.0) as leader:
        await counted_once(leader, generation=3)
        await reserve(leader.world, "a", generation=2)
        await eventually(lambda: not leader.world.account().reservations)
        assert use(leader.world) == 8


async def test_an_update_that_is_overtaken_later_keeps_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a change changes no use, no watch says so."""
    monkeypatch.setattr(countings, "CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch, window=3600.0) as leader:
        await counted_once(leader, generation=1)
        await reserve(leader.world, "a", generation=2)
        await eventually(lambda: not leader.counting._due)
        assert use(leader.world) == 16
        leader.there("a", generation=2)
        await eventually(lambda: not leader.world.account().reservations)
        assert use(leader.world) == 8


async def test_evidence_says_nothing_by_caches_that_may_be_older_than_the_reservation(leader: Leading) -> None:
    """Another replica may have admitted it by a selector that the leader has not seen."""
    leader.proven_at = -math.inf
    await reserve(leader.world, "a")
    quota = leader.world.quota_cache.quota("project-alpha")
    assert quota is not None
    await asyncio.sleep(2 * WINDOW)
    for _ in range(2):
        await leader.counting._collector.release(leader.world.handle(), quota, leader.world.account())
    assert use(leader.world) == 8 and leader.source.reads == 0
    leader.proven_at = math.inf
    await eventually(lambda: not leader.world.account().reservations)


async def test_what_cannot_be_read_is_not_released(leader: Leading) -> None:
    leader.source.unreachable = True
    for number in range(5):
        await reserve(leader.world, f"m{number}", "1")
    await eventually(lambda: leader.source.reads > 2)
    assert len(leader.world.account().reservations) == 5
    leader.source.unreachable = False
    await eventually(lambda: not leader.world.account().reservations)


async def test_a_source_that_answers_slowly_keeps_no_reservation_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation_collector, "READ_SECONDS", 0.01)
    async with leading(monkeypatch) as leader:
        leader.source.hangs = True
        await reserve(leader.world, "a", "1")
        never = Reservation(source=CLUSTERS_KEY, object=f"{PROJECT}/a", amount=ONE)
        await leader.world.handle().writer.claim("never", never)
        await eventually(lambda: {uid for _, uid in leader.world.account().reservations} == {"a-uid"})
        leader.source.hangs = False
        await eventually(lambda: not leader.world.account().reservations)


async def test_a_source_that_answers_slowly_keeps_no_reservation_of_another_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservation_collector, "READ_SECONDS", 1000.0)
    async with leading(monkeypatch) as leader:
        leader.source.hangs = True
        await reserve(leader.world, "a", "1")
        await eventually(lambda: leader.source.reads == 1)
        second = await leader.world.quota("second", limits="clusters=2", granted="clusters=2")
        await second.writer.claim("never", Reservation(source=CLUSTERS_KEY, object=f"{PROJECT}/a", amount=ONE))
        await eventually(lambda: not leader.world.account("second").reservations)
        assert (leader.source.reads, use(leader.world)) == (1, 1), "it is not asked again meanwhile"


class OtherSource(FakeSource):
    """Of another tenant."""

    key = SourceKey("beta/c2")
    consumer = Consumer("beta", key)


async def test_an_account_that_is_written_slowly_delays_no_count_of_another_tenant(
    leader: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tenant may make it large and busy."""
    world, other = leader.world, OtherSource()
    written, save = asyncio.Event(), world.store.save

    async def slow(key: AccountKey, account: Account, version: str | None) -> str:
        if key.name == "project-alpha" and account.used:
            await written.wait()
        return await save(key, account, version)

    leader.sources[other.key] = other
    body = {"metadata": {"name": "c2", "namespace": "beta", "uid": "c2-uid"}, "spec": {"project": "beta"}}
    world.cluster_cache.user_clusters.store._set(other.key, msgspec.convert(body, UserCluster))
    await world.quota("beta", limits="cpu=8", granted="cpu=8", subject={"kind": "project", "name": "beta"})
    await eventually(lambda: leader.accounts._has_claimed(_known(world, "beta")))
    other.lists += 1
    monkeypatch.setattr(world.store, "save", slow)
    leader.there("a")
    leader.changed()
    await eventually(lambda: KEY not in leader.counting._due)
    other.totals.apply(Change(None, machine("b", "8")))
    leader.counting.changed(cast(Source, other), freed=True)
    await eventually(lambda: world.account("beta").used.get(other.key))
    assert use(world) == 0, "it is still being written"
    leader.there("c")
    leader.changed()
    written.set()
    await eventually(lambda: use(world) == 16)


def _known(world: SeedWorld, name: str) -> Quota:
    found = world.quota_cache.quota(name)
    assert found is not None
    return found


async def test_the_checks_of_many_quotas_are_not_all_made_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of quotas, a replica would stand still for half a second in each round."""
    monkeypatch.setattr(countings, "CHECKS", 2)
    async with seed_world() as world:
        for number in range(20):
            await world.quota(f"q{number}", limits="cpu=64", granted="cpu=64")
        leader, turn = Leading(world), 0
        checked: dict[str, int] = {}

        async def check_one(_handle: AccountHandle, quota: Quota, _account: Account) -> None:
            checked.setdefault(quota.name, turn)

        monkeypatch.setattr(leader.counting, "_check_one", check_one)
        async with running(leader.counting.run()):
            while len(checked) < 20:
                await asyncio.sleep(0)
                turn += 1
        assert max(Counter(checked.values()).values()) <= 2 * 2


async def test_what_exists_but_is_not_seen_yet_is_kept(leader: Leading) -> None:
    await reserve(leader.world, "a")
    leader.source.generations["a-uid"] = 1
    await eventually(lambda: leader.source.reads > 2)
    assert use(leader.world) == 8


async def test_another_request_for_the_same_object_starts_the_window_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(reservation_collector, "time", SimpleNamespace(monotonic=lambda: now))
    async with seed_world() as world:
        handle = await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=8")
        quota = world.quota_cache.quota("project-alpha")
        assert quota is not None
        leader = Leading(world)
        await leader.accounts._tend(quota, handle)
        leader.source.lists = 2
        leader.there("a")
        for _ in range(5):  # each fails after it was admitted, and is tried again
            await reserve(world, "a", "2", generation=2)
            await leader.counting._collector.release(handle, quota, world.account())
            now += WINDOW * 0.9
            await leader.counting._collector.release(handle, quota, world.account())
            assert use(world) == 10
        now += WINDOW * 0.2
        await leader.counting._collector.release(handle, quota, world.account())
        assert use(world) == 8


@pytest.mark.parametrize("undone", ["released", "cancelled"])
async def test_an_update_that_is_tried_again_when_its_evidence_falls_due_has_an_age_of_its_own(
    monkeypatch: pytest.MonkeyPatch, undone: str
) -> None:
    """Nobody looks between the end of the first try and the second, which asks for the very same."""
    now = 100.0
    monkeypatch.setattr(reservation_collector, "time", SimpleNamespace(monotonic=lambda: now))
    async with seed_world() as world:
        handle = await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=8")
        quota = world.quota_cache.quota("project-alpha")
        assert quota is not None
        leader = Leading(world)
        await leader.accounts._tend(quota, handle)
        leader.source.lists = 2
        leader.there("a")
        attempt = await update(world, "a", "2")
        await leader.counting._collector.release(handle, quota, world.account())
        now += WINDOW * 1.1
        if undone == "released":
            await leader.counting._collector.release(handle, quota, world.account())
        else:
            await handle.writer.change(lambda account: (reservations.cancel(account, "a-uid", attempt), None))
        assert use(world) == 8
        await update(world, "a", "2")
        await leader.counting._collector.release(handle, quota, world.account())
        assert use(world) == 10, "the second may still be stored"
        now += WINDOW * 1.1
        await leader.counting._collector.release(handle, quota, world.account())
        assert use(world) == 8


async def test_an_update_that_never_happened_is_released_once_the_object_itself_is_counted(leader: Leading) -> None:
    await reserve(leader.world, "a")
    await reserve(leader.world, "a", "2", generation=2)
    leader.source.generations["a-uid"] = 1  # created, and not updated; the watch has not brought it yet
    await eventually(lambda: leader.source.reads > 2)
    assert use(leader.world) == 10
    leader.there("a")
    await eventually(lambda: not leader.world.account().reservations)
    assert use(leader.world) == 8


class Hand:
    """A leader whose looks and counts the test makes by hand, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: SeedWorld, handle: AccountHandle, window: float) -> None:
        self.now = 100.0
        monkeypatch.setattr(reservation_collector, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.leader = Leading(world, window=window)
        self.world, self.handle, self.source = world, handle, self.leader.source

    @property
    def quota(self) -> Quota:
        found = self.world.quota_cache.quota(self.handle.key.name)
        assert found is not None
        return found

    async def claim(self) -> None:
        """Until what is listed now may be counted."""
        await self.leader.accounts._tend(self.quota, self.handle)
        self.source.lists += 1

    async def look(self, after: float = 0.0) -> None:
        self.now += after
        await self.leader.counting._collector.release(self.handle, self.quota, self.world.account())

    async def count(self) -> None:
        await self.leader.counting._count(KEY)

    def waiting(self) -> set[str]:
        return {uid for _, uid in self.world.account().reservations}


@asynccontextmanager
async def by_hand(
    monkeypatch: pytest.MonkeyPatch, *, window: float = 65.0, limits: str = "cpu=64", used: str = ""
) -> AsyncIterator[Hand]:
    async with seed_world() as world:
        handle = await world.quota(limits=limits, granted=limits, used=used)
        hand = Hand(monkeypatch, world, handle, window)
        await hand.claim()
        yield hand
        accounts.check(world.account())


@pytest_asyncio.fixture
async def hand(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hand]:
    async with by_hand(monkeypatch) as made:
        yield made


async def test_what_must_stay_keeps_nothing_else_from_being_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation_collector, "MAX_CHECKS", 4)
    async with by_hand(monkeypatch) as hand:
        for number in range(6):  # they are there, and the watch has not brought them
            await reserve(hand.world, f"there-{number}", "1")
            hand.source.generations[f"there-{number}-uid"] = 1
        for number in range(3):
            await reserve(hand.world, f"never-{number}", "1")
        await hand.look()
        hand.now += 66
        for _ in range(3):
            await hand.look()
        assert hand.waiting() == {f"there-{number}-uid" for number in range(6)}
        assert hand.source.reads == 12


async def test_a_source_with_much_that_must_stay_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation_collector, "MAX_CHECKS", 4)
    async with by_hand(monkeypatch) as hand:
        for number in range(8):
            await reserve(hand.world, f"m{number}", "1")
            hand.source.generations[f"m{number}-uid"] = 1
        never = Reservation(source=CLUSTERS_KEY, object=f"{PROJECT}/a", amount=ONE)
        await hand.world.handle().writer.claim("never", never)
        await hand.look()
        await hand.look(66)
        assert hand.waiting() == {f"m{number}-uid" for number in range(8)}


async def test_an_update_of_what_a_backup_brought_back_is_kept_until_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with by_hand(monkeypatch, limits="cpu=16") as hand:
        hand.leader.there("a")
        await hand.count()
        gone = machine("a")
        hand.source.totals.apply(Change(gone, None))
        await hand.count()
        assert use(hand.world) == 0
        hand.source.live = False  # the user cluster is restored, and the watch is broken
        await update(hand.world, "a", "8")
        await hand.count()
        assert use(hand.world) == 8, "it was deleted before the restore, and may be there again"
        hand.source.live = True
        hand.leader.there("a")  # the next list brings it
        await hand.count()
        assert use(hand.world) == 16
        hand.source.totals.apply(Change(machine("a"), machine("a", "16", generation=2)))
        await hand.count()
        assert (use(hand.world), hand.waiting()) == (16, set())


async def test_a_generation_from_before_a_restore_proves_nothing_of_an_update_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with by_hand(monkeypatch, limits="cpu=16") as hand:
        hand.leader.there("a", cpu="1", generation=3)  # which the backup does not know
        await reserve(hand.world, "new", "1")
        hand.leader.there("new", cpu="1")
        hand.source.live = False
        await update(hand.world, "a", "8")
        await hand.count()
        assert hand.waiting() == {"a-uid"}, "a creation stays true, whatever is restored"
        await eventually(lambda: KEY in hand.leader.counting._due)  # a list that brings no change tells nobody
        hand.source.live = True
        await hand.count()
        assert hand.waiting() == set()


async def test_a_source_that_joins_a_quota_later_is_counted_from_a_list_that_began_after_the_claim(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list is from before the claim, and lacks what the leader before has counted since."""
    handle = await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=8")
    cluster = world.cluster_cache.user_clusters.store.get(KEY)
    world.cluster_cache.user_clusters.store._remove(KEY)  # the cache lags
    hand = Hand(monkeypatch, world, handle, 65.0)
    hand.leader = Leading(world, term=2)
    source = hand.leader.source
    await hand.leader.accounts._tend(hand.quota, handle)
    world.cluster_cache.user_clusters.store._set(KEY, cluster)
    assert not hand.leader.accounts.may_count(hand.quota, cast(Source, source))
    await hand.count()
    assert use(world) == 8
    assert source.demanded == 1, "a list is on its way, and one is enough"
    hand.leader.there("a")
    source.lists += 1
    await hand.count()
    assert use(world) == 8
    assert hand.leader.accounts.may_count(hand.quota, cast(Source, source))


async def test_a_count_that_waits_for_a_write_while_newer_lists_are_demanded_is_made_from_those(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    demands, change = hand.leader.accounts._demands, hand.handle.writer.change

    def meanwhile(decide: Callable[[Account], tuple[Account, object]]) -> asyncio.Future[object]:
        demands.demand_all(hand.quota, [cast(Source, hand.source)])
        return change(decide)

    monkeypatch.setattr(hand.handle.writer, "change", meanwhile)
    hand.leader.there("a")
    await hand.count()
    monkeypatch.setattr(hand.handle.writer, "change", change)
    assert use(hand.world) == 0
    assert KEY in hand.leader.counting._due, "the newer list may bring no change"
    hand.source.lists += 1
    await hand.count()
    assert use(hand.world) == 8


async def test_a_count_that_waits_for_a_write_while_another_source_takes_the_place_is_not_made(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, again = hand.handle.writer.change, FakeSource()
    again.lists = 1

    def meanwhile(decide: Callable[[Account], tuple[Account, object]]) -> asyncio.Future[object]:
        hand.leader.sources[KEY] = again
        return change(decide)

    monkeypatch.setattr(hand.handle.writer, "change", meanwhile)
    hand.leader.there("a")
    await hand.count()
    assert use(hand.world) == 0


async def test_a_source_that_begins_after_the_claim_needs_no_second_list(hand: Hand) -> None:
    """Also one that takes the place of another, whose list was demanded."""
    leader = hand.leader
    again = FakeSource()
    again.lists = 1
    leader.sources[KEY] = again
    leader.source = again
    assert leader.accounts.may_count(hand.quota, cast(Source, again))
    assert again.demanded == 0


async def never_come(hand: Hand, count: int, tenant: str = "") -> None:
    """As where another webhook refuses what ours has admitted, and a MachineSet tries again."""
    for number in range(count):
        name = f"{tenant}never-{number}"
        kept = Reservation(source=KEY, object=f"kube-system/{name}", amount={"cpu": UNIT}, tenant=tenant)
        assert isinstance(await hand.world.handle().writer.claim(f"{name}-uid", kept), Admitted)
    await hand.look()


async def ask(world: SeedWorld, name: str, source: str = KEY, generation: int = 0, tenant: str = "") -> str:
    """Empty if one CPU is admitted, else why it is not."""
    amount = nanos("cpu=1")
    found = await world.admission.decide(
        Request(
            uid=f"{name}-uid",
            consumer=Consumer(PROJECT),
            need=amount,
            reservation=Reservation(
                source=source, object=f"ns/{name}", amount=amount, generation=generation, tenant=tenant
            ),
            dry_run=False,
            deadline=asyncio.get_running_loop().time() + 30,
        )
    )
    return "" if found.refusal is None else f"{found.refusal.code} {found.message}"


async def test_what_another_webhook_refuses_again_and_again_does_not_fill_the_quota(hand: Hand) -> None:
    world = hand.world
    await never_come(hand, MOST_UNSEEN)
    assert await ask(world, "early") == "", "they may still be on their way"
    await hand.look(5.1)
    assert world.account().held_back == (KEY,)
    refused = await ask(world, "another")
    assert refused.startswith("503 quota project-alpha cannot decide: 16 that were admitted in this cluster did")
    assert await ask(world, "elsewhere", source="alpha/c2") == ""
    assert await ask(world, "there", generation=2) == "", "what is there may change"
    assert await ask(world, "early") == "", "a repeat costs nothing"
    hand.leader.there("early", cpu="1")
    await hand.count()
    await hand.look(61)
    assert world.account().held_back == ()
    assert await ask(world, "another") == ""
    assert use(world) == 4


async def test_a_tenant_whose_objects_do_not_appear_keeps_no_other_of_its_cluster_waiting(hand: Hand) -> None:
    """An organization's account has one source for the namespaces of all its projects in a cluster that they share."""
    world = hand.world
    await never_come(hand, MOST_UNSEEN, "project/x")
    await never_come(hand, MOST_UNSEEN - 1, "project/y")
    await hand.look(5.1)
    assert world.account().held_back == (f"{KEY} project/x",)
    refused = await ask(world, "another", tenant="project/x")
    assert refused.startswith(
        "503 quota project-alpha cannot decide: 16 that were admitted for project/x in this cluster did not appear"
    )
    assert await ask(world, "another", tenant="project/y") == ""
    assert await ask(world, "of-nobody") == ""
    assert await ask(world, "there", generation=2, tenant="project/x") == "", "what is there may change"
    await hand.look(61)
    assert world.account().held_back == ()
    assert await ask(world, "another", tenant="project/x") == ""


@pytest.mark.parametrize("case", ["the source does not answer", "the watch lags", "fewer"])
async def test_where_it_may_well_be_there_nothing_is_held_back(hand: Hand, case: str) -> None:
    await never_come(hand, MOST_UNSEEN - (case == "fewer"))
    hand.source.unreachable = case == "the source does not answer"
    if case == "the watch lags":
        hand.source.generations["never-3-uid"] = 1
    await hand.look(5.1)
    assert hand.world.account().held_back == ()


async def test_what_has_gone_while_it_was_looked_for_holds_nothing_back(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads may take long (schedule 21008913)."""
    await never_come(hand, MOST_UNSEEN)
    change = hand.handle.writer.change

    async def gone_meanwhile(decide: Callable[[Account], tuple[Account, None]]) -> None:
        await change(lambda account: (accounts.release(account, account.epoch, dict(account.reservations)), None))
        await change(decide)

    monkeypatch.setattr(hand.handle.writer, "change", gone_meanwhile)
    await hand.look(5.1)
    assert not hand.world.account().reservations and hand.world.account().held_back == ()


async def test_a_creation_of_a_name_that_exists_is_not_missing(hand: Hand) -> None:
    """An API server answers it with 409, after its admission. Whoever repeats it must not keep all others waiting."""
    world = hand.world
    await never_come(hand, MOST_UNSEEN + 1)
    hand.source.generations = {f"never-{number}-uid": Taken.TAKEN for number in range(MOST_UNSEEN)}
    await hand.look(5.1)
    assert world.account().held_back == ()
    assert await ask(world, "another") == ""
    reads = hand.source.reads
    await hand.look(5.1)
    assert hand.source.reads == reads, "of the others there are few"
    assert len(world.account().reservations) == MOST_UNSEEN + 2, "the name may become free meanwhile"
    await hand.look(61)
    assert world.account().reservations.keys() == {(KEY, "another-uid")}
    assert world.account().held_back == ()


async def test_those_whose_names_are_taken_do_not_hide_what_is_missing(hand: Hand) -> None:
    await never_come(hand, MOST_UNSEEN + 3)
    hand.source.generations = {f"never-{number}-uid": Taken.TAKEN for number in range(3)}
    await hand.look(5.1)
    assert hand.world.account().held_back == ()
    await hand.look(5.1)
    assert hand.world.account().held_back == (KEY,)


async def test_a_source_that_does_not_answer_any_more_is_held_back_no_longer(hand: Hand) -> None:
    await never_come(hand, MOST_UNSEEN)
    await hand.look(5.1)
    assert hand.world.account().held_back == (KEY,)
    hand.source.unreachable = True
    await hand.look(5.1)
    assert hand.world.account().held_back == ()


async def test_the_next_leader_holds_back_what_was_held_back(hand: Hand) -> None:
    await never_come(hand, MOST_UNSEEN)
    await hand.look(5.1)
    hand.leader = Leading(hand.world, term=2, window=65.0)
    await hand.leader.accounts._tend(hand.quota, hand.handle)
    await hand.look()
    assert hand.world.account().held_back == (KEY,), "though it has seen none of them for long"


async def test_so_many_sources_are_asked_in_a_look_and_all_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation_collector, "MAX_ASKED", 1)
    async with by_hand(monkeypatch, limits="cpu=64,clusters=64") as hand:
        await never_come(hand, MOST_UNSEEN)
        for number in range(MOST_UNSEEN):
            kept = Reservation(source=CLUSTERS_KEY, object=f"{PROJECT}/{number}", amount=ONE)
            await hand.world.handle().writer.claim(f"{number}", kept)
        await hand.look()
        await hand.look(5.1)
        assert len(hand.world.account().held_back) == 1
        await hand.look(5.1)
        assert set(hand.world.account().held_back) == {KEY, CLUSTERS_KEY}


async def test_a_user_cluster_that_a_fresh_read_still_finds_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(monkeypatch, used="cpu=8") as leader:
        world = leader.world
        world.present[KEY] = world.cluster_cache.user_clusters.store.get(KEY)
        # While it is read, the master shows a new global use: the quota is the same one all the while.
        leader.cluster.before_answer = lambda: world.tell(usage=f"cpu={asyncio.get_running_loop().time()}"[:20])
        world.cluster_cache.user_clusters.store._remove(KEY)
        await asyncio.sleep(4 * WINDOW)
        assert use(world) == 8
        del world.present[KEY]
        await eventually(lambda: use(world) == 0)


@asynccontextmanager
async def organization(monkeypatch: pytest.MonkeyPatch, term: int = 1, **quota: str) -> AsyncIterator[Leading]:
    """As `leading`, for the organization's quota. The user cluster is there."""
    async with leading(monkeypatch, term, kind="organization", **quota) as leader:
        leader.world.present[KEY] = leader.world.cluster_cache.user_clusters.store.get(KEY)
        yield leader


async def test_while_a_projects_copy_is_missing_its_organization_goes_on_to_count_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with organization(monkeypatch) as leader:
        leader.there("a", "b", cpu="16")
        leader.changed()
        await eventually(lambda: use(leader.world) == 32)
        leader.source.unreachable = True
        await reserve(leader.world, "reserved")
        leader.world.forget_project()
        await asyncio.sleep(4 * WINDOW)
        assert use(leader.world) == 40
        leader.there("slipped")
        leader.changed()
        await eventually(lambda: use(leader.world) == 48)
        leader.source.totals.apply(Change(machine("a", "16"), None))
        leader.changed()
        await eventually(lambda: use(leader.world) == 32)


async def test_a_new_leader_without_a_projects_copy_counts_what_the_organizations_account_has(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(countings, "CHECK_INTERVAL", 0.02)
    await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=40", kind="organization")
    world.forget_project()
    world.present[KEY] = world.cluster_cache.user_clusters.store.get(KEY)
    leader = Leading(world, term=2)
    monkeypatch.setattr(countings, "RETRY_DELAY", 0.01)
    async with running(leader.accounts.run(), leader.counting.run()):
        leader.changed()
        await eventually(lambda: leader.accounts._progress)
        await asyncio.sleep(4 * WINDOW)
        assert use(world) == 40, "its first list began before the claim"
        leader.there("a", cpu="32")
        leader.source.lists = 2
        await eventually(lambda: use(world) == 32)


async def test_a_new_leader_without_a_projects_copy_asks_about_the_namespaces_that_the_organizations_account_has(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is created there gets 503 until the copy is back, and is counted."""
    world.quota_cache.projects.store._remove(PROJECT)  # before this replica started
    world.share("FromCluster")
    handle = await world.quota(limits="pods=9", granted="pods=9", kind="organization")
    quota = world.quota_cache.quota(handle.key.name)
    assert quota is not None and world.cluster_cache.selector(quota, KEY) is None
    key = SourceKey.of_namespaces(quota.key.uid, KEY)
    await handle.writer.change(
        lambda account: (msgspec.structs.replace(account, used={key.text: nanos("pods=4")}), None)
    )
    told: list[str] = []
    world.quota_cache.on_members(told.append)
    leader = Leading(world, term=2)
    async with running(leader.accounts.run()):
        await eventually(lambda: world.cluster_cache.selector(quota, KEY) == EVERY)
    assert told == [quota.name] and key in world.registry.source_keys(quota)
    world.join("another")
    assert world.cluster_cache.selector(quota, KEY) is None, "its copy tells whose it is"


@pytest.mark.parametrize("other", ["", "another"])
async def test_a_source_leaves_an_organization_that_its_project_is_read_not_to_be_of(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    async with organization(monkeypatch, used="cpu=8") as leader:
        leader.world.join(other)
        await eventually(lambda: use(leader.world) == 0)


async def test_a_source_whose_cluster_is_gone_leaves_an_organization_also_without_the_projects_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with organization(monkeypatch, used="cpu=8") as leader:
        leader.world.forget_project()
        leader.world.cluster_cache.user_clusters.store._remove(KEY)
        await asyncio.sleep(4 * WINDOW)
        assert use(leader.world) == 8, "our watch cache may be wrong"
        del leader.world.present[KEY]
        await eventually(lambda: use(leader.world) == 0)


async def test_clusters_of_a_project_without_a_copy_are_forgotten_when_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with organization(monkeypatch) as leader:
        world, totals = leader.world, cast(ClusterTotals, leader.clusters.totals)
        there = Owned(metadata=ObjectMeta(name="a", namespace=PROJECT, uid="first"))
        totals.put(there)
        leader.counting.changed(leader.clusters, freed=False)
        await eventually(lambda: world.account().used.get(CLUSTERS_KEY) == ONE)
        world.forget_project()
        await asyncio.sleep(4 * WINDOW)
        assert world.account().used[CLUSTERS_KEY] == ONE
        totals.remove("first")
        leader.counting.changed(leader.clusters, freed=True)
        await eventually(lambda: CLUSTERS_KEY not in world.account().used)


async def test_what_a_project_has_is_counted_when_its_copy_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with organization(monkeypatch) as leader:
        leader.world.join("")
        await eventually(lambda: KEY not in leader.world.account().used)
        leader.there("a")
        leader.changed()
        await eventually(lambda: not leader.counting._due)
        assert use(leader.world) == 0
        leader.world.join(ORGANIZATION)
        await eventually(lambda: use(leader.world) == 8)


async def test_an_organizations_lost_account_does_not_open_beside_use_of_a_project_without_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with organization(monkeypatch) as leader:
        world = leader.world
        world.forget_project()
        leader.there("a", cpu="40")
        lost = Account(incarnation="fresh", nonce="n", epoch=1)
        await world.handle().writer.change(
            lambda account: (msgspec.structs.replace(lost, sequence=account.sequence), None)
        )
        world.tell(account="fresh", nonce="n", granted={"cpu": "64"})
        leader.source.lists_at_once = True
        await asyncio.sleep(6 * WINDOW)
        assert world.account().fenced
        world.join(ORGANIZATION)
        await eventually(lambda: not world.account().fenced)
        assert use(world) == 40


async def test_a_user_cluster_without_use_keeps_no_lost_account_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with organization(monkeypatch) as leader:
        world = leader.world
        world.forget_project()
        lost = Account(incarnation="fresh", nonce="n", epoch=1)
        await world.handle().writer.change(
            lambda account: (msgspec.structs.replace(lost, sequence=account.sequence), None)
        )
        world.tell(account="fresh", nonce="n", granted={"cpu": "64"})
        leader.source.lists_at_once = True
        await eventually(lambda: not world.account().fenced)


async def test_while_a_cloud_does_not_tell_what_was_counted_before_stays_beside_what_was_reserved_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with leading(monkeypatch, used="cpu=40") as leader:
        await reserve(leader.world, "new")

        def size(found: Machine) -> Footprint:
            if found.metadata.name == "old" and asking:
                raise ProviderUnavailable("aws", "is being asked")
            return footprint(found)

        asking = True
        leader.source.totals = MachineTotals(None, size)
        leader.there("old", cpu="40")
        leader.there("new")
        leader.changed()
        sequence = leader.world.account().sequence
        await eventually(lambda: not leader.counting._due)
        await asyncio.sleep(4 * WINDOW)
        assert use(leader.world) == 48
        asking = False
        old = machine("old", "40")
        leader.source.totals.apply(Change(old, old))
        leader.changed()
        await eventually(lambda: not leader.world.account().reservations)
        assert leader.world.account().sequence > sequence
        assert use(leader.world) == 48


async def test_a_machine_that_cannot_be_sized_any_more_keeps_what_it_had_after_a_change_of_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with leading(monkeypatch, term=2, listed=False, used="cpu=40") as leader:
        old = machine("old", None)
        leader.source.totals.apply(Change(None, old))
        leader.changed()
        await eventually(lambda: leader.accounts._progress)
        leader.source.lists = 2
        await reserve(leader.world, "new")
        leader.there("new")
        leader.changed()
        await eventually(lambda: not leader.world.account().reservations)
        assert use(leader.world) == 48
        leader.source.totals = MachineTotals()  # another connection, which knows nothing of the one before
        leader.source.totals.apply(Change(None, old))
        leader.there("new")
        leader.changed()
        await eventually(lambda: not leader.counting._due)
        await asyncio.sleep(4 * WINDOW)
        assert use(leader.world) == 48
        leader.source.totals.apply(Change(old, None))
        leader.changed()
        await eventually(lambda: use(leader.world) == 8)


async def test_what_another_leader_counted_meanwhile_of_a_machine_that_cannot_be_sized_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease began anew below its epoch: what this one remembers is from before that leader sized the Machine."""
    async with leading(monkeypatch, term=2, listed=False, used="cpu=40") as leader:
        leader.source.totals.apply(Change(None, machine("old", None)))
        await eventually(lambda: leader.accounts._progress)
        leader.source.lists = 2
        leader.there("sized")
        leader.changed()
        await eventually(lambda: use(leader.world) == 40)
        await eventually(lambda: not leader.counting._due)

        def counted_by_another(account: Account) -> tuple[Account, None]:
            after = accounts.claim_epoch(account, 7)
            return msgspec.structs.replace(after, used={KEY: nanos("cpu=56")}), None

        await leader.world.handle().writer.change(counted_by_another)
        await eventually(lambda: leader.accounts._progress["project-alpha-uid"].claimed == 8)
        leader.there("new")
        leader.source.lists = 3
        leader.changed()
        await eventually(lambda: not leader.counting._due)
        assert use(leader.world) == 56


async def test_what_is_reserved_for_a_machine_that_cannot_be_sized_stays_reserved(leader: Leading) -> None:
    """Another replica could size it."""
    await reserve(leader.world, "new")
    found = machine("new", None)
    leader.source.totals.apply(Change(None, found))
    leader.source.generations["new-uid"] = 1
    leader.changed()
    await eventually(lambda: leader.source.reads > 2)
    assert use(leader.world) == 8
    leader.source.totals.apply(Change(found, None))
    leader.changed()
    await eventually(lambda: use(leader.world) == 0)


async def lend(world: SeedWorld, used: str) -> None:
    """The quota is full. The Machine `new` uses surge until the Machine `old` is deleted."""
    lent = Reservation(source=KEY, object="ns/new", amount=nanos("surge.cpu=8"), replaces="old-uid")

    def full(account: Account) -> tuple[Account, None]:
        after = msgspec.structs.replace(account, granted=nanos(f"{used},surge.cpu=8"), used={KEY: nanos(used)})
        return msgspec.structs.replace(after, reservations={(KEY, "new-uid"): lent}, reserved=lent.amount), None

    await world.handle().writer.change(full)


async def test_a_loan_ends_when_there_is_room_though_its_source_has_nothing_new_to_tell(leader: Leading) -> None:
    world, writer = leader.world, leader.world.handle().writer
    world.tell(granted={"cpu": "8", "surge.cpu": "8"})
    await lend(world, "cpu=8")
    leader.there("old", "new")
    leader.changed()
    await asyncio.sleep(4 * WINDOW)
    assert world.account().reservations, "no room yet"
    await writer.change(lambda account: (msgspec.structs.replace(account, granted=nanos("cpu=16,surge.cpu=8")), None))
    await eventually(lambda: not world.account().reservations)
    assert world.account().used[KEY]["cpu"] == nanos("cpu=16")["cpu"]


async def test_what_a_rollout_lacks_once_its_older_machine_has_gone_is_asked_of_the_master(leader: Leading) -> None:
    world = leader.world
    world.tell(granted={"cpu": "4", "surge.cpu": "8"}, usage="cpu=62")
    await lend(world, "cpu=4")
    leader.there("old", cpu="4")
    leader.there("new", cpu="8")
    leader.changed()
    await asyncio.sleep(4 * WINDOW)
    assert not world.account().ask.number, "its older machine is there"
    leader.source.totals.apply(Change(machine("old", "4"), None))
    leader.changed()
    await asyncio.sleep(4 * WINDOW)
    assert not world.account().ask.number, "there is no room, as the master said last"
    world.tell(usage="cpu=12")
    await world.asked()
    assert world.account().ask.first == nanos("cpu=4")
    world.tell(granted={"cpu": "8", "surge.cpu": "8"}, answered=1)
    await eventually(lambda: not world.account().reservations)
    assert world.account().used[KEY]["cpu"] == nanos("cpu=8")["cpu"]


async def test_what_stands_on_surge_and_cannot_be_sized_goes_on_to_stand_there(world: SeedWorld) -> None:
    handle = await world.quota(limits="cpu=24", granted="cpu=24,surge.cpu=8", used="cpu=8", surge={"cpu": "8"})
    quota = world.quota_cache.quota("project-alpha")
    assert quota is not None
    leader = Leading(world)
    await leader.accounts._tend(quota, handle)
    leader.source.lists += 1
    leader.there("old")
    kept = Reservation(source=KEY, object="ns/new", amount=nanos("surge.cpu=8"), replaces="old-uid")
    await handle.writer.claim("new-uid", kept)
    leader.source.totals.apply(Change(None, machine("new", None)))
    source = cast(Source, leader.source)
    counted = leader.accounts.counted(world.account(), source, quota)
    assert counted.reservations == {(KEY, "new-uid"): kept}
    leader.source.totals.apply(Change(machine("old", "8"), None))
    counted = leader.accounts.counted(counted, source, quota)
    assert counted.reserved == nanos("cpu=8")


async def test_what_stands_on_surge_and_loses_its_size_is_counted_nowhere_else(world: SeedWorld) -> None:
    """An infrastructure object goes before its Machine."""
    handle = await world.quota(limits="cpu=8", granted="cpu=8,surge.cpu=8", used="cpu=8", surge={"cpu": "8"})
    quota = world.quota_cache.quota("project-alpha")
    assert quota is not None
    leader = Leading(world)
    await leader.accounts._tend(quota, handle)
    leader.source.lists += 1
    leader.there("old")
    kept = Reservation(source=KEY, object="ns/new", amount=nanos("surge.cpu=8"), replaces="old-uid")
    await handle.writer.claim("new-uid", kept)
    leader.there("new")
    leader.source.totals.apply(Change(machine("new", "8"), machine("new", None)))
    counted = leader.accounts.counted(world.account(), cast(Source, leader.source), quota)
    assert counted.reservations == {(KEY, "new-uid"): kept}
    assert counted.used[KEY]["cpu"] == 8 * UNIT


async def test_an_update_to_what_cannot_be_sized_keeps_its_reservation(world: SeedWorld) -> None:
    handle = await world.quota(limits="cpu=24", granted="cpu=24", used="cpu=8")
    quota = world.quota_cache.quota("project-alpha")
    assert quota is not None
    leader = Leading(world)
    await leader.accounts._tend(quota, handle)
    leader.source.lists += 1
    before = machine("a", "8")
    leader.source.totals.apply(Change(None, before))
    kept = Reservation(source=KEY, object="ns/a", amount=nanos("cpu=8"), generation=before.metadata.generation + 1)
    await handle.writer.claim("a-uid", kept)
    larger = machine("a", None)
    metadata = msgspec.structs.replace(larger.metadata, generation=kept.generation)
    leader.source.totals.apply(Change(before, msgspec.structs.replace(larger, metadata=metadata)))
    counted = leader.accounts.counted(world.account(), cast(Source, leader.source), quota)
    assert counted.reservations == {(KEY, "a-uid"): kept}


async def test_an_account_that_was_closed_is_not_counted_before_it_opens(hand: Hand) -> None:
    """With use, it would seem to have forgotten nothing, and open without the in-flight window (schedule 22041591)."""
    await reserve(hand.world, "a")
    hand.leader.there("a")
    held = hand.world.account().granted
    grant = Grant(incarnation=hand.world.account().master, account=hand.world.account().incarnation, granted=held)
    await hand.handle.writer.change(lambda account: (fencing.close(account, account.epoch, grant, "nonce"), None))
    await hand.count()
    assert fencing.is_closed(hand.world.account())
    assert KEY in hand.leader.counting._due


async def test_an_account_that_closes_while_its_evidence_is_read_is_not_counted(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above: the object is there without the update that was reserved, so its source is to be counted."""
    hand.leader.there("a")
    await reserve(hand.world, "a", "2", generation=2)
    await hand.look()
    opened = hand.world.account()
    grant = Grant(incarnation=opened.master, account=opened.incarnation, granted=opened.granted)

    async def closing(_name: str, uid: str) -> Generation:
        await hand.handle.writer.change(lambda account: (fencing.close(account, account.epoch, grant, "nonce"), None))
        return hand.source.generations[uid]

    monkeypatch.setattr(hand.source, "generation", closing)
    await hand.look(after=66)
    assert fencing.is_closed(hand.world.account())


async def test_an_account_that_never_opened_is_not_counted(leader: Leading) -> None:
    """Else the master covers what it uses, and what it holds looks like a ledger that was lost."""
    fresh = Account(incarnation="fresh", nonce="n", epoch=1)
    await leader.world.handle().writer.change(
        lambda account: (msgspec.structs.replace(fresh, sequence=account.sequence), None)
    )
    leader.there("a")
    leader.changed()
    await asyncio.sleep(0.05)
    assert leader.world.account().used == {}


async def test_a_ledger_that_went_backwards_waits_for_the_window_and_a_fresh_list(leader: Leading) -> None:
    world = leader.world
    leader.there("a")
    world.tell(granted={"cpu": "64"}, returned={"cpu": "10"})
    await eventually(lambda: world.account().fenced)
    reopened = world.account()
    assert reopened.incarnation != "life"
    world.tell(account=reopened.incarnation, nonce=reopened.nonce, granted={"cpu": "64"}, returned={"cpu": "10"})
    await asyncio.sleep(4 * WINDOW)
    assert world.account().fenced, "what was admitted and lost may be counted only by a new list"
    leader.source.lists = 3
    await eventually(lambda: not world.account().fenced)
    assert accounts.held(world.account()) == nanos("cpu=54")
    assert use(world) == 8


async def test_what_is_recalled_and_idle_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(monkeypatch, used="cpu=8") as leader:
        leader.source.counted = False
        leader.world.tell(granted={"cpu": "70"}, recall={"cpu": "65"})
        await eventually(lambda: leader.world.account().returned == nanos("cpu=62"))
        assert leader.world.account().granted == nanos("cpu=70")


async def test_a_cluster_keeps_its_place_for_an_object_of_it_until_that_came_or_never_will(leader: Leading) -> None:
    world, source = leader.world, leader.clusters
    source.unreachable = True
    totals = cast(ClusterTotals, source.totals)
    first = Owned(metadata=ObjectMeta(name="a", namespace=PROJECT, uid="first"))
    totals.put(first)
    leader.counting.changed(source, freed=False)
    await eventually(lambda: world.account().used.get(CLUSTERS_KEY) == ONE)
    second = Reservation(source=CLUSTERS_KEY, object=f"{PROJECT}/a", amount=NOTHING)
    await world.handle().writer.claim("second", second, asyncio.get_running_loop().time() + 30)
    totals.remove("first")
    leader.counting.changed(source, freed=True)
    await asyncio.sleep(4 * WINDOW)
    assert world.account().used[CLUSTERS_KEY] == ONE
    source.unreachable = False
    await eventually(lambda: not world.account().reservations)
    await eventually(lambda: world.account().used[CLUSTERS_KEY] == {})


def of_devices(name: str, *devices: str) -> Footprint:
    return Footprint("fake", {"cpu": UNIT, "machines": UNIT, **dict.fromkeys(devices, UNIT)})


def with_devices(leading: Leading, **devices: list[str]) -> None:
    """Machines by name, each with one of every device."""
    leading.source.totals = MachineTotals(
        None, lambda found: of_devices(found.metadata.name, *devices[found.metadata.name])
    )
    leading.there(*devices)


async def test_what_no_quota_limits_is_counted_by_a_few_names_and_all_when_it_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, and by itself: nothing changes in the user cluster."""
    many = [f"example.com/device-{number:02}" for number in range(MAX_DEVICES)]
    async with leading(monkeypatch) as leader:
        with_devices(leader, a=many, b=[many[-1], "nvidia.com/gpu"])
        leader.changed()
        await eventually(lambda: leader.world.account().used.get(KEY))
        used = leader.world.account().used[KEY]
        assert {"cpu", "machines", many[0]} <= used.keys()
        assert len(used) == 2 + FURTHER
        await eventually(lambda: not leader.counting._due)
        leader.world.limit("project-alpha", {"cpu": "64", many[-1]: "8"})
        await eventually(lambda: leader.world.account().used[KEY].get(many[-1]) == 2 * UNIT)


async def test_what_was_limited_once_is_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held still: if it were forgotten, it could be used twice when it is limited again."""
    many = [f"example.com/device-{number:02}" for number in range(MAX_DEVICES)]
    async with leading(monkeypatch) as leader:
        handle = leader.world.handle()
        await handle.writer.change(
            lambda account: (
                msgspec.structs.replace(account, granted={**account.granted, many[-1]: 2 * UNIT}),
                None,
            )
        )
        with_devices(leader, a=many)
        leader.changed()
        await eventually(lambda: leader.world.account().used.get(KEY))
        assert leader.world.account().used[KEY][many[-1]] == UNIT


async def test_a_report_takes_few_names_however_many_its_sources_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """72 in each of two sources made the master's copy refuse it."""
    limits = {f"example.com/limited-{number:02}": "1" for number in range(60)}
    async with leading(monkeypatch) as leader:
        for source in ("c8", "c9"):  # nobody follows them: what they use is what the account says
            leader.world.present[f"{PROJECT}/{source}"] = leader.world.cluster_cache.user_clusters.store.get(KEY)
        await leader.world.handle().writer.change(
            lambda account: (
                msgspec.structs.replace(
                    account,
                    used={
                        f"{PROJECT}/{source}": {f"example.com/{source}-{number}": UNIT for number in range(72)}
                        | dict.fromkeys(limits, UNIT)
                        for source in ("c8", "c9")
                    },
                ),
                None,
            )
        )
        leader.world.limit("project-alpha", limits)
        await eventually(lambda: leader.cluster.published and leader.cluster.published[-1]["account"].used)
        await eventually(lambda: set(limits) <= leader.cluster.published[-1]["account"].used.keys())
        said = leader.cluster.published[-1]["account"].used
        assert len(said) <= len(limits) + FURTHER


async def test_a_machine_on_surge_that_takes_what_nobody_limits_leaves_no_less_than_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left out of the count while it stands on surge are names that are counted."""
    many = [f"example.com/device-{number:02}" for number in range(MAX_DEVICES)]
    async with leading(monkeypatch) as leader:
        with_devices(leader, old=[], new=many)
        loan = Reservation(source=KEY, object="ns/new", amount={"surge.cpu": UNIT}, replaces="old-uid")
        leader.world.tell(granted={"cpu": "1", "surge.cpu": "1"})
        await leader.world.handle().writer.change(
            lambda account: (
                msgspec.structs.replace(
                    account,
                    granted={"cpu": UNIT, "surge.cpu": UNIT},
                    reserved={"surge.cpu": UNIT},
                    reservations={(KEY, "new-uid"): loan},
                ),
                None,
            )
        )
        leader.changed()
        await eventually(lambda: KEY in leader.world.account().used)
        assert leader.world.account().used[KEY] == {"cpu": UNIT, "machines": UNIT}


async def test_a_list_that_comes_while_the_others_are_counted_is_counted_soon(
    leader: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have no objects, and then nothing else tells of it."""
    complete = iter([False])
    monkeypatch.setattr(leader.accounts, "may_count", lambda *_: next(complete, True))
    monkeypatch.setattr(leader.accounts, "may_count_partly", lambda *_: True)
    leader.counting._due.clear()
    await leader.counting._count(KEY)
    assert KEY in leader.counting._due
