"""What one seed has of the master's objects, for as long as one connection lasts."""

from __future__ import annotations

from collections.abc import Callable

from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object
from common.kube.client.resource import by_name
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


class SeedCaches:
    """What one seed has, for as long as one connection lasts."""

    def __init__(self, cluster: Cluster, on_change: Callable[[str, Change[Object]], None]) -> None:
        def tells(plural: str) -> Callable[[Change[QuotaCopy] | Change[Named]], None]:
            return lambda change: on_change(plural, Change(change.old, change.new))

        self.quotas: Reflector[QuotaCopy] = Reflector(
            cluster,
            QUOTA_COPIES,
            indexes={BY_SUBJECT: lambda copy: ["/".join(subject_of(copy))]},
            on_change=tells("resourcequotas"),
        )
        self.projects: Reflector[Named] = Reflector(cluster, PROJECTS, on_change=tells("projects"))
        self.organizations: Reflector[Named] = Reflector(cluster, ORGANIZATIONS, on_change=tells("organizations"))
        self.settings: Reflector[Named] = Reflector(cluster, QUOTA_SETTINGS, on_change=tells("quotasettings"))
        # Not one of `all`: it tells which master serves the seed. A role from before it did may be without the right.
        self.seed: Reflector[Named] = Reflector(
            cluster, SEED_COPIES, field_selector=by_name(cluster.name), on_change=tells("seeds")
        )

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
