"""`python -m devcluster.writes`: how many API writes a Machine costs, with more and more seeds."""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from common.quota import resources
from devcluster.install import Installation
from devcluster.load import Attempt, Outcome, Size, Tenant, storm
from devcluster.manifests import apply
from devcluster.objects import quota
from devcluster.observe import QuotaWatch, api_writes

SEEDS = (2, 4, 8)
_QUOTA = "project-alpha"
_SIZE = Size("2", "8Gi", "40Gi")
_SETTLED_SECONDS = 30.0
_ALONE_SECONDS = 0.6  # with two seeds or more, each has more than a second for one Machine's writes
_TAIL_SECONDS = 2.0  # for what is written when it is quiet


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """What Machines that all fit made SeedQuota write, until everyone had the final numbers."""

    machines: int
    seconds: float
    by_resource: dict[str, int]

    @property
    def per_machine(self) -> float:
        return sum(self.by_resource.values()) / self.machines


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """`alone`: one Machine after the other, so slowly that no write serves two. `storm`: many clients at once."""

    seeds: int
    alone: Writes
    storm: Writes


async def count_writes(seeds: int, machines: int = 400, clients: int = 32, alone: int = 24) -> Cost:
    """Install with so many seeds, create Machines over all of them, count. Raises what Installation raises."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seedquota-writes-")))
        installed = await stack.enter_async_context(Installation(directory, seeds=seeds))
        limits = {name: amount * (machines + alone) * 2 for name, amount in _SIZE.amounts.items() if name != "machines"}
        await apply(installed.master, [quota(_QUOTA, installed.project, resources.render(limits))])
        await installed.enforced(_QUOTA)
        watch = await stack.enter_async_context(QuotaWatch(installed.master, _QUOTA))
        clusters = [installed.cluster(name) for name in installed.user_clusters.values()]
        tenants = [await stack.enter_async_context(Tenant(cluster)) for cluster in clusters]
        await storm(tenants, [_SIZE] * seeds, 1)  # the first in each cluster fetches its seed's first grant

        async def slowly() -> list[Attempt]:
            attempts = []
            for tenant in itertools.islice(itertools.cycle(tenants), alone):
                attempts.append(await tenant.create(_SIZE))
                await asyncio.sleep(_ALONE_SECONDS)
            return attempts

        return Cost(
            seeds=seeds,
            alone=await _during(installed, watch, slowly()),
            storm=await _during(installed, watch, storm(tenants, [_SIZE] * machines, clients)),
        )


async def _during(installed: Installation, watch: QuotaWatch, load: Coroutine[None, None, list[Attempt]]) -> Writes:
    """From quiet to quiet."""
    await _quiet(watch)
    before, start = await api_writes(installed.clusters()), watch.view.used
    begun = time.monotonic()
    attempts = await load
    seconds = time.monotonic() - begun
    refused = [attempt for attempt in attempts if attempt.outcome is not Outcome.ADMITTED]
    assert not refused, f"all fit, but: {refused[0].message}"
    want = {name: amount + _SIZE.amounts[name] * len(attempts) for name, amount in start.items()}
    await watch.until(lambda view: view.used == want, _SETTLED_SECONDS)
    await _quiet(watch)
    after = await api_writes(installed.clusters())
    after.subtract(before)
    by_resource: Counter[str] = Counter()
    for (_, _, resource), count in after.items():
        by_resource[resource] += count
    return Writes(
        machines=len(attempts),
        seconds=seconds,
        by_resource={resource: count for resource, count in by_resource.most_common() if count},
    )


async def _quiet(watch: QuotaWatch) -> None:
    await watch.until(lambda view: not any(resources.parse(view.reserved).values()), _SETTLED_SECONDS)
    await asyncio.sleep(_TAIL_SECONDS)


def line(cost: Cost) -> str:
    def of(writes: Writes) -> str:
        parts = ", ".join(f"{count} {resource}" for resource, count in writes.by_resource.items())
        return f"{writes.per_machine:.2f} ({writes.machines} Machines in {writes.seconds:.1f} s: {parts})"

    return f"{cost.seeds} seeds, writes per Machine: alone {of(cost.alone)}; in a storm {of(cost.storm)}"


async def _main(seeds: Sequence[int]) -> None:
    for count in seeds:
        print(line(await count_writes(count)), flush=True)


if __name__ == "__main__":
    asyncio.run(_main([int(argument) for argument in sys.argv[1:]] or SEEDS))
