"""Four seeds and the last units of one quota: how full it gets, and whether anybody is refused beside room."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from common import resources
from common.resources import ResourceList
from devcluster.load import Attempt, Outcome, Size, storm, survey, unjustified
from devcluster.observe import QuotaView, percentile
from seed.shortage import FRESH
from tests.bench.installed import Site, site

SEEDS = 4
CLIENTS = 32
ROUNDS = 12
SIZES = [Size(str(cpu), f"{4 * cpu}Gi", "1Gi") for cpu in (1, 2, 4, 8, 16)]
SMALLEST = SIZES[0]
LIMITS = {"cpu": "256", "memory": "1Ti"}
_SETTLED_SECONDS = 60.0


class Contest:
    """Rounds in which one seed gives back what it has of some Machines, and all want it at once."""

    def __init__(self, here: Site) -> None:
        self._here = here
        self._limits = resources.parse(LIMITS)
        self._chance = random.Random(1)
        self.attempts: list[Attempt] = []
        self.filled: list[float] = []
        self.over = 0
        self.wrong: list[str] = []

    async def begin(self) -> None:
        """From nothing: Machines of all sizes, twice as many as fit."""
        sizes = self._chance.choices(SIZES, k=2 * 256 // 6)
        await self._want(sizes, {})

    async def turn(self, number: int) -> None:
        """Whoever is refused beside what is free is refused wrongly: the master has seen it, and what he said of the
        quota while it was full is forgotten."""
        here = self._here
        tenant = here.tenants[number % len(here.tenants)]
        mine = await tenant.machines()
        await tenant.delete(self._chance.sample(sorted(mine), min(8, len(mine))))
        use = await self._use()
        await here.watch.until(lambda view: _shows(view, use), _SETTLED_SECONDS)
        await asyncio.sleep(FRESH)
        room = min(
            amount // SMALLEST.amounts[name]
            for name, amount in resources.subtract(self._limits, resources.only(use, self._limits)).items()
        )
        await self._want([SMALLEST] * (room + CLIENTS), use)

    async def _want(self, sizes: list[Size], before: ResourceList) -> None:
        attempts = await storm(self._here.tenants, sizes, CLIENTS)
        self.attempts += attempts
        use = await self._use()
        self.filled.append(min(use.get(name, 0) / limit for name, limit in self._limits.items()))
        self.over += any(use.get(name, 0) > limit for name, limit in self._limits.items())
        self.wrong += [why for _, why in unjustified(attempts, self._limits, resources.only(before, self._limits))]

    async def _use(self) -> ResourceList:
        found = await survey(self._here.tenants)
        return resources.total(size for machines in found.values() for size in machines.values())


def _shows(view: QuotaView, use: ResourceList) -> bool:
    return all(amount == use.get(name, 0) for name, amount in view.used.items())


async def contention(_seconds: float) -> None:
    async with site(LIMITS, seeds=SEEDS) as here:
        contest = Contest(here)
        await contest.begin()
        for number in range(ROUNDS):
            await contest.turn(number)
    outcomes = Counter(attempt.outcome for attempt in contest.attempts)
    undecided = outcomes[Outcome.UNAVAILABLE] + outcomes[Outcome.FAILED]
    seconds = [attempt.answered - attempt.asked for attempt in contest.attempts]
    again = sum(attempt.tries > 1 for attempt in contest.attempts)
    last = contest.filled[1:]
    print(
        f"{SEEDS} seeds, {CLIENTS} clients, one quota of {LIMITS['cpu']} cpu: first Machines of 1 to 16 cpu, twice as"
    )
    print(f"many as fit; then, {ROUNDS} times, eight of a seed are deleted and all want Machines of 1 cpu, too many")
    print(f"admitted {outcomes[Outcome.ADMITTED]}, refused {outcomes[Outcome.REFUSED]}, undecided {undecided}")
    print(f"filled after the first storm {contest.filled[0]:.1%}, after the others at least {min(last):.1%}")
    print(
        f"times over the limit {contest.over}; refused beside room {len(contest.wrong)} {', '.join(contest.wrong[:3])}"
    )
    print(
        f"until admitted or refused: p50 {percentile(seconds, 50) * 1000:.0f} ms, "
        f"p99 {percentile(seconds, 99) * 1000:.0f} ms; told to come again (503): {again}"
    )
