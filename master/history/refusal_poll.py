"""Asks the agents of all seeds how often quotas refused. Nobody else knows it, and nothing tells of it by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from common.api import refusal_counts
from common.api.types import Seed
from common.runtime.unexpected import contained
from master.cache.informers import Caches
from master.history.refusals import PartTold, RefusalTally, current
from master.seeds.agent_pages import AgentPages, is_away

PATH = f"decisions/{refusal_counts.PATH}"
ASK_EVERY = 600.0  # seconds: a replica of an agent that ends takes with it what it counted since
AT_A_TIME = 16  # seeds
ASKED_FOR = "history"  # whose turn it is beside users


class RefusalPoll:
    def __init__(self, caches: Caches, agents: AgentPages) -> None:
        self._caches = caches
        self._agents = agents
        self._tally = RefusalTally()

    async def ask(self, now: float) -> Sequence[PartTold]:
        """`now`: Unix time. Of the part before, and of that of now."""
        self._tally.forget(now)
        quotas = {quota.metadata.uid for quota in self._caches.quotas.store.values()}
        seeds = [seed for seed in self._caches.seeds.store.values() if seed.spec.state != "Lost"]
        reached = [seed for seed in seeds if not is_away(seed)]  # others would be waited for
        whole = set(current(now)) if seeds and len(reached) == len(seeds) else set()
        for first in range(0, len(reached), AT_A_TIME):
            some = reached[first : first + AT_A_TIME]
            whole = whole.intersection(*await asyncio.gather(*(self._ask(seed, quotas, now) for seed in some)))
        begin = current(now)[0]
        return [PartTold(each, self._tally.counts(each), each in whole, each != begin) for each in sorted(current(now))]

    async def _ask(self, seed: Seed, quotas: Collection[str], now: float) -> set[int]:
        """Of which parts all of its agents told everything."""
        name, whole = seed.metadata.name, set[int]()
        with contained("refusals", name):
            found = await self._agents.find([(seed, PATH)], ASKED_FOR, again=True)
            taken = [self._taken(name, content, quotas, now) for _, content in found.answers]
            if taken and not (found.not_asked or found.nothing):
                whole = set.intersection(*taken)
        return whole

    def _taken(self, seed: str, content: bytes, quotas: Collection[str], now: float) -> set[int]:
        told = refusal_counts.read(content)
        return self._tally.take(seed, told, quotas, now) if told is not None else set()
