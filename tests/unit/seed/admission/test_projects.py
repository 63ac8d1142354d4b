"""What is refused in a cluster whose project is unknown, and what its condition says."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.types import Condition, QuotaSettings, UserCluster
from common.server.http_parser import Request
from seed.admission import projects
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.controllers.user_cluster_conditions import judge as conditions_of
from seed.kinds.machines.admission import MachineAdmission
from seed.kinds.machines.source import Source
from seed.kinds.machines.totals import MachineTotals
from seed.kinds.machines.webhook import MachineWebhook
from seed.model.cluster_key import HOSTED, KUBERMATIC
from seed.registration.health import Proof
from seed.webhooks.endpoint import Endpoint
from tests.unit.seed.kinds.clusters.test_webhook import Webhook, code
from tests.unit.seed.kinds.machines.test_webhook import machine, review
from tests.unit.seed_world import PROJECT, SeedWorld, nanos, sizing

TYPO = "alhpa"
SAID = (
    "project alhpa is unknown: this seed has no Project of that name and no quota for it; an administrator must create"
)


def condition(kind: str, reason: str) -> Condition:
    return Condition(type=kind, status="True", reason=reason)


def recorded(reason: str) -> list[Condition]:
    return [condition("Ready", "Enforced"), condition(projects.CONDITION, reason)]


def declare(cluster_cache: ClusterCache, project: str = TYPO, before: list[Condition] | None = None) -> UserCluster:
    status = {"conditions": msgspec.to_builtins(before or [])}
    cluster = msgspec.convert(
        {
            "metadata": {"name": "typo", "namespace": "alpha", "uid": "typo-uid"},
            "spec": {"project": project},
            "status": status,
        },
        UserCluster,
    )
    cluster_cache.user_clusters.store._set(cluster.metadata.key, cluster)
    return cluster


def allow(quota_cache: QuotaCache, word: str = "Allow") -> None:
    settings = {"metadata": {"name": "default"}, "spec": {"unknownProjects": word}}
    quota_cache.settings.store._set("default", msgspec.convert(settings, QuotaSettings))


async def ask(world: SeedWorld, **request: Any) -> tuple[int, str, list[str]]:
    """A Machine in the cluster `typo`."""
    webhook = MachineWebhook(world.cluster_cache, MachineAdmission(world.quota_cache, world.admission, sizing()))
    body = json.dumps(review(machine("8"), **request)).encode()
    request_to_it = Request("POST", "/machines/typo-uid/t", "timeout=3s", body, close=False)
    answer = await Endpoint(webhook).handle("typo-uid", request_to_it)
    response = json.loads(answer.body)["response"]
    if response["allowed"]:
        return 200, "", []
    causes = response["status"].get("details", {}).get("causes", [])
    return int(response["status"]["code"]), response["status"]["message"], [cause["reason"] for cause in causes]


@pytest.mark.parametrize(
    ("known", "has_copies", "allowed", "before", "expected"),
    [
        (True, True, False, [], ("True", "ProjectFound")),
        (False, True, False, [], ("False", "UnknownProject")),
        (False, True, False, recorded("UnknownProject"), ("False", "UnknownProject")),
        (False, True, False, recorded("NothingCopied"), ("False", "UnknownProject")),
        (False, True, False, recorded("ProjectFound"), ("False", "AllowedBefore")),
        (False, True, False, recorded("AllowedBefore"), ("False", "AllowedBefore")),
        (False, True, False, recorded("AllowedBySettings"), ("False", "AllowedBefore")),
        (False, True, False, [condition("Ready", "Enforced")], ("False", "AllowedBefore")),
        (False, False, False, recorded("ProjectFound"), ("False", "AllowedBefore")),
        (False, False, False, [], ("Unknown", "NothingCopied")),
        (False, True, True, recorded("UnknownProject"), ("False", "AllowedBySettings")),
        (True, True, False, recorded("UnknownProject"), ("True", "ProjectFound")),
    ],
    ids=[
        "known",
        "new",
        "refused before",
        "nothing was copied when it came",
        "its Project is gone",
        "allowed before",
        "allowed by settings before",
        "from before this was checked",
        "all copies are gone",
        "nothing was copied",
        "settings allow it",
        "its Project came",
    ],
)
def test_what_is_said_of_a_project(
    known: bool, has_copies: bool, allowed: bool, before: list[Condition], expected: tuple[str, str]
) -> None:
    found = projects.judge(before, known=known, has_copies=has_copies, allowed=allowed)
    assert (found.status, found.reason) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("alhpa", "alpha"), ("alpa", "alpha"), ("alphaa", "alpha"), ("alphs", "alpha"), ("beta", ""), ("alpha", "alph")],
)
def test_a_name_that_is_one_typing_error_away_is_found(name: str, expected: str) -> None:
    assert (
        projects.nearest(name, {"alpha", "alph"}.__contains__ if name == "alpha" else {"alpha"}.__contains__)
        == expected
    )


def test_the_longest_name_costs_a_bounded_number_of_looks() -> None:
    looks: list[str] = []
    assert projects.nearest("a" * 63, lambda name: bool(looks.append(name))) == ""
    assert len(looks) < 5200


async def test_no_machine_can_be_created_in_a_new_cluster_whose_project_is_unknown(world: SeedWorld) -> None:
    declare(world.cluster_cache)
    status, message, causes = await ask(world)
    assert (status, causes) == (403, ["UnknownProject"])
    assert message.startswith(SAID)
    assert "did you mean" not in message, "a tenant reads it"


async def test_what_is_there_can_be_changed_and_deleted(world: SeedWorld) -> None:
    declare(world.cluster_cache)
    assert (await ask(world, old=machine("4")))[0] == 200
    assert (await ask(world, operation="DELETE"))[0] == 200


async def test_a_quota_for_it_makes_a_project_known(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64")
    world.forget_project()
    declare(world.cluster_cache, PROJECT)
    assert (await ask(world))[0] == 200
    assert [kept.amount["cpu"] for kept in world.account().reservations.values()] == [nanos("cpu=8")["cpu"]]
    world.remove("project-alpha")
    assert (await ask(world))[0] == 200, "nothing is copied here any more"


@pytest.mark.parametrize("before", ["ProjectFound", "AllowedBefore", "AllowedBySettings"])
async def test_a_cluster_that_was_allowed_before_goes_on(world: SeedWorld, before: str) -> None:
    declare(world.cluster_cache, before=recorded(before))
    assert (await ask(world))[0] == 200


async def test_settings_can_allow_unknown_projects(world: SeedWorld) -> None:
    declare(world.cluster_cache, before=recorded("UnknownProject"))
    allow(world.quota_cache, "Deny")
    assert (await ask(world))[0] == 403
    allow(world.quota_cache)
    assert (await ask(world))[0] == 200


async def test_where_an_organization_may_limit_it_the_answer_is_503(world: SeedWorld) -> None:
    await world.quota("by-organization", limits="cpu=64", granted="cpu=64", kind="organization")
    declare(world.cluster_cache)
    status, message, _causes = await ask(world)
    assert status == 503
    assert "what limits project alhpa has not come from the master" in message


async def test_a_replica_that_does_not_know_what_is_new_refuses_for_no_unknown_project(world: SeedWorld) -> None:
    declare(world.cluster_cache)
    world.admission._stale = lambda: "this replica has had no answer from the API server for 31 s"
    assert (await ask(world))[0] == 503


@pytest.mark.parametrize("prefix", [HOSTED, KUBERMATIC])
async def test_a_cluster_of_another_api_that_is_there_goes_on(world: SeedWorld, prefix: str) -> None:
    body = {"metadata": {"name": f"{prefix}c", "namespace": "alpha", "uid": "u"}, "spec": {"project": TYPO}}
    cluster = msgspec.convert(body, UserCluster)
    assert projects.refuse_machine(world.quota_cache, cluster) is None
    assert projects.standing(world.quota_cache, cluster).reason == "AllowedBefore"


async def test_a_new_user_cluster_gets_a_warning_and_one_of_another_api_is_refused(world: SeedWorld) -> None:
    webhook = Webhook(world)
    made = await webhook.create("a", TYPO)
    assert code(made) == 200
    (warning,) = made["warnings"]
    assert warning.endswith("no Machine can be created; create the Project; did you mean alpha?")
    for group, metadata in (
        ("cluster.x-k8s.io", {"namespace": "alpha", "labels": {"seedquota.io/project": TYPO}}),
        ("kubermatic.k8c.io", {"labels": {"project-id": TYPO}}),
    ):
        hosted = {"metadata": {"name": "a", "uid": "u", **metadata}, "spec": {}}
        resource = {"group": group, "resource": "clusters"}
        refused = await webhook.create("a", resource=resource, object=hosted)
        assert code(refused) == 403
        assert refused["status"]["message"].startswith(SAID)
        allow(world.quota_cache)
        assert code(await webhook.create("a", resource=resource, object=hosted)) == 200
        allow(world.quota_cache, "Deny")
    assert "warnings" not in await webhook.create("a", PROJECT)


@pytest.mark.parametrize(
    ("allowed", "ready", "reason", "words"),
    [
        (
            False,
            "False",
            "UnknownProject",
            "no Machine can be created; create the Project on the master; did you mean alpha?",
        ),
        (True, "True", "Enforced", ""),
    ],
)
async def test_a_cluster_is_not_ready_while_its_project_is_unknown_unless_settings_allow_that(
    world: SeedWorld, allowed: bool, ready: str, reason: str, words: str
) -> None:
    cluster = declare(world.cluster_cache)
    if allowed:
        allow(world.quota_cache)
    source = SimpleNamespace(problem=None, current=True, drift=SimpleNamespace(count=0), totals=MachineTotals())
    keeper = SimpleNamespace(in_place=True, error=None, contested=False, wanted=lambda: True)
    proof = Proof(True, "CanaryDenied")
    unsized = MachineTotals().unsized(set())
    shown = projects.shown(world.quota_cache, cluster)
    found = conditions_of(cluster, cast(Source, source), cast(Any, keeper), proof, unsized, shown)
    by_type = {each.type: each for each in found}
    assert (by_type["Ready"].status, by_type["Ready"].reason) == (ready, reason)
    assert words in by_type["Ready"].message
    assert by_type["ProjectKnown"].status == "False"


async def test_it_is_said_where_no_machine_can_be_created_since_the_project_is_gone_and_its_quota_is_not(
    world: SeedWorld,
) -> None:
    cluster = declare(world.cluster_cache, PROJECT)
    await world.quota(limits="cpu=1")
    assert projects.shown(world.quota_cache, cluster).reason == "ProjectFound"
    world.forget_project()
    assert projects.shown(world.quota_cache, cluster).reason == "ProjectFound", "its quota is all that limits it"
    await world.quota("of-acme", limits="cpu=9", subject={"kind": "organization", "name": "acme"})
    found = projects.shown(world.quota_cache, cluster)
    assert (found.status, found.reason) == ("Unknown", "ProjectMissing")
    assert "no Machine can be created until the Project is there" in found.message
    cluster = declare(world.cluster_cache, PROJECT, recorded("ProjectMissing"))
    world.remove("project-alpha")
    assert projects.shown(world.quota_cache, cluster).reason == "AllowedBefore"
    assert "no Machine can be created" in projects.shown(world.quota_cache, cluster).message


@pytest.mark.parametrize(("organization", "kind"), [("", "project"), ("acme", "organization")])
async def test_it_is_said_where_no_machine_can_be_created_since_a_default_quota_is_missing(
    world: SeedWorld, organization: str, kind: str
) -> None:
    """Of an Organization that does not exist, it never comes."""
    cluster = declare(world.cluster_cache, PROJECT)
    if organization:
        world.join(organization)
    defaults = {kind: {"quota": {"cpu": "4"}, "enforcement": "deny"}}
    settings = {"metadata": {"name": "default"}, "spec": {"defaults": defaults}}
    world.quota_cache.settings.store._set("default", msgspec.convert(settings, QuotaSettings))
    found = projects.shown(world.quota_cache, cluster)
    assert (found.status, found.reason) == ("Unknown", "QuotaMissing")
    assert (f"an Organization {organization} on the master" in found.message) == bool(organization)
    subject = {"kind": kind, "name": organization or PROJECT}
    await world.quota("default", limits="cpu=4", subject=subject)
    assert projects.shown(world.quota_cache, cluster).reason == "ProjectFound"
    gone = declare(world.cluster_cache, "other", recorded("QuotaMissing"))
    assert projects.standing(world.quota_cache, gone).reason == "AllowedBefore"


async def test_its_clusters_are_looked_at_when_a_project_comes_and_goes(world: SeedWorld) -> None:
    told: list[str] = []
    world.cluster_cache.on_user_cluster(told.append)
    for change in (world.forget_project, lambda: world.join("acme"), lambda: world.remove("project-alpha")):
        if not told:
            await world.quota(limits="cpu=1")
            assert told == ["alpha/c1"]
        told.clear()
        change()
        assert told == ["alpha/c1"]
