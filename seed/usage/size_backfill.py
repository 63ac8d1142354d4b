"""Asks for the sizes that are waited for, each spec once, and counts them when the answers come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from common.kube.controller.store import Change
from common.runtime.waiting import within
from seed.machines.machine_controller import Machine
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing.stamp import spec_hash
from seed.usage.machine_totals import MachineTotals

MAX_ASKED = 16  # sizes of one source that are asked for at a time
ASK_SECONDS = 30.0
FIRST_ASK_PAUSE = 2.0  # seconds before asking again for a size that is not known; then doubled
LONGEST_ASK_PAUSE = 60.0


class SizeBackfill:
    """`run()` it, and `look()` whenever the totals changed. `on_change(freed)` tells of a new sum."""

    def __init__(
        self,
        totals: MachineTotals,
        ask: Callable[[Machine, float], Awaitable[object]],
        on_change: Callable[[bool], None],
        renew: Callable[[Machine], Machine] = lambda machine: machine,
    ) -> None:
        """`ask` raises NotSized and ProviderUnavailable. `renew`: the Machine as it is after it was asked for."""
        self._totals = totals
        self._ask = ask
        self._on_change = on_change
        self._renew = renew
        self._wake = asyncio.Event()

    def look(self) -> None:
        if self._totals.waiting:
            self._wake.set()

    async def run(self) -> None:
        pause = FIRST_ASK_PAUSE
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting = {spec_hash(machine): machine for machine in self._totals.waiting.values()}
            limit = asyncio.Semaphore(MAX_ASKED)
            await asyncio.gather(*(self._ask_for(digest, one, limit) for digest, one in waiting.items()))
            if not self._totals.waiting:
                pause = FIRST_ASK_PAUSE
                continue
            await within(self._wake, pause)
            self._wake.set()
            pause = min(pause * 2, LONGEST_ASK_PAUSE)

    async def _ask_for(self, digest: str, machine: Machine, limit: asyncio.Semaphore) -> None:
        problem: NotSized | ProviderUnavailable | None = None
        async with limit:
            try:
                await self._ask(machine, asyncio.get_running_loop().time() + ASK_SECONDS)
            except (NotSized, ProviderUnavailable) as error:
                problem = error
        freed = False
        for uid, waiting in list(self._totals.waiting.items()):
            if spec_hash(waiting) == digest:
                if problem is not None:
                    self._totals.explain(uid, problem)
                else:
                    freed |= self._totals.apply(Change(waiting, self._renew(waiting)))
        self._on_change(freed)
