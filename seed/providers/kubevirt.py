"""KubeVirt: cpus, memory and disks as Kubernetes quantities in the spec, or an instancetype of the infra cluster.

Fields: k8c.io/machine-controller/sdk/cloudprovider/kubevirt/types.go, RawConfig. What becomes of them:
pkg/cloudprovider/provider/kubevirt/provider.go, parseResources (`vcpus.cores`, when not 0, wins over `cpus`),
newVirtualMachine (an instancetype replaces both and the memory) and getDataVolumeTemplates (one claim per disk).
"""

from __future__ import annotations

from common.quantity import UNIT
from seed.providers.size import Footprint, NotSized, footprint
from seed.providers.spec import Spec, quoted

NAME = "kubevirt"


def size(spec: Spec) -> Footprint:
    machine = spec.inner("virtualMachine")
    if machine.has("instancetype"):
        raise _asks_infra_cluster(machine, "instancetype", machine.inner("instancetype").string("name"))
    flavor = machine.inner("flavor").variable("name")
    if flavor:
        raise _asks_infra_cluster(machine, "flavor", flavor)
    template = machine.inner("template")
    cores = template.inner("vcpus").optional_integer("cores", minimum=0)
    disks = [template.inner("primaryDisk"), *template.items("secondaryDisks")]
    return footprint(
        NAME,
        cpu=cores * UNIT if cores else template.quantity("cpus"),
        memory=template.quantity("memory"),
        storage=sum(disk.quantity("size") for disk in disks),
    )


def _asks_infra_cluster(machine: Spec, field: str, name: str) -> NotSized:
    return NotSized(
        machine.provider,
        f"virtualMachine.{field} {quoted(name)} stands in the infra cluster, which is not asked yet; "
        "set virtualMachine.template.cpus and memory instead",
    )
