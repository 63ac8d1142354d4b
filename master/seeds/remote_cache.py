"""What one seed has of the master's objects, for as long as one connection lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object
from common.kube.client.resource import Resource, by_name, weigh
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from master.cache.informers import BY_SUBJECT, subject_of
from master.cache.objects import (
    ORGANIZATIONS,
    PROJECTS,
    QUOTA_COPIES,
    QUOTA_SETTINGS,
    SEED_COPIES,
    Named,
    QuotaCopy,
)

T = TypeVar("T", bound=Object)

MOST: Final = {"resourcequotas": 128, "projects": 48, "organizations": 16, "quotasettings": 4, "seeds": 2}
"""MiB that one seed may take. A seed that is compromised must not take the memory that the master needs for all others.
While a list is read, there may be twice as much."""


def _bounded(resource: Resource[T]) -> Resource[T]:
    return replace(resource, most=MOST[resource.plural] * 2**20, weigh=weigh)


_BOUNDED: dict[str, Resource[Any]] = {
    resource.plural: _bounded(resource) for resource in (PROJECTS, ORGANIZATIONS, QUOTA_SETTINGS, SEED_COPIES)
}
_QUOTAS = _bounded(QUOTA_COPIES)


class SeedCaches:
    """What one seed has, for as long as one connection lasts. `trusted`: it is the master's own API server."""

    def __init__(
        self, cluster: Cluster, on_change: Callable[[str, Change[Object]], None], *, trusted: bool = False
    ) -> None:
        def tells(plural: str) -> Callable[[Change[QuotaCopy] | Change[Named]], None]:
            return lambda change: on_change(plural, Change(change.old, change.new))

        def named(resource: Resource[Named], **options: Any) -> Reflector[Named]:
            used: Resource[Named] = resource if trusted else _BOUNDED[resource.plural]
            return Reflector(cluster, used, on_change=tells(resource.plural), **options)

        self.quotas: Reflector[QuotaCopy] = Reflector(
            cluster,
            QUOTA_COPIES if trusted else _QUOTAS,
            indexes={BY_SUBJECT: lambda copy: ["/".join(subject_of(copy))]},
            on_change=tells("resourcequotas"),
        )
        self.projects = named(PROJECTS)
        self.organizations = named(ORGANIZATIONS)
        self.settings = named(QUOTA_SETTINGS)
        # Not one of `all`: it tells which master serves the seed. A role from before it did may be without the right.
        self.seed = named(SEED_COPIES, field_selector=by_name(cluster.name))

    @property
    def all(self) -> tuple[Reflector[QuotaCopy], Reflector[Named], Reflector[Named], Reflector[Named]]:
        return self.quotas, self.projects, self.organizations, self.settings

    @property
    def synced(self) -> bool:
        return self.master_known and all(reflector.synced.is_set() for reflector in self.all)

    @property
    def master_known(self) -> bool:
        """The copy of the Seed was read, or may not be."""
        return self.seed.synced.is_set() or self.seed.error_status == 403

    @property
    def error(self) -> str | None:
        """Why it does not follow the seed now."""
        needed = self.all if self.master_known else (*self.all, self.seed)
        return next((reflector.error for reflector in needed if reflector.error is not None), None)
