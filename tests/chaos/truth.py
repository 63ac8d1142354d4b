"""The Machines that surely exist in this moment, from the API servers that hold them: nobody's count is trusted.

A sum over clusters that are looked at one after the other can be too high: a Machine is deleted here while another is
created there. So a Machine counts from when an API server showed it until just before somebody sends its deletion, and
while an update is under way it counts with the smaller of its sizes. The sum of that is never more than what exists
in that moment; if it is above a limit, the limit was passed.

An API server that is restored from a snapshot has other objects than before. What it brought back or changed was not
admitted so: it does not count here. What was the same before and after does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import aiohttp
import msgspec

from common.quota import resources
from common.quota.resources import ResourceList
from devcluster.controlplane import ApiServer
from devcluster.load import Size

MACHINES = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines"
UNKNOWN_SECONDS = 60.0  # by then a request without an answer has happened or never will

_WATCH_SECONDS = 20  # then everything is listed again
_SILENCE_SECONDS = 45.0  # an API server that hangs
_PAUSE = 0.1


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = "0"
    generation: int = 0
    deletion_timestamp: str | None = None


class _ProviderValue(msgspec.Struct, rename="camel"):
    cloud_provider_spec: Size


class _ProviderSpec(msgspec.Struct):
    value: _ProviderValue


class _Spec(msgspec.Struct, rename="camel"):
    provider_spec: _ProviderSpec


class Machine(msgspec.Struct):
    metadata: Metadata
    spec: _Spec

    @property
    def size(self) -> Size:
        return self.spec.provider_spec.value.cloud_provider_spec


class Sized(Protocol):
    @property
    def amounts(self) -> ResourceList: ...


class Thing(Protocol):
    """An object that costs, such as a Machine."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def size(self) -> Sized: ...


def version_of(thing: Thing) -> int:
    return int(thing.metadata.resource_version)


