"""What is in namespaces leaves an account only when a fresh read shows that its quota does not count it there."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from common.api.types import SEED_COPIES, SeedCopy, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.client.resource import Resource
from common.quota import account as accounts
from common.quota.account import Reservation
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountHandle
from seed.accounts.source_removal import SourceRemoval, _forgetting_nothing
from seed.model import source_key
from seed.model.source_key import OWN_API_SERVER, SourceKey
from tests.unit.seed_world import SeedWorld, nanos, seed_world

PROD = {"matchLabels": {"tier": "prod"}}
SELECTOR = {"matchLabels": {"owner": "ann"}}
C1 = "alpha/c1"


class Seed:
    """What a fresh read finds. `meanwhile` is called before it answers."""

    name = "eu-1"

    def __init__(self, found: object, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.found = found
        self._meanwhile = meanwhile
        self.read: list[Resource[SeedCopy] | Resource[UserCluster]] = []

    async def find(self, resource: Resource[UserCluster], _name: str, _namespace: str | None = None) -> object:
        self.read.append(resource)
        self._meanwhile()
        if resource.plural == "projects":
            return None  # that is no proof: it may be put back
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def cluster(
    participation: str = "Enabled", project: str = "alpha", whose: str = "FromCluster", **labels: str
) -> UserCluster:
    spec = {"project": project, "kubeconfigSecretRef": {"name": "c1"}, "namespaceQuotas": participation}
    spec["namespaceProjects"] = whose
    metadata = {"name": "c1", "namespace": "alpha", "uid": "c1-uid", "labels": labels}
    return msgspec.convert({"metadata": metadata, "spec": spec}, UserCluster)


def seed(participation: str) -> SeedCopy:
    spec = {"copyOf": "uid", "namespaceQuotas": participation}
    return msgspec.convert({"metadata": {"name": "eu-1", "uid": "s"}, "spec": spec}, SeedCopy)


async def left(of: str, found: object, **subject: object) -> bool:
    """Whether what the quota had in the cluster has left its account."""
    async with seed_world() as world:
        kind = {"kind": "namespaces", "selector": SELECTOR, **subject}
        handle = await world.quota("all", limits="pods=5", granted="pods=5", subject=kind)
        quota = world.quota_cache.quota("all")
        assert quota is not None
        key = SourceKey.of_namespaces(quota.key.uid, of)
        only = {key.text: nanos("pods=3")}
        await handle.writer.change(lambda account: (msgspec.structs.replace(account, used=only), None))
        reading = Seed(found)
        removal = SourceRemoval(
            cast(Cluster, reading),
            world.cluster_cache,
            world.registry,
            cast(Accounts, SimpleNamespace(term=1)),
            None,
        )
        await removal.forget(handle, quota, world.account("all"))
        assert bool(reading.read) and (reading.read[0] is SEED_COPIES) == (of == OWN_API_SERVER)
        return key not in world.account("all").used


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, True),
        (cluster("Disabled"), True),
        (cluster(tier="dev"), True),
        (cluster(tier="prod"), False),
        (Unavailable(0, "Unavailable", "not now"), False),
    ],
)
async def test_a_cluster_that_is_gone_or_takes_part_no_more_has_nothing_in_the_account(
    found: object, expected: bool
) -> None:
    assert await left("alpha/c1", found, clusters=PROD) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, True),
        (cluster("Disabled"), True),
        (cluster(), False),
        (cluster(project="beta"), True),
        (cluster(project="beta", whose="FromLabel"), False),
    ],
)
async def test_a_project_has_what_is_in_its_own_clusters_and_in_shared_ones(found: object, expected: bool) -> None:
    assert await left("alpha/c1", found, kind="project", name="alpha", selector=None) is expected


async def test_a_project_that_is_missing_proves_nothing_of_its_organization() -> None:
    assert not await left("alpha/c1", cluster(), kind="organization", name="acme", selector=None)


@pytest.mark.parametrize(("found", "expected"), [(None, False), (seed("Disabled"), True), (seed("Enabled"), False)])
async def test_a_missing_seed_proves_nothing_of_its_own_api_server(found: object, expected: bool) -> None:
    assert await left(OWN_API_SERVER, found) is expected


async def forgotten(world: SeedWorld, meanwhile: Callable[[AccountHandle], object]) -> bool:
    """Whether a cluster's source leaves the account: it was gone when that was read."""
    there = world.cluster_cache.user_clusters.store
    there._remove(C1)
    handle = await world.quota(limits="cpu=8", granted="cpu=8")
    await handle.writer.change(lambda account: (accounts.count(account, 1, C1, nanos("cpu=3"), {}), None))
    await handle.writer.claim("before", reservation("before"))
    quota = world.quota_cache.quota(handle.key.name)
    assert quota is not None
    reading = cast(Cluster, Seed(None, lambda: meanwhile(handle)))
    leader = cast(Accounts, SimpleNamespace(term=1))
    await SourceRemoval(reading, world.cluster_cache, world.registry, leader, None).forget(
        handle, quota, world.account()
    )
    return C1 not in accounts.sources(world.account())


