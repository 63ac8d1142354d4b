"""While many quotas are made at once, their copies go before all that nobody waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from common.api.labels import GRANT_MANAGER, UID_LABEL
from common.api.status import ECHO
from common.api.types import ResourceQuota, ResourceQuotaStatus, Seed, WireGrant
from common.kube.client.api_client import Cluster
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import Term
from common.kube.controller.store import Change, Store
from common.quota.account import Account, AccountKey
from common.runtime.burst import MANY, PAUSE, BurstDetector
from master.cache.informers import Caches
from master.cache.objects import QuotaCopy, Summary
from master.seeds.registry import Seeds
from master.seeds.status_publisher import Publisher, Shown
from seed.accounts.controller import Accounts
from seed.accounts.open_limiter import AT_ONCE
from tests.unit.seed_world import PROJECT, SeedWorld, amounts, seed_world


class Told:
    """What is shown of one quota on one seed."""

    def __init__(self, *, in_cluster: bool = False) -> None:
        self.rush = True
        self.in_cluster = in_cluster
        self.written: list[dict[str, Any]] = []
        self.managers: list[str] = []
        copies = self.copies = Store[QuotaCopy]({})
        copies._set("q", QuotaCopy(metadata=ObjectMeta(name="q", uid="1")))
        cluster = cast(Cluster, SimpleNamespace(apply=self._apply))
        self.publisher = Publisher(
            "eu-1", lambda: copies, lambda: cluster, lambda: self.in_cluster, BurstDetector(lambda: self.rush)
        )

    async def _apply(self, _resource: object, body: dict[str, Any], manager: str, _subresource: str) -> None:
        self.written.append(body["status"])
        self.managers.append(manager)

    def offer(self, *, within: float, answered: int = 0, use: str = "1") -> None:
        shown = Shown(global_usage={"cpu": use}, grant=WireGrant(answered=answered))
        self.publisher.offer("q", "1", shown, Summary(), within=within)


async def test_in_a_rush_a_seed_is_told_only_what_it_waits_for() -> None:
    told = Told()
    told.offer(within=1.0)
    assert await told.publisher._publish("q") == PAUSE
    assert told.written == []
    told.offer(within=0.0, answered=1)
    told.offer(within=1.0, answered=1, use="2")  # with the answer in it, which is still waited for
    assert await told.publisher._publish("q") == ECHO
    assert [status["grant"].answered for status in told.written] == [1]
    told.offer(within=1.0, answered=1, use="3")
    assert await told.publisher._publish("q") == PAUSE
    told.rush = False
    assert await told.publisher._publish("q") == ECHO
    assert [status["globalUsage"] for status in told.written] == [{"cpu": "2"}, {"cpu": "3"}]


async def test_the_masters_own_object_is_told_only_the_grant_with_what_it_was_decided_with() -> None:
    """The rest of its status is written for people, at another time and as another field manager."""
    told = Told(in_cluster=True)
    told.rush = False
    told.offer(within=0.0, answered=1, use="2")
    assert await told.publisher._publish("q") == ECHO
    grant = WireGrant(answered=1, global_usage={"cpu": "2"})
    assert (told.written, told.managers) == ([{"grant": grant}], [GRANT_MANAGER])
    told.copies._set("q", QuotaCopy(metadata=ObjectMeta(name="q", uid="1"), status=ResourceQuotaStatus(grant=grant)))
    assert await told.publisher._publish("q") is None, "it is shown"


async def test_a_seed_whose_status_was_written_is_no_reason_to_look_at_every_quota() -> None:
    caches = SimpleNamespace(secrets=SimpleNamespace(store=Store[Any]({})))
    seeds = Seeds(cast(Caches, caches), "seedquota", master="own-lease")
    looked: list[str] = []
    seeds.on_seed = looked.append

    def seen(**changed: object) -> None:
        body: dict[str, object] = {
            "metadata": {"name": "eu-1", "uid": "1"},
            "spec": {"kubeconfigSecretRef": {"name": "eu-1"}, "state": "Lost"},
        }
        seeds._changed("seeds", Change(None, msgspec.convert({**body, **changed}, Seed)))

    seen()
    assert looked == ["eu-1"]
    seen(status={"lastSeenTime": "2026-01-01T00:00:00Z"})
    assert looked == ["eu-1"]
    seen(spec={"kubeconfigSecretRef": {"name": "eu-2"}, "state": "Lost"})
    assert looked == ["eu-1", "eu-1"]


def copy(name: str, project: str, limits: str) -> ResourceQuota:
    body = {
        "metadata": {"name": name, "uid": f"{name}-copy", "labels": {UID_LABEL: f"{name}-uid"}},
        "spec": {"subject": {"kind": "project", "name": project}, "quota": amounts(limits)},
    }
    return msgspec.convert(body, ResourceQuota)


class Leading:
    """Quotas come to a seed whose leader does what it does next to each of them."""

    def __init__(self, world: SeedWorld, term: int = 1) -> None:
        self.world = world

        async def raise_term(above: int) -> int:
            return above + 1

        async def apply(_resource: object, _body: object, **_rest: object) -> None: ...

        self.accounts = Accounts(
            cast(Cluster, SimpleNamespace(apply=apply)),
            world.registry,
            {},
            term=Term(term, "", was_expired=False, created=False, continuous=True, since=0),
            raise_term=raise_term,
            in_flight_window=1.0,
        )

    def come(self, name: str, project: str, limits: str = "cpu=1") -> None:
        self.world.quota_cache._quota_changed(Change(None, copy(name, project, limits)))
        self.accounts._quota_changed(name)

    async def account(self, name: str) -> Account | None:
        await self.accounts._reconcile(name)
        return self.world.handle(name).writer.account


async def test_in_a_rush_a_seed_opens_accounts_first_by_which_something_can_be_created() -> None:
    async with seed_world() as world:
        leading = Leading(world)
        for number in range(MANY):
            leading.come(f"q-{number}", f"p-{number}")
        leading.come("of-a-project-with-a-cluster", PROJECT)
        leading.come("of-clusters", "p-0", "clusters=1")
        assert await leading.account("q-0") is None
        assert await leading.account("of-a-project-with-a-cluster") is not None
        assert await leading.account("of-clusters") is not None


async def test_while_many_quotas_are_edited_no_account_is_opened_that_nobody_can_use() -> None:
    async with seed_world() as world:
        leading = Leading(world)
        edited = [f"q-{number}" for number in range(MANY)]
        for name in edited:
            leading.accounts._keys[name] = AccountKey(uid=f"{name}-uid", name=name)  # it has an account
            leading.come(name, name, "cpu=1")
        leading.come("before", "p")
        assert await leading.account("before") is not None
        for name in edited:
            leading.come(name, name, "cpu=2")
        leading.come("while", "p")
        assert await leading.account("while") is None


async def test_a_leader_takes_over_first_what_somebody_can_use_and_of_the_rest_a_few_at_a_time() -> None:
    async with seed_world() as world:
        names = [f"q-{number}" for number in range(AT_ONCE + 1)]
        leading = Leading(world, term=2)
        for name, project in [*zip(names, names, strict=True), ("used", PROJECT)]:
            world.quota_cache._quota_changed(Change(None, copy(name, project, "cpu=1")))
            await world.handle(name).writer.create(Account(incarnation=name, nonce="n", epoch=1))
        for name in names:
            await leading.accounts._reconcile(name)
        assert [world.account(name).epoch for name in names] == [2] * AT_ONCE + [1]
        await leading.accounts._reconcile("used")
        assert world.account("used").epoch == 2


async def test_without_a_rush_every_account_is_opened_at_once() -> None:
    async with seed_world() as world:
        leading = Leading(world)
        leading.come("q", "p")
        assert await leading.account("q") is not None
