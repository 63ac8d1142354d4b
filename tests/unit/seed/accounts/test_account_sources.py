"""What a count drops of which it does not tell all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.api.labels import SETTINGS
from common.api.types import QuotaSettings
from common.kube.controller.store import Change
from common.quota.account import Reservation
from common.quota.quantity import UNIT
from seed.accounts.account_sources import AccountSources
from seed.model.source_key import SourceKey
from tests.unit.fake_api_server import eventually
from tests.unit.seed.accounts.test_usage_writer import KEY, Leading, leading
from tests.unit.seed_world import SeedWorld, nanos

TYPE = "example.com/licences"
IN_NAMESPACES = SourceKey.of_namespaces("quota-uid", "alpha/c1")


def allocated(world: SeedWorld, *names: str) -> None:
    """The catalogue says so, as far as has come here."""
    entries = [{"name": name, "countFrom": "Allocations"} for name in names]
    body = {"metadata": {"name": SETTINGS, "uid": SETTINGS}, "spec": {"resources": entries}}
    before, after = world.quota_cache.settings.store.get(SETTINGS), msgspec.convert(body, QuotaSettings)
    world.quota_cache.settings.store._set(SETTINGS, after)
    world.quota_cache._settings_changed(Change(before, after))


async def reserve(leader: Leading) -> None:
    amount = nanos(f"cpu=8,{TYPE}=2")
    admitted = Reservation(source=KEY, object="ns/a", amount=amount)
    await leader.world.handle().writer.claim("a-uid", admitted)


async def test_what_was_admitted_by_a_later_catalogue_stays_reserved_until_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be in no count, and be given away."""
    async with leading(monkeypatch) as leader:
        world = leader.world
        world.limit("project-alpha", {"cpu": "64", TYPE: "2"})
        world.tell(granted={"cpu": "64", TYPE: "2"})
        allocated(world, TYPE)
        leader.proven_at = -math.inf
        await reserve(leader)
        leader.source.generations["a-uid"] = 1
        leader.there("a")
        leader.changed()
        await eventually(lambda: KEY in world.account().used)
        await asyncio.sleep(0.05)
        assert world.account().reserved.get(TYPE) == 2 * UNIT, "nothing counts it"
        leader.source.totals.used[TYPE] = 2 * UNIT  # as it does by the catalogue that comes
        allocated(world)
        await eventually(lambda: not world.account().reservations)
        assert world.account().used[KEY][TYPE] == 2 * UNIT


async def test_what_was_admitted_by_an_earlier_catalogue_is_dropped(leader: Leading) -> None:
    world = leader.world
    world.limit("project-alpha", {"cpu": "64", TYPE: "2"})
    world.tell(granted={"cpu": "64", TYPE: "2"})
    await reserve(leader)
    leader.proven_at = -math.inf
    leader.there("a")
    allocated(world, TYPE)
    await eventually(lambda: KEY in world.account().used)
    assert world.account().reservations, "the leader may be behind"
    leader.proven_at = math.inf
    await eventually(lambda: not world.account().reservations)
    assert TYPE not in world.account().used[KEY]


class Clock:
    """When the caches were proven last."""

    def __init__(self) -> None:
        self.proven = -math.inf


def sure(sources: AccountSources, told: Iterable[str], *kept: Reservation) -> set[str]:
    source: Any = SimpleNamespace(key=IN_NAMESPACES, in_namespaces=SimpleNamespace(told=frozenset(told)))
    quota: Any = SimpleNamespace(key=SimpleNamespace(uid="quota-uid"))
    reservations = {reservation.object: reservation for reservation in kept}
    return set(sources.sure(quota, source, reservations))


def pod(name: str, *names: str, **facts: object) -> Reservation:
    made = Reservation(source=IN_NAMESPACES, object=name, amount=dict.fromkeys(names, UNIT))
    return msgspec.structs.replace(made, **facts)


def test_a_name_that_the_lists_do_not_tell_yet_keeps_what_is_reserved_of_it(world: SeedWorld) -> None:
    """A quota was granted it just now, and who admitted by that knows it sooner than the leader."""
    clock = Clock()
    sources = AccountSources(world.registry, {}, lambda: clock.proven)
    both = pod("a", "pods"), pod("b", "pods", "requests.cpu")
    assert sure(sources, ["pods"], *both) == {"a"}
    assert sources.withholds("quota-uid", IN_NAMESPACES)
    assert sure(sources, ["pods", "requests.cpu"], *both) == {"a", "b"}
    assert not sources.withholds("quota-uid", IN_NAMESPACES)


def test_a_name_that_is_limited_no_more_keeps_nothing(world: SeedWorld) -> None:
    clock = Clock()
    sources = AccountSources(world.registry, {}, lambda: clock.proven)
    former = pod("a", "services")
    assert sure(sources, ["pods"], former) == set()
    clock.proven = math.inf
    assert sure(sources, ["pods"], former) == {"a"}
    assert not sources.withholds("quota-uid", IN_NAMESPACES)


def test_another_request_for_the_same_object_may_have_known_more(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, now = Clock(), 100.0
    monkeypatch.setattr("seed.accounts.account_sources.time", SimpleNamespace(monotonic=lambda: now))
    sources = AccountSources(world.registry, {}, lambda: clock.proven)
    assert sure(sources, ["pods"], pod("a", "services")) == set()
    clock.proven, now = 100.0, 101.0
    assert sure(sources, ["pods"], pod("a", "services", request="other")) == set()
    assert sure(sources, ["pods"], pod("b", "services")) == set(), "it was not there then"


def test_what_is_remembered_goes_with_its_quota(world: SeedWorld) -> None:
    clock = Clock()
    sources = AccountSources(world.registry, {}, lambda: clock.proven)
    assert sure(sources, ["pods"], pod("a", "services")) == set()
    sources.keep({"quota-uid"})
    assert sources.withholds("quota-uid", IN_NAMESPACES)
    sources.keep(set())
    assert not sources.withholds("quota-uid", IN_NAMESPACES)


def test_a_loan_is_as_it_was(world: SeedWorld) -> None:
    """Of a loan that a count does not know, the Machine would be counted beside it, beyond what is held."""
    sources = AccountSources(world.registry, {}, lambda: -math.inf)
    assert sure(sources, ["cpu"], pod("a", "surge.cpu", "gone", replaces="older")) == {"a"}
