"""Which objects a name counts. tests/integration/test_core_quotas.py compares it with real API servers."""

from __future__ import annotations

import pytest

from common.quota import object_names
from common.quota.object_names import (
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    SERVICES,
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


def test_a_storage_class_named_requests_counts_for_claims_and_for_pods_as_in_core() -> None:
    name = "requests.gold.storageclass.storage.k8s.io/requests.storage"
    assert counted(name) == (PODS, PERSISTENT_VOLUME_CLAIMS)


def test_a_device_that_is_named_as_another_count_does_not_count_there() -> None:
    """A tenant chooses names of extended resources."""
    assert counted("count/pods.example.com") == (GroupResource("pods", "example.com"),)
    assert object_names.is_extended("count/pods")


def test_all_that_names_count_is_what_has_to_be_watched() -> None:
    assert object_names.resources_of(["cpu", "pods", "services.nodeports", "machines"]) == {PODS, SERVICES}
