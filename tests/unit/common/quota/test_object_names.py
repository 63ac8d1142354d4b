"""Which objects a name counts. tests/integration/test_core_quotas.py compares it with real API servers."""

from __future__ import annotations

import pytest

from common.quota import object_names
from common.quota.object_names import (
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    SERVICES,
    Field,
    GroupResource,
    counted,
)


@pytest.mark.parametrize(
    ("name", "resources"),
    [
        ("cpu", [PODS]),
        ("memory", [PODS]),
        ("pods", [PODS]),
        ("count/pods", [PODS]),
        ("requests.ephemeral-storage", [PODS]),
        ("limits.memory", [PODS]),
        ("hugepages-2Mi", [PODS]),
        ("requests.hugepages-1Gi", [PODS]),
        ("requests.example.com/gpu", [PODS]),
        ("example.com/gpu", [PODS]),
        ("services", [SERVICES]),
        ("services.nodeports", [SERVICES]),
        ("services.loadbalancers", [SERVICES]),
        ("persistentvolumeclaims", [PERSISTENT_VOLUME_CLAIMS]),
        ("requests.storage", [PERSISTENT_VOLUME_CLAIMS]),
        ("gold.storageclass.storage.k8s.io/requests.storage", [PERSISTENT_VOLUME_CLAIMS]),
        ("gold.storageclass.storage.k8s.io/persistentvolumeclaims", [PERSISTENT_VOLUME_CLAIMS]),
        ("gpu.example.com.deviceclass.resource.k8s.io/devices", [RESOURCE_CLAIMS]),
        ("requests.deviceclass.resource.kubernetes.io/gpu.example.com", [RESOURCE_CLAIMS]),
        ("count/resourceclaims.resource.k8s.io", [RESOURCE_CLAIMS]),
        ("replicationcontrollers", [GroupResource("replicationcontrollers")]),
        ("resourcequotas", [GroupResource("resourcequotas")]),
        ("secrets", [GroupResource("secrets")]),
        ("configmaps", [GroupResource("configmaps")]),
        ("count/deployments.apps", [GroupResource("deployments", "apps")]),
        ("count/things.example.com", [GroupResource("things", "example.com")]),
    ],
)
def test_a_name_counts_objects_of_a_kind(name: str, resources: list[GroupResource]) -> None:
    assert list(counted(name)) == resources


@pytest.mark.parametrize(
    "name",
    [
        "storage",
        "machines",
        "clusters",
        "limits.storage",
        "limits.example.com/gpu",
        "requests.foo",
        "requests.kubernetes.io/foo",
        "kubernetes.io/foo",
        "gold.storageclass.storage.k8s.io/limits.storage",
        "gpu.deviceclass.resource.k8s.io/device",
        "deviceclass.resource.kubernetes.io/gpu",
        "requests.deviceclass.resource.kubernetes.io/",
        "count/events",
        "count/events.events.k8s.io",
        "count/bindings",
        "count/",
        "count/a/b",
        "example.com/",
        "",
    ],
)
def test_nothing_is_counted_by_other_names(name: str) -> None:
    assert counted(name) == ()


def test_a_name_says_which_field_of_which_version_it_adds_up() -> None:
    name = "sum.databases.v1beta2.db.example.com/spec.disk.size-max"
    databases = GroupResource("databases", "db.example.com")
    assert object_names.field(name) == Field(databases, "v1beta2", ("spec", "disk", "size-max"))
    assert counted(name) == (databases,)
    assert not object_names.is_device(name)


@pytest.mark.parametrize(
    "name",
    [
        "sum.databases.example.com/spec.replicas",
        "sum.databases.v1/spec.replicas",
        "sum.databases.v1.example.com/replicas",
        "sum.databases.v1.example.com/spec",
        "sum.databases.v1.example.com/spec..replicas",
        "sum.databases.v1.example.com/spec.replicas.",
        "sum.databases.v1.example.com/status.replicas",
        "sum.databases.v1.example.com/spec." + "a" * 59,
        "sum.databases.v12345.example.com/spec.replicas",
        "sum.resourceclaims.v1.resource.k8s.io/spec.devices",
        "sum.events.v1.events.k8s.io/spec.series",
        "sum.example.com/gpu",
        "sum./spec.a",
    ],
)
def test_a_name_that_begins_as_the_sum_of_a_field_is_nothing_else(name: str) -> None:
    """Otherwise a slip of the pen would count a device that no pod has."""
    assert counted(name) == () and object_names.field(name) is None


def test_fields_of_one_kind_are_read_in_one_version() -> None:
    limited = [f"sum.{kind}.example.com/spec.replicas" for kind in ("a.v1", "a.v2", "b.v2")]
    assert object_names.of_other_versions([*limited, "pods", "count/a.example.com"]) == {limited[1]}


def test_what_is_held_of_another_version_is_not_counted_beside_what_is_limited() -> None:
    """Otherwise objects would be read in the version of yesterday, and the limit of today would count nothing."""
    old, new, other = (f"sum.a.{part}" for part in ("v1.e.com/spec.n", "v2.e.com/spec.n", "v2.e.com/spec.m"))
    assert object_names.beside([new], [old, other, "pods"]) == {new, other, "pods"}
    assert object_names.beside(["pods"], [old]) == {"pods", old}


def test_a_storage_class_named_requests_counts_for_claims_and_for_pods_as_in_core() -> None:
    name = "requests.gold.storageclass.storage.k8s.io/requests.storage"
    assert counted(name) == (PODS, PERSISTENT_VOLUME_CLAIMS)


def test_a_device_that_is_named_as_another_count_does_not_count_there() -> None:
    """A tenant chooses names of extended resources."""
    assert counted("count/pods.example.com") == (GroupResource("pods", "example.com"),)
    assert object_names.is_extended("count/pods")


def test_all_that_names_count_is_what_has_to_be_watched() -> None:
    assert object_names.resources_of(["cpu", "pods", "services.nodeports", "machines"]) == {PODS, SERVICES}
