"""When LocalResourceQuotas are written into the namespaces that quotas select, and what happens where that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.quota.account import Reservation
from common.runtime import pieces
from seed.projections import copies, local_quota, namespace_copies
from seed.projections.copies import Key, Written
from seed.projections.local_quota import KnownQuota, LocalQuota
from seed.projections.namespace_copies import OWN_FIRST, NamespaceCopies, Selection, due_now
from seed.projections.pace import Pace
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.seed.projections.test_cluster_copies import looks
from tests.unit.seed.projections.test_local_quota import account, quota
from tests.unit.seed_world import nanos

UID = "quota-uid"
OURS = "app.kubernetes.io/managed-by=seedquota-seed,seedquota.io/subject-kind=namespaces"
FORBIDDEN = Forbidden(403, "Forbidden", "may not")


def totals(usage: str = "pods=3", limits: str = "pods=5") -> LocalQuota:
    of = quota(limits, usage, kind="namespaces")
    return local_quota.desired(
        KnownQuota(quota=of, account=account("", ""), sources=("s",), followed=True, master_silent=3.0)
    )


def allocation() -> LocalQuota:
    """The same as `totals`, of the quota of a ResourceQuotaAllocation."""
    return msgspec.structs.replace(totals(), name="allocation.owner-ann", allocation="owner-ann")


class Server:
    """An API server, with what is there by namespace. `fails`: what writes in a namespace are answered."""

    def __init__(self) -> None:
        self.quotas: dict[str, dict[str, Any]] = {}
        self.allocations: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.removed: list[tuple[str, str]] = []
        self.fails: dict[str, ApiError] = {}
        self.all_fail: ApiError | None = None

    def of(self, resource: Resource[Any]) -> dict[str, dict[str, Any]]:
        return self.quotas if resource.plural == "localresourcequotas" else self.allocations

    async def list(self, resource: Resource[Any], *, label_selector: str) -> SimpleNamespace:
        assert label_selector == OURS
        assert resource.metadata_only and resource.most is not None, "tenants can write what looks like ours"
        items = [
            Object(
                metadata=ObjectMeta(name=body["metadata"]["name"], namespace=name, labels=body["metadata"]["labels"])
            )
            for name, body in self.of(resource).items()
        ]
        return SimpleNamespace(items=items)

    async def apply(self, resource: Resource[Any], body: dict[str, Any], _manager: str) -> None:
        namespace = body["metadata"]["namespace"]
        self.writes.append(namespace)
        error = self.all_fail or self.fails.get(namespace)
        if error is not None:
            raise error
        self.of(resource)[namespace] = body

    async def delete_all(self, resource: Resource[Any], namespace: str, *, label_selector: str) -> None:
        if namespace in self.fails:
            raise self.fails[namespace]
        self.removed.append((namespace, label_selector))
        self.of(resource).pop(namespace, None)

    def shown(self, namespace: str) -> tuple[str, str]:
        summary = self.quotas[namespace]["status"]["summary"]
        return summary["usage"], summary["here"]


class World:
    def __init__(self) -> None:
        self.server = Server()
        self.local = totals()
        self.here: Mapping[str, Mapping[str, int]] | None = {"web": nanos("pods=2"), "db": {}}
        self.quota = True
        self.states: list[bool | None] = []
        self.copies = self.made()

    def made(self, *, enabled: bool = True) -> NamespaceCopies:
        return NamespaceCopies(
            "alpha/c1",
            cast(Cluster, self.server),
            lambda: [Selection(local=self.local, here=self.here, master_silent=3.0)] if self.quota else [],
            Pace(1e6),
            enabled=enabled,
            on_state=lambda: self.states.append(self.copies.written),
        )


@pytest.fixture
def world() -> World:
    return World()


async def test_each_namespace_has_the_totals_and_its_own_use_and_nothing_of_others(world: World) -> None:
    async with running(world.copies.run()):
        await eventually(lambda: len(world.server.quotas) == 2)
    assert world.server.shown("web") == ("pods 3/5", "pods 2")
    assert world.server.shown("db") == ("pods 3/5", "pods 0")
    body = world.server.quotas["db"]
    assert "web" not in str(body)
    assert body["metadata"]["labels"]["seedquota.io/subject-kind"] == "namespaces"
    assert world.states == [True]


async def test_it_is_written_when_it_changes_and_only_then(world: World) -> None:
    async with running(world.copies.run()):
        await eventually(lambda: len(world.server.writes) == 2)
        await looks(world.copies)
        assert len(world.server.writes) == 2
        world.here = {"web": nanos("pods=1"), "db": {}}
        world.copies.wake()
        await eventually(lambda: world.server.shown("web")[1] == "pods 1")
        await looks(world.copies)
        assert sorted(world.server.writes) == ["db", "web", "web"], "the other's did not change"
        world.local = totals("pods=2")
        world.copies.wake()
        await eventually(lambda: {world.server.shown(name)[0] for name in ("web", "db")} == {"pods 2/5"})


async def test_a_thousand_namespaces_are_written_a_few_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "EVERY", 1000.0)
    world.here = {f"n{number}": {} for number in range(1000)}
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written)
        assert len(world.server.writes) == namespace_copies.AT_ONCE


async def test_where_a_namespace_leaves_and_where_the_quota_goes_it_is_removed(world: World) -> None:
    async with running(world.copies.run()):
        await eventually(lambda: len(world.server.quotas) == 2)
        world.here = {"db": {}}
        world.copies.wake()
        await eventually(lambda: world.server.removed == [("web", f"{OURS},seedquota.io/uid={UID}")])
        world.quota = False
        world.copies.wake()
        await eventually(lambda: not world.server.quotas)


async def test_what_an_earlier_leader_left_is_removed_but_not_while_the_selection_is_unknown(world: World) -> None:
    for namespace in ("gone", "web"):
        world.server.quotas[namespace] = local_quota.manifest(world.local, namespace, "")
    selected, world.here = world.here, None
    async with running(world.copies.run()):
        await looks(world.copies)
        assert not world.server.removed and not world.server.writes
        world.here = selected
        world.copies.wake()
        await eventually(lambda: set(world.server.quotas) == {"web", "db"})
    assert [namespace for namespace, _ in world.server.removed] == ["gone"]


async def test_an_allocation_is_shown_as_such_and_goes_like_a_quota(world: World) -> None:
    world.local = allocation()
    async with running(world.copies.run()):
        await eventually(lambda: len(world.server.allocations) == 2)
        assert world.server.quotas == {}
        body = world.server.allocations["web"]
        assert body["metadata"]["name"] == "owner-ann"
        assert body["status"]["total"] == {"hard": {"pods": "5"}, "used": {"pods": "3"}}
        assert body["status"]["here"] == {"used": {"pods": "2"}}
        assert world.copies.shows("allocation.owner-ann")
        world.here = {"db": {}}
        world.copies.wake()
        await eventually(lambda: set(world.server.allocations) == {"db"})
    await world.made().remove()
    assert world.server.allocations == {}


@pytest.mark.parametrize("selected", [True, False], ids=["selected", "not known what is selected"])
async def test_the_quota_that_an_earlier_version_wrote_for_an_allocation_is_removed(
    world: World, selected: bool
) -> None:
    world.server.quotas["web"] = local_quota.manifest(world.local, "web", "")
    world.local = allocation()
    if not selected:
        world.here = None
    async with running(world.copies.run()):
        await eventually(lambda: world.server.removed == [("web", f"{OURS},seedquota.io/uid={UID}")])
        await eventually(lambda: set(world.server.allocations) == ({"web", "db"} if selected else set()))
    assert world.server.quotas == {}


async def test_a_namespace_that_refuses_keeps_no_other_from_being_written(world: World) -> None:
    world.server.fails["web"] = Forbidden(403, "Forbidden", "it is being terminated")
    async with running(world.copies.run()):
        await eventually(lambda: "db" in world.server.quotas)
        await looks(world.copies)
        assert world.server.writes.count("web") == 1, "it is left alone for a while"
    assert world.states == [True]


async def test_a_right_that_is_missing_is_said_until_it_is_there(world: World) -> None:
    world.server.all_fail = FORBIDDEN
    async with running(world.copies.run()):
        await eventually(lambda: world.copies.written is False)
        assert (
            world.copies.problem
            == "may not; bind charts/rbac/user-cluster.yaml, on a seed charts/rbac/seed-local-quotas.yaml"
        )
        world.server.all_fail = None
        await eventually(lambda: world.copies.written and len(world.server.quotas) == 2)
        world.quota = False
        world.copies.wake()
        await eventually(lambda: world.copies.written is None)


async def test_a_kind_that_is_not_served_yet_is_no_failure(world: World) -> None:
    world.server.all_fail = NotFound(404, "NotFound", "the server could not find the requested resource")
    async with running(world.copies.run()):
        await eventually(lambda: len(world.server.writes) > 3)
        world.server.all_fail = None
        await eventually(lambda: len(world.server.quotas) == 2)
    assert world.states == [True]


@pytest.mark.parametrize("switched", [True, False], ids=["off", "let go"])
async def test_switched_off_or_let_go_it_removes_what_is_there(world: World, switched: bool) -> None:
    for number in range(60):
        world.server.quotas[f"n{number}"] = local_quota.manifest(world.local, f"n{number}", "")
    if switched:
        async with running(world.made(enabled=False).run()) as (task,):
            await eventually(task.done)
    else:
        await world.made().remove()
    assert not world.server.quotas and not world.server.writes


WEB, DB, NEW = (Key(name, UID) for name in ("web", "db", "new"))


def due(web: float, db: float, most: int = 9) -> list[str]:
    """`web` changed by itself, of `db` only the totals did; both were written so many seconds ago."""
    before, after = totals("pods=3"), totals("pods=4")
    written = {
        WEB: Written(local_quota.in_namespace(before, {}), at=-web),
        DB: Written(local_quota.in_namespace(before, {}), at=-db),
    }
    wanted = {
        DB: (local_quota.in_namespace(after, {}), 0.0),
        WEB: (local_quota.in_namespace(after, nanos("pods=1")), 0.0),
        NEW: (local_quota.in_namespace(after, {}), 0.0),
    }
    return [key.namespace for key in due_now(wanted, written, 0.0, 1e9, most)]


def test_first_is_what_is_not_there_then_what_changed_by_itself() -> None:
    assert due(web=1, db=20) == ["new", "web", "db"]
    assert due(web=1, db=20, most=2) == ["new", "web"]


def test_one_that_changes_all_the_time_does_not_keep_others_back() -> None:
    assert due(web=1, db=OWN_FIRST + 2) == ["new", "db", "web"]


def test_what_did_not_change_is_refreshed_in_time() -> None:
    local = local_quota.in_namespace(totals(), {})
    written = {WEB: Written(local, at=-70.0)}
    assert due_now({WEB: (local, 0.0)}, written, 0.0, 60.0, 9) == [WEB]
    assert due_now({WEB: (local, 0.0)}, written, 0.0, 150.0, 9) == []


def test_what_is_being_created_counts_where_it_is_created_until_it_is_counted() -> None:
    def kept(namespace: str, generation: int = 0) -> Reservation:
        return Reservation(source="s", object=f"pods:{namespace}/x", amount=nanos("pods=1"), generation=generation)

    counted = {"web": nanos("pods=2")}
    reservations = {"counted": kept("web"), "new": kept("web"), "elsewhere": kept("db"), "resized": kept("web", 8)}
    found = local_quota.by_namespace(counted, reservations, {"counted": 3, "resized": 7})
    assert found == {"web": nanos("pods=4"), "db": nanos("pods=1")}
    assert counted == {"web": nanos("pods=2")}


async def test_of_very_many_namespaces_no_more_is_made_than_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may make a hundred thousand of them, and the leader looks at them once a second."""
    made: list[Mapping[str, int]] = []

    def in_namespace(local: LocalQuota, here: Mapping[str, int]) -> LocalQuota:
        made.append(here)
        return local

    monkeypatch.setattr(namespace_copies, "MAX_COPIES", 2)
    monkeypatch.setattr(local_quota, "in_namespace", in_namespace)
    world.here = {name: nanos("pods=1") for name in ("d", "b", "c", "a")}
    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0.0)
    monkeypatch.setattr(pieces, "SMALL", 0)
    looking = asyncio.create_task(world.copies._wanted())
    rounds = 0
    while not looking.done():
        rounds += 1
        await asyncio.sleep(0)
    assert rounds >= 4, "others have their turn between any two namespaces, where it takes long"
    wanted, _ = looking.result()
    assert [key.namespace for key in wanted] == ["a", "b"]
    assert len(made) == 2
