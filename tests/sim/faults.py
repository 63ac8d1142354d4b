"""What may go wrong. Each schedule draws a few of these, and how often: all at once would never get anywhere."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

NAMES = (
    "loss",  # messages lost
    "late",  # ... given up, and then they arrive
    "repeat",  # ... arriving again
    "lag",  # watches fall behind
    "cut",  # partitions
    "crash",  # of processes
    "cold",  # ... of all of a seed's at once
    "sluggish",  # leaders that do not look at their lease
    "restore_seed",
    "restore_master",
    "restore_ledger",  # of a Redis alone: gone, or back to an older state
    "restore_source",  # of a user cluster: what was deleted is there again, unasked
    "outage",  # an API server is away
    "stale",  # a source is away
    "slip",  # usage that nobody admitted
    "limits",
    "names",
    "recreate",  # quotas deleted and made again
    "seeds",  # seeds added, removed
    "lost",  # seeds declared lost
    "clusters",  # user clusters made and deleted
    "copies",  # of quotas, deleted by somebody
    "projects",  # Projects, or their copies, deleted and made again; those that join their organization
    "master",  # crashes of the master
    "unsure",  # writes of leases whose outcome nobody is told
    "silent",  # watches of the master's that bring nothing
    "broken",  # connections through which webhooks are called; clients that give up
    "paused",  # replicas of a seed that do nothing for a while, and go on
)
ALWAYS = ("updates", "repeats", "deletes", "never", "slow", "rollouts", "rush")  # not faults, but drawn in the same way


class Swarm(msgspec.Struct):
    """One schedule's world: its size, and how often what happens. A rate of 0 is never."""

    steps: int
    seeds: int
    clusters: int
    replicas: int  # of each seed
    two_quotas: bool
    settled: bool  # whether it begins with open accounts
    pace: float  # how fast time passes
    fills: bool  # whether it is filled in the end
    rates: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.rates.get(name, 0.0)


def draw(rng: random.Random, focus: Collection[str] = ()) -> Swarm:
    """`focus`: these happen in any case; "nothing" goes wrong, time is "fast", there are "two_quotas", "two_seeds"."""
    steps = rng.choice((12, 20, 20, 30, 40, 40, 60, 60, 120)) if rng.random() > 0.002 else 1000
    count = rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 6))
    chosen = rng.sample(NAMES, count)
    rates = {name: rng.choice((0.3, 1.0, 1.0, 3.0)) for name in chosen}
    for name in ALWAYS:
        if rng.random() < (0.85 if name == "deletes" else 0.5):
            rates[name] = rng.choice((0.3, 1.0, 2.0))
    if "nothing" in focus:
        rates = {"deletes": 2.0}
    rates.update(dict.fromkeys(focus, 4.0))
    return Swarm(
        steps=steps,
        seeds=max(rng.choice((1, 1, 2, 2, 2, 3)), 2 if "two_seeds" in focus else 1),
        replicas=rng.choice((1, 2, 2, 2)),
        fills=rng.random() < (0.6 if focus else 0.35),
        clusters=rng.choice((1, 1, 1, 2)),
        two_quotas=rng.random() < 0.3 or "two_quotas" in focus,
        settled=rng.random() < 0.9,
        pace=4.0 if "fast" in focus else rng.choice((0.4, 1.0, 1.0, 3.0)),
        rates=rates,
    )
