"""What is counted in namespaces, when it may be counted, and what happens to it when something cannot be read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from common.kube.client.errors import ApiError, Unavailable
from common.kube.controller.reflector import moment
from common.quota.account import Account
from common.quota.object_names import GroupResource
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from seed.kinds.namespaces import cluster_objects, kind_informer, releases
from seed.kinds.namespaces.evaluators import pods
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.evaluators.object_count import ObjectCountEvaluator
from seed.kinds.namespaces.listing_problem import listing_problem
from seed.kinds.namespaces.source import NamespacedSource
from seed.kinds.namespaces.sources import NamespacedSources
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.usage.source import Problem, Taken
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, eventually, fake_api_server
from tests.unit.namespaces_world import ANN, PODS, World

CLUSTER = "alpha/c1"
WIDGETS = {"count/widgets.example.com": "5"}
BOTH = {**PODS, **WIDGETS}
CRD = "widgets.example.com"
DEFINITIONS = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
CORE = [("pods", "Pod"), ("services", "Service")]


class Accounts:
    """What accounts were granted once."""

    def __init__(self) -> None:
        self.names: dict[str, ResourceList] = {}
        self.sums: dict[str, ResourceList] = {}
        self.unread: set[str] = set()
        self.listeners: list[Callable[[str, Account | None], None]] = []

    def granted(self, quota: Quota) -> ResourceList:
        return self.names.get(quota.name, {})

    def used(self, quota: Quota, source: str) -> ResourceList | None:
        assert source == SourceKey.of_namespaces(quota.key.uid, CLUSTER)
        return None if quota.name in self.unread else self.sums.get(quota.name, {})

    def on_account(self, listener: Callable[[str, Account | None], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: None

    def grant(self, quota: str, **names: int) -> None:
        self.names[quota] = names
        for listener in self.listeners:
            listener(quota, Account(incarnation="life", granted=names))


class Followed:
    def __init__(self, api: FakeApiServer) -> None:
        self.api = api
        self.world = World()
        self.accounts = Accounts()
        self.changes: list[tuple[str, bool]] = []
        self.told: list[float] = []  # from which lists, when a state was told
        self.unreached: Problem | None = None
        self.following: list[asyncio.Task[None]] = []
        self.sources = NamespacedSources(
            api.cluster(),
            self.world.quotas,
            self.world.clusters,
            self.accounts,
            on_change=lambda source, freed: self.changes.append((source.consumer.quota, freed)),
            on_state=lambda source: self.told.append(source.listed_from),
            unreached=lambda _key: self.unreached,
        )

    def connect(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.sources.follow(CLUSTER, self.api.cluster()))
        self.following.append(task)
        return task

    def source(self, quota: str = "all") -> NamespacedSource:
        return self.sources[SourceKey.of_namespaces(f"{quota}-uid", CLUSTER)]

    def used(self, quota: str = "all") -> dict[str, int] | None:
        """None while nothing is counted."""
        try:
            source = self.source(quota)
        except KeyError:
            return None
        return {name: amount // UNIT for name, amount in source.totals.used.items()} if source.counted else None

    def problem(self, quota: str) -> Problem | None:
        return self.source(quota).problem

    async def pod(self, name: str, namespace: str = "web", **status: Any) -> str:
        made = await self.api.put("pods", namespace, name, status=status)
        return str(made["metadata"]["uid"])

    async def define_widgets(self) -> None:
        await self.api.put("customresourcedefinitions", "", CRD)

    def unserve_widgets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their objects stay."""
        del self.api.discovery["/apis/example.com"]
        monkeypatch.delitem(fakes.PLURALS, "widgets")

    def widgets(self) -> kind_informer.KindInformer:
        return self.sources._objects[CLUSTER].informers[ObjectCountEvaluator(GroupResource("widgets", "example.com"))]

    def serve_widgets(self, *versions: str) -> None:
        self.api.discovery["/apis/example.com"] = {
            "versions": [{"version": version} for version in versions],
            "preferredVersion": {"version": versions[0]},
        }
        for version in versions:
            self.api.discovery[f"/apis/example.com/{version}"] = resources(("widgets", "Widget"))


