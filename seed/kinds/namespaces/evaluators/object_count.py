"""Objects of which only the number counts: k8s.io/apiserver/pkg/quota/v1/generic/evaluator.go, objectCountEvaluator."""

from __future__ import annotations

from typing import ClassVar

from common.kube.client.meta import Object
from common.quota import object_names
from common.quota.object_names import ALIASES, GroupResource
from common.quota.quantity import UNIT
from seed.kinds.namespaces.evaluators.namespaced import CREATE, Counting


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
