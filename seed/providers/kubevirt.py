"""KubeVirt: cpus, memory and disks as Kubernetes quantities in the spec, or an instancetype of the infra cluster.

Fields: k8c.io/machine-controller/sdk/cloudprovider/kubevirt/types.go, RawConfig. What becomes of them:
pkg/cloudprovider/provider/kubevirt/provider.go, parseResources (`vcpus.cores`, when not 0, wins over `cpus`),
newVirtualMachine (an instancetype replaces both and the memory), defaultVMInstanceType (which instancetype) and
getDataVolumeTemplates (one claim per disk). A preference lays out the CPUs of an instancetype and changes no size.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from seed.providers.flavour import Cloud, Lookup, Setting
from seed.providers.kubevirt_instancetypes import ENVIRONMENT_NAMESPACE, NAME, fetch, flavour_of, place
from seed.providers.size import Footprint, NotSized, footprint
from seed.providers.spec import Spec, quoted

_NO_DEVICES: ResourceList = MappingProxyType({})
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def size(spec: Spec) -> Footprint | Lookup:
    machine = spec.inner("virtualMachine")
    flavor = machine.inner("flavor").variable("name")
    if flavor:
        raise NotSized(
            NAME,
            f"virtualMachine.flavor {quoted(flavor)} is an API that KubeVirt has given up; "
            "set virtualMachine.instancetype, or virtualMachine.template.cpus and memory, instead",
        )
    template = machine.inner("template")
    if machine.has("instancetype"):
        return lookup(spec, _name(machine.inner("instancetype")), _disks(template))
    cores = template.inner("vcpus").optional_integer("cores", minimum=0)
    return footprint(
        NAME,
        cpu=cores * UNIT if cores else template.quantity("cpus"),
        memory=template.quantity("memory"),
        storage=_disks(template),
    )


def _disks(template: Spec) -> int:
    disks = [template.inner("primaryDisk"), *template.items("secondaryDisks")]
    return sum(disk.quantity("size") for disk in disks)


def lookup(spec: Spec, flavour: str, disks: int | str, devices: ResourceList = _NO_DEVICES) -> Lookup:
    """`spec` says where the infra cluster is, if it says so."""
    return Lookup(
        provider=NAME,
        flavour=flavour,
        where={
            "kubeconfig": spec.inner("auth").setting("kubeconfig", "KUBEVIRT_KUBECONFIG"),
            "namespace": Setting(variable=ENVIRONMENT_NAMESPACE, platform=True),
        },
        credentials={},
        endpoint="kubeconfig",
        root=disks,
        devices=devices,
    )


def _name(matcher: Spec) -> str:
    """machine-controller takes nothing else of it: neither `kind` nor `revisionName`."""
    name = matcher.string("name")
    if not name:
        raise matcher.missing("name")
    if not _OBJECT_NAME.fullmatch(name):
        raise NotSized(NAME, f"virtualMachine.instancetype {quoted(name)} has a name that cannot exist")
    return name


def of_kind(matcher: Spec) -> str:
    """As KubeVirt itself reads it, in a VirtualMachine that somebody else writes:
    `VirtualMachineClusterInstancetype/u1.medium`."""
    for field in ("revisionName", "inferFromVolume"):
        if matcher.string(field):
            raise NotSized(NAME, f"instancetype.{field} names a size that is not asked for; set name alone")
    name = matcher.string("name")
    if not name:
        raise matcher.missing("name")
    flavour = flavour_of(matcher.string("kind"), name)
    if flavour is None or not _OBJECT_NAME.fullmatch(name):
        raise NotSized(NAME, f"instancetype {quoted(name)} has a kind or a name that cannot exist")
    return flavour


CLOUD = Cloud(place=place, fetch=fetch, lists=False)
