"""API writes for each Machine on real control planes, with more and more seeds."""

from __future__ import annotations

from devcluster.writes import SEEDS, count_writes, line


async def writes(_seconds: float) -> None:
    print("API writes that a Machine costs, all clusters together, by number of seeds")
    print("alone nothing can be shared; in a storm what comes together is written together")
    for seeds in SEEDS:
        print(line(await count_writes(seeds)), flush=True)
