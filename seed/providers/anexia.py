"""Anexia: `cpus`, `memory` (MiB) and `disks[].size` (GiB) in the spec, or the older `diskSize`.

Fields: k8c.io/machine-controller/sdk/cloudprovider/anexia/types.go, RawConfig;
pkg/cloudprovider/provider/anexia/resolve_config.go takes `diskSize` for one disk and refuses it beside `disks`. Units:
the numbers go to go-anxcloud's vm.Definition as memory_mb (its examples are 1024, 2048, 4096) and disk_gb of a VM on
Anexia's vSphere, which counts in MiB and GiB.
"""

from __future__ import annotations

from common.quota.quantity import UNIT
from seed.providers.size import GIB, MIB, Footprint, NotSized, footprint
from seed.providers.spec import Spec

NAME = "anexia"


def size(spec: Spec) -> Footprint:
    return footprint(
        NAME,
        cpu=spec.integer("cpus") * UNIT,
        memory=spec.integer("memory") * MIB * UNIT,
        storage=_gigabytes(spec) * GIB * UNIT,
    )


def _gigabytes(spec: Spec) -> int:
    disks = spec.items("disks")
    single = spec.optional_integer("diskSize", minimum=0)
    if disks and single:
        raise NotSized(NAME, "has both disks and diskSize: set disks only")
    if disks:
        return sum(disk.integer("size") for disk in disks)
    if single:
        return single
    raise spec.missing("disks")
