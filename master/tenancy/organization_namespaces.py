"""Makes the namespace of each Organization, where its Allocations are.

It is owned by its Organization, so the garbage collector deletes it with all that is in it when the Organization is
gone, also while no master runs. One that is there already is taken over only if it has the label.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from common.api.cluster_identity import NAMESPACES
from common.api.conditions import condition
from common.api.labels import API_VERSION, MANAGED_BY_LABEL, ORGANIZATION_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError
from common.kube.client.meta import Object, ObjectMeta, OwnerReference
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from master.cache.informers import Caches, changed_name
from master.cache.objects import Named, OrganizationNamespace

log = logging.getLogger(__name__)

PREFIX = "org-"
TIMEOUT = 30.0  # seconds for one organization
LIST_SOON = 0.2  # ... until another look whether namespaces were listed
LOOK_AGAIN = 30.0  # ... until a namespace that cannot be used now is looked at again


class OrganizationNamespaces:
    """`run` works until cancelled; the caches are synced. `on_change(organization)`: what `of` answers is another."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        *,
        on_change: Callable[[str], None],
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._on_change = on_change
        self._found: dict[str, OrganizationNamespace] = {}
        self._controller: Controller[str] = Controller(
            "organization-namespaces", self._reconcile, timeout=TIMEOUT, on_reconcile=on_reconcile
        )
        self._reflector = Reflector(
            cluster, NAMESPACES, label_selector=ORGANIZATION_LABEL, on_change=self._namespace_changed
        )

    def of(self, organization: str) -> OrganizationNamespace | None:
        """None before it was looked for."""
        return self._found.get(organization)

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            for name in self._caches.organizations.store.keys():  # noqa: SIM118
                self._controller.queue.add(name)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reflector.run(), name="namespaces of organizations")
                group.create_task(self._controller.run())
        finally:
            ends()

    def _changed(self, plural: str, change: Change[Object]) -> None:
        old, new = change.old, change.new
        if plural == "organizations" and (old is None or new is None or old.metadata.uid != new.metadata.uid):
            self._controller.queue.add(changed_name(change))

    def _namespace_changed(self, change: Change[Object]) -> None:
        self._controller.queue.add(changed_name(change).removeprefix(PREFIX))

    async def _reconcile(self, name: str) -> float | None:
        organization = self._caches.organizations.store.get(name)
        if organization is None or organization.metadata.deletion_timestamp is not None:
            self._found.pop(name, None)
            return None
        if not self._reflector.synced.is_set() and self._reflector.error is None:
            return LIST_SOON
        try:
            found = await self._ensure(organization)
        except ApiError as error:
            why = f"namespace {PREFIX}{name} cannot be made or read: {error.message}"
            self._note(name, OrganizationNamespace("", condition("NamespaceReady", False, "NotMade", why)))
            raise
        self._note(name, found)
        return None if found.name else LOOK_AGAIN

    def _note(self, organization: str, found: OrganizationNamespace) -> None:
        if self._found.get(organization) != found:
            self._found[organization] = found
            self._on_change(organization)

    async def _ensure(self, organization: Named) -> OrganizationNamespace:
        """Raises ApiError."""
        name = PREFIX + organization.metadata.name
        there = self._reflector.store.get(name)
        if there is None:
            try:
                there = await self._cluster.create(NAMESPACES, wanted(organization))
                log.info("namespace made", extra={"organization": organization.metadata.name})
            except AlreadyExists:
                there = await self._cluster.find(NAMESPACES, name)
        found = judge(organization, there)
        if found.name and there is not None and there.metadata.owner_references != (owner(organization),):
            await self._own(organization, there)
        return found

    async def _own(self, organization: Named, there: Object) -> None:
        """It is there from before: a backup, or an Organization of this name that was deleted."""
        metadata = there.metadata
        change = {
            "resourceVersion": metadata.resource_version,
            "ownerReferences": [msgspec.to_builtins(owner(organization))],
        }
        await self._cluster.merge_patch(NAMESPACES, metadata.name, {"metadata": change})
        log.info("namespace taken over", extra={"organization": organization.metadata.name})


def owner(organization: Named) -> OwnerReference:
    metadata = organization.metadata
    return OwnerReference(api_version=API_VERSION, kind="Organization", name=metadata.name, uid=metadata.uid)


def wanted(organization: Named) -> Object:
    name = organization.metadata.name
    labels = {MANAGED_BY_LABEL: "seedquota", ORGANIZATION_LABEL: name}
    return Object(metadata=ObjectMeta(name=PREFIX + name, labels=labels, owner_references=(owner(organization),)))


def judge(organization: Named, there: Object | None) -> OrganizationNamespace:
    """What a namespace of that name is to the organization. None: it was there a moment ago."""
    name = PREFIX + organization.metadata.name
    if there is None or there.metadata.deletion_timestamp is not None:
        text = f"namespace {name} is being deleted; it is made again when it is gone"
        return OrganizationNamespace("", condition("NamespaceReady", False, "Terminating", text))
    if there.metadata.labels.get(ORGANIZATION_LABEL) != organization.metadata.name:
        text = (
            f"namespace {name} is there and was not made for this organization: delete it, or give it the label "
            f"{ORGANIZATION_LABEL}={organization.metadata.name}; whoever may write in it may then allocate"
        )
        return OrganizationNamespace("", condition("NamespaceReady", False, "NotOurs", text))
    return OrganizationNamespace(name, condition("NamespaceReady", True, "Made", ""))
