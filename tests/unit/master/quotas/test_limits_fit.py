"""Limits of projects beside those of their organization."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.kube.client.meta import ObjectMeta
from common.kube.controller.store import Change
from common.quota import resources
from common.quota.guarantees import Guarantee
from master.cache.informers import Caches
from master.cache.objects import FittingLimits, MasterQuota, Named
from master.cache.organization_limits import OrganizationLimits
from master.quotas.limits_fit import fitting, guarantees_in_force, limits_fit
from master.quotas.quota_view import QuotaView
from master.quotas.state import QuotaState


def quota(kind: str, name: str, *, generation: int = 1, limits: dict[str, str], **more: object) -> MasterQuota:
    spec = {"subject": {"kind": kind, "name": name}, "quota": limits, **more}
    return MasterQuota(metadata=ObjectMeta(name=f"{kind}-{name}", uid=name, generation=generation), spec=spec)


def project(name: str, organization: str = "acme", generation: int = 1) -> Named:
    return Named(metadata=ObjectMeta(name=name, generation=generation), spec={"organization": organization})


def change(new: Any = None, old: Any = None) -> Change[Any]:
    return Change(old, new)


class World:
    """The caches of a master, filled by hand."""

    def __init__(self) -> None:
        self.caches = Caches(SimpleNamespace(name="master"), "seedquota")  # type: ignore[arg-type]

    def put(self, plural: str, there: Any) -> None:
        reflector: Any = {"projects": self.caches.projects, "resourcequotas": self.caches.quotas}[plural]
        before = reflector.store.get(there.metadata.name)
        reflector.store._set(there.metadata.name, there)
        self.caches._tells(plural)(change(there, before))

    def kin(self, plural: str, changed: Change[Any]) -> set[str]:
        return {each.metadata.name for each in self.caches.kin(plural, changed)}


@pytest.fixture
def world() -> World:
    world = World()
    for each in (project("alpha"), project("beta"), project("other", "umbrella"), project("free", "")):
        world.put("projects", each)
    for each in (
        quota("organization", "acme", limits={"cpu": "32", "memory": "1Gi"}),
        quota("project", "alpha", limits={"cpu": "20"}),
        quota("project", "beta", limits={"cpu": "40", "machines": "3"}),
        quota("project", "other", limits={"cpu": "100"}),
    ):
        world.put("resourcequotas", each)
    return world


def told(limits: OrganizationLimits) -> list[dict[str, str]]:
    return [resources.render(each) for each in (limits.own, limits.largest, limits.total)]


def test_the_limits_of_an_organization_and_the_sum_of_its_projects_follow_each_change(world: World) -> None:
    caches = world.caches
    assert told(caches.limits_of("acme")) == [
        {"cpu": "32", "memory": "1Gi"},
        {"cpu": "40", "machines": "3"},
        {"cpu": "60", "machines": "3"},
    ]
    world.put("resourcequotas", quota("project", "beta", generation=2, limits={"cpu": "10"}))
    assert told(caches.limits_of("acme"))[1:] == [{"cpu": "20"}, {"cpu": "30"}]
    world.put("projects", project("free", generation=2))
    world.put("resourcequotas", quota("project", "free", limits={"cpu": "1"}))
    assert told(caches.limits_of("acme"))[2] == {"cpu": "31"}
    world.put("resourcequotas", quota("organization", "acme", generation=2, limits={"cpu": "16"}))
    assert told(caches.limits_of("acme"))[0] == {"cpu": "16"}


def given(world: World, organization: str = "acme") -> dict[str, dict[str, str]]:
    found = world.caches.limits_of(organization).guaranteed
    return {project: resources.render(amounts) for project, amounts in found.items()}


def guaranteeing(name: str, at: str, **amounts: str) -> MasterQuota:
    made = quota("project", name, limits={"cpu": "40", "pods": "9"}, guaranteed=amounts)
    metadata = ObjectMeta(name=f"project-{name}", uid=name, generation=int(at[-1]) + 2, creation_timestamp=at)
    return MasterQuota(metadata=metadata, spec=made.spec)


def test_what_fits_is_guaranteed_and_of_what_does_not_fit_the_newest_is_not(world: World) -> None:
    world.put("resourcequotas", guaranteeing("beta", "2026-01-02", cpu="20"))
    assert given(world) == {"beta": {"cpu": "20"}}
    world.put("resourcequotas", guaranteeing("alpha", "2026-01-03", cpu="13"))
    assert given(world) == {"beta": {"cpu": "20"}}, "there are 32"
    world.put("resourcequotas", guaranteeing("alpha", "2026-01-04", cpu="12"))
    assert given(world) == {"beta": {"cpu": "20"}, "alpha": {"cpu": "12"}}
    world.put("resourcequotas", guaranteeing("alpha", "2026-01-01", cpu="13"))
    assert given(world) == {"alpha": {"cpu": "13"}}, "it is there for longer"
    limits = world.caches.limits_of("acme")
    assert resources.render(limits.guaranteeable("alpha")) == {"cpu": "32", "memory": "1Gi"}
    assert resources.render(limits.guaranteeable("beta")) == {"cpu": "19", "memory": "1Gi"}


def seen(world: World, made: MasterQuota, organization: str = "acme") -> QuotaView:
    state = QuotaState(made)
    return QuotaView(
        generation=1,
        spec=state.spec,
        limits=state.limits,
        subject_exists=True,
        learning=False,
        organization=organization,
        organization_limits=world.caches.limits_of(organization) if organization else None,
        seeds=[],
    )


def test_what_is_not_guaranteed_is_a_condition_of_the_project(world: World) -> None:
    world.put("resourcequotas", guaranteeing("beta", "2026-01-02", cpu="20"))
    spec = quota("project", "alpha", limits={"cpu": "20"}, guaranteed={"cpu": "13"}).spec
    alpha = msgspec.structs.replace(guaranteeing("alpha", "2026-01-03"), spec=spec)
    world.put("resourcequotas", alpha)
    [found] = limits_fit(seen(world, alpha))
    assert (found.status, found.reason) == ("False", "GuaranteesExceedParent")
    assert found.message.startswith("cpu=13 is not guaranteed: with it, the guarantees of organization acme would be")
    world.put("resourcequotas", quota("project", "beta", generation=9, limits={"cpu": "20"}))
    assert [each.reason for each in limits_fit(seen(world, alpha))] == ["Fits"]
    free = quota("project", "free", limits={"cpu": "20"}, guaranteed={"cpu": "13"})
    [found] = limits_fit(seen(world, free, ""))
    assert (found.reason, found.message) == (
        "NotGuaranteed",
        "cpu=13 is not guaranteed: the project has no organization",
    )


def test_a_quota_that_only_warns_keeps_nothing_from_other_projects(world: World) -> None:
    made = quota("project", "alpha", limits={"cpu": "20"}, guaranteed={"cpu": "13"}, enforcement="warn")
    world.put("resourcequotas", made)
    assert given(world) == {}
    [found] = limits_fit(seen(world, made))
    assert (found.status, found.reason) == ("False", "NotGuaranteed")
    assert found.message == "cpu=13 is not guaranteed: the enforcement of this quota is warn"


def test_an_organization_says_what_of_its_guarantees_others_use(world: World) -> None:
    given = [Guarantee(project="alpha", hard=resources.parse({"cpu": "16"}), used=resources.parse({"cpu": "4"}))]
    acme = seen(world, quota("organization", "acme", limits={"cpu": "32"}))
    assert guarantees_in_force(acme, {}) == []
    acme = msgspec.structs.replace(acme, guarantees=given)
    for use, status in (("20", "True"), ("25", "False")):
        [found] = guarantees_in_force(acme, resources.parse({"cpu": use}))
        assert found.status == status
    assert found.message.startswith("cpu=5 of what is guaranteed is used by other projects")
    [found] = guarantees_in_force(msgspec.structs.replace(acme, learning=True), {})
    assert found.status == "Unknown"


@pytest.mark.parametrize(
    "amounts",
    [{"pods": "4"}, {"cpu": "41"}, {"memory": "1Gi"}, {"cpu": "many"}],
    ids=["in namespaces", "more than its limit", "not limited", "no amount"],
)
def test_what_the_schema_should_have_refused_is_not_guaranteed(world: World, amounts: dict[str, str]) -> None:
    world.put("resourcequotas", guaranteeing("alpha", "2026-01-01", **amounts))
    assert given(world) == {}


def test_the_quota_of_the_organization_has_the_guarantees_of_what_it_limits_without_surge(world: World) -> None:
    caches, parent = world.caches, quota("organization", "acme", limits={"cpu": "32"})
    world.put("resourcequotas", guaranteeing("alpha", "2026-01-01", cpu="13"))
    cpu = resources.parse({"cpu": "32"})
    found = caches.guarantees_of(parent, cpu, {})
    assert [(each.project, resources.render(each.hard)) for each in found] == [("alpha", {"cpu": "13"})]
    for limits, surge in (({}, {}), (cpu, resources.parse({"cpu": "1"}))):
        assert list(caches.guarantees_of(parent, limits, surge)) == []
    warns = quota("organization", "acme", limits={"cpu": "32"}, enforcement="warn")
    for other in (warns, quota("project", "alpha", limits={"cpu": "32"})):
        assert list(caches.guarantees_of(other, cpu, {})) == []


def test_nothing_is_said_to_be_guaranteed_of_what_the_organization_has_surge_of(world: World) -> None:
    world.put("resourcequotas", guaranteeing("alpha", "2026-01-01", cpu="13"))
    parent = quota("organization", "acme", generation=2, limits={"cpu": "32"}, surge={"cpu": "1"})
    world.put("resourcequotas", parent)
    limits = world.caches.limits_of("acme")
    assert (limits.in_force("alpha"), limits.guaranteeable("alpha")) == ({}, {"cpu": 0})
    found = msgspec.structs.replace(
        view("project", limits={"cpu": "20"}, guaranteed={"cpu": "13"}), organization_limits=limits
    )
    (condition,) = limits_fit(found)
    assert (condition.status, condition.reason) == ("False", "NotGuaranteed")
    assert condition.message == "cpu=13 is not guaranteed: the quota of organization acme has surge of it"


@pytest.mark.parametrize(
    "more",
    [
        {"enforcement": "warn"},
        {"scopes": ["Terminating"]},
        {"subject": {"kind": "project", "name": "alpha", "clusters": {"matchLabels": {"tier": "prod"}}}},
        {"subject": {"kind": "project", "name": "alpha", "seeds": {"matchLabels": {"region": "eu"}}}},
    ],
)
def test_a_limit_that_only_warns_or_is_of_a_part_is_no_limit_of_all(world: World, more: dict[str, object]) -> None:
    world.put("resourcequotas", quota("project", "alpha", generation=2, limits={"cpu": "5"}, **more))
    assert told(world.caches.limits_of("acme"))[2]["cpu"] == "40"


def test_only_quotas_that_are_compared_with_a_changed_one_are_looked_at_again(world: World) -> None:
    of_alpha, of_acme = quota("project", "alpha", limits={"cpu": "20"}), quota("organization", "acme", limits={})
    assert world.kin("resourcequotas", change(of_alpha)) == {"organization-acme"}
    assert world.kin("resourcequotas", change(old=of_acme)) == {"organization-acme", "project-alpha", "project-beta"}
    assert world.kin("resourcequotas", change(of_alpha, of_alpha)) == set(), "its status alone is another"
    settings = Named(metadata=ObjectMeta(name="default", generation=1), spec={"overcommit": "2"})
    world.caches.settings.store._set("default", settings)
    assert world.kin("resourcequotas", change(of_alpha)) == {"organization-acme", "project-alpha", "project-beta"}
    world.caches.settings.store._remove("default")
    assert world.kin("resourcequotas", change(quota("project", "free", limits={}))) == set()
    assert world.kin("projects", change(project("alpha"), project("alpha", ""))) == {
        "organization-acme",
        "project-alpha",
    }
    assert world.kin("projects", change(project("alpha"), project("alpha"))) == set()


LIMITS = OrganizationLimits(
    own=resources.parse({"cpu": "32"}),
    largest=resources.parse({"cpu": "40", "machines": "9"}),
    total=resources.parse({"cpu": "60", "machines": "9"}),
)


RAISED = [{"until": "2999-01-01T00:00:00Z", "quota": {"cpu": "640"}}]


def view(kind: str, overcommit: str = "", limits: dict[str, str] | None = None, **more: object) -> QuotaView:
    state = QuotaState(quota(kind, "alpha", limits=limits or {"cpu": "40"}, **more))
    return QuotaView(
        generation=1,
        spec=state.spec,
        limits=state.limits,
        unraised=state.unraised,
        subject_exists=True,
        learning=False,
        organization="acme",
        organization_limits=LIMITS,
        overcommit=Fraction(overcommit) if overcommit else None,
        seeds=[],
    )


@pytest.mark.parametrize(
    ("of", "reason", "text"),
    [
        (view("project"), "AboveParent", "cpu=40 is more than organization acme may use (cpu=32)"),
        (view("project", limits={"cpu": "32"}), "Fits", ""),
        (view("project", limits={"machines": "99"}), "", ""),
        (view("project", limits={"cpu": "32"}, overrides=RAISED), "Fits", ""),
        (view("organization", "1", limits={"cpu": "59"}, overrides=RAISED), "OvercommitExceeded", "1 times cpu=59"),
        (view("organization"), "", ""),
        (view("organization", "1"), "OvercommitExceeded", "cpu=60 together, more than 1 times cpu=40"),
        (view("organization", "1.49"), "OvercommitExceeded", "more than 1.49 times"),
        (view("organization", "1.5"), "Fits", ""),
        (view("organization", "1", scopes=["Terminating"]), "", ""),
        (view("organization", "1", limits={"memory": "1Gi"}), "", ""),
    ],
)
def test_limits_that_do_not_fit_are_a_condition(of: QuotaView, reason: str, text: str) -> None:
    found = limits_fit(of)
    assert [each.reason for each in found] == ([reason] if reason else [])
    assert all(text in each.message and each.status == str(reason == "Fits") for each in found)


@pytest.mark.parametrize(
    ("overcommit", "most", "least"),
    [("", "32", "40"), ("3", "32", "40"), ("1.25", "0", "48"), ("2", "24", "40"), ("1.4", "4800m", "42857142858n")],
)
def test_what_would_fit_is_told_of_both(overcommit: str, most: str, least: str) -> None:
    """`most` of a project that has 20 of the 60 now."""
    factor = Fraction(overcommit) if overcommit else None
    assert resources.render(LIMITS.most(resources.parse({"cpu": "20"}), factor)) == {"cpu": most}
    assert resources.render(
        OrganizationLimits(largest={"cpu": LIMITS.largest["cpu"]}, total=LIMITS.total).least(factor)
    ) == {"cpu": least}


def test_what_would_fit_is_in_the_status_of_what_is_compared() -> None:
    assert fitting(view("project")) == FittingLimits(most={"cpu": "32"})
    assert fitting(view("organization", "1")) == FittingLimits(least={"cpu": "60", "machines": "9"})
    assert (
        fitting(view("project", enforcement="warn"))
        == fitting(view("project", scopes=["Terminating"]))
        == FittingLimits()
    )
