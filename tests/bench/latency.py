"""From a Machine's creation to what the master shows of it."""

from __future__ import annotations

from devcluster.load import Size
from devcluster.observe import latencies, percentile
from tests.bench.installed import site

MACHINES = 50
QUIET = 0.5  # seconds


async def latency(_seconds: float) -> None:
    async with site({"cpu": "1000", "memory": "4000Gi", "storage": "40000Gi"}) as here:
        for pause, when in ((QUIET, f"{QUIET:g} s after the last was shown"), (0.0, "as soon as the last was shown")):
            size = Size("1", "4Gi", "20Gi")
            seconds, _ = await latencies(here.tenants[0], here.watch, size, MACHINES, pause=pause)
            print(
                f"from sending a Machine, {when}, to the master's globalUsage: "
                f"p50 {percentile(seconds, 50) * 1000:.0f} ms, p99 {percentile(seconds, 99) * 1000:.0f} ms"
            )
