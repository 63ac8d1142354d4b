"""Scenes with core ResourceQuotas, of which each namespace counts with the largest: see tests/sim/scenes.py."""

from __future__ import annotations

from collections.abc import Callable

from common.quota.resources import ResourceList
from seed.accounts.usage_writer import CHECK_INTERVAL
from tests.sim.namespace_side import NamespaceReplica
from tests.sim.namespaces import NamespacedCluster
from tests.sim.network import Flight
from tests.sim.promise_world import PromiseWorld
from tests.sim.scenes import Play
from tests.sim.seed_side import WINDOW
from tests.sim.world import Site

MESSAGES = 40  # that arrive before anybody goes on
HELD = 60.0  # seconds, or until it is let go


class _Stage:
    """A cluster with two empty namespaces in all quotas. `most`: what fits into them together."""

    def __init__(self, play: Play, site: Site) -> None:
        world = play.world
        assert isinstance(world, PromiseWorld), "others have no promises"
        self.play, self.world, self.site = play, world, site
        self.cluster = next(source for source in site.sources.values() if isinstance(source, NamespacedCluster))
        if not self.cluster.participates:
            world.take_part(site, self.cluster, takes_part=True)
        for wish in list(world.wishes):
            world.finish(wish, persists=False)
        for thing in [thing for thing in world.things.values() if thing.size is not None]:
            world.delete(thing)
        self.here, self.there = (f"n{world.token()}" for _ in range(2))
        for name in (self.here, self.there):
            self.cluster.label(name, ("a", "b"))
        play.go(2.0)
        if any(stored.account.fenced for stored in site.api.ledger.values()):
            play.go(WINDOW + 4.0)
        limits = [limit for spec in world.master.quotas.values() for limit in spec.limits.values()]
        self.most = min(limits, default=0)

    def ask(self, namespace: str, units: int) -> None:
        if units:  # what needs nothing is not reserved
            self.world.create_in(self.site, self.cluster, namespace, _size(units))

    def make(self, namespace: str, units: int) -> None:
        self.ask(namespace, units)
        self.play.go(0.5)
        self.play.write(self.site)

    def empty(self) -> None:
        """Deletes what is in the first namespace."""
        for uid in [uid for uid in self.cluster.machines if self.cluster.inside[uid] == self.here]:
            self.world.delete(self.world.things[uid])

    def arrive(self, held: Callable[[Flight], bool]) -> None:
        """What is under way, but for what is held."""
        for _ in range(MESSAGES):
            for flight in self.world.network.flying:
                if held(flight) and not flight.done:
                    flight.until = self.world.now + HELD
            self.play.chaos.deliver()

    def count(self, held: Callable[[Flight], bool]) -> None:
        """Who leads hears of all, and counts it."""
        for _ in range(4):
            for replica in self.site.replicas:
                for watch in replica.watches if isinstance(replica, NamespaceReplica) else ():
                    watch.look(watch.end)
            self.world.pass_time(0.1)
            self.arrive(held)

    def let_go(self) -> None:
        for flight in self.world.network.flying:
            flight.until = self.world.now


def _size(units: int) -> ResourceList:
    return {"cpu": units, "memory": units}


def the_other_goes(play: Play) -> None:
    """One is admitted on top of another, which is deleted and counted before the one is written. What that frees is
    asked for elsewhere."""
    for site in play.sites(1):
        stage = _Stage(play, site)
        stage.make(stage.here, stage.most - 1)
        play.go(1.0)
        stage.ask(stage.here, stage.most)
        play.go(0.3)
        stage.empty()
        play.go(0.5)
        for _ in range(2):
            stage.make(stage.there, stage.most - 1)
        play.go(1.0)


def the_other_goes_before_the_write(play: Play) -> None:
    """It was read, and is gone and counted before anything is reserved on top of it."""
    for site in play.sites(1):
        stage = _Stage(play, site)
        stage.make(stage.here, stage.most - 1)
        play.go(1.0)
        leads = [replica for replica in site.replicas if replica.leader is not None]

        def is_held(flight: Flight) -> bool:
            return flight.what.startswith("save ") and flight.sender not in leads  # noqa: B023 (called at once)

        stage.ask(stage.here, stage.most)
        stage.arrive(is_held)
        stage.empty()
        stage.count(is_held)
        stage.let_go()
        play.go(0.2)
        stage.ask(stage.there, stage.most - 1)
        play.go(0.3)
        play.write(site)
        play.go(1.0)


def the_other_goes_before_it_is_read_again(play: Play) -> None:
    """What is reserved on top of it was counted with it, and is undone then: in one of many, so it is played twice."""
    for site in [site for _ in range(2) for site in play.sites(1)]:
        stage = _Stage(play, site)
        stage.make(stage.here, stage.most - 1)
        play.go(1.0)
        reads = 0

        def is_held(flight: Flight) -> bool:
            return flight.what.startswith(f"list of {stage.here}") and reads > 0  # noqa: B023 (called at once)

        stage.ask(stage.here, stage.most)
        for _ in range(MESSAGES):
            if not any(flight.what.startswith("save ") for flight in play.world.network.flying):
                play.chaos.deliver()
        reads = 1
        stage.arrive(is_held)
        stage.empty()
        stage.count(is_held)
        stage.let_go()
        play.go(2.0)


def the_other_was_never_seen(play: Play) -> None:
    """It comes and goes while who leads hears nothing. What was reserved for it goes on evidence, while another that
    was admitted on top of it is under way."""
    for site in play.sites(1):
        stage = _Stage(play, site)
        for replica in site.replicas:
            for watch in replica.watches if isinstance(replica, NamespaceReplica) else ():
                watch.blind_until = play.world.now + 40.0
        rate = next((replica.loop._rate for replica in site.replicas if replica.leader is not None), 1.0)
        stage.make(stage.here, stage.most - 1)
        play.go((3 * CHECK_INTERVAL - 0.2) / rate - 0.5)  # it is looked for in the fourth look
        stage.ask(stage.here, stage.most)
        play.go(0.2)
        stage.empty()
        until = play.world.now + CHECK_INTERVAL / rate + 0.5
        while play.world.now < until:  # also right after the look, before anything is counted
            play.world.pass_time(0.2)
            play.chaos.rounds()
            stage.ask(stage.there, stage.most - 1)
            play.chaos.rounds()
        play.write(site)
        play.go(1.0)


def the_status_follows_late(play: Play) -> None:
    """What the spec has no more is asked for elsewhere, while API servers still admit by the status."""
    for site in play.sites(1):
        stage = _Stage(play, site)
        stage.world.lags, stage.world.lag = 1.0, (HELD,)
        stage.make(stage.here, stage.most)
        play.go(1.0)
        for uid in [uid for uid in stage.cluster.machines if stage.cluster.inside[uid] == stage.here]:
            stage.world.resize(site, stage.cluster, stage.world.things[uid], _size(1))
        play.go(0.5)
        play.write(site)
        play.go(1.0)
        stage.make(stage.there, stage.most - 1)
        play.go(1.0)
