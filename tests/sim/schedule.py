"""One schedule: what comes next, step by step; then quiet, in which all must come right; then the quota is filled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from common.quota import account as accounts
from common.quota import escrow, resources, surge
from common.quota.account import Account, Reservation
from common.quota.escrow import Report
from common.quota.resources import ResourceList
from seed.ledger.store import Stored
from tests.sim import faults, namespaces, product
from tests.sim.allocation_world import AllocationWorld
from tests.sim.checks import Wish
from tests.sim.guarantees_world import GuaranteesWorld
from tests.sim.kinds_world import KindsWorld
from tests.sim.master_side import MasterReplica
from tests.sim.members_world import MembersWorld
from tests.sim.namespace_world import NamespaceWorld
from tests.sim.parts_world import PartsWorld
from tests.sim.promise_world import PromiseWorld
from tests.sim.scenes import Play, Scene
from tests.sim.seed_side import Replica, choose_lag
from tests.sim.servers import Source, name_of
from tests.sim.tenancy_world import TenancyWorld
from tests.sim.world import RESTORE_TAKES, SIZES, UNIT, Site, World

PAUSES = (0.01, 0.01, 0.05, 0.1, 0.1, 0.3, 0.3, 0.6, 1.0, 2.0)
LONG_PAUSES = (0.3, 1.0, 2.0, 3.0)
SETTLING = 40  # rounds in which what was begun ends while no time passes, unless two fight who both believe to lead
QUIET = 120.0  # seconds after which nothing of what went wrong may still show
BUSY = 2  # times in quiet that users create something all the same
MOST_FILLED = 14  # requests at once

Step = Callable[[], None]
WORLDS: Mapping[str, type[World]] = {  # by focus
    "kinds": KindsWorld,
    "tenancy": TenancyWorld,
    "namespaces": NamespaceWorld,
    "promises": PromiseWorld,
    "allocations": AllocationWorld,
    "parts": PartsWorld,
    "members": MembersWorld,
    "guarantees": GuaranteesWorld,
}
OF_NAMESPACES = ("namespaces", "promises", "tenancy", "members")


def run(number: int, *, focus: Collection[str] = (), scene: Scene | None = None, trace: bool = False) -> World:
    """One schedule. Raises Violation. `scene`: it is played once, after a few steps."""
    with product.on_simulated_time():
        make = next((made for name, made in WORLDS.items() if name in focus), World)
        namespaces.with_claims(make is KindsWorld)
        world = make(number, focus=focus, trace=trace)
        try:
            _play(world, scene)
        finally:
            world.end()
    if world.truth.found is not None:
        raise world.truth.found
    return world


def _play(world: World, scene: Scene | None) -> None:
    chaos = Chaos(world)
    steps = world.swarm.steps
    plays_at = chaos.rng.randrange(min(steps, 20)) if scene is not None else steps
    for number_of_step in range(steps):
        if number_of_step == plays_at and scene is not None:
            chaos.play(scene)
        chaos.step()
    quiet(world, tidy=scene is None)
    if world.swarm.fills:
        with _working(world):
            fill(world)


class Chaos:
    """Draws the steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.growing = "seed-1"  # where most is created, for a while: capacity has to move
        self.of_one_cluster: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None  # both at the same moment
        swarm = world.swarm
        network = world.network
        network.loss, network.late = 0.1 * swarm["loss"] / 3, 0.1 * swarm["late"] / 3
        network.repeat = 0.3 * swarm["repeat"] / 3
        network.resend = 0.1 * swarm["late"] / 3
        self.lag = choose_lag if swarm["lag"] else lambda _rng, _at, end: end
        acts: list[tuple[float, Step]] = [
            (22, self.deliver),
            (8, self.watch),
            (6, self.follow),
            (8, self.take_turn),
            (9, self.master_turn),
            (15, self.create),
            (8, self.finish),
            (5 * swarm.pace, self.time),
            (20, self.bustle),
            (1, self.calm),
            (3 * swarm["updates"], self.resize),
            (8 * swarm["rollouts"], self.roll),
            (2 * swarm["rollouts"], self.roll_on),
            (2 * swarm["repeats"], self.repeat),
            (7 * swarm["deletes"], self.delete),
            (0.8 * swarm["cut"], self.cut),
            (2.0 * swarm["broken"], self.break_off),
            (0.8 * swarm["crash"], self.crash),
            (0.5 * swarm["cold"], self.cold),
            (0.8 * swarm["sluggish"], self.sluggish),
            (0.5 * swarm["lag"], self.stall),
            (8 * swarm["rush"], self.rush),
            (1.5 * swarm["paused"], self.pause),
            (0.8 * swarm["master"], self.crash_master),
            (0.8 * swarm["silent"], self.silence),
            (0.8 * swarm["restore_seed"], self.restore_seed),
            (0.8 * swarm["restore_master"], self.restore_master),
            (0.8 * swarm["restore_ledger"], self.restore_ledger),
            (0.8 * swarm["restore_source"], self.restore_source),
            (0.6 * swarm["outage"], self.outage),
            (0.6 * swarm["stale"], self.stale),
            (1.0 * swarm["slip"], self.slip),
            (0.8 * swarm["limits"], self.limits),
            (0.8 * swarm["names"], self.names),
            (0.5 * swarm["recreate"], self.recreate),
            (0.5 * swarm["seeds"], self.seeds),
            (0.5 * swarm["lost"], self.lost),
            (0.8 * swarm["clusters"], self.clusters),
            (0.8 * swarm["projects"], self.projects),
            (0.5 * swarm["copies"], self.copies),
            (1.5 * sum(swarm[name] for name in OF_NAMESPACES) + 0.3 * swarm["kinds"], self.namespaces),
            (0.8 * swarm["kinds"], self.kinds),
            (0.8 * swarm["parts"], self.relabel),
            (0.4 * swarm["guarantees"] + 2 * swarm["moves"], self.move),
            (0.3 * swarm["guarantees"], self.limits),
        ]
        acts = [(weight, act) for weight, act in acts if weight]
        self.acts = [act for _, act in acts]
        self.back_up()
        total, self.until = 0.0, []
        for weight, _ in acts:
            total += weight
            self.until.append(total)

    def back_up(self) -> None:
        """What may be restored later; others are made on the way."""
        world, swarm = self.world, self.world.swarm
        if swarm["restore_master"]:
            world.master_snapshot = world.master.snapshot()
        for site in world.sites.values():
            if swarm["restore_seed"]:
                site.snapshot = site.api.snapshot()
            if swarm["restore_ledger"]:
                site.ledger_snapshot = dict(site.api.ledger)
            if swarm["restore_source"]:
                for source in site.sources.values():
                    source.snapshot = dict(source.machines)

    def step(self) -> None:
        if self.world.later and self.rng.random() < 0.2:
            act: Step = self.wait
        else:
            [act] = self.rng.choices(self.acts, cum_weights=self.until)
        if self.world.tracing:
            self.world.note(f"-- {act.__name__}")
        act()
        if self.world.truth.found is not None:
            raise self.world.truth.found

    def play(self, scene: Scene) -> None:
        if self.world.tracing:
            self.world.note(f"== scene {scene.__name__}")
        play = Play(self)
        play.in_order()
        scene(play)
        if self.world.truth.found is not None:
            raise self.world.truth.found

    def rounds(self) -> None:
        """All that can be done now, as far as watches bring it."""
        for _ in range(SETTLING):
            if not _round(self.world):
                return

    # Choosing ------------------------------------------------------------------------------------------------------

    def site(self) -> Site | None:
        sites = [site for site in self.world.sites.values() if not site.dead]
        return self.rng.choice(sites) if sites else None

    def replica(self) -> Replica | None:
        site = self.site()
        return self.rng.choice(site.replicas) if site is not None and site.replicas else None

    def source(self) -> tuple[Site, Source] | None:
        site = self.site()
        if site is None or not site.sources:
            return None
        return site, self.rng.choice(list(site.sources.values()))

    # Programs ------------------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        flying = self.world.network.flying
        for _ in range(min(3, len(flying))):
            if flying:
                place = self.rng.randrange(len(flying))
                if flying[place].until <= self.world.now:
                    self.world.network.deliver(place)

    def watch(self) -> None:
        replica = self.replica()
        if replica is not None and replica.api.up and replica.blind_until <= self.world.now:
            replica.watch(self.lag(self.rng, replica.at, len(replica.api.events)))

    def follow(self) -> None:
        replica = self.replica()
        if replica is None or not (watches := replica.followed()):
            return
        followed = self.rng.choice(watches)
        followed.look(self.lag(self.rng, followed.at, followed.end))

    def take_turn(self) -> None:
        replica = self.replica()
        if replica is not None and replica.leader is not None and (due := list(replica.leader.turns.due)):
            replica.leader.turns.take(self.rng.choice(due))

    def master_turn(self) -> None:
        world = self.world
        if not world.masters:
            return
        master = self.rng.choice(world.masters)
        if self.rng.random() < 0.3 and master.blind_until <= world.now:
            master.watch(self.lag(self.rng, master.at, len(world.master.events)))
        if master.term is None:
            return
        seed = self.rng.choice(list(world.apis))
        if master.blind.get(seed, 0.0) <= world.now:
            master.follow(seed, lambda at, end: self.lag(self.rng, at, end))
        name = self.rng.choice(list(world.master.quotas) or ["a"])
        if self.rng.random() < 0.3:
            master.sync(name, seed)
            for project in list(world.master.projects):
                master.sync_project(project, seed)
        if master.term.turns.due:
            name = next(iter(master.term.turns.due))
        master.decide(name)

    def time(self) -> None:
        self.world.pass_time(self.rng.choice(LONG_PAUSES if self.world.swarm.pace > 3 else PAUSES))

    def wait(self) -> None:
        self.world.pass_time(2.0)

    def bustle(self) -> None:
        """Everybody does what is to be done, once."""
        _round(self.world)

    def calm(self) -> None:
        """For a moment everything works."""
        settle(self.world)
        if isinstance(self.world, NamespaceWorld):
            self.world.pass_time(0.4)  # what moves with a namespace is counted
            settle(self.world)
        self.world.tighten()

    # Users ---------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        if self.rng.random() < 0.06:
            self.growing = self.rng.choice(list(self.world.sites))
        site = self.world.sites[self.growing]
        found = self.source()
        if not site.dead and site.sources and self.rng.random() < 0.7:
            found = site, self.rng.choice(list(site.sources.values()))
        if found is not None and found[1].up and len(self.world.wishes) < 12:
            for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
                self.world.create(*found, self.rng.choice(SIZES))

    def rush(self) -> None:
        """One client after the other gets its answer at once."""
        found = self.source()
        if found is None or not found[1].up:
            return
        for _ in range(self.rng.choice((2, 4, 8))):
            if len(self.world.wishes) < 12:
                self.world.create(*found, SIZES[0])
            for _ in range(self.rng.choice((1, 2, 4))):
                _round(self.world)
            self.finish()
            if self.world.swarm["updates"]:
                self.resize_newest(*found)
            self.world.pass_time(self.rng.choice((0.01, 0.05, 0.1)))

    def resize(self) -> None:
        found = self.source()
        if found is None or not found[1].machines or not found[1].up:
            return
        thing = self.world.things[self.rng.choice(list(found[1].machines))]
        if thing.size is not None and len(thing.wishes) < 3:
            self.world.resize(*found, thing, self.rng.choice(SIZES))

    def resize_newest(self, site: Site, source: Source) -> None:
        """Somebody changes what was created a moment ago: a controller that adds what is missing."""
        things = self.world.things
        thing = things[next(reversed(source.machines))] if source.machines else None
        if thing is not None and thing.size is not None and not thing.wishes and self.rng.random() < 0.5:
            self.world.resize(site, source, thing, SIZES[-1])

    def roll(self) -> None:
        found = self.source()
        if found is not None and found[1].up and len(self.world.wishes) < 12:
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                self.world.roll(*found, self.rng.choice(SIZES))

    def roll_on(self) -> None:
        if self.world.rolling:
            thing = self.world.things.get(self.rng.choice(list(self.world.rolling)))
            if thing is not None and self.world._source(thing).up:
                self.world.roll_on(thing)

    def repeat(self) -> None:
        """The same request is sent again, maybe to another replica, as a proxy with retries does."""
        wishes = [wish for wish in self.world.wishes if wish.need and wish.repeats < 2]
        if wishes:
            wish = self.rng.choice(wishes)
            wish.repeats += 1
            site = self.world.site_of(wish.thing.source)
            self.world.call_again(site, site.sources[wish.thing.source], wish)

    def break_off(self) -> None:
        """Of the calls about a request that is not decided."""
        wishes = [wish for wish in self.world.wishes if any(not answering.done() for _, answering in wish.answering)]
        if wishes:
            wish = self.rng.choice(wishes)
            if self.rng.random() < 0.4:
                self.world.give_up(wish)
            else:
                self.world.break_connection(wish)

    def finish(self) -> None:
        for wish in [wish for wish in self.world.wishes if wish.told]:
            if self.rng.random() < (0.04 if wish.slow else 0.6):
                self.world.finish(wish, persists=self.rng.random() >= min(0.25 * self.world.swarm["never"], 0.7))

    def delete(self) -> None:
        there = [thing for thing in self.world.things.values() if thing.size is not None]
        if there:
            thing = self.rng.choice(there)
            if self.world._source(thing).up:
                self.world.delete(thing)

    def slip(self) -> None:
        found = self.source()
        if found is not None:
            self.world.slip(found[1], self.rng.choice(SIZES))

    # Faults --------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        world, site = self.world, self.site()
        if site is None:
            return
        if self.rng.random() < 0.5 and site.sources:
            pair = (site.name, self.rng.choice(list(site.sources)))
        else:
            pair = ("master", site.name)
        world.network.cut.add(pair)
        world.later.append((world.now + self.rng.choice((0.5, 4.0, 30.0)), lambda: world.network.cut.discard(pair)))

    def crash(self) -> None:
        site = self.site()
        if site is None:
            return
        if len(site.replicas) < 2:
            if site.api.up:
                self.world.start_replica(site)
        else:
            self.world.crash_replica(site, self.rng.choice(site.replicas))
            if self.rng.random() < 0.5 and site.api.up:
                self.world.start_replica(site)

    def cold(self) -> None:
        """All at once."""
        site = self.site()
        if site is None or not site.api.up:
            return
        for replica in list(site.replicas):
            self.world.crash_replica(site, replica)
        for _ in range(2):
            self.world.start_replica(site)

    def stall(self) -> None:
        """A watch brings nothing any more, and does not end either."""
        replica, world = self.replica(), self.world
        if replica is not None:
            replica.blind_until = world.now + self.rng.choice((2.0, 8.0, 16.0))
            world.later.append((replica.blind_until, lambda: None))

    def silence(self) -> None:
        """A watch of the master's brings nothing, and does not end either; then somebody else may lead."""
        world = self.world
        while len(world.masters) < 2 and world.master.up:
            world.start_master()
        if not world.masters:
            return
        master, until = self.rng.choice(world.masters), world.now + self.rng.choice((4.0, 16.0, 60.0))
        if self.rng.random() < 0.7:
            master.blind_until = until
        else:
            master.blind[self.rng.choice(list(world.apis))] = until
        if self.rng.random() < 0.5 and (leads := [other for other in world.masters if other.term is not None]):
            doomed = self.rng.choice(leads)
            world.later.append((world.now + self.rng.choice((1.0, 4.0)), lambda: world.end_master(doomed)))

    def pause(self) -> None:
        replica, world = self.replica(), self.world
        if replica is not None:
            replica.loop.paused_until = world.now + self.rng.choice((0.5, 1.0, 2.0, 4.0, 30.0))
            world.later.append((replica.loop.paused_until, lambda: None))

    def sluggish(self) -> None:
        """Who leads does not notice that it is replaced."""
        world = self.world
        until = world.now + self.rng.choice((4.0, 8.0, 16.0))
        if self.rng.random() < 0.5:
            for master in world.masters:
                if master.term is not None:
                    master.deaf_until = until
        elif (site := self.site()) is not None:
            for replica in site.replicas:
                if replica.leader is not None:
                    replica.deaf_until = until
        world.later.append((until, lambda: None))

    def crash_master(self) -> None:
        world = self.world
        if world.masters and self.rng.random() < 0.6:
            world.crash_master(self.rng.choice(world.masters))
        if len(world.masters) < 2 and world.master.up:
            world.start_master()

    def restore_seed(self) -> None:
        site = self.site()
        if site is None or not site.api.up:
            return
        if site is self.in_cluster:
            self.restore_one_cluster(site)
            return
        if site.snapshot is None or self.rng.random() < 0.3:
            site.snapshot = site.api.snapshot()
            return
        snapshot = site.snapshot

        if all(site.api.ledger.get(uid) == stored for uid, stored in snapshot[1].items()):
            self.world.storm(site)  # there is nothing to lose yet
            return
        cold = self.rng.random() < 0.6
        if cold:
            for replica in list(site.replicas):
                self.world.crash_replica(site, replica)
        self.growing = site.name

        def restored() -> None:
            self.world.restore_seed(site, snapshot)
            for _ in range(2 if cold else 0):
                self.world.start_replica(site)
            site.api.up = True
            self.world.storm(site)

        self.away(site.api, RESTORE_TAKES, restored)

    def restore_master(self) -> None:
        world = self.world
        if not world.master.up:
            return
        if (site := self.in_cluster) is not None:
            if site.api.up:
                self.restore_one_cluster(site)
            return
        if world.master_snapshot is None or self.rng.random() < 0.3:
            world.master_snapshot = world.master.snapshot()
            return
        snapshot = world.master_snapshot
        if self.rng.random() < 0.5:
            self.cut()
        self.away(world.master, RESTORE_TAKES, lambda: world.restore_master(snapshot))

    @property
    def in_cluster(self) -> Site | None:
        """The seed that is the master's own cluster, in each fourth schedule: one etcd has what both have written."""
        site = self.world.sites.get("seed-1") if self.world.number % 4 == 0 else None
        return None if site is None or site.dead else site

    def restore_one_cluster(self, site: Site) -> None:
        world = self.world
        if self.of_one_cluster is None or self.rng.random() < 0.3:
            if world.master.quotas.keys() <= site.api.copies.keys():  # what the master has is there, too
                self.of_one_cluster = world.master.snapshot(), site.api.snapshot()
            return
        master, seed = self.of_one_cluster
        cold = self.rng.random() < 0.6
        if cold:
            for replica in list(site.replicas):
                world.crash_replica(site, replica)
            for leader in list(world.masters):
                world.crash_master(leader)
        self.growing = site.name

        def restored() -> None:
            world.restore_seed(site, seed)
            world.master.up = site.api.up = True
            for _ in range(2 if cold else 0):
                world.start_replica(site)
                world.start_master()
            world.storm(site)

        self.away(world.master, RESTORE_TAKES, lambda: world.restore_master(master))
        self.away(site.api, RESTORE_TAKES, restored)

    def restore_ledger(self) -> None:
        site = self.site()
        if site is None or not site.api.kept.up:
            return
        if site.ledger_snapshot is None or self.rng.random() < 0.3:
            site.ledger_snapshot = dict(site.api.ledger)
            return
        self.lose_ledger(site, site.ledger_snapshot if self.rng.random() < 0.7 else {})

    def lose_ledger(self, site: Site, snapshot: dict[str, Stored]) -> None:
        """The Redis comes back with that."""
        kept, world = site.api.kept, self.world
        kept.answers = False

        def back() -> None:
            site.api.begin_store_generation(snapshot)
            kept.answers = True
            self.world.storm(site)

        world.truth.excuse()
        world.later.append((world.now + RESTORE_TAKES, back))

    def restore_source(self) -> None:
        found = self.source()
        if found is None or not found[1].up:
            return
        site, source = found
        others = [other for other in site.sources.values() if other is not source and other.up]
        if others and self.rng.random() < 0.3:
            self.world.copy_source(self.rng.choice(others), source)
        elif source.snapshot is None or self.rng.random() < 0.3:
            source.snapshot = dict(source.machines)
        else:
            self.world.restore_source(source, source.snapshot)

    def away(self, server: Any, seconds: float, then: Step) -> None:
        world = self.world
        server.up = False

        def back() -> None:
            then()
            server.up = True

        world.later.append((world.now + seconds, back))

    def outage(self) -> None:
        server: Any = self.rng.choice([self.world.master, *self.world.apis.values()])
        if server.up:
            self.away(server, self.rng.choice((0.5, 2.0, 7.0)), lambda: None)

    def stale(self) -> None:
        found = self.source()
        if found is not None and found[1].up:
            self.away(found[1], self.rng.choice((0.5, 2.0, 9.0, 20.0)), lambda: None)

    # Admins --------------------------------------------------------------------------------------------------------

    def limits(self) -> None:
        world = self.world
        if not world.master.up or not world.master.quotas:
            return
        spec = self.rng.choice(list(world.master.quotas.values()))
        world.change_limits(
            spec.key.name, {name: max(limit + self.rng.randint(-3, 3), 0) for name, limit in spec.limits.items()}
        )

    def move(self) -> None:
        found = self.source()
        if isinstance(self.world, GuaranteesWorld) and found is not None and found[0].api.up:
            self.world.move(*found)

    def names(self) -> None:
        world = self.world
        if not world.master.up or not world.master.quotas:
            return
        spec = self.rng.choice(list(world.master.quotas.values()))
        limits = dict(spec.limits)
        name = self.rng.choice(("cpu", "memory"))
        if limits.pop(name, None) is None:
            limits[name] = self.rng.randint(2, 10)
        world.change_limits(spec.key.name, limits)

    def recreate(self) -> None:
        if self.world.master.up and self.world.master.quotas:
            self.world.recreate(self.rng.choice(list(self.world.master.quotas)))

    def seeds(self) -> None:
        world = self.world
        if not world.master.up:
            return
        if len(world.sites) < 4 and self.rng.random() < 0.4:
            name = f"seed-{len(world.sites) + 1}"
            site = world.add_site(name)
            for _ in range(2):
                world.start_replica(site)
            world.master.write_seed(name, "Active")
            return
        name = self.rng.choice(list(world.sites))
        state = world.master.seeds.get(name)
        if state == "Active":
            world.master.write_seed(name, self.rng.choice(("Draining", None)))
        elif state in (None, "Draining"):
            world.master.write_seed(name, "Active")

    def relabel(self) -> None:
        world = self.world
        if isinstance(world, PartsWorld) and world.master.up:
            world.relabel(self.rng.choice(list(world.sites)))

    def lost(self) -> None:
        world = self.world
        if not world.master.up:
            return
        dead = [site for site in world.sites.values() if site.dead]
        if dead and self.rng.random() < 0.6:
            site = self.rng.choice(dead)
            if world.master.seeds.get(site.name) == "Lost":
                world.come_back(site)
            else:
                world.master.write_seed(site.name, "Lost")
                world.truth.excuse()
            return
        alive = [site for site in world.sites.values() if not site.dead]
        if len(alive) > 1:
            world.destroy(self.rng.choice(alive))

    def clusters(self) -> None:
        site = self.site()
        if site is None or not site.api.up:
            return
        if len(site.sources) > 1 and self.rng.random() < 0.5:
            self.world.delete_cluster(site, self.rng.choice(list(site.sources)))
        elif len(site.sources) < 3:
            self.world.add_cluster(site, f"{site.name}/{self.world.token()}", self.rng.choice("ab"))

    def copies(self) -> None:
        """Somebody deletes a quota's copy on a seed."""
        site = self.site()
        if site is not None and site.api.up and site.api.copies:
            site.api.delete_copy(self.rng.choice(list(site.api.copies)), released=False)

    def namespaces(self) -> None:
        """Somebody makes one, labels it, deletes it, or has its cluster take part in quotas no more, or again."""
        assert isinstance(self.world, NamespaceWorld), "others have none"
        if (found := self.source()) is not None and found[1].up:
            self.world.move(*found)

    def kinds(self) -> None:
        """One cannot be listed any more, or again."""
        assert isinstance(self.world, KindsWorld), "others have one"
        if (found := self.source()) is not None:
            self.world.break_a_kind(found[1])

    def projects(self) -> None:
        """One is deleted for a while, or its copy on a seed is by somebody who should not, or it joins its
        organization."""
        world, site = self.world, self.site()
        if not world.master.projects or not world.master.up:
            return
        if world.outside and self.rng.random() < 0.4:
            world.join(self.rng.choice(sorted(world.outside)))
            return
        project = self.rng.choice(list(world.master.projects))
        if self.rng.random() < 0.4:
            world.master.write_project(project, None)
            world.later.append((world.now + self.rng.choice((2.0, 8.0, 20.0)), world.projects_return))
        elif site is not None and site.api.up:
            site.api.write_project(project, None)


