"""Allocations under chaos: where they are, what they take, and the way to them over HTTP.

They are in the master's own cluster, so its etcd has them, which is restored from snapshots: what was deleted comes
back, and what was made is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import aiohttp
import msgspec

from common.quota import resources
from common.quota.resources import ResourceList
from devcluster.install import GROUP_PATH, Installation
from devcluster.manifests import Manifest
from devcluster.objects import API, named
from tests.chaos import filling
from tests.chaos.filling import Asked, End
from tests.chaos.load import Answer
from tests.chaos.namespaces import Amounts
from tests.chaos.quotas import ALLOCATED, ORGANIZATION, PROJECTS, QUOTAS
from tests.chaos.truth import Holdings, Metadata, Observer, Sized, Thing

PATH = f"{GROUP_PATH}/namespaces/org-{ORGANIZATION}/allocations"
MADE = (200, 201, 204)

_OVER_HTTP = f"/api/v1/organizations/{ORGANIZATION}"
_ANSWER_SECONDS = 20.0  # more than the HTTP API takes at most
_TRIES = 120
_PAUSE = 0.5

Json = dict[str, Any]


class Resource(msgspec.Struct, frozen=True):
    type: str
    committed: int = 0
    reserved: int = 0


class Content(msgspec.Struct):
    project: str
    resources: list[Resource] = []


class Allocation(msgspec.Struct):
    metadata: Metadata
    spec: Content

    @property
    def size(self) -> Sized:
        return size_of(self.spec.resources)


decoder = msgspec.json.Decoder(Allocation)


def size_of(taken: list[Resource]) -> Sized:
    total = resources.total(resources.parse({each.type: str(each.committed + each.reserved)}) for each in taken)
    return Amounts({name: total.get(name, 0) for name in ALLOCATED})


def given(name: str, project: str, taken: list[Resource]) -> Json:
    """For POST over HTTP, of a thing that has the Allocation's name."""
    metadata = {"id": name, "projectID": project}
    return {"metadata": metadata, "spec": {"kind": "k", "id": name, "resources": msgspec.to_builtins(taken)}}


def body(name: str, project: str, taken: list[Resource]) -> Manifest:
    """For POST to the API server."""
    whose = {"organization": ORGANIZATION, "project": project, "kind": "k", "id": name}
    return {
        "apiVersion": API,
        "kind": "Allocation",
        "metadata": {"name": name},
        "spec": {**whose, "resources": msgspec.to_builtins(taken)},
    }


def catalogue() -> Manifest:
    return named(
        "QuotaSettings", "default", resources=[{"name": name, "countFrom": "Allocations"} for name in ALLOCATED]
    )


