"""Objects of which only the number counts: k8s.io/apiserver/pkg/quota/v1/generic/evaluator.go, objectCountEvaluator."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from common.kube.client.meta import Object, ObjectMeta, OwnerReference
from common.quota import object_names
from common.quota.object_names import ALIASES, GroupResource
from common.quota.quantity import UNIT
from seed.kinds.namespaces.evaluators.namespaced import CREATE, Counting

NOT_READ: Final = "-"  # no field of an object has this name


class NumberedMeta(ObjectMeta, frozen=True, kw_only=True):
    """Without what may be long and says nothing about a number of objects."""

    labels: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}labels")
    annotations: dict[str, str] = msgspec.field(default_factory=dict, name=f"{NOT_READ}annotations")
    owner_references: tuple[OwnerReference, ...] = msgspec.field(default=(), name=f"{NOT_READ}ownerReferences")
    finalizers: tuple[str, ...] = msgspec.field(default=(), name=f"{NOT_READ}finalizers")


class Numbered(Object, frozen=True, kw_only=True):
    """An object of which only the number counts."""

    metadata: NumberedMeta


class ObjectCountEvaluator(Counting[Object]):
    """Their metadata is enough."""

    type = Object
    asked_of: ClassVar = {"": frozenset({CREATE})}

    def __init__(self, resource: GroupResource) -> None:
        self.resource = resource
        counted = [object_names.count_of(resource)]
        if resource in ALIASES:
            counted.append(ALIASES[resource])
        self._usage = dict.fromkeys(counted, UNIT)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectCountEvaluator) and self.resource == other.resource

    def __hash__(self) -> int:
        return hash(self.resource)

    def usage(self, subject: Object, now: float) -> dict[str, int]:
        return dict(self._usage)
