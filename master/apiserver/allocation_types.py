"""Allocations over HTTP: what requests and answers are, and how they become objects. Pure.

The spelling `commited` is read, too, since the RFC that this API follows has it in its examples.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from common.api.types import MAX_AMOUNT, AllocatedResource, AllocationSpec
from common.api.types import Allocation as Stored
from master.apiserver.capacity import Allocated
from master.apiserver.problem import invalid
from master.apiserver.serializers import MAX_TYPES, Name, ReadOnly, SubjectName, Type

MAX_AT_ONCE = 100  # allocations in one request
NAME_ANNOTATION = "seedquota.io/display-name"
CREATED_BY_ANNOTATION = "seedquota.io/created-by"
REQUEST_ANNOTATION = "seedquota.io/request"  # that created it, until somebody else has seen it
UNNAMED = "unused"
IDS = uuid.UUID("6f1c2f4a-64d5-5d6c-9a59-0b8f2a3f5a77")  # namespace of IDs that are made here (RFC 9562)

Count = Annotated[int, Meta(ge=0, le=MAX_AMOUNT)]
Kind = Annotated[
    str, Meta(min_length=1, max_length=63, pattern="^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", description="Of what.")
]
ThingId = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[A-Za-z0-9]([-A-Za-z0-9_.:/]*[A-Za-z0-9])?$")]
DisplayName = Annotated[str, Meta(max_length=253)]


class AllocationMetadata(msgspec.Struct, kw_only=True):
    """`createdBy`: the user who created it over HTTP; empty for others."""

    id: str
    name: str
    organization_id: str = msgspec.field(name="organizationID")
    project_id: str = msgspec.field(name="projectID")
    creation_timestamp: str = msgspec.field(name="creationTimestamp")
    created_by: str = msgspec.field(name="createdBy")


class AllocationContent(msgspec.Struct, kw_only=True):
    """What it is for, and how much is allocated."""

    kind: str
    id: str
    resources: list[Allocated]


class Allocation(msgspec.Struct, kw_only=True):
    """What a service has allocated for one thing of a project."""

    metadata: AllocationMetadata
    spec: AllocationContent


class GivenResource(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`commited` is another spelling of `committed`. `amount`, if it is there, is the sum."""

    type: Type
    committed: Count | UnsetType = UNSET
    commited: Count | UnsetType = UNSET
    reserved: Count = 0
    amount: Count | UnsetType = UNSET