def resources(*kinds: tuple[str, str]) -> dict[str, Any]:
    verbs = ["create", "list", "watch"]
    return {"resources": [{"name": name, "kind": kind, "namespaced": True, "verbs": verbs} for name, kind in kinds]}


@asynccontextmanager
async def followed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Followed]:
    """Cluster c1 takes part and is connected. Namespace web is ann's, and has a pod."""
    for plural, kind in (("namespaces", "Namespace"), ("widgets", "Widget"), *CORE):
        monkeypatch.setitem(fakes.PLURALS, plural, ("v1", kind))
    monkeypatch.setitem(fakes.PLURALS, "customresourcedefinitions", DEFINITIONS)
    monkeypatch.setattr(kind_informer, "LOOK_AGAIN", 0.05)
    monkeypatch.setattr(kind_informer, "CHECK_EVERY", 0.02)
    async with fake_api_server() as api:
        api.discovery["/api/v1"] = resources(*CORE)
        found = Followed(api)
        await api.put("namespaces", "", "web", metadata={"labels": ANN})
        await found.pod("a")
        found.world.cluster("c1")
        running = asyncio.create_task(found.sources.run())
        found.connect()
        try:
            yield found
        finally:
            for task in (running, *found.following):
                task.cancel()
            await asyncio.gather(running, *found.following, return_exceptions=True)


@pytest_asyncio.fixture
async def found(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Followed]:
    async with followed(monkeypatch) as made:
        yield made


async def test_what_is_in_the_namespaces_of_a_quota_is_counted(found: Followed) -> None:
    found.world.quota("all", {"pods": "5", "services": "5"}, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    await found.api.put("services", "web", "s")
    await found.pod("b", "other")
    await eventually(lambda: found.used() == {"pods": 1, "services": 1})
    await found.api.put("namespaces", "", "other", metadata={"labels": ANN})
    await eventually(lambda: found.used() == {"pods": 2, "services": 1})
    found.changes.clear()
    await found.api.put("namespaces", "", "web", metadata={"labels": {}})
    await eventually(lambda: found.used() == {"pods": 1})
    assert found.changes == [("all", True)], "all that it had, at once"
    assert found.source().namespaces == ["other"]
    assert found.source().current and found.source().problem is None


async def test_a_namespace_that_is_being_deleted_counts_and_is_not_written_to(found: Followed) -> None:
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    assert found.source().namespaces == ["web"]
    ending = {"labels": ANN, "deletionTimestamp": "2026-11-20T10:00:00Z"}
    await found.api.put("namespaces", "", "web", metadata=ending)
    await eventually(lambda: found.source().namespaces == [])
    assert found.used() == {"pods": 1}
    found.following[0].cancel()
    await eventually(lambda: found.source().namespaces is None)


async def test_what_lacks_a_list_from_after_a_moment_is_told_by_its_kind(found: Followed) -> None:
    before = moment()
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    assert found.source().unlisted(before) == []
    assert found.source().unlisted(moment()) == ["namespaces", "pods", "widgets.example.com"]
    found.following[0].cancel()
    await eventually(lambda: found.source().unlisted(moment()) == [])  # the cluster itself is away


async def test_only_what_is_limited_is_watched_and_numbers_need_no_more_than_metadata(found: Followed) -> None:
    found.serve_widgets("v1")
    found.world.quota("all", WIDGETS, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {})
    assert not found.api.count("GET", "/pods"), "no quota limits them"
    await found.api.put("widgets", "web", "w")
    await eventually(lambda: found.used() == {"count/widgets.example.com": 1})


async def test_a_kind_that_is_not_defined_has_no_objects_until_it_is(
    found: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    await found.api.put("widgets", "web", "w")
    await found.define_widgets()
    found.serve_widgets("v1")
    await eventually(lambda: found.used() == {"pods": 1, "count/widgets.example.com": 1})
    await eventually(lambda: found.widgets()._defined)
    # It is gone with its definition; and so is its list.
    found.unserve_widgets(monkeypatch)
    await found.api.remove("customresourcedefinitions", "", CRD)
    found.source().relist()
    await eventually(lambda: found.used() == {"pods": 1})
    await eventually(lambda: found.problem("all") is None)  # its watch may have said so before its definition did
    assert await found.source().generation("widgets.example.com:web/other", "w") is None


@pytest.mark.parametrize("defined", [True, False])
async def test_a_kind_that_is_not_served_keeps_its_count_unless_its_definition_is_gone(
    found: Followed, monkeypatch: pytest.MonkeyPatch, defined: bool
) -> None:
    """Of a definition no version is served; or the APIService of another server was deleted."""
    if defined:
        await found.define_widgets()
    found.serve_widgets("v1")
    await found.api.put("widgets", "web", "w")
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1, "count/widgets.example.com": 1})
    found.unserve_widgets(monkeypatch)
    demanded = moment()
    found.source().relist()
    await eventually(lambda: "not served" in getattr(found.problem("all"), "message", ""))
    problem = found.problem("all")
    assert problem is not None and problem.reason == "ResourceNotListed"
    assert ("CustomResourceDefinition widgets.example.com is there" in problem.message) == defined
    await found.pod("b")
    await eventually(lambda: found.used() == {"pods": 2, "count/widgets.example.com": 1})
    assert not found.source().live and found.source().listed_from <= demanded
    with pytest.raises(ApiError):
        await found.source().generation("widgets.example.com:web/other", "w")
    monkeypatch.setitem(fakes.PLURALS, "widgets", ("v1", "Widget"))
    found.serve_widgets("v1")
    await eventually(lambda: found.problem("all") is None and found.source().listed_from > demanded)
    assert found.used() == {"pods": 2, "count/widgets.example.com": 1}


