"""Which quotas are new: those that nothing was ever admitted by, and that no webhook needs to ask about yet."""

from __future__ import annotations

import msgspec
import pytest

from common.api.types import ResourceQuota
from common.quota.account import Account
from seed.model.quota import Quota
from tests.unit.seed_world import SeedWorld, nanos

FENCED = Account(incarnation="life", epoch=1, nonce="n")


def shown(world: SeedWorld, **account: object) -> Quota:
    """The copy of a quota, with what a leader has published of its account."""
    body = {
        "metadata": {"name": "ann", "uid": "ann-copy", "labels": {"seedquota.io/uid": "ann-uid"}},
        "spec": {"subject": {"kind": "namespaces", "selector": {}}, "quota": {"pods": "1"}},
        "status": {"account": account},
    }
    world._put(msgspec.convert(body, ResourceQuota))
    quota = world.quota_cache.quota("ann")
    assert quota is not None
    return quota


async def test_a_quota_is_new_until_its_account_was_open(world: SeedWorld) -> None:
    quota = shown(world)
    assert world.registry.is_new(quota), "it has no account"
    handle = world.handle("ann")
    await handle.writer.create(FENCED)
    quota = shown(world, incarnation="life", sequence=1, nonce="n")
    assert world.registry.is_new(quota)
    await handle.writer.change(lambda found: (msgspec.structs.replace(found, nonce="", master="m"), None))
    assert not world.registry.is_new(quota)
    await handle.writer.change(lambda found: (msgspec.structs.replace(found, nonce="n2"), None))
    assert not world.registry.is_new(quota), "it was in force before this fence"


@pytest.mark.parametrize("account", [None, FENCED])
async def test_a_quota_whose_ledger_was_lost_is_not_new(world: SeedWorld, account: Account | None) -> None:
    """An API server that is not asked any more would create what the quota refused."""
    quota = shown(world, incarnation="life", sequence=8, enforcedGeneration=1)
    if account is not None:
        await world.handle("ann").writer.create(account)
    assert not world.registry.is_new(quota)


async def test_a_quota_that_was_granted_something_is_not_new(world: SeedWorld) -> None:
    shown(world)
    await world.handle("ann").writer.create(FENCED)
    world.tell("ann", granted={"pods": "1"})
    quota = world.quota_cache.quota("ann")
    assert quota is not None and quota.grant.granted == nanos("pods=1")
    assert not world.registry.is_new(quota)


async def test_a_quota_of_which_a_leader_published_something_is_not_new_while_its_account_is_not_read(
    world: SeedWorld,
) -> None:
    assert not world.registry.is_new(shown(world, incarnation="life", sequence=1, nonce="n"))
