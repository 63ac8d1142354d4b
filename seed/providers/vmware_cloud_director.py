"""VMware Cloud Director: `cpus`, `memoryMB` (MiB) and `diskSizeGB` (GiB) in the spec, or a sizing policy.

Fields: k8c.io/machine-controller/sdk/cloudprovider/vmwareclouddirector/types.go, RawConfig. Units:
pkg/cloudprovider/provider/vmwareclouddirector/helper.go, recomposeComputeAndDisk, sets VmSpecSection.NumCpus to cpus.
That is all CPUs of the VM: NumCoresPerSocket, from cpuCores, only says how they are laid out ("number of cores among
which to distribute CPUs", go-vcloud-director types/v56), so cpuCores is not read. MemoryResourceMb is memoryMB, and
SizeMb of the template's disk is diskSizeGB * 1024; an absent or zero diskSizeGB leaves that disk as it is. A sizing
policy replaces cpus and memoryMB.
"""

from __future__ import annotations

from common.quota.quantity import UNIT
from seed.providers.size import GIB, MIB, Footprint, NotSized, footprint, template_disk
from seed.providers.spec import Spec, quoted

NAME = "vmware-cloud-director"


def size(spec: Spec) -> Footprint:
    policy = spec.string("sizingPolicy")
    if policy:
        raise NotSized(
            NAME,
            f"sizingPolicy {quoted(policy)} stands in Cloud Director, which is not asked yet; "
            "leave it out and set cpus and memoryMB",
        )
    disk = spec.optional_integer("diskSizeGB", minimum=0)
    return footprint(
        NAME,
        cpu=spec.integer("cpus") * UNIT,
        memory=spec.integer("memoryMB") * MIB * UNIT,
        storage=disk * GIB * UNIT if disk else template_disk("diskSizeGB"),
    )
