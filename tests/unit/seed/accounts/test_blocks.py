"""What the leader does with blocks of replicas, and with what they named late."""

from __future__ import annotations

import math
from typing import cast

import msgspec
import pytest

from common.kube.controller.store import Change
from common.quota import account as accounts
from common.quota import blocks, escrow
from common.quota.account import Account, Reservation
from seed.usage.source import UsageSource
from tests.unit.fake_api_server import eventually
from tests.unit.seed.accounts.test_usage_writer import KEY, WINDOW, Leading, leading, use
from tests.unit.seed.kinds.machines.test_totals import machine
from tests.unit.seed_world import nanos

CPU = nanos("cpu=8")


def late(name: str) -> Reservation:
    return Reservation(source=KEY, object=f"ns/{name}", amount=CPU, request=name)


async def hold(leader: Leading, owner: str, number: int) -> None:
    """A replica takes a block of the size of one Machine."""

    def held(account: Account) -> tuple[Account, None]:
        return blocks.hold(account, owner, CPU, number), None

    await leader.world.handle().writer.change(held)


async def name(leader: Leading, owner: str, uid: str) -> None:
    """... and names one that it admitted from that."""

    def named(account: Account) -> tuple[Account, None]:
        return blocks.named(blocks.without(account, [owner]), {(KEY, f"{uid}-uid"): late(uid)}), None

    await leader.world.handle().writer.change(named)


async def test_what_was_counted_before_it_was_named_is_in_the_account_once_soon(leader: Leading) -> None:
    await hold(leader, "replica", 1)
    leader.there("a")
    leader.changed()
    await eventually(lambda: KEY in leader.world.account().used)
    await name(leader, "replica", "a")
    assert use(leader.world) == 16
    assert blocks.sure_use(leader.world.account())["cpu"] == CPU["cpu"], "it is certain once"
    assert escrow.report(leader.world.account()).reserved == {}, "else the master would cover it"
    await eventually(lambda: use(leader.world) == 8)


async def test_what_is_named_and_not_counted_yet_is_certain_after_the_next_count(leader: Leading) -> None:
    leader.source.unreachable = True  # so that there is no evidence that it never came
    await hold(leader, "replica", 1)
    await name(leader, "replica", "a")
    assert blocks.sure_use(leader.world.account())["cpu"] == 0
    await eventually(lambda: blocks.sure_use(leader.world.account()) == CPU)
    assert use(leader.world) == 8


async def test_a_block_that_its_owner_writes_stays(leader: Leading) -> None:
    leader.source.lists_at_once = True
    lists = leader.source.lists
    for number in range(10):
        await hold(leader, "replica", number)
        await leader.counting._blocks.take(*_of(leader))
    assert blocks.owners(leader.world.account())
    assert leader.source.lists == lists


async def test_the_block_of_a_replica_that_is_gone_is_free_once_all_sources_were_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seed.accounts.usage_writer.CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch) as leader:
        await hold(leader, "gone", 1)
        demanded = leader.source.demanded
        await eventually(lambda: leader.source.demanded > demanded)
        assert blocks.owners(leader.world.account()), "what was admitted from it may not have been seen"
        leader.there("a")  # the list has what came of it
        leader.source.lists += 1
        await eventually(lambda: not blocks.owners(leader.world.account()))
        assert leader.world.account().used[KEY]["cpu"] == CPU["cpu"]
        assert use(leader.world) == 8


