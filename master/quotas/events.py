"""Events on quotas, written beside all else: a slow API server keeps no decision waiting."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import msgspec

from common.api.labels import API_VERSION
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.controller.events import EVENTS, Regarding, event, event_name, microtime

log = logging.getLogger(__name__)

CONTROLLER = "seedquota.io/master"
MAX_WAITING = 1000  # the oldest are dropped beyond that
AT_ONCE = 4


class _Warning(msgspec.Struct, frozen=True):
    regarding: Regarding
    reason: str
    note: str
    time: str


class QuotaEvents:
    """`run()` it."""

    def __init__(self, cluster: Cluster, instance: str) -> None:
        self._cluster = cluster
        self._instance = instance
        self._waiting: deque[_Warning] = deque(maxlen=MAX_WAITING)
        self._something = asyncio.Event()

    def warn(self, quota: str, uid: str, reason: str, note: str) -> None:
        regarding = Regarding(api_version=API_VERSION, kind="ResourceQuota", name=quota, uid=uid)
        self._waiting.append(_Warning(regarding, reason, note, microtime()))
        self._something.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._something.wait()
            self._something.clear()
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
                await asyncio.gather(*(self._write(warning) for warning in some))

    async def _write(self, warning: _Warning) -> None:
        body = event(
            event_name(warning.regarding),
            warning.regarding,
            reason=warning.reason,
            note=warning.note,
            warning=True,
            action="Count",
            controller=CONTROLLER,
            instance=self._instance,
            time=warning.time,
        )
        try:
            await self._cluster.create(EVENTS, body)
        except (ApiError, TimeoutError) as error:
            log.info("Event not written", extra={"quota": warning.regarding.name, "error": str(error)})
