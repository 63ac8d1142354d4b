"""Scenes: what must go wrong, in which order, for one rule to matter. Chance alone would play them too rarely.

A scene is played once within a schedule (`schedule.run`), whose world, faults and checks are those of all others; when
it begins, how long things take in it and who does what is drawn. It arranges, and looks at nothing: the checks do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from common.quota import surge
from tests.sim.checks import Thing
from tests.sim.servers import Source, name_of, uid_of
from tests.sim.world import RESTORE_TAKES, SIZES, UNIT, Site, World

if TYPE_CHECKING:
    from tests.sim.master_side import MasterReplica
    from tests.sim.schedule import Chaos

REQUEST = 1.6  # seconds after which no webhook call waits any more
TAKEOVER = 7.0  # ... and after which a dead leader has a successor


class Play:
    """What scenes are made of. All is in order when one begins."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self.world: World = chaos.world
        self.rng = chaos.rng

    def go(self, seconds: float) -> None:
        """Everybody does what is to be done, while time passes."""
        until = self.world.now + seconds
        while True:
            self.chaos.rounds()
            if self.world.now >= until - 1e-9:
                return
            self.world.pass_time(min(self.rng.choice((0.1, 0.3, 0.5)), until - self.world.now))

    def about(self, least: float, most: float) -> float:
        return self.rng.uniform(least, most)

    def in_order(self) -> None:
        """All that was broken before works, and everything is up to date."""
        self.world.repair()
        for site in self.alive():
            while len(site.replicas) < 2:
                self.world.start_replica(site)
        self.go(TAKEOVER)

    def alive(self) -> list[Site]:
        return [site for site in self.world.sites.values() if not site.dead and site.api.up]

    def sites(self, most: int) -> list[Site]:
        """So many of those where something can be made, in any order."""
        sites = [site for site in self.alive() if site.sources and site.replicas]
        self.rng.shuffle(sites)
        return sites[:most]

    def grow(self, site: Site, times: int) -> None:
        """Users create what they can get."""
        for _ in range(times):
            self.world.storm(site)
            self.go(REQUEST)
            self.write(site)
            self.go(0.5)

    def roll(self, site: Site, times: int) -> None:
        """Rollouts make what they can get, and delete nothing."""
        for _ in range(times):
            for source in site.sources.values():
                self.world.roll(site, source, self.rng.choice(SIZES))
            self.go(REQUEST)
            self.write(site)
            self.go(0.5)

    def fill(self, site: Site) -> None:
        """What is left of all quotas is used, there."""
        for source in list(site.sources.values()):
            for _ in range(self.world.room_of(source) or 0):
                self.world.create(site, source, UNIT)
            self.go(0.5)
            self.write(site)
        self.go(1.0)

    def grow_others(self, site: Site, times: int) -> None:
        for other in self.sites(4):
            if other is not site:
                self.grow(other, times)

    def storms(self, site: Site, times: int, pause: float) -> None:
        for _ in range(times):
            self.world.storm(site)
            self.go(pause)

    def there(self, site: Site) -> list[Thing]:
        return [self.world.things[uid] for source in site.sources.values() for uid in source.machines]

    def write(self, site: Site) -> None:
        """What was admitted is written."""
        for wish in [wish for wish in self.world.wishes if wish.told and wish.thing.source in site.sources]:
            self.world.finish(wish, persists=True)

    def grant_unheard(self, site: Site) -> None:
        """Somebody asks, and has given up when the master grants: the account has not taken it up."""
        self.blind(site, REQUEST + 0.5)
        for _ in range(2):
            self.world.storm(site)
        self.go(REQUEST + 0.5)

    def admit_unseen(self, site: Site) -> None:
        """By who dies then. Neither who leads has heard of it nor the master, whose link is cut."""
        self.blind(site, 20.0, leads=True)
        self.world.network.cut.add(("master", site.name))
        self.world.create(site, self.rng.choice(list(site.sources.values())), UNIT)
        self.go(0.3)
        for replica in [replica for replica in site.replicas if replica.leader is None]:
            self.world.crash_replica(site, replica)

    def update_twice(self, site: Site, thing: Thing, pause: float) -> None:
        """The first comes to nothing; the second asks for the same after the pause, and takes its time."""
        source = site.sources[thing.source]
        if (machine := source.machines.get(thing.uid)) is None:
            return
        size = {name: amount + 1 for name, amount in machine.resources.items()}
        self.world.resize(site, source, thing, size)
        self.go(REQUEST)
        for wish in [wish for wish in thing.wishes if wish.told]:
            self.world.finish(wish, persists=False)
        self.go(pause)
        if thing.size is not None:
            self.world.resize(site, source, thing, size)
        self.go(11.5)

    def arrive(self, messages: int, writes_take: float) -> None:
        """So many, while writes of accounts take so long."""
        for _ in range(messages):
            for flight in self.world.network.flying:
                if writes_take and flight.what.startswith("save ") and not flight.done:
                    flight.until = self.world.now + writes_take
            self.chaos.deliver()

    def blind(self, site: Site, seconds: float, *, leads: bool | None = None) -> None:
        """Watches bring nothing to any replica; or to who leads, or to the others."""
        for replica in site.replicas:
            if leads is None or leads == (replica.leader is not None):
                replica.blind_until = self.world.now + seconds
        self.world.later.append((self.world.now + seconds, lambda: None))

    def see(self, site: Site) -> None:
        """Nobody is blind any more."""
        for replica in site.replicas:
            replica.blind_until = self.world.now

    def hear_of_one_more(self, site: Site, source: Source) -> None:
        """Of the changes of a source, who leads."""
        for replica in site.replicas:
            if replica.leader is not None and (followed := replica.leader.sources.get(source.key)) is not None:
                followed.look(min(followed.at + 1, len(source.log)))

    def crash_replicas(self, site: Site) -> None:
        for replica in list(site.replicas):
            self.world.crash_replica(site, replica)

    def restore_master_unaware(self, site: Site, snapshot: tuple[Any, ...]) -> None:
        """What the site is granted since the backup, and uses, he does not hear of."""
        self.grow(site, 3)
        self.world.network.cut.add(("master", site.name))
        self.restore_master(snapshot)
        self.go(RESTORE_TAKES + TAKEOVER)

    def restore_seed(self, site: Site, snapshot: tuple[Any, ...]) -> None:
        self.chaos.away(site.api, RESTORE_TAKES, lambda: self.world.restore_seed(site, snapshot))

    def restore_master(self, snapshot: tuple[Any, ...]) -> None:
        self.chaos.away(self.world.master, RESTORE_TAKES, lambda: self.world.restore_master(snapshot))