class _ListMetadata(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    next: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


machine_decoder = msgspec.json.Decoder(Machine)
_list = msgspec.json.Decoder(_List)
_event = msgspec.json.Decoder(_Event)


class Holdings:
    """What one user cluster surely holds. `on_change` is called after each change."""

    def __init__(self, on_change: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic):
        self._on_change = on_change
        self._clock = clock
        self._machines: dict[str, Thing] = {}  # by name; the newest that was seen
        self._gone: set[str] = set()  # uids
        self._leaving: dict[str, float] = {}  # uid to when it is believed no more
        self._changing: dict[str, list[tuple[float, Sized]]] = {}  # by uid: sizes that updates under way would give it
        self._sum: dict[str, int] = {}
        self.life = 0  # another one after each restore of what holds it
        self._unsure: set[str] = set()  # uids that were there, or not any more, when it was restored
        self._before: dict[str, int] = {}  # uid to version, of what was there when it was restored

    @property
    def sum(self) -> ResourceList:
        return self._sum

    def names(self) -> list[str]:
        return list(self._machines)

    def size(self, name: str) -> Sized:
        return self._machines[name].size

    def seen(self, machine: Thing) -> None:
        """An API server showed it. What shows an older state than one seen before says nothing."""
        known = self._machines.get(machine.metadata.name)
        if machine.metadata.uid in self._gone or (known is not None and version_of(known) >= version_of(machine)):
            return
        if known is not None and known.metadata.uid != machine.metadata.uid:
            self._forget(known)
        self._machines[machine.metadata.name] = machine
        self._recount()

    def deleted(self, machine: Thing) -> None:
        """An API server says that it is gone."""
        self._forget(machine)
        self._recount()

    def listed(self, machines: list[Thing], version: int) -> None:
        """A consistent list of that version: what is not in it does not exist, unless it came later."""
        uids = {machine.metadata.uid for machine in machines}
        for machine in machines:
            if self._before.get(machine.metadata.uid) == version_of(machine):
                self._unsure.discard(machine.metadata.uid)
        self._before.clear()
        for known in list(self._machines.values()):
            if known.metadata.uid not in uids and version_of(known) <= version:
                self._forget(known)
        for machine in machines:
            self.seen(machine)
        self._recount()

    def restored(self) -> None:
        """An earlier state is about to be there. What was asked or listed before says nothing about it."""
        self.life += 1
        there = {machine.metadata.uid: version_of(machine) for machine in self._machines.values()}
        self._before = {uid: version for uid, version in there.items() if uid not in self._unsure}
        self._unsure |= there.keys() | self._gone
        self._gone.clear()
        self._machines.clear()
        self._recount()

    def deleting(self, name: str) -> None:
        """A request to delete it is about to be sent: it may be gone at any time from now on."""
        if (known := self._machines.get(name)) is not None:
            self._leaving[known.metadata.uid] = self._clock() + UNKNOWN_SECONDS
            self._recount()

    def updating(self, name: str, size: Sized) -> None:
        """A request to change it is about to be sent: it may have the other size at any time from now on."""
        if (known := self._machines.get(name)) is not None:
            until = self._clock() + UNKNOWN_SECONDS
            self._changing.setdefault(known.metadata.uid, []).append((until, size))
            self._recount()

    def answered(self, name: str, size: Sized) -> None:
        """The request to change it was answered, and what became of it was seen if it succeeded."""
        known = self._machines.get(name)
        pending = self._changing.get(known.metadata.uid, []) if known is not None else []
        for entry in pending:
            if entry[1] == size:
                pending.remove(entry)
                break
        self._recount()

    def _forget(self, machine: Thing) -> None:
        uid = machine.metadata.uid
        self._gone.add(uid)
        self._leaving.pop(uid, None)
        self._changing.pop(uid, None)
        known = self._machines.get(machine.metadata.name)
        if known is not None and known.metadata.uid == uid:
            del self._machines[machine.metadata.name]

    def _recount(self) -> None:
        now = self._clock()
        self._sum = self._total(
            [
                (machine, self._least(machine, now))
                for machine in self._machines.values()
                if self._leaving.get(machine.metadata.uid, 0.0) <= now and machine.metadata.uid not in self._unsure
            ]
        )
        self._on_change()

    def _total(self, there: list[tuple[Thing, ResourceList]]) -> dict[str, int]:
        return resources.total(amounts for _, amounts in there)

    def _least(self, machine: Thing, now: float) -> ResourceList:
        least: ResourceList = machine.size.amounts
        for until, size in self._changing.get(machine.metadata.uid, ()):
            if until > now:
                least = resources.minimum(least, size.amounts)
        return least


class Observer:
    """Follows the Machines of one user cluster, or other objects, through all that happens to its API server."""

    def __init__(
        self,
        server: ApiServer,
        holdings: Holdings,
        path: str = MACHINES,
        decoder: msgspec.json.Decoder[Any] = machine_decoder,
        labels: str = "",
    ) -> None:
        """`labels`: a label selector."""
        self.holdings = holdings
        self._path = path
        self._decoder = decoder
        self._selected = {"labelSelector": labels} if labels else {}
        self._server = server
        self._session = server.session()

    async def close(self) -> None:
        await self._session.close()

    async def run(self) -> None:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
                await self._follow()
            await asyncio.sleep(_PAUSE)

    async def recount(self) -> dict[str, ResourceList]:
        """The size of all that counts, by name, from a consistent list. Raises aiohttp.ClientError."""
        things, version = await self._list()
        self.holdings.listed(things, version)
        return {thing.metadata.name: thing.size.amounts for thing in things}

    async def _list(self) -> tuple[list[Thing], int]:
        timeout = aiohttp.ClientTimeout(total=_SILENCE_SECONDS)
        async with self._session.get(
            self._path, params=self._selected, raise_for_status=True, timeout=timeout
        ) as answer:
            found = _list.decode(await answer.read())
        return [self._decoder.decode(item) for item in found.items], int(found.metadata.resource_version)

    async def _follow(self) -> None:
        life = self.holdings.life
        machines, version = await self._list()
        if self.holdings.life != life:
            return
        self.holdings.listed(machines, version)
        parameters = {"watch": "1", "resourceVersion": str(version), "timeoutSeconds": str(_WATCH_SECONDS)}
        parameters |= self._selected
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_SECONDS)
        async with self._session.get(self._path, params=parameters, timeout=timeout, raise_for_status=True) as answer:
            async for line in answer.content:
                event = _event.decode(line)
                if self.holdings.life != life:
                    return
                match event.type:
                    case "ADDED" | "MODIFIED":
                        self.holdings.seen(self._decoder.decode(event.object))
                    case "DELETED":
                        self.holdings.deleted(self._decoder.decode(event.object))
                    case _:
                        return


class Limit(msgspec.Struct, frozen=True):
    """A quota as the observer knows it: which clusters it spans and what is allowed. In nanos."""

    name: str
    clusters: tuple[str, ...]
    amounts: ResourceList


class Overshoot:
    """By how much each limit was passed at most. `on_first` is called the first time that one was."""

    def __init__(
        self,
        limits: list[Limit],
        holdings: Mapping[str, Holdings],
        on_first: Callable[[str, ResourceList], None] = lambda _name, _over: None,
    ) -> None:
        self.worst: dict[str, dict[str, int]] = {limit.name: {} for limit in limits}
        self.looks = 0
        self._limits = limits
        self._holdings = holdings
        self.on_first = on_first

    def look(self) -> None:
        self.looks += 1
        for limit in self._limits:
            used = resources.total(self._holdings[name].sum for name in limit.clusters)
            over = resources.only(resources.subtract(used, limit.amounts), limit.amounts)
            over = {name: amount for name, amount in over.items() if amount > 0}
            if not over:
                continue
            first = not self.worst[limit.name]
            self.worst[limit.name] = resources.maximum(self.worst[limit.name], over)
            if first:
                self.on_first(limit.name, over)