FIELD = "sum.widgets.v1.example.com/spec.size"


async def test_a_field_is_counted_in_its_version_and_kept_where_that_is_not_served(
    found: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await found.define_widgets()
    found.serve_widgets("v1")
    monkeypatch.setitem(fakes.PLURALS, "widgets", ("example.com/v1", "Widget"))
    await found.api.put("widgets", "web", "a", spec={"size": 3, "more": "text"})
    await found.api.put("widgets", "web", "b", spec={"size": "4"})
    await found.api.put("widgets", "web", "without", spec={})
    found.world.quota("all", {FIELD: "9"}, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {FIELD: 7})
    await found.api.put("widgets", "web", "a", spec={"size": 1})
    await eventually(lambda: found.used() == {FIELD: 5})
    # What cannot be read keeps what it had, and says so.
    await found.api.put("widgets", "web", "b", spec={"size": "-4"})
    await eventually(lambda: "web/b" in getattr(found.problem("all"), "message", ""))
    assert found.used() == {FIELD: 5}
    await found.api.put("widgets", "web", "b", spec={"size": 2})
    await eventually(lambda: found.used() == {FIELD: 3} and found.problem("all") is None)
    assert not found.sources.unserved(CLUSTER)
    found.serve_widgets("v2")
    monkeypatch.delitem(fakes.PLURALS, "widgets")
    found.source().relist()
    await eventually(lambda: found.sources.unserved(CLUSTER) == {GroupResource("widgets", "example.com")})
    served = "widgets.example.com are not served as v1, but as v2: name that version in the quota"
    await eventually(lambda: served in getattr(found.problem("all"), "message", ""))
    assert found.used() == {FIELD: 3} and found.source().listed_from > 0, "the last count stays"


async def test_another_field_is_counted_anew(found: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    found.serve_widgets("v1")
    monkeypatch.setitem(fakes.PLURALS, "widgets", ("example.com/v1", "Widget"))
    await found.api.put("widgets", "web", "a", spec={"size": 3, "disk": {"gigabytes": 7}})
    found.world.quota("all", {FIELD: "9"}, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {FIELD: 3})
    other = "sum.widgets.v1.example.com/spec.disk.gigabytes"
    found.world.quota("all", {other: "9"}, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {other: 7})
    # What was granted of a field of an older version keeps nothing from being read in the new one.
    found.accounts.grant("all", **{other: 9})
    found.serve_widgets("v2")
    monkeypatch.setitem(fakes.PLURALS, "widgets", ("example.com/v2", "Widget"))
    newer = FIELD.replace("v1", "v2")
    found.world.quota("all", {newer: "9"}, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {newer: 3})


async def test_one_who_has_not_seen_a_kind_served_leaves_its_count(found: Followed) -> None:
    """A new leader, while no version of its definition is served; then while its definition is gone."""
    await found.define_widgets()
    found.accounts.sums["all"] = {"pods": UNIT, "count/widgets.example.com": UNIT}
    found.accounts.unread.add("all")
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    found.world.quota("other", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.sources and found.problem("all") is not None)
    await eventually(lambda: "is there" in getattr(found.problem("all"), "message", ""))
    assert found.used() is None and found.source().listed_from == 0
    await found.api.remove("customresourcedefinitions", "", CRD)
    await eventually(lambda: found.used("other") == {"pods": 1})
    assert found.source("other").not_served == {"count/widgets.example.com"}
    assert found.used() is None, "its account was not read yet"
    found.accounts.unread.clear()
    found.accounts.grant("all", pods=UNIT)
    await eventually(lambda: "count/widgets.example.com=1 was counted" in getattr(found.problem("all"), "message", ""))
    problem = found.problem("all")
    assert problem is not None and problem.reason == "ResourceNotListed"
    assert found.used() is None
    with pytest.raises(ApiError):
        await found.source().generation("widgets.example.com:web/w", "w")
    # As the message says: an empty definition, which is deleted again.
    await found.define_widgets()
    found.serve_widgets("v1")
    await eventually(lambda: found.used() == {"pods": 1})
    assert found.problem("all") is None
    await eventually(lambda: not found.source("other").not_served)


async def test_without_the_right_to_read_definitions_the_count_is_left_and_the_role_is_named(found: Followed) -> None:

    async def forbidden(request: web.Request) -> web.Response | None:
        return fakes.status(403, "Forbidden") if "customresourcedefinitions" in request.path else None

    found.api.answers += [forbidden] * 10_000
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.sources and found.problem("all") is not None)
    problem = found.problem("all")
    assert problem is not None and "customresourcedefinitions" in problem.message
    assert "bind the role of charts/rbac/user-cluster-namespaces.yaml there" in problem.message
    assert found.used() is None
    found.api.answers.clear()
    await eventually(lambda: found.used() == {"pods": 1})


@pytest.mark.parametrize("round_", range(3))
async def test_a_kind_that_nobody_counts_for_a_moment_is_counted_again(
    monkeypatch: pytest.MonkeyPatch, round_: int
) -> None:
    """Its last quota goes and another comes: what is listed then is the same as before."""
    monkeypatch.setattr(cluster_objects, "SOON", 0.3 * round_)
    async with followed(monkeypatch) as found:
        found.world.quota("first", selector={"matchLabels": ANN})
        await eventually(lambda: found.used("first") == {"pods": 1})
        found.world.remove("first")
        await eventually(lambda: not found.sources._objects[CLUSTER].informers)
        found.world.quota("second", selector={"matchLabels": ANN})
        await eventually(lambda: found.used("second") == {"pods": 1})


async def test_what_cannot_be_listed_is_named_and_stops_its_own_quota_alone(found: Followed) -> None:
    found.serve_widgets("v1")
    found.api.unlistable["widgets"] = "conversion webhook failed"
    found.world.quota("broken", BOTH, selector={"matchLabels": ANN})
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used("all") == {"pods": 1})
    await eventually(lambda: found.problem("broken") is not None)
    problem = found.problem("broken")
    assert problem is not None and problem.reason == "ResourceNotListed"
    assert "widgets.example.com cannot be listed" in problem.message and "conversion webhook" in problem.message
    assert found.used("broken") is None, "its pods alone are not its use"
    assert found.problem("all") is None and found.source("all").current
    found.api.unlistable.clear()
    await eventually(lambda: found.used("broken") == {"pods": 1})
    await eventually(lambda: found.problem("broken") is None)


