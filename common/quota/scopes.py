"""Scopes: which objects a quota for namespaces counts, beyond what its names say. Pure.

They are the scopes of Kubernetes' core quotas: `spec.scopes` and `spec.scopeSelector`, 1.34.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from common.quota import object_names
from common.quota.object_names import COMPUTE, HUGE_PAGES, LIMITS, PERSISTENT_VOLUME_CLAIMS, PODS, REQUESTS

TERMINATING: Final = "Terminating"
NOT_TERMINATING: Final = "NotTerminating"
BEST_EFFORT: Final = "BestEffort"
NOT_BEST_EFFORT: Final = "NotBestEffort"
PRIORITY_CLASS: Final = "PriorityClass"
CROSS_NAMESPACE_POD_AFFINITY: Final = "CrossNamespacePodAffinity"
VOLUME_ATTRIBUTES_CLASS: Final = "VolumeAttributesClass"

IN: Final = "In"
NOT_IN: Final = "NotIn"
EXISTS: Final = "Exists"
DOES_NOT_EXIST: Final = "DoesNotExist"

_WITHOUT_VALUES: Final = frozenset(
    {TERMINATING, NOT_TERMINATING, BEST_EFFORT, NOT_BEST_EFFORT, CROSS_NAMESPACE_POD_AFFINITY}
)
_ALL: Final = _WITHOUT_VALUES | {PRIORITY_CLASS, VOLUME_ATTRIBUTES_CLASS}
_OPPOSITES: Final = ((BEST_EFFORT, NOT_BEST_EFFORT), (TERMINATING, NOT_TERMINATING))

# pkg/apis/core/helper/helpers.go, IsResourceQuotaScopeValidForResource: of the names without a slash.
_POD_NAMES: Final = frozenset({"pods", *(prefix + name for name in COMPUTE[:2] for prefix in ("", REQUESTS, LIMITS))})
_NAMES: Final = {
    **dict.fromkeys(_ALL, _POD_NAMES),
    BEST_EFFORT: frozenset({"pods"}),
    VOLUME_ATTRIBUTES_CLASS: frozenset({"persistentvolumeclaims", "requests.storage"}),
}


class ScopeRequirement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One of `scopeSelector.matchExpressions`. An object counts if it meets all that a quota has."""

    scope_name: str
    operator: str = EXISTS
    values: tuple[str, ...] = ()


def requirements(scopes: Iterable[str], selector: Iterable[ScopeRequirement] = ()) -> tuple[ScopeRequirement, ...]:
    """`spec.scopes` and `spec.scopeSelector` as one (quota/v1/generic/evaluator.go, getScopeSelectorsFromQuota)."""
    return (*(ScopeRequirement(scope) for scope in scopes), *selector)


def meets(requirement: ScopeRequirement, classes: Collection[str]) -> bool:
    """Whether an object that refers to these classes meets it; one of them is enough.

    As a selector meets labels (pkg/apis/core/v1/helper, ScopedResourceSelectorRequirementsAsSelector).
    """
    match requirement.operator:
        case "Exists":
            return bool(classes)
        case "DoesNotExist":
            return not classes
        case "In":
            return any(name in requirement.values for name in classes)
        case "NotIn":
            return not classes or any(name not in requirement.values for name in classes)
    return False


def problem(limited: Collection[str], wanted: Sequence[ScopeRequirement]) -> str:
    """Why a quota cannot have these scopes; empty if it can.

    It refuses what core's validation refuses (pkg/apis/core/validation, validateResourceQuotaScopes and
    validateScopedResourceSelectorRequirement), and names that core accepts and never counts under such a scope.
    """
    for requirement in wanted:
        if text := _wrong(requirement):
            return text
        for name in sorted(limited):
            if not _may_limit(requirement.scope_name, name):
                return f"scope {requirement.scope_name} cannot limit {name}"
    found = {requirement.scope_name for requirement in wanted}
    for one, other in _OPPOSITES:
        if one in found and other in found:
            return f"scopes {one} and {other} exclude each other"
    return ""


def _wrong(requirement: ScopeRequirement) -> str:
    scope, operator = requirement.scope_name, requirement.operator
    if scope not in _ALL:
        return f"scope {scope[:40]!a} is not known"
    if operator not in (IN, NOT_IN, EXISTS, DOES_NOT_EXIST):
        return f"scope {scope}: operator {operator[:40]!a} is not known"
    if scope in _WITHOUT_VALUES and operator != EXISTS:
        return f"scope {scope}: the operator must be {EXISTS}"
    if operator in (IN, NOT_IN) and not requirement.values:
        return f"scope {scope}: operator {operator} needs values"
    if operator in (EXISTS, DOES_NOT_EXIST) and requirement.values:
        return f"scope {scope}: operator {operator} has no values"
    return ""


def _may_limit(scope: str, name: str) -> bool:
    if "/" not in name or name.startswith((HUGE_PAGES, REQUESTS + HUGE_PAGES)):
        return name in _NAMES[scope]
    counts = PERSISTENT_VOLUME_CLAIMS if scope == VOLUME_ATTRIBUTES_CLASS else PODS
    return counts in object_names.counted(name)
