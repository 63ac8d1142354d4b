"""What is killed while Machines are created, and how long it is until they are admitted as they were."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from unittest.mock import patch

import aiohttp
import msgspec

from common.quota import resources
from common.quota.quantity import UNIT
from devcluster.install import NAMESPACE, Program
from devcluster.load import Attempt, Outcome, Size
from devcluster.observe import percentile
from devcluster.redis import RedisServer
from devcluster.servers import Server
from seed.ledger.store_generation import REDIS
from tests.bench.installed import Site, site
from tests.bench.recall import LIMITS, Seesaw
from tests.bench.stores import a_redis

RUNS = 3
CLIENTS = 4
WINDOW = 5.0  # seconds, the agents' in-flight window
PLENTY = {"cpu": "1000000", "memory": "1000000Gi", "storage": "1000000Gi"}
_SMALL = Size("1", "1Gi", "1Gi")
_PAUSE = 0.03  # seconds between a client's Machines
_ENOUGH = 20  # admissions in a row that tell how fast they are
_ENOUGH_RECALLS = 5
_GIVE_UP_SECONDS = 120.0
_POLL_SECONDS = 0.02
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/seedquota-seed"
_ADMITTED = re.compile(r'^seedquota_admission_requests_total\{[^}]*decision="allowed"[^}]*\} (\S+)$', re.MULTILINE)

Attempts = list[Attempt]
Counted = Callable[[int], Awaitable[None]]  # until so many admitted Machines are in the global usage


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`at_once`: it is started again right after the kill. Otherwise another stands in, and it comes back later."""

    what: str
    target: Callable[[], Awaitable[Server]]
    at_once: bool = True
    lose: Callable[[], None] = lambda: None


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds since the kill. `statuses` are those of the requests that were not admitted."""

    admitted: float
    as_fast: float
    refused_until: float
    statuses: Sequence[int]
    counted: float = 0.0


async def recovery(_seconds: float) -> None:
    print(f"SIGKILL while {CLIENTS} clients create Machines; seconds since the kill, median of {RUNS}")
    print(f"agents' lease 5 s, in-flight window {WINDOW:g} s, both a part of some of these times")
    print(f"as fast: the first of {_ENOUGH} in a row of which half took no longer than nine of ten did before")
    print("counted: the first Machine admitted since is in the master's globalUsage")
    print("killed                              admitted  as fast  refused until  requests refused  counted", flush=True)
    await _api_server_store()
    await _redis_store()
    await _master()


async def _api_server_store() -> None:
    async with site(PLENTY, seeds=1, replicas=2, in_flight_window=WINDOW) as here:
        await _bring_all(here)
        api_server = here.installed.cluster("seed-1")
        await _measure(here, Case(what="leading agent, of two", target=lambda: _leader(here), at_once=False))
        await _measure(here, Case(what="agent that was asked, of two", target=lambda: _asked(here), at_once=False))
        await _measure(here, Case(what="seed's API server", target=lambda: _always(api_server)))


async def _redis_store() -> None:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(a_redis())
        environment = {"SEEDQUOTA_LEDGER_STORE": REDIS, "SEEDQUOTA_REDIS_URL": redis.url}
        stack.enter_context(patch.dict(os.environ, environment))
        here = await stack.enter_async_context(site(PLENTY, seeds=1, replicas=2, in_flight_window=WINDOW))
        await _bring_all(here)
        await _measure(here, Case(what="Redis, back with its data", target=lambda: _always(redis)))
        lossy = Case(what="Redis, back without its data", target=lambda: _always(redis), lose=lambda: _lose(redis))
        await _measure(here, lossy)


async def _master() -> None:
    """Admissions go on without it; what ends is the moving of capacity."""
    async with site(LIMITS) as here:
        seesaw = Seesaw(here)
        for turn in (seesaw.local, seesaw.recalled, seesaw.recalled):
            await turn()
        program = here.installed.programs["seedquota-master"]
        case = Case(what="master: until a recall", target=lambda: _always(program))
        async with _asking(seesaw.recalled, clients=1) as attempts:
            await _strikes(case, attempts, _ENOUGH_RECALLS)


async def _measure(here: Site, case: Case) -> None:
    tenant, watch = here.tenants[0], here.watch
    # What requests without an answer have reserved goes on evidence, and counts until then.
    quiet = await watch.until(lambda view: not any(resources.parse(view.reserved).values()), _GIVE_UP_SECONDS)
    start = quiet.used["cpu"]

    async def counted(machines: int) -> None:
        await watch.until(lambda view: view.used["cpu"] >= start + machines * UNIT, _GIVE_UP_SECONDS)

    async with _asking(lambda: tenant.create(_SMALL, again=False), CLIENTS) as attempts:
        await _strikes(case, attempts, _ENOUGH, counted)


@asynccontextmanager
async def _asking(ask: Callable[[], Awaitable[Attempt]], clients: int) -> AsyncIterator[Attempts]:
    """Clients ask all the time while the block runs; what became of it is in the list."""
    attempts: Attempts = []
    stopping = asyncio.Event()

    async def client() -> None:
        while not stopping.is_set():
            attempts.append(await ask())
            await asyncio.sleep(_PAUSE)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
        try:
            yield attempts
        finally:
            stopping.set()


async def _strikes(case: Case, attempts: Attempts, enough: int, counted: Counted | None = None) -> None:
    try:
        outages = [await _strike(case, attempts, enough, counted) for _ in range(RUNS)]
    except TimeoutError:
        print(f"{case.what:<34} not again within {_GIVE_UP_SECONDS:g} s", flush=True)
        return
    statuses = sorted({status for outage in outages for status in outage.statuses})
    refused = f"{median(len(outage.statuses) for outage in outages):g} ({', '.join(map(str, statuses)) or 'none'})"
    shown = f"{median(outage.counted for outage in outages):.2f}" if counted is not None else "-"
    print(
        f"{case.what:<34} {median(outage.admitted for outage in outages):>9.2f}"
        f" {median(outage.as_fast for outage in outages):>8.2f}"
        f" {median(outage.refused_until for outage in outages):>14.2f} {refused:>17} {shown:>8}",
        flush=True,
    )


async def _strike(case: Case, attempts: Attempts, enough: int, counted: Counted | None) -> Outage:
    """Raises TimeoutError."""
    async with asyncio.timeout(_GIVE_UP_SECONDS):
        begun = len(attempts)
        target = await case.target()
        while len(attempts) < begun + enough or len(_admitted(attempts[-enough:])) < enough:
            await asyncio.sleep(_POLL_SECONDS)
        usual = percentile([attempt.seconds for attempt in attempts[-enough:]], 90)
        killed = time.monotonic()
        await target.kill()
        case.lose()
        if case.at_once:
            await target.start()
        while (first := _first_admitted(attempts, killed)) is None:
            await asyncio.sleep(_POLL_SECONDS)
        seen = 0.0
        if counted is not None:
            await counted(sum(attempt.answered <= first.answered for attempt in _admitted(attempts)))
            seen = time.monotonic() - killed
        while (outage := judge(attempts, killed, usual, enough)) is None:
            await asyncio.sleep(_POLL_SECONDS)
    if not case.at_once:
        await target.start()
    return msgspec.structs.replace(outage, counted=seen)


def judge(attempts: Sequence[Attempt], killed: float, usual: float, enough: int) -> Outage | None:
    """None until it is over. `usual` is what a good admission took before, in seconds."""
    first = _first_admitted(attempts, killed)
    refused = [attempt for attempt in attempts if attempt.answered > killed and attempt.outcome is not Outcome.ADMITTED]
    until = max((attempt.answered for attempt in refused), default=killed)
    after = sorted(
        (attempt for attempt in _admitted(attempts) if attempt.sent >= killed and attempt.answered > until),
        key=lambda attempt: attempt.answered,
    )
    for begin in range(len(after) - enough + 1):
        if percentile([attempt.seconds for attempt in after[begin : begin + enough]], 50) <= usual:
            assert first is not None
            return Outage(
                admitted=first.answered - killed,
                as_fast=after[begin].answered - killed,
                refused_until=until - killed,
                statuses=[attempt.status for attempt in refused],
            )
    return None


def _admitted(attempts: Sequence[Attempt]) -> Attempts:
    return [attempt for attempt in attempts if attempt.outcome is Outcome.ADMITTED]


def _first_admitted(attempts: Sequence[Attempt], killed: float) -> Attempt | None:
    later = (attempt for attempt in _admitted(attempts) if attempt.sent >= killed)
    return min(later, key=lambda attempt: attempt.answered, default=None)


async def _bring_all(here: Site) -> None:
    """One Machine as large as the quota, gone again: its seed holds everything, and admits without asking."""
    tenant, watch = here.tenants[0], here.watch
    attempt = await tenant.create(Size(**PLENTY))
    assert attempt.outcome is Outcome.ADMITTED, attempt.message
    await watch.until(lambda view: view.used == view.limit, _GIVE_UP_SECONDS)
    await tenant.delete([attempt.name])
    await watch.until(lambda view: not any(view.used.values()), _GIVE_UP_SECONDS)


async def _always(server: Server) -> Server:
    return server


async def _leader(here: Site) -> Server:
    async with here.installed.cluster("seed-1").session() as session, session.get(_LEASE) as answer:
        lease = await answer.json()
    return here.installed.programs[lease["spec"]["holderIdentity"]]


async def _asked(here: Site) -> Server:
    """The replica that admitted most in the last two seconds. What it shows of itself is up to a second old."""
    agents = [program for name, program in here.installed.programs.items() if name.startswith("seedquota-seed-1")]
    before = [await _answered(agent) for agent in agents]
    await asyncio.sleep(2)
    lately = [await _answered(agent) - count for agent, count in zip(agents, before, strict=True)]
    return agents[lately.index(max(lately))]


async def _answered(agent: Program) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{agent.health}/metrics") as answer:
        return sum(float(count) for count in _ADMITTED.findall(await answer.text()))


def _lose(redis: RedisServer) -> None:
    shutil.rmtree(redis.data / "appendonlydir")
