"""What is allocated: a watch cache of Allocations, kept where the HTTP API is served."""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from common.api.types import ALLOCATIONS, Allocation
from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.runtime.listeners import Listeners

K = TypeVar("K")

BY_ID = "id"  # of the thing that it is for


_Group = tuple[str, str]
"""A project, and the kind of what is allocated for."""

_Key = tuple[str, str]
"""A namespace and a project."""


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
                BY_ID: lambda found: [_id(found.metadata.namespace, found.spec.id)],
            },
            on_change=self._changed,
        )
        self._use: dict[str, dict[str, Use]] = {}
        self._use_of: dict[_Key, dict[str, Use]] = {}
        self._names: dict[str, dict[_Group, list[str]]] = {}  # by namespace, sorted
        self._expected: dict[str, set[asyncio.Future[tuple[str, str]]]] = {}
        self._listeners: Listeners[[Allocation]] = Listeners()

    def listen(self, listener: Callable[[Allocation], None]) -> Callable[[], None]:
        """Called with what was made or changed, or as it was. Returns what ends it."""
        return self._listeners.add(listener)

    async def run(self) -> None:
        await self._reflector.run()

    def not_synced(self) -> str | None:
        """A readiness check."""
        if self._reflector.synced.is_set():
            return None
        return f"allocations: {self._reflector.error or 'first list not complete'}"

    def get(self, namespace: str, name: str) -> Allocation | None:
        return self._reflector.store.get(f"{namespace}/{name}")

    def projects(self, namespace: str) -> set[str]:
        """Those that have some there."""
        return {project for project, _ in self._names.get(namespace, ())}

    def listed(
        self,
        namespace: str,
        projects: Collection[str],
        *,
        kind: str | None = None,
        id: str | None = None,
        after: str = "",
    ) -> Iterator[Allocation]:
        """In the order of their names, beginning after one. None of the others is looked at: there may be very many,
        and whoever may list them asks again and again. Nothing may change meanwhile."""
        if id is not None:
            names = iter(sorted(each.metadata.name for each in self._of_id(namespace, id)))
        else:
            groups = self._names.get(namespace, {})
            wanted = (names for group, names in groups.items() if group[0] in projects and kind in (None, group[1]))
            names = heapq.merge(*(_from(names, bisect_right(names, after)) for names in wanted))
        for name in names:
            each = self.get(namespace, name)
            if each is None or name <= after or each.spec.project not in projects or kind not in (None, each.spec.kind):
                continue
            yield each

    def of_thing(self, namespace: str, kind: str, id: str) -> list[Allocation]:
        return [each for each in self._of_id(namespace, id) if each.spec.kind == kind]

    def _of_id(self, namespace: str, id: str) -> list[Allocation]:
        return self._reflector.store.by_index(BY_ID, _id(namespace, id))

    def use(self, namespace: str) -> Mapping[str, Use]:
        """Sums by type; one that is not there is not allocated."""
        return self._use.get(namespace, {})

    def use_of(self, namespace: str, project: str) -> Mapping[str, Use]:
        """As `use`, of one project."""
        return self._use_of.get((namespace, project), {})

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
            self._name(change.new)
        elif change.old is not None and change.new is None:
            self._forget_name(change.old)
        for found, sign in ((change.old, -1), (change.new, 1)):
            if found is not None:
                namespace = found.metadata.namespace
                _sum_up(self._use, namespace, found, sign)
                _sum_up(self._use_of, (namespace, found.spec.project), found, sign)
        if (found := change.new or change.old) is not None:
            self._listeners.call(found)

    def _name(self, new: Allocation) -> None:
        """An API server lets nobody change what is the group."""
        insort(self._names.setdefault(new.metadata.namespace, {}).setdefault(_group(new), []), new.metadata.name)

    def _forget_name(self, old: Allocation) -> None:
        groups, group = self._names[old.metadata.namespace], _group(old)
        names = groups[group]
        del names[bisect_left(names, old.metadata.name)]
        if not names:
            del groups[group]
        if not groups:
            del self._names[old.metadata.namespace]

    def _arrived(self, new: Allocation) -> None:
        waiting = self._expected.get(new.metadata.key)
        if not waiting:
            return
        others = self.of_thing(new.metadata.namespace, new.spec.kind, new.spec.id)
        other = next((each.metadata.name for each in others if each.metadata.name != new.metadata.name), "")
        for arrival in waiting:
            if not arrival.done():
                arrival.set_result((new.metadata.uid, other))


def _sum_up(all_sums: dict[K, dict[str, Use]], key: K, found: Allocation, sign: int) -> None:
    """`sign`: -1 takes it away."""
    sums = all_sums.setdefault(key, {})
    for each in found.spec.resources:
        old = sums.get(each.type, Use())
        new = Use(old.committed + sign * each.committed, old.reserved + sign * each.reserved)
        if new == Use():
            sums.pop(each.type, None)
        else:
            sums[each.type] = new
    if not sums:
        del all_sums[key]


def _id(namespace: str, id: str) -> str:
    return f"{namespace}\0{id}"


def _group(found: Allocation) -> _Group:
    return found.spec.project, found.spec.kind


def _from(names: list[str], begin: int) -> Iterator[str]:
    return (names[place] for place in range(begin, len(names)))
