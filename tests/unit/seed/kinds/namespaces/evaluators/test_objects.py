"""What Services, claims and all other objects use. tests/integration/test_core_quotas.py asks real API servers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.kube.client.meta import Object
from common.quota import object_names, resources
from common.quota.object_names import (
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    SERVICES,
    GroupResource,
)
from common.quota.quantity import UNIT
from common.quota.scopes import ScopeRequirement
from seed.kinds.namespaces.evaluators import pods, registry
from seed.kinds.namespaces.evaluators.namespaced import Terms, Write, added, is_asked, matching, used

NOW = 0.0
METADATA = {"name": "web", "namespace": "web", "resourceVersion": "1"}


def read(resource: GroupResource, spec: Any = None, status: Any = None, **metadata: Any) -> Any:
    evaluator = registry.evaluator_of(resource)
    assert evaluator is not None
    body = {"metadata": METADATA | metadata, "spec": spec or {}, "status": status or {}}
    return msgspec.json.decode(msgspec.json.encode(body), type=evaluator.type)


def usage(resource: GroupResource, *parts: Any, **metadata: Any) -> dict[str, str]:
    evaluator = registry.evaluator_of(resource)
    assert evaluator is not None
    return resources.render(evaluator.usage(read(resource, *parts, **metadata), NOW))


def adds(resource: GroupResource, terms: Terms, new: Any, old: Any = None, subresource: str = "") -> Any:
    evaluator = registry.evaluator_of(resource)
    assert evaluator is not None
    operation = "CREATE" if old is None else "UPDATE"
    write = Write(operation=operation, subresource=subresource, new=new, old=old, now=NOW)
    return added(evaluator, terms, write)


PORTS = [{"port": 80}, {"port": 443, "nodePort": 30443}]


@pytest.mark.parametrize(
    ("spec", "node_ports", "balancers"),
    [
        ({"type": "ClusterIP", "ports": PORTS}, "0", "0"),
        ({"type": "ExternalName"}, "0", "0"),
        ({"type": "NodePort", "ports": PORTS}, "2", "0"),
        ({"type": "LoadBalancer", "ports": PORTS}, "2", "1"),
        ({"type": "LoadBalancer", "ports": PORTS, "allocateLoadBalancerNodePorts": True}, "2", "1"),
        ({"type": "LoadBalancer", "ports": PORTS, "allocateLoadBalancerNodePorts": False}, "1", "1"),
    ],
)
def test_services_use_what_their_type_leads_to(spec: Any, node_ports: str, balancers: str) -> None:
    assert usage(SERVICES, spec) == {
        "count/services": "1",
        "services": "1",
        "services.nodeports": node_ports,
        "services.loadbalancers": balancers,
    }


def test_a_service_that_changes_its_type_costs_what_it_adds() -> None:
    terms = Terms(limited=frozenset({"services", "services.nodeports", "services.loadbalancers"}))
    inner, outer = (read(SERVICES, {"type": kind, "ports": PORTS}) for kind in ("ClusterIP", "LoadBalancer"))
    assert adds(SERVICES, terms, outer, inner) == {"services.nodeports": 2 * UNIT, "services.loadbalancers": UNIT}
    assert adds(SERVICES, terms, inner, outer) == {}


def storage(size: str, **spec: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"storage": size}}, **spec}


def test_a_claim_counts_under_its_storage_class_too() -> None:
    assert usage(PERSISTENT_VOLUME_CLAIMS, storage("1Gi", storageClassName="gold")) == {
        "count/persistentvolumeclaims": "1",
        "persistentvolumeclaims": "1",
        "requests.storage": "1Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
        "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
    }


def test_the_older_annotation_of_the_storage_class_goes_before_the_field() -> None:
    old = {"volume.beta.kubernetes.io/storage-class": "silver"}
    found = usage(PERSISTENT_VOLUME_CLAIMS, storage("1Gi", storageClassName="gold"), annotations=old)
    assert "silver.storageclass.storage.k8s.io/requests.storage" in found
    assert "gold.storageclass.storage.k8s.io/requests.storage" not in found


def test_storage_is_counted_in_whole_bytes() -> None:
    assert usage(PERSISTENT_VOLUME_CLAIMS, storage("1500m"))["requests.storage"] == "2"


@pytest.mark.parametrize(("wanted", "allocated", "counts"), [("2Gi", "1Gi", "2Gi"), ("1Gi", "3Gi", "3Gi")])
def test_a_claim_that_is_expanded_counts_the_most_of_what_is_wanted_and_allocated(
    wanted: str, allocated: str, counts: str
) -> None:
    found = usage(PERSISTENT_VOLUME_CLAIMS, storage(wanted), {"allocatedResources": {"storage": allocated}})
    assert found["requests.storage"] == counts


def test_an_expansion_costs_the_difference() -> None:
    terms = Terms(limited=frozenset({"requests.storage", "persistentvolumeclaims"}))
    small, large = read(PERSISTENT_VOLUME_CLAIMS, storage("1Gi")), read(PERSISTENT_VOLUME_CLAIMS, storage("3Gi"))
    assert adds(PERSISTENT_VOLUME_CLAIMS, terms, large, small) == {"requests.storage": 2 * 2**30 * UNIT}


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"volumeAttributesClassName": "fast"}, {}),
        ({}, {"currentVolumeAttributesClassName": "fast"}),
        ({}, {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "fast", "status": "Pending"}}),
    ],
)
def test_a_claim_is_in_the_scope_of_every_class_that_it_wants_has_or_is_given(spec: Any, status: Any) -> None:
    evaluator = registry.evaluator_of(PERSISTENT_VOLUME_CLAIMS)
    assert evaluator is not None
    fast = ScopeRequirement("VolumeAttributesClass", "In", ("fast",))
    assert evaluator.meets(fast, read(PERSISTENT_VOLUME_CLAIMS, spec, status))
    assert not evaluator.meets(fast, read(PERSISTENT_VOLUME_CLAIMS))
    assert not evaluator.meets(ScopeRequirement("PriorityClass"), read(PERSISTENT_VOLUME_CLAIMS, spec, status))


def test_a_claim_that_takes_another_class_costs_that_classs_quota_all() -> None:
    fast = (ScopeRequirement("VolumeAttributesClass", "In", ("fast",)),)
    terms = Terms(limited=frozenset({"persistentvolumeclaims"}), scopes=fast)
    slow, quick = (
        read(PERSISTENT_VOLUME_CLAIMS, {"volumeAttributesClassName": name}, None) for name in ("slow", "fast")
    )
    assert adds(PERSISTENT_VOLUME_CLAIMS, terms, quick, slow) == {"persistentvolumeclaims": UNIT}
    assert adds(PERSISTENT_VOLUME_CLAIMS, terms, quick, slow, "status") == {}, "counted once it is seen"


def devices(*requests: Any) -> dict[str, Any]:
    return {"devices": {"requests": requests}}


def exactly(device_class: str, count: int = 0) -> dict[str, Any]:
    mode = {"allocationMode": "ExactCount", "count": count} if count else {"allocationMode": "All"}
    return {"deviceClassName": device_class, **mode}


GPUS = "gpu.deviceclass.resource.k8s.io/devices"
NICS = "nic.deviceclass.resource.k8s.io/devices"


@pytest.mark.parametrize(
    ("requests", "gpus", "nics"),
    [
        ([{"exactly": exactly("gpu", 2)}, {"exactly": exactly("gpu", 3)}], "5", None),
        ([{"exactly": exactly("gpu")}], "32", None),
        ([exactly("gpu", 2)], "2", None),
        ([{"firstAvailable": [exactly("gpu", 2), exactly("gpu", 4), exactly("nic", 1)]}], "4", "1"),
        ([{"exactly": exactly("gpu", 1)}, {"firstAvailable": [exactly("gpu", 2), exactly("nic")]}], "3", "32"),
        ([{"exactly": {"deviceClassName": "gpu", "allocationMode": "Later", "count": 7}}], "0", None),
        ([{"later": {}}], None, None),
    ],
)
def test_resource_claims_count_the_most_devices_that_they_can_be_given(
    requests: list[Any], gpus: str | None, nics: str | None
) -> None:
    found = usage(RESOURCE_CLAIMS, devices(*requests))
    assert found["count/resourceclaims.resource.k8s.io"] == "1"
    assert (found.get(GPUS), found.get(NICS)) == (gpus, nics)
    implicit = [f"requests.deviceclass.resource.kubernetes.io/{name}" for name in ("gpu", "nic")]
    assert [found.get(name) for name in implicit] == [gpus, nics], "Kubernetes 1.35: resource_claims.go, Usage"


def test_a_device_that_a_pod_gets_by_its_class_counts_once() -> None:
    """The pod requests it by the class's name (1.35: pods.go, IsDRAExtendedResourceName), and the scheduler claims it
    then. A tenant can write such a claim, too: what its annotation says is not believed."""
    name = "requests.deviceclass.resource.kubernetes.io/gpu"
    terms = Terms(limited=frozenset({name}))
    requests = {"requests": {"deviceclass.resource.kubernetes.io/gpu": "1"}}
    pod = read(PODS, {"containers": [{"name": "web", "resources": requests}]})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "1", "controller": True}
    marked = {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}, "ownerReferences": [owner]}
    claim = read(RESOURCE_CLAIMS, devices({"exactly": exactly("gpu", 1)}), **marked)
    assert adds(PODS, terms, pod) == {}
    assert adds(RESOURCE_CLAIMS, terms, claim) == {name: UNIT}


@pytest.mark.parametrize(
    ("resource", "counted"),
    [
        (GroupResource("configmaps"), {"count/configmaps", "configmaps"}),
        (GroupResource("resourcequotas"), {"count/resourcequotas", "resourcequotas"}),
        (GroupResource("replicationcontrollers"), {"count/replicationcontrollers", "replicationcontrollers"}),
        (GroupResource("secrets"), {"count/secrets", "secrets"}),
        (GroupResource("deployments", "apps"), {"count/deployments.apps"}),
        (GroupResource("secrets", "example.com"), {"count/secrets.example.com"}),
    ],
)
def test_all_other_objects_are_counted_by_number(resource: GroupResource, counted: set[str]) -> None:
    assert usage(resource) == dict.fromkeys(counted, "1")
    evaluator = registry.evaluator_of(resource)
    assert evaluator is not None
    if resource != RESOURCE_QUOTAS:  # allocations count what they promise, too
        assert evaluator.type is Object, "their metadata is enough"
    made = read(resource)
    assert is_asked(evaluator, Write(operation="CREATE", new=made, now=NOW))
    assert not is_asked(evaluator, Write(operation="UPDATE", new=made, old=made, now=NOW))
    assert not is_asked(evaluator, Write(operation="CREATE", subresource="token", new=made, now=NOW))


def test_scopes_that_a_kind_does_not_have_pick_none_of_it() -> None:
    for resource in (SERVICES, RESOURCE_CLAIMS, GroupResource("secrets")):
        evaluator = registry.evaluator_of(resource)
        assert evaluator is not None
        scoped = Terms(limited=frozenset({"services", "secrets"}), scopes=(ScopeRequirement("NotTerminating"),))
        assert used(evaluator, scoped, read(resource), NOW) == {}


def test_events_and_what_is_not_stored_are_counted_by_nothing() -> None:
    for resource in object_names.NEVER_COUNTED:
        assert registry.evaluator_of(resource) is None


def test_each_kind_is_asked_of_the_names_that_count_it() -> None:
    names = ["cpu", "services", "requests.storage", "count/pods", "example.com/gpu", "machines"]
    assert matching(pods.EVALUATOR, names) == {"cpu", "count/pods", "example.com/gpu"}
    assert registry.evaluator_of(PODS) is pods.EVALUATOR


def test_every_name_that_an_object_uses_is_one_that_counts_its_kind() -> None:
    """Otherwise a quota would count what is never watched."""
    samples = {
        SERVICES: {"type": "LoadBalancer", "ports": PORTS},
        PERSISTENT_VOLUME_CLAIMS: storage("1Gi", storageClassName="gold"),
        RESOURCE_CLAIMS: devices({"exactly": exactly("gpu", 1)}),
        PODS: {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "example.com/gpu": "1"}}}]},
        GroupResource("secrets"): {},
        GroupResource("things", "example.com"): {},
    }
    for resource, spec in samples.items():
        for name in usage(resource, spec):
            assert resource in object_names.counted(name), name


def test_two_quotas_of_one_kind_share_what_is_watched_for_it() -> None:
    """Watch caches are found by their evaluators, also after the registry has forgotten the first one."""
    terms = Terms(limited=frozenset({"count/widgets.example.com", "pods", "count/events"}))
    first = registry.evaluators_of(terms)
    registry.evaluator_of.cache_clear()
    second = registry.evaluators_of(terms)
    assert first.keys() == {GroupResource("widgets", "example.com"), PODS}, "nothing counts events"
    assert {*first.values()} == {*second.values()} and len({*first.values()}) == 2
