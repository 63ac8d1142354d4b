"""Tenants who create, delete, grow and shrink Machines without pause, and whose requests may come to nothing."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TextIO

import aiohttp
import msgspec

from devcluster.controlplane import ApiServer
from devcluster.load import Size, machine, parse_refusal
from tests.chaos.truth import MACHINES, Holdings, machine_decoder

SIZES = (
    Size("1", "1Gi", "1Gi"),
    Size("1", "4Gi", "1Gi"),
    Size("2", "2Gi", "1Gi"),
    Size("2", "6Gi", "1Gi"),
    Size("4", "4Gi", "1Gi"),
)
TOO_LARGE = Size("100", "1Gi", "1Gi")  # for every limit

_ANSWER_SECONDS = 15.0
_THINK_SECONDS = 0.15  # on average
_TILT = 0.8
_TILT_SECONDS = 20.0
_AFTER_TROUBLE_SECONDS = 0.5
JSON = {"Content-Type": "application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}
_numbers = itertools.count(1)


class _Status(msgspec.Struct):
    message: str = ""


_status = msgspec.json.Decoder(_Status)


class Answer(msgspec.Struct, frozen=True):
    status: int  # 0: none came
    body: bytes = b""
    error: str = ""

    @property
    def message(self) -> str:
        if self.error:
            return self.error
        try:
            return _status.decode(self.body).message
        except msgspec.MsgspecError:
            return self.body[:200].decode(errors="replace")


def kind(answer: Answer) -> str:
    """What became of a request, in the words of the report."""
    message = answer.message
    match answer.status:
        case 200 | 201:
            return "admitted"
        case 403 if "exceeded quota" in message:
            return "refused 403"
        case 503 if "denied the request" in message:
            return "refused 503"
        case 404 | 409:
            return "came to nothing"  # deleted meanwhile, a name that is taken, or a race of two updates
        case status if status == 0 or status == 429 or status >= 500:
            return "no decision"  # the API server or the webhook is not there
    return "unexpected"


Action = Callable[[str], Awaitable[Answer | None]]
Actions = dict[Action, int]
"""With their weights."""


class Clients:
    """`counts` has the requests that admission is asked about, by what became of them."""

    def __init__(self, chance: random.Random, servers: list[ApiServer], log: TextIO) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []  # answers that nobody should get
        self._chance = chance
        self._sessions = {server.name: server.session() for server in servers}
        self._log = log
        self._started = time.monotonic()

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def run(self, clients: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client())

    async def _client(self) -> None:
        raise NotImplementedError

    async def _act(self, actions: Actions, where: Callable[[Action], str], think_seconds: float) -> None:
        """Without end: one of the actions, by weight, at the place that it is given."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / think_seconds))
            action = self._chance.choices(list(actions), list(actions.values()))[0]
            answered = await action(where(action))
            if isinstance(answered, Answer) and kind(answered) in ("refused 503", "no decision"):
                await asyncio.sleep(_AFTER_TROUBLE_SECONDS)

    async def _ask(
        self, cluster: str, method: str, path: str, body: bytes | None, headers: dict[str, str], patience: float = 0.0
    ) -> Answer:
        timeout = aiohttp.ClientTimeout(total=patience or _ANSWER_SECONDS)
        try:
            request = self._sessions[cluster].request(method, path, data=body, headers=headers, timeout=timeout)
            async with request as answer:
                return Answer(answer.status, await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            return Answer(0, error=f"{type(error).__name__}: {error}")

    def _note(self, cluster: str, action: str, name: str, size: str, answer: Answer) -> None:
        self._write(cluster, action, name, size, answer)
        what = kind(answer)
        self.counts[what] += 1
        if what == "unexpected":
            self.wrong.append(f"{action} in {cluster}: {answer.status} {answer.message}")
        elif what == "refused 403":
            refusal = parse_refusal(answer.message)
            if refusal is None or not refusal.adds_up:
                self.wrong.append(f"the numbers do not add up: {answer.message}")

    def _write(self, cluster: str, action: str, name: str, text: str, answer: Answer) -> None:
        said = "" if answer.status in (200, 201) else answer.message[:400]
        seconds = time.monotonic() - self._started
        self._log.write(f"{time.time():.3f} {seconds:8.3f} {cluster} {action} {name} {text} {answer.status} {said}\n")


class Load(Clients):
    """Of Machines. Runs until cancelled."""

    def __init__(
        self, chance: random.Random, servers: list[ApiServer], holdings: dict[str, Holdings], log: TextIO
    ) -> None:
        super().__init__(chance, servers, log)
        self._holdings = holdings

    async def _client(self) -> None:
        actions: Actions = {
            self.create: 50,
            self.delete: 26,
            self.update: 14,
            self.race: 3,
            self.take_a_name_twice: 4,
            self.give_up: 3,
            self.ask_too_much: 1,
            self.delete_many: 1,
        }
        shrinking = (self.delete, self.delete_many)
        await self._act(actions, lambda action: self._where(shrinks=action in shrinking), _THINK_SECONDS)

    def _where(self, *, shrinks: bool) -> str:
        """For a while most is created in one cluster and deleted in the others: capacity has to move."""
        names = list(self._sessions)
        if self._chance.random() > _TILT:
            return self._chance.choice(names)
        grows = names[int(time.monotonic() / _TILT_SECONDS) % len(names)]
        return self._chance.choice([name for name in names if name != grows]) if shrinks else grows

    async def create(self, cluster: str, size: Size | None = None, name: str = "", patience: float = 0.0) -> Answer:
        name = name or f"m-{next(_numbers)}"
        size = size or self._chance.choice(SIZES)
        body = msgspec.json.encode(machine(name, size))
        answer = self._seen(cluster, await self._ask(cluster, "POST", MACHINES, body, JSON, patience))
        self._note(cluster, "create", name, _text(size), answer)
        return answer

    async def take_a_name_twice(self, cluster: str) -> Answer | None:
        """It is admitted, capacity is taken for it, and then the API server finds that the name is taken."""
        name = self._one_of(cluster)
        return await self.create(cluster, name=name) if name else None

    async def give_up(self, cluster: str) -> Answer:
        """Nobody waits for the answer: the Machine comes to be or does not."""
        return await self.create(cluster, patience=self._chance.uniform(0.005, 0.06))

    async def ask_too_much(self, cluster: str) -> Answer:
        return await self.create(cluster, TOO_LARGE)

    async def delete(self, cluster: str) -> Answer | None:
        name = self._one_of(cluster)
        if not name:
            return None
        self._holdings[cluster].deleting(name)
        answer = await self._ask(cluster, "DELETE", f"{MACHINES}/{name}", None, {})
        self._write(cluster, "delete", name, "", answer)
        return answer

    async def delete_many(self, cluster: str) -> None:
        for _ in range(8):
            await self.delete(cluster)

    async def update(self, cluster: str, name: str = "") -> Answer | None:
        """Grows or shrinks it."""
        name = name or self._one_of(cluster)
        if not name:
            return None
        size = self._chance.choice(SIZES)
        spec = {"providerSpec": {"value": {"cloudProviderSpec": msgspec.to_builtins(size)}}}
        self._holdings[cluster].updating(name, size)
        body = msgspec.json.encode({"spec": spec})
        answer = self._seen(cluster, await self._ask(cluster, "PATCH", f"{MACHINES}/{name}", body, MERGE))
        if answer.status in (200, 403, 404, 409):
            self._holdings[cluster].answered(name, size)
        self._note(cluster, "update", name, _text(size), answer)
        return answer

    async def race(self, cluster: str) -> None:
        """Two updates of one Machine at once."""
        if name := self._one_of(cluster):
            await asyncio.gather(self.update(cluster, name), self.update(cluster, name))

    def _one_of(self, cluster: str) -> str:
        names = self._holdings[cluster].names()
        return self._chance.choice(names) if names else ""

    def _seen(self, cluster: str, answer: Answer) -> Answer:
        if answer.status in (200, 201):
            self._holdings[cluster].seen(machine_decoder.decode(answer.body))
        return answer


def _text(size: Size) -> str:
    return f"{size.cpu}/{size.memory}"
