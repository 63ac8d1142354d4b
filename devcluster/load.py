"""Many clients that create Machines at once, over real HTTP and TLS, and what became of every attempt."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from common.quota import resources
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from devcluster.controlplane import ApiServer

_PATH = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines"
_REPEATS = 10  # client-go repeats so often what it is told to repeat
_ABSENCES = 60  # and whoever reconciles comes again while nobody is there to decide, at least so often
_PAUSE = 1.0  # seconds before the next try when nobody says how long
_REFUSAL = re.compile(
    r"exceeded quota: (?P<quota>[^,]+), requested: (?P<requested>\S+), "
    r"used: (?P<used>\S+), limited: (?P<limited>[^;]+);"
)
_JSON = {"Content-Type": "application/json"}


class Size(msgspec.Struct, frozen=True):
    """A Machine's size as quantities."""

    cpu: str
    memory: str
    storage: str

    @property
    def amounts(self) -> dict[str, int]:
        spec = {"cpu": self.cpu, "memory": self.memory, "storage": self.storage}
        return {**resources.parse(spec), "machines": UNIT}


class Outcome(Enum):
    ADMITTED = "admitted"
    REFUSED = "refused"  # 403: over the quota
    UNAVAILABLE = "unavailable"  # not decided even after all tries
    FAILED = "failed"  # anything else: a fault of the test or of what is tested


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One Machine that a client wanted. Times are monotonic seconds; `sent` is that of the last try.

    `lost` is how many tries got no answer from the webhook, so that nobody can say what they left behind.
    """

    cluster: str
    name: str
    size: Size
    asked: float
    sent: float
    answered: float
    outcome: Outcome
    tries: int
    lost: int
    status: int
    message: str = ""

    @property
    def seconds(self) -> float:
        """How long the deciding try took."""
        return self.answered - self.sent


class Refusal(msgspec.Struct, frozen=True):
    """The numbers of a refusal's message."""

    quota: str
    requested: ResourceList
    used: ResourceList
    limited: ResourceList

    @property
    def adds_up(self) -> bool:
        """used + requested > limited for every resource named, and each names the same ones."""
        names = self.limited.keys()
        return (
            bool(names)
            and self.requested.keys() == names == self.used.keys()
            and all(self.used[name] + self.requested[name] > self.limited[name] for name in names)
        )


class _Spec(msgspec.Struct):
    providerSpec: dict[str, dict[str, object]]  # noqa: N815 (its name in the API)


class _Metadata(msgspec.Struct):
    name: str


