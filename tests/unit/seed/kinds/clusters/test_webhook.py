"""`clusters`: how they are counted, on an API server that can be made to lag, and how their creation is answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from common.api.types import DefaultQuota, Defaults, QuotaSettings, QuotaSettingsSpec
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Unavailable
from common.kube.client.meta import ObjectMeta
from common.kube.controller.discovery import Served
from common.kube.controller.reflector import moment
from common.quota import fencing
from common.quota.account import Reservation
from common.server.http_parser import Request
from seed.accounts.account_sources import AccountSources
from seed.kinds.clusters.configuration import CALLER, desired, sample
from seed.kinds.clusters.evaluator import NOTHING, ONE, Owned, kinds
from seed.kinds.clusters.same_cluster import DuplicateClusters
from seed.kinds.clusters.source import ClusterSources
from seed.kinds.clusters.totals import ClusterTotals
from seed.kinds.clusters.webhook import ClusterWebhook
from seed.model import source_key
from seed.model.cluster_key import is_hosted
from seed.model.source_key import SourceKey
from seed.registration.configuration import WebhookServer
from seed.registration.health import DENIED
from seed.registration.probe import ANNOTATION
from seed.webhooks.endpoint import Endpoint
from seed.webhooks.router import route
from tests.running import running
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, eventually, fake_api_server, status
from tests.unit.seed_world import PROJECT, SeedWorld, amounts, nanos, seed_world

KINDS = kinds("seedquota.io/project")
KEY = SourceKey.of_project(source_key.CLUSTERS, "alpha")
CRD = "clusters.cluster.x-k8s.io"


class Counting:
    """The sources of one seed, and what they told."""

    def __init__(self, api: FakeApiServer, cluster: Cluster) -> None:
        self.api = api
        self.changes: list[tuple[str, bool]] = []
        self.states: list[str] = []
        self.served = Served(cluster)
        self.sources = ClusterSources(
            cluster,
            self.served,
            KINDS,
            on_change=lambda source, freed: self.changes.append((source.key, freed)),
            on_state=lambda source: self.states.append(source.key),
        )
        self.alpha = self.sources[KEY]

    def uses(self, count: int, project: str = "alpha") -> bool:
        source = self.sources[SourceKey.of_project(source_key.CLUSTERS, project)]
        return source.counted and source.totals.used == (nanos(f"clusters={count}") if count else {})

    async def user_cluster(self, name: str, project: str = "alpha", **metadata: Any) -> str:
        made = await self.api.put("userclusters", "alpha", name, metadata=metadata, spec={"project": project})
        return str(made["metadata"]["uid"])

    async def cluster(self, name: str, project: str = "alpha") -> str:
        labels = {"labels": {"seedquota.io/project": project}}
        made = await self.api.put("clusters", "alpha", name, metadata=labels, spec={})
        return str(made["metadata"]["uid"])

    async def serve(self, *, served: bool = True) -> None:
        spec = {
            "group": "cluster.x-k8s.io",
            "names": {"kind": "Cluster", "plural": "clusters"},
            "versions": [{"name": "v1beta2", "served": served, "storage": True}],
        }
        conditions = {"conditions": [{"type": "Established", "status": "True"}]}
        await self.api.put("customresourcedefinitions", "", CRD, spec=spec, status=conditions)


@asynccontextmanager
async def counting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counting]:
    monkeypatch.setitem(fakes.PLURALS, "userclusters", ("seedquota.io/v1alpha1", "UserCluster"))
    monkeypatch.setitem(fakes.PLURALS, "clusters", ("cluster.x-k8s.io/v1beta2", "Cluster"))
    monkeypatch.setitem(
        fakes.PLURALS, "customresourcedefinitions", ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    )
    async with fake_api_server() as api:
        cluster = api.cluster()
        found = Counting(api, cluster)
        async with running(found.served.run(), found.sources.run()):
            yield found


@pytest_asyncio.fixture
async def found(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counting]:
    async with counting(monkeypatch) as made:
        yield made


def owned(name: str, uid: str = "") -> Owned:
    return Owned(metadata=ObjectMeta(name=name, namespace="alpha", uid=uid or f"{name}-uid"))


def test_a_projects_source_is_nobodys_user_cluster() -> None:
    assert KEY.project == "alpha"
    assert SourceKey("alpha/clusters").project == ""
    assert not is_hosted(KEY)


def test_objects_of_one_name_are_one_cluster_until_the_last_is_gone() -> None:
    totals = ClusterTotals()
    totals.put(owned("a"))
    totals.put(owned("a", "twin"))
    totals.put(owned("b"))
    assert totals.used == nanos("clusters=2")
    assert totals.seen(["a-uid", "twin", "other"]) == {"a-uid": 0, "twin": 0}
    assert not totals.remove("a-uid")
    assert totals.used == nanos("clusters=2")
    assert totals.remove("twin")
    assert totals.remove("b-uid")
    assert totals.used == {}
    assert totals.gone(["a-uid", "twin", "b-uid", "other"]) == {"a-uid", "twin", "b-uid"}
    assert not totals.remove("b-uid"), "it is gone already"


def reserved(name: str, amount: dict[str, int]) -> Reservation:
    return Reservation(source=KEY, object=f"alpha/{name}", amount=amount)


def test_what_was_admitted_for_nothing_keeps_its_cluster_in_the_count_until_it_was_seen() -> None:
    totals = ClusterTotals()
    totals.put(owned("a"))
    reservations = {
        "twin": reserved("a", NOTHING),
        "c-uid": reserved("c", ONE),
    }
    assert totals.used_beside(reservations) == nanos("clusters=1")
    totals.remove("a-uid")
    assert totals.used == {}
    assert totals.used_beside(reservations) == nanos("clusters=1"), "nobody else may have its place"
    totals.put(owned("a", "twin"))
    assert totals.used_beside(reservations) == nanos("clusters=1")
    totals.remove("twin")
    assert totals.used_beside(reservations) == {}


async def test_clusters_of_every_api_are_counted_for_their_projects(found: Counting) -> None:
    await found.serve()
    await found.user_cluster("a")
    await found.user_cluster("b", deletionTimestamp="2026-11-20T10:00:00Z", finalizers=["example.com/x"])
    await found.user_cluster("c", "beta")
    await found.cluster("d")
    await found.cluster("nobodys", "")
    await eventually(lambda: found.uses(3) and (KEY, True) in found.changes)
    assert found.uses(1, "beta")
    assert KEY in found.states
    await found.api.remove("userclusters", "alpha", "b")
    await eventually(lambda: found.uses(2))
    assert found.changes[-1] == (KEY, True)


async def test_a_status_that_changes_is_no_news(found: Counting) -> None:
    await found.user_cluster("a")
    await eventually(lambda: found.uses(1) and (KEY, True) in found.changes)
    before = list(found.changes)
    await found.api.put("userclusters", "alpha", "a", spec={"project": "alpha"}, status={"machines": 3})
    await found.user_cluster("b", "beta")
    await eventually(lambda: found.uses(1, "beta"))
    assert found.changes == [*before, (SourceKey.of_project(source_key.CLUSTERS, "beta"), False)]


async def test_a_label_that_moves_takes_the_cluster_along(found: Counting) -> None:
    await found.serve()
    uid = await found.cluster("a")
    await eventually(lambda: found.uses(1) and (KEY, True) in found.changes)
    assert await found.alpha.generation("alpha/a", uid) == 0
    await found.cluster("a", "beta")
    await eventually(lambda: found.uses(1, "beta"))
    assert found.uses(0)
    assert found.changes[-2:] == [(KEY, True), (SourceKey.of_project(source_key.CLUSTERS, "beta"), False)]
    assert found.alpha.totals.gone([uid]) == {uid}
    assert await found.alpha.generation("alpha/a", uid) is None, "what was reserved for it here can go"
    assert await found.sources[SourceKey.of_project(source_key.CLUSTERS, "beta")].generation("alpha/a", uid) == 0


async def test_a_demanded_list_is_one_of_every_kind_that_begins_later(found: Counting) -> None:
    await found.serve()
    await eventually(lambda: found.uses(0) and found.sources._following.get(CRD) is not None)
    before = found.api.lists
    demanded = moment()
    found.alpha.relist()
    assert found.alpha.listed_from <= demanded
    found.states.clear()
    await eventually(lambda: found.alpha.listed_from > demanded)
    assert KEY in found.states
    assert found.api.lists == before + 2


async def test_a_kind_that_is_not_followed_yet_proves_nothing(found: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    await eventually(lambda: found.uses(0))
    assert await found.alpha.generation("alpha/a", "uid") is None, "there is no such kind"
    found.served.crds.relist()
    monkeypatch.setattr(found.served, "find", lambda _wanted, _now=None: None)  # its watch lags
    await found.serve()
    uid = await found.cluster("a")
    with pytest.raises(Unavailable, match="not followed yet"):
        await found.alpha.generation("alpha/a", uid)


async def test_where_crds_may_not_be_read_there_are_no_other_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbidden(request: web.Request) -> web.Response | None:
        return status(403, "Forbidden") if "customresourcedefinitions" in request.path else None

    async with counting(monkeypatch) as found:
        found.api.answers += [forbidden] * 10_000
        uid = await found.user_cluster("a")
        await eventually(lambda: found.uses(1))
        assert await found.alpha.generation("alpha/a", uid) == 0
        assert await found.alpha.generation("alpha/b", "never-came") is None


async def test_a_kind_that_comes_is_counted_and_one_that_goes_is_free(found: Counting) -> None:
    await found.user_cluster("a")
    await found.cluster("b")
    await eventually(lambda: found.uses(1))
    await found.serve()
    await eventually(lambda: found.uses(2))
    await found.api.remove("customresourcedefinitions", "", CRD)
    await eventually(lambda: found.uses(1))


async def test_a_kind_that_is_defined_and_not_served_keeps_its_count(
    found: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await found.serve()
    await found.user_cluster("a")
    uid = await found.cluster("b")
    await eventually(lambda: found.uses(2))
    monkeypatch.delitem(fakes.PLURALS, "clusters")
    await found.serve(served=False)
    await eventually(lambda: found.alpha.problem is not None)
    assert found.alpha.problem is not None and found.alpha.problem.reason == "ResourceNotListed"
    assert "clusters" in found.alpha.problem.message and "404" in found.alpha.problem.message
    await found.user_cluster("c")
    await eventually(lambda: found.uses(3))
    assert not found.alpha.live
    with pytest.raises(ApiError):
        await found.alpha.generation("alpha/b", uid)
    monkeypatch.setitem(fakes.PLURALS, "clusters", ("cluster.x-k8s.io/v1beta2", "Cluster"))
    await found.serve()
    await eventually(lambda: found.alpha.problem is None and found.uses(3))


async def test_a_leader_that_never_saw_a_kind_served_counts_nothing(
    found: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await found.serve(served=False)
    monkeypatch.delitem(fakes.PLURALS, "clusters")
    await found.user_cluster("a")
    found.served.crds.relist()
    await eventually(lambda: found.alpha.problem is not None)
    assert not found.alpha.counted and found.alpha.listed_from == 0
    await found.api.remove("customresourcedefinitions", "", CRD)
    await eventually(lambda: found.uses(1) and found.alpha.problem is None)


async def test_an_api_server_that_does_not_answer_leaves_the_count_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_request: object) -> object:
        return status(500, "InternalError")

    async with counting(monkeypatch) as found:
        await found.user_cluster("a")
        await eventually(lambda: found.uses(1) and found.alpha.current)
        found.api.answers += [broken] * 10_000
        found.alpha.relist()
        await eventually(lambda: found.alpha.problem is not None)
        assert found.alpha.problem is not None
        assert found.alpha.problem.reason == "Unreachable"
        assert found.alpha.lost_at is not None
        assert found.uses(1)
        found.api.answers.clear()
        await eventually(lambda: found.alpha.problem is None)
        assert found.alpha.lost_at is None


# Admission ---------------------------------------------------------------------------------------------------------


class FakeTwins(DuplicateClusters):
    """The test says what was seen last, and what a consistent read finds."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.found: bool | ApiError = True

    def known(self, _group: str, cluster: ObjectMeta, _project: str) -> bool:
        return cluster.name in self.seen

    async def there(self, _group: str, _cluster: ObjectMeta, _project: str) -> bool:
        if isinstance(self.found, ApiError):
            raise self.found
        return self.found