async def test_what_fails_later_keeps_its_count_and_the_rest_goes_on(found: Followed) -> None:
    found.serve_widgets("v1")
    await found.api.put("widgets", "web", "w")
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1, "count/widgets.example.com": 1})
    found.api.unlistable["widgets"] = "conversion webhook failed"
    demanded = moment()
    found.source().relist()
    await eventually(lambda: found.problem("all") is not None)
    await found.pod("b")
    await eventually(lambda: found.used() == {"pods": 2, "count/widgets.example.com": 1})
    assert found.source().listed_from <= demanded, "one kind was not listed since"
    assert not found.source().current and found.source().lost_at is not None
    found.api.unlistable.clear()
    await eventually(lambda: found.source().listed_from > demanded)


async def test_a_limit_of_what_cannot_be_listed_leaves_the_rest_counted(found: Followed) -> None:
    found.serve_widgets("v1")
    found.api.unlistable["widgets"] = "no"
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    source = found.source()
    assert source.doubtful(0) == set() and source.listed_from
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.problem("all") is not None)
    await found.pod("b")
    await eventually(lambda: source.totals.used == {"pods": 2 * UNIT})
    assert source.doubtful(0) == {"count/widgets.example.com"}
    assert not source.counted and source.listed_from == 0, "an account that is fenced is not counted from it"
    del found.api.unlistable["widgets"]
    await eventually(lambda: found.used() == {"pods": 2})
    assert source.doubtful(0) == set()


