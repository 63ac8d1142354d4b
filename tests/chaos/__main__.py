"""`python -m tests.chaos --minutes 15 --store redis`: real processes under load, and everything breaks at random.

Ends with a table; the exit status is 1 if a limit was passed, something leaked, or a quota could not be filled.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.run import run

_STARTED = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="how long the storm lasts (default 15)")
    parser.add_argument(
        "--store", choices=["apiserver", "redis"], default="apiserver", help="where seeds keep accounts"
    )
    parser.add_argument("--seed", type=int, help="of the random plan of faults and load (default: a new one)")
    parser.add_argument("--directory", type=Path, help="for data and logs; kept (default: kept if something is wrong)")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    directory = given.directory or Path(tempfile.mkdtemp(prefix="seedquota-chaos-"))
    _progress(f"store {given.store}, random seed {seed}, logs in {directory}")
    report = asyncio.run(
        run(
            seconds=given.minutes * 60,
            store=given.store,
            seed=seed,
            directory=directory,
            progress=_progress,
        )
    )
    print(report.table())
    if report.violations:
        print(f"what went wrong and when: {directory}/faults.txt; what clients were told: load.txt; each program's log")
        again = f"--minutes {given.minutes:g} --store {given.store} --seed {seed}"
        print(f"again: python -m tests.chaos {again}")
        return 1
    if given.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def _progress(line: str) -> None:
    print(f"chaos {time.monotonic() - _STARTED:6.1f} s: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
