"""What the chaos happens to: a master and three seeds with two replicas each, three user clusters, and their quotas.

seed-1  user-1 of project alpha                each quota limits cpu, and something else too
seed-2  user-2 of project alpha
seed-3  the master's own cluster: user-3 of project beta, and the Allocations of both projects

All user clusters take part in quotas of namespaces (tests/chaos/namespaces.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from devcluster import objects, redis
from devcluster.install import MASTER, Installation
from devcluster.manifests import apply
from devcluster.redis import RedisServer, Settings
from devcluster.servers import Etcd, Server
from tests.chaos import allocations, namespaces
from tests.chaos.allocations import AllocationHoldings, AllocationObserver
from tests.chaos.namespaces import NAMESPACED, Membership, NamespaceHoldings, NamespaceObserver
from tests.chaos.quotas import HOSTS, ORGANIZATION, OWN, PROJECTS, QUOTAS, allocations_of, cluster_of, key
from tests.chaos.truth import Holdings, Observer, Overshoot
from tests.running import running


class Place:
    def __init__(self, installed: Installation, stores: Mapping[str, RedisServer]) -> None:
        self.installed = installed
        self.stores = stores  # by seed; empty where the API server is the store
        self.holdings = {name: Holdings(self._look) for name in HOSTS}
        self.membership = Membership()
        self.in_namespaces = {
            key(quota.name, cluster): NamespaceHoldings(self._look, quota, cluster, self.membership)
            for quota in NAMESPACED
            for cluster in HOSTS
        }
        self.allocations = {project: AllocationHoldings(self._look, project) for project in PROJECTS}
        allocated = {allocations_of(project): held for project, held in self.allocations.items()}
        limits = [quota.limit for quota in (*QUOTAS, *NAMESPACED)]
        self.overshoot = Overshoot(limits, {**self.holdings, **self.in_namespaces, **allocated})
        self.observers: dict[str, Observer] = {
            name: Observer(installed.cluster(name), self.holdings[name]) for name in HOSTS
        } | {
            name: NamespaceObserver(installed.cluster(cluster_of(name)), held)
            for name, held in self.in_namespaces.items()
        }
        self.observers |= {name: AllocationObserver(installed, held) for name, held in allocated.items()}

    @property
    def directory(self) -> Path:
        return self.installed.directory

    @property
    def seeds(self) -> list[str]:
        return self.installed.seeds

    def programs_of(self, side: str) -> list[Server]:
        """The replicas of the master or of a seed's agent."""
        return [server for name, server in self.installed.programs.items() if name.startswith(f"seedquota-{side}")]

    def clusters(self) -> list[str]:
        return [MASTER, *self.seeds, *HOSTS]

    def etcd_of(self, cluster: str) -> Etcd:
        return self.installed.etcd_of(cluster)

    def restored(self, cluster: str) -> None:
        """Its etcd is about to have an earlier state. No etcd of user clusters is restored."""
        if self.installed.cluster(cluster) is self.installed.master:
            for held in self.allocations.values():
                held.restored()

    def servers(self) -> dict[str, Server]:
        """Every process by its name. The master's own cluster has two."""
        every = [*self.installed.programs.values(), *self.stores.values(), *(self.etcd_of(name) for name in HOSTS)]
        named: dict[str, Server] = {name: self.installed.cluster(name) for name in self.clusters()}
        named |= {f"etcd-{name}": self.etcd_of(name) for name in (MASTER, *self.seeds)}
        return {server.name: server for server in every} | named

    def _look(self) -> None:
        self.overshoot.look()


@asynccontextmanager
async def place(directory: Path, store: str) -> AsyncIterator[Place]:
    """All of it runs, every quota is in force, and the observers look."""
    async with AsyncExitStack() as stack:
        stores = await _stores(stack, directory) if store == "redis" else {}
        flags = {seed: ("--ledger-store=redis", f"--redis-url={server.url}") for seed, server in stores.items()}
        installed = await stack.enter_async_context(
            Installation(
                directory,
                seeds=2,
                replicas=2,
                master_replicas=2,
                organization=ORGANIZATION,
                seed_flags=flags,
                breakable=True,
                master_seed=True,
                api=True,
            )
        )
        await apply(installed.master, [objects.project("beta", ORGANIZATION), allocations.catalogue()])
        await installed.add_user_cluster("user-3", OWN, "beta")
        made = Place(installed, stores)
        await namespaces.install(installed, made.membership)
        every = (*QUOTAS, *NAMESPACED)
        await apply(installed.master, [quota.manifest for quota in every])
        await asyncio.gather(*(installed.enforced(quota.name) for quota in every))
        try:
            async with running(*(observer.run() for observer in made.observers.values())):
                yield made
        finally:
            for observer in made.observers.values():
                await observer.close()


async def _stores(stack: contextlib.AsyncExitStack, directory: Path) -> dict[str, RedisServer]:
    """A Redis for each seed, whose disk has every write that it acknowledged."""
    executable = await redis.ensure()
    group = await stack.enter_async_context(redis.redis_group())
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    servers = {
        seed: RedisServer(f"redis-{seed}", executable, directory, group, Settings(persistence="aof"))
        for seed in ("seed-1", "seed-2", OWN)
    }
    await asyncio.gather(*(server.start() for server in servers.values()))
    return servers