async def test_what_is_limited_anew_is_in_doubt_until_it_is_listed(found: Followed) -> None:
    """Else a count by the names from before would drop what is reserved by the new ones."""
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    source, names = found.source(), frozenset(BOTH)
    for objects in (found.sources._objects[CLUSTER], None):  # also once there is no connection any more
        source.want(source._quota, Terms(limited=names), source._selector, objects)
        assert source.listed_from == 0 and source.doubtful(0) == names - {"pods"}


async def test_what_was_granted_once_is_counted_although_it_is_not_limited_now(found: Followed) -> None:
    found.world.quota("all", {"services": "5"}, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {})
    found.accounts.grant("all", pods=UNIT)
    await eventually(lambda: found.used() == {"pods": 1})


async def test_a_selector_that_changes_moves_the_sum_at_once(found: Followed) -> None:
    await found.api.put("namespaces", "", "other", metadata={"labels": {"owner": "bob"}})
    await found.pod("b", "other")
    await found.pod("c", "other")
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    found.world.quota("all", selector={"matchLabels": {"owner": "bob"}})
    await eventually(lambda: found.used() == {"pods": 2})


async def test_a_sum_stays_while_the_cluster_is_not_connected_and_until_all_is_listed_anew(found: Followed) -> None:
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    source = found.source()
    found.unreached = Problem("Unauthorized", "the kubeconfig was revoked")
    found.following[0].cancel()
    await eventually(lambda: source.problem == found.unreached)
    assert found.used() == {"pods": 1} and source.lost_at is not None and not source.live
    with pytest.raises(Unavailable):
        await source.generation("pods:web/a", "uid")
    await found.pod("b")
    found.api.unlistable["pods"] = "not yet"
    found.unreached = None
    found.connect()
    await eventually(lambda: source.problem is not None and source.problem.reason == "ResourceNotListed")
    assert found.used() == {"pods": 1}
    demanded = moment()
    source.relist()
    assert source.listed_from <= demanded
    found.api.unlistable.clear()
    await eventually(lambda: found.used() == {"pods": 2})
    await eventually(lambda: source.listed_from > demanded and source.current)


