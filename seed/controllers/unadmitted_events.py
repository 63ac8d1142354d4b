"""A Warning Event on each user cluster in which Machines appear that nobody admitted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from common.kube.client.api_client import Cluster
from common.runtime.unexpected import contained
from seed.controllers.warning_events import warn
from seed.kinds.machines.source import Source

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0  # seconds
TELL_AGAIN = 60.0  # ... between two Events of one cluster, however many Machines appear
AT_ONCE = 32  # Events that are written after one look
REASON = "UsageNotAdmitted"


class UnadmittedEvents:
    """`run()` it while this replica leads."""

    def __init__(self, cluster: Cluster, sources: Mapping[str, Source]) -> None:
        self._cluster = cluster
        self._sources = sources
        self._told: dict[str, float] = {}  # by uid of the UserCluster (monotonic)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look(time.monotonic())
            await asyncio.sleep(LOOK_EVERY)

    async def look(self, now: float) -> None:
        sources = {source.uid: source for source in self._sources.values()}
        self._told = {uid: told for uid, told in self._told.items() if uid in sources}
        due = [uid for uid, source in sources.items() if self._is_due(source, now)]
        for uid in due[:AT_ONCE]:
            self._told[uid] = now
            with contained("Events of what was not admitted", sources[uid].key):
                await self._tell(sources[uid])

    def _is_due(self, source: Source, now: float) -> bool:
        told, unadmitted = self._told.get(source.uid, float("-inf")), source.totals.unadmitted
        return bool(len(unadmitted)) and unadmitted.found_at > told and now - told >= TELL_AGAIN

    async def _tell(self, source: Source) -> None:
        note = source.totals.unadmitted.text
        log.warning("machines were not admitted", extra={"cluster": source.key, "text": note})
        await warn(self._cluster, source.user_cluster, reason=REASON, note=note, action="Count")