class AllocationHoldings(Holdings):
    """Of one project."""

    def __init__(
        self, on_change: Callable[[], None], project: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(on_change, clock)
        self.project = project

    def seen(self, machine: Thing) -> None:
        if isinstance(machine, Allocation) and machine.spec.project == self.project:
            super().seen(machine)


class AllocationObserver(Observer):
    def __init__(self, installed: Installation, holdings: AllocationHoldings) -> None:
        super().__init__(installed.master, holdings, PATH, decoder)
        self._project = holdings.project

    async def recount(self) -> dict[str, ResourceList]:
        things, version = await self._list()
        self.holdings.listed(things, version)
        mine = [each for each in things if isinstance(each, Allocation) and each.spec.project == self._project]
        return {each.metadata.name: each.size.amounts for each in mine}


# Over HTTP -----------------------------------------------------------------------------------------------------------


class Shortage(msgspec.Struct):
    type: str
    requested: int
    free: int


class Problem(msgspec.Struct):
    """Why a request was not done."""

    code: str = ""
    detail: str = ""
    shortages: list[Shortage] = []

    @property
    def adds_up(self) -> bool:
        return bool(self.shortages) and all(each.requested > each.free for each in self.shortages)


_problem = msgspec.json.Decoder(Problem)


class Reply(Answer, frozen=True):
    """Of the HTTP API."""

    @property
    def problem(self) -> Problem:
        try:
            return _problem.decode(self.body)
        except msgspec.MsgspecError:
            return Problem(detail=self.message)

    @property
    def decided(self) -> bool:
        """Whether it is known what became of the request."""
        return self.kind in ("admitted", "refused 409", "unexpected") or self.status == 404

    @property
    def kind(self) -> str:
        """What became of the request, in the words of the report."""
        if self.status in MADE:
            return "admitted"
        if self.problem.code == "quota_exceeded":
            return "refused 409"
        if self.status == 404 or self.problem.code == "contended":
            return "came to nothing"  # deleted or changed meanwhile
        return "no decision" if self.status in (0, 408, 429, 503) else "unexpected"


class Api:
    """The HTTP API, by the replica with that number."""

    def __init__(self, installed: Installation) -> None:
        self._urls = installed.api_urls
        headers = {"Authorization": f"Bearer {installed.master.tokens['admin']}"}
        # The certificate is another one after a restore.
        self._session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=False))

    async def aclose(self) -> None:
        await self._session.close()

    async def create(self, replica: int, content: Json | list[Json], patience: float = 0.0) -> Reply:
        return await self._ask(replica, "POST", "/allocations", content, patience)

    async def change(self, replica: int, project: str, name: str, taken: list[Resource]) -> Reply:
        content = {"spec": {"resources": msgspec.to_builtins(taken)}}
        return await self._ask(replica, "PUT", f"/projects/{project}/allocations/{name}", content)

    async def delete(self, replica: int, project: str, name: str) -> Reply:
        return await self._ask(replica, "DELETE", f"/projects/{project}/allocations/{name}")

    async def _ask(self, replica: int, method: str, path: str, content: object = None, patience: float = 0.0) -> Reply:
        timeout = aiohttp.ClientTimeout(total=patience or _ANSWER_SECONDS)
        url = f"{self._urls[replica % len(self._urls)]}{_OVER_HTTP}{path}"
        try:
            async with self._session.request(method, url, json=content, timeout=timeout) as answer:
                return Reply(answer.status, await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            return Reply(0, error=f"{type(error).__name__}: {error}")


# After the storm -----------------------------------------------------------------------------------------------------


def room(free: Mapping[str, ResourceList]) -> int:
    """How many units can still be allocated. `free`: of each quota, by its name."""

    def left(project: str, name: str) -> int:
        limited = [free[quota][name] for quota in (f"project-{project}", "org-acme") if name in free[quota]]
        return max(min(limited), 0) // 10**9

    return sum(max(left(project, name) for project in PROJECTS) for name in ALLOCATED)


def excess(there: Mapping[str, Mapping[str, ResourceList]]) -> list[tuple[str, str]]:
    """The Allocations that have to go, as project and name, so that the others are within all limits. `there`: by
    project and name."""
    kept: dict[str, dict[str, int]] = {project: {} for project in there}
    limits = {quota.name: quota.limit.amounts for quota in QUOTAS}
    gone = []
    for project, name in [(project, name) for project, found in there.items() for name in sorted(found)]:
        mine = resources.add(kept[project], there[project][name])
        every = resources.total((kept | {project: mine}).values())
        if resources.short(mine, limits[f"project-{project}"]) or resources.short(every, limits["org-acme"]):
            gone.append((project, name))
        else:
            kept[project] = mine
    return gone


async def fill(installed: Installation) -> list[str]:
    """Every type, by every project, until no unit of it is allocated any more. Returns answers that were wrong."""
    numbers = itertools.count()
    wrong = []
    async with aclosing(Api(installed)) as api:
        for type in ALLOCATED:
            asks = {project: partial(_one, api, numbers, project, type) for project in PROJECTS}
            wrong += await filling.fill(type, asks)
    return wrong


async def _one(api: Api, numbers: itertools.count[int], project: str, type: str) -> Asked:
    """A request that is sent again finds what it made."""
    number = next(numbers)
    wanted = given(f"fill-{number}", project, [Resource(type, committed=1)])
    for lost in range(_TRIES):
        reply = await api.create(number + lost, wanted)
        if reply.kind == "admitted":
            return Asked(End.MADE, lost, "")
        if reply.kind == "refused 409" and reply.problem.adds_up:
            return Asked(End.REFUSED, lost, reply.problem.detail)
        if reply.kind != "no decision":
            return Asked(End.WRONG, lost, f"{reply.status} {reply.problem}")
        await asyncio.sleep(_PAUSE)
    return Asked(End.WRONG, _TRIES, f"{reply.status} {reply.problem}")
