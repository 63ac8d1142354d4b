"""Cluster API's Machines: every kind of infrastructure object costs what its CRD says, in either version of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from common.quota import resources
from common.quota.quantity import UNIT
from seed.machines import footprint as evaluator
from seed.machines import infrastructure
from seed.machines.cluster_api import (
    Cluster,
    ClusterMachine,
    Infrastructure,
    MachinePool,
    machine_of,
    machine_of_template,
    project_of,
    where_of,
)
from seed.machines.infrastructure_kinds import KINDS, Where
from seed.machines.machine_controller import Machine
from seed.machines.metal3 import BareMetalHost
from seed.providers.flavour import Flavour, Lookup
from seed.providers.size import GIB, NotSized
from seed.sizing import stamp

WHERE = Where("eu-central-1", "eu-central-1a")
FLAVOUR = Flavour(cpu=2 * UNIT, memory=8 * GIB * UNIT, storage=40 * GIB * UNIT)
DISKLESS = Flavour(cpu=2 * UNIT, memory=8 * GIB * UNIT)
SPEC: dict[str, dict[str, Any]] = {
    "AWSMachine": {"instanceType": "m5.large", "rootVolume": {"size": 50}, "ami": {"id": "ami-1"}},
    "AzureMachine": {"vmSize": "Standard_D4s_v5", "osDisk": {"osType": "Linux", "diskSizeGB": 30}},
    "GCPMachine": {"instanceType": "n2-standard-4"},
    "VSphereMachine": {"numCPUs": 4, "memoryMiB": 8192, "diskGiB": 25, "template": "ubuntu"},
    "NutanixMachine": {
        "vcpusPerSocket": 2,
        "vcpuSockets": 3,
        "memorySize": "4Gi",
        "systemDiskSize": "40Gi",
    },
}


def made(kind: str, spec: object, name: str = "m", **metadata: Any) -> Infrastructure:
    body = {"kind": kind, "metadata": {"name": name, "namespace": "alpha", "uid": name, **metadata}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(body), type=Infrastructure)


def reference(kind: str, version: str = "v1beta2", group: str = infrastructure.GROUP) -> Mapping[str, str]:
    if version == "v1beta2":
        return {"apiGroup": group, "kind": kind, "name": "m"}
    return {"apiVersion": f"{group}/v1", "kind": kind, "name": "m", "namespace": "alpha"}


def capi_machine(kind: str, version: str = "v1beta2", **spec: object) -> ClusterMachine:
    body = {
        "apiVersion": f"cluster.x-k8s.io/{version}",
        "metadata": {"name": "m-1", "namespace": "alpha", "uid": "uid-1"},
        "spec": {"clusterName": "c1", "bootstrap": {}, "infrastructureRef": reference(kind, version), **spec},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=ClusterMachine)


def pool(kind: str, replicas: int | None = 3, status: int | None = None) -> MachinePool:
    template = {"spec": {"clusterName": "c1", "infrastructureRef": reference(kind)}}
    body = {
        "metadata": {"name": "p", "namespace": "alpha", "uid": "uid-p"},
        "spec": {"clusterName": "c1", "replicas": replicas, "template": template},
        "status": {"replicas": status},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=MachinePool)


def machine(kind: str, spec: object, version: str = "v1beta2") -> Machine:
    return machine_of(capi_machine(kind, version), made(kind, spec), WHERE)


def cost(subject: Machine, flavour: Flavour = FLAVOUR) -> str:
    found = evaluator.evaluate(subject)
    if isinstance(found, Lookup):
        found = found.complete(flavour)
    assert found.unknown == {}
    return resources.text(found.resources)


def refusal(subject: Machine) -> str:
    with pytest.raises(NotSized) as caught:
        evaluator.evaluate(subject)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "spec", "costs"),
    [
        ("AWSMachine", SPEC["AWSMachine"], "cpu=2,machines=1,memory=8Gi,storage=50Gi"),
        (
            "AWSMachine",
            {**SPEC["AWSMachine"], "nonRootVolumes": [{"size": 100}, {"size": 10}]},
            "cpu=2,machines=1,memory=8Gi,storage=160Gi",
        ),
        ("AzureMachine", SPEC["AzureMachine"], "cpu=2,machines=1,memory=8Gi,storage=30Gi"),
        (
            "AzureMachine",
            {**SPEC["AzureMachine"], "dataDisks": [{"nameSuffix": "etcd", "diskSizeGB": 256}]},
            "cpu=2,machines=1,memory=8Gi,storage=286Gi",
        ),
        ("GCPMachine", SPEC["GCPMachine"], "cpu=2,machines=1,memory=8Gi,storage=30Gi"),
        (
            "GCPMachine",
            {
                "instanceType": "n2-standard-4",
                "rootDeviceSize": 100,
                "additionalDisks": [{}, {"size": 50}, {"deviceType": "local-ssd", "size": 1}],
                "guestAccelerators": [{"type": "projects/p/zones/z/acceleratorTypes/nvidia-tesla-t4", "count": 2}],
            },
            "cpu=2,machines=1,memory=8Gi,nvidia.com/gpu=2,storage=555Gi",
        ),
        (
            "GCPMachine",
            {"instanceType": "n2-custom-4-8192", "additionalDisks": [{"size": 10}]},
            "cpu=4,machines=1,memory=8Gi,storage=40Gi",
        ),
        (
            "OpenStackMachine",
            {"flavor": "m1.small", "rootVolume": {"sizeGiB": 100}},
            "cpu=2,machines=1,memory=8Gi,storage=100Gi",
        ),
        ("OpenStackMachine", {"flavorID": "7"}, "cpu=2,machines=1,memory=8Gi,storage=40Gi"),
        (
            "OpenStackMachine",
            {"flavor": {"filter": {"name": "m1.small"}}, "additionalBlockDevices": [{"name": "etcd", "sizeGiB": 4}]},
            "cpu=2,machines=1,memory=8Gi,storage=44Gi",
        ),
        ("OpenStackMachine", {"flavor": {"id": "7"}}, "cpu=2,machines=1,memory=8Gi,storage=40Gi"),
        ("HCloudMachine", {"type": "cpx32"}, "cpu=2,machines=1,memory=8Gi,storage=40Gi"),
        (
            "DOMachine",
            {"size": "s-2vcpu-8gb", "dataDisks": [{"nameSuffix": "a", "diskSizeGB": 5}]},
            "cpu=2,machines=1,memory=8Gi,storage=45Gi",
        ),
        ("VSphereMachine", SPEC["VSphereMachine"], "cpu=4,machines=1,memory=8Gi,storage=25Gi"),
        (
            "VSphereMachine",
            {
                **SPEC["VSphereMachine"],
                "additionalDisksGiB": [5, 6],
                "dataDisks": [{"name": "d", "sizeGiB": 7}],
                "pciDevices": [{"vGPUProfile": "grid_t4"}, {"deviceId": 7864, "vendorId": 4318}, {"vendorId": 32902}],
            },
            "cpu=4,machines=1,memory=8Gi,nvidia.com/gpu=2,storage=43Gi",
        ),
        (
            "VSphereMachine",
            {  # a host of H100: each GPU, and an NVSwitch; of a device without ID nothing better is known
                **SPEC["VSphereMachine"],
                "pciDevices": [
                    {"deviceId": 0x2330, "vendorId": 0x10DE},
                    {"deviceId": 0x22A3, "vendorId": 0x10DE},
                    {"vendorId": 0x10DE},
                ],
            },
            "cpu=4,machines=1,memory=8Gi,nvidia.com/gpu=2,storage=25Gi",
        ),
        ("VSphereMachine", {"numCPUs": 1, "diskGiB": 25}, "cpu=2,machines=1,memory=2Gi,storage=25Gi"),
        ("NutanixMachine", SPEC["NutanixMachine"], "cpu=6,machines=1,memory=4Gi,storage=40Gi"),
        (
            "NutanixMachine",
            {**SPEC["NutanixMachine"], "dataDisks": [{"diskSize": "1Gi"}], "gpus": [{"type": "name", "name": "A"}]},
            "cpu=6,machines=1,memory=4Gi,nvidia.com/gpu=1,storage=41Gi",
        ),
    ],
)
def test_a_machine_costs_what_its_infrastructure_object_says(kind: str, spec: object, costs: str) -> None:
    flavour = DISKLESS if kind in ("AWSMachine", "AzureMachine", "GCPMachine") else FLAVOUR
    for version in ("v1beta1", "v1beta2"):
        assert cost(machine(kind, spec, version), flavour) == costs
    template = made(f"{kind}Template", {"template": {"spec": spec}})
    assert cost(machine_of(capi_machine(f"{kind}Template"), template, WHERE), flavour) == costs


SWITCH = {"name": "s", "deviceName": "nvidia.com/GH100_H100_NVSWITCH"}


def virtual_machine(domain: object, **spec: object) -> object:
    template = {"spec": {"domain": domain, "volumes": spec.pop("volumes", [])}}
    return {"virtualMachineTemplate": {"spec": {"template": template, **spec}}}


@pytest.mark.parametrize(
    ("spec", "costs"),
    [
        (
            virtual_machine({"cpu": {"cores": 2, "sockets": 2}, "memory": {"guest": "4Gi"}}),
            "cpu=4,machines=1,memory=4Gi,storage=0",
        ),
        (
            virtual_machine({"resources": {"requests": {"cpu": "1500m", "memory": "2Gi"}}}),
            "cpu=2,machines=1,memory=2Gi,storage=0",
        ),
        (
            virtual_machine({"resources": {"limits": {"cpu": 3, "memory": "3Gi"}, "requests": {"cpu": "1"}}}),
            "cpu=3,machines=1,memory=3Gi,storage=0",
        ),
        (
            virtual_machine(
                {
                    "memory": {"guest": "1Gi"},
                    "devices": {
                        "gpus": [{"name": "a", "deviceName": "nvidia.com/TU104GL"}, {"deviceName": "x.y/z"}],
                        "hostDevices": [
                            {"name": "b", "deviceName": "nvidia.com/TU104GL"},
                            {"deviceName": "x.y/q"},
                            SWITCH,
                        ],
                    },
                },
                dataVolumeTemplates=[
                    {"spec": {"pvc": {"resources": {"requests": {"storage": "10Gi"}}}}},
                    {"spec": {"storage": {"resources": {"requests": {"storage": "20Gi"}}}}},
                ],
                volumes=[
                    {"name": "scratch", "emptyDisk": {"capacity": "3Gi"}},
                    {"name": "os", "containerDisk": {"image": "x"}},
                    {"name": "mine", "persistentVolumeClaim": {"claimName": "y"}},
                ],
            ),
            "cpu=1,machines=1,memory=1Gi,nvidia.com/GH100_H100_NVSWITCH=1,nvidia.com/TU104GL=2,nvidia.com/gpu=2,"
            "storage=33Gi,x.y/q=1,x.y/z=1",
        ),
        (
            virtual_machine(
                {},
                instancetype={"kind": "VirtualMachineClusterInstancetype", "name": "u1.large"},
                dataVolumeTemplates=[{"spec": {"pvc": {"resources": {"requests": {"storage": "10Gi"}}}}}],
            ),
            "cpu=2,machines=1,memory=8Gi,storage=10Gi",
        ),
    ],
)
def test_a_kubevirt_machine_costs_what_its_guest_sees(spec: object, costs: str) -> None:
    assert cost(machine("KubevirtMachine", spec), DISKLESS) == costs


@pytest.mark.parametrize(
    ("kind", "spec", "unknown"),
    [
        ("AWSMachine", {"instanceType": "m5.large"}, "rootVolume.size is not set"),
        ("AzureMachine", {"vmSize": "Standard_D4s_v5", "osDisk": {"osType": "Linux"}}, "osDisk.diskSizeGB is not set"),
        ("VSphereMachine", {"numCPUs": 2, "memoryMiB": 4096}, "diskGiB is not set"),
        ("VSphereMachine", {**SPEC["VSphereMachine"], "cloneMode": "linkedClone"}, "cloneMode is linkedClone"),
        (
            "KubevirtMachine",
            virtual_machine({"memory": {"guest": "1Gi"}}, dataVolumeTemplates=[{"spec": {"pvc": {}}}]),
            "a dataVolumeTemplate requests no storage",
        ),
    ],
)
def test_a_disk_that_only_its_image_knows_is_unknown_not_free(kind: str, spec: object, unknown: str) -> None:
    found = evaluator.evaluate(machine(kind, spec))
    if isinstance(found, Lookup):
        found = found.complete(DISKLESS)
    assert "storage" not in found.resources
    assert unknown in found.unknown["storage"]
    with pytest.raises(NotSized, match="because a quota limits storage"):
        found.require({"storage"})


def test_a_machine_is_asked_for_where_its_cluster_runs() -> None:
    cluster = msgspec.convert(
        {"metadata": {"name": "c1"}, "status": {"failureDomains": {"b": {"controlPlane": True}, "a": {}}}}, Cluster
    )
    newer = msgspec.convert(
        {"metadata": {"name": "c1"}, "status": {"failureDomains": [{"name": "b"}, {"name": "a"}]}}, Cluster
    )
    placed = made("AWSCluster", {"region": "us-east-1", "vpc": {}})
    assert where_of(cluster, placed) == where_of(newer, placed) == Where("us-east-1", "a")
    assert where_of(cluster, made("AzureCluster", {"location": "westeurope"})).region == "westeurope"
    assert where_of(cluster, made("OpenStackCluster", {"identityRef": {"region": "R1"}})).region == "R1"
    assert where_of(None, made("VSphereCluster", {}), "declared") == Where("declared", "")

    found = evaluator.evaluate(machine_of(capi_machine("AWSMachine"), made("AWSMachine", SPEC["AWSMachine"]), WHERE))
    assert isinstance(found, Lookup)
    assert found.where["region"].value == "eu-central-1"
    zoned = capi_machine("GCPMachine", failureDomain="europe-west3-b")
    found = evaluator.evaluate(machine_of(zoned, made("GCPMachine", SPEC["GCPMachine"]), WHERE))
    assert isinstance(found, Lookup)
    assert found.where["zone"].value == "europe-west3-b"


def test_the_project_is_a_label_of_the_cluster_or_an_annotation() -> None:
    labels = msgspec.convert({"metadata": {"labels": {"team": "alpha"}, "annotations": {"team": "beta"}}}, Cluster)
    annotations = msgspec.convert({"metadata": {"annotations": {"team": "beta"}}}, Cluster)
    assert project_of(labels, "team") == "alpha"
    assert project_of(annotations, "team") == "beta"
    assert project_of(labels, "seedquota.io/project") == ""


@pytest.mark.parametrize(
    ("kind", "spec", "costs"),
    [
        (
            "AWSMachinePool",
            {"minSize": 1, "maxSize": 9, "awsLaunchTemplate": SPEC["AWSMachine"]},
            "cpu=6,machines=3,memory=24Gi,storage=150Gi",
        ),
        (
            "AWSManagedMachinePool",
            {"instanceType": "m5.large", "diskSize": 20},
            "cpu=6,machines=3,memory=24Gi,storage=60Gi",
        ),
        (
            "AzureMachinePool",
            {"location": "westeurope", "template": SPEC["AzureMachine"]},
            "cpu=6,machines=3,memory=24Gi,storage=90Gi",
        ),
        ("VSphereMachine", SPEC["VSphereMachine"], "cpu=12,machines=3,memory=24Gi,storage=75Gi"),
    ],
)
def test_a_pool_costs_as_many_machines_as_it_has_replicas(kind: str, spec: object, costs: str) -> None:
    assert cost(machine_of(pool(kind), made(kind, spec), WHERE), DISKLESS) == costs


def test_a_pool_that_shrinks_costs_what_it_still_has() -> None:
    template = made("VSphereMachine", SPEC["VSphereMachine"])
    assert cost(machine_of(pool("VSphereMachine", 1, status=4), template, WHERE)).startswith("cpu=16,machines=4,")
    assert cost(machine_of(pool("VSphereMachine", 5, status=4), template, WHERE)).startswith("cpu=20,machines=5,")
    assert cost(machine_of(pool("VSphereMachine", None), template, WHERE)).startswith("cpu=4,machines=1,")
    assert cost(machine_of(pool("VSphereMachine", 0), template, WHERE)) == "cpu=0,machines=0,memory=0,storage=0"


def test_an_empty_pool_of_unknown_disks_takes_none() -> None:
    empty = machine_of(pool("VSphereMachine", 0), made("VSphereMachine", {}), WHERE)
    evaluator.footprint(empty).require({"storage"})


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        ("AWSMachine", {"rootVolume": {"size": 50}}, "cannot size machine: aws instanceType is missing"),
        (
            "AWSMachine",
            {**SPEC["AWSMachine"], "nonRootVolumes": [{}]},
            "cannot size machine: aws nonRootVolumes[0].size is missing",
        ),
        ("VSphereMachine", {"numCPUs": "4"}, 'cannot size machine: vsphere numCPUs must be a whole number, got "4"'),
        (
            "VSphereMachine",
            {"diskGiB": 1, "additionalDisksGiB": [0]},
            "cannot size machine: vsphere additionalDisksGiB must be from 1 to 2^53 each, got [0]",
        ),
        (
            "NutanixMachine",
            {**SPEC["NutanixMachine"], "memorySize": "4 GB"},
            "cannot size machine: nutanix memorySize must be a quantity, got 4 GB",
        ),
        ("KubevirtMachine", {}, "memory.guest is missing"),
        ("OpenStackMachine", {"flavor": {}}, "cannot size machine: openstack flavor.filter.name is missing"),
        (
            "AWSMachinePool",
            {"awsLaunchTemplate": SPEC["AWSMachine"], "mixedInstancesPolicy": {"overrides": []}},
            "mixedInstancesPolicy lets the cloud choose among types",
        ),
        ("DockerMachine", {}, 'infrastructure "DockerMachine" is not supported; supported: AWSMachine, '),
        ("HetznerBareMetalMachine", {}, "is not supported"),
    ],
)
def test_a_machine_that_cannot_be_sized_says_which_field_is_at_fault(kind: str, spec: object, message: str) -> None:
    assert message in refusal(machine(kind, spec))


def test_a_machine_without_its_infrastructure_object_is_not_sized() -> None:
    absent = machine_of(capi_machine("VSphereMachine"), None, WHERE)
    assert refusal(absent) == (
        "cannot size machine: VSphereMachine alpha/m does not exist: it must be there before its Machine"
    )
    nameless = msgspec.structs.replace(capi_machine("X"), spec=msgspec.convert({"clusterName": "c1"}, MachineSpecType))
    assert refusal(machine_of(nameless, None, WHERE)) == "cannot size machine: infrastructureRef is missing"
    supervised = capi_machine(
        "VSphereMachine", infrastructureRef=reference("VSphereMachine", group="vmware.infrastructure.cluster.x-k8s.io")
    )
    assert '"VSphereMachine.vmware.infrastructure.cl' in refusal(machine_of(supervised, None, WHERE))


MachineSpecType = type(capi_machine("X").spec)


@pytest.mark.parametrize("spec", [[], "text", 7, None, {"template": 7}, {"template": {"spec": []}}])
def test_a_spec_of_any_shape_is_refused_not_a_crash(spec: object) -> None:
    for kind in (*KINDS, "VSphereMachineTemplate"):
        try:
            evaluator.evaluate(machine(kind, spec))
        except NotSized as error:
            assert str(error).startswith("cannot size machine: ")


def test_what_costs_nothing_changes_neither_description_nor_stamp() -> None:
    one = machine("VSphereMachine", SPEC["VSphereMachine"])
    same = machine("VSphereMachine", {"providerID": "vsphere://1", **SPEC["VSphereMachine"], "network": {}})
    other = machine("VSphereMachine", {**SPEC["VSphereMachine"], "numCPUs": 8})
    assert one.spec.provider_spec == same.spec.provider_spec
    assert stamp.spec_hash(one) == stamp.spec_hash(same) != stamp.spec_hash(other)


def test_a_description_is_one_only_where_we_made_it() -> None:
    """A tenant may write into a Machine of machine-controller whatever he likes."""
    genuine = machine("VSphereMachine", SPEC["VSphereMachine"])
    body = {"metadata": {"name": "m"}, "spec": {"providerSpec": msgspec.Raw(bytes(genuine.spec.provider_spec))}}
    copied = msgspec.json.decode(msgspec.json.encode(body), type=Machine)
    assert cost(genuine).startswith("cpu=4")
    assert refusal(copied) == "cannot size machine: spec.providerSpec.value.cloudProvider is missing"


def test_what_cannot_be_sized_counts_as_machines_at_least() -> None:
    assert evaluator.least(machine_of(pool("DockerMachinePool", 4), None, WHERE)) == {"machines": 4 * UNIT}
    assert evaluator.least(machine("DockerMachine", {})) == {"machines": UNIT}


def host(name: str, cpus: int, *, consumer: str = "", inspected: bool = True, **labels: str) -> BareMetalHost:
    hardware = {"cpu": {"count": cpus}, "ramMebibytes": 1024 * cpus, "storage": [{"sizeBytes": 2**30}] * 2}
    body = {
        "metadata": {"name": name, "namespace": "alpha", "labels": labels},
        "spec": {"consumerRef": {"kind": "Metal3Machine", "name": consumer, "namespace": "alpha"}} if consumer else {},
        "status": {"hardware": hardware} if inspected else {},
    }
    return msgspec.convert(body, BareMetalHost)


def bare(hosts: list[BareMetalHost], spec: object, **metadata: Any) -> Machine:
    return machine_of(capi_machine("Metal3Machine"), made("Metal3Machine", spec, **metadata), WHERE, hosts)


def test_a_metal3_machine_is_as_big_as_its_host() -> None:
    hosts = [host("small", 8, consumer="m"), host("large", 64)]
    subject = bare(hosts, {}, annotations={"metal3.io/BareMetalHost": "alpha/small"})
    assert cost(subject) == "cpu=8,machines=1,memory=8Gi,storage=2Gi"


@pytest.mark.parametrize(
    ("selector", "cpus"),
    [
        ({}, 32),
        ({"matchLabels": {"rack": "1"}}, 8),
        ({"matchExpressions": [{"key": "rack", "operator": "in", "values": ["1", "2"]}]}, 16),
        ({"matchExpressions": [{"key": "rack", "operator": "notin", "values": ["1", "2"]}]}, 32),
        ({"matchExpressions": [{"key": "rack", "operator": "exists"}]}, 16),
        ({"matchExpressions": [{"key": "rack", "operator": "!"}]}, 32),
        ({"matchExpressions": [{"key": "rack", "operator": "gt", "values": ["7"]}]}, 32),
    ],
)
def test_until_it_has_one_it_counts_as_the_largest_host_that_it_may_get(selector: object, cpus: int) -> None:
    hosts = [
        host("a", 8, rack="1"),
        host("b", 16, rack="2"),
        host("c", 32),
        host("taken", 64, consumer="other", rack="1"),
        host("new", 128, inspected=False),
    ]
    assert cost(bare(hosts, {"hostSelector": selector})).startswith(f"cpu={cpus},")


@pytest.mark.parametrize(
    ("kind", "spec", "cpus"),
    [
        ("VSphereMachine", SPEC["VSphereMachine"], 4),
        ("AWSMachine", SPEC["AWSMachine"], 2),
        ("Metal3Machine", {}, 16),
    ],
)
def test_a_template_costs_what_each_of_its_machines_will(kind: str, spec: object, cpus: int) -> None:
    hosts = [host("a", 8), host("b", 16)]
    template = made(f"{kind}Template", {"template": {"spec": spec}})
    found = machine_of_template(capi_machine(f"{kind}Template", failureDomain="z"), template, WHERE, hosts)
    assert found.spec == machine_of(capi_machine(kind, failureDomain="z"), made(kind, spec), WHERE, hosts).spec
    assert cost(found, DISKLESS).startswith(f"cpu={cpus},")


def test_a_metal3_machine_without_a_host_is_not_sized() -> None:
    assert refusal(bare([host("new", 8, inspected=False)], {})) == (
        "cannot size machine: Metal3Machine alpha/m: no BareMetalHost that its hostSelector takes is free and inspected"
    )
    assert "no BareMetalHost" in refusal(bare([host("a", 8)], {"hostSelector": 7}))
