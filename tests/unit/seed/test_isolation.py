"""An error that nobody expected, of one source, quota or cluster: the others go on, and it is not taken for well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.controller.store import Change
from common.quota.account import Account, Reservation
from common.runtime import unexpected
from seed.accounts import usage_writer as countings
from seed.accounts.publish import UNCOUNTED
from seed.cache.watches import Watches
from seed.controllers import leader as leaders
from seed.controllers.cloud_quotas import CloudQuotas
from seed.controllers.leader import Leader
from seed.controllers.unadmitted_events import UnadmittedEvents
from seed.controllers.unknown_projects import UnknownProjects
from seed.instance_types.prefetch import Prefetch
from seed.kinds.machines import size_backfill
from seed.kinds.machines import source as sources
from seed.kinds.machines.cluster_api_source import ClusterSource
from seed.kinds.machines.kubeconfig_secret import INTERNAL
from seed.kinds.machines.totals import MachineTotals
from seed.kinds.namespaces.cache import NamespaceCache
from seed.machines.machine_controller import MACHINES, Machine
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.registration import keeper as keepers
from seed.registration.keeper import INTERNAL as NOT_KNOWN
from seed.registration.keeper import ConfigurationKeeper
from seed.registration.probe import Canary, Sample
from seed.usage.source import NOT_LISTED
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.namespaces_world import ANN
from tests.unit.odd_errors import odd_errors
from tests.unit.seed.accounts.test_usage_writer import KEY, FakeSource, leading, reserve, use
from tests.unit.seed.kinds.machines import test_cluster_api_source as on_cluster_api
from tests.unit.seed.kinds.machines.test_source import following
from tests.unit.seed.kinds.machines.test_totals import machine
from tests.unit.seed.kinds.namespaces.test_source import followed
from tests.unit.seed_world import PROJECT, nanos

OTHER = SourceKey(f"{PROJECT}/c2")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unexpected, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(countings, "FAILED_DELAY", 0.02)
    monkeypatch.setattr(sources, "LONGEST_PAUSE", 0.02)


class SecondSource(FakeSource):
    key = OTHER


def user_cluster(name: str) -> UserCluster:
    metadata = {"name": name, "namespace": PROJECT, "uid": f"{name}-uid", "generation": 1}
    return msgspec.convert({"metadata": metadata, "spec": {"project": PROJECT}}, UserCluster)


# Counting ------------------------------------------------------------------------------------------------------


@odd_errors
async def test_a_source_that_cannot_be_counted_is_shown_as_old_and_another_is_counted(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(monkeypatch) as leader:
        second = SecondSource()
        second.listed_from = leader.source.listed_from
        leader.sources[OTHER] = second
        leader.world.cluster_cache.user_clusters.store._set(OTHER, user_cluster("c2"))
        counted = leader.accounts.counted

        def fails(account: Account, source: Any, quota: Any) -> Account:
            if source.key == KEY:
                raise error
            return counted(account, source, quota)

        monkeypatch.setattr(leader.accounts, "counted", fails)
        leader.there("a")
        second.totals.apply(Change(None, machine("b", "8")))
        leader.changed()
        leader.counting.changed(cast(Any, second), freed=True)
        await eventually(lambda: leader.world.account().used.get(OTHER, {}).get("cpu") == nanos("cpu=8")["cpu"])
        assert KEY not in leader.world.account().used, "what was counted last stays"

        def stale() -> list[tuple[str, str]]:
            return [(found.source, found.not_listed) for found in leader.cluster.published[-1]["account"].stale]

        await eventually(lambda: stale() == [(KEY, UNCOUNTED)])
        monkeypatch.setattr(leader.accounts, "counted", counted)
        await eventually(lambda: use(leader.world) == 16)
        await eventually(lambda: stale() == [])


@odd_errors
async def test_a_source_whose_read_fails_keeps_no_reservation_of_another(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(monkeypatch) as leader:
        second = SecondSource()
        leader.sources[OTHER] = second
        leader.world.cluster_cache.user_clusters.store._set(OTHER, user_cluster("c2"))

        async def fails(_name: str, _uid: str) -> int | None:
            raise error

        monkeypatch.setattr(leader.source, "generation", fails)
        await reserve(leader.world, "stays")
        kept = Reservation(source=OTHER, object="ns/goes", amount=nanos("cpu=8"))
        await leader.world.handle().writer.claim("goes-uid", kept)
        await eventually(lambda: list(leader.world.account().reservations) == [(KEY, "stays-uid")])


@odd_errors
async def test_one_quota_whose_evidence_fails_keeps_no_reservation_of_another_quota(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(monkeypatch) as leader:
        await leader.world.quota("acme", kind="organization", limits="cpu=64", granted="cpu=64")
        forget = leader.counting._removal.forget

        async def fails(handle: Any, quota: Any, account: Any) -> None:
            if quota.name == "acme":
                raise error
            await forget(handle, quota, account)

        monkeypatch.setattr(leader.counting._removal, "forget", fails)
        await reserve(leader.world, "a")
        await eventually(lambda: not leader.world.account().reservations)


# Sources -------------------------------------------------------------------------------------------------------


@odd_errors
async def test_a_machine_that_cannot_be_taken_in_stops_no_other_and_its_source_is_not_current(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, poison = MachineTotals.apply, {"poison"}

    def fails(totals: MachineTotals, change: Any) -> bool:
        if (change.new or change.old).metadata.name in poison:
            raise error
        return apply(totals, change)

    monkeypatch.setattr(MachineTotals, "apply", fails)
    async with following(monkeypatch) as there:
        await eventually(lambda: there.source.current)
        for name in ("a", "poison", "b"):
            await there.machine(name)
        await eventually(lambda: there.source.totals.used.get("cpu") == nanos("cpu=16")["cpu"])
        await eventually(lambda: there.source.problem is not None)
        assert there.source.problem is not None
        assert there.source.problem.reason == "ObjectsUnreadable"
        assert there.source.problem.message.startswith("1 machines cannot be taken in, such as alpha/poison: ")
        assert there.source.lost_at is not None
        poison.clear()
        there.source.relist()
        await eventually(lambda: there.source.totals.used.get("cpu") == nanos("cpu=24")["cpu"])
        await eventually(lambda: there.source.problem is None)


@odd_errors
async def test_a_source_that_fails_says_so_and_is_followed_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [error]
    problems: list[Any] = []
    judge = sources.Source._judge

    def fails(source: sources.Source, reflector: Any) -> None:
        if failures:
            raise failures.pop()
        problems.append(source.problem)
        judge(source, reflector)

    monkeypatch.setattr(sources.Source, "_judge", fails)
    async with following(monkeypatch) as there:
        await eventually(lambda: bool(problems))
        assert problems[0] == INTERNAL, "until it is followed again"
        await eventually(lambda: there.source.current and there.source.problem is None)


@odd_errors
async def test_what_a_size_is_asked_of_fails_for_one_and_the_others_are_sized(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def ask(of: Machine, _deadline: float) -> None:
        asked.append(of.metadata.name)
        if of.metadata.name == "poison":
            raise error

    waiting = {name: machine(name, cpu) for name, cpu in (("poison", "2"), ("good", "4"))}
    explained: dict[str, Any] = {}
    totals = SimpleNamespace(
        waiting={each.metadata.uid: each for each in waiting.values()},
        explain=explained.__setitem__,
        apply=lambda change: bool(totals.waiting.pop(change.new.metadata.uid)),
    )
    backfill = size_backfill.SizeBackfill(cast(MachineTotals, totals), ask, lambda _freed: None)
    async with running(backfill.run()) as (task,):
        backfill.look()
        await eventually(lambda: list(totals.waiting) == ["poison-uid"] and "poison-uid" in explained)
        assert sorted(asked) == ["good", "poison"]
        assert "unexpected error" in str(explained["poison-uid"])
        assert not task.done()


@odd_errors
async def test_an_object_that_cannot_be_counted_stops_no_other_nor_another_quota(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with followed(monkeypatch) as found:
        found.world.quota("all", {"pods": "5"}, selector={"matchLabels": ANN})
        found.world.quota("also", {"pods": "5"}, selector={"matchLabels": ANN})
        await eventually(lambda: found.used("all") == found.used("also") == {"pods": 1})
        totals = found.source("all").totals
        put = totals.put

        def fails(evaluator: Any, subject: Any, now: float) -> Any:
            if subject.metadata.name == "poison":
                raise error
            return put(evaluator, subject, now)

        monkeypatch.setattr(totals, "put", fails)
        await found.pod("poison")
        await found.pod("b")
        await eventually(lambda: (found.used("all"), found.used("also")) == ({"pods": 2}, {"pods": 3}))
        await eventually(lambda: found.problem("all") is not None)
        problem = found.problem("all")
        assert problem is not None and problem.reason == NOT_LISTED
        assert problem.message == "1 objects cannot be counted, such as pods web/poison"
        assert found.problem("also") is None
        await found.api.remove("pods", "web", "poison")
        await eventually(lambda: found.problem("all") is None)


@odd_errors
async def test_a_source_that_cannot_be_adjusted_stops_no_other(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with followed(monkeypatch) as found:
        made = found.sources._made

        def fails(key: str, quota: Any) -> Any:
            if quota.name == "bad":
                raise error
            return made(key, quota)

        monkeypatch.setattr(found.sources, "_made", fails)
        found.world.quota("bad", {"pods": "5"}, selector={"matchLabels": ANN})
        found.world.quota("good", {"pods": "5"}, selector={"matchLabels": ANN})
        await eventually(lambda: found.used("good") == {"pods": 1})


@odd_errors
async def test_a_quota_of_which_it_is_not_known_what_it_counts_keeps_its_source_and_stops_no_other(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with followed(monkeypatch) as found:
        found.world.quota("bad", {"pods": "5"}, selector={"matchLabels": ANN})
        await eventually(lambda: found.used("bad") == {"pods": 1})
        source, want = found.source("bad"), found.sources._want

        def fails(source: Any, quota: Quota) -> None:
            if quota.name == "bad":
                raise error
            want(source, quota)

        monkeypatch.setattr(found.sources, "_want", fails)
        found.world.quota("good", {"pods": "5"}, selector={"matchLabels": ANN})
        await eventually(lambda: found.used("good") == {"pods": 1})
        assert found.source("bad") is source


@odd_errors
async def test_a_cluster_whose_namespaces_fail_is_tried_again_and_stops_no_other(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = NamespaceCache.__new__(NamespaceCache)
    calls: list[str] = []

    async def follow(key: str, _watched: Any) -> None:
        calls.append(key)
        if key == "bad":
            raise error
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(cache, "_follow", follow)
    tasks = [cache._following(key, cast(Any, None)) for key in ("bad", "good")]
    await eventually(lambda: calls.count("bad") > 1)
    assert calls.count("good") == 1 and not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@odd_errors
async def test_a_machine_of_cluster_api_that_fails_stops_neither_another_nor_another_source(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_cluster_api.seed(monkeypatch) as made:
        await made.cluster()
        for name in ("poison", "a"):
            await made.infrastructure(name)
            await made.machine(name)
        known, poison = ClusterSource._known, ["poison"]

        def fails(source: ClusterSource, subject: Any) -> Machine:
            if subject.metadata.name in poison:
                raise error
            return known(source, subject)

        monkeypatch.setattr(ClusterSource, "_known", fails)
        async with on_cluster_api.leading(made):
            await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
            problem = made.source.problem
            assert problem is not None and made.source.lost_at is not None and not made.source.current
            assert problem.message == "1 objects cannot be counted, such as alpha/poison"
            assert made.feed.problem is None, "of others it is known what they use"
            poison.clear()
            await made.infrastructure("poison", 4)
            await eventually(lambda: made.uses("cpu=8,memory=8Gi,storage=20Gi,machines=2"))
            assert made.source.problem is None


# The leader and what it runs -----------------------------------------------------------------------------------


@odd_errors
async def test_a_term_that_fails_is_followed_by_another(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program goes on, and so does its webhook."""
    terms: list[int] = []

    class Leadership:
        def __init__(self, _replica: Any, term: int) -> None:
            terms.append(term)

        async def run(self) -> None:
            if len(terms) == 1:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._fails())
            await asyncio.get_running_loop().create_future()

        async def _fails(self) -> None:
            raise error

    class Lease:
        held = True
        lost = asyncio.Event()

        @asynccontextmanager
        async def hold(self) -> AsyncIterator[int]:
            yield len(terms) + 1

    monkeypatch.setattr(leaders, "Leadership", Leadership)
    monkeypatch.setattr(leaders, "PAUSE", 0.01)
    replica = SimpleNamespace(lease=Lease(), caches=SimpleNamespace(watches=Watches()))
    async with running(Leader(cast(Any, replica)).run()) as (task,):
        await eventually(lambda: terms == [1, 2])
        assert not task.done()


