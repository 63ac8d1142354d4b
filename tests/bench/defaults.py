"""A default quota for each of 1,000 projects, on two seeds: made with them, edited, and for projects that exist."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import Reflector
from devcluster.install import GROUP_PATH, MASTER, Installation
from devcluster.manifests import apply
from devcluster.objects import named
from devcluster.observe import Write, api_writes
from master.cache.objects import MASTER_QUOTAS, QUOTA_COPIES, MasterQuota, QuotaCopy
from master.tenancy.default_policy import in_force
from tests.running import running

PROJECTS = 1000
SEEDS = 2
CLIENTS = 32
GOAL = 10.0  # seconds, for each of the two
_LIMIT_SECONDS = 300.0
_LEDGERS_GO = 15.0  # seconds after their copies: a seed keeps one for ten
_QUIET_SECONDS = 3.0  # in which nothing is written any more


class Seen(msgspec.Struct, frozen=True):
    """Seconds since the first request."""

    master: float
    seeds: float
    in_force: float


class Watches:
    """What the master and the seeds show, as any client sees it."""

    def __init__(self, master: Cluster, seeds: list[Cluster]) -> None:
        self.master: Reflector[MasterQuota] = Reflector(master, MASTER_QUOTAS)
        self.seeds: list[Reflector[QuotaCopy]] = [Reflector(seed, QUOTA_COPIES) for seed in seeds]

    def all(self) -> list[Reflector[Any]]:
        return [self.master, *self.seeds]

    async def limited_to(self, limit: dict[str, str], started: float) -> Seen:
        """Waits until every project's quota says so: on the master, on all seeds, and until it is in force there."""

        def master() -> bool:
            return sum(quota.spec["quota"] == limit for quota in self.master.store.values()) == PROJECTS

        def seeds() -> bool:
            return all(
                sum(copy.spec["quota"] == limit for copy in seed.store.values()) == PROJECTS for seed in self.seeds
            )

        def enforced() -> bool:
            return seeds() and all(in_force(quota) for quota in self.master.store.values())

        return Seen(*await asyncio.gather(*(_when(check, started) for check in (master, seeds, enforced))))


async def _when(true: Callable[[], bool], started: float) -> float:
    async with asyncio.timeout(_LIMIT_SECONDS):
        while not true():
            await asyncio.sleep(0.05)
    return time.monotonic() - started


@asynccontextmanager
async def _watching(installed: Installation) -> AsyncIterator[Watches]:
    async with AsyncExitStack() as stack:
        clusters = []
        for name in (MASTER, *installed.seeds):
            cluster = await Cluster.from_kubeconfig(installed.cluster(name).kubeconfig(), name=name)
            stack.push_async_callback(cluster.close)
            clusters.append(cluster)
        watches = Watches(clusters[0], clusters[1:])
        async with running(*(watch.run() for watch in watches.all())):
            yield watches


async def defaults(_seconds: float) -> None:
    print(
        f"default quotas for {PROJECTS} projects on {SEEDS} seeds (goal: {GOAL:g} s), seconds until every one is there"
    )
    print("step    sent  on the master  on all seeds  in force  API writes for each project")
    with tempfile.TemporaryDirectory(prefix="seedquota-bench-") as directory:
        async with Installation(Path(directory), seeds=SEEDS, project="p-0") as installed, _watching(installed) as seen:
            await _step(installed, seen, "made", "2", _make)
            await _step(installed, seen, "edited", "3", _edit)
            await _unset(installed, seen)
            await _step(installed, seen, "set", "4", _edit)


async def _step(
    installed: Installation,
    watches: Watches,
    name: str,
    cpu: str,
    send: Callable[[Installation, str], Awaitable[None]],
) -> None:
    await asyncio.sleep(_QUIET_SECONDS)
    before = await api_writes(installed.clusters())
    started = time.monotonic()
    await send(installed, cpu)
    sent = time.monotonic() - started
    seen = await watches.limited_to({"cpu": cpu}, started)
    await asyncio.sleep(_QUIET_SECONDS)
    spent = await api_writes(installed.clusters())
    spent.subtract(before)
    print(
        f"{name:<6} {sent:>5.1f} {seen.master:>14.1f} {seen.seeds:>13.1f} {seen.in_force:>9.1f}  {_each(spent)}",
        flush=True,
    )


async def _make(installed: Installation, cpu: str) -> None:
    """The default first: a project is never without."""
    await _edit(installed, cpu)
    numbers = iter(range(1, PROJECTS))

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = named("Project", f"p-{number}")
            async with session.post(f"{GROUP_PATH}/projects", json=body, raise_for_status=True):
                pass

    async with installed.master.session() as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))


async def _unset(installed: Installation, watches: Watches) -> None:
    """There is no default any more, and no quota anywhere."""
    await apply(installed.master, [named("QuotaSettings", "default", scaleCheck="warn")])
    await _when(lambda: not any(len(seen.store) for seen in watches.all()), time.monotonic())
    await asyncio.sleep(_LEDGERS_GO)


async def _edit(installed: Installation, cpu: str) -> None:
    await apply(installed.master, [named("QuotaSettings", "default", defaults={"project": {"quota": {"cpu": cpu}}})])


def _each(spent: Counter[Write]) -> str:
    """By cluster; all seeds together."""
    found: Counter[tuple[str, str]] = Counter()
    for (cluster, verb, resource), count in spent.items():
        found["master" if cluster == MASTER else "seeds", f"{verb} {resource}"] += count
    return "; ".join(
        f"{side} {sum(count for (of, _), count in found.items() if of == side) / PROJECTS:.1f} ("
        + ", ".join(
            f"{what} {count / PROJECTS:.2f}" for (of, what), count in found.most_common() if of == side and count
        )
        + ")"
        for side in ("master", "seeds")
    )
