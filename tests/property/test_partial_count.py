"""Whatever can be listed of a source, its account has at least what is there or may still come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kube.client.meta import Object, ObjectMeta
from common.quota import account as accounts
from common.quota import resources
from common.quota.account import Account, Reservation
from common.quota.object_names import (
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    GroupResource,
)
from common.quota.resources import ResourceList
from seed.accounts import source_count
from seed.accounts.controller import Accounts
from seed.accounts.source_count import UncountableError
from seed.kinds.namespaces.cluster_objects import ClusterObjects, QuotaNamespaces
from seed.kinds.namespaces.evaluators.namespaced import Counting, Terms
from seed.model.quota import Quota
from seed.model.source_key import SourceKey

SOURCE = "ns:quota:alpha/c1"
DEVICE = "requests.gpu.deviceclass.resource.k8s.io/devices"  # of pods and of claims
COUNTS = {
    PODS: ("pods", "requests.cpu", DEVICE),
    RESOURCE_CLAIMS: (DEVICE,),
    PERSISTENT_VOLUME_CLAIMS: ("requests.storage",),
}
KINDS = sorted(COUNTS, key=str)
NAMES = sorted({name for names in COUNTS.values() for name in names})
SINCE = 5  # lists that began later were demanded


class Sized(Object, frozen=True, kw_only=True):
    size: ResourceList


class Evaluator(Counting[Sized]):
    type = Sized

    def __init__(self, kind: GroupResource) -> None:
        self.resource = kind

    def usage(self, subject: Sized, now: float) -> dict[str, int]:
        return dict(subject.size)


class Thing(msgspec.Struct):
    """An object. `counted`: its size in the last count of the leader before us; empty if it came later. `after`: what a
    write since then made of it, which was admitted; None if there was none, empty if it was deleted. `pending`: that
    write is admitted, and on its way."""

    uid: str
    kind: GroupResource
    counted: ResourceList
    after: ResourceList | None
    pending: bool = False

    @property
    def size(self) -> ResourceList:
        return self.counted if self.after is None or self.pending else self.after

    @property
    def may_use(self) -> ResourceList:
        """There, or still to come."""
        return resources.maximum(self.size, self.after or {}) if self.pending else self.size

    @property
    def reservation(self) -> Reservation | None:
        after = resources.at_least_zero(resources.subtract(self.after or {}, self.counted))
        amount = {name: more for name, more in after.items() if more}
        name, generation = f"{self.kind}:web/{self.uid}", 2 if self.counted else 0
        return Reservation(source=SOURCE, object=name, amount=amount, generation=generation) if amount else None


def sizes(kind: GroupResource) -> st.SearchStrategy[ResourceList]:
    return st.dictionaries(st.sampled_from(COUNTS[kind]), st.integers(1, 3))


@st.composite
def things(draw: st.DrawFn) -> list[Thing]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(KINDS))
        counted, after = draw(sizes(kind)), draw(st.none() | sizes(kind))
        found.append(Thing(f"u{number}", kind, counted, after, pending=draw(st.booleans())))
    return found


class World:
    def __init__(self, found: list[Thing]) -> None:
        limited = frozenset(NAMES)
        self.namespaces = SimpleNamespace(synced=asyncio.Event(), listed_from=SINCE + 1, live=True)
        self.namespaces.synced.set()
        self.objects = cast(ClusterObjects, SimpleNamespace(namespaces=self.namespaces, informers={}))
        key, ceilings = SimpleNamespace(uid="quota"), dict.fromkeys(NAMES, 99)
        self.quota = cast(Quota, SimpleNamespace(key=key, ceilings=ceilings, guarantees=(), promises=False))
        self.counting = QuotaNamespaces(self.objects, None, Terms(limited=limited), lambda *_a: None)
        self.things = found
        self.leader: Any = SimpleNamespace(
            _demands=SimpleNamespace(lists_from=lambda _uid: SINCE),
            _unsized={},
            term=1,
            account_sources=SimpleNamespace(
                counted=lambda _key, used: used, sure=lambda _quota, _source, reservations: reservations
            ),
            may_count=lambda _quota, _source: True,
        )
        kept = {(SOURCE, thing.uid): held for thing in found if (held := thing.reservation) is not None}
        self.account = Account(
            incarnation="life",
            epoch=1,
            used={SOURCE: resources.total(thing.counted for thing in found)},
            reservations=kept,
            reserved=resources.total(held.amount for held in kept.values()),
        )

    def list(self, kind: GroupResource, began: int) -> None:
        """All that there is came after the lists that are too old."""
        evaluator = self.counting.evaluators[kind]
        known = self.objects.informers.get(evaluator)
        if began > SINCE and (known is None or known.listed_from <= SINCE):
            for thing in self.things:
                if thing.kind == kind and thing.size:
                    version = "1" if thing.after is None or thing.pending else "2"
                    meta = ObjectMeta(name=thing.uid, namespace="web", uid=thing.uid, resource_version=version)
                    self.counting.totals.put(Evaluator(kind), Sized(metadata=meta, size=thing.size), 0.0)
        self.objects.informers[evaluator] = cast(
            Any, SimpleNamespace(resource=kind, synced=True, listed_from=began, live=True)
        )

    def count(self, account: Account) -> Account:
        counting = self.counting
        source: Any = SimpleNamespace(
            key=SourceKey(SOURCE),
            totals=counting.totals,
            counted=bool(counting.listed_from),
            listed_from=counting.listed_from,
            live=True,
            in_namespaces=counting,
        )
        return Accounts.counted(self.leader, account, source, self.quota)


def check(found: list[Thing], order: list[tuple[GroupResource, int]]) -> None:
    world = World(found)
    account = world.account
    for kind, began in order:
        world.list(kind, began)
        before, account = account, world.count(account)
        accounts.check(account)
        least, has = (
            resources.total(thing.may_use for thing in found),
            resources.add(account.used[SOURCE], account.reserved),
        )
        assert all(amount <= has.get(name, 0) for name, amount in least.items()), (least, has)
        doubtful = world.counting.doubtful(SINCE)
        assert doubtful is not None
        for name in set(NAMES) - doubtful:
            assert account.used[SOURCE].get(name, 0) == world.counting.totals.used.get(name, 0)
        for name in doubtful:
            assert account.used[SOURCE].get(name, 0) == before.used[SOURCE].get(name, 0)


ORDERS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(SINCE - 1, SINCE + 2)), max_size=6)


@given(things(), ORDERS)
def test_in_part_or_wholly_an_account_has_all_that_is_there(
    found: list[Thing], order: list[tuple[GroupResource, int]]
) -> None:
    check(found, order)


POD = Thing("u", PODS, {}, {"requests.cpu": 1, DEVICE: 1})


def any_list(counting: QuotaNamespaces, _since: float) -> frozenset[GroupResource]:
    return frozenset(counting.kinds - {informer.resource for informer in counting.informers})


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        (source_count, "covered", lambda reservations, _doubtful, live: dict(reservations)),
        (source_count, "kept", lambda _before, found, _doubtful: found),
        (QuotaNamespaces, "_unlisted_kinds", any_list),
    ],
)
def test_the_property_notices_a_broken_rule(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, broken: Any
) -> None:
    old = [Thing("claim", RESOURCE_CLAIMS, {DEVICE: 2}, None), Thing("pod", PODS, {"pods": 1}, None)]
    order = [(PERSISTENT_VOLUME_CLAIMS, SINCE + 1), (PODS, SINCE), (PODS, SINCE + 1)]
    check([POD, *old], order)
    monkeypatch.setattr(place, name, broken)
    with pytest.raises(AssertionError):
        check([POD, *old], order)


def test_an_account_that_is_fenced_is_counted_wholly_or_not_at_all() -> None:
    world = World([POD])
    world.list(PODS, SINCE + 1)
    fenced = msgspec.structs.replace(world.account, nonce="asked")
    with pytest.raises(UncountableError):
        world.count(fenced)
    world.list(RESOURCE_CLAIMS, SINCE + 1)
    world.list(PERSISTENT_VOLUME_CLAIMS, SINCE + 1)
    assert world.count(fenced).used == {SOURCE: {"requests.cpu": 1, DEVICE: 1}}


def test_a_source_that_was_never_counted_is_counted_as_far_as_it_is_listed() -> None:
    other = Thing("v", PODS, {}, {"pods": 1, "requests.cpu": 2})
    world = World([POD, other])
    world.list(PODS, SINCE + 1)
    account = world.count(msgspec.structs.replace(world.account, used={}))
    assert account.used == {SOURCE: {"pods": 1, "requests.cpu": 3}}
    assert [uid for _, uid in account.reservations] == ["u"], "what claims have is not known, so its device stays"


def test_what_is_promised_is_in_doubt_until_core_quotas_are_listed() -> None:
    world = World([])
    terms = Terms(limited=frozenset(NAMES), promises=True)
    world.counting = QuotaNamespaces(world.objects, None, terms, lambda *_a: None)
    assert world.counting.doubtful(SINCE) == set(NAMES)
    world.list(RESOURCE_QUOTAS, SINCE)
    assert world.counting.doubtful(SINCE) == set(NAMES), "the list is too old"
    world.list(RESOURCE_QUOTAS, SINCE + 1)
    assert world.counting.doubtful(SINCE) == set()


def test_nothing_is_counted_before_the_namespaces_were_listed() -> None:
    world = World([POD])
    world.list(PODS, SINCE + 1)
    world.namespaces.listed_from = SINCE
    with pytest.raises(UncountableError):
        world.count(world.account)


def test_with_an_object_that_cannot_be_read_a_source_is_counted_wholly_or_not_at_all() -> None:
    """What it uses is told from all that was counted before: if kinds were left out, the rest would be theirs."""
    world = World([POD])
    world.list(PODS, SINCE + 1)
    world.counting.totals.put_unread(Object(metadata=ObjectMeta(name="x", namespace="web", uid="x")))
    with pytest.raises(UncountableError):
        world.count(world.account)


def test_what_a_new_leader_cannot_read_of_a_kind_that_comes_later_keeps_its_count() -> None:
    """Its size stands in no list: what the account had of it says it, also after counts of other kinds."""
    pod = Thing("u", PODS, {}, {"requests.cpu": 1})
    world = World([pod, Thing("broken", RESOURCE_CLAIMS, {DEVICE: 2}, {})])
    world.list(PODS, SINCE + 1)
    account = world.count(world.account)
    assert account.used[SOURCE] == {"requests.cpu": 1, DEVICE: 2}
    for kind in (RESOURCE_CLAIMS, PERSISTENT_VOLUME_CLAIMS):
        world.list(kind, SINCE + 1)
    world.counting.totals.put_unread(Object(metadata=ObjectMeta(name="broken", namespace="web", uid="broken")))
    account = world.count(account)
    assert account.used[SOURCE] == {"requests.cpu": 1, DEVICE: 2}
