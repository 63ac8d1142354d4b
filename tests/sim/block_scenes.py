"""Scenes for rules about blocks: see tests/sim/scenes.py."""

from __future__ import annotations

from tests.sim.scenes import Play
from tests.sim.seed_side import Replica
from tests.sim.servers import Source
from tests.sim.world import UNIT, Site

CHECKED = 6.0  # seconds in which a leader has looked at all accounts
TAKEN = 36.0  # ... and in which it has taken a block whose owner is gone


def hurry(play: Play, site: Site, replica: Replica, source: Source, times: int, *, write: bool = True) -> None:
    """A client gets its answers at once, of one replica, and asks again."""
    for _ in range(times):
        ask(play, site, replica, source)
        play.chaos.rounds()
        if write:
            play.write(site)
        play.world.pass_time(0.05)


def ask(play: Play, site: Site, replica: Replica, source: Source) -> None:
    others = [other for other in site.replicas if other is not replica]
    site.replicas[:] = [replica]
    play.world.create(site, source, UNIT)
    site.replicas[:] = [replica, *others]


def follower(site: Site) -> Replica | None:
    return next((replica for replica in site.replicas if replica.leader is None), None)


def fill_beside(play: Play, site: Site, source: Source) -> None:
    """All that is free is used; what was admitted before is not written yet."""
    before = list(play.world.wishes)
    for _ in range(3):
        for _ in range(12):
            play.world.create(site, source, UNIT)
        play.go(0.4)
        for wish in [wish for wish in play.world.wishes if wish.told and wish not in before]:
            play.world.finish(wish, persists=True)


def a_replica_that_comes_back(play: Play) -> None:
    """It was stopped while it had a block, which others use by now, and hears nothing when it goes on."""
    for site in play.sites(1):
        source, stopped = play.rng.choice(list(site.sources.values())), follower(site)
        if stopped is None:
            continue
        hurry(play, site, stopped, source, 6)
        stopped.loop.paused_until = play.world.now + 90.0
        stopped.blind_until = play.world.now + 120.0
        play.go(TAKEN)
        fill_beside(play, site, source)
        stopped.loop.paused_until = play.world.now
        hurry(play, site, stopped, source, 4)
        stopped.blind_until = play.world.now


def a_replica_that_dies(play: Play) -> None:
    """... after it has admitted from its block, and before that is written."""
    for site in play.sites(1):
        source, dies = play.rng.choice(list(site.sources.values())), follower(site)
        if dies is None:
            continue
        hurry(play, site, dies, source, 6, write=False)
        play.world.crash_replica(site, dies)
        play.go(CHECKED)
        fill_beside(play, site, source)
        play.write(site)
        play.go(0.5)


def a_source_that_is_not_heard(play: Play) -> None:
    """What a replica that dies has admitted from its block is there, and the leader does not see it."""
    for site in play.sites(1):
        source, dies = play.rng.choice(list(site.sources.values())), follower(site)
        if dies is None:
            continue
        pair = (site.name, source.key)
        hurry(play, site, dies, source, 3)
        play.world.network.cut.add(pair)
        hurry(play, site, dies, source, 4)
        play.world.crash_replica(site, dies)
        play.go(TAKEN)
        fill_beside(play, site, source)
        play.world.network.cut.discard(pair)
        play.go(0.5)


def a_write_that_is_sent_again(play: Play) -> None:
    """... by its client, which hears of the conflict with the first. More was admitted from the block meanwhile."""
    network = play.world.network
    for site in play.sites(1):
        source, replica = play.rng.choice(list(site.sources.values())), play.rng.choice(site.replicas)
        hurry(play, site, replica, source, 5)
        resend, network.resend = network.resend, 1.0
        for _ in range(4):
            ask(play, site, replica, source)
            play.arrive(30, 0.3)
            play.world.pass_time(0.06)
        play.go(0.4)
        network.resend = resend
        fill_beside(play, site, source)
        play.write(site)
        play.go(0.5)
