"""The label that says of which project a namespace is, where namespaces of several projects are in one cluster. Pure.

Who writes it decides who pays. So only those may who may `assign` the projects that it names before and after: a verb
of RBAC on `projects` of this group, which no role of Kubernetes has but cluster-admin. An API server evaluates that
itself, and asks about nothing but what is to be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from common.api.labels import GROUP, PROJECT_LABEL

WEBHOOK: Final = "project"
RESOURCES: Final = ("namespaces", "namespaces/finalize", "namespaces/status")
"""Each of them can change labels."""

ASSIGN: Final = "assign"

_PROJECT_OF: Final = (
    f"which != null && has(which.metadata.labels) && '{PROJECT_LABEL}' in which.metadata.labels"
    f" ? which.metadata.labels['{PROJECT_LABEL}'] : ''"
)
_MAY_ASSIGN: Final = f"authorizer.group('{GROUP}').resource('projects').name(project).check('{ASSIGN}').allowed()"

CONDITIONS: Final[Mapping[str, str]] = {
    "may-not-assign": f"[[oldObject, object].map(which, {_PROJECT_OF})].exists(projects,"
    f" projects[0] != projects[1] && projects.exists(project, project != '' && !{_MAY_ASSIGN}))"
}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether the namespace gets another project. API servers before 1.28 ask about every write of a namespace."""
    return before.get(PROJECT_LABEL, "") != after.get(PROJECT_LABEL, "")
