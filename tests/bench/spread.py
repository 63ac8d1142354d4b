"""One quota over one user cluster, and over a hundred in namespaces of their own: the account has a line for each."""

from __future__ import annotations

from common.api.conditions import count
from tests.bench.plot import Ratios
from tests.bench.serving import load, seed_api, serving, tell, warm

CLUSTERS = (1, 100)
CLIENTS = 128


async def spread(seconds: float) -> Ratios:
    print(f"admissions on one quota by its user clusters, {CLIENTS} clients, one replica, API server store")
    print("clusters  admitted/s   p50 ms   p99 ms  cpu us  ratio")
    peer, ratios = 0.0, []
    for clusters in CLUSTERS:
        async with seed_api(clusters) as api, serving("admission", api) as served:
            await warm([served], CLIENTS)
            before = served.cpu_seconds
            result = await load([served], CLIENTS, seconds)
            cpu = (served.cpu_seconds - before) / result.requests
            peer = peer or result.rate
            print(
                f"{clusters:>8} {result.rate:>11.0f} {result.p50_ms:>8.2f} {result.p99_ms:>8.2f}"
                f" {cpu * 1e6:>7.0f} {result.rate / peer:>6.2f}",
                flush=True,
            )
            tell(result)
            ratios.append((count(clusters, "user cluster"), result.rate / peer))
    return Ratios("Admissions a second on one quota, to those with one user cluster", ratios)