def reservation(name: str) -> Reservation:
    return Reservation(source=C1, object=f"ns/{name}", amount=nanos("cpu=1"))


async def test_what_was_admitted_since_a_cluster_was_found_gone_stays_reserved(world: SeedWorld) -> None:
    """It was made again, or has its labels again: a replica may know that before the leader does."""
    assert not await forgotten(world, lambda handle: handle.writer.claim("after", reservation("after")))
    assert set(accounts.of_source(world.account(), C1)) == {"before", "after"}


@pytest.mark.parametrize("back", [False, True])
async def test_a_cluster_that_is_back_when_the_account_is_written_stays_in_it(world: SeedWorld, back: bool) -> None:
    """Its count may have been written a moment before, and would not come again."""
    there = world.cluster_cache.user_clusters.store
    assert await forgotten(world, lambda _handle: there._set(C1, cluster()) if back else None) is not back
    assert accounts.use(world.account()) == (nanos("cpu=4") if back else {})


async def test_a_cluster_that_the_quota_picks_again_meanwhile_stays_in_its_account(world: SeedWorld) -> None:
    """The quota was edited while its cluster was read, and what is there was counted by the edited one."""
    world.cluster_cache.user_clusters.store._set(C1, cluster(tier="dev"))
    subject = {"kind": "project", "name": "alpha"}
    dev = {"matchLabels": {"tier": "dev"}}
    handle = await world.quota(limits="cpu=8", granted="cpu=8", used="cpu=3", subject={**subject, "clusters": PROD})
    quota = world.quota_cache.quota(handle.key.name)
    assert quota is not None
    copy = world.copies[handle.key.name]
    spec = {**msgspec.to_builtins(copy.spec), "subject": {**subject, "clusters": dev}}
    edited = msgspec.structs.replace(copy, spec=msgspec.convert(spec, type(copy.spec)))
    reading = cast(Cluster, Seed(cluster(tier="dev"), lambda: world._put(edited)))
    leader = cast(Accounts, SimpleNamespace(term=1))
    await SourceRemoval(reading, world.cluster_cache, world.registry, leader, None).forget(
        handle, quota, world.account()
    )
    assert accounts.use(world.account()) == nanos("cpu=3")


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_source_without_use_is_forgotten_unless_something_is_reserved_in_it(
    world: SeedWorld, reserved: bool
) -> None:
    """What is reserved is for what is about to come: it would be admitted twice."""
    handle = await world.quota(limits="clusters=2", granted="clusters=2")
    key, one = SourceKey.of_project(source_key.CLUSTERS, "beta"), nanos("clusters=1")
    await handle.writer.change(lambda account: (accounts.count(account, 1, key, {}, {}), None))
    if reserved:
        await handle.writer.claim("u", Reservation(source=key, object="beta/c1", amount=one))
    await handle.writer.change(_forgetting_nothing(1, key))
    account = world.account()
    assert (key in account.used, accounts.use(account).get("clusters", 0)) == (
        (True, one["clusters"]) if reserved else (False, 0)
    )
