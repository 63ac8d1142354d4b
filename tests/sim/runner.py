"""Many schedules in many processes."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tests.sim import mutants, schedule
from tests.sim.checks import Violation

A = TypeVar("A")
R = TypeVar("R")

CHUNK = 100  # schedules between two reports
SHOWN = 20  # failures that are told in full


@dataclass
class Total:
    steps: int = 0
    admitted: int = 0
    refused: int = 0
    filled: int = 0
    ahead: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Total) -> None:
        self.steps += other.steps
        self.admitted += other.admitted
        self.refused += other.refused
        self.filled += other.filled
        self.ahead += other.ahead
        self.failures.extend(other.failures)


@contextmanager
def quietly() -> Iterator[None]:
    """What the product logs about simulated trouble is no news. Crashed processes leave coroutines behind."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()
        logging.disable(logging.NOTSET)


def some(first: int, count: int, focus: tuple[str, ...] = ()) -> Total:
    total = Total()
    with quietly():
        for number in range(first, first + count):
            if number % 50 == 49:
                gc.collect()
            try:
                world = schedule.run(number, focus=focus)
            except Violation as error:
                total.failures.append((number, str(error)))
            except Exception:  # noqa: BLE001 (the product's or the simulator's: either way a failure of this schedule)
                total.failures.append((number, traceback.format_exc(limit=-4)))
            else:
                total.steps += world.swarm.steps
                total.admitted += world.truth.admitted
                total.refused += world.refused
                total.filled += world.filled
                total.ahead += world.truth.ahead
    return total


def schedules(first: int, count: int, jobs: int = 0, *, focus: tuple[str, ...] = (), progress: bool = False) -> Total:
    total = Total()
    done, started, told = 0, time.monotonic(), 0.0
    chunks = [(at, min(CHUNK, first + count - at), focus) for at in range(first, first + count, CHUNK)]
    again = "".join(f" --{name}" for name in focus)
    for part, (_, size, _) in _each(_some, chunks, jobs):
        for number, text in part.failures:
            if len(total.failures) < SHOWN:
                print(f"schedule {number}: {text}; again: python -m tests.sim --seed {number}{again}", file=sys.stderr)
        total.add(part)
        done += size
        now = time.monotonic()
        if progress and now - told > 1:
            told = now
            rate = done / (now - started)
            left = (count - done) / rate
            line = f"\r{done} of {count}, {rate:.0f} a second, {len(total.failures)} failed, {left:.0f} s left "
            print(line, end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    return total


def all_mutants(jobs: int = 0) -> int:
    """Prints which were noticed, by what and after how many schedules. 1 if one was not, or the code itself fails."""
    missed, unbroken, schedules = 0, 0, 0
    for found, (name,) in _each(_mutant, [(mutant.name,) for mutant in mutants.ALL], jobs):
        mutant = mutants.BY_NAME[name]
        schedules += found.schedules
        for number in found.unbroken:
            unbroken += 1
            again = f"--seed {number} --mutant {name!r} --unbroken"
            print(f"FAILS   unbroken, too: schedule {number} of {name}; again: python -m tests.sim {again}")
        if not found.what:
            missed += 1
            print(f"MISSED  {name}: not noticed in {found.schedules} schedules", flush=True)
        else:
            print(f"caught  {name}, schedule {found.schedules} of at most {mutant.budget}: {found.what}", flush=True)
    print(f"{len(mutants.ALL) - missed} of {len(mutants.ALL)} mutants caught, in {schedules} schedules")
    return 1 if missed or unbroken else 0


def _some(arguments: tuple[int, int, tuple[str, ...]]) -> Total:
    return some(*arguments)


def _mutant(arguments: tuple[str]) -> mutants.Found:
    with quietly():
        return mutants.hunt(mutants.BY_NAME[arguments[0]])


def _each(work: Callable[[A], R], arguments: list[A], jobs: int) -> Iterator[tuple[R, A]]:
    """In as many processes as there are cores; in this one if that is one."""
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1 or len(arguments) == 1:
        for each in arguments:
            yield work(each), each
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(_with, work), arguments)


def _with(work: Callable[[A], R], argument: A) -> tuple[R, A]:
    return work(argument), argument
