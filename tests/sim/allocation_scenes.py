"""Scenes with Allocations: see tests/sim/scenes.py."""

from __future__ import annotations

from tests.sim.allocation_side import AllocationReplica
from tests.sim.allocations import KEY
from tests.sim.scenes import Play
from tests.sim.seed_side import WINDOW
from tests.sim.world import UNIT


def allocations_that_the_leader_does_not_see(play: Play) -> None:
    """They are there when evidence is looked for."""
    for site in play.sites(3):
        if KEY not in site.sources:
            continue
        if any(stored.account.fenced for stored in site.api.ledger.values()):
            play.go(WINDOW + 4.0)
        for replica in site.replicas:
            for watch in replica.watches if isinstance(replica, AllocationReplica) else ():
                watch.blind_until = play.world.now + 60.0
        for _ in range(3):
            play.world.create(site, site.sources[KEY], UNIT)
            play.go(0.5)
            play.write(site)
        play.go(WINDOW + 12.0)
