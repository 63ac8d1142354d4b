"""`python -m devcluster.writes`: how many API writes a Machine costs, with more and more seeds."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from common import resources
from devcluster.install import Installation, quota
from devcluster.load import Outcome, Size, Tenant, storm
from devcluster.manifests import apply
from devcluster.observe import QuotaWatch, api_writes

SEEDS = (2, 4, 8)
_QUOTA = "project-alpha"
_SIZE = Size("2", "8Gi", "40Gi")
_SETTLED_SECONDS = 30.0


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """What a storm of Machines that all fit made SeedQuota write, until everyone had the final numbers."""

    seeds: int
    machines: int
    seconds: float
    by_resource: dict[str, int]

    @property
    def per_machine(self) -> float:
        return sum(self.by_resource.values()) / self.machines


async def count_writes(seeds: int, machines: int = 400, clients: int = 32) -> Writes:
    """Install with so many seeds, create the Machines over all of them, count. Raises what Installation raises."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seedquota-writes-")))
        installed = await stack.enter_async_context(Installation(directory, seeds=seeds))
        want = {name: amount * machines for name, amount in _SIZE.amounts.items() if name != "machines"}
        limits = resources.render({name: amount * 2 for name, amount in want.items()})
        await apply(installed.master, [quota(_QUOTA, installed.project, limits)])
        await installed.enforced(_QUOTA)
        watch = await stack.enter_async_context(QuotaWatch(installed.master, _QUOTA))
        clusters = [installed.cluster(name) for name in installed.user_clusters.values()]
        tenants = [await stack.enter_async_context(Tenant(cluster)) for cluster in clusters]
        before = await api_writes(installed.clusters())
        begun = time.monotonic()
        attempts = await storm(tenants, [_SIZE] * machines, clients)
        seconds = time.monotonic() - begun
        refused = [attempt for attempt in attempts if attempt.outcome is not Outcome.ADMITTED]
        assert not refused, f"all fit, but: {refused[0].message}"
        await watch.until(
            lambda view: resources.only(view.used, want) == want and not any(resources.parse(view.reserved).values()),
            _SETTLED_SECONDS,
        )
        after = await api_writes(installed.clusters())
        after.subtract(before)
        by_resource: Counter[str] = Counter()
        for (_, _, resource), count in after.items():
            by_resource[resource] += count
        return Writes(
            seeds=seeds,
            machines=machines,
            seconds=seconds,
            by_resource={resource: count for resource, count in by_resource.most_common() if count},
        )


def line(writes: Writes) -> str:
    parts = ", ".join(f"{count} {resource}" for resource, count in writes.by_resource.items())
    return (
        f"{writes.seeds} seeds: {writes.per_machine:.2f} writes per Machine "
        f"({writes.machines} Machines in {writes.seconds:.1f} s: {parts})"
    )


async def _main(seeds: Sequence[int]) -> None:
    for count in seeds:
        print(line(await count_writes(count)), flush=True)


if __name__ == "__main__":
    asyncio.run(_main([int(argument) for argument in sys.argv[1:]] or SEEDS))
