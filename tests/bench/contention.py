"""Four seeds and the last units of one quota: how full it gets, and whether anybody is refused beside room."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial

from common.quota import resources
from common.quota.resources import ResourceList
from devcluster.load import Attempt, Outcome, Size, storm, unjustified
from devcluster.observe import Overshoot, QuotaView, percentile
from seed.accounts.capacity import FRESH
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
        self.over = Overshoot(here.tenants, SMALLEST)
        self.attempts: list[Attempt] = []
        self.filled: list[float] = []
        self.wrong: list[str] = []

    async def begin(self) -> None:
        """From nothing: Machines of all sizes, twice as many as fit."""
        await self.over.limit(self._limits)
        await self._want(self._chance.choices(SIZES, k=2 * 256 // 6))

    async def turn(self, number: int) -> None:
        """Whoever is refused beside what is free is refused wrongly: the master has seen it, and what he said of the
        quota while it was full is forgotten."""
        here = self._here
        tenant = here.tenants[number % len(here.tenants)]
        mine = await tenant.machines()
        await tenant.delete(self._chance.sample(sorted(mine), min(8, len(mine))))
        await self.over.look()
        await here.watch.until(partial(_shows, self.over.used), _SETTLED_SECONDS)
        await asyncio.sleep(FRESH)
        await self._want([SMALLEST] * (self.over.room() + CLIENTS))

    async def _want(self, sizes: list[Size]) -> None:
        before = resources.only(self.over.used, self._limits)
        attempts = await storm(self._here.tenants, sizes, CLIENTS)
        await self.over.look()
        self.attempts += attempts
        self.filled.append(min(self.over.used.get(name, 0) / limit for name, limit in self._limits.items()))
        self.wrong += [why for _, why in unjustified(attempts, self._limits, before)]


def _shows(use: ResourceList, view: QuotaView) -> bool:
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
    print(f"too many {contest.over.count}; refused beside room {len(contest.wrong)} {', '.join(contest.wrong[:3])}")
    print(
        f"until admitted or refused: p50 {percentile(seconds, 50) * 1000:.0f} ms, "
        f"p99 {percentile(seconds, 99) * 1000:.0f} ms; told to come again (503): {again}"
    )
