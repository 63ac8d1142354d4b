"""When LocalResourceQuotas are written into a user cluster, and what happens where that fails."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.api import conditions
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound, TooManyRequests, Unavailable
from common.kube.client.resource import Resource
from common.quota.account import AccountKey
from seed.model.consumer import Consumer
from seed.projections import cluster_copies, copies
from seed.projections.cluster_copies import ClusterCopies
from seed.projections.copies import Copies
from seed.projections.local_copies import LocalCopies
from seed.projections.local_quota import KnownQuota
from seed.projections.pace import Pace
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.seed.projections.test_local_quota import HERE, known, nanos, quota
from tests.unit.seed_world import PROJECT, seed_world


class UserCluster:
    """An API server. `calls` is what was asked of it; `fails` is raised by writes of the plural that it names."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.quotas: dict[str, dict[str, Any]] = {}
        self.selectors: list[str] = []
        self.fails: dict[str, ApiError] = {}
        self.hangs = False

    def count(self, verb: str, what: str) -> int:
        return self.calls.count((verb, what))

    async def apply(self, resource: Resource[Any], body: dict[str, Any], manager: str) -> None:
        await self._asked("apply", resource)
        assert manager == "seedquota-seed"
        if resource.plural == "localresourcequotas":
            assert body["metadata"]["namespace"] == "kube-system"
            self.quotas[body["metadata"]["name"]] = body["status"]

    async def delete_all(self, resource: Resource[Any], namespace: str, *, label_selector: str) -> None:
        await self._asked("delete", resource)
        self.selectors.append(label_selector)

    async def _asked(self, verb: str, resource: Resource[Any]) -> None:
        self.calls.append((verb, resource.plural))
        if self.hangs:
            await asyncio.Event().wait()
        if resource.plural in self.fails:
            raise self.fails[resource.plural]


QUOTAS, DEFINITION = "localresourcequotas", "customresourcedefinitions"


class World:
    def __init__(self) -> None:
        self.cluster = UserCluster()
        self.known: list[KnownQuota] = [known()]
        self.states: list[bool | None] = []
        self.pace = Pace(1e6)
        self.copies = self.of(self.cluster)

    def of(self, cluster: UserCluster, *, enabled: bool = True) -> ClusterCopies:
        return ClusterCopies(
            HERE,
            cast(Cluster, cluster),
            "kube-system",
            lambda: self.known,
            self.pace,
            enabled=enabled,
            on_state=lambda: self.states.append(self.copies.written),
        )

    def uses(self, cpu: int) -> None:
        self.known = [known(quota(usage=f"cpu={cpu},memory=232Gi"))]
        self.copies.wake()


@pytest.fixture
def world() -> World:
    return World()


async def looks(kept: Copies, number: int = 3) -> None:
    """So many looks that find nothing new."""
    for _ in range(number):
        kept.wake()
        await eventually(lambda: not kept._wake.is_set())
        await asyncio.sleep(0.02)


async def test_it_is_written_when_it_changes_and_only_then(world: World) -> None:
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written)
        assert world.cluster.calls == [
            ("apply", DEFINITION),
            ("apply", DEFINITION),
            ("apply", "clusterroles"),
            ("delete", QUOTAS),
            ("apply", QUOTAS),
        ]
        await looks(world.copies)
        assert world.cluster.count("apply", QUOTAS) == 1
        world.uses(61)
        await eventually(lambda: world.cluster.quotas["project-alpha"]["summary"]["usage"].startswith("cpu 61/64"))
        assert world.cluster.count("apply", QUOTAS) == 2
        assert world.cluster.count("apply", DEFINITION) == 2, "one for each kind"
    assert world.states == [True]


async def test_however_often_it_changes_it_is_written_once_in_an_interval(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = asyncio.Event()

    async def until_it_is_over(seconds: float) -> None:
        assert seconds == copies.EVERY
        await over.wait()

    monkeypatch.setattr(copies, "asyncio", SimpleNamespace(sleep=until_it_is_over))
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written)
        for cpu in range(20):
            world.uses(40 + cpu)
            await asyncio.sleep(0)
        assert world.cluster.count("apply", QUOTAS) == 1
        over.set()
        await eventually(lambda: world.cluster.quotas["project-alpha"]["summary"]["usage"].startswith("cpu 59/64"))
        assert world.cluster.count("apply", QUOTAS) == 2