async def test_a_block_stays_while_the_caches_may_be_older_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster in which its owner admitted something may not be known here."""
    monkeypatch.setattr("seed.accounts.usage_writer.CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch) as leader:
        leader.proven_at = -math.inf
        leader.counting._blocks._after = 0.0
        leader.source.lists_at_once = True
        await hold(leader, "gone", 1)
        for _ in range(3):
            await leader.counting._blocks.take(*_of(leader))
        assert blocks.owners(leader.world.account())
        leader.proven_at = math.inf
        await eventually(lambda: not blocks.owners(leader.world.account()))


async def test_a_block_stays_while_a_source_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seed.accounts.usage_writer.CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch) as leader:
        await hold(leader, "gone", 1)
        demanded = leader.source.demanded
        await eventually(lambda: leader.source.demanded > demanded)
        quota, account = _of(leader)[1:]
        for _ in range(3):
            await leader.counting._blocks.take(leader.world.handle(), quota, account)
        assert blocks.owners(leader.world.account())


async def test_a_block_stays_while_the_size_of_something_that_came_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have been admitted from the block, at the size that its cloud told the replica."""
    monkeypatch.setattr("seed.accounts.usage_writer.CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch) as leader:
        await hold(leader, "gone", 1)
        leader.source.totals.apply(Change(None, machine("unsized", None)))
        demanded = leader.source.demanded
        await eventually(lambda: leader.source.demanded > demanded)
        leader.source.lists += 1
        for _ in range(3):
            await leader.counting._blocks.take(*_of(leader))
        assert blocks.owners(leader.world.account())
        leader.source.totals.apply(Change(machine("unsized", None), machine("unsized", "8")))
        await eventually(lambda: not blocks.owners(leader.world.account()))
        assert use(leader.world) == 8


async def test_a_new_leader_does_not_take_what_has_no_name_yet_for_counted(leader: Leading) -> None:
    """One Machine was counted, and its size is not known any more. Another was admitted from a block of its size."""
    await hold(leader, "replica", 1)
    account = msgspec.structs.replace(leader.world.account(), used={KEY: CPU})
    for present in machine("counted", None), machine("ahead", "8"):
        leader.source.totals.apply(Change(None, present))
    after = leader.accounts.counted(account, cast(UsageSource, leader.source), _of(leader)[1])
    assert after.used[KEY]["cpu"] == 2 * CPU["cpu"]


async def test_an_object_is_judged_once_each_replica_with_a_block_has_written(leader: Leading) -> None:
    leader.changed()
    await eventually(lambda: KEY in leader.counting._counted_in)
    await hold(leader, "replica", 1)
    unadmitted = leader.source.totals.unadmitted
    assert unadmitted is not None
    leader.there("a")
    await leader.counting._count(KEY)
    assert not unadmitted.found, "it may have been admitted from the block"
    await name(leader, "replica", "a")
    await leader.counting._count(KEY)
    assert not unadmitted.found
    assert not unadmitted.waiting
    await hold(leader, "replica", 2)
    leader.there("slipped")
    await leader.counting._count(KEY)
    assert not unadmitted.found
    await hold(leader, "replica", 3)
    await leader.counting._count(KEY)
    assert list(unadmitted.found) == ["slipped-uid"]


async def test_what_was_there_before_the_first_count_is_not_judged_while_a_replica_has_a_block(leader: Leading) -> None:
    await hold(leader, "replica", 1)
    leader.there("from-before")
    for number in (1, 2, 3):
        await leader.counting._count(KEY)
        await hold(leader, "replica", number)
    unadmitted = leader.source.totals.unadmitted
    assert unadmitted is not None
    assert not unadmitted.found and not unadmitted.waiting


async def test_what_a_replica_that_is_gone_may_have_admitted_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seed.accounts.usage_writer.CHECK_INTERVAL", 0.02)
    async with leading(monkeypatch) as leader:
        await leader.counting._count(KEY)
        await hold(leader, "gone", 1)
        leader.there("a")
        leader.changed()
        await eventually(lambda: KEY in leader.counting._unnamed)
        demanded = leader.source.demanded
        await eventually(lambda: leader.source.demanded > demanded)
        leader.source.lists += 1
        await eventually(lambda: not blocks.owners(leader.world.account()))
        unadmitted = leader.source.totals.unadmitted
        assert unadmitted is not None
        await eventually(lambda: not unadmitted.waiting)
        assert not unadmitted.found
        leader.there("a", "slipped")
        await leader.counting._count(KEY)
        assert list(unadmitted.found) == ["slipped-uid"]


def test_a_block_is_a_part_of_what_is_used_and_not_of_what_is_reported() -> None:
    account = blocks.hold(Account(incarnation="life", granted=CPU), "replica", CPU, 1)
    accounts.check(account)
    assert accounts.use(account) == CPU
    assert accounts.free(account, CPU) == {"cpu": 0}
    assert accounts.give_back(account, CPU) is account
    assert escrow.report(account).reserved == {}
    assert not accounts.sources(account)


def _of(leader: Leading):  # type: ignore[no-untyped-def]
    quota = leader.world.quota_cache.quota("project-alpha")
    assert quota is not None
    return leader.world.handle(), quota, msgspec.structs.replace(leader.world.account())


assert WINDOW < 1, "these tests wait for it"
