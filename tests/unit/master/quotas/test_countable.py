"""What a quota limits and nothing counts: it is never shown as if it were in force."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.api.cluster_selector import ClusterSelector
from common.api.label_selector import LabelSelector
from common.api.seed_selector import SeedSelector
from common.api.types import Condition, ResourceQuotaSpec, Subject
from common.kube.client.meta import ObjectMeta
from common.quota import resources
from common.quota.escrow import Holding, MasterLedger, Report
from common.quota.names import BASE, DEVICES
from common.quota.quantity import UNIT
from master.cache.objects import AllocatedTypes, MasterQuota, QuotaStatus
from master.quotas.condition_events import new_warnings
from master.quotas.countable import MAX_KNOWN, CountedNames, in_use, unsupported, unsupported_text
from master.quotas.quota_view import QuotaView, SeedView
from master.quotas.status import quota_status
from master.tenancy.default_policy import in_force

ROOT = Path(__file__).parents[4]
NOW = "2026-11-20T10:00:00Z"
NAMESPACES = Subject(kind="namespaces", selector=LabelSelector(match_labels={"owner": "ann"}))
PROJECT = Subject(kind="project", name="alpha")


def status(
    subject: Subject = PROJECT,
    *seeds: SeedView,
    before: QuotaStatus | None = None,
    never_counted: list[str] | None = None,
    generation: int = 1,
    **quota: str | int,
) -> QuotaStatus:
    view = QuotaView(
        generation=generation,
        spec=ResourceQuotaSpec(subject=subject, quota=quota),
        limits=resources.parse(quota),
        subject_exists=True,
        learning=False,
        never_counted=never_counted,
        seeds=seeds or [SeedView(name="eu-1", use={"cpu": 2 * UNIT})],
    )
    return quota_status(view, before or QuotaStatus(), NOW)


def condition(found: QuotaStatus, kind: str) -> Condition:
    (match,) = (each for each in found.conditions if each.type == kind)
    return match


PODS = {"pods": "50", "requests.cpu": "20"}


def test_a_quota_of_namespaces_is_enforced_where_clusters_take_part() -> None:
    found = status(NAMESPACES, SeedView(name="eu-1", clusters=1, use={"pods": 2 * UNIT}), SeedView(name="us-1"), **PODS)
    for kind in ("Ready", "Enforced", "UsageCurrent"):
        assert condition(found, kind).status == "True"
    assert found.summary.usage == "pods 2/50, requests.cpu 0/20"


def test_a_quota_of_namespaces_says_so_while_no_cluster_takes_part() -> None:
    found = status(NAMESPACES, SeedView(name="eu-1"), **PODS)
    for kind in ("Ready", "Enforced"):
        assert (condition(found, kind).status, condition(found, kind).reason) == ("False", "NoClusters")
        assert "set spec.namespaceQuotas to Enabled" in condition(found, kind).message
        assert "spec.subject.clusters" not in condition(found, kind).message
    narrowed = Subject(kind="namespaces", selector=LabelSelector(), clusters=ClusterSelector(match_labels={"a": "b"}))
    assert "spec.subject.clusters picks none" in condition(status(narrowed, **PODS), "Ready").message


def test_a_quota_of_some_clusters_says_so_while_these_are_none_and_names_what_is_in_no_cluster() -> None:
    part = Subject(kind="project", name="alpha", clusters=ClusterSelector(names=("c1",)))
    nowhere = condition(status(part, SeedView(name="eu-1"), cpu="4"), "Enforced")
    assert (nowhere.status, nowhere.reason) == ("False", "NoClusters")
    assert "picks no cluster of the subject on any seed" in nowhere.message
    somewhere = status(part, SeedView(name="eu-1"), SeedView(name="us-1", picked=1), cpu="4")
    assert [condition(somewhere, kind).status for kind in ("Ready", "Enforced")] == ["True", "True"]
    spec = ResourceQuotaSpec(subject=part, quota={"cpu": "4", "clusters": "2", "example.com/servers": "3"})
    allocated = AllocatedTypes(names=frozenset({"example.com/servers"}), seed="eu-1")
    assert unsupported(spec, allocated) == ["clusters", "example.com/servers"]
    assert "since these are in no cluster" in unsupported_text(spec, allocated)


def test_allocations_are_counted_on_the_seed_of_the_masters_cluster_if_the_quota_picks_it() -> None:
    seeds = SeedSelector(names=("eu-1",))
    spec = ResourceQuotaSpec(
        subject=Subject(kind="project", name="alpha", seeds=seeds), quota={"clusters": "2", "servers": "3"}
    )
    here = AllocatedTypes(names=frozenset({"servers"}), seed=True)
    assert unsupported_text(spec, here) == ""
    assert "a Seed with inCluster: true counts Allocations, and spec.subject.seeds picks none" in unsupported_text(
        spec, AllocatedTypes(names=here.names)
    )


def test_a_quota_of_namespaces_names_the_clusters_in_which_nothing_is_checked() -> None:
    found = status(NAMESPACES, SeedView(name="eu-1", clusters=2, unenforced=["alpha/c1"]), **PODS)
    assert condition(found, "Enforced").reason == "WebhookNotServing"
    assert "alpha/c1 on eu-1: objects in namespaces are not checked" in condition(found, "Enforced").message


def test_names_that_no_object_in_a_namespace_has_are_named() -> None:
    found = status(NAMESPACES, SeedView(name="eu-1", clusters=1), **{"pods": "5", "machines": "4"})
    assert (condition(found, "Ready").status, condition(found, "Ready").reason) == ("False", "NotSupported")
    assert "never refused: machines; the other resources" in condition(found, "Ready").message


@pytest.mark.parametrize(
    ("name", "meant"),
    [("pod", "pods"), ("request.cpu", "requests.cpu"), ("services.loadbalancer", "services.loadbalancers")],
)
def test_a_name_of_a_quota_of_namespaces_that_is_misspelt_is_told_with_the_one_that_is_meant(
    name: str, meant: str
) -> None:
    found = status(NAMESPACES, SeedView(name="eu-1", clusters=1), **{name: "5"})
    assert f"never refused: {name} (did you mean {meant}?)" in condition(found, "Ready").message


def test_of_fields_in_two_versions_of_a_kind_one_is_counted_and_the_other_is_named() -> None:
    fields = [f"sum.databases.{version}.example.com/spec.replicas" for version in ("v1", "v2")]
    found = status(NAMESPACES, SeedView(name="eu-1", clusters=1), **dict.fromkeys(fields, "5"))
    assert (condition(found, "Ready").status, condition(found, "Ready").reason) == ("False", "NotSupported")
    said = f"never refused: {fields[1]} (another name counts the kind in another version); the other resources"
    assert said in condition(found, "Ready").message


def test_scopes_that_cannot_limit_the_names_of_a_quota_count_nothing() -> None:
    spec = ResourceQuotaSpec(subject=NAMESPACES, quota=PODS, scopes=["BestEffort"])
    assert unsupported(spec) == sorted(PODS)
    assert "scope BestEffort cannot limit requests.cpu" in unsupported_text(spec)


def test_gpus_and_servers_are_named_and_the_rest_of_the_quota_is_still_counted() -> None:
    found = status(cpu="4", gpus="8", servers="2")
    for kind in ("Ready", "Enforced", "UsageCurrent"):
        assert (condition(found, kind).status, condition(found, kind).reason) == ("False", "NotSupported")
        assert "gpus, servers" in condition(found, kind).message
        assert "such as nvidia.com/gpu" in condition(found, kind).message
        assert "the other resources of this quota are limited" in condition(found, kind).message
    assert found.summary.usage == "cpu 2/4, gpus ?/8, servers ?/2"
    assert found.global_usage == {"cpu": "2"}
    assert condition(found, "NearLimit").status == "False"


def test_a_seed_that_lacks_the_quota_is_named_first_where_the_quota_is_not_supported_either() -> None:
    found = status(PROJECT, SeedView(name="eu-1", synced=False), gpus="8")
    assert condition(found, "Enforced").reason == "SeedNotSynced"
    assert condition(found, "Ready").reason == "NotSupported"


def test_a_default_quota_gives_way_also_to_one_of_which_a_part_is_not_supported() -> None:
    metadata = ObjectMeta(name="project-alpha", generation=1)
    assert in_force(MasterQuota(metadata=metadata, status=status(cpu="4", gpus="8")))
    lacking = status(PROJECT, SeedView(name="eu-1", synced=False), cpu="4", gpus="8")
    assert not in_force(MasterQuota(metadata=metadata, status=lacking))


def test_the_api_takes_no_name_that_is_neither_counted_nor_said_to_be_not_supported() -> None:
    rules = (ROOT / "charts" / "crds" / "resourcequota.yaml").read_text()
    (taken,) = set(re.findall(r"r in \[('cpu'[^\]]*)\]", re.sub(r"\s+", " ", rules)))
    names = {name.strip(" '") for name in taken.split(",")}
    quota = ResourceQuotaSpec(subject=PROJECT, quota=dict.fromkeys(names, 1))
    assert set(unsupported(quota)) == names - BASE == {"gpus", "servers"}


def test_a_misspelt_device_is_a_condition_with_what_was_meant_and_one_event() -> None:
    found = status(PROJECT, never_counted=["nvidia.com/gpus"], **{"nvidia.com/gpus": "8"})
    said = condition(found, "ResourceNotCounted")
    assert (said.status, said.reason) == ("True", "NeverCounted")
    assert "nvidia.com/gpus (did you mean nvidia.com/gpu?)" in said.message
    for kind in ("Enforced", "Ready"):
        assert (condition(found, kind).status, condition(found, kind).message.endswith(said.message)) == (
            "Unknown",
            True,
        )
    assert condition(found, "Enforced").reason == "NeverCounted"
    assert new_warnings([], found.conditions) == [("ResourceNotCounted", said.message)]
    assert new_warnings(found.conditions, found.conditions) == []


@pytest.mark.parametrize(
    ("name", "used", "meant"),
    [
        ("nvidia.com/gpus", "", "nvidia.com/gpu"),
        ("vendor.example/acelerator", "vendor.example/accelerator", "vendor.example/accelerator"),
        ("example.com/licence", "", None),
    ],
)
def test_what_was_meant_is_a_device_of_a_cloud_or_of_the_projects_own_machines(
    name: str, used: str, meant: str | None
) -> None:
    use = {used: UNIT} if used else {}
    found = status(PROJECT, SeedView(name="eu-1", use=use), never_counted=[name], **{name: "8"})
    message = condition(found, "ResourceNotCounted").message
    assert (f"{name} (did you mean {meant}?)" if meant else f"has {name};") in message


def test_nothing_is_said_of_a_device_before_every_seed_has_reported() -> None:
    for seed in (
        SeedView(name="eu-1", reported=False),
        SeedView(name="eu-1", fenced=True),
        SeedView(name="eu-1", synced=False),
    ):
        found = status(PROJECT, seed, never_counted=["a.example/b"], **{"a.example/b": "8"})
        assert [each for each in found.conditions if each.type == "ResourceNotCounted"] == []


def test_what_was_said_of_a_device_stays_while_nothing_new_is_known_of_that_generation() -> None:
    limits = {"a.example/b": "8"}
    warned = status(never_counted=["a.example/b"], **limits)
    assert condition(status(before=warned, never_counted=None, **limits), "ResourceNotCounted").status == "True"
    for known in (
        status(before=warned, never_counted=[], **limits),
        status(before=warned, never_counted=None, generation=2, **limits),
    ):
        assert [each for each in known.conditions if each.type == "ResourceNotCounted"] == []


def test_a_device_is_known_once_a_source_used_it_or_was_granted_it() -> None:
    known = CountedNames()
    limits = {"cpu": UNIT, "nvidia.com/gpu": UNIT, "a.example/b": UNIT, "a.example/c": UNIT, "a.example/d": UNIT}
    ledger = MasterLedger(incarnation="m", seeds={"eu-1": Holding(granted={"a.example/c": UNIT, "a.example/d": 0})})
    assert known.lacking(limits, ledger) == ["a.example/b", "a.example/d"]
    assert known.note(Report(incarnation="l", used={"a.example/b": 0, "cpu": UNIT})) == set()
    assert known.lacking(limits, ledger) == ["a.example/b", "a.example/d"]
    said = Report(incarnation="l", used={"a.example/b": UNIT}, reserved={"a.example/d": UNIT})
    assert known.note(said) == {"a.example/b", "a.example/d"}
    assert known.note(said) == set()
    assert known.lacking(limits, ledger) == []


def test_tenants_cannot_make_the_master_remember_names_without_end() -> None:
    known = CountedNames()
    for number in range(MAX_KNOWN):
        known.note(Report(incarnation="l", used={f"a.example/{number}": UNIT}))
    assert len(known._names) == MAX_KNOWN


def test_every_device_that_a_cloud_is_known_to_have_is_no_misspelling() -> None:
    written = "\n".join(
        path.read_text()
        for folder in ("providers", "machines")
        for path in (ROOT / "seed" / folder).glob("*.py")
        if path.stem != "fake"
    )
    names = set(re.findall(r'"((?:[a-z]+\.)+[a-z]+/(?:gpu|tpu|gaudi|neuron))"', written))
    assert len(names) == len(DEVICES)
    assert names == DEVICES


ORGANIZATION = Subject(kind="organization", name="acme")
TYPES = {"servers": "10", "clusters": "5", "example.com/licences": "3"}


def test_what_is_counted_from_allocations_needs_a_seed_in_the_masters_cluster() -> None:
    spec = ResourceQuotaSpec(subject=ORGANIZATION, quota=TYPES)
    counted = AllocatedTypes(names=frozenset(TYPES), seed=True)
    assert unsupported(spec, counted) == [] and unsupported_text(spec, counted) == ""
    alone = AllocatedTypes(names=frozenset(TYPES))
    assert unsupported(spec, alone) == sorted(TYPES), "also what objects would show is not counted from them"
    assert "since a Seed with inCluster: true counts Allocations, and there is none" in unsupported_text(spec, alone)


def test_a_type_outside_the_catalogue_is_named_with_what_to_do_and_counted_while_it_is_in_use() -> None:
    spec = ResourceQuotaSpec(subject=ORGANIZATION, quota=TYPES)
    nothing = AllocatedTypes(seed=True)
    assert unsupported(spec, nothing) == ["servers"]
    assert "name it in QuotaSettings, spec.resources, with countFrom: Allocations" in unsupported_text(spec, nothing)
    assert unsupported(spec, in_use(nothing, {"servers": 0}, {"servers": UNIT})) == []
    assert unsupported(spec, in_use(nothing, {"servers": 0})) == ["servers"]


def test_a_name_that_allocations_have_is_not_looked_for_in_machines() -> None:
    view = QuotaView(
        generation=1,
        spec=ResourceQuotaSpec(subject=ORGANIZATION, quota=TYPES),
        limits=resources.parse(TYPES),
        subject_exists=True,
        learning=False,
        never_counted=["example.com/licences"],
        allocated=AllocatedTypes(names=frozenset(TYPES), seed=True),
        seeds=[SeedView(name="eu-1", use={"servers": 2 * UNIT})],
    )
    found = quota_status(view, QuotaStatus(), NOW)
    assert condition(found, "Ready").status == "True"
    assert "ResourceNotCounted" not in {each.type for each in found.conditions}
    assert found.summary.usage == "clusters 0/5, example.com/licences 0/3, servers 2/10"


def test_a_project_whose_objects_are_counted_nowhere_says_so_while_its_machines_are_limited() -> None:
    quota = {"cpu": "4", "pods": "200", "count/ingresses.networking.k8s.io": "30"}
    found = status(PROJECT, SeedView(name="eu-1", use={"cpu": 2 * UNIT}), **quota)
    for kind in ("Ready", "Enforced"):
        assert (condition(found, kind).status, condition(found, kind).reason) == ("False", "NoClusters")
        said = condition(found, kind).message
        assert "not counted and not refused: count/ingresses.networking.k8s.io, pods; set spec.namespaceQuotas" in said
        assert "the other resources of this quota are limited" in said
    assert found.summary.usage == "cpu 2/4, count/ingresses.networking.k8s.io ?/30, pods ?/200"
    assert found.global_usage == {"cpu": "2"}
    metadata = ObjectMeta(name="project-alpha", generation=1)
    assert in_force(MasterQuota(metadata=metadata, status=found)), "a default quota gives way to it"
    assert (condition(found, "NearLimit").status, condition(found, "NearLimit").reason) == ("False", "BelowWarnPercent")
    alone = condition(status(PROJECT, pods="200"), "Exceeded")
    assert (alone.status, alone.reason) == ("Unknown", "NoClusters") and "set spec.namespaceQuotas" in alone.message
    there = status(PROJECT, SeedView(name="eu-1", clusters=1, use={"cpu": 2 * UNIT, "pods": 3 * UNIT}), **quota)
    for kind in ("Ready", "Enforced"):
        assert condition(there, kind).status == "True"
    assert there.summary.usage == "cpu 2/4, count/ingresses.networking.k8s.io 0/30, pods 3/200"


def test_a_projects_quota_names_where_machines_are_not_checked_and_where_objects_are_not() -> None:
    """And any kind that the seed's own API server asks about: the master knows none of them by name."""
    seed = SeedView(name="eu-1", clusters=1, unenforced=["licences", "alpha/c1", "namespaces of alpha/c2", "clusters"])
    said = condition(status(PROJECT, seed, cpu="4", pods="5"), "Enforced")
    assert said.reason == "WebhookNotServing"
    assert "alpha/c1 on eu-1: Machines are not checked there" in said.message
    assert "namespaces of alpha/c2 on eu-1: objects in namespaces are not checked there" in said.message
    assert said.message.startswith("clusters on eu-1: no dry run has proven")
    assert "; licences on eu-1: no dry run has proven" in said.message