Scene = Callable[[Play], None]


def another_life_of_the_master(play: Play) -> None:
    """A replica still has a grant of the master's ledger that a restore has undone, and the account did not take it up
    while that ledger was believed."""
    snapshot = play.world.master.snapshot()
    for site in play.sites(1):
        play.grant_unheard(site)
        play.go(0.3)
        play.blind(site, 30.0, leads=False)
        play.restore_master(snapshot)
        play.go(RESTORE_TAKES + play.about(2.0, 8.0))
        for _ in range(4):
            play.world.storm(site)
            play.go(play.about(0.3, REQUEST))


def an_update_tried_again(play: Play) -> None:
    """The first one came to nothing; the second is under way when the time of the first is over."""
    for site in play.sites(1):
        there = play.there(site)
        for thing in [thing for thing in there if not thing.wishes][:3]:
            play.update_twice(site, thing, play.about(5.0, 11.0))


def an_update_repeated_when_its_evidence_falls_due(play: Play) -> None:
    """The first one came to nothing, and what was reserved for it goes just before the second asks for the very same,
    which is under way when somebody looks again."""
    for site in play.sites(1):
        there = play.there(site)
        for thing in [thing for thing in there if not thing.wishes][:3]:
            play.update_twice(site, thing, play.about(12.0, 22.0))


def two_clusters_from_one_snapshot(play: Play) -> None:
    """What has the same uid in both is changed in both."""
    world = play.world
    for site in play.sites(1):
        sources = [source for source in site.sources.values() if source.machines]
        if not sources:
            return
        source = play.rng.choice(sources)
        key = f"{site.name}/{world.token()}"
        world.add_cluster(site, key, source.project)
        world.copy_source(source, other := site.sources[key])
        play.go(1.0)
        for uid in list(source.machines)[:2]:
            for where, name in ((source, uid), (other, name_of(key, uid_of(uid)))):
                thing = world.things.get(name)
                if thing is not None and thing.size is not None and not thing.wishes:
                    world.resize(site, where, thing, {name: amount + 1 for name, amount in thing.size.items()})
            play.go(0.3)
            play.write(site)
        play.go(1.0)


