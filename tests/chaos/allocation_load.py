"""Services of the platform that allocate for two projects: over HTTP, where a request without an answer is sent again,
and as objects."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TextIO

import msgspec

from devcluster.install import Installation
from tests.chaos import allocations
from tests.chaos.allocations import PATH, AllocationHoldings, Api, Json, Reply, Resource, size_of
from tests.chaos.load import JSON, Actions, Answer, Clients
from tests.chaos.quotas import ALLOCATED, PROJECTS
from tests.chaos.truth import Sized

_THINK_SECONDS = 0.2  # on average
_RETRY_SECONDS = 1.0
_TRIES = 8
_REPLICAS = 2
_numbers = itertools.count(1)

Send = Callable[[int], Awaitable[Reply]]  # to the replica with that number


class AllocationLoad(Clients):
    """Runs until cancelled; then `end` it."""

    def __init__(
        self, chance: random.Random, installed: Installation, holdings: Mapping[str, AllocationHoldings], log: TextIO
    ) -> None:
        """`holdings`: by project."""
        super().__init__(chance, [installed.master], log)
        self._cluster = installed.master.name
        self._api = Api(installed)
        self._holdings = holdings
        self._being_made: set[str] = set()  # names: nobody else touches them, as their requests may be sent again
        self._made: dict[str, int] = {}  # by name: the life of the API server in which it was said to be there

    async def close(self) -> None:
        await super().close()
        await self._api.aclose()

    async def _client(self) -> None:
        actions: Actions = {
            self.create: 30,
            self.create_several: 10,
            self.create_twice: 5,
            self.give_up: 6,
            self.create_object: 15,
            self.change: 16,
            self.delete: 24,
            self.delete_object: 12,
        }
        await self._act(actions, lambda _: self._chance.choice(list(PROJECTS)), _THINK_SECONDS)

    async def create(self, project: str, patience: float = 0.0) -> None:
        name = f"a-{next(_numbers)}"
        wanted = allocations.given(name, project, self._some())

        async def send(replica: int) -> Reply:
            nonlocal patience
            reply = await self._api.create(replica, wanted, patience)
            patience = 0.0
            return reply

        await self._create("create", project, [name], send)

    async def give_up(self, project: str) -> None:
        """Nobody waits for the answer, and the same request is sent again, perhaps to another replica."""
        await self.create(project, self._chance.uniform(0.005, 0.06))

    async def create_twice(self, project: str) -> None:
        """The same request to both replicas at once: whoever is told that it is there can rely on it."""
        name = f"a-{next(_numbers)}"
        wanted = allocations.given(name, project, self._some())

        async def both(replica: int) -> Reply:
            replies = await asyncio.gather(*(self._api.create(replica + each, wanted) for each in range(_REPLICAS)))
            telling = (reply for what in ("unexpected", "admitted") for reply in replies if reply.kind == what)
            return next(telling, replies[0])

        await self._create("create twice", project, [name], both)

    async def create_several(self, project: str) -> None:
        """All or none, some of them for another project."""
        names = [f"a-{next(_numbers)}" for _ in range(self._chance.randint(2, 4))]
        projects = [project, *(self._chance.choice(list(PROJECTS)) for _ in names[1:])]
        wanted: list[Json] = [
            allocations.given(name, each, self._some(most=2)) for name, each in zip(names, projects, strict=True)
        ]
        life = self._life()
        reply, tries = await self._create("create several", project, names, lambda it: self._api.create(it, wanted))
        if reply.kind != "refused 409" or tries > 1 or "not undone" in reply.problem.detail:
            return
        for name in names:
            found = await self._ask(self._cluster, "GET", f"{PATH}/{name}", None, {})
            if found.status == 200 and self._life() == life:
                self.wrong.append(f"{name} is there, though none was allocated of {', '.join(names)}")

    async def create_object(self, project: str) -> Answer:
        name, taken, life = f"a-{next(_numbers)}", self._some(), self._life()
        wanted = msgspec.json.encode(allocations.body(name, project, taken))
        self._being_made.add(name)
        answer = await self._ask(self._cluster, "POST", PATH, wanted, JSON)
        self._being_made.remove(name)
        if answer.status == 201 and self._life() == life:
            self._holdings[project].seen(allocations.decoder.decode(answer.body))
            self._made[name] = life
        self._note(self._cluster, "create object", name, _text(taken), answer)
        return answer

    async def change(self, project: str) -> None:
        """Takes more or less."""
        held = self._holdings[project]
        if not (name := self._one_of(held)):
            return
        taken = self._some()
        size = size_of(taken)
        held.updating(name, size)
        reply, tries = await self._until_decided("change", name, lambda it: self._api.change(it, project, name, taken))
        if reply.kind == "admitted":
            await self._look(held, name, size)
        elif tries == 1:
            held.answered(name, size)

    async def delete(self, project: str) -> None:
        held = self._holdings[project]
        if not (name := self._one_of(held)):
            return
        self._leaves(held, name)
        await self._until_decided("delete", name, lambda it: self._api.delete(it, project, name))

    async def delete_object(self, project: str) -> None:
        held = self._holdings[project]
        if not (name := self._one_of(held)):
            return
        self._leaves(held, name)
        answer = await self._ask(self._cluster, "DELETE", f"{PATH}/{name}", None, {})
        self._write(self._cluster, "delete object", name, "", answer)

    async def end(self) -> None:
        """Whoever was told that an Allocation is there finds it. What is beyond a limit goes."""
        while (listed := await self._ask(self._cluster, "GET", PATH, None, {})).status != 200:
            await asyncio.sleep(_RETRY_SECONDS)
        items = msgspec.json.decode(listed.body, type=_Listed).items
        names = {each.metadata.name for each in items}
        for name, life in self._made.items():
            if life == self._life() and name not in names:
                self.wrong.append(f"Allocation {name} was said to be there, nobody deleted it, and it is gone")
        there = {
            project: {each.metadata.name: each.size.amounts for each in items if each.spec.project == project}
            for project in PROJECTS
        }
        for project, name in allocations.excess(there):
            self._leaves(self._holdings[project], name)
            while (await self._ask(self._cluster, "DELETE", f"{PATH}/{name}", None, {})).status not in (200, 404):
                await asyncio.sleep(_RETRY_SECONDS)

    async def _create(self, action: str, project: str, names: list[str], send: Send) -> tuple[Reply, int]:
        life = self._life()
        self._being_made.update(names)
        try:
            reply, tries = await self._until_decided(f"{action} of {project}", " ".join(names), send)
        finally:
            self._being_made.difference_update(names)
        if reply.kind == "admitted" and self._life() == life:
            self._made.update(dict.fromkeys(names, life))
        return reply, tries

    async def _until_decided(self, action: str, name: str, send: Send) -> tuple[Reply, int]:
        """Sends it again while it is not known what became of it. Returns the last answer, and the number of tries."""
        for tries in itertools.count(1):
            reply = await send(self._chance.randrange(_REPLICAS))
            self._told(action, name, reply)
            if reply.decided or tries == _TRIES:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        return reply, tries

    def _told(self, action: str, name: str, reply: Reply) -> None:
        said = "" if reply.kind == "admitted" else reply.problem.detail
        self._write(f"{self._cluster} HTTP", action, name, reply.problem.code, Answer(reply.status, error=said))
        if not action.startswith("delete"):
            self.counts[reply.kind] += 1
        if reply.kind == "unexpected":
            self.wrong.append(f"{action} {name} over HTTP: {reply.status} {reply.problem}")
        elif reply.kind == "refused 409" and not reply.problem.adds_up:
            self.wrong.append(f"the numbers do not add up: {reply.problem}")

    async def _look(self, held: AllocationHoldings, name: str, size: Sized) -> None:
        life = held.life
        answer = await self._ask(self._cluster, "GET", f"{PATH}/{name}", None, {})
        if answer.status == 200 and held.life == life:
            held.seen(allocations.decoder.decode(answer.body))
            held.answered(name, size)

    def _leaves(self, held: AllocationHoldings, name: str) -> None:
        self._made.pop(name, None)
        held.deleting(name)

    def _life(self) -> int:
        """All are in one cluster, and restored together."""
        return next(iter(self._holdings.values())).life

    def _one_of(self, held: AllocationHoldings) -> str:
        names = [name for name in held.names() if name not in self._being_made]
        return self._chance.choice(names) if names else ""

    def _some(self, most: int = 4) -> list[Resource]:
        types = self._chance.choice((["servers"], ["gpus"], list(ALLOCATED)))
        return [Resource(type, self._chance.randint(1, most), self._chance.choice((0, 0, 1, 2))) for type in types]


class _Listed(msgspec.Struct):
    items: list[allocations.Allocation]


def _text(taken: list[Resource]) -> str:
    return ",".join(f"{each.type}={each.committed}+{each.reserved}" for each in taken)
