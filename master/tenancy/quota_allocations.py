"""Makes a quota of each ResourceQuotaAllocation, which limits what core ResourceQuotas promise, and shows its state.

All that counts, grants and admits knows the quota only. It belongs to the allocation: who edits or deletes it has it
written again, and it goes with the allocation.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from common.api.conditions import condition, now, transition
from common.api.labels import API_VERSION, MASTER_MANAGER
from common.api.status import write_status
from common.api.types import OF_ALLOCATION, RESOURCE_QUOTAS_ALONE
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, NotFound
from common.kube.client.meta import Object, ObjectMeta, OwnerReference
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.store import Change
from master.cache.informers import Caches, changed_name
from master.cache.objects import (
    MASTER_QUOTAS,
    QUOTA_ALLOCATIONS,
    Allocated,
    AllocationStatus,
    AllocationSummary,
    MasterQuota,
    QuotaAllocation,
    QuotaStatus,
)

log = logging.getLogger(__name__)

PLURAL = QUOTA_ALLOCATIONS.plural
KIND = QUOTA_ALLOCATIONS.kind
TIMEOUT = 30.0  # seconds for one allocation
WATCH_LAG = 1.0  # seconds to wait for the watch to show what the API server has already


def quota_name(allocation: str) -> str:
    return OF_ALLOCATION + allocation


def desired_spec(allocation: QuotaAllocation) -> dict[str, object]:
    """Whole: what somebody added to the quota's goes."""
    spec, promised = allocation.spec, allocation.spec.get("allocation")
    parts: dict[str, object] = {part: spec[part] for part in ("clusters", "seeds") if spec.get(part) is not None}
    limits = promised if isinstance(promised, dict) else {}
    return {
        "subject": {
            "kind": "namespaces",
            "selector": spec.get("selector"),
            **parts,
            "counts": RESOURCE_QUOTAS_ALONE,
        },
        "quota": limits.get("hard"),
        **{name: limits[name] for name in ("scopes", "scopeSelector") if name in limits},
        "enforcement": spec.get("enforcement", "deny"),
        "warnAtPercent": 90,
    }


def desired_status(allocation: QuotaAllocation, quota: MasterQuota | None, time: str) -> AllocationStatus:
    """`quota`: of its name. What was said before stays until that is as the allocation says. `time` is RFC 3339."""
    before = allocation.status
    if quota is not None and not owned_by(quota, allocation.metadata):
        why = f"seedquota/{quota.metadata.name} was not made for this allocation; delete it, or choose another name"
        found = [condition("Ready", False, "NameTaken", why), condition("Enforced", False, "NameTaken", why)]
        conditions = [replace(each, observed_generation=allocation.metadata.generation) for each in found]
        return AllocationStatus(
            observed_generation=allocation.metadata.generation,
            conditions=transition(before.conditions, conditions, time),
        )
    if quota is None or quota.spec != desired_spec(allocation):
        return before
    status = quota.status
    if status.observed_generation != quota.metadata.generation:
        return before
    generation = allocation.metadata.generation
    return AllocationStatus(
        observed_generation=generation,
        allocated=Allocated(hard=status.hard, used=status.global_usage),
        used_by_project=status.namespaces,
        used_by_project_omitted=status.namespaces_omitted,
        summary=AllocationSummary(
            allocated=status.summary.usage, namespaces=len(status.namespaces) + status.namespaces_omitted
        ),
        conditions=[replace(each, observed_generation=generation) for each in status.conditions],
    )


def owned_by(quota: MasterQuota, allocation: ObjectMeta) -> bool:
    return any(
        owner.kind == KIND and owner.name == allocation.name and owner.uid == allocation.uid
        for owner in quota.metadata.owner_references
    )


def _owner(allocation: QuotaAllocation) -> OwnerReference:
    metadata = allocation.metadata
    return OwnerReference(api_version=API_VERSION, kind=KIND, name=metadata.name, uid=metadata.uid, controller=True)