def a_user_cluster_restored(play: Play) -> None:
    """What was deleted is there again, and is changed before who leads has heard of that. A count is due meanwhile."""
    world = play.world
    for site in play.sites(1):
        there = [thing for thing in play.there(site) if not thing.wishes]
        if not there:
            return
        thing = play.rng.choice(there)
        source = site.sources[thing.source]
        size = source.machines[thing.uid].resources
        snapshot = dict(source.machines)
        world.delete(thing)
        play.go(1.0)
        world.create(site, source, UNIT)
        play.go(0.3)
        play.write(site)
        play.chaos.rounds()
        world.restore_source(source, snapshot)
        world.network.cut.add((site.name, source.name))
        world.resize(site, source, world.things[thing.uid], {name: amount + 1 for name, amount in size.items()})
        play.go(1.0)
        world.network.cut.discard((site.name, source.name))
        play.go(play.about(0.1, 1.0))
        play.write(site)
        play.go(1.0)


def what_another_webhook_refuses(play: Play) -> None:
    """What is admitted in one source is not written, again and again."""
    world = play.world
    for site in play.sites(1):
        for thing in play.there(site):
            world.delete(thing)
        play.go(1.0)
        source = play.rng.choice(list(site.sources.values()))
        for _ in range(6):
            world.create(site, source, UNIT)
            play.go(0.3)
            for wish in [wish for wish in world.wishes if wish.told and wish.thing.source == source.key]:
                world.finish(wish, persists=False)
        play.go(play.about(9.0, 12.0))
        play.storms(site, 2, 0.3)
        play.write(site)


def a_cluster_that_fills_its_share(play: Play) -> None:
    """It creates more than an account holds, which costs nothing and does not appear. Another has asked for nothing
    before, and creates what there is room for."""
    world = play.world
    for site in play.sites(1):
        greedy = play.rng.choice(list(site.sources.values()))
        for thing in play.there(site):
            world.delete(thing)
        key = f"{site.name}/{world.token()}"
        world.add_cluster(site, key, greedy.project)
        play.go(1.0)
        writes_take = play.rng.choice((0.0, 0.5))  # where that is long, it fills the line before the ledger
        for _ in range(2):
            for _ in range(80 * len(site.replicas)):
                world.create(site, greedy, dict.fromkeys(UNIT, 0))
            play.arrive(200 * len(site.replicas), writes_take)
            world.create(site, site.sources[key], UNIT)
            play.arrive(200, writes_take)
            play.go(play.about(0.6, 0.8))
        play.go(REQUEST)
        for wish in [wish for wish in world.wishes if wish.told and wish.thing.source == greedy.key]:
            world.finish(wish, persists=False)
        play.write(site)


def a_cluster_that_the_leader_does_not_know(play: Play) -> None:
    """It is new. Machines of it are admitted by the other replica, and the leader hears of that from the ledger."""
    world = play.world
    for site in play.sites(1):
        key = f"{site.name}/{world.token()}"
        known = list(site.sources.values())
        play.blind(site, 20.0, leads=True)
        world.add_cluster(site, key, "a")
        play.go(0.5)
        for _ in range(3):
            world.create(site, site.sources[key], play.rng.choice(SIZES))
        play.go(0.5)
        for _ in range(4):
            world.create(site, play.rng.choice(known), play.rng.choice(SIZES))
            play.go(0.3)
        play.go(8.0)


def a_seed_away_while_the_master_is_restored(play: Play) -> None:
    """It uses what the master's ledger does not know any more to have granted."""
    world = play.world
    snapshot = world.master.snapshot()
    for site in play.sites(1):
        play.restore_master_unaware(site, snapshot)
        play.grow_others(site, 3)


def a_report_of_the_life_before(play: Play) -> None:
    """An account gives back, and loses its ledger before the master has heard of that; then he hears of it."""
    world = play.world
    for site in play.sites(1):
        snapshot = dict(site.api.ledger)
        arrives = world.now + play.about(28.0, 32.0)
        link = (site.name, site.name)
        world.network.held[link] = arrives
        for other in play.sites(4):
            if other is not site:
                world.storm(other)
        play.go(REQUEST)
        play.chaos.lose_ledger(site, snapshot)
        play.go(RESTORE_TAKES + 0.1)
        world.network.held.pop(link, None)
        play.go(arrives - world.now - 1.0)
        play.grow(site, 1)
        play.go(2.0)