class GivenMetadata(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`id` is chosen by the client, and the same request with it can be sent again. Without it, it is made of the
    organization and of the `kind` and `id` of `spec`."""

    id: Name | UnsetType = UNSET
    name: DisplayName | UnsetType = UNSET
    organization_id: str | UnsetType = msgspec.field(default=UNSET, name="organizationID")
    project_id: SubjectName | UnsetType = msgspec.field(default=UNSET, name="projectID")
    creation_timestamp: ReadOnly = msgspec.field(default=UNSET, name="creationTimestamp")
    created_by: ReadOnly = msgspec.field(default=UNSET, name="createdBy")


Resources = Annotated[list[GivenResource], Meta(max_length=MAX_TYPES)]


class GivenContent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    kind: Kind
    id: ThingId
    resources: Resources


class ChangedContent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`kind` and `id` cannot be changed."""

    resources: Resources
    kind: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class AllocationCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`metadata.projectID` is required, except below a project."""

    metadata: GivenMetadata = msgspec.field(default_factory=GivenMetadata)
    spec: GivenContent


class AllocationUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Replaces the resources. A type that is missing is released."""

    metadata: GivenMetadata = msgspec.field(default_factory=GivenMetadata)
    spec: ChangedContent


Creates = AllocationCreate | Annotated[list[AllocationCreate], Meta(min_length=1, max_length=MAX_AT_ONCE)]


@dataclass(frozen=True)
class NewAllocation:
    """One allocation that is to be there. `at`: where in the body it is."""

    name: str
    display_name: str
    spec: AllocationSpec
    at: str

    def body(self, user: str, request: str) -> dict[str, object]:
        annotations = {NAME_ANNOTATION: self.display_name, CREATED_BY_ANNOTATION: user, REQUEST_ANNOTATION: request}
        return {"metadata": {"name": self.name, "annotations": annotations}, "spec": spec_of(self.spec)}

    def is_there(self, found: Stored) -> bool:
        """Whether this was created by the same request before."""
        return (
            _whose(found.spec) == _whose(self.spec)
            and amounts(found.spec.resources) == amounts(self.spec.resources)
            and display_name(found) == self.display_name
        )


def spec_of(spec: AllocationSpec) -> dict[str, object]:
    """As it is written: an empty list of resources, too, which the struct would leave out."""
    found: dict[str, object] = msgspec.to_builtins(spec)
    return {**found, "resources": msgspec.to_builtins(spec.resources)}


def new_allocation(given: AllocationCreate, organization: str, project: str, at: str) -> NewAllocation:
    """`project`: that of the path, if it has one. Raises ProblemError."""
    metadata, content = given.metadata, given.spec
    _same(metadata.organization_id, organization, f"{at}/metadata/organizationID")
    if project:
        _same(metadata.project_id, project, f"{at}/metadata/projectID")
    elif not isinstance(metadata.project_id, str):
        raise invalid(f"{at}/metadata/projectID", "the project of the allocation is needed")
    else:
        project = metadata.project_id
    derived = str(uuid.uuid5(IDS, f"{organization}/{content.kind}/{content.id}"))
    return NewAllocation(
        name=metadata.id if isinstance(metadata.id, str) else derived,
        display_name=metadata.name if isinstance(metadata.name, str) else UNNAMED,
        spec=AllocationSpec(
            organization=organization,
            project=project,
            kind=content.kind,
            id=content.id,
            resources=resources(content.resources, f"{at}/spec/resources"),
        ),
        at=at,
    )


def check_distinct(several: Sequence[NewAllocation]) -> None:
    """Raises ProblemError for two of one ID, or for one thing."""
    names: set[str] = set()
    things: set[tuple[str, str]] = set()
    for each in several:
        thing = each.spec.kind, each.spec.id
        if thing in things:
            raise invalid(f"{each.at}/spec/id", f"{each.spec.kind} {each.spec.id} is there twice")
        if each.name in names:
            raise invalid(f"{each.at}/metadata/id", f"{each.name} is there twice")
        names.add(each.name)
        things.add(thing)


def resources(given: Sequence[GivenResource], at: str) -> list[AllocatedResource]:
    """Raises ProblemError."""
    found: dict[str, AllocatedResource] = {}
    for number, each in enumerate(given):
        where = f"{at}/{number}"
        if each.type in found:
            raise invalid(f"{where}/type", f"{each.type} is named twice")
        spellings = {count for count in (each.committed, each.commited) if isinstance(count, int)}
        if len(spellings) > 1:
            raise invalid(f"{where}/commited", "committed and commited are two spellings of one field, and differ")
        committed = spellings.pop() if spellings else 0
        amount = committed + each.reserved
        if isinstance(each.amount, int) and each.amount != amount:
            raise invalid(f"{where}/amount", f"it is the sum of committed and reserved, {amount}")
        if amount > MAX_AMOUNT:
            raise invalid(where, f"the sum of committed and reserved is more than {MAX_AMOUNT}")
        found[each.type] = AllocatedResource(type=each.type, committed=committed, reserved=each.reserved)
    return list(found.values())


def total(several: Sequence[NewAllocation]) -> dict[str, AllocatedResource]:
    """What all take of each type, by where the body has the type first. Raises ProblemError."""
    places: dict[str, str] = {}
    sums: dict[str, AllocatedResource] = {}
    for each in several:
        for number, more in enumerate(each.spec.resources):
            at = f"{each.at}/spec/resources/{number}"
            place = places.setdefault(more.type, at)
            sums[place] = _sum(sums[place], more) if place in sums else more
            if sums[place].committed + sums[place].reserved > MAX_AMOUNT:
                raise invalid(at, f"with those before it, {more.type} is more than {MAX_AMOUNT}")
    return sums


def _sum(one: AllocatedResource, more: AllocatedResource) -> AllocatedResource:
    committed, reserved = one.committed + more.committed, one.reserved + more.reserved
    return AllocatedResource(type=one.type, committed=committed, reserved=reserved)


def amounts(given: Sequence[AllocatedResource]) -> dict[str, tuple[int, int]]:
    return {each.type: (each.committed, each.reserved) for each in given}


def answer(found: Stored) -> Allocation:
    spec, metadata = found.spec, found.metadata
    return Allocation(
        metadata=AllocationMetadata(
            id=metadata.name,
            name=display_name(found),
            organization_id=spec.organization,
            project_id=spec.project,
            creation_timestamp=metadata.creation_timestamp or "",
            created_by=metadata.annotations.get(CREATED_BY_ANNOTATION, ""),
        ),
        spec=AllocationContent(
            kind=spec.kind,
            id=spec.id,
            resources=[
                Allocated(
                    type=each.type,
                    amount=each.committed + each.reserved,
                    committed=each.committed,
                    reserved=each.reserved,
                )
                for each in spec.resources
            ],
        ),
    )


def display_name(found: Stored) -> str:
    return found.metadata.annotations.get(NAME_ANNOTATION, UNNAMED)


def version(content: object) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:24]


def check_same(given: AllocationUpdate, found: Stored) -> None:
    """Raises ProblemError, 422, for what cannot be changed."""
    for at, value, has in (
        ("/metadata/id", given.metadata.id, found.metadata.name),
        ("/metadata/organizationID", given.metadata.organization_id, found.spec.organization),
        ("/metadata/projectID", given.metadata.project_id, found.spec.project),
        ("/spec/kind", given.spec.kind, found.spec.kind),
        ("/spec/id", given.spec.id, found.spec.id),
    ):
        _same(value, has, at)


def _same(given: str | UnsetType, has: str, at: str) -> None:
    if isinstance(given, str) and given != has:
        problem = invalid(at, f"it is {has} and cannot be changed")
        problem.code = "immutable"
        raise problem


def _whose(spec: AllocationSpec) -> tuple[str, str, str, str]:
    return spec.organization, spec.project, spec.kind, spec.id
