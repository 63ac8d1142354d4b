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
from common.runtime.unexpected import contained

log = logging.getLogger(__name__)

CONTROLLER = "seedquota.io/master"
MAX_WAITING = 1000  # the oldest are dropped beyond that
AT_ONCE = 4


class _Waiting(msgspec.Struct, frozen=True):
    regarding: Regarding
    reason: str
    note: str
    time: str
    warning: bool


class QuotaEvents:
    """`run()` it."""

    def __init__(self, cluster: Cluster, instance: str) -> None:
        self._cluster = cluster
        self._instance = instance
        self._waiting: deque[_Waiting] = deque(maxlen=MAX_WAITING)
        self._something = asyncio.Event()

    def add(self, quota: str, uid: str, reason: str, note: str, *, warning: bool) -> None:
        regarding = Regarding(api_version=API_VERSION, kind="ResourceQuota", name=quota, uid=uid)
        self._waiting.append(_Waiting(regarding, reason, note, microtime(), warning))
        self._something.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._something.wait()
            self._something.clear()
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
                await asyncio.gather(*(self._write(each) for each in some))

    async def _write(self, one: _Waiting) -> None:
        body = event(
            event_name(one.regarding),
            one.regarding,
            reason=one.reason,
            note=one.note,
            warning=one.warning,
            action="Count",
            controller=CONTROLLER,
            instance=self._instance,
            time=one.time,
        )
        with contained("Events", one.regarding.name):
            try:
                await self._cluster.create(EVENTS, body)
            except (ApiError, TimeoutError) as error:
                log.info("Event not written", extra={"quota": one.regarding.name, "error": str(error)})
