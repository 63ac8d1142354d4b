"""`python -m tests.sim --schedules N`: that many schedules. `--seed N`: that one again."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.world import Violation, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many to run (default 10000)")
    parser.add_argument("--seed", type=int, default=None, help="run this one alone, and let its error through")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    options = parser.parse_args()
    if options.seed is not None:
        world = run(options.seed)
        print(f"schedule {options.seed}: admitted {sum(seed.admitted for seed in world.seeds.values())}")
        return 0
    started = time.monotonic()
    failed = admitted = refused = 0
    for number in range(options.first, options.first + options.schedules):
        try:
            world = run(number)
        except (Violation, AssertionError) as error:
            failed += 1
            print(f"schedule {number}: {error}; again: python -m tests.sim --seed {number}", file=sys.stderr)
            continue
        admitted += sum(seed.admitted for seed in world.seeds.values())
        refused += sum(seed.refused for seed in world.seeds.values())
    seconds = time.monotonic() - started
    print(f"{options.schedules} schedules, {admitted} admitted, {refused} refused, {failed} failed, {seconds:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
