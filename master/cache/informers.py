"""What the master's own cluster has: watch caches, kept whether this replica leads or not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import msgspec

from common.api.catalogue import Catalogue
from common.api.core import SECRETS, Secret
from common.api.labels import SETTINGS
from common.api.seed_selector import SeedSelector
from common.api.types import SEEDS, CatalogueEntry, DefaultQuota, QuotaSettingsSpec, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.controller.fresh_lists import list_anew
from common.kube.controller.reflector import PROMPT_SECONDS, Reflector
from common.kube.controller.store import Change
from common.quota import resources
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from common.runtime.listeners import Listeners
from master.cache.objects import (
    MASTER_QUOTAS,
    ORGANIZATIONS,
    PROJECTS,
    QUOTA_ALLOCATIONS,
    QUOTA_SETTINGS,
    AllocatedTypes,
    MasterQuota,
    Named,
    QuotaAllocation,
    QuotaCopy,
)
from master.cache.organization_limits import OrganizationLimits, OrganizationLimitsCache, is_of_a_part
from master.cache.picked_seeds import picks

T = TypeVar("T", bound=Object)

log = logging.getLogger(__name__)

RELIST_EVERY = 5.0  # seconds between two lists because a cache was found to be behind

BY_ORGANIZATION = "organization"
BY_SUBJECT = "subject"


def subject_of(quota: MasterQuota | QuotaCopy) -> tuple[str, str]:
    """Kind and name; the name is empty for namespaces."""
    subject = quota.spec.get("subject")
    if not isinstance(subject, dict):
        return "", ""
    return str(subject.get("kind", "")), str(subject.get("name", ""))


def limits_all_of(quota: MasterQuota, subject: tuple[str, str]) -> bool:
    """Whether it is of that kind and name, and of no part of it."""
    return subject_of(quota) == subject and not is_of_a_part(quota.spec)


def organization_of(project: Named) -> str:
    return str(project.spec.get("organization", ""))


class Caches:
    """`listen(listener)`: called with the plural, the name and the change of every object, on the event loop."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._listeners: Listeners[[str, Change[Object]]] = Listeners()
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
        self.allocations: Reflector[QuotaAllocation] = Reflector(
            cluster, QUOTA_ALLOCATIONS, on_change=self._tells("resourcequotaallocations"), watch_seconds=prompt
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
            "resourcequotaallocations": self.allocations,
            "secrets": self.secrets,
        }
        self.cluster = cluster
        self._settings_read: Named | None = None
        self._read = QuotaSettingsSpec()
        self._allocated: frozenset[str] = frozenset()
        self._limits = OrganizationLimitsCache(self.quotas_of, self._projects_of)
        self._relisted: dict[str, float] = {}  # when a cache was last found to be behind (monotonic)

    def quotas_of(self, kind: str, name: str) -> list[MasterQuota]:
        """Those of one subject, by name."""
        found = self.quotas.store.by_index(BY_SUBJECT, f"{kind}/{name}")
        return sorted(found, key=lambda quota: quota.metadata.name)

    def whole_quotas_of(self, kind: str, name: str) -> list[MasterQuota]:
        """Of these, those that limit all that the subject has."""
        return [quota for quota in self.quotas_of(kind, name) if not is_of_a_part(quota.spec)]

    def parents_of(self, kind: str, name: str) -> list[MasterQuota]:
        """Of a project, those that limit all that its organization has."""
        project = self.projects.store.get(name) if kind == "project" else None
        organization = organization_of(project) if project is not None else ""
        return self.whole_quotas_of("organization", organization) if organization else []

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

    def guarantees_of(self, quota: MasterQuota, limits: ResourceList, surge: ResourceList) -> Sequence[Guarantee]:
        """What is kept for projects of the organization whose quota it is. Not of what rollouts may have beside."""
        kind, name = subject_of(quota)
        if kind != "organization" or quota.spec.get("enforcement") == "warn" or is_of_a_part(quota.spec):
            return ()
        names = limits.keys() - surge.keys()
        given = self.limits_of(name).guaranteed.items()
        hard = ((project, resources.only(amounts, sorted(names))) for project, amounts in given)
        return [Guarantee(project=project, hard=amounts) for project, amounts in hard if amounts]

    def limits_of(self, organization: str) -> OrganizationLimits:
        return self._limits.of(organization)

    def catalogue(self) -> list[CatalogueEntry]:
        return self._settings_spec().resources

    def overcommit(self) -> Fraction | None:
        """How many times the limit of an organization those of its projects may be together; None: any."""
        overcommit = self._settings_spec().overcommit
        return Fraction(str(overcommit)) if overcommit is not None else None

    def kin(self, plural: str, change: Change[Object]) -> Iterator[MasterQuota]:
        """Other quotas whose limits are compared with what changed: those of a project with those of its organization,
        and the other way round; with overcommit those of all its projects."""
        for organization in self._compared(plural, change):
            yield from self.quotas_of("organization", organization)
            if plural == "projects":
                yield from self.quotas_of("project", changed_name(change))
            elif self.overcommit() is not None or _is_of_organization(change):
                for project in self._projects_of(organization):
                    yield from self.quotas_of("project", project)

    def _compared(self, plural: str, change: Change[Object]) -> set[str]:
        """Organizations with whose limits something else is compared after this change."""
        old, new = change.old, change.new
        found: set[str] = set()
        if plural == "projects":
            found = {organization_of(each) for each in (old, new) if isinstance(each, Named)}
            if len(found) == 1 and old is not None and new is not None:
                return set()
        elif plural == "resourcequotas" and (
            old is None or new is None or old.metadata.generation != new.metadata.generation
        ):
            for kind, name in {subject_of(each) for each in (old, new) if isinstance(each, MasterQuota)}:
                project = self.projects.store.get(name) if kind == "project" else None
                found.add(name if kind == "organization" else organization_of(project) if project else "")
        return found - {""}

    def _projects_of(self, organization: str) -> list[str]:
        return [project.metadata.name for project in self.projects.store.by_index(BY_ORGANIZATION, organization)]

    def _settings_spec(self) -> QuotaSettingsSpec:
        """Settings that cannot be read say nothing new."""
        settings = self.settings.store.get(SETTINGS)
        if settings is not self._settings_read:
            self._settings_read = settings
            try:
                self._read = msgspec.convert(settings.spec if settings is not None else {}, QuotaSettingsSpec)
                self._allocated = Catalogue(self._read.resources).allocated
            except msgspec.ValidationError as error:
                log.warning("settings cannot be read", extra={"error": str(error)})
        return self._read

    def allocated_types(self, picked: SeedSelector | None = None) -> AllocatedTypes:
        """What is counted from Allocations, and whether there is a seed for it among those that a quota picks."""
        self._settings_spec()
        here = [seed for seed in self.seeds.store.values() if seed.spec.in_cluster and seed.spec.state != "Lost"]
        return AllocatedTypes(names=self._allocated, seed=any(picks(picked, seed) for seed in here))

    def listen(self, listener: Callable[[str, Change[Object]], None]) -> Callable[[], None]:
        """Returns what ends it."""
        return self._listeners.add(listener)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for plural, reflector in self._all.items():
                group.create_task(reflector.run(), name=f"watch {plural}")

    async def synced(self) -> None:
        """Waits until every cache has had its first list."""
        for reflector in self._all.values():
            await reflector.synced.wait()

    async def refresh(self, timeout: float) -> None:
        """Lists every cache anew. Raises Unavailable."""
        await list_anew(self._all.values(), timeout)

    async def confirm(self, plural: str, name: str, seen: Object | None) -> None:
        """Asks the API server itself whether an object is what its cache says, or gone if that says so.

        Raises Conflict where it is not: the cache is behind and is listed anew, and whoever asked has to decide again.
        Uid and generation are compared: all that is deleted or written depends on these alone, and of a Seed on its
        labels.
        """
        try:
            found = await self.cluster.get(_METADATA[plural], name)
        except NotFound:
            found = None
        if _version(found) == _version(seen) and (plural != SEEDS.plural or _labels(found) == _labels(seen)):
            return
        now = time.monotonic()
        if now - self._relisted.get(plural, float("-inf")) >= RELIST_EVERY:
            self._relisted[plural] = now
            self._all[plural].relist()
        raise Conflict(409, "Conflict", f"the cache of {plural} is behind: {name} is not what it says")

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
            for organization in self._compared(plural, Change(change.old, change.new)):
                self._limits.forget(organization)
            self._listeners.call(plural, Change(change.old, change.new))

        return tell


def _is_of_organization(change: Change[Object]) -> bool:
    quotas = (each for each in (change.old, change.new) if isinstance(each, MasterQuota))
    return any(subject_of(quota)[0] == "organization" for quota in quotas)


_METADATA: dict[str, Resource[Object]] = {
    resource.plural: Resource(resource.group, resource.version, resource.plural, resource.kind, False, Object)
    for resource in (SEEDS, MASTER_QUOTAS, PROJECTS, ORGANIZATIONS, QUOTA_SETTINGS, QUOTA_ALLOCATIONS)
}
"""Also an object that cannot be understood is there."""


def _version(found: Object | None) -> tuple[str, int] | None:
    return (found.metadata.uid, found.metadata.generation) if found is not None else None


def _labels(found: Object | None) -> Mapping[str, str]:
    return found.metadata.labels if found is not None else {}


def changed_name(change: Change[T]) -> str:
    known = change.new if change.new is not None else change.old
    assert known is not None, "a change has an object before or after"
    return known.metadata.name
