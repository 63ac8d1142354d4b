"""What the master shows on one seed: the latest per quota, at most one write in flight for each.

A write that somebody waits for goes out at once. A mere change of the global use waits for the next round, so that the
number of writes per Machine does not grow with the number of seeds; and, like all that nobody waits for, until a rush
of quotas is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from common.api.labels import GRANT_MANAGER, MASTER_MANAGER
from common.api.status import ECHO, NOT_DECLARED, write_status
from common.api.types import Quantities, Wire, WireGrant
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Conflict
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.store import Store
from common.kube.controller.workqueue import WorkQueue
from common.runtime.burst import PAUSE, BurstDetector
from master.cache.objects import QUOTA_COPIES, QuotaCopy, Summary

log = logging.getLogger(__name__)

WORKERS = 16
TIMEOUT = 15.0  # seconds for one write


class Shown(Wire):
    """The master's part of the status of a copy."""

    observed_generation: int = 0
    hard: Quantities = {}
    global_usage: Quantities = {}
    reserved: Quantities = {}
    grant: WireGrant = msgspec.field(default_factory=WireGrant)


class _Offer(msgspec.Struct, frozen=True):
    copy_uid: str
    shown: Shown
    summary: Summary


class _Written(msgspec.Struct, frozen=True):
    offer: _Offer
    at: float


class Publisher:
    """One seed's. `copies` is what the seed has, as it was last seen; `connected` says whether a write may be tried."""

    def __init__(
        self,
        seed: str,
        copies: Callable[[], Store[QuotaCopy] | None],
        cluster: Callable[[], Cluster | None],
        in_cluster: Callable[[], bool],
        rush: BurstDetector,
        *,
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self._seed = seed
        self._copies = copies
        self._cluster = cluster
        self._in_cluster = in_cluster
        self._rush = rush
        self._waited_for: set[str] = set()  # quotas of which something was to be shown at once, and was not yet
        self._offered: dict[str, _Offer] = {}
        self._written: dict[str, _Written] = {}
        self._queue: WorkQueue[str] = WorkQueue(max_backoff=5.0)
        self._controller = Controller(
            "publish", self._publish, workers=WORKERS, timeout=TIMEOUT, queue=self._queue, on_reconcile=on_reconcile
        )

    async def run(self) -> None:
        await self._controller.run()

    def offer(self, quota: str, copy_uid: str, shown: Shown, summary: Summary, *, within: float) -> None:
        """Show this within so many seconds, unless something newer comes or the seed shows it already."""
        offer = _Offer(copy_uid, shown, summary)
        if self._offered.get(quota) != offer:
            self._offered[quota] = offer
            if within <= 0:
                self._waited_for.add(quota)
            self._queue.add_after(quota, within)

    def last(self, quota: str, copy_uid: str) -> tuple[Shown | None, float]:
        """What was last offered for this copy, and when it was last written to (monotonic seconds; 0.0: never)."""
        offer, written = self._offered.get(quota), self._written.get(quota)
        if offer is None or offer.copy_uid != copy_uid:
            return None, 0.0
        return offer.shown, written.at if written is not None else 0.0

    def forget(self, quota: str) -> None:
        self._offered.pop(quota, None)
        self._written.pop(quota, None)
        self._waited_for.discard(quota)

    def seen(self, quota: str, copy: QuotaCopy) -> None:
        """The watch brought a copy. If somebody dropped our part of its status, it is put back."""
        offer = self._offered.get(quota)
        if offer is not None and not self._shows(copy, offer):
            self._queue.add_after(quota, ECHO)

    def resume(self) -> None:
        """The seed can be reached again."""
        self._written.clear()
        for quota in self._offered:
            self._queue.add(quota)

    async def _publish(self, quota: str) -> float | None:
        offer, cluster, copies = self._offered.get(quota), self._cluster(), self._copies()
        if offer is None or cluster is None or copies is None:
            return None
        copy = copies.get(quota)
        if copy is None or copy.metadata.uid != offer.copy_uid or self._shows(copy, offer):
            return None
        written = self._written.get(quota)
        if written is not None and written.offer == offer and time.monotonic() - written.at < ECHO:
            return ECHO
        if quota not in self._waited_for and self._rush.defers((self._seed, quota)):
            return PAUSE
        try:
            there = await self._write(cluster, copy, offer.shown, offer.summary)
        except Conflict:
            there = False
        except ApiError as error:
            if not offer.shown.grant.guarantees or NOT_DECLARED not in error.message:
                raise
            # What the definition there lacks must not keep the rest from the seed: it uses no guarantee then.
            grant = msgspec.structs.replace(offer.shown.grant, guarantees=(), recall_guaranteed={})
            shown = msgspec.structs.replace(offer.shown, grant=grant)
            there = await self._write(cluster, copy, shown, offer.summary)
        if not there:  # deleted, or made again under its name: the watch brings the new one, and a new offer with it
            log.info("copy is gone", extra={"seed": self._seed, "quota": quota})
            return None
        self._written[quota] = _Written(offer, time.monotonic())
        if self._offered.get(quota) == offer:
            self._waited_for.discard(quota)
        return ECHO

    async def _write(self, cluster: Cluster, copy: QuotaCopy, shown: Shown, summary: Summary) -> bool:
        status, manager = (
            ({"grant": _whole_grant(shown)}, GRANT_MANAGER)
            if self._in_cluster()
            else ({**_fields(shown), "summary": summary}, MASTER_MANAGER)
        )
        return await write_status(cluster, QUOTA_COPIES, copy, status, manager)

    def _shows(self, copy: QuotaCopy, offer: _Offer) -> bool:
        status = copy.status
        if self._in_cluster():
            return status.grant == _whole_grant(offer.shown)
        there = Shown(
            observed_generation=status.observed_generation,
            hard=status.hard,
            global_usage=status.global_usage,
            reserved=status.reserved,
            grant=status.grant,
        )
        return there == offer.shown


def _whole_grant(shown: Shown) -> WireGrant:
    """With what it was decided with. The other fields of the master's own object are written for people, at another
    time, and an answer must not be read beside older numbers."""
    return msgspec.structs.replace(shown.grant, global_usage=shown.global_usage, reserved=shown.reserved)


def _fields(shown: Shown) -> dict[str, object]:
    return {
        "observedGeneration": shown.observed_generation,
        "hard": shown.hard,
        "globalUsage": shown.global_usage,
        "reserved": shown.reserved,
        "grant": shown.grant,
    }