def made_from(quota: MasterQuota) -> str:
    """The name of the allocation that the quota is made of, be it there or not. Empty for any other quota."""
    for owner in quota.metadata.owner_references:
        if owner.kind == KIND and owner.api_version == API_VERSION and quota.metadata.name == quota_name(owner.name):
            return owner.name
    return ""


class QuotaAllocations:
    """`run` works until cancelled; the caches are synced."""

    def __init__(self, cluster: Cluster, caches: Caches, *, on_reconcile: ReconcileHook | None = None) -> None:
        self._cluster = cluster
        self._caches = caches
        self._controller: Controller[str] = Controller(
            "quota-allocations", self._reconcile, timeout=TIMEOUT, on_reconcile=on_reconcile
        )

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            for name in self._caches.allocations.store.keys():  # noqa: SIM118
                self._controller.queue.add(name)
            for quota in self._caches.quotas.store.values():
                self._review(quota.metadata.name)
            await self._controller.run()
        finally:
            ends()

    def _changed(self, plural: str, change: Change[Object]) -> None:
        if plural == PLURAL:
            self._controller.queue.add(changed_name(change))
        elif plural == "resourcequotas":
            self._review(changed_name(change))

    def _review(self, quota: str) -> None:
        if quota.startswith(OF_ALLOCATION):
            self._controller.queue.add(quota.removeprefix(OF_ALLOCATION))

    async def _reconcile(self, name: str) -> float | None:
        allocation = self._caches.allocations.store.get(name)
        quota = self._caches.quotas.store.get(quota_name(name))
        if allocation is None or allocation.metadata.deletion_timestamp is not None:
            if quota is not None and made_from(quota):
                await self._caches.confirm(PLURAL, name, allocation)
                await self._delete(quota)
            return None
        if quota is None:
            return await self._make(allocation)
        if not owned_by(quota, allocation.metadata) and made_from(quota):
            # Of an allocation that was deleted and made again: what is counted begins anew.
            await self._caches.confirm(PLURAL, name, allocation)
            await self._delete(quota)
            return WATCH_LAG
        if not quota.metadata.owner_references and quota.spec == desired_spec(allocation):
            await self._own(allocation, quota)
            return None
        if owned_by(quota, allocation.metadata) and quota.spec != desired_spec(allocation):
            await self._caches.confirm(PLURAL, name, allocation)
            changed = replace(quota, spec=desired_spec(allocation), status=QuotaStatus())
            await self._cluster.replace(MASTER_QUOTAS, changed)
            log.info("quota of an allocation changed", extra={"quota": quota.metadata.name})
            return None
        await self._show(allocation, quota)
        return None

    async def _own(self, allocation: QuotaAllocation, quota: MasterQuota) -> None:
        """It is from a backup, which does not say what it was made of."""
        metadata = replace(quota.metadata, owner_references=(_owner(allocation),))
        await self._cluster.replace(MASTER_QUOTAS, replace(quota, metadata=metadata))
        log.info("quota of an allocation taken over", extra={"quota": quota.metadata.name})

    async def _make(self, allocation: QuotaAllocation) -> float | None:
        made = MasterQuota(
            metadata=ObjectMeta(name=quota_name(allocation.metadata.name), owner_references=(_owner(allocation),)),
            spec=desired_spec(allocation),
        )
        try:
            await self._cluster.create(MASTER_QUOTAS, made)
        except AlreadyExists:
            return WATCH_LAG
        log.info("quota made for an allocation", extra={"quota": made.metadata.name})
        return None

    async def _delete(self, quota: MasterQuota) -> None:
        metadata = quota.metadata
        try:
            await self._cluster.delete(
                MASTER_QUOTAS, metadata.name, uid=metadata.uid, resource_version=metadata.resource_version
            )
        except NotFound:
            return
        log.info("quota of an allocation deleted", extra={"quota": metadata.name})

    async def _show(self, allocation: QuotaAllocation, quota: MasterQuota) -> None:
        status = desired_status(allocation, quota, now())
        if status != allocation.status:
            await write_status(self._cluster, QUOTA_ALLOCATIONS, allocation, status, MASTER_MANAGER)
