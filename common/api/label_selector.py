"""Label selectors, as Kubernetes has them (k8s.io/apimachinery/pkg/apis/meta/v1, LabelSelectorAsSelector). Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from common.quota import names


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


def text(selector: LabelSelector) -> str:
    """As `kubectl -l` takes it."""
    parts = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for each in selector.match_expressions:
        match each.operator:
            case "In" | "NotIn":
                parts.append(f"{each.key} {each.operator.lower()} ({','.join(each.values)})")
            case "Exists":
                parts.append(each.key)
            case _:
                parts.append(f"!{each.key}")
    return ",".join(parts)


def well_formed(selector: LabelSelector) -> LabelSelector | None:
    """What picks the same, and an API server accepts; None if it picks nothing.

    No object has a label that no API server accepts. The CRDs refuse such selectors, and an object may be older.
    """
    if not all(names.is_qualified(key) and names.is_label_value(value) for key, value in selector.match_labels.items()):
        return None
    requirements: list[LabelRequirement] = []
    for requirement in selector.match_expressions:
        values = tuple(value for value in requirement.values if names.is_label_value(value))
        possible = names.is_qualified(requirement.key) and (bool(values) or requirement.operator not in ("In", "NotIn"))
        if possible:
            requirements.append(LabelRequirement(requirement.key, requirement.operator, values))
        elif requirement.operator in ("In", "Exists"):
            return None
    return LabelSelector(match_labels=selector.match_labels, match_expressions=tuple(requirements))
