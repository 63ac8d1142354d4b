"""Takes a sample of every quota that is counted, every few minutes, and asks how often it refused. What is kept is
written on a thread beside the others' work."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.quota import resources
from common.quota.quantity import UNIT, QuantityError
from master.cache.informers import Caches
from master.cache.objects import MasterQuota
from master.history.forecast import Point
from master.history.refusal_poll import ASK_EVERY, RefusalPoll
from master.history.refusals import NOTHING_KNOWN, Lately, Refusals
from master.history.store import BUCKET, History, Sample
from master.quotas import staleness
from master.seeds.agent_pages import AgentPages

T = TypeVar("T")

log = logging.getLogger(__name__)

SAMPLE_EVERY = 300.0  # seconds
FORGET_EVERY = 12  # samples


class Sampler:
    """`run` it. A file that cannot be used is logged, and there is no history: nothing else depends on it."""

    def __init__(
        self,
        caches: Caches,
        file: Path,
        agents: AgentPages,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._caches = caches
        self._file = file
        self._poll = RefusalPoll(caches, agents)
        self._clock = clock
        self._history: History | None = None
        self._opening = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "history")

    async def points(self, quota: MasterQuota) -> dict[str, list[Point]]:
        """Of the quota, by resource; nothing where nothing is known."""
        history = self._history
        if history is None:
            return {}
        try:
            return await self._beside(lambda: history.points(quota.metadata.uid))
        except sqlite3.Error as error:
            log.warning("the history cannot be read", extra={"error": str(error)})
            return {}

    async def refusals(self, quota: MasterQuota) -> Refusals:
        """Of the quota."""
        history, bucket = self._history, int(self._clock().timestamp()) // BUCKET * BUCKET
        if history is None:
            return NOTHING_KNOWN
        try:
            return await self._beside(lambda: history.refusals(quota.metadata.uid, bucket))
        except sqlite3.Error as error:
            log.warning("the history cannot be read", extra={"error": str(error)})
            return NOTHING_KNOWN

    async def lately(self) -> Lately | None:
        history, bucket = self._history, int(self._clock().timestamp()) // BUCKET * BUCKET
        if history is None:
            return None
        try:
            return await self._beside(lambda: history.lately(bucket))
        except sqlite3.Error as error:
            log.warning("the history cannot be read", extra={"error": str(error)})
            return None

    async def run(self) -> None:
        """Until cancelled."""
        await self._caches.synced()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._again(SAMPLE_EVERY, self._sample), name="samples of use")
                group.create_task(self._again(ASK_EVERY, self._ask), name="refusals of quotas")
        finally:
            self._history = None  # pages are still answered for a moment
            self._thread.shutdown(wait=False)

    async def _again(self, seconds: float, work: Callable[[int], Awaitable[None]]) -> None:
        """`work` gets its number, from 0 on."""
        for number in itertools.count():
            began = time.monotonic()
            try:
                await work(number)
            except (sqlite3.Error, OSError) as error:
                log.warning("the history cannot be written", extra={"file": str(self._file), "error": str(error)})
            await asyncio.sleep(max(seconds - (time.monotonic() - began), 1.0))

    async def _sample(self, number: int) -> None:
        history = await self._opened()
        now = self._clock()
        if staleness.silence_of_master(self._caches.seeds.store.values(), now):
            return  # what is not known is a gap, and not what was known last
        found = list(samples(self._caches.quotas.store.values()))
        omitted = await self._beside(lambda: history.add(now.timestamp(), found))
        if omitted:
            log.info("more quotas than a history is kept of", extra={"omitted": omitted})
        if number % FORGET_EVERY == 0:
            await self._beside(lambda: history.forget(now.timestamp()))

    async def _ask(self, _number: int) -> None:
        history = await self._opened()
        for told in await self._poll.ask(self._clock().timestamp()):
            await self._beside(partial(history.add_refusals, told))

    async def _opened(self) -> History:
        """Raises sqlite3.Error, OSError."""
        async with self._opening:
            if self._history is None:
                self._history = await self._beside(lambda: History(self._file))
            return self._history

    async def _beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def samples(quotas: Iterable[MasterQuota]) -> Iterator[Sample]:
    """Of what is counted now; last known use of a seed that does not report is none."""
    for quota in quotas:
        status = quota.status
        if any(each.type == "UsageCurrent" and each.status == "True" for each in status.conditions):
            try:
                limits, used = resources.parse(status.hard), resources.parse(status.global_usage)
            except QuantityError:
                continue
            for name, limit in limits.items():
                if name in used:
                    yield Sample(quota.metadata.uid, name, used[name] / UNIT, limit / UNIT)
