"""What the master's own cluster has: watch caches, kept whether this replica leads or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from common.api import SEEDS, SETTINGS, DefaultQuota, QuotaSettingsSpec, Seed
from common.kube.client import Cluster
from common.kube.meta import Object
from common.kube.reflector import PROMPT_SECONDS, Change, Reflector
from master.objects import (
    MASTER_QUOTAS,
    ORGANIZATIONS,
    PROJECTS,
    QUOTA_SETTINGS,
    SECRETS,
    MasterQuota,
    Named,
    QuotaCopy,
    Secret,
)

T = TypeVar("T", bound=Object)

BY_ORGANIZATION = "organization"
BY_SUBJECT = "subject"


def subject_of(quota: MasterQuota | QuotaCopy) -> tuple[str, str]:
    """Kind and name; the name is empty for namespaces."""
    subject = quota.spec.get("subject")
    if not isinstance(subject, dict):
        return "", ""
    return str(subject.get("kind", "")), str(subject.get("name", ""))


def organization_of(project: Named) -> str:
    return str(project.spec.get("organization", ""))


class Caches:
    """`listen(listener)`: called with the plural, the name and the change of every object, on the event loop."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._listeners: list[Callable[[str, Change[Object]], None]] = []
        prompt = PROMPT_SECONDS
        self.seeds: Reflector[Seed] = Reflector(cluster, SEEDS, on_change=self._tells("seeds"), watch_seconds=prompt)
        self.quotas: Reflector[MasterQuota] = Reflector(
            cluster,
            MASTER_QUOTAS,
            indexes={BY_SUBJECT: lambda quota: ["/".join(subject_of(quota))]},
            on_change=self._tells("resourcequotas"),
            watch_seconds=prompt,
        )
        self.projects: Reflector[Named] = Reflector(
            cluster,
            PROJECTS,
            indexes={BY_ORGANIZATION: lambda project: [organization_of(project)]},
            on_change=self._tells("projects"),
            watch_seconds=prompt,
        )
        self.organizations: Reflector[Named] = Reflector(
            cluster, ORGANIZATIONS, on_change=self._tells("organizations"), watch_seconds=prompt
        )
        self.settings: Reflector[Named] = Reflector(
            cluster, QUOTA_SETTINGS, on_change=self._tells("quotasettings"), watch_seconds=prompt
        )
        self.secrets: Reflector[Secret] = Reflector(
            cluster, SECRETS, namespace=namespace, on_change=self._tells("secrets"), watch_seconds=prompt
        )
        self._all: dict[str, Reflector[Any]] = {
            "seeds": self.seeds,
            "resourcequotas": self.quotas,
            "projects": self.projects,
            "organizations": self.organizations,
            "quotasettings": self.settings,
            "secrets": self.secrets,
        }

    def default(self, kind: str) -> DefaultQuota | None:
        """Raises msgspec.ValidationError where the settings cannot be read: then everything stays as it is."""
        settings = self.settings.store.get(SETTINGS)
        if settings is None:
            return None
        defaults = msgspec.convert(settings.spec, QuotaSettingsSpec).defaults
        return {"project": defaults.project, "organization": defaults.organization}.get(kind)

    def gets_default(self, kind: str, name: str) -> bool:
        """Whether a quota is made for this subject, if it has none."""
        subject = (self.projects if kind == "project" else self.organizations).store.get(name)
        alive = subject is not None and subject.metadata.deletion_timestamp is None
        return alive and self.default(kind) is not None

    def listen(self, listener: Callable[[str, Change[Object]], None]) -> Callable[[], None]:
        """Returns what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for plural, reflector in self._all.items():
                group.create_task(reflector.run(), name=f"watch {plural}")

    async def synced(self) -> None:
        """Waits until every cache has had its first list."""
        for reflector in self._all.values():
            await reflector.synced.wait()

    def not_synced(self) -> str | None:
        """A readiness check."""
        missing = [
            f"{plural}: {reflector.error or 'first list not complete'}"
            for plural, reflector in self._all.items()
            if not reflector.synced.is_set()
        ]
        return "; ".join(missing) or None

    def _tells(self, plural: str) -> Callable[[Change[T]], None]:
        def tell(change: Change[T]) -> None:
            untyped: Change[Object] = Change(change.old, change.new)
            for listener in list(self._listeners):
                listener(plural, untyped)

        return tell


def changed_name(change: Change[T]) -> str:
    known = change.new if change.new is not None else change.old
    assert known is not None, "a change has an object before or after"
    return known.metadata.name
