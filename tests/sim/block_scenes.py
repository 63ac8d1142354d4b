"""Scenes for rules about blocks: see tests/sim/scenes.py."""

from __future__ import annotations

from tests.sim.scenes import REQUEST, Play
from tests.sim.seed_side import Replica
from tests.sim.servers import Source
from tests.sim.world import UNIT, Site

CHECKED = 6.0  # seconds in which a leader has looked at all accounts
TAKEN = 24.0  # ... and in which it has taken a block whose owner is gone


def hurry(play: Play, site: Site, source: Source, times: int, *, write: bool = True) -> None:
    """A client gets its answers at once, and asks again."""
    for _ in range(times):
        play.world.create(site, source, UNIT)
        play.chaos.rounds()
        if write:
            play.write(site)
        play.world.pass_time(0.05)


def with_blocks(site: Site) -> list[Replica]:
    handles = [(replica, handle) for replica in site.replicas for handle in replica.registry._handles.values()]
    return list({replica: None for replica, handle in handles if handle.writer.block.exists})


def fill_beside(play: Play, site: Site, source: Source) -> None:
    """All that is free is used; what was admitted before is not written yet."""
    before = list(play.world.wishes)
    for _ in range(3):
        for _ in range(6):
            play.world.create(site, source, UNIT)
        play.go(0.4)
        for wish in [wish for wish in play.world.wishes if wish.told and wish not in before]:
            play.world.finish(wish, persists=True)


def a_replica_that_comes_back(play: Play) -> None:
    """It was stopped while it had a block, which others use by now, and hears nothing when it goes on."""
    for site in play.sites(1):
        source = play.rng.choice(list(site.sources.values()))
        hurry(play, site, source, 6)
        stopped = with_blocks(site)[:1]
        for replica in stopped:
            replica.loop.paused_until = play.world.now + 60.0
            replica.blind_until = play.world.now + 90.0
        play.go(TAKEN)
        fill_beside(play, site, source)
        for replica in stopped:
            replica.loop.paused_until = play.world.now
        for _ in range(8):
            play.world.create(site, source, UNIT)
        play.world.pass_time(0.05)
        play.go(REQUEST)
        for replica in stopped:
            replica.blind_until = play.world.now


def a_replica_that_dies(play: Play) -> None:
    """... after it has admitted from its block, and before that is written."""
    for site in play.sites(1):
        source = play.rng.choice(list(site.sources.values()))
        hurry(play, site, source, 6, write=False)
        for replica in with_blocks(site):
            if len(site.replicas) > 1:
                play.world.crash_replica(site, replica)
        play.go(CHECKED)
        fill_beside(play, site, source)
        play.write(site)
        play.go(0.5)


def a_source_that_is_not_heard(play: Play) -> None:
    """What a replica that dies has admitted from its block is there, and the leader does not see it."""
    for site in play.sites(1):
        source = play.rng.choice(list(site.sources.values()))
        pair = (site.name, source.key)
        hurry(play, site, source, 3)
        play.world.network.cut.add(pair)
        hurry(play, site, source, 4)
        for replica in with_blocks(site):
            if len(site.replicas) > 1:
                play.world.crash_replica(site, replica)
        play.go(TAKEN)
        fill_beside(play, site, source)
        play.world.network.cut.discard(pair)
        play.go(0.5)


def a_limit_that_is_lowered(play: Play) -> None:
    """... to what is used, while replicas have blocks."""
    world = play.world
    for site in play.sites(1):
        source = play.rng.choice(list(site.sources.values()))
        hurry(play, site, source, 6)
        for spec in list(world.master.quotas.values()):
            total = world.truth.totals[spec.key.uid]
            world.change_limits(spec.key.name, {name: total.get(name, 0) for name in spec.limits})
        play.go(0.2)
        world.tighten()
        hurry(play, site, source, 6)
