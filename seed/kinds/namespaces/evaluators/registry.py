"""The evaluator of each kind of objects in namespaces: k8s.io/kubernetes/pkg/quota/v1/evaluator/core/registry.go."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from common.quota.object_names import NEVER_COUNTED, GroupResource
from seed.kinds.namespaces.evaluators import (
    fields,
    persistent_volume_claims,
    pods,
    resource_claims,
    resource_quotas,
    services,
)
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator, Terms
from seed.kinds.namespaces.evaluators.object_count import ObjectCountEvaluator

_SPECIAL: Final[dict[GroupResource, NamespacedEvaluator[Any]]] = {
    evaluator.resource: evaluator
    for evaluator in (
        persistent_volume_claims.EVALUATOR,
        pods.EVALUATOR,
        resource_claims.EVALUATOR,
        resource_quotas.EVALUATOR,
        services.EVALUATOR,
    )
}


@lru_cache(maxsize=1024)
def evaluator_of(resource: GroupResource) -> NamespacedEvaluator[Any] | None:
    """None for what no quota counts. What is not special, custom resources too, is counted by number."""
    if resource in NEVER_COUNTED:
        return None
    return _SPECIAL.get(resource) or ObjectCountEvaluator(resource)


def evaluators_of(terms: Terms) -> dict[GroupResource, NamespacedEvaluator[Any]]:
    """Of all that a quota counts by these terms."""
    found = {kind: fields.evaluator_of(kind, terms.limited) or evaluator_of(kind) for kind in terms.kinds}
    return {kind: evaluator for kind, evaluator in found.items() if evaluator is not None}
