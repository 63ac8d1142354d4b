"""What a namespace counts with while a ResourceQuota that rests on another is on its way (rule 4.14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from common.api.types import UserCluster
from common.kube.client.meta import ObjectMeta
from common.quota import account as accounts
from common.quota import reservations
from common.quota.account import Admitted, Reservation
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.evaluators.resource_quotas import EVALUATOR, CoreQuota, CoreQuotaSpec
from seed.kinds.namespaces.promise_totals import PromiseTotals
from seed.model.consumer import Consumer
from seed.model.source_key import SourceKey
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.seed.accounts.test_usage_writer import WINDOW, FakeSource, Leading, countings
from tests.unit.seed_world import CLUSTER_UID, PROJECT, nanos, seed_world

NAME = "allocation.ann"
KEY = SourceKey.of_namespaces(f"{NAME}-uid", f"{PROJECT}/c1")
SUBJECT = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}, "counts": "ResourceQuotas"}


class Promises(FakeSource):
    key = KEY
    consumer = Consumer("", f"{PROJECT}/c1", NAME)

    def __init__(self) -> None:
        super().__init__()
        self.totals = cast(Any, PromiseTotals(Terms(limited=frozenset({"pods"}), promises=True)))
        self.lists_at_once = True


class Web(Leading):
    """Its one namespace. `source` is what the leader counts there."""

    promises: Promises

    def see(self, name: str, pods: int) -> None:
        metadata = ObjectMeta(name=name, namespace="web", uid=f"{name}-uid", resource_version="7")
        quota = CoreQuota(metadata=metadata, spec=CoreQuotaSpec(hard={"pods": pods}))
        cast(PromiseTotals, self.promises.totals).put(EVALUATOR, quota, 0.0)
        self.count()

    def lose(self, name: str) -> None:
        cast(PromiseTotals, self.promises.totals).remove(f"{name}-uid")
        self.count()

    def count(self) -> None:
        self.counting.changed(cast(Any, self.promises), freed=True)

    async def claim(self, name: str, amount: str, base: str = "") -> Admitted:
        kept = Reservation(
            source=KEY, object=f"resourcequotas:web/{name}", amount=nanos(amount), base=nanos(base) if base else {}
        )
        deadline = asyncio.get_running_loop().time() + 30
        outcome = await self.world.handle(NAME).writer.claim(f"{name}-uid", kept, deadline)
        assert isinstance(outcome, Admitted)
        return outcome

    @property
    def used(self) -> dict[str, int]:
        return dict(self.world.account(NAME).used.get(KEY, {}))


@pytest_asyncio.fixture
async def found(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Web]:
    monkeypatch.setattr(countings, "RETRY_DELAY", 0.01)
    async with seed_world() as world:
        taking_part = {
            "metadata": {"name": "c1", "namespace": PROJECT, "uid": CLUSTER_UID},
            "spec": {"project": PROJECT, "namespaceQuotas": "Enabled", "kubeconfigSecretRef": {"name": "c1"}},
        }
        world.cluster_cache.user_clusters.store._set(f"{PROJECT}/c1", msgspec.convert(taking_part, UserCluster))
        await world.quota(NAME, limits="pods=50", granted="pods=50", subject=SUBJECT)
        found = Web(world)
        found.promises = Promises()
        found.promises.lists = 1
        found.sources[KEY] = found.promises
        async with running(found.accounts.run(), found.counting.run()):
            yield found
        accounts.check(world.account(NAME))


async def test_what_another_rests_on_stays_counted_until_that_came_or_never_will(found: Web) -> None:
    found.see("default", 40)
    await eventually(lambda: found.used == nanos("pods=40"))
    found.promises.unreachable = True
    await found.claim("new", "pods=4", "pods=40")
    found.lose("default")
    await asyncio.sleep(4 * WINDOW)
    assert found.used == nanos("pods=40")
    found.promises.unreachable = False  # it never came
    await eventually(lambda: not found.world.account(NAME).reservations)
    await eventually(lambda: found.used == {})


async def test_when_it_is_seen_the_namespace_counts_with_what_is_there(found: Web) -> None:
    found.see("default", 40)
    await eventually(lambda: found.used == nanos("pods=40"))
    found.promises.unreachable = True
    await found.claim("new", "pods=4", "pods=40")
    found.lose("default")
    found.see("new", 44)
    await eventually(lambda: found.used == nanos("pods=44") and not found.world.account(NAME).reservations)


async def test_what_was_counted_for_a_claim_that_is_undone_is_counted_no_more(found: Web) -> None:
    found.see("default", 40)
    await eventually(lambda: found.used == nanos("pods=40"))
    found.promises.unreachable = True
    admitted = await found.claim("new", "pods=4", "pods=40")
    found.lose("default")
    await asyncio.sleep(4 * WINDOW)
    change = found.world.handle(NAME).writer.change
    await change(lambda present: (reservations.cancel(present, "new-uid", admitted), None))
    await eventually(lambda: found.used == {})


async def test_what_goes_on_evidence_leaves_its_amount_where_another_rests_on_it(found: Web) -> None:
    """It was created and deleted, and no watch has brought either."""
    found.promises.unreachable = True
    await found.claim("gone", "pods=40")
    await found.claim("new", "pods=4", "pods=40")
    found.promises.generations["new-uid"] = 7
    least: list[int] = []
    stop = found.world.registry.on_account(
        lambda name, account: least.append(accounts.use(account).get("pods", 0)) if account and name == NAME else None
    )
    found.promises.unreachable = False
    await eventually(lambda: len(found.world.account(NAME).reservations) == 1)
    stop()
    assert min(least) == nanos("pods=44")["pods"]
