"""The admission path on one quota, beside as little as aiohttp can do: a bare echo over TLS."""

from __future__ import annotations

from common.api.conditions import count
from devcluster.controlplane import ApiServer
from tests.bench.load import Result
from tests.bench.plot import Ratios
from tests.bench.serving import load, seed_api, serving, tell, warm

CLIENTS = (1, 8, 32, 128)


async def admissions(seconds: float) -> Ratios:
    ratios = []
    async with seed_api() as api:
        print("admissions on one quota, one replica, each durable in the API server before its answer")
        print(" clients  admitted/s   p50 ms   p99 ms  cpu us    echo/s  echo p50  cpu us  ratio")
        for clients in CLIENTS:
            ours, our_cpu = await _measure("admission", api, clients, seconds)
            bare, bare_cpu = await _measure("echo", api, clients, seconds)
            print(
                f"{clients:>8} {ours.rate:>11.0f} {ours.p50_ms:>8.2f} {ours.p99_ms:>8.2f} {our_cpu * 1e6:>7.0f}"
                f" {bare.rate:>9.0f} {bare.p50_ms:>9.2f} {bare_cpu * 1e6:>7.0f} {ours.rate / bare.rate:>6.2f}",
                flush=True,
            )
            tell(ours)
            ratios.append((count(clients, "client"), ours.rate / bare.rate))
    return Ratios("Admissions a second, to a bare aiohttp echo over TLS", ratios)


async def _measure(kind: str, api: ApiServer, clients: int, seconds: float) -> tuple[Result, float]:
    """The result, and the server's CPU seconds for each request."""
    async with serving(kind, api) as served:
        await warm([served], clients)
        before = served.cpu_seconds
        result = await load([served], clients, seconds)
        return result, (served.cpu_seconds - before) / result.requests
