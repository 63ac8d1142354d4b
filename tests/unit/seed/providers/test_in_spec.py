"""Each provider against specs as machine-controller's examples and tests write them."""

from __future__ import annotations

import msgspec
import pytest

from common.quota import resources
from seed.providers import PROVIDERS
from seed.providers.size import Footprint, NotSized
from seed.providers.spec import Spec

SECRET: dict[str, object] = {"secretKeyRef": {"namespace": "kube-system", "name": "credentials", "key": "value"}}
CONFIG_MAP: dict[str, object] = {"configMapKeyRef": {"namespace": "kube-system", "name": "sizes", "key": "cpus"}}


def size(provider: str, spec: object) -> Footprint:
    found = PROVIDERS[provider](Spec(provider, msgspec.json.encode(spec), ""))
    assert isinstance(found, Footprint)
    return found


def refusal(provider: str, spec: object) -> str:
    with pytest.raises(NotSized) as caught:
        size(provider, spec)
    assert caught.value.provider == provider
    return str(caught.value).removeprefix(f"cannot size machine: {provider} ")


def kubevirt(template: dict[str, object], **virtual_machine: object) -> dict[str, object]:
    return {
        "clusterName": "cluster-name",
        "auth": {"kubeconfig": SECRET},
        "virtualMachine": {"template": template, **virtual_machine},
    }


DISK: dict[str, object] = {"osImage": "http://x.y.z.t/ubuntu.img", "size": "10Gi", "storageClassName": "longhorn"}
TEMPLATE: dict[str, object] = {"cpus": "2", "memory": "2Gi", "primaryDisk": DISK}
VSPHERE: dict[str, object] = {
    "templateVMName": "ubuntu-template",
    "vmNetName": "network1",
    "username": "<< VSPHERE_USERNAME >>",
    "password": SECRET,
    "vsphereURL": "<< VSPHERE_ADDRESS >>",
    "datacenter": "datacenter1",
    "folder": "folder1",
    "datastore": "datastore1",
    "cpus": 2,
    "memoryMB": 2048,
    "diskSizeGB": 10,
    "allowInsecure": True,
}
OPENNEBULA: dict[str, object] = {
    "endpoint": "https://one.example.com/RPC2",
    "username": "<< ONE_USERNAME >>",
    "password": SECRET,
    "cpu": 1,
    "vcpu": 2,
    "memory": 1024,
    "image": "flatcar-stable",
    "datastore": "<< YOUR_DATASTORE_NAME >>",
    "diskSize": 51200,
    "network": "<< YOUR_NETWORK_NAME >>",
    "enableVNC": True,
}
NUTANIX: dict[str, object] = {
    "endpoint": "10.0.1.5",
    "port": "9440",
    "password": SECRET,
    "clusterName": "nutanix-cluster",
    "subnetName": "subnet1",
    "imageName": "ubuntu-20.04",
    "cpus": 2,
    "cpuCores": 1,
    "memoryMB": 1024,
    "cpuPassthrough": True,
    "diskSize": 20,
}
CLOUD_DIRECTOR: dict[str, object] = {
    "username": "user",
    "password": SECRET,
    "apiToken": SECRET,
    "vapp": "vapp",
    "template": "ubuntu",
    "ipAllocationMode": "DHCP",
    "cpus": 2,
    "cpuCores": 1,
    "memoryMB": 2048,
    "diskSizeGB": 10,
    "diskBusType": "paravirtual",
    "diskIOPS": 0,
    "storageProfile": "*",
}
ANEXIA: dict[str, object] = {
    "token": SECRET,
    "vlanID": "<< ANEXIA_VLAN_ID >>",
    "template": "<< ANEXIA_TEMPLATE_NAME >>",
    "locationID": "<< ANEXIA_LOCATION_ID >>",
    "cpus": 2,
    "memory": 2048,
    "disks": [{"size": 60, "performanceType": "ENT6"}],
}
FAKE: dict[str, object] = {"cpu": "4", "memory": "8Gi", "storage": "50Gi"}


