"""Allocations: what they use, how they are summed up, and how their creation and change are answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import SETTINGS
from common.api.types import MAX_AMOUNT, Allocation, Organization, QuotaSettings, SeedCopy
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.client.resource import Resource
from common.kube.controller.store import Change
from common.quota import fencing
from common.server.http_parser import Request
from seed.kinds.allocations import evaluator as allocations
from seed.kinds.allocations.admission import AllocationAdmission
from seed.kinds.allocations.configuration import CALLER, desired, sample
from seed.kinds.allocations.organizations import OrganizationCache
from seed.kinds.allocations.totals import AllocationTotals
from seed.kinds.allocations.webhook import AllocationWebhook
from seed.model import source_key
from seed.model.source_key import SourceKey
from seed.registration.configuration import WebhookServer
from seed.registration.health import DENIED
from seed.registration.probe import ANNOTATION
from seed.webhooks.endpoint import Endpoint
from seed.webhooks.router import route
from tests.unit.seed_world import ORGANIZATION, PROJECT, SeedWorld, nanos, seed_world

KEY = SourceKey.of_project(source_key.ALLOCATIONS, PROJECT)
NAMESPACE = "org-acme"
Amounts = Mapping[str, tuple[int, int]]
"""Committed and reserved by type."""


def body(
    name: str, amounts: Amounts, *, generation: int = 1, namespace: str = NAMESPACE, **spec: str
) -> dict[str, Any]:
    listed = [{"type": type, "committed": both[0], "reserved": both[1]} for type, both in amounts.items()]
    whose = {"organization": ORGANIZATION, "project": PROJECT, "kind": "cluster", "id": name}
    metadata = {"name": name, "namespace": namespace, "uid": f"{name}-uid", "generation": generation}
    return {"metadata": metadata, "spec": {**whose, "resources": listed, **spec}}


def allocation(name: str = "a", *, generation: int = 1, **amounts: tuple[int, int]) -> Allocation:
    return msgspec.convert(body(name, amounts, generation=generation), Allocation)


# Pure --------------------------------------------------------------------------------------------------------------


def test_the_source_of_a_projects_allocations_is_nobody_elses() -> None:
    assert SourceKey(KEY) == KEY and (KEY.kind, KEY.project) == (source_key.ALLOCATIONS, PROJECT)
    assert SourceKey.of_project(source_key.CLUSTERS, PROJECT).kind == source_key.CLUSTERS


def test_committed_and_reserved_count_together_and_an_update_only_by_what_it_adds() -> None:
    old, new = allocation(servers=(3, 5), clusters=(1, 0)), allocation(servers=(4, 2), clusters=(2, 0), gpus=(0, 0))
    assert allocations.used(old) == nanos("servers=8,clusters=1")
    assert allocations.used(new) == nanos("servers=6,clusters=2")
    assert allocations.added(new, None) == nanos("servers=6,clusters=2")
    assert allocations.added(new, old) == nanos("clusters=1")
    assert allocations.added(old, old) == {}
    assert allocations.used(allocation(servers=(MAX_AMOUNT, MAX_AMOUNT))) == nanos(f"servers={2 * MAX_AMOUNT}")


def test_a_type_that_is_not_known_any_more_may_stay_and_be_lowered_but_not_be_raised_or_come() -> None:
    old = allocation(servers=(3, 0))
    assert allocations.unknown(old, None, {"clusters"}) == [(0, "servers")]
    assert allocations.unknown(allocation(servers=(0, 2)), old, {"clusters"}) == []
    assert allocations.unknown(allocation(servers=(4, 0)), old, {"clusters"}) == [(0, "servers")]
    assert allocations.unknown(allocation(clusters=(1, 0), gpus=(0, 0)), old, {"clusters"}) == [(1, "gpus")]


def test_totals_follow_what_is_raised_lowered_and_released() -> None:
    totals = AllocationTotals()
    assert not totals.put(allocation("a", servers=(3, 5)))
    assert not totals.put(allocation("b", servers=(1, 0), clusters=(1, 0)))
    assert totals.used == nanos("servers=9,clusters=1")
    assert not totals.put(allocation("a", generation=2, servers=(9, 0))), "it only takes more"
    assert totals.put(allocation("a", generation=3, servers=(2, 0))), "something is free"
    assert totals.used == nanos("servers=3,clusters=1")
    assert totals.seen(["a-uid", "other"]) == {"a-uid": 3}
    assert totals.sizes(["a-uid", "other"]) == {"a-uid": nanos("servers=2")}
    assert totals.remove("b-uid") and not totals.remove("b-uid")
    assert totals.used == nanos("servers=2")
    assert totals.gone(["a-uid", "b-uid"]) == {"b-uid"}
    totals.put(allocation("b", servers=(1, 0)))
    assert totals.gone(["b-uid"]) == set(), "a backup brought it back"


def test_the_configuration_asks_about_creation_and_change_of_allocations_alone() -> None:
    made = desired(
        WebhookServer(
            base_url="https://x", token=lambda kind: f"t-{kind}", ca_bundle=b"", timeout_seconds=3, break_glass_group=""
        )
    )
    (webhook,) = made.webhooks
    (rule,) = cast(list[dict[str, Any]], webhook["rules"])
    assert (rule["resources"], rule["operations"], rule["scope"]) == (
        ["allocations"],
        ["CREATE", "UPDATE"],
        "Namespaced",
    )
    assert cast(dict[str, str], webhook["clientConfig"])["url"] == "https://x/allocations/t-allocations"
    assert webhook["failurePolicy"] == "Fail"


# Admission ---------------------------------------------------------------------------------------------------------


class Reads:
    """What a consistent read of the API server finds."""

    name = "seed"

    def __init__(self) -> None:
        self.found: dict[str, object] = {}
        self.error: Exception | None = None
        self.count = 0

    async def find(self, resource: Resource[Any], name: str, _namespace: str | None = None) -> object:
        self.count += 1
        if self.error is not None:
            raise self.error
        found = self.found.get(f"{resource.plural}/{name}")
        return msgspec.convert(found, resource.type) if found is not None else None


class Webhook:
    def __init__(self, world: SeedWorld) -> None:
        self.world = world
        self.reads = Reads()
        cluster = cast(Cluster, self.reads)
        self.organizations = OrganizationCache(cast(Cluster, SimpleNamespace(name="seed")), world.quota_cache)
        seed = msgspec.convert({"metadata": {"name": "seed"}, "spec": {"inCluster": True}}, SeedCopy)
        world.quota_cache._seed_changed(Change(None, seed))
        self.organization(ORGANIZATION, NAMESPACE)
        self.catalogue(servers="Allocations", gpus="Allocations", clusters="Objects")
        admission = AllocationAdmission(cluster, world.quota_cache, self.organizations, world.admission)
        endpoint = Endpoint(AllocationWebhook(admission))
        self.handle = route({"allocations": endpoint}, lambda _name, caller, token: (caller, token) == (CALLER, "t"))

    def organization(self, name: str, namespace: str) -> None:
        found = {"metadata": {"name": name}, "status": {"namespace": namespace}}
        self.organizations._reflector.store._set(name, msgspec.convert(found, Organization))

    def catalogue(self, **sides: str) -> None:
        listed = [{"name": name, "countFrom": side} for name, side in sides.items()]
        settings = {"metadata": {"name": SETTINGS}, "spec": {"resources": listed}}
        self.world.quota_cache.settings.store._set(SETTINGS, msgspec.convert(settings, QuotaSettings))

    async def post(self, request: dict[str, Any]) -> int:
        content = json.dumps({"request": request}).encode()
        return (await self.handle(Request("POST", "/allocations/t", "timeout=3s", content, close=False))).status

    async def ask(
        self, operation: str, new: dict[str, Any], old: dict[str, Any] | None = None, **head: Any
    ) -> dict[str, Any]:
        request = {"uid": "r", "operation": operation, "object": new, "oldObject": old, **head}
        made = Request("POST", "/allocations/t", "timeout=3s", json.dumps({"request": request}).encode(), close=False)
        answer = await self.handle(made)
        assert answer.status == 200, answer.body
        response: dict[str, Any] = json.loads(answer.body)["response"]
        return response

    async def create(
        self, name: str, head: Mapping[str, Any] | None = None, **amounts: tuple[int, int]
    ) -> dict[str, Any]:
        return await self.ask("CREATE", body(name, amounts), **(head or {}))

    async def update(self, name: str, old: Amounts, new: Amounts, generation: int = 2) -> dict[str, Any]:
        return await self.ask("UPDATE", body(name, new, generation=generation), body(name, old))


def code(answer: dict[str, Any]) -> int:
    return 200 if answer["allowed"] else int(answer["status"]["code"])


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[SeedWorld, Webhook]]:
    async with seed_world() as world:
        yield world, Webhook(world)


async def quota(world: SeedWorld, name: str = "org-acme", kind: str = "organization", **amounts: str) -> None:
    await world.quota(name, kind=kind, **amounts)


async def test_it_is_reserved_in_the_quotas_that_limit_its_types_and_refused_with_every_shortage() -> None:
    async with serving() as (world, webhook):
        await quota(world, limits="servers=10,gpus=4", granted="servers=10,gpus=4")
        await quota(world, "project-alpha", "project", limits="servers=20", granted="servers=20")
        assert code(await webhook.create("a", servers=(3, 5), gpus=(4, 0))) == 200
        for name, amount in (("org-acme", "servers=8,gpus=4"), ("project-alpha", "servers=8")):
            kept = world.account(name).reservations[KEY, "a-uid"]
            assert (kept.object, kept.amount) == (f"{NAMESPACE}/a", nanos(amount))
        shown = {"servers": "8", "gpus": "4"}
        copy = world.copies["org-acme"]
        grant = msgspec.structs.replace(copy.status.grant, global_usage=shown, reserved=shown)
        world._put(msgspec.structs.replace(copy, status=msgspec.structs.replace(copy.status, grant=grant)))
        refused = await webhook.create("b", servers=(2, 1), gpus=(1, 0))
        assert code(refused) == 403
        message = refused["status"]["message"]
        assert "exceeded quota: org-acme, requested: gpus=1,servers=3, used: gpus=4,servers=8" in message
        assert "short by gpus=1,servers=1; gpus=4,servers=8 of used is allocations being created" in message
        assert {cause["field"] for cause in refused["status"]["details"]["causes"]} == {"gpus", "servers"}
        assert webhook.reads.count == 0, "what caches know is not read"


async def test_an_update_reserves_what_it_adds_and_lowering_is_always_allowed() -> None:
    async with serving() as (world, webhook):
        await quota(world, limits="servers=10", granted="servers=10")
        before = {"servers": (3, 5)}
        assert code(await webhook.update("a", before, {"servers": (4, 6)})) == 200
        kept = world.account("org-acme").reservations[KEY, "a-uid"]
        assert (kept.amount, kept.generation) == (nanos("servers=2"), 2)
        await world.handle("org-acme").writer.change(
            lambda account: (fencing.fence(account, "n", in_doubt=False), None)
        )
        assert code(await webhook.update("a", before, {"servers": (4, 5)})) == 503
        assert code(await webhook.update("a", before, {"servers": (0, 8)})) == 200
        assert code(await webhook.update("a", before, {"servers": (1, 0)})) == 200
        assert code(await webhook.update("a", before, {})) == 200


async def test_a_quota_that_limits_none_of_its_types_is_not_asked() -> None:
    async with serving() as (world, webhook):
        await quota(world, limits="servers=10", granted="servers=10")
        await quota(world, "project-alpha", "project", limits="cpu=1")
        await world.handle().writer.change(lambda account: (fencing.fence(account, "n", in_doubt=False), None))
        assert code(await webhook.create("a", servers=(1, 0))) == 200
        assert world.account().reservations == {}


async def test_a_dry_run_answers_the_same_and_reserves_nothing() -> None:
    async with serving() as (world, webhook):
        await quota(world, limits="servers=10", granted="servers=10")
        assert code(await webhook.create("a", {"dryRun": True}, servers=(10, 0))) == 200
        assert code(await webhook.create("a", {"dryRun": True}, servers=(11, 0))) == 403
        assert world.account("org-acme").reservations == {}


@pytest.mark.parametrize(
    ("type", "known"), [("server", "gpus, servers"), ("clusters", "gpus, servers"), ("cpu", "gpus")]
)
async def test_a_type_that_is_not_counted_from_allocations_is_refused_and_those_that_are_are_listed(
    type: str, known: str
) -> None:
    async with serving() as (_world, webhook):
        refused = await webhook.create("a", servers=(1, 0), **{type: (1, 0)})
        assert code(refused) == 422
        assert f"unknown resource type: {type};" in refused["status"]["message"]
        assert known in refused["status"]["message"]
        (cause,) = refused["status"]["details"]["causes"]
        assert (cause["reason"], cause["field"]) == ("UnknownResourceType", "spec.resources[1].type")


async def test_of_very_many_types_that_are_not_known_the_first_are_told() -> None:
    """Each is a cause with the whole message."""
    async with serving() as (_world, webhook):
        refused = await webhook.create("a", **{f"type-{number}": (1, 0) for number in range(1000)})
        assert len(refused["status"]["details"]["causes"]) == 32
        assert "type-31 and 968 more;" in refused["status"]["message"]


@pytest.mark.parametrize("spec", [{"organization": "o" * 254}, {"project": "p" * 254}])
async def test_names_that_no_api_server_lets_pass_are_not_read(spec: dict[str, str]) -> None:
    """Who knows a token may send anything, and a refusal is kept and logged."""
    async with serving() as (_world, webhook):
        assert await webhook.post({"uid": "r", "operation": "CREATE", "object": body("a", {}, **spec)}) == 400
        long = body("a", {"t" * 318: (1, 0)})
        assert await webhook.post({"uid": "r", "operation": "CREATE", "object": long}) == 400


async def test_what_the_catalogue_does_not_name_any_more_can_be_lowered_only() -> None:
    async with serving() as (_world, webhook):
        webhook.catalogue(gpus="Allocations")
        before = {"servers": (3, 0)}
        assert code(await webhook.update("a", before, {"servers": (2, 0), "gpus": (1, 0)})) == 200
        refused = await webhook.update("a", before, {"servers": (3, 1)})
        assert code(refused) == 422 and "unknown resource type: servers" in refused["status"]["message"]


async def test_it_must_be_in_its_organizations_namespace_and_of_one_of_its_projects() -> None:
    async with serving() as (_world, webhook):
        webhook.reads.found["organizations/acme"] = {"metadata": {"name": "acme"}, "status": {"namespace": NAMESPACE}}
        webhook.reads.found["projects/alpha"] = {"metadata": {"name": "alpha"}, "spec": {"organization": "acme"}}
        amounts = {"servers": (1, 0)}

        async def refused(**changed: str) -> str:
            answer = await webhook.ask("CREATE", body("a", amounts, **changed))
            assert code(answer) == 403, answer
            return str(answer["status"]["message"])

        assert "Allocations of Organization acme belong in namespace org-acme" in await refused(namespace="default")
        assert "there is no Organization other" in await refused(organization="other")
        assert "Organization acme has no Project beta" in await refused(project="beta")
        webhook.reads.found["organizations/other"] = {
            "metadata": {"name": "other"},
            "status": {"namespace": "org-other"},
        }
        whose = {"organization": "other", "namespace": "org-other"}
        assert "Organization other has no Project alpha" in await refused(**whose)
        webhook.reads.error = Unavailable(0, "Unavailable", "no answer")
        assert code(await webhook.ask("CREATE", body("a", amounts, namespace="default"))) == 503
        assert code(await webhook.ask("UPDATE", body("a", {}, namespace="gone"), body("a", amounts))) == 200


async def test_where_a_project_was_made_again_by_another_organization_that_one_does_not_pay_for_more() -> None:
    """What is there from before counts for the project. Whoever may write in the former namespace could raise it."""
    async with serving() as (world, webhook):
        await quota(world, limits="servers=10", granted="servers=10")
        webhook.organization("former", "org-former")
        webhook.reads.found["organizations/former"] = {
            "metadata": {"name": "former"},
            "status": {"namespace": "org-former"},
        }
        webhook.reads.found["projects/alpha"] = {"metadata": {"name": "alpha"}, "spec": {"organization": "acme"}}
        whose = {"organization": "former", "namespace": "org-former"}

        def servers(committed: int) -> dict[str, Any]:
            return body("a", {"servers": (committed, 0)}, **whose)

        refused = await webhook.ask("UPDATE", servers(4), servers(3))
        assert code(refused) == 403
        assert "Organization former has no Project alpha" in refused["status"]["message"]
        assert world.account("org-acme").reservations == {}
        assert code(await webhook.ask("UPDATE", servers(2), servers(3))) == 200


async def test_what_has_not_come_to_this_replica_yet_is_worth_a_retry() -> None:
    async with serving() as (_world, webhook):
        webhook.organization(ORGANIZATION, "")
        webhook.reads.found["organizations/acme"] = {"metadata": {"name": "acme"}}
        webhook.reads.found["projects/alpha"] = {"metadata": {"name": "alpha"}, "spec": {"organization": "acme"}}
        refused = await webhook.create("a", servers=(1, 0))
        assert code(refused) == 503 and "Organization acme has no namespace yet" in refused["status"]["message"]
        webhook.reads.found["organizations/acme"] = {"metadata": {"name": "acme"}, "status": {"namespace": NAMESPACE}}
        assert code(await webhook.create("a", servers=(1, 0))) == 503
        webhook.organization(ORGANIZATION, NAMESPACE)
        assert code(await webhook.create("a", servers=(1, 0))) == 200


async def test_where_the_seed_is_not_the_masters_cluster_nothing_is_allocated() -> None:
    async with serving() as (world, webhook):
        world.quota_cache.in_cluster = False
        assert code(await webhook.create("a", servers=(1, 0))) == 503


async def test_a_default_quota_that_has_not_come_limits_already() -> None:
    async with serving() as (world, webhook):
        defaults = {"organization": {"quota": {"servers": 1}}}
        settings = {"defaults": defaults, "resources": [{"name": "servers", "countFrom": "Allocations"}]}
        found = msgspec.convert({"metadata": {"name": SETTINGS}, "spec": settings}, QuotaSettings)
        world.quota_cache.settings.store._set(SETTINGS, found)
        assert code(await webhook.create("a", servers=(1, 0))) == 503


async def test_a_canary_is_refused_before_anything_is_asked_and_only_as_a_dry_run() -> None:
    async with serving() as (_, webhook):
        canary = sample("seedquota")
        metadata = {"name": "c", "namespace": "seedquota", "uid": "c", "annotations": {ANNOTATION: "true"}}
        sent = {"metadata": metadata, "spec": canary.spec}
        answer = await webhook.ask("CREATE", sent, dryRun=True)
        assert code(answer) == 403 and answer["status"]["details"]["causes"][0]["reason"] == DENIED
        assert webhook.reads.count == 0
        answer = await webhook.ask("CREATE", sent)
        assert code(answer) == 403 and "there is no Organization seedquota-canary" in answer["status"]["message"]
