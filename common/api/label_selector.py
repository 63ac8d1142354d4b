"""Label selectors, as Kubernetes has them (k8s.io/apimachinery/pkg/apis/meta/v1, LabelSelectorAsSelector). Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class LabelRequirement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of `matchExpressions`."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Picks what meets all of it. An empty one picks everything."""

    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[LabelRequirement, ...] = ()


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _meets(requirement, labels) for requirement in selector.match_expressions
    )


def _meets(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