# Quiet ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _working(world: World) -> Iterator[None]:
    """A network that loses nothing."""
    network = world.network
    before = network.loss, network.late, network.repeat, network.resend
    network.loss = network.late = network.repeat = network.resend = 0.0
    working, world.working = world.working, True
    try:
        yield
    finally:
        world.working = working
        network.loss, network.late, network.repeat, network.resend = before


def settle(world: World) -> None:
    """All that can be done while no time passes, as far as things are up."""
    with _working(world):
        for _ in range(SETTLING):
            if not _round(world):
                return


def _deliver_all(world: World) -> bool:
    network, rng, did = world.network, world.rng, False
    flying = network.flying
    while flying:
        place = rng.randrange(len(flying))
        if flying[place].until > world.now:
            if not (due := network.due()):
                return did
            place = rng.choice(due)
        did = True
        network.deliver(place)
    return did


def _round(world: World) -> bool:
    """True if anything was done."""
    if world.truth.found is not None:
        raise world.truth.found
    did = _deliver_all(world)
    lag = 0.0 if world.working else 0.2 * world.swarm["lag"]
    for site in world.sites.values():
        if site.dead or not site.api.up:
            continue
        for replica in site.replicas:
            blind = replica.blind_until > world.now or (lag and world.rng.random() < lag)
            if replica.at < len(site.api.events) and (world.working or not blind):
                did = True
                replica.watch(len(site.api.events))
            if replica.error is not None:
                raise replica.error
            for followed in replica.followed():
                if not world.network.reaches(site.name, followed.source) or (lag and world.rng.random() < lag):
                    continue
                if followed.wants_list or followed.at < followed.end or followed.problem is not None:
                    did = True
                    followed.look(followed.end)
            leader = replica.leader
            if leader is None:
                continue
            if leader.turns.error is not None:
                raise leader.turns.error
            for name in list(leader.turns.due):
                if name not in leader.turns.busy:
                    did = True
                    leader.turns.take(name)
    if world.master.up:
        for master in world.masters:
            did |= _master_round(world, master)
    return did