class Webhook:
    def __init__(self, world: SeedWorld) -> None:
        self.decisions: list[tuple[str, str]] = []
        self.twins = FakeTwins()
        endpoint = Endpoint(
            ClusterWebhook(world.quota_cache, world.admission, KINDS, cast(DuplicateClusters, self.twins)),
            lambda _kind, decision, reason, _path, _seconds: self.decisions.append((decision, reason)),
        )
        self.handle = route({"clusters": endpoint}, lambda _name, caller, token: (caller, token) == (CALLER, "t"))

    async def post(self, request: dict[str, Any], token: str = "t") -> tuple[int, str]:
        body = json.dumps({"request": {"uid": "r", **request}}).encode()
        made = Request("POST", f"/clusters/{token}", "timeout=3s", body, close=False)
        answer = await self.handle(made)
        return answer.status, answer.body.decode()

    async def create(self, name: str, project: str = PROJECT, **request: Any) -> dict[str, Any]:
        made = {"metadata": meta(name), "spec": {"project": project}}
        resource = {"group": "seedquota.io", "resource": "userclusters"}
        code, text = await self.post({"operation": "CREATE", "resource": resource, "object": made, **request})
        assert code == 200, text
        answer: dict[str, Any] = json.loads(text)["response"]
        return answer


def meta(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "alpha", "uid": f"{name}-uid"}