async def test_only_lists_that_began_after_the_demand_are_counted(found: Followed) -> None:
    """Of the namespaces, and of every kind (rule 4.4)."""
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    source = found.source()
    before = source.listed_from
    found.api.requests.clear()
    demanded = moment()
    source.relist()
    assert source.listed_from <= demanded
    await eventually(lambda: found.told[-1] > demanded > before)
    asked = [path for method, path in found.api.requests if "watch=1" not in path]
    for path in ("/api/v1/namespaces?", "/api/v1/pods?", "/apis/example.com"):
        assert any(path in each for each in asked), asked
    assert not any("resourceVersion" in each for each in asked), "consistent lists only"


async def test_a_demand_holds_for_what_the_quota_limits_later(found: Followed) -> None:
    """Another quota has followed that kind since before the demand (schedule 21103857)."""
    found.serve_widgets("v1")
    found.world.quota("other", WIDGETS, selector={"matchLabels": ANN})
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1} and found.used("other") == {})
    source = found.source()
    demanded = moment()
    source.relist()
    await eventually(lambda: source.listed_from > demanded)
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: source.totals.terms.limited == BOTH.keys())
    await eventually(lambda: source.listed_from > demanded)


@pytest.mark.parametrize("plural", ["namespaces", "pods"])
async def test_after_a_break_of_any_watch_it_is_not_certain_what_has_happened_there(
    found: Followed, monkeypatch: pytest.MonkeyPatch, plural: str
) -> None:
    """A backup may have been restored: what was seen before proves nothing of an update since."""
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    await eventually(lambda: found.source().live)
    held = asyncio.Event()
    handle = found.api.list

    async def held_back(request: web.Request, of: str, namespace: str) -> web.Response:
        if of == plural:
            await held.wait()
        return await handle(request, of, namespace)

    monkeypatch.setattr(found.api, "list", held_back)
    found.api.compacted = 10**6  # each watch that begins anew has to list first
    found.api.end_watches.set()
    await eventually(lambda: not found.source().live)
    found.api.compacted = 0
    found.api.end_watches.clear()
    objects = found.sources._objects[CLUSTER]
    other = objects.namespaces if plural == "pods" else found.source()._counted.informers[0]  # type: ignore[union-attr]
    await eventually(lambda: other.live)
    assert not found.source().live and found.used() == {"pods": 1}
    held.set()
    await eventually(lambda: found.source().live)


async def test_what_is_not_served_is_asked_for_again_and_its_later_lists_count(found: Followed) -> None:
    """A demand is met only by an answer whose question began after it: no answer stands for later lists (rule 4.4)."""
    found.world.quota("all", WIDGETS, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {})
    source = found.source()
    served = False
    for _ in range(4):
        demanded = moment()
        source.relist()
        assert source.listed_from <= demanded
        await eventually(lambda after=demanded: found.told[-1] > after)
        if served:
            continue
        served = True
        await found.api.put("widgets", "web", "w")
        found.serve_widgets("v1")
        await eventually(lambda: found.used() == {"count/widgets.example.com": 1})


