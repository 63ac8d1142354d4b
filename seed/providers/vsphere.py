"""vSphere: `cpus`, `memoryMB` (MiB) and `diskSizeGB` (GiB) in the spec.

Fields: k8c.io/machine-controller/sdk/cloudprovider/vsphere/types.go, RawConfig. Units, in
pkg/cloudprovider/provider/vsphere: helper.go hands cpus to VirtualMachineConfigSpec.NumCPUs (all virtual processors, so
there are no cores to multiply) and memoryMB to its MemoryMB, which vSphere counts in MiB; disk.go sets CapacityInKB to
diskSizeGB * 1024^2, so GiB. Without diskSizeGB the clone keeps the disk of its template.
"""

from __future__ import annotations

from common.quota.quantity import UNIT
from seed.providers.size import GIB, MIB, Footprint, footprint, template_disk
from seed.providers.spec import Spec

NAME = "vsphere"


def size(spec: Spec) -> Footprint:
    disk = spec.optional_integer("diskSizeGB")
    return footprint(
        NAME,
        cpu=spec.integer("cpus") * UNIT,
        memory=spec.integer("memoryMB") * MIB * UNIT,
        storage=disk * GIB * UNIT if disk else template_disk("diskSizeGB"),
    )
