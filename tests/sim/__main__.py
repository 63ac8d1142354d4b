"""Simulate many worlds (`--schedules N`), one of them again (`--seed N`), or broken ones (`--mutants`)."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim import mutants, runner, schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many to run (default 10000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument(
        "--namespaces", action="store_true", help="worlds with quotas of namespaces, in place of Machines"
    )
    parser.add_argument(
        "--tenancy", action="store_true", help="... with quotas of projects and their organization, of namespaces"
    )
    parser.add_argument(
        "--promises", action="store_true", help="... with quotas of what core ResourceQuotas promise in namespaces"
    )
    parser.add_argument(
        "--kinds", action="store_true", help="... with two kinds of objects, of which one is not listed"
    )
    parser.add_argument("--allocations", action="store_true", help="... with Allocations beside Machines")
    parser.add_argument(
        "--members", action="store_true", help="... of quotas of projects with namespaces, Machines and Allocations"
    )
    parser.add_argument("--parts", action="store_true", help="... with quotas of some seeds, whose labels change")
    parser.add_argument("--guarantees", action="store_true", help="... of an organization's projects with guarantees")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    parser.add_argument("--seed", type=int, default=None, help="run this one alone, and let its error through")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell every step")
    parser.add_argument("--mutants", action="store_true", help="break one rule after the other: each must be noticed")
    parser.add_argument("--mutant", default=None, help="with --seed: break this rule")
    parser.add_argument("--unbroken", action="store_true", help="with --mutant: the same schedule, and no rule broken")
    options = parser.parse_args()
    focus = tuple(name for name in schedule.WORLDS if getattr(options, name))
    if options.seed is not None:
        world = mutants.run(options.mutant, options.seed, focus=focus, unbroken=options.unbroken, trace=options.trace)
        print(f"schedule {options.seed}: admitted {world.truth.admitted}, refused {world.refused}")
        return 0
    if options.mutants:
        return runner.all_mutants(options.jobs)
    started = time.monotonic()
    total = runner.schedules(options.first, options.schedules, options.jobs, focus=focus, progress=sys.stderr.isatty())
    seconds = time.monotonic() - started
    print(
        f"{options.schedules} schedules: {total.steps} steps, {total.admitted} admitted, {total.ahead} from blocks, "
        f"{total.refused} refused, {total.filled} units filled, {len(total.failures)} failed; {seconds:.0f} s, "
        f"{options.schedules / seconds:.0f} a second"
    )
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
