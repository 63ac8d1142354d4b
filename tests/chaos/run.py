"""One run: the storm, quiet, the recount, the filling; and what came of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common.quota import resources
from common.quota.resources import ResourceList
from devcluster.patience import Deadline
from tests.chaos import settle
from tests.chaos.allocation_load import AllocationLoad
from tests.chaos.faults import Storm, plan
from tests.chaos.load import Clients, Load
from tests.chaos.namespace_load import NamespaceLoad
from tests.chaos.place import Place, place
from tests.chaos.quotas import HOSTS, SMALLEST
from tests.chaos.record import record, save_metrics

SETTLES_WITHIN = 90.0  # seconds in which nothing changes of what is wrong, after everything is up again
_FILLED_WITHIN = 30.0
_BEGINS_WITHIN = 120.0
_CLIENTS = 10
_IN_NAMESPACES = 6
_ALLOCATING = 5


@dataclass(kw_only=True)
class Report:
    seed: int
    store: str
    seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)  # in namespaces
    allocations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    ended: list[str] = field(default_factory=list)
    overshoot: dict[str, dict[str, int]] = field(default_factory=dict)
    looks: int = 0
    unfilled: int = 0
    settled_after: float = 0.0
    leaks: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def table(self) -> str:
        over = ", ".join(f"{name} {resources.text(amounts)}" for name, amounts in self.overshoot.items() if amounts)
        rows = [
            ("store", self.store),
            ("random seed", str(self.seed)),
            ("minutes", f"{self.seconds / 60:.1f}"),
            *((what, f"{self.requests[what]:,}") for what in ("admitted", "refused 403", "refused 503", "no decision")),
            ("came to nothing", f"{self.requests['came to nothing']:,}"),
            *((f"in namespaces: {what}", f"{count:,}") for what, count in sorted(self.inside.items())),
            *((f"Allocations: {what}", f"{count:,}") for what, count in sorted(self.allocations.items())),
            ("faults", f"{self.faults.total():,}"),
            *((f"  {what}", f"{count:,}") for what, count in sorted(self.faults.items())),
            ("ended by itself", ", ".join(f"{name} {times}" for name, times in Counter(self.ended).items()) or "0"),
            ("overshoot", over or f"0 (looked {self.looks:,} times)"),
            ("leak", f"{len(self.leaks)}"),
            ("unfilled", str(self.unfilled)),
            ("seconds until settled", f"{self.settled_after:.1f}"),
        ]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        return "\n".join([*lines, *(f"VIOLATION: {text}" for text in self.violations)])


async def run(
    *,
    seconds: float,
    store: str,
    seed: int,
    directory: Path,
    progress: Callable[[str], None] = lambda _line: None,
) -> Report:
    report = Report(seed=seed, store=store)
    progress("starting")
    async with place(directory, store) as here:
        recording = asyncio.create_task(record(here))
        try:
            await _run(here, report, seconds, progress)
        finally:
            await _end(recording)
    return report


async def _run(here: Place, report: Report, seconds: float, progress: Callable[[str], None]) -> None:
    with (here.directory / "faults.txt").open("w") as faults_log, (here.directory / "load.txt").open("w") as load_log:
        storm = Storm(here, faults_log)
        here.overshoot.on_first = partial(_note_overshoot, storm)
        servers = [here.installed.cluster(name) for name in HOSTS]
        load = Load(random.Random(report.seed), servers, here.holdings, load_log)
        inside = NamespaceLoad(random.Random(report.seed), servers, here.in_namespaces, here.membership, load_log)
        allocating = AllocationLoad(random.Random(report.seed), here.installed, here.allocations, load_log)
        keeping = asyncio.create_task(storm.keep_running())
        clients = ((load, _CLIENTS), (inside, _IN_NAMESPACES), (allocating, _ALLOCATING))
        loading = [asyncio.create_task(some.run(count)) for some, count in clients]
        try:
            await _begun([some for some, _ in clients])
            progress(f"{seconds:.0f} s of faults under load")
            started = time.monotonic()
            await storm.run(plan(report.seed, seconds, report.store), seconds)
            report.seconds = time.monotonic() - started
            for task in loading:
                await _end(task)
            progress("quiet")
            await inside.end()
            await allocating.end()
            storm.note("quiet")
            await _judge(here, report, storm.note, progress)
        finally:
            for task in loading:
                task.cancel()
            await _end(keeping)
            for some, _ in clients:
                await some.close()
        report.inside, report.allocations = inside.counts, allocating.counts
        report.requests, report.faults, report.ended = load.counts, storm.counts, storm.ended
        report.overshoot, report.looks = here.overshoot.worst, here.overshoot.looks
        report.violations += load.wrong[:10] + inside.wrong[:10] + allocating.wrong[:10]
        for name, amounts in here.overshoot.worst.items():
            if amounts:
                report.violations.insert(0, f"overshoot: {name} by {resources.text(amounts)}")


async def _begun(clients: Sequence[Clients]) -> None:
    """Each kind of load had something admitted: else a storm on a slow machine proves nothing."""
    deadline = Deadline(_BEGINS_WITHIN)
    while missing := [type(some).__name__ for some in clients if not some.counts["admitted"]]:
        assert not deadline.passed(), f"nothing was admitted by {', '.join(missing)}"
        await asyncio.sleep(0.1)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancels it, and raises what it failed with before."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _judge(here: Place, report: Report, note: Callable[[str], None], progress: Callable[[str], None]) -> None:
    report.settled_after, report.leaks = await settle.settled(here, SETTLES_WITHIN)
    for text in report.leaks:
        note(f"not settled: {text}")
    if report.leaks:
        await save_metrics(here, "unsettled")
    report.violations += [f"after {report.settled_after:.0f} s of quiet: {text}" for text in report.leaks]
    progress("filling")
    note("filling")
    report.unfilled, wrong = await settle.fill(here)
    report.violations += wrong
    if report.unfilled:
        report.violations.append(
            f"{report.unfilled} Machines of {SMALLEST}, units in namespaces, or units of Allocations would still fit, "
            "and are refused"
        )
    _, later = await settle.settled(here, _FILLED_WITHIN)
    report.violations += [f"when it was filled: {text}" for text in later]
    note("ends")


def _note_overshoot(storm: Storm, quota: str, over: ResourceList) -> None:
    storm.note(f"OVERSHOOT of {quota} by {resources.text(over)}")
