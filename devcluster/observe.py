"""What happened, seen from outside: what the API servers hold and count, never what SeedQuota says of itself alone."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from common.api.types import Condition, Quantities, Wire
from common.quota import resources
from common.quota.resources import ResourceList
from devcluster.controlplane import ApiServer
from devcluster.load import Attempt, Outcome, Size, Tenant, survey

_QUOTAS = "/apis/seedquota.io/v1alpha1/resourcequotas"
_POLL_SECONDS = 0.3
_RECONNECT_SECONDS = 0.2
_SHOWN_SECONDS = 30.0
_REQUESTS = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
_REVIEWS = "reviews"  # of tokens and access: questions, nothing is stored


class SeedView(Wire):
    """A seed's line in the status of a quota on the master."""

    name: str
    state: str = ""
    local_usage: Quantities = {}
    granted: Quantities = {}


class QuotaView(Wire):
    """The status of a quota, on the master or of its copy on a seed."""

    hard: Quantities = {}
    global_usage: Quantities = {}
    local_usage: Quantities = {}
    reserved: Quantities = {}
    seeds: list[SeedView] = []
    conditions: list[Condition] = []

    @property
    def used(self) -> dict[str, int]:
        return resources.parse(self.global_usage)

    @property
    def limit(self) -> dict[str, int]:
        return resources.parse(self.hard)

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def holds(self, kind: str) -> bool:
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _Quota(msgspec.Struct):
    metadata: _Metadata
    status: QuotaView = msgspec.field(default_factory=QuotaView)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_quota = msgspec.json.Decoder(_Quota)
_event = msgspec.json.Decoder(_Event)


class QuotaWatch:
    """Follows one quota: `async with QuotaWatch(master, name) as quota`. `view` is what was seen last."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self.view = QuotaView()
        self._session = server.session()
        self._name = name
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"watch seedquota/{self._name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._session.close()

    async def until(self, holds: Callable[[QuotaView], bool], seconds: float) -> QuotaView:
        """The first view for which it holds. Raises TimeoutError."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: holds(self.view))
        return self.view

    async def _run(self) -> None:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
                await self._follow()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _follow(self) -> None:
        async with self._session.get(f"{_QUOTAS}/{self._name}", raise_for_status=True) as answer:
            version = await self._take(await answer.read())
        parameters = {"watch": "1", "fieldSelector": f"metadata.name={self._name}", "resourceVersion": version}
        forever = aiohttp.ClientTimeout(total=None)
        async with self._session.get(_QUOTAS, params=parameters, timeout=forever) as answer:
            async for line in answer.content:
                event = _event.decode(line)
                if event.type not in ("ADDED", "MODIFIED"):
                    return
                await self._take(event.object)

    async def _take(self, raw: bytes | msgspec.Raw) -> str:
        quota = _quota.decode(raw)
        async with self._changed:
            self.view = quota.status
            self._changed.notify_all()
        return quota.metadata.resource_version


async def quota_on(server: ApiServer, name: str) -> QuotaView:
    """The quota's status, or that of its copy. Raises aiohttp.ClientResponseError."""
    async with server.session() as session, session.get(f"{_QUOTAS}/{name}", raise_for_status=True) as answer:
        return _quota.decode(await answer.read()).status