def an_answer_of_the_life_before(play: Play) -> None:
    """An account asks with a nonce; the master's answer is under way while he is restored to before what it grants."""
    world = play.world
    snapshot = world.master.snapshot()
    for site in play.sites(1):
        play.grant_unheard(site)
        play.crash_replicas(site)
        for _ in range(2):
            world.start_replica(site)
        link, arrives = ("master", site.name), world.now + play.about(22.0, 24.0)
        world.network.held[link] = arrives
        play.go(TAKEOVER)
        play.restore_master(snapshot)
        world.network.held[link] = arrives + 10.0
        play.go(RESTORE_TAKES + 2.0)
        play.grow_others(site, 2)
        play.go(max(arrives - world.now, 0.0) + 0.3)
        play.grow(site, 3)


def a_restore_that_nobody_remembers(play: Play) -> None:
    """Who knew of the last admission is gone: the replica that wrote it, and the master, who had not seen it. Who leads
    lives on, and had not heard of it either."""
    world = play.world
    for site in play.sites(1):
        snapshot = site.api.snapshot()
        play.admit_unseen(site)
        for master in list(world.masters):
            world.crash_master(master)
            world.start_master()
        play.restore_seed(site, snapshot)
        play.go(RESTORE_TAKES + 1.5)
        world.network.cut.discard(("master", site.name))
        play.see(site)
        play.storms(site, 4, 0.3)
        play.write(site)


def a_restore_to_what_the_master_saw_last(play: Play) -> None:
    """The backup lacks only what the master has not seen, and who wrote that is gone. Who leads lives on, and had not
    heard of it."""
    world = play.world
    for site in play.sites(1):
        snapshot = site.api.snapshot()
        play.admit_unseen(site)
        play.restore_seed(site, snapshot)
        play.go(RESTORE_TAKES)
        world.network.cut.discard(("master", site.name))
        play.see(site)
        play.go(1.5)
        play.storms(site, 4, 0.3)
        play.write(site)


def a_restore_of_the_life_before(play: Play) -> None:
    """The account lost its ledger once, and has given back since; a restore of all brings its former life back. Who
    leads does not look at his lease, so he does not know."""
    world = play.world
    for site in play.sites(1):
        snapshot = site.api.snapshot()
        play.chaos.lose_ledger(site, dict(site.api.ledger))
        play.go(RESTORE_TAKES + 20.0)
        play.grow_others(site, 3)
        for replica in site.replicas:
            replica.deaf_until = world.now + 20.0
        play.restore_seed(site, snapshot)
        play.go(RESTORE_TAKES + 0.5)
        play.storms(site, 4, 0.3)


