"""Cluster API: the kinds of infrastructure objects that can be sized, and how each is sized. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from seed.providers import aws, azure, digitalocean, gcp, hetzner, kubevirt, nutanix, openstack, vsphere
from seed.providers.flavour import Lookup
from seed.providers.kubevirt_instancetypes import NAME as KUBEVIRT
from seed.providers.kubevirt_instancetypes import counted_as
from seed.providers.nvswitch import is_nvswitch
from seed.providers.size import GIB, MIB, Footprint, NotSized, footprint, template_disk
from seed.providers.spec import Provider, Spec

_NVIDIA, _AMD = "nvidia.com/gpu", "amd.com/gpu"
_PCI_VENDORS = {0x10DE: _NVIDIA, 0x1002: _AMD}
_LOCAL_SSD = 375  # GB, whatever its spec says
_GCP_DISK = 30


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a Machine runs, as far as sizes depend on it."""

    region: str = ""
    zone: str = ""


def _ask(provider: Provider, name: str, spec: Mapping[str, object]) -> Footprint | Lookup:
    """What the provider makes of a Machine with this spec."""
    return provider(Spec(name, msgspec.json.encode(spec), ""))


def _gib(spec: Spec, field: str, default: int | None = None) -> int:
    """In nanos; required without a default. 0 is the default, too."""
    if default is None:
        return spec.integer(field) * GIB * UNIT
    return (spec.optional_integer(field, minimum=0) or default) * GIB * UNIT


def _root(spec: Spec, field: str, named: str) -> int | str:
    """A root disk, or why its size is not known: without one it is as big as its image's."""
    amount = spec.optional_integer(field, minimum=0)
    return amount * GIB * UNIT if amount else template_disk(named)


def _with(found: Footprint | Lookup, *, root: int | str | None, disks: int, devices: ResourceList) -> Lookup:
    assert isinstance(found, Lookup), "machine types are asked for"
    return replace(found, root=root, disks=disks, devices=devices)


def _aws(spec: Spec, where: Where) -> Lookup:
    """CAPA: api/v1beta2, AWSMachineSpec, and Volume: `size` in GiB."""
    found = _ask(aws.size, aws.NAME, {"instanceType": spec.text("instanceType"), "region": where.region, "diskSize": 1})
    root = _root(spec.inner("rootVolume"), "size", "rootVolume.size")
    return _with(found, root=root, disks=sum(_gib(disk, "size") for disk in spec.items("nonRootVolumes")), devices={})


def _aws_pool(spec: Spec, where: Where) -> Lookup:
    """CAPA: exp/api/v1beta2, AWSMachinePoolSpec and AWSLaunchTemplate."""
    if spec.has("mixedInstancesPolicy"):
        raise NotSized(aws.NAME, "mixedInstancesPolicy lets the cloud choose among types: leave it out")
    return _aws(spec.inner("awsLaunchTemplate"), where)


def _aws_managed_pool(spec: Spec, where: Where) -> Lookup:
    """CAPA: exp/api/v1beta2, AWSManagedMachinePoolSpec: a launch template replaces instanceType and diskSize."""
    if spec.has("awsLaunchTemplate"):
        return _aws(spec.inner("awsLaunchTemplate"), where)
    found = _ask(aws.size, aws.NAME, {"instanceType": spec.text("instanceType"), "region": where.region, "diskSize": 1})
    return _with(found, root=_root(spec, "diskSize", "diskSize"), disks=0, devices={})


def _azure(spec: Spec, where: Where) -> Lookup:
    """CAPZ: api/v1beta1, AzureMachineSpec, OSDisk and DataDisk.

    The 30 GB that OSDisk's documentation promises is the size of the usual image: no code sets it.
    """
    found = _ask(azure.size, azure.NAME, {"vmSize": spec.text("vmSize"), "location": where.region, "osDiskSize": 1})
    root = _root(spec.inner("osDisk"), "diskSizeGB", "osDisk.diskSizeGB")
    disks = sum(_gib(disk, "diskSizeGB") for disk in spec.items("dataDisks"))
    return _with(found, root=root, disks=disks, devices={})


def _azure_pool(spec: Spec, where: Where) -> Lookup:
    """CAPZ: exp/api/v1beta1, AzureMachinePoolSpec and AzureMachinePoolMachineTemplate."""
    return _azure(spec.inner("template"), Where(spec.string("location") or where.region))


def _gcp(spec: Spec, where: Where) -> Footprint | Lookup:
    """CAPG: api/v1beta1, GCPMachineSpec, AttachedDiskSpec and Accelerator."""
    found = _ask(
        gcp.size,
        gcp.NAME,
        {
            "machineType": spec.text("instanceType"),
            "zone": where.zone,
            "diskSize": (spec.optional_integer("rootDeviceSize", minimum=0) or _GCP_DISK),
            "guestAccelerators": [
                {"acceleratorType": card.text("type"), "acceleratorCount": card.integer("count")}
                for card in spec.items("guestAccelerators")
            ],
        },
    )
    disks = sum(
        _LOCAL_SSD * GIB * UNIT if disk.string("deviceType") == "local-ssd" else _gib(disk, "size", _GCP_DISK)
        for disk in spec.items("additionalDisks")
    )
    if isinstance(found, Lookup):
        return replace(found, disks=found.disks + disks)
    return replace(found, resources={**found.resources, "storage": found.resources["storage"] + disks})


