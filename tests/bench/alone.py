"""What one write of an account costs by itself, by the same client to the same store: the peer of an admission by one
client, which is one such write and whatever is ours."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from common.kube.client.api_client import Cluster
from common.quota.account import Account, AccountKey, Reservation
from common.quota.quantity import UNIT
from common.runtime.redis_access import RedisAccess, redis_url
from devcluster.controlplane import ApiServer
from devcluster.observe import percentile
from seed.ledger.apiserver import ApiServerStore
from seed.ledger.redis import RedisStore
from seed.ledger.store import Store
from seed.ledger.store_generation import Held
from tests.bench import server
from tests.bench.load import Result

_WAITING = 32  # reservations: about as many as one client has that are not counted yet
_WARMING = 50  # writes


async def beside(result: Result, api: ApiServer, redis: str, seconds: float) -> None:
    """Prints the p50 of a write beside that of the admissions, and how many times as long those take."""
    async with _store(api, redis) as store:
        took = await _writes(store, seconds)
    p50, p99 = percentile(took, 50) * 1000, percentile(took, 99) * 1000
    print(
        f"         one write alone: p50 {p50:.2f} ms, p99 {p99:.2f} ms;"
        f" an admission's p50 is {result.p50_ms / p50:.2f} times that",
        flush=True,
    )


async def _writes(store: Store, seconds: float) -> list[float]:
    key = AccountKey(uid="alone", name="alone")
    size = {"cpu": 4 * UNIT, "memory": 2**33 * UNIT}
    waiting = {
        ("bench-0/bench-0", f"{number:08x}-0000-4000-8000-000000000000"): Reservation(
            source="bench-0/bench-0", object="kube-system/pool-a-x7k2p", amount=size, request=f"{number:08}"
        )
        for number in range(_WAITING)
    }
    granted = {name: 1_000_000 * amount for name, amount in size.items()}
    account = Account(incarnation="alone", granted=granted, reservations=waiting)
    await store.delete(key)
    version = await store.save(key, account, None)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end or len(took) <= _WARMING:
        account = msgspec.structs.replace(account, sequence=account.sequence + 1)
        version = await store.save(key, account, version)
        took.append(time.perf_counter() - started)
    return took[_WARMING:]


@asynccontextmanager
async def _store(api: ApiServer, redis: str) -> AsyncIterator[Store]:
    if not redis:
        cluster = await Cluster.from_kubeconfig(api.kubeconfig("admin"), name="alone")
        try:
            yield ApiServerStore(cluster, server.NAMESPACE)
        finally:
            await cluster.close()
        return
    held = Held("alone", "")
    store = RedisStore(redis_url(redis), RedisAccess(), "alone", held=lambda: held)
    try:
        held = Held("alone", await store.run_id())
        yield store
    finally:
        await store.close()