async def test_what_somebody_changed_there_is_restored_in_time_and_its_age_stays_young(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "REFRESH", 0.05)
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written)
        world.cluster.quotas.clear()
        await eventually(lambda: world.cluster.quotas)


async def test_the_time_stands_still_while_an_amount_may_be_old(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(f"2026-11-20T10:00:0{number}Z" for number in range(9))
    monkeypatch.setattr(conditions, "now", lambda _offset: next(times))

    def shown() -> tuple[str, bool]:
        status = world.cluster.quotas["project-alpha"]
        return status.get("currentTime", ""), "stale" in status

    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written)
        assert shown() == ("2026-11-20T10:00:00Z", False)
        world.known = [known(quota(usage_stale=True))]
        world.copies.wake()
        await eventually(lambda: shown()[1])
        assert shown() == ("2026-11-20T10:00:00Z", True)
        world.known = [known()]
        world.copies.wake()
        await eventually(lambda: not shown()[1])
        assert shown() == ("2026-11-20T10:00:01Z", False)


async def test_what_was_never_known_to_be_current_has_no_time(world: World) -> None:
    world.known = [known(master_silent=None)]
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written)
    assert "currentTime" not in world.cluster.quotas["project-alpha"]


async def test_beside_the_quotas_that_there_are_nothing_is_left(world: World) -> None:
    """Also nothing that an earlier leader, or an earlier seed of this cluster, has written."""
    other = quota(key=AccountKey(uid="other-uid", name="org-acme"))
    world.known = [known(), known(other)]
    async with running(world.copies.run()):
        await eventually(lambda: len(world.cluster.quotas) == 2)
        world.known = [known()]
        world.copies.wake()
        await eventually(lambda: world.cluster.count("delete", QUOTAS) == 2)
        world.known = []
        world.copies.wake()
        await eventually(lambda: world.cluster.count("delete", QUOTAS) == 3)
    ours = "app.kubernetes.io/managed-by=seedquota-seed,!seedquota.io/subject-kind"
    assert world.cluster.selectors == [
        f"{ours},seedquota.io/uid notin (other-uid,quota-uid)",
        f"{ours},seedquota.io/uid notin (quota-uid)",
        ours,
    ]


async def test_of_very_many_quotas_some_are_written(world: World) -> None:
    world.known = [known(quota(key=AccountKey(uid=f"u{n}", name=f"q{n:03}"))) for n in range(200)]
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written)
    assert len(world.cluster.quotas) == cluster_copies.MAX_COPIES


@pytest.mark.parametrize(
    "error",
    [
        NotFound(404, "NotFound", "the server could not find the requested resource"),
        TooManyRequests(429, "TooManyRequests", "storage is (re)initializing"),
    ],
)
async def test_a_kind_that_is_not_served_yet_is_no_failure_and_one_that_was_deleted_is_made_again(
    world: World, error: ApiError
) -> None:
    world.cluster.fails[QUOTAS] = error
    async with running(world.copies.run()):
        await eventually(lambda: world.cluster.count("delete", QUOTAS) >= 2)
        assert world.copies.written is None
        world.cluster.fails.clear()
        await eventually(lambda: world.copies.written)
        installed = world.cluster.count("apply", DEFINITION)
        world.cluster.fails[QUOTAS] = NotFound(404, "NotFound", "the server could not find the requested resource")
        world.uses(61)
        await eventually(lambda: world.cluster.count("apply", DEFINITION) > installed)
        world.cluster.fails.clear()
        await eventually(lambda: world.cluster.quotas["project-alpha"]["summary"]["usage"].startswith("cpu 61/64"))
    assert False not in world.states


async def test_a_right_that_is_missing_is_said_and_nothing_else_happens(world: World) -> None:
    world.cluster.fails[DEFINITION] = Forbidden(403, "Forbidden", "user cannot patch it")
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written is False)
        assert world.copies.problem == "user cannot patch it; bind charts/rbac/user-cluster.yaml"
        world.cluster.fails.clear()
        await eventually(lambda: world.copies.written)
    assert world.states == [False, True]


