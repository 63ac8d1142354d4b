"""Which namespaces quotas of projects and organizations count, and who may say whose they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.api import label_selector
from common.api.types import QuotaSettings
from common.quota import object_names
from common.quota.escrow import Report
from seed.kinds.namespaces import project_label
from seed.kinds.namespaces.cache import Selection
from seed.model.selected_namespaces import METADATA_NAME, picks
from seed.model.source_key import OWN_API_SERVER, SourceKey
from tests.unit.namespaces_world import ANN, World

LABEL = "seedquota.io/project"
OWN, SHARED = "alpha/own", "alpha/shared"
PODS = {"pods": "5"}
NAMES = ("project-alpha", "project-beta", "org-acme")


@pytest.fixture
def world() -> World:
    """A cluster of alpha, one that projects share, and the seed's own. Alpha and beta are of acme, gamma of none."""
    made = World()
    made.cluster("own")
    made.cluster("shared", of="FromLabel")
    made.seed("Enabled")
    for project, organization in (("alpha", "acme"), ("beta", "acme"), ("gamma", "")):
        made.project(project, organization)
    for project in ("alpha", "beta", "gamma"):
        made.quota(f"project-{project}", PODS, kind="project", name=project)
    made.quota("org-acme", PODS, kind="organization", name="acme")
    return made


def test_namespaces_of_its_own_cluster_are_of_its_project_whatever_labels_tenants_write(world: World) -> None:
    for labels in ({}, {LABEL: "beta"}, {LABEL: "gamma"}):
        assert world.selected(OWN, labels) == ["org-acme", "project-alpha"]


@pytest.mark.parametrize("cluster", [SHARED, OWN_API_SERVER])
def test_where_projects_share_a_cluster_the_label_says_whose_a_namespace_is(world: World, cluster: str) -> None:
    """Also the UserCluster's own project has none without it."""
    assert world.selected(cluster, {LABEL: "alpha"}) == ["org-acme", "project-alpha"]
    assert world.selected(cluster, {LABEL: "beta"}) == ["org-acme", "project-beta"]
    assert world.selected(cluster, {LABEL: "gamma"}) == ["project-gamma"]
    assert world.selected(cluster, {}) == world.selected(cluster, {LABEL: "nobody"}) == []


@pytest.mark.parametrize(("cluster", "project"), [(SHARED, "beta"), (OWN_API_SERVER, "beta"), (OWN, "")])
def test_a_label_that_a_tenant_may_write_names_no_project(world: World, cluster: str, project: str) -> None:
    assert world.cache._selection(cluster, {LABEL: "beta"}, known=True).project == project


def test_a_quota_of_some_clusters_counts_the_namespaces_that_its_subject_has_there(world: World) -> None:
    world.cluster("own", pool="gpu")
    world.cluster("shared", of="FromLabel", pool="gpu")
    world.quota("gpu", PODS, kind="project", name="alpha", clusters={"matchLabels": {"pool": "gpu"}})
    world.quota("of-shared", PODS, kind="organization", name="acme", clusters={"names": ["shared"]})
    assert world.selected(OWN, {}) == ["gpu", "org-acme", "project-alpha"]
    assert world.selected(SHARED, {LABEL: "alpha"}) == ["gpu", "of-shared", "org-acme", "project-alpha"]
    assert world.selected(SHARED, {LABEL: "gamma"}) == ["project-gamma"]
    assert world.selected(OWN_API_SERVER, {LABEL: "alpha"}) == ["org-acme", "project-alpha"], "it is no user cluster"
    world.cluster("own")
    assert world.selected(OWN, {}) == ["org-acme", "project-alpha"]


def test_quotas_of_both_kinds_limit_a_namespace_that_both_count(world: World) -> None:
    world.quota("ann", PODS, selector={"matchLabels": ANN})
    assert world.selected(SHARED, {LABEL: "beta", **ANN}) == ["ann", "org-acme", "project-beta"]


def test_what_a_cluster_needs_to_run_is_of_no_project(world: World) -> None:
    named = {METADATA_NAME: "kube-system", LABEL: "alpha"}
    assert world.selected(OWN, named) == world.selected(SHARED, named) == world.selected(OWN_API_SERVER, named) == []


def test_a_cluster_that_does_not_take_part_counts_for_nobody(world: World) -> None:
    world.cluster("own", "Disabled")
    assert world.selected(OWN, {}) == []
    assert SourceKey.of_namespaces("project-alpha-uid", OWN) not in keys(world, "project-alpha")
    found = {
        name: world.clusters.not_counted(quota) for name in NAMES if (quota := world.quotas.quota(name)) is not None
    }
    assert found == {"project-alpha": [OWN], "project-beta": [], "org-acme": [OWN]}


def keys(world: World, quota: str) -> list[str]:
    found = world.quotas.quota(quota)
    assert found is not None
    return list(world.clusters.source_keys(found))