def code(answer: dict[str, Any]) -> int:
    return 200 if answer["allowed"] else int(answer["status"]["code"])


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[SeedWorld, Webhook]]:
    async with seed_world() as world:
        yield world, Webhook(world)


async def test_a_cluster_is_reserved_by_its_uid_in_every_quota_or_in_none() -> None:
    async with serving() as (world, webhook):
        await world.quota(limits="clusters=3", granted="clusters=3")
        await world.quota("org-acme", limits="clusters=1", granted="clusters=1", kind="organization")
        assert code(await webhook.create("a")) == 200
        kept = world.account().reservations[KEY, "a-uid"]
        assert (kept.source, kept.object, kept.amount) == (KEY, "alpha/a", nanos("clusters=1"))
        assert code(await webhook.create("a")) == 200, "a repeat costs nothing"
        world.tell("org-acme", usage="clusters=1")
        refused = await webhook.create("b")
        assert "exceeded quota: org-acme, requested: clusters=1, used: clusters=1" in refused["status"]["message"]
        assert "clusters=1 of used is" not in refused["status"]["message"]
        await eventually(lambda: list(world.account().reservations) == [(KEY, "a-uid")])
        assert webhook.decisions == [("allowed", ""), ("allowed", ""), ("denied", "QuotaExceeded")]


