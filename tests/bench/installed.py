"""SeedQuota on real control planes with one quota, for the measurements that need all of it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from devcluster import manifests
from devcluster.install import IN_FLIGHT_WINDOW, Installation
from devcluster.load import Tenant
from devcluster.objects import quota
from devcluster.observe import QuotaWatch

QUOTA = "bench"


@dataclass(frozen=True)
class Site:
    """`tenants`: one for each seed."""

    installed: Installation
    watch: QuotaWatch
    tenants: list[Tenant]


@asynccontextmanager
async def site(
    limits: Mapping[str, str], *, seeds: int = 2, replicas: int = 1, in_flight_window: float = IN_FLIGHT_WINDOW
) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seedquota-bench-")))
        installed = await stack.enter_async_context(
            Installation(directory, seeds=seeds, replicas=replicas, in_flight_window=in_flight_window)
        )
        await manifests.apply(installed.master, [quota(QUOTA, installed.project, limits)])
        await installed.enforced(QUOTA)
        watch = await stack.enter_async_context(QuotaWatch(installed.master, QUOTA))
        clusters = [installed.cluster(name) for name in installed.user_clusters.values()]
        yield Site(installed, watch, [await stack.enter_async_context(Tenant(cluster)) for cluster in clusters])
