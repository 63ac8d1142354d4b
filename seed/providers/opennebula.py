"""OpenNebula: `vcpu`, `cpu`, `memory` (MiB) and `diskSize` (MiB) in the spec.

Fields: k8c.io/machine-controller/sdk/cloudprovider/opennebula/types.go, RawConfig.
pkg/cloudprovider/provider/opennebula/provider.go, Create, writes them as VCPU, CPU, MEMORY and the SIZE of the one disk
into the template of the VM, after the attributes of vmTemplateExtra. VCPU is what the guest sees, and CPU the share of
the host that is reserved for it: the larger of the two counts.
https://docs.opennebula.io/stable/product/operation_references/configuration_references/template/
"""

from __future__ import annotations

import re

from common.quota.quantity import UNIT
from seed.providers.size import MIB, Footprint, NotSized, footprint
from seed.providers.spec import Spec, quoted

NAME = "opennebula"

_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_SIZES = re.compile(r"CPU|MEMORY|DISK|PCI|NUMA|TOPOLOGY|RAW")


def size(spec: Spec) -> Footprint:
    extra = spec.inner("vmTemplateExtra")
    for name in extra.names():
        # The name is written as it is; a backslash before a quote in the value would end it.
        if not _ATTRIBUTE.fullmatch(name) or _SIZES.search(name.upper()) or "\\" in extra.string(name):
            raise NotSized(NAME, f"vmTemplateExtra {quoted(name)} may change the size: set cpu, vcpu, memory, diskSize")
    return footprint(
        NAME,
        cpu=max(spec.integer("vcpu") * UNIT, spec.number("cpu")),
        memory=spec.integer("memory") * MIB * UNIT,
        storage=spec.integer("diskSize") * MIB * UNIT,
    )