class _Machine(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


class _ListMetadata(msgspec.Struct):
    next: str = msgspec.field(name="continue", default="")


class _MachineList(msgspec.Struct):
    metadata: _ListMetadata
    items: list[_Machine]


class _Details(msgspec.Struct):
    retry: float = msgspec.field(name="retryAfterSeconds", default=0)


class _Status(msgspec.Struct):
    message: str = ""
    details: _Details | None = None


_machines = msgspec.json.Decoder(_MachineList)
_status = msgspec.json.Decoder(_Status)
_numbers = itertools.count(1)


class Tenant:
    """A tenant of one user cluster, who creates and deletes Machines there: `async with Tenant(server) as tenant`."""

    def __init__(self, server: ApiServer) -> None:
        self.name = server.name
        self._session = server.session()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def create(self, size: Size, *, again: bool = True) -> Attempt:
        """Ask for one Machine; `again` where that is worth it: told to come back, or nobody there to decide."""
        name = f"machine-{next(_numbers)}"
        body = msgspec.json.encode(machine(name, size))
        asked = time.monotonic()
        lost = 0
        for tries in itertools.count(1):
            sent = time.monotonic()
            status, message, pause = await self._post(body)
            outcome = _outcome(status, message, tries)
            lost += outcome is Outcome.UNAVAILABLE and "denied the request" not in message
            if not again or outcome is not Outcome.UNAVAILABLE or tries - lost > _REPEATS or lost == _ABSENCES:
                break
            await asyncio.sleep(pause)
        return Attempt(
            cluster=self.name,
            name=name,
            size=size,
            asked=asked,
            sent=sent,
            answered=time.monotonic(),
            outcome=outcome,
            tries=tries,
            lost=lost,
            status=status,
            message=message,
        )

    async def delete(self, names: Iterable[str]) -> None:
        """Delete Machines, eight at a time. Raises aiohttp.ClientResponseError."""
        at_once = asyncio.Semaphore(8)

        async def one(name: str) -> None:
            async with at_once, self._session.delete(f"{_PATH}/{name}", raise_for_status=True):
                pass

        await asyncio.gather(*(one(name) for name in names))

    async def machines(self) -> dict[str, dict[str, int]]:
        """The size of every Machine there is, by name, from a consistent list: nobody's count is trusted."""
        found: dict[str, dict[str, int]] = {}
        token = ""
        while True:
            async with self._session.get(_PATH, params={"limit": "500", "continue": token}) as answer:
                answer.raise_for_status()
                page = _machines.decode(await answer.read())
            for item in page.items:
                size = item.spec.providerSpec["value"]["cloudProviderSpec"]
                found[item.metadata.name] = msgspec.convert(size, Size).amounts
            token = page.metadata.next
            if not token:
                return found

    async def _post(self, body: bytes) -> tuple[int, str, float]:
        """HTTP status (0: no answer), message, and seconds until the next try."""
        try:
            async with self._session.post(_PATH, data=body, headers=_JSON) as answer:
                text = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, repr(error), _PAUSE
        if answer.status == 201:
            return 201, "", 0.0
        said = _status.decode(text)
        return answer.status, said.message, (said.details.retry if said.details else 0) or _PAUSE


def machine(name: str, size: Size) -> dict[str, object]:
    """A Machine of the provider `fake`: nothing is ever started for it."""
    value = {"cloudProvider": "fake", "cloudProviderSpec": msgspec.to_builtins(size), "operatingSystem": "ubuntu"}
    return {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": name},
        "spec": {"providerSpec": {"value": value}},
    }


def _outcome(status: int, message: str, tries: int) -> Outcome:
    match status:
        case 201:
            return Outcome.ADMITTED
        case 409 if tries > 1:
            return Outcome.ADMITTED  # the try whose answer was lost had succeeded
        case 403 if "exceeded quota" in message:
            return Outcome.REFUSED
        case 0 | 429 | 503 | 504:
            return Outcome.UNAVAILABLE
        case 500 if "failed calling webhook" in message:
            return Outcome.UNAVAILABLE  # nobody answers there: whoever reconciles comes again
    return Outcome.FAILED


async def storm(
    tenants: Sequence[Tenant],
    sizes: Iterable[Size],
    clients: int,
    on_attempt: Callable[[Attempt], None] = lambda _attempt: None,
) -> list[Attempt]:
    """Create one Machine of each size, in turn over the tenants, with so many clients at once."""
    waiting = zip(itertools.cycle(tenants), sizes, strict=False)
    attempts: list[Attempt] = []

    async def client() -> None:
        for tenant, size in waiting:
            attempt = await tenant.create(size)
            attempts.append(attempt)
            on_attempt(attempt)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return attempts


async def fill(tenants: Sequence[Tenant], size: Size, limit: int) -> list[Attempt]:
    """Machines of one size, one after the other from each tenant in turn, until all are refused; at most `limit`."""
    attempts: list[Attempt] = []
    refused: set[str] = set()
    for tenant in itertools.islice(itertools.cycle(tenants), limit):
        attempt = await tenant.create(size)
        attempts.append(attempt)
        if attempt.outcome is Outcome.ADMITTED:
            refused.clear()
        else:
            refused.add(tenant.name)
        if len(refused) == len(tenants):
            break
    return attempts


async def survey(tenants: Sequence[Tenant]) -> dict[str, dict[str, dict[str, int]]]:
    """The Machines of each user cluster with their sizes."""
    found = await asyncio.gather(*(tenant.machines() for tenant in tenants))
    return {tenant.name: machines for tenant, machines in zip(tenants, found, strict=True)}


def parse_refusal(message: str) -> Refusal | None:
    """None if the message does not have the numbers that it must have."""
    found = _REFUSAL.search(message)
    if found is None:
        return None
    return Refusal(found["quota"], *(_amounts(found[part]) for part in ("requested", "used", "limited")))


def _amounts(text: str) -> dict[str, int]:
    return resources.parse(dict(pair.split("=", 1) for pair in text.split(",")))


def unjustified(attempts: Sequence[Attempt], limits: ResourceList, before: ResourceList) -> list[tuple[Attempt, str]]:
    """Refusals that were wrong, and why.

    Right is a refusal whose numbers add up and are about the Machine asked for, and where the Machine would not have
    fitted beside `before` and everything that may have been admitted by the moment of the answer. A try without an
    answer counts as admitted: its capacity is kept until it is sure that no Machine comes of it.
    """
    possible = [(attempt.asked, _most(attempt)) for attempt in attempts]
    wrong = []
    for attempt in attempts:
        if attempt.outcome is not Outcome.REFUSED:
            continue
        refusal = parse_refusal(attempt.message)
        asked = attempt.size.amounts
        if refusal is None or not refusal.adds_up:
            wrong.append((attempt, "its numbers do not add up"))
            continue
        if any(asked.get(name) != amount for name, amount in refusal.requested.items()):
            wrong.append((attempt, "it is about another size"))
            continue
        others = resources.total(amounts for begun, amounts in possible if begun < attempt.answered)
        room = resources.only(resources.subtract(resources.subtract(limits, before), others), limits)
        if not resources.short(asked, room):
            wrong.append((attempt, f"{resources.text(room)} was free"))
    return wrong


def _most(attempt: Attempt) -> dict[str, int]:
    """What an attempt may have taken, at most."""
    times = (attempt.outcome is Outcome.ADMITTED) + attempt.lost
    return {name: amount * times for name, amount in attempt.size.amounts.items()}
