"""A quota that the master withdraws from a seed limits nothing there, and its account gives back everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import UID_LABEL
from common.api.types import ResourceQuota
from common.kube.client.api_client import Cluster
from common.kube.controller.leader_election import Term
from common.kube.controller.store import Change
from common.quota import account as accounts
from common.quota import fencing
from common.quota.account import Account, Ask, Grant, Reservation
from seed.accounts import plan
from seed.accounts.controller import Accounts
from seed.accounts.plan import Close, Fence, Progress, Rest, Wait
from seed.model.consumer import Consumer
from tests.unit.seed.accounts.test_parts import create
from tests.unit.seed_world import PROJECT, SeedWorld, nanos, seed_world

CLUSTER = f"{PROJECT}/c1"
EIGHT, FIVE = nanos("cpu=8"), nanos("cpu=5")
ACCOUNT = Account(
    incarnation="a",
    master="m",
    epoch=1,
    granted=EIGHT,
    returned=nanos("cpu=1"),
    used={CLUSTER: FIVE},
    reserved=nanos("cpu=1"),
    reservations={(CLUSTER, "u"): Reservation(source=CLUSTER, object="ns/u", amount=nanos("cpu=1"))},
    ask=Ask(number=3, first=FIVE, wanted=FIVE),
    held_back=(CLUSTER,),
)
GRANT = Grant(incarnation="m", account="a", granted=nanos("cpu=9"), returned=nanos("cpu=1"), answered=4)


def step(account: Account, grant: Grant = GRANT, *, withdrawn: bool = True) -> plan.Step:
    progress = Progress(claimed=1, life="a")
    return plan.next_step(account, grant, progress, [], term=1, window=10, now=0, withdrawn=withdrawn)[0]


def test_a_closed_account_has_nothing_and_holds_nothing_also_of_what_was_granted_meanwhile() -> None:
    assert step(ACCOUNT) == Close()
    closed = fencing.close(ACCOUNT, 1, GRANT, "n")
    accounts.check(closed)
    assert fencing.is_closed(closed) and not any(accounts.held(closed).values())
    assert (closed.granted, closed.returned) == (nanos("cpu=9"), nanos("cpu=9"))
    assert (closed.used, closed.reservations, closed.held_back, closed.ask) == ({}, {}, (), Ask(number=4))
    answer = msgspec.structs.replace(GRANT, nonce="n", returned=nanos("cpu=9"))
    assert (step(closed), step(closed, answer)) == (Rest(), Rest())
    assert step(closed, answer, withdrawn=False) == Wait(10), "what was admitted before may be on its way"
    more = msgspec.structs.replace(answer, granted=nanos("cpu=12"))
    assert step(closed, more) == Close(), "it was granted before, and came late"


def test_it_is_closed_only_by_what_the_master_knows_of_it() -> None:
    fenced = fencing.fence(ACCOUNT, "n")
    assert step(fenced) == Rest(), "the master has not answered"
    assert step(fenced, msgspec.structs.replace(GRANT, nonce="n")) == Close()
    assert step(ACCOUNT, Grant(incarnation="another")) == Fence()
    assert fencing.close(fenced, 1, GRANT, "o") == fenced
    with pytest.raises(accounts.StaleEpochError):
        fencing.close(ACCOUNT, 2, GRANT, "n")


class Seed:
    """Its leader, and what that has published."""

    def __init__(self, world: SeedWorld) -> None:
        self.world = world
        self.published: list[dict[str, Any]] = []
        self.leader = Accounts(
            cast(Cluster, SimpleNamespace(apply=self._apply)),
            world.registry,
            {},
            term=Term(1, "", was_expired=False, created=False, continuous=True, since=0),
            raise_term=_raised,
            in_flight_window=1.0,
            known=lambda quota: (quota.generation, {}),
        )

    async def _apply(self, _resource: object, body: dict[str, Any], **_how: object) -> None:
        self.published.append(msgspec.to_builtins(body["status"]["account"]))

    async def look(self) -> None:
        await self.leader._reconcile("eu")


async def _raised(above: int) -> int:
    return above + 1


@asynccontextmanager
async def seed_with_quota() -> AsyncIterator[Seed]:
    """A quota of some seeds that this one holds 16 of, 8 of which are used."""
    async with seed_world() as world:
        subject = {"kind": "project", "name": PROJECT, "seeds": {"names": ["eu-1"]}}
        await world.quota("eu", limits="cpu=16", granted="cpu=16", subject=subject)
        assert (await create(world, "a")).refusal is None
        yield Seed(world)


async def test_a_quota_that_is_withdrawn_limits_nothing_and_its_leader_says_when_all_is_given_back() -> None:
    async with seed_with_quota() as seed:
        world, life = seed.world, seed.world.account("eu").incarnation
        for _ in range(2):
            await seed.look()
        assert seed.published[-1].get("withdrawn", "") == ""
        world.tell("eu", withdrawn="token")
        assert world.quota_cache.quota("eu") is None
        assert world.quota_cache.quotas_of(Consumer(PROJECT, CLUSTER)) == []
        for _ in range(3):
            await seed.look()
        account = world.account("eu")
        assert (account.incarnation, fencing.is_closed(account)) == (life, True)
        last = seed.published[-1]
        assert (last["withdrawn"], last["granted"], last["returned"]) == ("token", {"cpu": "16"}, {"cpu": "16"})
        assert (last["enforcedGeneration"], last["nonce"]) == (0, account.nonce)

        world.tell("eu", withdrawn="", returned={"cpu": "16"}, nonce=account.nonce)
        quota = world.quota_cache.quota("eu")
        assert quota is not None and quota.is_of_a_part
        refused = await create(world, "b")
        assert refused.refusal is not None and refused.refusal.code == 503, "what is there is not counted yet"


@pytest.mark.parametrize("seeds", [None, {"names": ["eu-1"]}])
async def test_where_the_master_is_a_quota_of_some_seeds_limits_something_once_the_master_says_so(
    seeds: dict[str, object] | None,
) -> None:
    async with seed_world() as world:
        world.quota_cache.in_cluster = True

        def comes(**grant: object) -> bool:
            subject = {"kind": "project", "name": PROJECT} | ({"seeds": seeds} if seeds is not None else {})
            body = {
                "metadata": {"name": "eu", "uid": "eu-uid", "labels": {UID_LABEL: "other"}},
                "spec": {"subject": subject, "quota": {"cpu": "4"}},
                "status": {"grant": grant},
            }
            world.quota_cache._quota_changed(Change(None, msgspec.convert(body, ResourceQuota)))
            return world.quota_cache.quota("eu") is not None

        assert comes() is (seeds is None)
        assert comes(incarnation="m")
        assert not comes(incarnation="m", withdrawn="token")
