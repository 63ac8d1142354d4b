"""Why the objects of a kind cannot be counted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from common.quota.object_names import GroupResource
from seed.kinds.namespaces.kind_informer import KindInformer
from seed.usage.source import NOT_LISTED, Problem

UNREACHABLE = "Unreachable"
RIGHTS = "bind the role of charts/rbac/user-cluster-namespaces.yaml there"
RIGHTS_OF_SECRETS = "bind the role of charts/rbac/user-cluster-secrets.yaml there, too"
MOST_TEXT = 512  # characters of an API server's error


def listing_problem(resource: str, error: str | None, status: int) -> Problem | None:
    """`status`: of the API server's answer; 0: there was none; 200: it cannot be read."""
    if error is None:
        return None
    if status == 0:
        return Problem(UNREACHABLE, error[:MOST_TEXT])
    if status == 200:
        return Problem(NOT_LISTED, f"{resource} cannot be counted: {error[:MOST_TEXT]}")
    text = f"{resource} cannot be listed: {error[:MOST_TEXT]}"
    rights = RIGHTS_OF_SECRETS if resource in ("secrets", "configmaps") else RIGHTS
    return Problem(NOT_LISTED, f"{text}; {rights}" if status in (401, 403) else text)


def listing_problems(informers: Iterable[KindInformer], kinds: Collection[GroupResource]) -> dict[str, Problem]:
    """By resource: of those of these kinds that cannot be listed."""
    asked = [informer for informer in informers if informer.resource in kinds]
    found = {str(each.resource): listing_problem(str(each.resource), each.error, each.error_status) for each in asked}
    return {name: problem for name, problem in found.items() if problem is not None}