async def test_an_answer_that_a_kind_is_not_served_is_as_old_as_its_question(
    found: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been served since, and an object been made that the account does not count."""
    found.world.quota("all", WIDGETS, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {})
    source = found.source()
    (informer,) = source._counted.informers  # type: ignore[union-attr]
    namespaces = found.sources._objects[CLUSTER].namespaces
    find, asked, answers = kind_informer.find_kind, 0, asyncio.Semaphore(0)

    async def find_slowly(*arguments: Any) -> Any:
        nonlocal asked
        told = await find(*arguments)
        asked += 1
        await answers.acquire()
        return told

    monkeypatch.setattr(kind_informer, "find_kind", find_slowly)
    await eventually(lambda: asked == 1)
    demanded = moment()
    source.relist()
    before = informer.listed_from
    answers.release()
    await eventually(lambda: asked == 2)
    assert informer.listed_from > before
    await eventually(lambda: namespaces.listed_from > demanded)
    assert source.listed_from <= demanded
    answers.release()
    await eventually(lambda: source.listed_from > demanded)


async def test_a_pod_that_its_node_never_ends_ceases_to_count(found: Followed) -> None:
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    moment = datetime.fromtimestamp(time.time() + 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    going = {"deletionTimestamp": moment, "deletionGracePeriodSeconds": 0}
    await found.api.put("pods", "web", "a", metadata={**found.api.objects["pods", "web", "a"]["metadata"], **going})
    found.changes.clear()
    await eventually(lambda: found.used() == {})
    assert ("all", True) in found.changes


async def test_evidence_is_a_consistent_read_of_the_object_and_of_its_namespace(found: Followed) -> None:
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    source, uid = found.source(), found.api.objects["pods", "web", "a"]["metadata"]["uid"]
    version = int(found.api.objects["pods", "web", "a"]["metadata"]["resourceVersion"])
    assert await source.generation("pods:web/a", uid) == version
    assert source.totals.seen([uid]) == {uid: version}
    assert await source.generation("pods:web/a", "another") is Taken.TAKEN
    assert await source.generation("pods:web/none", uid) is None
    assert await source.generation("widgets.example.com:web/w", "w") is None, "the quota limits none"
    found.api.unlistable["pods"] = "no"
    with pytest.raises(ApiError):
        await source.generation("pods:web/a", uid)
    found.api.unlistable.clear()
    await found.api.put("namespaces", "", "web", metadata={"labels": {}})
    assert await source.generation("pods:web/a", uid) is None, "it is not this quota's any more"


async def test_what_a_quota_limits_no_more_leaves_no_reservation_behind(found: Followed) -> None:
    """Of that kind nothing is watched any more, so what was reserved for it would never be seen (schedule 22009371)."""
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: (found.used() or {}).get("pods") == 1)
    source, uid = found.source(), found.api.objects["pods", "web", "a"]["metadata"]["uid"]
    assert await source.generation("pods:web/a", uid) is not None
    found.world.quota("all", WIDGETS, selector={"matchLabels": ANN})
    await eventually(lambda: "pods" not in (found.used() or {}))
    assert await source.generation("pods:web/a", uid) is None


@pytest.mark.parametrize("name", ["a b", "a,b", "a=b", "a\\b", "a\\,metadata.namespace=c", "\u540d"])
async def test_evidence_is_found_whatever_the_name(found: Followed, name: str) -> None:
    """An owner chooses names of Roles. What is there must not seem to have gone."""
    found.world.quota("all", selector={"matchLabels": ANN})
    await found.api.put("pods", "web", name)
    there = found.api.objects["pods", "web", name]["metadata"]
    await eventually(lambda: found.used() == {"pods": 2})
    assert await found.source().generation(f"pods:web/{name}", there["uid"]) == int(there["resourceVersion"])


async def test_a_cluster_that_takes_part_no_more_is_not_watched(found: Followed) -> None:
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    found.world.cluster("c1", "Disabled")
    await eventually(lambda: not found.sources)
    await eventually(lambda: not found.sources._objects)
    found.world.cluster("c1")
    await eventually(lambda: found.used() == {"pods": 1})


async def test_while_namespaces_cannot_be_listed_nothing_is_counted_anew(found: Followed) -> None:
    found.world.quota("all", selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    found.api.unlistable["namespaces"] = "forbidden"
    source = found.source()
    demanded, listed = moment(), source.listed_from
    source.relist()
    await eventually(lambda: source.problem is not None)
    assert source.problem is not None and "namespaces cannot be listed" in source.problem.message
    assert source._counted is not None
    (pods,) = source._counted.informers
    await eventually(lambda: pods.listed_from > listed)
    assert source.listed_from == listed
    found.api.unlistable.clear()
    await eventually(lambda: source.listed_from > demanded)


async def test_pods_with_grace_periods_of_years_leave_nothing_when_they_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever creates and deletes them again and again would fill the memory of the leader."""
    monkeypatch.setattr(releases, "FEW", 4)
    async with followed(monkeypatch) as found:
        found.world.quota("all", selector={"matchLabels": ANN})
        await eventually(lambda: found.used() == {"pods": 1})
        objects = found.sources._objects[CLUSTER]
        informer = objects.informers[pods.EVALUATOR]
        deleted = {"deletionTimestamp": "2300-01-01T00:00:00Z", "deletionGracePeriodSeconds": 10**9}
        for number in range(20):
            await found.api.put("pods", "web", f"p{number}", metadata=deleted)
            await eventually(lambda number=number: informer.get(f"web/p{number}") is not None)
            await found.api.remove("pods", "web", f"p{number}")
            await eventually(lambda number=number: informer.get(f"web/p{number}") is None)
        assert objects.releases._awaited == {}
        assert len(objects.releases._moments) <= 5
        assert found.used() == {"pods": 1}


async def test_a_cluster_with_more_than_fits_is_a_problem_of_that_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind_informer, "MOST", 1_000)
    async with followed(monkeypatch) as found:
        found.world.quota("all", selector={"matchLabels": ANN})
        await eventually(lambda: found.sources and found.problem("all") is not None)
        problem = found.problem("all")
        assert problem is not None and "pods take more than" in problem.message
        assert found.used() is None