@pytest.mark.parametrize(
    ("provider", "spec", "costs"),
    [
        ("vsphere", VSPHERE, "cpu=2,machines=1,memory=2Gi,storage=10Gi"),
        ("vsphere", VSPHERE | {"memoryMB": 1000}, "cpu=2,machines=1,memory=1000Mi,storage=10Gi"),
        ("nutanix", NUTANIX, "cpu=2,machines=1,memory=1Gi,storage=20Gi"),
        ("nutanix", NUTANIX | {"cpuCores": 4}, "cpu=8,machines=1,memory=1Gi,storage=20Gi"),
        ("nutanix", NUTANIX | {"cpuCores": None}, "cpu=2,machines=1,memory=1Gi,storage=20Gi"),
        ("vmware-cloud-director", CLOUD_DIRECTOR, "cpu=2,machines=1,memory=2Gi,storage=10Gi"),
        ("vmware-cloud-director", CLOUD_DIRECTOR | {"cpuCores": 2}, "cpu=2,machines=1,memory=2Gi,storage=10Gi"),
        ("vmware-cloud-director", CLOUD_DIRECTOR | {"sizingPolicy": ""}, "cpu=2,machines=1,memory=2Gi,storage=10Gi"),
        ("anexia", ANEXIA, "cpu=2,machines=1,memory=2Gi,storage=60Gi"),
        ("anexia", ANEXIA | {"disks": [{"size": 60}, {"size": 5}]}, "cpu=2,machines=1,memory=2Gi,storage=65Gi"),
        ("anexia", ANEXIA | {"disks": [], "diskSize": 60}, "cpu=2,machines=1,memory=2Gi,storage=60Gi"),
        ("anexia", ANEXIA | {"diskSize": 0}, "cpu=2,machines=1,memory=2Gi,storage=60Gi"),
        ("kubevirt", kubevirt(TEMPLATE), "cpu=2,machines=1,memory=2Gi,storage=10Gi"),
        (
            "kubevirt",
            kubevirt(TEMPLATE | {"secondaryDisks": [{"size": "20Gi"}, {"size": "30Gi", "storageClassName": "fast"}]}),
            "cpu=2,machines=1,memory=2Gi,storage=60Gi",
        ),
        (
            "kubevirt",
            kubevirt(TEMPLATE | {"cpus": "1500m", "memory": "2048M"}),
            "cpu=1500m,machines=1,memory=2000000Ki,storage=10Gi",
        ),
        (
            "kubevirt",
            kubevirt(TEMPLATE | {"cpus": "", "vcpus": {"cores": 3}}),
            "cpu=3,machines=1,memory=2Gi,storage=10Gi",
        ),
        (
            "kubevirt",
            kubevirt(TEMPLATE | {"vcpus": {"cores": 8}}),
            "cpu=8,machines=1,memory=2Gi,storage=10Gi",
        ),
        ("kubevirt", kubevirt(TEMPLATE | {"vcpus": {}}), "cpu=2,machines=1,memory=2Gi,storage=10Gi"),
        (
            "kubevirt",
            kubevirt(TEMPLATE | {"cpus": 2, "memory": {"value": "4Gi"}, "primaryDisk": {"size": {"value": "1Ti"}}}),
            "cpu=2,machines=1,memory=4Gi,storage=1Ti",
        ),
        (
            "kubevirt",
            kubevirt(TEMPLATE, flavor={"name": "", "profile": ""}, instancetype=None, preference={"name": "small"}),
            "cpu=2,machines=1,memory=2Gi,storage=10Gi",
        ),
        ("opennebula", OPENNEBULA, "cpu=2,machines=1,memory=1Gi,storage=50Gi"),
        ("opennebula", OPENNEBULA | {"cpu": 4.5}, "cpu=4500m,machines=1,memory=1Gi,storage=50Gi"),  # reserved for it
        (
            "opennebula",
            OPENNEBULA | {"vmTemplateExtra": {"SCHED_REQUIREMENTS": 'RACK="G4"'}},
            "cpu=2,machines=1,memory=1Gi,storage=50Gi",
        ),
        ("external", FAKE, "cpu=4,machines=1,memory=8Gi,storage=50Gi"),
        (
            "external",
            FAKE | {"nvidia.com/gpu": "2"},
            "cpu=4,machines=1,memory=8Gi,nvidia.com/gpu=2,storage=50Gi",
        ),
        ("fake", FAKE, "cpu=4,machines=1,memory=8Gi,storage=50Gi"),
        (
            "fake",
            FAKE | {"passValidation": True, "nvidia.com/gpu": 1, "example.com/fpga": "2"},
            "cpu=4,example.com/fpga=2,machines=1,memory=8Gi,nvidia.com/gpu=1,storage=50Gi",
        ),
    ],
)
def test_size_is_what_the_cloud_would_make_of_the_spec(provider: str, spec: object, costs: str) -> None:
    footprint = size(provider, spec)
    assert resources.text(footprint.resources) == costs
    assert footprint.provider == provider
    assert footprint.unknown == {}


