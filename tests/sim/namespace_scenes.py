"""Scenes with namespaces: see tests/sim/scenes.py."""

from __future__ import annotations

from common.quota.object_names import RESOURCE_CLAIMS
from tests.sim.kinds_world import KindsWorld
from tests.sim.namespace_side import NamespaceReplica
from tests.sim.namespace_world import NamespaceWorld
from tests.sim.namespaces import NamespacedCluster
from tests.sim.scenes import REQUEST, Play
from tests.sim.world import SIZES, UNIT, Site


def _clusters(world: NamespaceWorld, site: Site) -> list[NamespacedCluster]:
    found = [source for source in site.sources.values() if isinstance(source, NamespacedCluster)]
    for cluster in found:
        if not cluster.participates:
            world.take_part(site, cluster, takes_part=True)
        if not cluster.labels.present:
            world._make_namespace(cluster)
    return found


def _select_all(world: NamespaceWorld, cluster: NamespacedCluster) -> None:
    for name in list(cluster.labels.present):
        world.relabel(cluster, name, ("a", "b"))


def _create(play: Play, site: Site, cluster: NamespacedCluster) -> None:
    for _ in range(play.rng.randint(2, 4)):
        play.world.create(site, cluster, play.rng.choice(SIZES))
    play.go(0.5)
    play.write(site)


def a_kind_that_cannot_be_listed(play: Play) -> None:
    """... when the leader is another one, and pods come and go."""
    world = play.world
    assert isinstance(world, KindsWorld), "others have one"
    for site in play.sites(1):
        clusters = _clusters(world, site)
        for cluster in clusters:
            cluster.unlistable = {RESOURCE_CLAIMS}
            _select_all(world, cluster)
        play.go(1.0)
        for replica in [replica for replica in site.replicas if replica.leader is not None]:
            world.crash_replica(site, replica)
        play.go(30.0)
        for _ in range(6):
            for cluster in clusters:
                _create(play, site, cluster)
            play.go(2.0)


def a_cluster_that_comes_to_take_part(play: Play) -> None:
    """... and asks at once about what is created in it, after its source had left the accounts."""
    world = play.world
    assert isinstance(world, NamespaceWorld), "others have no namespaces"
    for site in play.sites(1):
        clusters = _clusters(world, site)
        for cluster in clusters:
            _select_all(world, cluster)
            world.take_part(site, cluster, takes_part=False)
        play.go(play.about(10.0, 30.0))
        for cluster in clusters:
            world.take_part(site, cluster, takes_part=True)
            for _ in range(4):
                world.create(site, cluster, UNIT)
                play.go(0.1)
            play.write(site)


def labels_that_admission_does_not_hear(play: Play) -> None:
    """Namespaces come into a selection while the watches of all replicas bring nothing, for longer than is trusted."""
    world = play.world
    assert isinstance(world, NamespaceWorld), "others have no namespaces"
    for site in play.sites(1):
        clusters = _clusters(world, site)
        for cluster in clusters:
            for name in list(cluster.labels.present):
                world.relabel(cluster, name, ("b",) if play.rng.random() < 0.7 else ())
        play.go(1.0)
        for replica in site.replicas:
            for watch in replica.labels.values() if isinstance(replica, NamespaceReplica) else ():
                watch.blind_until = world.now + 60.0
        for cluster in clusters:
            _select_all(world, cluster)
        for seconds in (1.0, 30.0, 1.0):
            play.go(seconds)
            for cluster in clusters:
                _create(play, site, cluster)


def labels_that_the_leader_hears_late(play: Play) -> None:
    """What was created under them is there when evidence is looked for, and the leader's watch says otherwise."""
    world = play.world
    assert isinstance(world, NamespaceWorld), "others have no namespaces"
    for site in play.sites(1):
        clusters = _clusters(world, site)
        for cluster in clusters:
            for name in list(cluster.labels.present):
                world.relabel(cluster, name, ())
        play.go(1.0)
        for replica in site.replicas:
            for watch in replica.watches if isinstance(replica, NamespaceReplica) else ():
                if watch._kind is watch.source.labels:
                    watch.blind_until = world.now + play.about(16.0, 40.0)
        for cluster in clusters:
            for name in list(cluster.labels.present):
                world.relabel(cluster, name, ("a",))
        play.go(0.3)
        for cluster in clusters:
            _create(play, site, cluster)
        for _ in range(4):
            play.go(6.0)
            _create(play, site, clusters[0])


def a_quota_that_changes_between_two_calls(play: Play) -> None:
    """... about one creation: it limits more than before, or is another one of its name."""
    world = play.world
    assert isinstance(world, NamespaceWorld), "others have no namespaces"
    for site in play.sites(1):
        for cluster in _clusters(world, site):
            _select_all(world, cluster)
        play.go(1.0)
        for cluster in _clusters(world, site):
            wish = world.create(site, cluster, UNIT)
            replica = play.rng.choice(site.replicas)
            for call in wish.calls:
                world._call(site, cluster, wish, call, replica)
            play.go(0.6)
            for name, spec in list(world.master.quotas.items()):
                if play.rng.random() < 0.5:
                    world.recreate(name)
                else:
                    world.change_limits(name, {"cpu": 9, **({} if "memory" in spec.limits else {"memory": 9})})
            play.go(1.5)
            for call in wish.calls:
                world._call(site, cluster, wish, call, replica)
            play.go(0.5)
            play.write(site)


def a_call_that_is_made_again_late(play: Play) -> None:
    """... by a proxy, while the API server has not written the object yet."""
    world = play.world
    assert isinstance(world, NamespaceWorld), "others have no namespaces"
    for site in play.sites(1):
        for cluster in _clusters(world, site):
            _select_all(world, cluster)
        play.go(1.0)
        wish = world.create(site, play.rng.choice(_clusters(world, site)), UNIT)
        play.go(play.about(6.0, 10.0))
        for replica in site.replicas:
            for call in wish.calls:
                world._call(site, world._source(wish.thing), wish, call, replica)
        play.go(REQUEST)
        play.write(site)