async def test_it_is_tried_again_however_often_it_has_failed(world: World) -> None:
    world.cluster.fails[DEFINITION] = Unavailable(0, "Unavailable", "no answer")
    world.copies._failures = 5000
    async with running(world.copies.run()) as (task,):
        await eventually(lambda: world.cluster.count("apply", DEFINITION) >= 3)
        assert not task.done()


async def test_what_failed_is_tried_at_once_when_the_user_cluster_is_in_reach_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "RETRY", (1000.0, 1000.0))
    world.cluster.fails[DEFINITION] = Unavailable(0, "Unavailable", "no answer")
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written is False)
        world.copies.wake()
        await asyncio.sleep(0.05)
        assert world.cluster.count("apply", DEFINITION) == 1, "a quota that changes is no reason"
        world.cluster.fails.clear()
        world.copies.reached()
        await eventually(lambda: world.copies.written)


async def test_a_user_cluster_that_hangs_or_fails_delays_no_other(world: World) -> None:
    dead, refusing = UserCluster(), UserCluster()
    dead.hangs = True
    refusing.fails[DEFINITION] = Unavailable(0, "Unavailable", "no answer")
    async with running(world.of(dead).run(), world.of(refusing).run(), world.copies.run()):
        await eventually(lambda: world.copies.written)
        world.uses(61)
        await eventually(lambda: world.cluster.count("apply", QUOTAS) == 2)
    assert dead.count("apply", DEFINITION) == 1


async def test_all_user_clusters_together_are_looked_at_so_often_in_a_second(world: World) -> None:
    pace = Pace(20)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(5):
        await pace.turn()
    assert loop.time() - began >= 4 / 20


async def test_switched_off_it_removes_what_is_there_and_ends(world: World) -> None:
    off = world.of(world.cluster, enabled=False)
    async with running(off.run()) as (task,):
        await eventually(task.done)
    assert world.cluster.calls == [("delete", QUOTAS)]
    assert world.cluster.selectors == ["app.kubernetes.io/managed-by=seedquota-seed,!seedquota.io/subject-kind"]


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", ""), Forbidden(403, "Forbidden", "")])
async def test_switched_off_where_there_never_was_any_it_ends_too(world: World, error: ApiError) -> None:
    world.cluster.fails[QUOTAS] = error
    async with running(world.of(world.cluster, enabled=False).run()) as (task,):
        await eventually(task.done)


class TestWhichOfThem:
    """Of several user clusters, those whose quotas have changed."""

    async def test_a_change_of_a_quota_or_its_account_wakes_the_clusters_that_it_counts(self) -> None:
        async with seed_world() as seed:
            copies = LocalCopies(seed.quota_cache, seed.cluster_cache, seed.registry, enabled=True)
            woken: list[str] = []
            for key in (f"{PROJECT}/c1", "beta/c9"):
                copies._copies[key] = cast(
                    ClusterCopies,
                    SimpleNamespace(wake=lambda key=key: woken.append(key), shows=lambda name, key=key: "c1" in key),
                )
            async with running(copies.run()):
                await asyncio.sleep(0)
                await seed.quota(limits="cpu=8", granted="cpu=8")
                copies._wake()
                assert woken == [f"{PROJECT}/c1"]
                woken.clear()
                copies._wake()
                assert woken == []
                seed.remove("project-alpha")
                copies._wake()
                assert woken == [f"{PROJECT}/c1"], "it has to go there"
                woken.clear()
                seed.quota_cache.master_seen_at = 1.0
                copies._wake()
                assert woken == [f"{PROJECT}/c1", "beta/c9"]

    async def test_it_reads_the_account_of_each_quota_of_the_cluster(self) -> None:
        async with seed_world() as seed:
            await seed.quota(limits="cpu=8", granted="cpu=8", used="cpu=2")
            copies = LocalCopies(seed.quota_cache, seed.cluster_cache, seed.registry, enabled=True)
            key = f"{PROJECT}/c1"
            source: Any = SimpleNamespace(consumer=Consumer(PROJECT, key), key=key, current=True)
            (found,) = copies._known(source)
            assert found.account is not None and found.account.used[key] == nanos("cpu=2")
            assert (found.quota.name, found.master_silent) == ("project-alpha", None)
            seed.quota_cache.master_seen_at = time.monotonic()
            (found,) = copies._known(source)
            assert found.master_silent is not None and found.master_silent < 60
