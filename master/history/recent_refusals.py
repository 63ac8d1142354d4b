"""How often quotas refused in the last hours, in memory, and as metrics for the Prometheus that keeps them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from common.runtime.unexpected import contained
from master.cache.informers import Caches
from master.history.refusal_metrics import families
from master.history.refusal_poll import ASK_EVERY, RefusalPoll
from master.history.refusals import ALL, Lately, PartTold, Refusals, current, kept, refusals
from master.seeds.agent_pages import AgentPages

MAX_KEPT = 1000  # of one part, each a quota and what it was short of, and each a series of Prometheus


class RecentRefusals(Collector):
    """`run` it. `leads`: only then it has metrics."""

    def __init__(
        self,
        caches: Caches,
        agents: AgentPages,
        leads: Callable[[], bool],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._caches = caches
        self._poll = RefusalPoll(caches, agents)
        self._leads = leads
        self._clock = clock
        self._told: dict[int, PartTold] = {}  # by when the part begins
        self._names: dict[str, str] = {}  # of quotas, by uid

    async def run(self) -> None:
        """Until cancelled."""
        REGISTRY.register(self)
        try:
            await self._caches.synced()
            while True:
                began = time.monotonic()
                with contained("refusals"):
                    await self.ask()
                await asyncio.sleep(max(ASK_EVERY - (time.monotonic() - began), 1.0))
        finally:
            REGISTRY.unregister(self)

    async def ask(self) -> None:
        now = self._clock().timestamp()
        for told in await self._poll.ask(now):
            before = self._told.get(told.begin)
            self._told[told.begin] = await asyncio.to_thread(kept, before, told, MAX_KEPT)
        self._told = {begin: told for begin, told in self._told.items() if begin in current(now)}
        self._names = {each.metadata.uid: each.metadata.name for each in self._caches.quotas.store.values()}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from families(self._current() if self._leads() else (), self._names)

    def of(self, uid: str) -> Refusals:
        """Of one quota, in the part of now and the one before."""
        told = self._current()
        rows = [
            (each.begin, resource, count)
            for each in told
            for (quota, resource), count in each.counts.items()
            if quota == uid
        ]
        return refusals(rows, [each.begin for each in told if self._is_known(each)])

    def lately(self) -> Lately:
        told, counts = self._current(), dict[str, int]()
        for each in told:
            for (uid, resource), count in each.counts.items():
                if resource == ALL:
                    counts[uid] = counts.get(uid, 0) + count
        both = current(self._clock().timestamp())
        return Lately(min(both), counts, len(told) == len(both) and all(map(self._is_known, told)))

    def _current(self) -> list[PartTold]:
        """Without what is older, if nobody was asked since."""
        return [self._told[begin] for begin in current(self._clock().timestamp()) if begin in self._told]

    def _is_known(self, told: PartTold) -> bool:
        return told.whole and (told.ended or told.begin == max(current(self._clock().timestamp())))
