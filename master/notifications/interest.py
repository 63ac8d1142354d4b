"""Which quotas a QuotaNotification may tell of, by the namespace in which it is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from master.notifications.active import Active
from master.notifications.objects import NotificationSpec


class Scope(msgspec.Struct, frozen=True):
    """Whose quotas. `organization` is empty for all: that is the master's own namespace."""

    organization: str = ""

    def covers(self, subject: str, organization_of: Callable[[str], str]) -> bool:
        """`subject`: kind/name. `organization_of`: of a project; empty where it has none."""
        if not self.organization:
            return True
        kind, _, name = subject.partition("/")
        if kind == "project":
            return organization_of(name) == self.organization
        return kind == "organization" and name == self.organization


def wanted(
    spec: NotificationSpec,
    scope: Scope,
    lasting: Iterable[Active],
    organization_of: Callable[[str], str],
    now: float,
) -> list[Active]:
    """`now`: Unix time."""
    projects = {f"project/{name}" for name in spec.projects}
    return [
        each
        for each in lasting
        if each.event in spec.events
        and (each.until is None or now < each.until)
        and (not projects or each.subject in projects)
        and scope.covers(each.subject, organization_of)
    ]