def _openstack(spec: Spec, where: Where) -> Lookup:
    """CAPO: api/v1beta1, OpenStackMachineSpec: `flavor` or `flavorID`; v1beta2's FlavorParam: an id or a filter."""
    found = _ask(openstack.size, openstack.NAME, {"flavor": _flavor(spec), "region": where.region})
    volume = spec.inner("rootVolume")
    disks = sum(_gib(disk, "sizeGiB") for disk in spec.items("additionalBlockDevices"))
    root = _gib(volume, "sizeGiB") if spec.has("rootVolume") else None  # the flavor's own
    return _with(found, root=root, disks=disks, devices={})


def _flavor(spec: Spec) -> str:
    if spec.has("flavorID"):
        return spec.string("flavorID")
    try:
        return spec.text("flavor")
    except NotSized:
        chosen = spec.inner("flavor")
        return chosen.string("id") or chosen.inner("filter").text("name")


def _hcloud(spec: Spec, where: Where) -> Footprint | Lookup:
    """CAPH: api/v1beta1, HCloudMachineSpec."""
    return _ask(hetzner.size, hetzner.NAME, {"serverType": spec.text("type")})


def _digitalocean(spec: Spec, where: Where) -> Lookup:
    """CAPDO: api/v1beta1, DOMachineSpec and DataDisk."""
    found = _ask(digitalocean.size, digitalocean.NAME, {"size": spec.text("size")})
    disks = sum(_gib(disk, "diskSizeGB") for disk in spec.items("dataDisks"))
    return _with(found, root=None, disks=disks, devices={})


def _vsphere(spec: Spec, where: Where) -> Footprint:
    """CAPV: apis/v1beta1 and v1beta2, VirtualMachineCloneSpec; pkg/services/govmomi/vcenter/clone.go has the least.

    A linked clone keeps the template's disk. Where cloneMode is not set, CAPV makes one only of a template that has a
    snapshot, which is not known here; then diskGiB is counted.
    """
    disk = _root(spec, "diskGiB", "diskGiB")
    if spec.string("cloneMode") == "linkedClone":
        disk = "cloneMode is linkedClone, so the disk is as big as the template's, which is not known: use fullClone"
    more = sum(amount * GIB * UNIT for amount in spec.integers("additionalDisksGiB"))
    more += sum(_gib(disk, "sizeGiB") for disk in spec.items("dataDisks"))
    return footprint(
        vsphere.NAME,
        cpu=max(spec.optional_integer("numCPUs", minimum=0) or 0, 2) * UNIT,
        memory=(spec.optional_integer("memoryMiB", minimum=0) or 2048) * MIB * UNIT,
        storage=disk if isinstance(disk, str) else disk + more,
        devices=_summed(_pci_device(device) for device in spec.items("pciDevices")),
    )


def _nutanix(spec: Spec, where: Where) -> Footprint:
    """CAPX: api/v1beta1, NutanixMachineSpec. AHV passes on GPUs of NVIDIA only."""
    disks = sum(disk.quantity("diskSize") for disk in spec.items("dataDisks"))
    return footprint(
        nutanix.NAME,
        cpu=spec.integer("vcpuSockets") * spec.integer("vcpusPerSocket") * UNIT,
        memory=spec.quantity("memorySize"),
        storage=spec.quantity("systemDiskSize") + disks,
        devices=_summed(_NVIDIA for _ in spec.items("gpus")),
    )


def _kubevirt(spec: Spec, where: Where) -> Footprint | Lookup:
    """CAPK: api/v1alpha1, KubevirtMachineSpec; the rest is KubeVirt's own VirtualMachineSpec."""
    machine = spec.inner("virtualMachineTemplate").inner("spec")
    template = machine.inner("template").inner("spec")
    domain = template.inner("domain")
    disks = _kubevirt_disks(machine, template)
    attached = domain.inner("devices")
    devices = _summed(
        name
        for device in (*attached.items("gpus"), *attached.items("hostDevices"))
        for name in counted_as(device.text("deviceName"))
    )
    if machine.has("instancetype"):
        nowhere = Spec(KUBEVIRT, b"{}", "")  # the infra cluster is the environment's
        return kubevirt.lookup(nowhere, kubevirt.of_kind(machine.inner("instancetype")), disks, devices)
    return footprint(
        KUBEVIRT,
        cpu=_kubevirt_cpus(domain),
        memory=_kubevirt_memory(domain),
        storage=disks,
        devices=devices,
    )