def _master_round(world: World, master: MasterReplica) -> bool:
    did = False
    if master.at < len(world.master.events) and (world.working or master.blind_until <= world.now):
        did = True
        master.watch(len(world.master.events))
    term = master.term
    if term is None:
        return did
    if term.turns.error is not None:
        raise term.turns.error
    for seed, api in world.apis.items():
        link = term.links.get(seed)
        sees = world.working or master.blind.get(seed, 0.0) <= world.now
        if sees and (
            link is None
            or not link.settled
            or link.at < len(api.events)
            or link.connected != world.network.reaches("master", api)
        ):
            master.follow(seed, lambda _at, end: end)
        for project in {**master.projects, **(link.projects if link is not None else {})}:
            did |= master.sync_project(project, seed)
        for name in {**master.quotas, **(link.copies if link is not None else {})}:
            did |= master.sync(name, seed)
    for name in list(term.turns.due):
        if name not in term.turns.busy:
            did = True
            master.decide(name)
    return did


def quiet(world: World, *, tidy: bool = True) -> None:
    """Nothing new happens, nothing is lost, everything is up, time passes: all that was begun comes to its end.

    `tidy`: nothing went wrong but what was drawn.
    """
    world.repair()
    if world.tracing:
        world.note("== quiet")
    until = world.now + QUIET
    busy = BUSY
    with _working(world):
        if tidy and not any(world.swarm[name] for name in (*faults.NAMES, "updates", "repeats")):
            _tidy(world)
        while True:
            settle(world)
            if told := [wish for wish in world.wishes if wish.told]:
                for wish in told:
                    world.finish(wish, persists=world.rng.random() < 0.7)
                settle(world)
            left = unfinished(world)
            if not left and not world.network.flying:
                break
            _end_rollouts(world)
            if busy and world.rng.random() < 0.5:  # users are never quiet for long
                busy -= 1
                world.storm(world.rng.choice(list(world.sites.values())))
            if world.now > until:
                world.fail(f"after {QUIET:g} quiet seconds: {left}")
            world.pass_time(2.5)
            if not (world.wishes or world.network.flying):  # evidence takes its time
                world.pass_time(2.5)
    world.tighten()