class Overshoot:
    """Watches that the Machines there are stay within what is allowed, by counting them anew all the time.

    Allowed is the limit or, after it was lowered, what was in use then as far as it still is. `worst` is by how much
    that was passed at most, `count` the same in Machines of the smallest size, rounded up. Deleting in one cluster
    while creating in another would look like overshoot, since lists of two clusters are not of one moment.
    """

    def __init__(self, tenants: Sequence[Tenant], smallest: Size) -> None:
        self.used: dict[str, int] = {}
        self.used_in: dict[str, dict[str, int]] = {}  # by user cluster, as is the next
        self.machines: dict[str, int] = {}
        self.worst: dict[str, int] = {}
        self._tenants = tenants
        self._smallest = smallest.amounts
        self._limit: dict[str, int] = {}
        self._allowed: dict[str, int] = {}

    @property
    def count(self) -> int:
        return max((-(-amount // self._smallest[name]) for name, amount in self.worst.items()), default=0)

    def room(self) -> int:
        """How many of the smallest Machines the limit still has room for."""
        free = resources.subtract(self._limit, resources.only(self.used, self._limit))
        return min((max(amount, 0) // self._smallest[name] for name, amount in free.items()), default=0)

    async def look(self) -> None:
        found = await survey(self._tenants)
        self.used_in = {name: resources.total(machines.values()) for name, machines in found.items()}
        self.used = resources.total(self.used_in.values())
        self.machines = {name: len(machines) for name, machines in found.items()}
        mine = resources.only(self.used, self._limit)
        over = resources.subtract(mine, self._allowed)
        self.worst = {name: amount for name, amount in resources.maximum(self.worst, over).items() if amount > 0}
        self._allowed = resources.maximum(self._limit, resources.minimum(self._allowed, mine))

    async def limit(self, limits: ResourceList) -> None:
        """Call it before a limit is raised, and after one was lowered and is in force."""
        await self.look()
        self._limit = dict(limits)
        self._allowed = resources.maximum(limits, resources.only(self.used, limits))

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_POLL_SECONDS)


async def latencies(
    tenant: Tenant, quota: QuotaWatch, size: Size, count: int, *, pause: float = 0.0
) -> tuple[list[float], list[Attempt]]:
    """Seconds from sending a Machine, one at a time, until the master's globalUsage has it. Raises TimeoutError.

    `pause`: seconds before each. Ends early at one that is not admitted: then there are fewer times than attempts.
    """
    seconds: list[float] = []
    attempts: list[Attempt] = []
    for _ in range(count):
        await asyncio.sleep(pause)
        target = resources.add(quota.view.used, resources.only(size.amounts, quota.view.limit))
        shown = asyncio.create_task(quota.until(partial(_has, target), _SHOWN_SECONDS))
        attempts.append(await tenant.create(size))
        if attempts[-1].outcome is not Outcome.ADMITTED:
            shown.cancel()
            break
        await shown
        seconds.append(time.monotonic() - attempts[-1].asked)
    return seconds, attempts


def _has(target: ResourceList, view: QuotaView) -> bool:
    return not resources.short(target, view.used)


def percentile(values: Sequence[float], percent: int) -> float:
    """Of a sequence that is not empty; the nearest value that at least so many percent do not pass."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


Write = tuple[str, str, str]  # cluster, verb, resource with its subresource


async def api_writes(servers: Iterable[ApiServer]) -> Counter[Write]:
    """How many writes each API server has taken so far, by cluster, verb and resource; subtract two of these.

    Not counted: lease renewals, dry runs, reviews of tokens and access, and the creation of Machines itself.
    """

    async def one(server: ApiServer) -> Counter[Write]:
        async with server.session() as session, session.get("/metrics", raise_for_status=True) as answer:
            text = await answer.text()
        counted: Counter[Write] = Counter()
        for found in _REQUESTS.finditer(text):
            labels = dict(_LABEL.findall(found["labels"]))
            if _is_write(labels):
                name = "/".join(filter(None, (labels["resource"], labels["subresource"])))
                counted[server.name, labels["verb"], name] += int(float(found["count"]))
        return counted

    total: Counter[Write] = Counter()
    for counted in await asyncio.gather(*(one(server) for server in servers)):
        total.update(counted)
    return total


def _is_write(labels: dict[str, str]) -> bool:
    resource, verb = labels["resource"], labels["verb"]
    return (
        verb in _WRITES
        and not labels["dry_run"]
        and resource != "leases"
        and not resource.endswith(_REVIEWS)
        and (resource, verb, labels["subresource"]) != ("machines", "POST", "")
    )