@pytest.mark.parametrize(
    ("provider", "spec", "field"),
    [
        ("vsphere", {name: value for name, value in VSPHERE.items() if name != "diskSizeGB"}, "diskSizeGB"),
        ("vsphere", VSPHERE | {"diskSizeGB": None}, "diskSizeGB"),
        ("nutanix", {name: value for name, value in NUTANIX.items() if name != "diskSize"}, "diskSize"),
        ("vmware-cloud-director", CLOUD_DIRECTOR | {"diskSizeGB": None}, "diskSizeGB"),
        ("vmware-cloud-director", CLOUD_DIRECTOR | {"diskSizeGB": 0}, "diskSizeGB"),
        ("fake", {"cpu": "4", "memory": "8Gi"}, "storage"),
    ],
)
def test_a_templates_disk_is_unknown_and_refused_only_where_storage_is_limited(
    provider: str, spec: object, field: str
) -> None:
    footprint = size(provider, spec)
    assert set(footprint.resources) == {"cpu", "memory", "machines"}
    footprint.require(["cpu", "memory", "machines", "nvidia.com/gpu"])
    with pytest.raises(NotSized) as caught:
        footprint.require(["cpu", "storage"])
    assert str(caught.value) == (
        f"cannot size machine: {provider} {field} is not set, so the disk is as big as the template's, "
        "which is not known: set it in the spec, because a quota limits storage"
    )