@odd_errors
async def test_one_cluster_that_fails_keeps_no_event_cloud_quota_or_size_of_another(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = [user_cluster("bad"), user_cluster("good")]
    told: list[str] = []

    async def tell(cluster: Any) -> bool:
        if (
            "bad" in str(getattr(cluster, "key", ""))
            or getattr(cluster, "metadata", clusters[1].metadata).name == "bad"
        ):
            raise error
        told.append("good")
        return True

    unknown = UnknownProjects(cast(Cluster, None), cast(Any, None), cast(Any, None))
    monkeypatch.setattr(unknown, "_unknown", lambda: clusters)
    monkeypatch.setattr(unknown, "_tell", tell)
    await unknown.look(0.0)
    await unknown.look(1000.0)
    assert told == ["good"]

    found = [SimpleNamespace(uid=name, key=name) for name in ("bad", "good")]
    events = UnadmittedEvents(cast(Cluster, None), cast(Any, {each.key: each for each in found}))
    monkeypatch.setattr(events, "_is_due", lambda _source, _now: True)
    monkeypatch.setattr(events, "_tell", tell)
    await events.look(0.0)
    assert told == ["good", "good"]

    async def ask(cluster: UserCluster) -> None:
        await tell(cluster)

    await CloudQuotas(cast(Cluster, None), lambda: clusters, ask).look()
    assert told == ["good", "good", "good"]

    await Prefetch(cast(Any, None), lambda: clusters, ask).look()
    assert told == ["good", "good", "good", "good"]


@odd_errors
async def test_an_answer_to_a_canary_that_cannot_be_understood_proves_nothing(error: Exception) -> None:
    async def request(*_args: object, **_how: object) -> None:
        raise error

    cluster = cast(Cluster, SimpleNamespace(name="c1", request=request))
    canary = Canary(cluster, lambda: Sample(MACHINES, "kube-system", {}, "w"), on_proof=lambda: None)
    proof, webhook = await canary._ask()
    assert proof is not None and (proof.enforced, proof.reason, webhook) == (None, "NotProven", "")


@odd_errors
async def test_a_configuration_of_which_nothing_is_known_is_not_taken_for_kept(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "RETRY_SECONDS", (0.01, 0.01))
    desired = SimpleNamespace(metadata=SimpleNamespace(name="seedquota-machines"), webhooks=[])
    keeper = ConfigurationKeeper(cast(Cluster, SimpleNamespace(name="c1")), lambda: cast(Any, desired))
    keeper.in_place = True
    steps: list[bool] = []

    async def step() -> None:
        steps.append(keeper.in_place)
        raise error

    monkeypatch.setattr(keeper, "_step", step)
    keeper._reflector.synced.set()
    async with running(keeper._keep()):
        await eventually(lambda: len(steps) > 1)
        assert steps[:2] == [True, False] and keeper.error == NOT_KNOWN
