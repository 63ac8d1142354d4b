"""What a Machine costs, and the two ways in which that is not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from common.quota import names
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList

MIB = 2**20
GIB = 2**30

_NO_DEVICES: ResourceList = MappingProxyType({})


class NotSized(Exception):
    """The Machine's spec does not tell its size, and asking again will not help (422).

    `str()` is the text for the user: `cannot size machine: vsphere memoryMB is missing`. `condition` is the reason of a
    UserCluster's condition MachinesSized, and so with its subclasses and ProviderUnavailable.
    """

    condition: ClassVar[str] = "NotSized"

    def __init__(self, provider: str, reason: str) -> None:
        super().__init__(f"cannot size machine: {provider} {reason}" if provider else f"cannot size machine: {reason}")
        self.provider = provider
        self.reason = reason


class FlavourUnknown(NotSized):
    """The cloud has no such machine type."""

    condition = "FlavorUnknown"


class CredentialsMissing(NotSized):
    """There is nothing to ask the cloud with, or nothing that could be right."""

    condition = "CredentialsRejected"


class EndpointNotAllowed(NotSized):
    """The Machine names an endpoint that the platform has not named: what it answers is not believed."""

    condition = "EndpointNotAllowed"


class ProviderUnavailable(Exception):
    """The size must be asked of a cloud that does not answer now: asking again may help (503)."""

    condition: ClassVar[str] = "ProviderUnavailable"

    def __init__(self, provider: str, reason: str) -> None:
        super().__init__(f"cannot size machine now: {provider} {reason}")
        self.provider = provider
        self.reason = reason


class CredentialsRejected(ProviderUnavailable):
    """The cloud does not take what it was asked with: asking again helps once that is corrected."""

    condition = "CredentialsRejected"


CONDITIONS = tuple(
    dict.fromkeys(
        error.condition
        for error in (
            CredentialsRejected,
            CredentialsMissing,
            EndpointNotAllowed,
            FlavourUnknown,
            NotSized,
            ProviderUnavailable,
        )
    )
)
"""All of them, what people must correct first."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one Machine costs.

    `resources` holds nanos by resource name, `machines` always among them. `unknown` holds what the Machine takes
    in an amount that its spec does not tell (the disk of a template), with the reason. `excess` says what it takes
    that is not in `resources`: its names are too many, or not valid.
    """

    provider: str
    resources: ResourceList
    unknown: Mapping[str, str] = field(default_factory=dict)
    excess: str = ""

    def times(self, count: int) -> Footprint:
        """What so many of them cost."""
        resources = {name: amount * count for name, amount in self.resources.items()}
        return replace(self, resources=MappingProxyType(resources), unknown=self.unknown if count else {})

    def of_type(self, machine_type: str) -> Footprint:
        """With the name that counts Machines of this type: as many as it is."""
        name, count = names.of_instances(machine_type), self.resources.get("machines", UNIT)
        return replace(self, resources=MappingProxyType({**self.resources, name: count})) if name else self

    def bounded(self) -> Footprint:
        """With at most `names.MAX_DEVICES` names beside the base names, each of them valid."""
        further = sorted(name for name in self.resources if name not in names.BASE)
        valid = [name for name in further if names.is_valid(name)]
        excess = ""
        if len(valid) < len(further):
            wrong = next(name for name in further if name not in valid)
            excess = f"takes a device by a name that is not valid: {wrong[:40]!a}; write it like nvidia.com/gpu"
        elif len(valid) > names.MAX_DEVICES:
            excess = f"takes more than {names.MAX_DEVICES} kinds of devices: take fewer"
        if not excess:
            return self
        counted = {*names.BASE, *valid[: names.MAX_DEVICES]}
        resources = {name: amount for name, amount in self.resources.items() if name in counted}
        return replace(self, resources=MappingProxyType(resources), excess=excess)

    def require(self, limited: Iterable[str] = ()) -> None:
        """Raises NotSized when one of the `limited` resources is unknown: what is not measured is not admitted. So
        with an `excess`, whatever is limited."""
        if self.excess:
            raise NotSized(self.provider, self.excess)
        for resource in limited:
            if resource in self.unknown:
                raise NotSized(self.provider, f"{self.unknown[resource]}, because a quota limits {resource}")


def footprint(
    provider: str, *, cpu: int, memory: int, storage: int | str, devices: ResourceList = _NO_DEVICES
) -> Footprint:
    """One Machine, in nanos. `storage` is a text when the spec does not tell it: the reason."""
    resources = {"cpu": cpu, "memory": memory, "machines": UNIT, **devices}
    if isinstance(storage, str):
        return Footprint(provider, MappingProxyType(resources), MappingProxyType({"storage": storage})).bounded()
    resources["storage"] = storage
    return Footprint(provider, MappingProxyType(resources)).bounded()


def template_disk(field: str) -> str:
    """Why the storage of a Machine is unknown that leaves out `field`."""
    return f"{field} is not set, so the disk is as big as the template's, which is not known: set it in the spec"
