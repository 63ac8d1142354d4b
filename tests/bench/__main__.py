"""`make bench`: figures, in ratios to a peer in the same run where there is one. Nothing here can fail on a time."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from tests.bench import plot
from tests.bench.admissions import admissions
from tests.bench.allocations import allocations
from tests.bench.contention import contention
from tests.bench.defaults import defaults
from tests.bench.hostile import hostile
from tests.bench.latency import latency
from tests.bench.page import page
from tests.bench.plot import Ratios
from tests.bench.pods import pods
from tests.bench.recall import recall
from tests.bench.recovery import recovery
from tests.bench.sizes import sizes
from tests.bench.spread import spread
from tests.bench.stores import stores
from tests.bench.writes import writes

MEASUREMENTS: dict[str, Callable[[float], Awaitable[Ratios | None]]] = {
    measurement.__name__: measurement
    for measurement in (
        admissions,
        allocations,
        stores,
        spread,
        recall,
        contention,
        latency,
        writes,
        sizes,
        recovery,
        defaults,
        hostile,
        pods,
        page,
    )
}


async def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[[], *MEASUREMENTS], help="what to measure [default: all of it]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load for each line of a table [default 4]")
    where = "where ratios are drawn, one file for each measurement that has a peer [default dist/bench]"
    parser.add_argument("--plots", type=Path, default=Path("dist/bench"), metavar="DIR", help=where)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    for name in options.only or MEASUREMENTS:
        ratios = await MEASUREMENTS[name](options.seconds)
        if ratios is not None and ratios.lines:
            print(f"drawn in {plot.write(options.plots, name, ratios)}")
        print(flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