def _end_rollouts(world: World) -> None:
    """As their users will: mostly what was replaced goes, or what replaces it. Some are paused for good."""
    rolling = dict(world.rolling)
    world.rolling.clear()
    for newer, older in rolling.items():
        ending = world.rng.random()
        for uid in older if ending < 0.75 else [newer] if ending < 0.9 else []:
            if (thing := world.things.get(uid)) is not None:
                world.delete(thing)


def _agree(wish: Wish) -> bool:
    """All answers about it were of one replica, by the same quotas beside the same objects, and decided."""
    return len(wish.answered) == 1 and all(reads == wish.verdicts[0][1] for _, reads in wish.verdicts)


def _tidy(world: World) -> None:
    """Where nothing went wrong, a reservation does not have to wait for evidence that it is of nothing: unless several
    replicas answered about one creation, or by other quotas, or one of two calls could not be decided."""
    settle(world)
    for _ in range(5):
        world.pass_time(1.0)
        settle(world)
    for site in world.sites.values():
        for uid, stored in site.api.ledger.items():
            kept = {
                name_of(*key) for key, reservation in stored.account.reservations.items() if not reservation.replaces
            }
            left = kept & (
                world.written | {uid for uid, wish in world.denied.items() if _agree(wish) or not world.overlapping}
            )
            left.difference_update(*(source.between for source in site.sources.values()))
            if left:
                world.fail(
                    f"{site.name} still keeps reservations of {uid}, although nothing went wrong: {sorted(left)}"
                )