async def test_an_object_for_a_cluster_that_is_there_costs_nothing() -> None:
    async with serving() as (world, webhook):
        await world.quota(limits="clusters=1", granted="clusters=1", used="clusters=1")
        webhook.twins.seen.add("a")
        assert code(await webhook.create("a")) == 200
        assert world.account().reservations[KEY, "a-uid"].amount == nanos("clusters=0")
        webhook.twins.found = Unavailable(0, "Unavailable", "no answer")
        unclear = await webhook.create("a")
        assert code(unclear) == 503
        assert "what stands for the same cluster cannot be read now: no answer" in unclear["status"]["message"]
        webhook.twins.found = False
        assert code(await webhook.create("a")) == 403, "it went meanwhile"
        world.limit("project-alpha", amounts("clusters=2"))
        world.tell(granted=amounts("clusters=2"))
        assert code(await webhook.create("a")) == 200
        assert world.account().reservations[KEY, "a-uid"].amount == nanos("clusters=1")


async def test_a_refusal_tells_clusters_that_are_being_created() -> None:
    async with serving() as (world, webhook):
        await world.quota(limits="clusters=1", granted="clusters=1")
        world.tell(usage="clusters=1", reserved="clusters=1")
        assert code(await webhook.create("a")) == 200
        text = (await webhook.create("b"))["status"]["message"]
        assert "short by clusters=1; clusters=1 of used is clusters being created; retrying helps after" in text


async def test_clusters_of_cluster_api_with_a_project_cost_the_same() -> None:
    async with serving() as (world, webhook):
        await world.quota(limits="clusters=0")
        resource = {"group": "cluster.x-k8s.io", "resource": "clusters"}
        for labels, expected in (({"seedquota.io/project": PROJECT}, 403), ({}, 200)):
            made = {"metadata": {**meta("a"), "labels": labels}, "spec": {}}
            assert code(await webhook.create("a", resource=resource, object=made)) == expected


async def test_a_dry_run_decides_and_reserves_nothing() -> None:
    async with serving() as (world, webhook):
        await world.quota(limits="clusters=1", granted="clusters=1")
        assert code(await webhook.create("a", dryRun=True)) == 200
        assert world.account().reservations == {}
        world.tell(usage="clusters=1")
        world.limit("project-alpha", amounts("clusters=0"))
        assert code(await webhook.create("a", dryRun=True)) == 403


async def test_only_creation_is_asked_about() -> None:
    async with serving() as (world, webhook):
        await world.quota(limits="clusters=0")
        assert code(await webhook.create("a")) == 403
        for operation in ("UPDATE", "DELETE"):
            assert code(await webhook.create("a", operation=operation)) == 200
        assert code(await webhook.create("a", operation="DELETE", object=None)) == 200


