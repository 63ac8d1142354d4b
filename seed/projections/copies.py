"""Keeps what quotas say in one cluster as it should be, for as long as one connection lasts: when it looks, how long it
pauses after a failure, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import msgspec

from common.api import conditions
from common.api.labels import SEED_MANAGER
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound, TooManyRequests, Unauthorized
from common.runtime import unexpected
from common.runtime.waiting import within
from seed import metrics
from seed.projections import local_quota
from seed.projections.local_quota import LOCAL_QUOTAS, LocalQuota
from seed.projections.pace import Pace

log = logging.getLogger(__name__)

EVERY = 1.0  # seconds between two looks at one cluster, in each of which a copy is written once at most
REFRESH = 60.0  # ... between two writes of what has not changed, so that its age says how old it is
RETRY = (1.0, 60.0)  # first and longest pause after a failure
BEING_SERVED = 4  # failures in a row that are usual where the kind is new: it is not served yet, or its storage starts


class Key(NamedTuple):
    """Of one copy. `uid`: of the quota. `plural`: of the copy's kind."""

    namespace: str
    uid: str
    plural: str = LOCAL_QUOTAS.plural


class Written(msgspec.Struct, frozen=True):
    """`local`: None for one that may be there, and of which nothing else is known."""

    local: LocalQuota | None = None
    current_time: str = ""
    at: float = float("-inf")  # monotonic


class Copies(ABC):
    """`written`: None while nothing was tried yet. `problem` says why nothing can be written, for people."""

    rights: ClassVar[str]  # the files that give them

    def __init__(
        self,
        key: str,
        cluster: Cluster,
        pace: Pace,
        *,
        enabled: bool,
        on_state: Callable[[], None],
    ) -> None:
        """Not `enabled`: what is there is removed, once."""
        self.written: bool | None = None
        self.problem = ""
        self._key = key
        self._cluster = cluster
        self._pace = pace
        self._enabled = enabled
        self._on_state = on_state
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._copies: dict[Key, Written] = {}
        self._failures = 0

    def wake(self) -> None:
        """A quota, what it counts there, or what is used of it may have changed."""
        self._wake.set()

    def reached(self) -> None:
        """The cluster may be in reach again: what failed is tried at once."""
        self._wake.set()
        self._retry.set()

    def shows(self, quota: str) -> bool:
        return any(kept.local is not None and kept.local.name == quota for kept in self._copies.values())

    async def run(self) -> None:
        """Until cancelled. What was written stays: see `remove`."""
        while True:
            self._wake.clear()
            self._retry.clear()
            try:
                wait = await self._look()
            except Exception as error:  # noqa: BLE001 (logged and shown; it is tried again)
                if not isinstance(error, ApiError | TimeoutError):
                    unexpected.tell("local copies", self._key, error)
                await within(self._retry, self._failed(error))
                continue
            self._failures = 0
            if not self._enabled and not self._copies:
                return
            await asyncio.sleep(EVERY)
            if wait is None or wait > EVERY:
                await within(self._wake, None if wait is None else wait - EVERY)

    @abstractmethod
    async def remove(self) -> None:
        """All of them. Not while `run` runs. Raises ApiError."""

    @abstractmethod
    async def _look(self) -> float | None:
        """Writes and removes. Returns in how many seconds to look again although nobody wakes; None: only then. Raises
        ApiError."""

    async def _write(self, namespace: str, local: LocalQuota, master_silent: float) -> None:
        key = Key(namespace, local.uid, local.resource.plural)
        before, now = self._copies.get(key), time.monotonic()
        current_time = before.current_time if before is not None else ""
        if not local.stale:
            current_time = conditions.now(-master_silent)
        self._copies[key] = Written()  # it may be there, from now on
        await self._cluster.apply(local.resource, local_quota.manifest(local, namespace, current_time), SEED_MANAGER)
        self._copies[key] = Written(local, current_time, now)
        metrics.local_copy_written(ok=True)

    def _failed(self, error: Exception) -> float:
        """Returns the pause."""
        self._failures += 1
        metrics.local_copy_written(ok=False)
        if not isinstance(error, NotFound | TooManyRequests) or self._failures > BEING_SERVED:
            message = str(error) or type(error).__name__
            if isinstance(error, Forbidden | Unauthorized):
                message += f"; bind {self.rights}"
            self._said(False, message)
        return min(RETRY[0] * 2.0 ** min(self._failures - 1, 20), RETRY[1])

    def _said(self, written: bool | None, problem: str) -> None:
        if (written, problem) == (self.written, self.problem):
            return
        if problem:
            log.warning("local copies not written", extra={"cluster": self._key, "error": problem})
        self.written, self.problem = written, problem
        self._on_state()