def _unended(world: World, uid: str, account: Account, lent: Mapping[str, Reservation]) -> str:
    """A loan that has no reason to stand any more: there is room for it; or what it was in place of has gone, unless
    that place was taken by what nobody admitted."""
    spec = next((spec for spec in world.master.quotas.values() if spec.key.uid == uid), None)
    if spec is None:
        return "a quota that is not there any more"
    free = resources.subtract(accounts.held(account), accounts.use(account))
    standing = world.lent(uid)
    everywhere = resources.total(world.there(site, spec.subject, without=standing) for site in world.sites.values())
    left = resources.subtract(spec.limits, everywhere)
    for newer, loan in lent.items():
        thing, older = world.things.get(newer), world.things.get(name_of(loan.source, loan.replaces))
        if thing is None or thing.size is None:
            return f"a loan of nothing, {newer}"
        more = resources.subtract(thing.size, surge.regular(loan.amount))
        if not resources.short(more, resources.only(free, surge.regular(account.granted))):
            return f"{newer} stands on surge, and there is room for it"
        if (older is None or older.size is None) and not resources.short(thing.size, left):
            return f"{newer} stands on surge in place of what has gone, and there is room for it elsewhere"
    return ""


def _counted(account: Account) -> ResourceList:
    return resources.total(account.used.values())


