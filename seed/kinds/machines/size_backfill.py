"""Asks for the sizes that are waited for, each spec once, and counts them when the answers come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from common.kube.controller.store import Change
from common.runtime.pieces import in_pieces
from common.runtime.unexpected import contained
from common.runtime.waiting import within
from seed.kinds.machines.totals import MachineTotals
from seed.machines.machine_controller import Machine
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing.stamp import spec_hash

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
            alike: dict[str, list[Machine]] = {}
            async for machine in in_pieces(list(self._totals.waiting.values())):
                alike.setdefault(spec_hash(machine), []).append(machine)
            limit = asyncio.Semaphore(MAX_ASKED)
            await asyncio.gather(*(self._ask_for(machines, limit) for machines in alike.values()))
            if not self._totals.waiting:
                pause = FIRST_ASK_PAUSE
                continue
            await within(self._wake, pause)
            self._wake.set()
            pause = min(pause * 2, LONGEST_ASK_PAUSE)

    async def _ask_for(self, alike: Sequence[Machine], limit: asyncio.Semaphore) -> None:
        problem: NotSized | ProviderUnavailable | None = None
        key = alike[0].metadata.key
        with contained("sizes", key) as attempt:
            async with limit:
                try:
                    await self._ask(alike[0], asyncio.get_running_loop().time() + ASK_SECONDS)
                except (NotSized, ProviderUnavailable) as error:
                    problem = error
        if attempt.failed:
            problem = ProviderUnavailable(key, "has a size that cannot be found out, because of an unexpected error")
        with contained("sizes", key):
            await self._count(alike, problem)

    async def _count(self, alike: Sequence[Machine], problem: NotSized | ProviderUnavailable | None) -> None:
        freed = False
        async for machine in in_pieces(alike):
            uid = machine.metadata.uid
            if self._totals.waiting.get(uid) is not machine:
                continue  # it has changed or gone meanwhile
            if problem is not None:
                self._totals.explain(uid, problem)
            else:
                freed |= self._totals.apply(Change(machine, self._renew(machine)))
        self._on_change(freed)