def test_a_quota_has_a_source_in_each_cluster_where_it_may_count_namespaces(world: World) -> None:
    world.cluster("of-beta", project="beta")
    world.quota("machines", {"cpu": "4"}, kind="project", name="alpha")

    def in_namespaces(quota: str) -> set[str]:
        return {key.cluster for key in map(SourceKey, keys(world, quota)) if key.quota}

    assert in_namespaces("project-alpha") == {OWN, SHARED, OWN_API_SERVER}
    assert in_namespaces("project-beta") == {"alpha/of-beta", SHARED, OWN_API_SERVER}
    assert in_namespaces("org-acme") == {OWN, "alpha/of-beta", SHARED, OWN_API_SERVER}
    assert in_namespaces("machines") == set(), "it limits nothing in namespaces"
    assert OWN in keys(world, "project-alpha"), "its Machines count as before"


def test_what_is_counted_is_what_is_admitted(world: World) -> None:
    """The leader and API servers go by a selector, a replica by what it knows of the project."""
    world.quota("ann", PODS, selector={"matchLabels": ANN})
    for cluster in (OWN, SHARED, OWN_API_SERVER):
        exempt = world.clusters.exempt(cluster)
        for labels in ({}, ANN, *({LABEL: name, METADATA_NAME: "web"} for name in ("alpha", "beta", "gamma", "x"))):
            selectors = (
                (quota.name, world.clusters.selector(quota, cluster)) for quota in world.quotas.object_quotas()
            )
            found = sorted(name for name, chosen in selectors if chosen is not None and picks(chosen, labels, exempt))
            assert found == world.selected(cluster, labels)


def test_an_organization_counts_a_project_that_joins_it_and_goes_on_while_the_copy_is_away(world: World) -> None:
    told: list[str] = []
    world.quotas.on_members(told.append)
    world.project("delta", "acme")
    assert told == ["org-acme"]
    quota = world.quotas.quota("org-acme")
    assert quota is not None

    def counts(project: str) -> bool:
        selector = world.clusters.selector(quota, SHARED)
        return selector is not None and label_selector.matches(selector, {LABEL: project})

    assert counts("delta")
    world.project("delta", None)
    assert counts("delta"), "it may be put back"
    world.project("delta", "other")
    assert not counts("delta")


def selection(world: World, labels: dict[str, str]) -> Selection:
    return world.cache._selection(SHARED, labels, known=True)


def test_nothing_is_decided_for_a_project_whose_limits_have_not_come(world: World) -> None:
    assert selection(world, {LABEL: "alpha"}).awaited == ""
    assert selection(world, {LABEL: "unknown"}).awaited == "unknown", "its organization may limit it"
    assert selection(world, {}).awaited == ""
    world.quota("org-acme", {"cpu": "4"}, kind="organization", name="acme")
    assert selection(world, {LABEL: "unknown"}).awaited == "", "no organization limits what is in namespaces"
    world.project("epsilon", "")
    default: dict[str, Any] = {"project": {"quota": {"pods": "1"}}}
    settings = {"metadata": {"name": "default"}, "spec": {"defaults": default}}
    world.quotas.settings.store._set("default", msgspec.convert(settings, QuotaSettings))
    assert selection(world, {LABEL: "epsilon"}).awaited == "epsilon", "its default quota is to come"
    assert selection(world, {LABEL: "alpha"}).awaited == ""


@pytest.mark.parametrize(
    ("name", "of_objects"),
    [
        ("pods", True),
        ("requests.cpu", True),
        ("count/ingresses.networking.k8s.io", True),
        ("services.loadbalancers", True),
        ("gold.storageclass.storage.k8s.io/requests.storage", True),
        ("requests.nvidia.com/gpu", True),
        ("hugepages-2Mi", True),
        ("sum.databases.v1.example.com/spec.replicas", True),
        ("cpu", False),
        ("memory", False),
        ("nvidia.com/gpu", False),
        ("machines", False),
        ("example.com/licences", False),
        ("count/events", False),
    ],
)
def test_which_names_of_a_project_are_of_objects_in_namespaces(name: str, *, of_objects: bool) -> None:
    assert (name in object_names.of_objects([name])) == of_objects


def test_whose_a_namespace_is_changes_with_the_label_alone() -> None:
    assert project_label.changes({}, {LABEL: "alpha"}) and project_label.changes({LABEL: "alpha"}, {})
    assert not project_label.changes({LABEL: "alpha"}, {LABEL: "alpha", "owner": "ann"})
    assert not project_label.changes({}, {LABEL: ""}), "that is no project"


def test_what_it_limited_once_stays_counted_since_it_is_held_still(world: World) -> None:
    quota = world.quota("project-alpha", {"cpu": "4"}, kind="project", name="alpha")
    granted = Report(incarnation="life", sequence=1, master="m", granted={"pods": 5})
    assert not world.clusters.covers(quota, OWN)
    assert world.clusters.covers(msgspec.structs.replace(quota, published=granted), OWN)
    assert not world.clusters.not_counted(msgspec.structs.replace(quota, published=granted)), "it limits none of it"