def _uncounted(replica: Replica, name: str, account: Account) -> list[str]:
    """Sources that the account lacks, though all that is there is known."""
    quota = replica.view.quota_cache.quota(name)
    if replica.leader is None or quota is None:
        return []
    sources = replica.leader.accounts.account_sources.of(quota)
    return [source.key for source in sources if source.counted and source.key not in account.used]


def _said(report: Report) -> Report:
    return msgspec.structs.replace(report, sequence=0)


def unfinished(world: World) -> str:
    """What has not come right yet; empty when all has."""
    if world.wishes:
        return "requests are under way"
    for site in world.sites.values():
        if site.dead:
            continue
        if any(replica.asked for replica in site.replicas):
            return "requests are under way"
        if all(replica.leader is None for replica in site.replicas):
            return f"{site.name} has no leader"
        for name, (copy, _) in site.api.copies.items():
            stored = site.api.ledger.get(copy.key.uid)
            if stored is None:
                return f"{site.name} has no account of {name}"
            account = stored.account
            if account.fenced:
                return f"{site.name}: the account of {name} is fenced"
            for replica in site.replicas:
                trusted = replica.lease.trusted
                if trusted is None or trusted > account.epoch:
                    return f"{replica.name} has seen no leader"
            if new := [key for replica in site.replicas for key in _uncounted(replica, name, account)]:
                return f"{site.name} has not counted {new} in {name} yet"
            lent = {name_of(*key): loan for key, loan in account.reservations.items() if loan.replaces}
            if left := {name_of(*key) for key, kept in account.reservations.items() if not kept.replaces}:
                return f"{site.name}: reservations of nothing in {name}: {sorted(left)}"
            if account.held_back:
                return f"{site.name} holds back {account.held_back} in {name}"
            if stands := _unended(world, copy.key.uid, account, lent):
                return f"{site.name}: {stands} in {name}"
            counted = {resource: amount for resource, amount in _counted(account).items() if amount}
            there = world.to_count(site, copy, account, lent)
            if counted != there:
                return f"{site.name} counts {counted} in {name}, there is {there}"
            said = escrow.report(account)
            if copy.report is None or (copy.report.used, copy.report.reserved) != (said.used, said.reserved):
                return f"the master was not told what {site.name} uses of {name}"
            for master in world.masters:
                heard = master.term.account(copy, site.name) if master.term is not None else None
                if heard is not None and heard.report is not None and _said(heard.report) != _said(said):
                    return f"{master.name} does not heed what {site.name} says of {name}"
    for name, spec in world.master.quotas.items():
        if spec.key.uid not in world.master.ledgers:
            return f"the master has no ledger of {name}"
        ledger = world.master.ledgers[spec.key.uid][0]
        if ledger.learning:
            return f"the master is learning {name}"
        if not world.truth.covered(spec.key.uid, _counted):
            return f"the master has not covered what there is of {name}"
        if stands := world.truth.uncovered(spec.key.uid, _counted):
            return f"{stands} of {name} stand on surge, and there is room for that within the limit"
        for seed, state in world.master.seeds.items():
            if state == "Lost" or world.sites[seed].dead:
                continue
            if name not in world.apis[seed].copies:
                return f"{seed} has no copy of {name}"
            if world.apis[seed].projects != world.master.projects:
                return f"{seed} has not the Projects that the master has"
            if (holding := ledger.seeds.get(seed)) is None or not holding.learned:
                return f"the master does not know what {seed} holds of {name}"
    return ""