def _kubevirt_cpus(domain: Spec) -> int:
    """As the guest sees them: cores, sockets and threads; or by its resources, limits first; or one."""
    topology = domain.inner("cpu")
    given = [topology.optional_integer(name, minimum=0) or 0 for name in ("cores", "sockets", "threads")]
    if any(given):
        cores, sockets, threads = (number or 1 for number in given)
        return cores * sockets * threads * UNIT
    resources = domain.inner("resources")
    for part in (resources.inner("limits"), resources.inner("requests")):
        if part.has("cpu"):
            return -(-part.quantity("cpu") // UNIT) * UNIT
    return UNIT


def _kubevirt_memory(domain: Spec) -> int:
    memory, resources = domain.inner("memory"), domain.inner("resources")
    if memory.has("guest"):
        return memory.quantity("guest")
    for part in (resources.inner("requests"), resources.inner("limits")):
        if part.has("memory"):
            return part.quantity("memory")
    raise memory.missing("guest")


def _kubevirt_disks(machine: Spec, template: Spec) -> int | str:
    """Of the volumes that are made for it. Claims that it only mounts are somebody else's."""
    total = 0
    for volume in machine.items("dataVolumeTemplates"):
        claims = [volume.inner("spec").inner(name) for name in ("storage", "pvc")]
        requests = [claim.inner("resources").inner("requests") for claim in claims]
        sized = [request for request in requests if request.has("storage")]
        if not sized:
            return "a dataVolumeTemplate requests no storage, so its size is its source's, which is not known: set it"
        total += sized[0].quantity("storage")
    for volume in template.items("volumes"):
        for made in (volume.inner("emptyDisk"), volume.inner("hostDisk")):
            total += made.quantity("capacity") if made.has("capacity") else 0
    return total


def _metal3(spec: Spec, where: Where) -> Footprint:
    """CAPM3: of the BareMetalHost, see seed/machines/metal3.py."""
    host = spec.inner("host")
    return footprint(
        METAL3,
        cpu=host.integer("cpus") * UNIT,
        memory=host.integer("memoryMiB") * MIB * UNIT,
        storage=(host.optional_integer("storageBytes", minimum=0) or 0) * UNIT,
    )


def _pci_device(device: Spec) -> str:
    if device.string("vGPUProfile"):
        return _NVIDIA
    found = _PCI_VENDORS.get(device.optional_integer("vendorId", minimum=0) or 0, "")
    bridge = found == _NVIDIA and is_nvswitch(device.optional_integer("deviceId", minimum=0) or 0)
    return "" if bridge else found


def _summed(names: Iterable[str]) -> ResourceList:
    devices: dict[str, int] = {}
    for name in names:
        if name:
            devices[name] = devices.get(name, 0) + UNIT
    return devices


METAL3 = "metal3"


@dataclass(frozen=True, slots=True)
class Kind:
    """`fields` of its spec are what it costs by. `versions`: of its API, those that are known, the best first."""

    provider: str
    fields: tuple[str, ...]
    size: Callable[[Spec, Where], Footprint | Lookup]
    versions: tuple[str, ...] = ("v1beta1",)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "AWSMachine": Kind(aws.NAME, ("instanceType", "rootVolume", "nonRootVolumes"), _aws, ("v1beta2",)),
        "AWSMachinePool": Kind(aws.NAME, ("awsLaunchTemplate", "mixedInstancesPolicy"), _aws_pool, ("v1beta2",)),
        "AWSManagedMachinePool": Kind(
            aws.NAME, ("awsLaunchTemplate", "instanceType", "diskSize"), _aws_managed_pool, ("v1beta2",)
        ),
        "AzureMachine": Kind(azure.NAME, ("vmSize", "osDisk", "dataDisks"), _azure),
        "AzureMachinePool": Kind(azure.NAME, ("location", "template"), _azure_pool),
        "DOMachine": Kind(digitalocean.NAME, ("size", "dataDisks"), _digitalocean),
        "GCPMachine": Kind(gcp.NAME, ("instanceType", "rootDeviceSize", "additionalDisks", "guestAccelerators"), _gcp),
        "HCloudMachine": Kind(hetzner.NAME, ("type",), _hcloud, ("v1beta1", "v1beta2")),
        "KubevirtMachine": Kind(KUBEVIRT, ("virtualMachineTemplate",), _kubevirt, ("v1alpha1",)),
        "Metal3Machine": Kind(METAL3, ("host",), _metal3, ("v1beta1", "v1beta2")),
        "NutanixMachine": Kind(
            nutanix.NAME,
            ("vcpusPerSocket", "vcpuSockets", "memorySize", "systemDiskSize", "dataDisks", "gpus"),
            _nutanix,
        ),
        "OpenStackMachine": Kind(
            openstack.NAME,
            ("flavor", "flavorID", "rootVolume", "additionalBlockDevices"),
            _openstack,
            ("v1beta1", "v1beta2"),
        ),
        "VSphereMachine": Kind(
            vsphere.NAME,
            ("numCPUs", "memoryMiB", "diskGiB", "additionalDisksGiB", "dataDisks", "pciDevices", "cloneMode"),
            _vsphere,
            ("v1beta1", "v1beta2"),
        ),
    }
)
"""By kind; all of them are of the group `infrastructure.GROUP`."""