def test_a_name_of_core_quotas_that_no_object_uses_is_named_for_a_project() -> None:
    found = status(PROJECT, SeedView(name="eu-1", clusters=1), **{"cpu": "4", "count/events": "5"})
    assert condition(found, "Ready").reason == "NotSupported"
    assert "never refused: count/events; the other resources" in condition(found, "Ready").message


def test_scopes_of_a_project_that_cannot_limit_its_names_count_nothing() -> None:
    spec = ResourceQuotaSpec(subject=PROJECT, quota=PODS, scopes=["BestEffort"])
    assert unsupported(spec) == sorted(PODS)
    assert "scope BestEffort cannot limit requests.cpu" in unsupported_text(spec)


def test_an_empty_quota_is_in_force_and_limits_nothing() -> None:
    found = status(PROJECT)
    for kind in ("Ready", "Enforced", "UsageCurrent"):
        assert condition(found, kind).status == "True"
    for kind in ("NearLimit", "Exceeded"):
        assert condition(found, kind).status == "False"
    assert (found.summary.usage, found.summary.peak, found.global_usage) == ("", "", {})


def test_clusters_of_a_project_that_take_no_part_are_named() -> None:
    seed = SeedView(name="eu-1", clusters=1, not_counted=["alpha/c2"])
    found = condition(status(PROJECT, seed, cpu="4", pods="5"), "Enforced")
    assert (found.status, found.reason) == ("False", "ClustersNotCounted")
    assert found.message.startswith("pods: not counted and not refused in alpha/c2 on eu-1, which takes no part")
    assert condition(status(PROJECT, seed, cpu="4"), "Enforced").status == "True", "Machines are counted there"