# The end -------------------------------------------------------------------------------------------------------------


def fill(world: World) -> None:
    """What is left can be used to the last unit, from whichever seed."""
    places = [
        (site, source)
        for site in world.sites.values()
        if not site.dead and world.master.seeds.get(site.name) == "Active"
        for source in site.sources.values()
    ]
    if not places:
        return
    if world.tracing:
        world.note("== fill")
    site, source = world.rng.choice(places)
    fits = world.room_of(source)
    if fits is None:
        return
    wanted = min(fits, MOST_FILLED)
    if wanted:
        _fill(world, site, source, wanted)
    if fits == wanted:  # one more from everywhere: the checks will say
        for other, elsewhere in {place[0].name: place for place in places}.values():
            world.create(other, elsewhere, UNIT)
        _wait(world, 2)


def _fill(world: World, site: Site, source: Source, wanted: int) -> None:
    missing = wanted
    for _ in range(6):
        for units in _pieces(world, missing):
            world.create(site, source, {name: units * amount for name, amount in UNIT.items()})
        _wait(world, 3)
        missing = wanted
        for wish in list(world.wishes):
            if wish.told:
                world.finish(wish, persists=True)
                world.filled += next(iter(wish.size.values()))
        missing = world.room_of(source) or 0
        if wanted <= MOST_FILLED and missing:
            world.pass_time(0.6)  # a refusal is for the moment
            continue
        return
    world.fail(f"{site.name} cannot use {missing} of the {wanted} units that were left")


def _pieces(world: World, units: int) -> Iterator[int]:
    """Some take much at once, which no seed alone may hold."""
    while units:
        size = world.rng.choice((1, 1, units))
        units -= size
        yield size


def _wait(world: World, times: int) -> None:
    for _ in range(times):
        settle(world)
        if not any(wish for wish in world.wishes if not wish.told):
            return
        for pause in (0.1, 0.3, 0.3):
            world.pass_time(pause)
            settle(world)
