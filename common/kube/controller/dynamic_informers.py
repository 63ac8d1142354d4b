"""Informers for kinds that a cluster may begin or cease to serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from common.kube.client.api_client import Cluster
from common.kube.client.resource import Resource
from common.kube.controller.discovery import FollowedKind, Served, log
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change, Store
from common.runtime.pieces import in_pieces
from common.runtime.unexpected import contained
from common.runtime.waiting import within


class Following:
    """Watch caches of the wanted kinds that are served. `run()` it.

    A kind whose definition is gone has no objects: an API server removes it after them. Then `on_change` is called for
    each, as deleted, in pieces. One that moves to another version of its API has the same. One that has a definition
    and is not served keeps what was listed last: its Reflector has an error until it is served again, and is not
    `synced` if nothing of it was ever listed.

    `on_state`: as Reflector's, of each of them.
    """

    def __init__(
        self,
        cluster: Cluster,
        served: Served,
        wanted: Mapping[str, FollowedKind[Any]],
        *,
        on_state: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._on_state = on_state
        self._served = served
        self._wanted = wanted
        self._resources: dict[str, Resource[Any]] = {}
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unserved: set[str] = set()
        self._gone: dict[str, Store[Any]] = {}  # by kind, what it had and `on_change` was not called for yet
        self._wake = asyncio.Event()

    def get(self, name: str) -> Reflector[Any] | None:
        return self._reflectors.get(name)

    def resource(self, name: str) -> Resource[Any] | None:
        return self._resources.get(name)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        return list(self._reflectors.values())

    async def wait_settled(self) -> None:
        """Until all that is served has been listed. What we may not read counts as not served, and is logged."""
        await _listed(self._served.crds)
        self._adjust()
        for reflector in self.reflectors:
            await _listed(reflector)

    async def run(self) -> None:
        stop = self._served.on_change(self._wake.set)
        try:
            while True:
                self._wake.clear()
                self._adjust()
                await self._tell_gone()
                await self._wake.wait()
        finally:
            stop()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _adjust(self) -> None:
        for name, wanted in self._wanted.items():
            with contained("kinds", name):
                self._adjust_one(name, wanted)

    def _adjust_one(self, name: str, wanted: FollowedKind[Any]) -> None:
        now = self._resources.get(name)
        resource = self._served.find(wanted, now)
        was_unserved = name in self._unserved
        self._unserved.discard(name)
        if resource is None and (resource := self._served.find_defined(wanted, now)) is not None:
            self._unserved.add(name)
            if resource == now and not was_unserved:
                log.warning("kind is not served", extra={"kind": wanted.kind, "version": resource.api_version})
                self._reflectors[name].relist()  # it fails at once, and not when its watch ends
        if resource != now or (was_unserved and name not in self._unserved):
            self._follow(name, wanted, resource)

    def _follow(self, name: str, wanted: FollowedKind[Any], resource: Resource[Any] | None) -> None:
        before = self._reflectors.pop(name, None)
        if before is not None:
            self._tasks.pop(name).cancel()
        known = before.store if before is not None else self._gone.pop(name, None)
        if resource is None:
            del self._resources[name]
            log.info("kind is not followed any more", extra={"kind": wanted.kind})
            if known is not None:
                self._gone[name] = known
            return
        log.info("kind is followed", extra={"kind": wanted.kind, "version": resource.api_version})
        reflector = Reflector(
            self._cluster,
            resource,
            indexes=wanted.indexes,
            on_change=wanted.on_change,
            on_state=self._on_state,
            known=known,
            unread=wanted.unread,
        )
        self._resources[name], self._reflectors[name] = resource, reflector
        self._tasks[name] = asyncio.create_task(reflector.run(), name=f"{resource.plural}.{resource.group}")

    async def _tell_gone(self) -> None:
        """There may be very many. If the kind is followed again meanwhile, the rest is what was known of it."""
        for name, store in list(self._gone.items()):
            tell = self._wanted[name].on_change
            async for key in in_pieces(store.keys()):
                if self._gone.get(name) is not store:
                    break
                gone = store._remove(key)
                with contained("kinds", name):
                    if gone is not None and tell is not None:
                        tell(Change(gone, None))
            else:
                self._gone.pop(name, None)


async def _listed(reflector: Reflector[Any]) -> None:
    while not reflector.synced.is_set() and reflector.error_status not in (403, 404):
        await within(reflector.synced, 0.2)
