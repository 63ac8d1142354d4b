"""The status of Projects and Organizations: a few words for the columns of kubectl get, written seldom."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from common.api.conditions import condition, now, transition
from common.api.labels import MASTER_MANAGER
from common.api.status import write_status
from common.api.types import Condition, ResourceQuotaSpec
from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.store import Change
from master.cache.informers import BY_ORGANIZATION, BY_SUBJECT, Caches, changed_name, organization_of, subject_of
from master.cache.objects import ORGANIZATIONS, PROJECTS, MasterQuota, Named, OrganizationNamespace
from master.reporting import tenant_conditions
from master.seeds.registry import Seeds

SETTLE = 1.0  # seconds to wait for more of the same
ARRIVING = 15.0  # ... for one that was made just now to be on all seeds
USAGE_EVERY = 5.0  # seconds in which a changed use is repeated here
WORKERS = 2  # what people read must not crowd out what programs wait for
TIMEOUT = 15.0

NO_NAMESPACE = OrganizationNamespace()

Key = tuple[str, str]  # plural and name


class Tenants:
    """`run` works until cancelled; the caches are synced."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        seeds: Seeds,
        *,
        namespace_of: Callable[[str], OrganizationNamespace | None] = lambda _organization: NO_NAMESPACE,
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        """`namespace_of`: the organization's namespace; None: it is not known yet."""
        self._cluster = cluster
        self._caches = caches
        self._seeds = seeds
        self._namespace_of = namespace_of
        self._controller: Controller[Key] = Controller(
            "tenant-status", self._show, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )

        self._arriving: dict[Key, float] = {}  # since when (monotonic); no longer than ARRIVING

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            self.review_all()
            await self._controller.run()
        finally:
            ends()

    def review_all(self) -> None:
        for name in self._caches.projects.store.keys():  # noqa: SIM118
            self._controller.queue.add_after(("projects", name), SETTLE)
        for name in self._caches.organizations.store.keys():  # noqa: SIM118
            self._controller.queue.add_after(("organizations", name), SETTLE)

    def settled(self, plural: str, name: str) -> None:
        """A copy on a seed is in sync."""
        if plural in ("projects", "organizations"):
            self._controller.queue.add_after((plural, name), SETTLE)

    def _changed(self, plural: str, change: Change[Object]) -> None:
        queue = self._controller.queue
        name = changed_name(change)
        if plural == "resourcequotas":
            for quota in (change.old, change.new):
                if isinstance(quota, MasterQuota):
                    kind, subject = subject_of(quota)
                    if kind in ("project", "organization"):
                        queue.add_after((f"{kind}s", subject), USAGE_EVERY)
        elif plural == "projects":
            queue.add_after((plural, name), SETTLE)
            for project in (change.old, change.new):
                if isinstance(project, Named) and organization_of(project):
                    queue.add_after(("organizations", organization_of(project)), SETTLE)
        elif plural == "organizations":
            queue.add_after((plural, name), SETTLE)
            if change.old is None or change.new is None:
                for project in self._caches.projects.store.by_index(BY_ORGANIZATION, name):
                    queue.add_after(("projects", project.metadata.name), SETTLE)

    async def _show(self, key: Key) -> float | None:
        plural, name = key
        cache, resource = (
            (self._caches.projects, PROJECTS) if plural == "projects" else (self._caches.organizations, ORGANIZATIONS)
        )
        there = cache.store.get(name)
        if there is None:
            self._arriving.pop(key, None)
            return None
        if self._seeds.rush.defers(("tenant", *key)) or self._arrives(key, there):
            return SETTLE
        if plural == "organizations" and self._namespace_of(name) is None:
            return SETTLE
        status = self._project(there) if plural == "projects" else self._organization(there)
        known = {**there.status, "conditions": _conditions(there)}
        kept = all(field in status or field not in known for field in ("summary", "namespace"))
        if not kept or any(known.get(field) != value for field, value in status.items()):
            await write_status(self._cluster, resource, there, status, MASTER_MANAGER)
        return None

    def _arrives(self, key: Key, there: Named) -> bool:
        """Nothing is said of it yet, and it is on its way to seeds in reach: a moment later one write tells all."""
        on_its_way = any(
            link.connected and link.sync is not None and not link.sync.in_sync(*key) for link in self._seeds.present()
        )
        if there.status or not on_its_way:
            self._arriving.pop(key, None)
            return False
        now = time.monotonic()
        return now - self._arriving.setdefault(key, now) < ARRIVING

    def _project(self, project: Named) -> dict[str, object]:
        name, organization = project.metadata.name, organization_of(project)
        if organization and organization not in self._caches.organizations.store:
            ready = condition(
                "Ready", False, "OrganizationNotFound", f"there is no Organization {organization}: create it"
            )
        else:
            ready = self._on_seeds("projects", name)
        quotas = self._quotas("project", name)
        status = _status(project, ready)
        if quotas:
            status["summary"] = {
                "quota": ", ".join(quota.metadata.name for quota in quotas)[:2048],
                "usage": self._usage(quotas),
            }
        return status

    def _organization(self, organization: Named) -> dict[str, object]:
        name = organization.metadata.name
        quotas = self._quotas("organization", name)
        namespace = self._namespace_of(name) or NO_NAMESPACE
        ready = self._on_seeds("organizations", name)
        status = _status(organization, ready, *([namespace.ready] if namespace.ready is not None else []))
        if namespace.name:
            status["namespace"] = namespace.name
        status["projects"] = len(self._caches.projects.store.by_index(BY_ORGANIZATION, name))
        if quotas:
            status["summary"] = {"usage": self._usage(quotas)}
        return status

    def _on_seeds(self, plural: str, name: str) -> Condition:
        links = list(self._seeds.present())
        without = [
            link.name
            for link in links
            if not link.never_connected
            and (link.sync is None or not link.connected or not link.sync.in_sync(plural, name))
        ]
        absent = [link.name for link in links if link.never_connected]
        return tenant_conditions.ready(plural.removesuffix("s"), without, absent)

    def _usage(self, quotas: list[MasterQuota]) -> str:
        found = ((msgspec.convert(quota.spec, ResourceQuotaSpec), quota.status) for quota in quotas)
        return tenant_conditions.usage(found, self._caches.allocated_types())

    def _quotas(self, kind: str, name: str) -> list[MasterQuota]:
        return sorted(
            self._caches.quotas.store.by_index(BY_SUBJECT, f"{kind}/{name}"), key=lambda quota: quota.metadata.name
        )


def _status(there: Named, *found: Condition) -> dict[str, object]:
    generation = there.metadata.generation
    about = [msgspec.structs.replace(each, observed_generation=generation) for each in found]
    return {"observedGeneration": generation, "conditions": transition(_conditions(there), about, now())}


def _conditions(there: Named) -> list[Condition]:
    return msgspec.convert(there.status.get("conditions", []), list[Condition])