def a_limit_lowered(play: Play) -> None:
    """Everybody has heard. Then something is deleted, and others are created before the master hears of that."""
    world = play.world
    for site in play.sites(4):
        play.grow(site, 2)
    for name, spec in list(world.master.quotas.items()):
        world.change_limits(name, {resource: amount // 2 for resource, amount in spec.limits.items()})
    play.go(3.0)
    world.tighten()
    for site in play.sites(4):
        if play.rng.random() < 0.5:
            world.network.cut.add(("master", site.name))
        there = play.there(site)
        for thing in play.rng.sample(there, min(len(there), 2)):
            world.delete(thing)
        play.chaos.rounds()
        world.tighten()
        world.storm(site)
        world.pass_time(0.03)
        play.go(0.5)
        world.storm(site)
        play.go(0.5)


def updates_before_the_count(play: Play) -> None:
    """The quota is full. One object is created and updated twice before the leader hears more than the first of it."""
    world = play.world
    for site in play.sites(1):
        play.grow(site, 5)
        there = play.there(site)
        play.rng.shuffle(there)
        for thing in there[:2]:
            if not thing.wishes:
                world.delete(thing)
        play.go(1.0)
        source = play.rng.choice(list(site.sources.values()))
        link = (site.name, source.name)
        world.network.cut.add(link)
        wish = world.create(site, source, UNIT)
        play.go(0.3)
        play.write(site)
        for size in (2, 3):
            if wish.thing.size is not None:
                world.resize(site, source, wish.thing, {"cpu": size, "memory": 1})
                play.go(0.3)
                play.write(site)
        world.storm(site)
        play.go(0.3)
        world.network.cut.discard(link)
        play.hear_of_one_more(site, source)
        world.network.cut.add(link)
        play.go(1.0)


def an_older_ledger_under_the_leader(play: Play) -> None:
    """A restore undoes what the leader has written. He does not look at his lease, and finds out by what he knows."""
    world = play.world
    for site in play.sites(1):
        snapshot = site.api.snapshot()
        for replica in site.replicas:
            replica.deaf_until = world.now + 20.0
        world.storm(site)
        play.go(0.5)
        play.restore_seed(site, snapshot)
        play.go(RESTORE_TAKES + 0.1)
        play.storms(site, 5, 0.3)


def an_older_grant(play: Play) -> None:
    """A message of the master arrives when a later one was taken up, and the next is late, too."""
    world = play.world
    for site in play.sites(1):
        link = ("master", site.name)
        arrives = world.now + 8.0
        world.network.held[link] = arrives
        world.storm(site)
        play.go(REQUEST)
        world.network.held.pop(link)
        play.grow(site, 2)
        world.network.held[link] = arrives + 4.0
        play.go(max(arrives - world.now, 0.0) + 0.1)
        world.storm(site)
        play.go(1.0)


def a_lost_ledger(play: Play) -> None:
    """All of it, or what is new; while something that it admitted is under way."""
    world = play.world
    for site in play.sites(1):
        snapshot = dict(site.api.ledger) if play.rng.random() < 0.5 else {}
        play.grow(site, 2)
        world.storm(site)
        play.go(0.3)
        play.chaos.lose_ledger(site, snapshot)
        play.go(RESTORE_TAKES)
        for _ in range(3):
            play.go(0.2)
            world.storm(site)
        play.go(play.about(11.0, 12.0))
        for _ in range(27):
            play.go(0.2)
            world.storm(site)


def ledgers_lost_in_a_rollout(play: Play) -> None:
    """The quota is full. Each time a ledger is lost, or goes back, new Machines of rollouts stand beside old ones. The
    surge is lowered for a while. Then the rollouts go on, there and elsewhere."""
    world = play.world
    for site in play.sites(1):
        snapshot = dict(site.api.ledger) if play.rng.random() < 0.3 else {}
        play.grow_others(site, 1)
        play.grow(site, 4)
        for _ in range(play.rng.choice((1, 3))):
            play.roll(site, 3)
            play.chaos.lose_ledger(site, snapshot)
            play.go(RESTORE_TAKES + play.about(17.0, 19.0))
        limits = {name: spec.limits for name, spec in world.master.quotas.items()}
        for name in limits if play.rng.random() < 0.5 else ():
            lowered = {extra: 0 for extra in limits[name] if extra.startswith(surge.PREFIX)}
            world.change_limits(name, {**limits[name], **lowered})
            play.go(3.0)
            world.change_limits(name, limits[name])
        for _ in range(5):
            for each in play.sites(2):
                play.roll(each, 1)
            for uid in play.rng.sample(list(world.rolling), min(len(world.rolling), 2)):
                if (thing := world.things.get(uid)) is not None:
                    world.roll_on(thing)
            play.go(0.5)


def a_source_that_goes_away(play: Play) -> None:
    """Between the news of a deletion and its count."""
    world = play.world
    for site in play.sites(1):
        play.grow(site, 4)
        source = play.rng.choice(list(site.sources.values()))
        for uid in list(source.machines)[:1]:
            world.delete(world.things[uid])
        play.chaos.rounds()
        world.network.cut.add((site.name, source.name))
        play.hear_of_one_more(site, source)
        for _ in range(3):
            play.go(0.1)
            world.storm(site)
        play.go(REQUEST)


def a_cold_start_from_a_backup(play: Play) -> None:
    """Nobody who is alive has seen the ledger that was."""
    world = play.world
    for site in play.sites(1):
        snapshot = site.api.snapshot()
        play.grow(site, 3)
        play.crash_replicas(site)
        play.restore_seed(site, snapshot)
        play.go(RESTORE_TAKES)
        for _ in range(2):
            world.start_replica(site)
        play.storms(site, 20, 0.35)


def a_backup_from_before_many_asks(play: Play) -> None:
    """What asks is on one seed, and the quota is full of what is on the others. That seed is restored twice: the life
    that the master hears of in between is gone again, and the one that is back does not know what was answered."""
    world = play.world
    for site in play.sites(1):
        for thing in play.there(site):
            world.delete(thing)
        for other in play.sites(4):
            if other is not site:
                play.fill(other)
        snapshot = site.api.snapshot()
        play.storms(site, 6, 0.7)
        for _ in range(2):
            play.crash_replicas(site)
            play.restore_seed(site, snapshot)
            play.go(RESTORE_TAKES)
            for _ in range(2):
                world.start_replica(site)
            play.go(TAKEOVER)
        play.go(play.about(15.0, 17.0))
        play.storms(site, 4, 0.7)


def a_first_leader_who_claims_nothing(play: Play) -> None:
    """A backup is restored while nobody lives. Who leads first is cut off from the ledger and ends; his successor has
    seen him lead."""
    world = play.world
    for site in play.sites(1):
        snapshot = site.api.snapshot()
        play.storms(site, 2, 0.5)
        play.crash_replicas(site)
        play.restore_seed(site, snapshot)
        play.go(RESTORE_TAKES)
        link = (site.name, site.api.kept.name)
        world.network.cut.add(link)
        for _ in range(2):
            world.start_replica(site)
        play.go(TAKEOVER)
        for replica in [replica for replica in site.replicas if replica.leader is not None]:
            world.crash_replica(site, replica)
        world.network.cut.discard(link)
        for _ in range(12):
            play.go(play.about(0.3, 0.8))
            world.storm(site)
        play.write(site)


def what_is_admitted_is_not_seen(play: Play) -> None:
    """Its source is away for longer than anything can be under way."""
    world = play.world
    for site in play.sites(1):
        source = play.rng.choice(list(site.sources.values()))
        world.network.cut.add((site.name, source.name))
        for _ in range(3):
            world.create(site, source, play.rng.choice(SIZES))
        play.go(REQUEST)
        play.write(site)
        play.go(play.about(20.0, 24.0))


def a_restored_master(play: Play) -> None:
    """What he has granted since the backup is used."""
    snapshot = play.world.master.snapshot()
    for site in play.sites(1):
        play.grow(site, 3)
        play.restore_master(snapshot)
        play.go(RESTORE_TAKES + TAKEOVER)
        play.grow_others(site, 3)


def a_first_master_who_hears_nothing(play: Play) -> None:
    """The master is restored, and does not reach a seed which uses what was granted since. Who leads first ends; his
    successor has seen him lead."""
    world = play.world
    snapshot = world.master.snapshot()
    for site in play.sites(1):
        play.restore_master_unaware(site, snapshot)
        world.start_master()
        play.go(TAKEOVER)
        for master in [master for master in world.masters if master.term is not None]:
            world.crash_master(master)
        play.go(TAKEOVER)
        play.grow_others(site, 3)


def a_ledger_of_an_earlier_life(play: Play) -> None:
    """The master is restored, and once more to the same backup. His ledger knows nothing of the life in between, in
    which a seed was granted what is idle there; its replicas hear nothing of him."""
    for site in play.sites(1):
        snapshot = play.world.master.snapshot()
        play.grow(site, 3)
        play.restore_master(snapshot)
        play.go(RESTORE_TAKES + TAKEOVER)
        play.grow(site, 2)
        for thing in play.there(site):
            play.world.delete(thing)
        play.go(0.5)
        play.restore_master(snapshot)
        play.blind(site, RESTORE_TAKES + TAKEOVER + 10.0)
        play.go(RESTORE_TAKES + TAKEOVER)
        play.grow_others(site, 3)
        play.storms(site, 3, 0.3)
        play.write(site)


def two_masters(play: Play) -> None:
    """One does not look at his lease, and believes to lead while the other does."""
    world, chaos = play.world, play.chaos
    while len(world.masters) < 2:
        world.start_master()
    for master in world.masters:
        if master.term is not None:
            master.deaf_until = world.now + 30.0
    play.go(TAKEOVER)
    for _ in range(60):  # they do not hear of the same things at the same moment
        for act in (chaos.create, chaos.deliver, chaos.watch, chaos.take_turn, chaos.master_turn):
            act()
        if play.rng.random() < 0.2:
            chaos.finish()
            world.pass_time(0.2)


def a_rollout_whose_older_goes_first(play: Play) -> None:
    """At a full quota. What it makes is admitted, and is not there yet when what it replaces goes; others come."""
    world = play.world
    for site in play.sites(1):
        play.fill(site)
        for source in list(site.sources.values()):
            for _ in range(2):
                world.roll(site, source, play.rng.choice(SIZES))
        play.go(0.5)
        for wish in [wish for wish in world.wishes if wish.told and wish.replaces]:
            for uid in wish.replaces[:1]:
                if uid in world.things:
                    world.delete(world.things[uid])
        play.go(0.5)
        play.storms(site, 3, 0.3)
        play.write(site)
        play.go(1.0)


def a_rollout_whose_older_goes_while_it_waits(play: Play) -> None:
    """At a full quota. What it makes waits for surge, which the master does not hear of; what it replaces goes, others
    take its place, and then the surge comes."""
    world = play.world
    for site in play.sites(1):
        play.fill(site)
        world.network.cut.add(("master", site.name))
        sources = list(site.sources.values())
        for _ in range(6):
            world.roll(site, play.rng.choice(sources), play.rng.choice(SIZES))
        play.go(play.about(0.1, 0.2))
        for thing in play.there(site):
            world.delete(thing)
        play.go(play.about(0.1, 0.2))
        for source in sources:
            for _ in range(world.room(source.project) or 0):
                world.create(site, source, UNIT)
        play.go(0.2)
        world.network.cut.discard(("master", site.name))
        play.go(REQUEST)
        play.write(site)
        play.go(1.0)


def an_older_one_that_shrinks(play: Play) -> None:
    """At a full quota. A Machine is lent surge beside an older one, which is made smaller; others want what became
    free, and then the older one goes."""
    world = play.world
    for site in play.sites(1):
        play.grow(site, 4)
        play.fill(site)
        source = play.rng.choice(list(site.sources.values()))
        large = (uid for uid, machine in source.machines.items() if machine.resources.get("cpu", 0) >= 2)
        older = world.things[uid] if (uid := next(large, "")) else None
        if older is None or older.wishes:
            continue
        world.create(site, source, dict(source.machines[older.uid].resources), [older.uid])
        play.go(0.5)
        play.write(site)
        play.go(0.7)
        world.resize(site, source, older, UNIT)
        play.go(0.2)
        play.write(site)
        play.go(0.7)
        for _ in range(world.room(source.project) or 0):
            world.create(site, source, UNIT)
        play.go(0.5)
        play.write(site)
        play.go(0.5)
        if older.uid in world.things:
            world.delete(older)
        play.go(1.0)
        for _ in range(3):
            world.create(site, source, UNIT)
        play.go(0.5)
        play.write(site)
        play.go(1.0)


def a_surge_withdrawn(play: Play) -> None:
    """While rollouts stand on it, and while others ask for more of it."""
    world = play.world
    for site in play.sites(1):
        play.fill(site)
        spec = next(spec for spec in world.master.quotas.values() if surge.beyond(spec.limits))
        sources = list(site.sources.values())
        world.roll(site, play.rng.choice(sources), UNIT)
        play.go(play.about(0.3, 1.0))
        play.write(site)
        play.blind(site, 1.0)
        for _ in range(6):
            world.roll(site, play.rng.choice(sources), play.rng.choice(SIZES))
        for _ in range(play.rng.randrange(30)):
            play.chaos.deliver()
        world.change_limits(spec.key.name, surge.regular(spec.limits))
        for master in world.masters:
            master.watch(len(world.master.events))
            master.sync(spec.key.name, site.name)
        for _ in range(play.rng.randrange(10)):
            play.chaos.deliver()
        play.see(site)
        for replica in site.replicas:
            replica.watch(len(site.api.events))
        play.go(REQUEST)
        play.write(site)
        play.go(0.5)


def room_at_home_after_an_answer(play: Play) -> None:
    """The quota is full, and a seed was told so. What is deleted there is its own to use, though the master does not
    know."""
    world = play.world
    for site in play.sites(1):
        play.fill(site)
        world.storm(site)
        play.go(play.about(0.2, 0.5))
        world.network.cut.add(("master", site.name))
        there = play.there(site)
        for thing in play.rng.sample(there, min(len(there), 2)):
            world.delete(thing)
        play.go(0.1)
        play.storms(site, 2, 0.1)
        world.network.cut.discard(("master", site.name))
        play.go(REQUEST)


def a_lowered_limit_heard_alone(play: Play) -> None:
    """A seed holds more than it uses. It hears that the limit is what it uses, and nothing of what is recalled."""
    world = play.world
    for site in play.sites(1):
        play.grow(site, 2)
        there = play.there(site)
        for thing in play.rng.sample(there, len(there) // 2):
            world.delete(thing)
        play.go(0.3)
        for name, spec in list(world.master.quotas.items()):
            use = world.there(site, spec.subject)
            world.change_limits(name, {resource: use.get(resource, 0) for resource in spec.limits})
            for master in world.masters:
                master.watch(len(world.master.events))
                master.sync(name, site.name)
        for _ in range(30):
            if any(flight.what.startswith("copy") for flight in world.network.flying):
                play.chaos.deliver()
        world.network.cut.add(("master", site.name))
        play.storms(site, 2, 0.3)
        play.go(REQUEST)


def a_count_that_arrives_late(play: Play) -> None:
    """What it counts is gone by then, and nobody had to write that, so far as he could see."""
    world = play.world
    for site in play.sites(1):
        source = play.rng.choice(list(site.sources.values()))
        link = (site.name, site.api.kept.name)
        there = {*source.machines}
        world.slip(source, UNIT)
        world.network.held[link] = world.now + play.about(8.0, 12.0)
        play.go(play.about(0.3, 0.5))
        world.network.held.pop(link)
        for uid in {*source.machines} - there:
            world.delete(world.things[uid])
        play.go(14.0)


def a_late_report(play: Play) -> None:
    """A seed gives back what it does not use any more. The report of what it used before comes after that of what it
    gave back, and a new master sees no other."""
    world = play.world
    for site in play.sites(1):
        play.fill(site)
        link, arrives = (site.name, site.name), world.now + play.about(12.0, 14.0)
        world.slip(play.rng.choice(list(site.sources.values())), UNIT)
        world.network.held[link] = arrives
        play.go(0.5)
        world.network.held.pop(link)
        for thing in play.there(site):
            world.delete(thing)
        play.go(0.5)
        play.grow_others(site, 3)
        world.network.held[link] = arrives + 20.0
        play.go(max(arrives - world.now, 0.0) - 0.5)
        for master in list(world.masters):
            world.crash_master(master)
            world.start_master()
        play.go(TAKEOVER)
        world.network.held.pop(link)
        play.go(3.0)


def _two_masters(play: Play) -> MasterReplica:
    """Who leads, beside one who stands by."""
    while len(play.world.masters) < 2:
        play.world.start_master()
    play.go(TAKEOVER)
    return next(master for master in play.world.masters if master.term is not None)


def a_standby_that_saw_nothing(play: Play) -> None:
    """Its watches are silent while limits are lowered or quotas made again. Then it leads."""
    world = play.world
    leader = _two_masters(play)
    for site in play.sites(4):
        play.grow(site, 1)
    for master in world.masters:
        if master is not leader:
            master.blind_until = world.now + 60.0
    anew = play.rng.random() < 0.5
    for name, spec in list(world.master.quotas.items()):
        if anew:
            world.recreate(name)
        else:
            world.change_limits(name, {resource: amount // 2 for resource, amount in spec.limits.items()})
    for _ in range(4):
        for thing in [thing for site in play.sites(4) for thing in play.there(site)][::2]:
            world.delete(thing)
        play.go(2.0)
        world.tighten()
    world.end_master(leader)
    play.go(TAKEOVER)
    for site in play.sites(4):
        play.grow(site, 2)


def a_project_that_vanishes(play: Play) -> None:
    """The copy of a Project is deleted on a seed while the master is away from it, and comes back after some time."""
    world = play.world
    for site in play.sites(1):
        play.fill(site)
        world.network.cut.add(("master", site.name))
        for project in list(site.api.projects):
            site.api.write_project(project, None)
        play.storms(site, 2, 0.5)
        play.go(play.about(5.5, 12.0))
        play.storms(site, 2, 0.5)
        world.network.cut.discard(("master", site.name))
        play.go(0.5)
        play.storms(site, 4, 0.4)
        play.write(site)


def a_copy_that_somebody_deletes(play: Play) -> None:
    """On a seed which the master does not reach meanwhile."""
    world = play.world
    for site in play.sites(1):
        play.fill(site)
        world.network.cut.add(("master", site.name))
        for name in list(site.api.copies):
            site.api.delete_copy(name, released=False)
        play.storms(site, 4, 0.5)
        world.network.cut.discard(("master", site.name))
        play.go(1.0)
        play.storms(site, 4, 0.5)
        play.write(site)
