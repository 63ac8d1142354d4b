"""The master's ledgers in its API server: one object per quota, written by compare-and-set before anything is shown.

That a ledger was made is also noted on the quota, by an annotation. So a ledger that is lost, or that belongs to
another time, is distinguished from a quota that is new: only the latter may grant at once (protocol.md 3.5).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection

import msgspec

from common.api.convert import ledger_from_wire, ledger_to_wire
from common.api.labels import BACKUP_LABEL, LEDGER_ANNOTATION, MANAGED_BY_LABEL, MASTER_MANAGER
from common.api.ledger_types import MASTER_LEDGERS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, Conflict, NotFound
from common.quota import resources
from common.quota.escrow import Holding, MasterLedger, outstanding
from common.quota.quantity import QuantityError
from master.cache.informers import Caches
from master.cache.objects import MASTER_QUOTAS, MasterQuota
from master.grants.planner import forgotten

log = logging.getLogger(__name__)


class Stored(msgspec.Struct, frozen=True):
    """A ledger as it is known to be durable."""

    ledger: MasterLedger
    resource_version: str


class Ledgers:
    """Reads and writes ledgers in the release's namespace. Every method raises ApiError."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    async def load(self, quota: MasterQuota, seeds: Collection[str]) -> Stored:
        """The quota's ledger; made anew where there is none, or where the one that is there is not the one noted."""
        noted = quota.metadata.annotations.get(LEDGER_ANNOTATION, "")
        # Of a quota that is new, making one tells whether there is one: to ask first costs a request more.
        stored = None if noted else await self._create(quota, fresh(seeds, learning=False))
        if stored is None:
            stored = await self._found(quota, seeds, noted)
        if noted != stored.ledger.incarnation:
            await self.note(quota, stored.ledger.incarnation)
        return stored

    async def _found(self, quota: MasterQuota, seeds: Collection[str], noted: str) -> Stored:
        found = await self._read(quota.metadata.uid)
        if found is None:
            found = await self._create(quota, fresh(seeds, learning=True))
            if found is None:
                raise Conflict(409, "Conflict", f"ledger of seedquota/{quota.metadata.name}: another was made just now")
            log.warning("ledger is gone, learning what seeds hold", extra={"quota": quota.metadata.name})
        elif noted and found.ledger.incarnation != noted:
            log.warning("ledger is not the one noted on the quota, learning", extra={"quota": quota.metadata.name})
            found = await self.save(quota, found, forgotten(found.ledger, incarnation()))
        return found

    async def save(self, quota: MasterQuota, stored: Stored, ledger: MasterLedger) -> Stored:
        """Replace the stored ledger. Raises Conflict when it has changed since; then it must be loaded again."""
        body = self._body(quota, ledger)
        body["metadata"] = {**_metadata(body), "resourceVersion": stored.resource_version}
        written = await self._cluster.replace(MASTER_LEDGERS, body)
        return Stored(ledger, written.metadata.resource_version)

    async def note(self, quota: MasterQuota, incarnation: str) -> None:
        patch = {"metadata": {"uid": quota.metadata.uid, "annotations": {LEDGER_ANNOTATION: incarnation}}}
        await self._cluster.merge_patch(MASTER_QUOTAS, quota.metadata.name, patch)

    async def delete(self, uid: str) -> None:
        try:
            await self._cluster.delete(MASTER_LEDGERS, ledger_name(uid), self._namespace)
        except NotFound:
            return
        log.info("ledger deleted with its quota", extra={"uid": uid})

    async def quotas(self) -> dict[str, str]:
        """Those that have a ledger of ours: names by uid."""
        listing = await self._cluster.list(
            MASTER_LEDGERS, self._namespace, label_selector=f"{MANAGED_BY_LABEL}={MASTER_MANAGER}"
        )
        return {found.quota.uid: found.quota.name for found in listing.items}

    async def _read(self, uid: str) -> Stored | None:
        """None also for one that cannot be understood: what it said is lost either way."""
        try:
            found = await self._cluster.get(MASTER_LEDGERS, ledger_name(uid), self._namespace)
        except NotFound:
            return None
        try:
            ledger = ledger_from_wire(found.grants) if found.grants is not None else fresh((), learning=True)
        except QuantityError as error:
            log.error("ledger cannot be read, learning what seeds hold", extra={"uid": uid, "error": str(error)})
            ledger = fresh((), learning=True)
        return Stored(ledger, found.metadata.resource_version)

    async def _create(self, quota: MasterQuota, ledger: MasterLedger) -> Stored | None:
        """None where there is one already."""
        try:
            created = await self._cluster.create(MASTER_LEDGERS, self._body(quota, ledger), self._namespace)
        except AlreadyExists:
            return None
        return Stored(ledger, created.metadata.resource_version)

    def _body(self, quota: MasterQuota, ledger: MasterLedger) -> dict[str, object]:
        return {
            "metadata": {
                "name": ledger_name(quota.metadata.uid),
                "namespace": self._namespace,
                "labels": {BACKUP_LABEL: "true", MANAGED_BY_LABEL: MASTER_MANAGER},
            },
            "quota": {"name": quota.metadata.name, "uid": quota.metadata.uid},
            "grants": ledger_to_wire(ledger),
            "summary": {
                "held": resources.text({name: amount for name, amount in outstanding(ledger).items() if amount}),
                "state": "Learning" if ledger.learning else "Granting",
            },
        }


async def drop_orphans(ledgers: Ledgers, caches: Caches) -> None:
    """Ledgers of quotas that were deleted while nobody led. Raises ApiError."""
    cached = caches.quotas.store
    there = {quota.metadata.uid for quota in cached.values()}
    for uid, name in (await ledgers.quotas()).items():
        if uid in there:
            continue
        try:
            await caches.confirm("resourcequotas", name, cached.get(name))
        except Conflict as error:
            log.warning("ledger kept", extra={"quota": name, "uid": uid, "error": error.message})
        else:
            await ledgers.delete(uid)


def ledger_name(uid: str) -> str:
    """Of the master's ledger. A seed's account is named by the uid alone: in one cluster both are in one namespace."""
    return f"master-{uid}"


def incarnation() -> str:
    return secrets.token_hex(8)


def fresh(seeds: Collection[str], *, learning: bool) -> MasterLedger:
    """A ledger that begins now. Where nothing was ever handed out, there is nothing to learn from any seed."""
    return MasterLedger(
        incarnation=incarnation(),
        learning=learning,
        seeds={seed: Holding(learned=not learning) for seed in sorted(seeds)},
    )


def _metadata(body: dict[str, object]) -> dict[str, object]:
    metadata = body["metadata"]
    assert isinstance(metadata, dict)
    return metadata