async def test_where_nobody_limits_clusters_no_fence_and_no_unknown_project_keeps_one_from_being_made() -> None:
    async with serving() as (world, webhook):
        handle = await world.quota(limits="cpu=1", granted="cpu=1")
        await world.quota("org-acme", limits="cpu=1", granted="cpu=1", kind="organization")
        await handle.writer.change(lambda account: (fencing.fence(account, "n"), None))
        assert code(await webhook.create("a")) == 200
        assert world.account().reservations == {}
        assert code(await webhook.create("b", "unknown")) == 200
        world.limit("project-alpha", amounts("cpu=1,clusters=5"))
        assert code(await webhook.create("a")) == 503
        world.limit("org-acme", amounts("clusters=5"))
        assert code(await webhook.create("b", "unknown")) == 503, "its organization may have a quota"


async def test_a_replica_that_may_not_know_who_limits_clusters_admits_none_of_a_project() -> None:
    async with serving() as (world, webhook):
        world.admission._stale = lambda: "this replica has had no answer from the API server for 31 s"
        refused = await webhook.create("a")
        assert code(refused) == 503
        assert "has had no answer from the API server for 31 s" in refused["status"]["message"]


async def test_a_default_quota_that_has_not_come_is_waited_for_if_it_limits_clusters() -> None:
    async with serving() as (world, webhook):
        for limits, expected in (("cpu=1", 200), ("clusters=1", 503)):
            settings = QuotaSettings(
                metadata=ObjectMeta(name="default"),
                spec=QuotaSettingsSpec(defaults=Defaults(project=DefaultQuota(quota=dict(amounts(limits))))),
            )
            world.quota_cache.settings.store._set("default", settings)
            assert code(await webhook.create("a")) == expected


async def test_who_is_not_the_seeds_api_server_is_not_answered() -> None:
    async with serving() as (_world, webhook):
        assert (await webhook.post({}, token="another"))[0] == 404
        assert (await webhook.post({"operation": "CREATE"}))[0] == 400
        resource = {"group": "seedquota.io", "resource": "userclusters"}
        nameless = {"metadata": {"name": "a b", "namespace": "alpha", "uid": "u"}, "spec": {"project": "alpha"}}
        assert (await webhook.post({"operation": "CREATE", "resource": resource, "object": nameless}))[0] == 400


def test_the_configuration_asks_about_creation_alone_and_fails_closed() -> None:
    found = desired(
        KINDS,
        WebhookServer(base_url="https://a", token=str, ca_bundle=b"", timeout_seconds=3, break_glass_group="glass"),
    )
    (webhook,) = found.webhooks
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "NoneOnDryRun"
    assert webhook["clientConfig"] == {"url": "https://a/clusters/clusters", "caBundle": ""}
    rules = webhook["rules"]
    assert isinstance(rules, list)
    assert [(rule["apiGroups"], rule["resources"], rule["operations"]) for rule in rules] == [
        (["seedquota.io"], ["userclusters"], ["CREATE"]),
        (["cluster.x-k8s.io"], ["clusters"], ["CREATE"]),
        (["kubermatic.k8c.io"], ["clusters"], ["CREATE"]),
    ]
    assert [rule["scope"] for rule in rules] == ["Namespaced", "Namespaced", "Cluster"]
    assert "glass" in str(webhook["matchConditions"])


async def test_where_allocations_are_counted_a_cluster_costs_nothing() -> None:
    async with serving() as (world, webhook):
        await world.quota(limits="clusters=0", granted="")
        assert code(await webhook.create("a")) == 403
        counted = {"name": "clusters", "countFrom": "Allocations"}
        settings = {"metadata": {"name": "default"}, "spec": {"resources": [counted]}}
        world.quota_cache.settings.store._set("default", msgspec.convert(settings, QuotaSettings))
        assert code(await webhook.create("a")) == 200
        sources = AccountSources(world.registry, {})
        both = {**ONE, **nanos("cpu=1")}
        assert sources.counted(KEY, both) == nanos("cpu=1")
        assert sources.counted(SourceKey.of_project(source_key.ALLOCATIONS, PROJECT), both) == ONE


async def test_a_canary_is_refused_and_reserves_nothing() -> None:
    async with serving() as (world, webhook):
        await world.quota(limits="clusters=3", granted="clusters=3")
        canary = sample("seedquota")
        made = {"metadata": {**meta("c"), "annotations": {ANNOTATION: "true"}}, "spec": canary.spec}
        answer = await webhook.create("c", object=made, dryRun=True)
        assert code(answer) == 403 and answer["status"]["details"]["causes"][0]["reason"] == DENIED
        made["spec"] = {"project": PROJECT}
        assert code(await webhook.create("c", object=made)) == 200, "one that is really made is no canary"
        assert list(world.account().reservations) == [(KEY, "c-uid")]
        assert code(await webhook.create("c", object=made, dryRun=True)) == 403
