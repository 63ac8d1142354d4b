"""Capacity idle in the other seed: how long a Machine waits for it, beside one whose seed has it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import msgspec

from common.quota import resources
from devcluster.load import Attempt, Outcome, Size
from devcluster.observe import QuotaView, Write, api_writes, percentile
from tests.bench.installed import Site, site
from tests.bench.plot import Ratios

SIZE = Size("4", "16Gi", "80Gi")
LIMITS = msgspec.to_builtins(SIZE)
BLOCKS = 5
ROUNDS = 10  # of each kind in a block
_SETTLED_SECONDS = 90.0
_TAIL_SECONDS = 1.0  # for what is written when it is quiet


class Seesaw:
    """A quota as large as one Machine, which is created and deleted: all of it is idle in the seed that had it last."""

    def __init__(self, here: Site) -> None:
        self._watch = here.watch
        self._near, self._far = here.tenants

    async def local(self) -> Attempt:
        """Created where the capacity is."""
        return await self._turn()

    async def recalled(self) -> Attempt:
        """Created where it is not. One try: whoever was refused may ask again."""
        self._near, self._far = self._far, self._near
        attempt = await self._turn()
        if attempt.outcome is not Outcome.ADMITTED:
            self._near, self._far = self._far, self._near
        return attempt

    async def _turn(self) -> Attempt:
        attempt = await self._near.create(SIZE, again=False)
        if attempt.outcome is Outcome.ADMITTED:
            await self._watch.until(_used, _SETTLED_SECONDS)
            await self._near.delete([attempt.name])
            await self._watch.until(_idle, _SETTLED_SECONDS)
        return attempt


def _used(view: QuotaView) -> bool:
    return not resources.short(resources.parse(LIMITS), view.used)


def _idle(view: QuotaView) -> bool:
    return not any(view.used.values()) and not any(resources.parse(view.reserved).values())


async def recall(_seconds: float) -> Ratios:
    attempts: dict[str, list[Attempt]] = {"local": [], "recalled": []}
    spent: dict[str, Counter[Write]] = {"local": Counter(), "recalled": Counter()}
    async with site(LIMITS) as here:
        seesaw = Seesaw(here)
        for turn in (seesaw.local, seesaw.recalled, seesaw.recalled, seesaw.local):  # warm; the first grants are made
            await turn()
        for _ in range(BLOCKS):
            for kind, turn in (("local", seesaw.local), ("recalled", seesaw.recalled)):
                await asyncio.sleep(_TAIL_SECONDS)
                before = await api_writes(here.installed.clusters())
                attempts[kind] += [await turn() for _ in range(ROUNDS)]
                await asyncio.sleep(_TAIL_SECONDS)
                spent[kind].update(await api_writes(here.installed.clusters()))
                spent[kind].subtract(before)
    print(f"a Machine from its creation until it is admitted, one at a time, {BLOCKS * ROUNDS} of each kind")
    print(
        "messages: status writes on the seeds, the master's and theirs; all writes: with ledgers and the master's own"
    )
    print("both for a Machine that is created, counted, deleted and counted again")
    print("capacity   p50 ms  p99 ms  ratio of p50  503  messages  all writes")
    peer, ratios = 0.0, []
    for kind, all_of in attempts.items():
        seconds = [attempt.seconds for attempt in all_of if attempt.outcome is Outcome.ADMITTED]
        if not seconds:
            print(f"{kind:<9} never admitted: {all_of[-1].message}")
            continue
        p50, p99 = percentile(seconds, 50), percentile(seconds, 99)
        peer = peer or p50
        messages = _total(spent[kind], ["resourcequotas/status"]) / len(seconds)
        writes = spent[kind].total() / len(seconds)
        print(
            f"{kind:<9} {p50 * 1000:>7.1f} {p99 * 1000:>7.1f} {p50 / peer:>13.1f} {len(all_of) - len(seconds):>4}"
            f" {messages:>9.2f} {writes:>11.2f}",
            flush=True,
        )
        ratios.append((kind, p50 / peer))
    return Ratios("Half of the Machines are admitted after, to those where the capacity is", ratios)


def _total(spent: Counter[Write], names: Iterable[str]) -> int:
    return sum(count for (cluster, _, name), count in spent.items() if name in names and cluster.startswith("seed"))