@pytest.mark.parametrize(
    ("provider", "spec", "message"),
    [
        ("vsphere", {}, "cpus is missing"),
        ("vsphere", {"cpus": 2}, "memoryMB is missing"),
        ("nutanix", {"memoryMB": 1024}, "cpus is missing"),
        ("vmware-cloud-director", {"cpus": 2}, "memoryMB is missing"),
        ("anexia", {"memory": 2048, "disks": [{"size": 1}]}, "cpus is missing"),
        ("anexia", {"cpus": 2, "memory": 2048}, "disks is missing"),
        ("anexia", ANEXIA | {"disks": [{"performanceType": "ENT6"}]}, "disks[0].size is missing"),
        ("anexia", ANEXIA | {"diskSize": 60}, "has both disks and diskSize: set disks only"),
        ("fake", {"passValidation": True}, "cpu is missing"),
        ("kubevirt", {}, "virtualMachine.template.cpus is missing"),
        ("kubevirt", kubevirt({"cpus": "2"}), "virtualMachine.template.memory is missing"),
        (
            "kubevirt",
            kubevirt({"cpus": "2", "memory": "2Gi"}),
            "virtualMachine.template.primaryDisk.size is missing",
        ),
        (
            "kubevirt",
            kubevirt(TEMPLATE | {"secondaryDisks": [{"size": "1Gi"}, {}]}),
            "virtualMachine.template.secondaryDisks[1].size is missing",
        ),
        (
            "kubevirt",
            kubevirt(TEMPLATE | {"cpus": CONFIG_MAP}),
            "virtualMachine.template.cpus is a configMapKeyRef: sizes must be written in the Machine",
        ),
        (
            "kubevirt",
            kubevirt(TEMPLATE | {"memory": {**SECRET, "value": "1Gi"}}),
            "virtualMachine.template.memory is a secretKeyRef: sizes must be written in the Machine",
        ),
        (
            "kubevirt",
            kubevirt(TEMPLATE, flavor={"name": "small"}),
            'virtualMachine.flavor "small" is an API that KubeVirt has given up; '
            "set virtualMachine.instancetype, or virtualMachine.template.cpus and memory, instead",
        ),
        ("external", {}, "cpu is missing"),
        ("opennebula", {name: value for name, value in OPENNEBULA.items() if name != "vcpu"}, "vcpu is missing"),
        ("opennebula", {name: value for name, value in OPENNEBULA.items() if name != "cpu"}, "cpu is missing"),
        ("opennebula", OPENNEBULA | {"cpu": "1"}, 'cpu must be a number, got "1"'),
        ("opennebula", OPENNEBULA | {"cpu": 0.0}, "cpu must be above 0 and at most 2^53, got 0.0"),
        ("opennebula", OPENNEBULA | {"cpu": 1e300}, "cpu must be a number, got 1e300"),
        *(
            (
                "opennebula",
                OPENNEBULA | {"vmTemplateExtra": {name: value}},
                f"vmTemplateExtra {shown} may change the size: set cpu, vcpu, memory, diskSize",
            )
            for name, value, shown in (
                ("VCPU", "64", '"VCPU"'),
                ("memory", "64", '"memory"'),
                ("DISK", "", '"DISK"'),
                ("PCI", "", '"PCI"'),
                ('A="1"\nMEMORY', "64", '"A=\\"1\\"\\nMEMORY"'),
                ("A", '\\"\nMEMORY="64', '"A"'),
            )
        ),
        (
            "vmware-cloud-director",
            CLOUD_DIRECTOR | {"sizingPolicy": "large"},
            'sizingPolicy "large" stands in Cloud Director, which is not asked yet; '
            "leave it out and set cpus and memoryMB",
        ),
    ],
)
def test_a_spec_that_does_not_tell_its_size_is_refused_by_the_name_of_the_field(
    provider: str, spec: object, message: str
) -> None:
    assert refusal(provider, spec) == message


@pytest.mark.parametrize("missing", ["name", "namespace", "key"])
@pytest.mark.parametrize("field", ["secretKeyRef", "configMapKeyRef"])
def test_a_reference_that_lacks_a_part_of_its_name_refers_to_nothing(field: str, missing: str) -> None:
    reference = {"namespace": "kube-system", "name": "sizes", "key": "cpus", missing: ""}
    told = kubevirt(TEMPLATE | {"cpus": {"value": "2", field: reference}})
    assert size("kubevirt", told) == size("kubevirt", kubevirt(TEMPLATE | {"cpus": "2"}))


NUMBERS: list[tuple[str, dict[str, object], str]] = [
    ("vsphere", VSPHERE, "cpus"),
    ("vsphere", VSPHERE, "memoryMB"),
    ("vsphere", VSPHERE, "diskSizeGB"),
    ("nutanix", NUTANIX, "cpus"),
    ("nutanix", NUTANIX, "cpuCores"),
    ("nutanix", NUTANIX, "memoryMB"),
    ("nutanix", NUTANIX, "diskSize"),
    ("vmware-cloud-director", CLOUD_DIRECTOR, "cpus"),
    ("vmware-cloud-director", CLOUD_DIRECTOR, "memoryMB"),
    ("vmware-cloud-director", CLOUD_DIRECTOR, "diskSizeGB"),
    ("anexia", ANEXIA, "cpus"),
    ("anexia", ANEXIA, "memory"),
    ("opennebula", OPENNEBULA, "vcpu"),
    ("opennebula", OPENNEBULA, "memory"),
    ("opennebula", OPENNEBULA, "diskSize"),
]


