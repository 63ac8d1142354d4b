"""Metal3: a Metal3Machine is as big as the BareMetalHost that it gets. Pure.

Which one that is, CAPM3 decides after the Machine was admitted, at random among those that are free and fit its
hostSelector (baremetal/metal3machine_manager.go, chooseHost). Until then it counts as the largest of them. A host's
size is what its inspection found: `status.hardware` of metal3.io/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource

HOST_ANNOTATION = "metal3.io/BareMetalHost"


class ConsumerRef(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class HostSpec(msgspec.Struct, frozen=True, rename="camel"):
    consumer_ref: ConsumerRef | None = None


class Cpu(msgspec.Struct, frozen=True):
    count: int = 0


class Disk(msgspec.Struct, frozen=True, rename="camel"):
    size_bytes: int = 0


class Hardware(msgspec.Struct, frozen=True, rename="camel"):
    cpu: Cpu = Cpu()
    ram_mebibytes: int = 0
    storage: list[Disk] = []


class HostStatus(msgspec.Struct, frozen=True):
    hardware: Hardware | None = None


class BareMetalHost(Object, frozen=True, kw_only=True):
    spec: HostSpec = HostSpec()
    status: HostStatus = HostStatus()


BARE_METAL_HOSTS = Resource("metal3.io", "v1alpha1", "baremetalhosts", "BareMetalHost", True, BareMetalHost)


class Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] = []


class HostSelector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    host_selector: HostSelector = HostSelector()


def spec_of(machine: ObjectMeta, spec: bytes | msgspec.Raw, hosts: Iterable[BareMetalHost]) -> bytes | None:
    """What seed/machines/infrastructure.py reads; None if there is no host to size it by.

    `machine` is of the Metal3Machine, `hosts` those of its namespace.
    """
    try:
        selector = msgspec.json.decode(spec or b"{}", type=_Spec).host_selector
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    hosts = list(hosts)
    bound = machine.annotations.get(HOST_ANNOTATION, "")
    chosen = [host for host in hosts if host.metadata.key == bound]
    if not chosen:
        chosen = [host for host in hosts if _takes(selector, host) and _may_have(machine, host.spec.consumer_ref)]
    found = [host.status.hardware for host in chosen if host.status.hardware is not None]
    if not found:
        return None
    largest = {
        "cpus": max(hardware.cpu.count for hardware in found),
        "memoryMiB": max(hardware.ram_mebibytes for hardware in found),
        "storageBytes": max(sum(disk.size_bytes for disk in hardware.storage) for hardware in found),
    }
    return msgspec.json.encode({"host": largest})


def _may_have(machine: ObjectMeta, consumer: ConsumerRef | None) -> bool:
    return consumer is None or (consumer.name, consumer.namespace) == (machine.name, machine.namespace)


def _takes(selector: HostSelector, host: BareMetalHost) -> bool:
    labels = host.metadata.labels
    return selector.match_labels.items() <= labels.items() and all(
        _meets(requirement, labels.get(requirement.key)) for requirement in selector.match_expressions
    )


def _meets(requirement: Requirement, value: str | None) -> bool:
    """By the operators of k8s.io/apimachinery/pkg/selection. One that is not known excludes no host."""
    match requirement.operator.casefold():
        case "in" | "=" | "==":
            return value in requirement.values
        case "notin" | "!=":
            return value not in requirement.values
        case "exists":
            return value is not None
        case "!" | "doesnotexist":
            return value is None
        case _:
            return True
