"""Scenes of one cluster with namespaces of several projects: see tests/sim/scenes.py."""

from __future__ import annotations

from tests.sim.namespaces import NamespacedCluster
from tests.sim.scenes import REQUEST, Play
from tests.sim.servers import TENANTS
from tests.sim.tenancy_world import TenancyWorld
from tests.sim.world import UNIT, Site

FORGOTTEN = 25.0  # seconds after which nothing is known any more of what did not appear


def _shared(play: Play, site: Site) -> tuple[TenancyWorld, NamespacedCluster, str, str]:
    """A cluster where nothing was created lately, with a new namespace of each of two projects."""
    world = play.world
    assert isinstance(world, TenancyWorld), "others have no projects with namespaces"
    found = [source for source in site.sources.values() if isinstance(source, NamespacedCluster)]
    cluster = play.rng.choice(found)
    for thing in play.there(site):
        world.delete(thing)
    if not cluster.participates:
        world.take_part(site, cluster, takes_part=True)
    first, second = (f"n{world.token()}" for _ in TENANTS)
    for name, project in zip((first, second), play.rng.sample(TENANTS, len(TENANTS)), strict=True):
        cluster.label(name, (project,))
    play.go(FORGOTTEN)
    return world, cluster, first, second


def what_another_webhook_refuses_of_one_project(play: Play) -> None:
    """What is admitted in its namespace is not written, again and again. Another project has all of its objects."""
    for site in play.sites(1):
        world, cluster, never, appears = _shared(play, site)
        cluster.filling = never
        for _ in range(6):
            world.create(site, cluster, UNIT)
            play.go(0.3)
            for wish in [wish for wish in world.wishes if wish.told]:
                world.finish(wish, persists=False)
        play.go(play.about(9.0, 12.0))
        cluster.filling = world.alone = appears
        for _ in range(2):
            world.create(site, cluster, UNIT)
            play.go(0.4)
            play.write(site)
        cluster.filling = world.alone = ""


def a_project_that_fills_its_share(play: Play) -> None:
    """It creates more than an account holds, which does not appear. Another has asked for nothing before, in a
    namespace of the same cluster."""
    for site in play.sites(1):
        world, cluster, greedy, modest = _shared(play, site)
        for name, spec in list(world.master.quotas.items()):
            world.change_limits(name, {resource: 50 * limit for resource, limit in spec.limits.items()})
        play.go(2.0)
        writes_take = play.rng.choice((0.0, 0.5))  # where that is long, it fills the line before the ledger
        for _ in range(2):
            cluster.filling = greedy
            for _ in range(80 * len(site.replicas)):
                world.create(site, cluster, UNIT)
            play.arrive(200 * len(site.replicas), writes_take)
            cluster.filling = world.alone = modest
            world.create(site, cluster, UNIT)
            play.arrive(200, writes_take)
            play.go(play.about(0.6, 0.8))
        play.go(REQUEST)
        cluster.filling = world.alone = ""
        for wish in [wish for wish in world.wishes if wish.told and cluster.inside.get(wish.thing.uid) == greedy]:
            world.finish(wish, persists=False)
        play.write(site)