@pytest.mark.parametrize(
    ("kind", "role"),
    [("pods", "namespaces"), ("secrets", "secrets"), ("configmaps", "secrets"), ("w.example", "namespaces")],
)
def test_the_role_that_is_missing_is_the_one_that_has_the_right(kind: str, role: str) -> None:
    problem = listing_problem(kind, f"{kind} is forbidden", 403)
    assert problem is not None
    assert f"bind the role of charts/rbac/user-cluster-{role}.yaml there" in problem.message


async def test_an_object_that_cannot_be_read_is_unknown_and_not_nothing(found: Followed) -> None:
    """What counts by number counts all the same. The others go on."""
    found.serve_widgets("v1")
    found.world.quota("all", BOTH, selector={"matchLabels": ANN})
    await eventually(lambda: found.used() == {"pods": 1})
    first = await found.pod("a")
    await found.api.put("pods", "web", "a", spec="none")  # read before
    new = await found.api.put("pods", "web", "new", spec="none")
    widget = await found.api.put("widgets", "web", "w", metadata={"generation": "none"})
    await found.pod("b")
    await eventually(lambda: found.used() == {"pods": 2, "count/widgets.example.com": 1})
    totals = found.source().totals
    assert list(totals.guessed) == [new["metadata"]["uid"]]
    assert totals.seen([first, widget["metadata"]["uid"], new["metadata"]["uid"]]).keys() == {
        first,
        widget["metadata"]["uid"],
    }
    await eventually(lambda: "2 pods" in str(found.problem("all")))
    problem = found.problem("all")
    assert problem is not None and problem.reason == "ResourceNotListed"
    assert "pods cannot be counted: 2 pods cannot be read, such as web/a: " in problem.message
    assert "widgets.example.com cannot be counted: 1 widgets cannot be read, such as web/w: " in problem.message
    with pytest.raises(ApiError, match="pods web/new cannot be read"):
        await found.source().generation("pods:web/new", new["metadata"]["uid"])
    await found.pod("c")
    await eventually(lambda: found.used() == {"pods": 3, "count/widgets.example.com": 1})
    for plural, name in (("pods", "a"), ("pods", "new"), ("widgets", "w")):
        await found.api.remove(plural, "web", name)
    await eventually(lambda: found.used() == {"pods": 2} and found.problem("all") is None)
    assert not totals.guessed
