"""One link per Seed: its kubeconfig, its connection, what is seen of it. Everything of a link is its own.

A link has its own tasks, queues and connections, and every call in it has a timeout: a seed that hangs, floods or dies
delays no other. It follows its Secret and its Seed object, and begins anew when either names another connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable

from common.api.types import Seed
from common.kube.client.api_client import RequestHook
from common.kube.client.errors import ApiError
from common.kube.client.meta import Object
from common.kube.controller.controller import ReconcileHook
from common.kube.controller.store import Change
from common.runtime import metrics
from common.runtime.burst import BurstDetector
from common.runtime.unexpected import contained
from master.cache.informers import Caches, changed_name
from master.cache.objects import QUOTA_ALLOCATIONS
from master.seeds.link import OnCopy, SeedLink, log
from master.seeds.master_side import MasterSide

LAST_WRITE = 5.0  # seconds, for a seed that is lost


class Seeds:
    """The links by name, as the Seed objects say.

    `on_copy(seed, change, run)` tells of a quota's copy, `on_seed(seed)` of everything else about a seed,
    `on_settled(seed, plural, name)` of a copy that is in sync. They are set before `run`. `rush`: many quotas are on
    their way to seeds.
    """

    def __init__(
        self,
        caches: Caches,
        namespace: str,
        *,
        master: str,
        on_request: RequestHook | None = None,
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        """`master`: the uid of this master's Lease."""
        self.links: dict[str, SeedLink] = {}
        self.on_copy: OnCopy = lambda _seed, _change, _run: None
        self.on_seed: Callable[[str], None] = lambda _seed: None
        self.on_settled: Callable[[str, str, str], None] = lambda _seed, _plural, _name: None
        self.rush = BurstDetector(lambda: any(link.crowded for link in self.links.values()))
        self._caches = caches
        self._side = MasterSide(caches, namespace, master, self.rush, on_request, on_reconcile)
        self._stopping: set[asyncio.Task[None]] = set()

    def present(self) -> Iterable[SeedLink]:
        """All that are not lost."""
        return [link for link in self.links.values() if not link.lost]

    async def run(self) -> None:
        """Keeps the links until cancelled. The caches are synced."""
        ends = self._caches.listen(self._changed)
        try:
            for seed in self._caches.seeds.store.values():
                with contained("seeds", seed.metadata.name):
                    self._take(seed)
            await asyncio.get_running_loop().create_future()
        finally:
            ends()
            await asyncio.gather(*(link.stop() for link in self.links.values()), *self._stopping)
            self.links.clear()

    def _changed(self, plural: str, change: Change[Object]) -> None:
        if plural == "seeds":
            if isinstance(change.new, Seed):
                self._take(change.new)
            else:
                self._drop(changed_name(change))
        elif plural == "secrets":
            name = changed_name(change)
            for link in self.links.values():
                ref = link.seed.spec.kubeconfig_secret_ref
                if ref is not None and ref.name == name:
                    with contained("seeds", link.name):
                        link.check()
        elif plural != QUOTA_ALLOCATIONS.plural and _matters(change):  # a seed gets the quota that is made of it
            if plural == "resourcequotas":
                self.rush.note()
            for link in self.links.values():
                with contained("seeds", link.name):
                    if link.sync is not None:
                        link.sync.add((plural, changed_name(change)))

    def _take(self, seed: Seed) -> None:
        name = seed.metadata.name
        link = self.links.get(name)
        if link is not None and link.seed.metadata.uid != seed.metadata.uid:
            self._drop(name)
            link = None
        relabelled = link is not None and link.seed.metadata.labels != seed.metadata.labels
        news = link is None or relabelled or link.seed.spec != seed.spec
        if link is None:
            link = self.links[name] = SeedLink(
                seed,
                self._side,
                others=lambda: [other for other in self.links.values() if other.name != name],
                on_copy=self.on_copy,
                on_phase=self.on_seed,
                on_settled=self.on_settled,
            )
        link.seed = seed
        if link.lost:
            if news:
                self._end(self._lose(link))
        else:
            link.start()
            link.check()
        if news and link.sync is not None:
            link.sync.add(("seeds", name))
            if relabelled:
                link.sync.seed_relabelled()
        if news:  # not each write of its status: every quota is looked at
            log.info("seed changed", extra={"seed": name, "state": seed.spec.state})
            self.on_seed(name)

    def _drop(self, name: str) -> None:
        link = self.links.pop(name, None)
        if link is not None:
            self._end(_forget(link))
            self.on_seed(name)

    async def _lose(self, link: SeedLink) -> None:
        """Stops the link. A seed that can still be reached is shown first that it is lost: it admits nothing more."""
        if link.sync is not None:
            try:
                async with asyncio.timeout(LAST_WRITE):
                    await link.sync.put_seed()
            except (ApiError, TimeoutError) as error:
                log.info("lost seed not reached", extra={"seed": link.name, "error": str(error)})
        await link.stop()

    def _end(self, stopping: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(stopping)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


async def _forget(link: SeedLink) -> None:
    await link.stop()
    metrics.no_cluster(link.name)


def _matters(change: Change[Object]) -> bool:
    """Only what a copy consists of: not the status, which changes all the time."""
    old, new = change.old, change.new
    return old is None or new is None or old.metadata.generation != new.metadata.generation
