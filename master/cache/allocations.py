"""What is allocated: a watch cache of Allocations, kept where the HTTP API is served."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from common.api.types import ALLOCATIONS, Allocation
from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change

BY_NAMESPACE = "namespace"
BY_THING = "thing"  # what it is for


@dataclass(frozen=True)
class Use:
    """Of one type."""

    committed: int = 0
    reserved: int = 0

    @property
    def amount(self) -> int:
        return self.committed + self.reserved


class AllocationCache:
    def __init__(self, cluster: Cluster) -> None:
        self._reflector: Reflector[Allocation] = Reflector(
            cluster,
            ALLOCATIONS,
            indexes={
                BY_NAMESPACE: lambda found: [found.metadata.namespace],
                BY_THING: lambda found: [_thing(found.metadata.namespace, found.spec.kind, found.spec.id)],
            },
            on_change=self._changed,
        )
        self._use: dict[str, dict[str, Use]] = {}
        self._expected: dict[str, set[asyncio.Future[tuple[str, str]]]] = {}

    async def run(self) -> None:
        await self._reflector.run()

    def not_synced(self) -> str | None:
        """A readiness check."""
        if self._reflector.synced.is_set():
            return None
        return f"allocations: {self._reflector.error or 'first list not complete'}"

    def get(self, namespace: str, name: str) -> Allocation | None:
        return self._reflector.store.get(f"{namespace}/{name}")

    def of_namespace(self, namespace: str) -> list[Allocation]:
        return self._reflector.store.by_index(BY_NAMESPACE, namespace)

    def of_thing(self, namespace: str, kind: str, id: str) -> list[Allocation]:
        return self._reflector.store.by_index(BY_THING, _thing(namespace, kind, id))

    def use(self, namespace: str) -> Mapping[str, Use]:
        """Sums by type; one that is not there is not allocated."""
        return self._use.get(namespace, {})

    def expect(self, namespace: str, name: str) -> asyncio.Future[tuple[str, str]]:
        """When the Allocation comes: its uid, and the name of one that is there for the same thing, if there is one."""
        arrival: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self._expected.setdefault(f"{namespace}/{name}", set()).add(arrival)
        return arrival

    def expected(self, namespace: str, name: str, arrival: asyncio.Future[tuple[str, str]]) -> None:
        """Ends `expect`."""
        arrival.cancel()
        waiting = self._expected.get(f"{namespace}/{name}", set())
        waiting.discard(arrival)
        if not waiting:
            self._expected.pop(f"{namespace}/{name}", None)

    def _changed(self, change: Change[Allocation]) -> None:
        if change.new is not None and change.old is None:
            self._arrived(change.new)
        for found, sign in ((change.old, -1), (change.new, 1)):
            if found is None:
                continue
            sums = self._use.setdefault(found.metadata.namespace, {})
            for each in found.spec.resources:
                old = sums.get(each.type, Use())
                new = Use(old.committed + sign * each.committed, old.reserved + sign * each.reserved)
                if new == Use():
                    sums.pop(each.type, None)
                else:
                    sums[each.type] = new
            if not sums:
                del self._use[found.metadata.namespace]

    def _arrived(self, new: Allocation) -> None:
        waiting = self._expected.get(new.metadata.key)
        if not waiting:
            return
        others = self.of_thing(new.metadata.namespace, new.spec.kind, new.spec.id)
        other = next((each.metadata.name for each in others if each.metadata.name != new.metadata.name), "")
        for arrival in waiting:
            if not arrival.done():
                arrival.set_result((new.metadata.uid, other))


def _thing(namespace: str, kind: str, id: str) -> str:
    return f"{namespace}\0{kind}\0{id}"
