"""Nutanix: `cpus` (sockets) of `cpuCores` each, `memoryMB` (MiB) and `diskSize` (GiB) in the spec.

Fields: k8c.io/machine-controller/sdk/cloudprovider/nutanix/types.go, RawConfig. Units:
pkg/cloudprovider/provider/nutanix/client.go, createVM, sets num_sockets to cpus, num_vcpus_per_socket to cpuCores
(Nutanix takes 1 when it is not set), memory_size_mib to memoryMB and disk_size_mib to diskSize * 1024. Without diskSize
the disk is as big as the image.
"""

from __future__ import annotations

from common.quota.quantity import UNIT
from seed.providers.size import GIB, MIB, Footprint, footprint, template_disk
from seed.providers.spec import Spec

NAME = "nutanix"


def size(spec: Spec) -> Footprint:
    sockets = spec.integer("cpus")
    cores_per_socket = spec.optional_integer("cpuCores") or 1
    disk = spec.optional_integer("diskSize")
    return footprint(
        NAME,
        cpu=sockets * cores_per_socket * UNIT,
        memory=spec.integer("memoryMB") * MIB * UNIT,
        storage=disk * GIB * UNIT if disk else template_disk("diskSize"),
    )
