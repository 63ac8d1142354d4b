"""Cluster API's objects, `cluster.x-k8s.io` v1beta1 and v1beta2, and which Machine of ours each of them is. Pure.

Only the fields that are read here. The versions differ in how they refer to other objects: v1beta1 names an apiVersion
and perhaps a namespace, v1beta2 a group, and both mean the object's own namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from common.kube.client.meta import Int64, Object, ObjectMeta
from seed.machines import infrastructure, metal3
from seed.machines.infrastructure import Described
from seed.machines.infrastructure_kinds import KINDS, Where
from seed.machines.machine_controller import Machine
from seed.machines.metal3 import BareMetalHost

GROUP = "cluster.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")


class Reference(msgspec.Struct, frozen=True, rename="camel"):
    kind: str = ""
    name: str = ""
    api_group: str = ""
    api_version: str = ""

    @property
    def group(self) -> str:
        return self.api_group or self.api_version.partition("/")[0]


_NOWHERE = Reference()


class ClusterSpec(msgspec.Struct, frozen=True, rename="camel"):
    infrastructure_ref: Reference = _NOWHERE


class FailureDomain(msgspec.Struct, frozen=True):
    name: str = ""


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel"):
    failure_domains: dict[str, object] | list[FailureDomain] = msgspec.field(default_factory=list)

    @property
    def zones(self) -> list[str]:
        """v1beta1 has a map of them, v1beta2 a list."""
        domains = self.failure_domains
        return sorted(domains) if isinstance(domains, dict) else sorted(domain.name for domain in domains)


class Cluster(Object, frozen=True, kw_only=True):
    spec: ClusterSpec = ClusterSpec()
    status: ClusterStatus = ClusterStatus()


class MachineSpec(msgspec.Struct, frozen=True, rename="camel"):
    cluster_name: str = ""
    infrastructure_ref: Reference = _NOWHERE
    failure_domain: str = ""


class ClusterMachine(Object, frozen=True, kw_only=True):
    """A Machine."""

    spec: MachineSpec = MachineSpec()


class MachineTemplate(msgspec.Struct, frozen=True):
    spec: MachineSpec = MachineSpec()


class PoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    cluster_name: str = ""
    replicas: Int64 | None = None
    template: MachineTemplate = MachineTemplate()


class PoolStatus(msgspec.Struct, frozen=True):
    replicas: Int64 | None = None


class MachinePool(Object, frozen=True, kw_only=True):
    spec: PoolSpec = PoolSpec()
    status: PoolStatus = PoolStatus()

    @property
    def replicas(self) -> int:
        """Those it is to have, and those that it still has. Not set is one."""
        wanted = 1 if self.spec.replicas is None else self.spec.replicas
        return max(wanted, self.status.replicas or 0, 0)


class Infrastructure(Object, frozen=True, kw_only=True):
    """Any object of an infrastructure provider. `spec` is JSON as it came."""

    spec: msgspec.Raw = msgspec.Raw(b"{}")

    def __post_init__(self) -> None:
        # a decoded Raw keeps the whole answer it came from alive
        msgspec.structs.force_setattr(self, "spec", msgspec.Raw(bytes(self.spec)))


class _IdentityRef(msgspec.Struct, frozen=True):
    region: str = ""


class _PlacedSpec(msgspec.Struct, frozen=True, rename="camel"):
    region: str = ""
    location: str = ""
    identity_ref: _IdentityRef | None = None


REGIONS: Mapping[str, str] = {
    "AWSCluster": "spec.region",
    "AzureCluster": "spec.location",
    "GCPCluster": "spec.region",
    "OpenStackCluster": "spec.identityRef.region",
}
"""Kinds of infrastructure clusters that tell where their Machines run, and in which field."""


def project_of(cluster: Object, label: str) -> str:
    """The project of its Machines: a label, or an annotation of the same name. Empty if it has none."""
    return cluster.metadata.labels.get(label) or cluster.metadata.annotations.get(label, "")


def where_of(cluster: Cluster | None, infrastructure_cluster: Infrastructure | None, declared: str = "") -> Where:
    """Where its Machines run if they do not say otherwise. `declared`: the region, if nothing else tells it."""
    region = _region_of(infrastructure_cluster) if infrastructure_cluster is not None else ""
    zones = cluster.status.zones if cluster is not None else []
    return Where(region or declared, zones[0] if zones else "")  # CAPG, too, takes the first by name


def _region_of(infrastructure_cluster: Infrastructure) -> str:
    try:
        spec = msgspec.json.decode(infrastructure_cluster.spec, type=_PlacedSpec)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return spec.region or spec.location or (spec.identity_ref.region if spec.identity_ref is not None else "")


def machine_of(
    subject: ClusterMachine | MachinePool,
    found: Infrastructure | None,
    where: Where,
    hosts: Iterable[BareMetalHost] = (),
) -> Machine:
    """As everything else here knows Machines. `found`: its infrastructure object, or a template of it."""
    if isinstance(subject, MachinePool):
        spec, replicas = subject.spec.template.spec, subject.replicas
    else:
        spec, replicas = subject.spec, None
    if spec.failure_domain:
        where = Where(where.region, spec.failure_domain)
    described = _describe(subject.metadata.namespace, spec.infrastructure_ref, found, where, replicas, hosts)
    return Machine(metadata=subject.metadata, spec=described)


def machine_of_template(
    made: ClusterMachine, template: Infrastructure, where: Where, hosts: Iterable[BareMetalHost] = ()
) -> Machine:
    """The Machine that `made` is once its infrastructure object was made of the template to which it refers."""
    reference = made.spec.infrastructure_ref
    kind = reference.kind.removesuffix(infrastructure.TEMPLATE)
    spec = msgspec.structs.replace(made.spec, infrastructure_ref=msgspec.structs.replace(reference, kind=kind))
    metadata = ObjectMeta(name=template.metadata.name, namespace=template.metadata.namespace)  # bound to nothing yet
    found = Infrastructure(metadata=metadata, spec=infrastructure.in_template(template.spec))
    return machine_of(msgspec.structs.replace(made, spec=spec), found, where, hosts)


def _describe(
    namespace: str,
    reference: Reference,
    found: Infrastructure | None,
    where: Where,
    replicas: int | None,
    hosts: Iterable[BareMetalHost],
) -> Described:
    kind = reference.kind
    if not reference.name:
        return infrastructure.undescribed(kind, "infrastructureRef is missing", replicas)
    if reference.group != infrastructure.GROUP:
        kind = f"{kind}.{reference.group}"  # one of those that are not supported
    elif kind in KINDS and found is None:
        problem = f"{kind} {namespace}/{reference.name} does not exist: it must be there before its Machine"
        return infrastructure.undescribed(kind, problem, replicas)
    spec: bytes | msgspec.Raw = found.spec if found is not None else b"{}"
    if kind == "Metal3Machine" and found is not None:
        host = metal3.spec_of(found.metadata, spec, hosts)
        if host is None:
            problem = f"{kind} {found.metadata.key}: no BareMetalHost that its hostSelector takes is free and inspected"
            return infrastructure.undescribed(kind, problem, replicas)
        spec = host
    return infrastructure.describe(kind, spec, where, replicas)
