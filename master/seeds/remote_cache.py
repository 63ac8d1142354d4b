"""What one seed has of the master's objects, for as long as one connection lasts."""

from __future__ import annotations

from collections.abc import Callable

from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object
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
        # Not one of `all`: what a seed says of itself is for people, and no reason to do without the seed.
        self.seed: Reflector[Named] = Reflector(
            cluster, SEED_COPIES, field_selector=f"metadata.name={cluster.name}", on_change=tells("seeds")
        )

    @property
    def all(self) -> tuple[Reflector[QuotaCopy], Reflector[Named], Reflector[Named], Reflector[Named]]:
        return self.quotas, self.projects, self.organizations, self.settings

    @property
    def synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self.all)

    @property
    def error(self) -> str | None:
        """Why it does not follow the seed now."""
        return next((reflector.error for reflector in self.all if reflector.error is not None), None)
