"""What the leader says of its accounts before an orderly end, so that the next start need not wait."""

from __future__ import annotations

import asyncio

import msgspec

from common.api.types import ResourceQuotaStatus, WireReport
from common.kube.client.meta import ObjectMeta
from common.quota import fencing
from master.cache.objects import QuotaCopy
from master.quotas.state import SeedAccount
from master.seeds.link import Run
from tests.unit.fake_api_server import eventually
from tests.unit.seed.accounts.test_usage_writer import Leading

RUN: Run = (1, 7)


def published(leader: Leading, number: int) -> WireReport:
    found = leader.cluster.published[number]["account"]
    assert isinstance(found, WireReport)
    return found


def copy(account: WireReport) -> QuotaCopy:
    return QuotaCopy(metadata=ObjectMeta(name="q"), status=ResourceQuotaStatus(account=account))


async def test_a_quiet_account_is_known_to_be_intact_by_a_master_that_started_since(leader: Leading) -> None:
    await eventually(lambda: leader.cluster.published)
    await asyncio.sleep(0.05)
    quiet = published(leader, -1)
    before = leader.world.account()
    await leader.accounts.confirm_all()
    confirmed = published(leader, -1)
    assert msgspec.structs.replace(confirmed, sequence=quiet.sequence) == quiet
    account = leader.world.account()
    assert confirmed.sequence == account.sequence == before.sequence + 1, "it is durable before it is published"

    known = SeedAccount()
    assert known.receive(copy(quiet), None)  # in the list with which the master starts
    assert known.receive(copy(confirmed), RUN)
    fenced = fencing.fence(account, "n", in_doubt=True)
    asks = msgspec.structs.replace(confirmed, sequence=account.sequence + 1, nonce="n")
    assert known.receive(copy(asks), RUN)
    assert known.remembered == (fenced.fenced_at, True)


async def test_of_what_is_fenced_or_anothers_nothing_is_confirmed(leader: Leading) -> None:
    await eventually(lambda: leader.cluster.published)
    leader.accounts.term = 2
    written = leader.world.account()
    said = len(leader.cluster.published)
    await leader.accounts._confirm(leader.world.quota_cache.quota("project-alpha"))  # type: ignore[arg-type]
    assert leader.world.account() == written and len(leader.cluster.published) == said


async def test_of_a_fenced_account_nothing_is_confirmed(leader: Leading) -> None:
    """Its counters are in doubt: that it was written once more must not say that they are intact."""
    await eventually(lambda: leader.cluster.published)
    await leader.world.handle().writer.change(lambda account: (fencing.fence(account, "n"), None))
    await eventually(lambda: published(leader, -1).nonce == "n")
    fenced = leader.world.account()
    await leader.accounts.confirm_all()
    assert leader.world.account() == fenced
    assert published(leader, -1).sequence == fenced.sequence


async def test_an_api_server_that_does_not_answer_does_not_keep_the_end(leader: Leading) -> None:
    await eventually(lambda: leader.cluster.published)
    leader.cluster.answers = False
    await leader.accounts.confirm_all()
