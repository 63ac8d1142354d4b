"""When the ledger of a quota that is not there any more is deleted: only when a fresh read finds no copy of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from common.api.labels import UID_LABEL
from common.api.types import ResourceQuota
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound, Unavailable
from common.kube.controller.leader_election import Term
from common.quota.account import Account, AccountKey
from seed.accounts import controller
from seed.accounts.controller import Accounts
from tests.unit.seed_world import PROJECT, SeedWorld, seed_world

NAME = "project-alpha"
KEY = AccountKey(uid="quota-uid", name=NAME)


def copy(uid: str) -> ResourceQuota:
    body = {
        "metadata": {"name": NAME, "uid": "copy-uid", "labels": {UID_LABEL: uid}},
        "spec": {"subject": {"kind": "project", "name": PROJECT}, "quota": {"cpu": "4"}},
    }
    return msgspec.convert(body, ResourceQuota)


def leader(world: SeedWorld, found: ResourceQuota | ApiError) -> Accounts:
    """`found`: by a fresh read of the copy."""

    async def get(_resource: object, _name: str) -> ResourceQuota:
        if isinstance(found, ApiError):
            raise found
        return found

    async def raise_term(above: int) -> int:
        return above + 1

    made = Accounts(
        cast(Cluster, SimpleNamespace(get=get)),
        world.registry,
        {},
        term=Term(1, "", was_expired=False, created=False, continuous=True, since=0),
        raise_term=raise_term,
        in_flight_window=1.0,
    )
    made._keys[NAME] = KEY
    return made


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (NotFound(404, "NotFound", "gone"), False),
        (copy("another-uid"), False),
        (copy(KEY.uid), True),  # the watch cache lags
    ],
)
async def test_a_ledger_goes_when_a_fresh_read_finds_no_copy_of_its_quota(
    monkeypatch: pytest.MonkeyPatch, found: ResourceQuota | ApiError, kept: bool
) -> None:
    monkeypatch.setattr(controller, "LEDGER_KEPT", 0.0)
    async with seed_world() as world:
        await world.store.save(KEY, Account(incarnation="life"), None)
        await leader(world, found)._reconcile(NAME)
        assert (await world.store.load(KEY) is not None) == kept


async def test_while_that_cannot_be_read_or_for_a_while_after_the_copy_went_it_stays(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.store.save(KEY, Account(incarnation="life"), None)
    gone = leader(world, NotFound(404, "NotFound", "gone"))
    wait = await gone._reconcile(NAME)
    assert wait is not None and wait > 0, "the master may put it back"
    monkeypatch.setattr(controller, "LEDGER_KEPT", 0.0)
    with pytest.raises(Unavailable):
        await leader(world, Unavailable(0, "Unavailable", "no answer"))._reconcile(NAME)
    assert await world.store.load(KEY) is not None
    await gone._reconcile(NAME)
    assert await world.store.load(KEY) is None


async def test_a_quota_that_goes_while_it_is_looked_at_waits_for_nothing_any_more(world: SeedWorld) -> None:
    await world.quota(limits="cpu=4")
    accounts, quota = leader(world, NotFound(404, "NotFound", "gone")), world.quota_cache.quota(NAME)
    assert quota is not None
    world.remove(NAME)
    await accounts._say_wait(quota, ledger=True)  # by the look that began before it went
    await accounts._reconcile(NAME)
    assert accounts.waits.of(quota) is None