@pytest.mark.parametrize(("provider", "spec", "field"), NUMBERS)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1, "-1"),
        (2**53 + 1, "9007199254740993"),
        (2**70, "1180591620717411303424"),
        (2.5, "2.5"),
        ("2", '"2"'),
        ("2Gi", '"2Gi"'),
        (True, "true"),
        ([2], "[2]"),
        (SECRET, '{"secretKeyRef":{"namespace":"kube-syste...'),
    ],
)
def test_a_number_that_is_none_is_refused_with_its_value(
    provider: str, spec: dict[str, object], field: str, value: object, shown: str
) -> None:
    message = refusal(provider, spec | {field: value})
    assert message.startswith(f"{field} must be ")
    assert message.endswith(f", got {shown}")


@pytest.mark.parametrize(
    ("provider", "spec", "field"), [n for n in NUMBERS if n[:3:2] != ("vmware-cloud-director", "diskSizeGB")]
)
def test_zero_is_no_size(provider: str, spec: dict[str, object], field: str) -> None:
    assert refusal(provider, spec | {field: 0}) == f"{field} must be from 1 to 2^53, got 0"


@pytest.mark.parametrize("field", ["cpu", "memory", "storage", "nvidia.com/gpu"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("2 GB", "a quantity, got 2 GB"),
        ("two", "a quantity, got two"),
        ("-1", "above 0 and at most 2^53, got -1"),
        ("0", "above 0 and at most 2^53, got 0"),
        (-1, "above 0 and at most 2^53, got -1"),
        ("9Ei", "above 0 and at most 2^53, got 9Ei"),
        ("1e99", "a quantity, got 1e99"),
        ("1" * 65, f"a quantity, got {'1' * 40}..."),
        (True, "a string, got true"),
        ([1], "a string, got [1]"),
    ],
)
def test_a_quantity_that_is_none_is_refused_with_its_value(field: str, value: object, problem: str) -> None:
    assert refusal("fake", FAKE | {field: value}) == f"{field} must be {problem}"


@pytest.mark.parametrize(
    ("provider", "spec", "field", "other"),
    [
        ("vsphere", VSPHERE, "memoryMB", "memorymb"),
        ("vsphere", VSPHERE, "cpus", "cpu\u017f"),  # the long s: Go folds it to s as well
        ("nutanix", NUTANIX, "cpuCores", "CPUCores"),
        ("vmware-cloud-director", CLOUD_DIRECTOR, "sizingPolicy", "SizingPolicy"),
        ("anexia", ANEXIA, "disks", "Disks"),
        ("kubevirt", kubevirt(TEMPLATE), "virtualMachine", "VirtualMachine"),
        ("fake", FAKE, "cpu", "CPU"),
    ],
)
def test_a_second_spelling_that_machine_controller_would_obey_is_refused(
    provider: str, spec: dict[str, object], field: str, other: str
) -> None:
    shown = other.replace("\u017f", "\\xc5\\xbf")
    assert refusal(provider, spec | {other: 64}) == f'{field} must be spelled exactly so, got "{shown}"'


def test_a_second_spelling_deep_inside_is_refused() -> None:
    template = TEMPLATE | {"SecondaryDisks": [{"size": "10Ti"}]}
    assert refusal("kubevirt", kubevirt(template)) == (
        'virtualMachine.template.secondaryDisks must be spelled exactly so, got "SecondaryDisks"'
    )
