"""What a seed answers about core ResourceQuotas in the namespaces of an allocation."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.kube.client.errors import ApiError, Unavailable
from seed.admission import denial
from seed.admission.decision_log import Decisions
from seed.admission.decision_log import record as record_of
from seed.admission.replay import replay
from seed.kinds.namespaces import promises
from seed.kinds.namespaces.configuration import Asked, limits_of
from seed.kinds.namespaces.evaluators.resource_quotas import CoreQuota
from tests.running import running
from tests.unit import fake_api_server as fakes
from tests.unit.seed.kinds.namespaces.test_webhook import Caller, caller, named, review
from tests.unit.seed_world import nanos

__all__ = ["caller"]

ALLOCATION = {
    "subject": {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}, "counts": "ResourceQuotas"}
}
NAME = "allocation.ann"


def quota(name: str, version: str = "", **hard: str) -> dict:
    amounts = {key.replace("__", "."): amount for key, amount in hard.items()}
    return {"metadata": named(name, version=version), "spec": {"hard": amounts}}


class Allocated:
    """Namespace web belongs to ann. `there`: its ResourceQuotas, as a read finds them."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.there: list[dict] = []
        self.reads = 0
        self.error: ApiError | None = None
        self.on_read: Callable[[int], None] = lambda _number: None
        caller.namespaces.connection = self.connection  # type: ignore[attr-defined]

    def connection(self, _cluster: str) -> Any:
        return SimpleNamespace(list=self.list)

    async def list(self, _resource: object, namespace: str, *, limit: int) -> Any:
        assert namespace == "web"
        self.reads += 1
        self.on_read(self.reads)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(items=[msgspec.convert(each, CoreQuota) for each in self.there])

    async def limit(self, limits: str, name: str = NAME, **spec: object) -> None:
        await self.caller.world.quota(name, limits=limits, granted=limits, **{**ALLOCATION, **spec})

    async def ask(self, new: dict, old: dict | None = None, **request: object) -> dict:
        status, body = await self.caller.post(review(new, old, resource="resourcequotas", **request))  # type: ignore[arg-type]
        assert status == 200, body
        return json.loads(body)["response"]

    async def refused(self, new: dict, old: dict | None = None) -> tuple[int, str]:
        answer = await self.ask(new, old)
        assert not answer["allowed"]
        return answer["status"]["code"], answer["status"]["message"].rpartition("; decision ")[0]

    @property
    def kept(self) -> Any:
        (kept,) = self.caller.world.account(NAME).reservations.values()
        return kept


@pytest.fixture
async def web(caller: Caller) -> AsyncIterator[Allocated]:
    yield Allocated(caller)


async def test_a_resource_quota_reserves_what_it_promises(web: Allocated) -> None:
    await web.limit("pods=50,requests.cpu=20")
    assert (await web.ask(quota("default", pods="20", requests__cpu="5", secrets="9")))["allowed"]
    assert web.caller.use(NAME) == nanos("pods=20,requests.cpu=5")
    assert (web.kept.object, web.kept.base) == ("resourcequotas:web/default", {})
    assert web.reads == 1, "it rests on no other: nothing has to be read again"
    assert web.caller.kinds == ["ResourceQuota"]


async def test_beyond_the_allocation_nothing_is_promised(web: Allocated) -> None:
    await web.limit("pods=50")
    assert (await web.ask(quota("default", pods="20")))["allowed"]
    code, message = await web.refused(quota("terminating", pods="31"))
    assert (code, message) == (
        403,
        "exceeded quota: resourcequotaallocation/ann, requested: pods=31, used: pods=20, limited: pods=50; "
        "short by pods=1; retrying helps only after something is deleted",
    )
    assert (await web.ask(quota("terminating", pods="30")))["allowed"]


async def test_only_what_goes_beyond_the_others_of_the_namespace_costs(web: Allocated) -> None:
    await web.limit("pods=10")
    web.there = [quota("default", "7", pods="8")]
    assert (await web.ask(quota("terminating", pods="10")))["allowed"]
    assert web.caller.use(NAME) == nanos("pods=2")
    assert web.kept.base == nanos("pods=8")
    assert web.reads == 2, "what it rests on was there after the reservation was written"


async def test_within_what_another_promises_it_costs_nothing_and_names_that(web: Allocated) -> None:
    await web.limit("pods=8")
    web.there = [quota("default", "7", pods="8")]
    assert (await web.ask(quota("terminating", pods="5")))["allowed"]
    assert (web.kept.amount, web.kept.base) == ({}, nanos("pods=5"))


@pytest.mark.parametrize("left", [[], [quota("default", "8", pods="7")]])
async def test_if_the_other_goes_or_is_lowered_meanwhile_nothing_is_admitted_or_kept(
    web: Allocated, left: list[dict]
) -> None:
    await web.limit("pods=10")
    web.there = [quota("default", "7", pods="8")]

    def lowered(number: int) -> None:
        if number == 2:
            web.there = left

    web.on_read = lowered
    why = "another ResourceQuota of namespace web was lowered at the same time"
    assert await web.refused(quota("terminating", pods="10")) == (503, f"quota of the namespace cannot decide: {why}")
    assert not web.caller.world.account(NAME).reservations
    assert (await web.ask(quota("terminating", pods="10")))["allowed"]


async def test_an_update_reserves_what_it_raises(web: Allocated) -> None:
    await web.limit("pods=50")
    web.there = [quota("default", "41", pods="20")]
    assert (await web.ask(quota("default", "41", pods="30"), quota("default", "41", pods="20")))["allowed"]
    assert web.caller.use(NAME) == nanos("pods=10")
    assert (web.kept.generation, web.kept.base) == (42, {})


async def test_lowering_is_always_allowed(web: Allocated) -> None:
    """Whatever is known, also where far too much is promised."""
    await web.limit("pods=1")
    web.error = web.caller.namespaces.error = Unavailable(0, "Unavailable", "no answer")
    web.caller.stale = "this replica is behind"
    assert (await web.ask(quota("default", "41", pods="20"), quota("default", "41", pods="30")))["allowed"]
    assert not web.caller.world.account(NAME).reservations


async def test_nothing_is_reserved_for_what_exists_already(web: Allocated) -> None:
    """The API server would refuse it later, and what is reserved would stay for a minute."""
    await web.limit("pods=50")
    web.there = [{"metadata": named("default", version="7") | {"uid": "another"}, "spec": {"hard": {"pods": "1"}}}]
    assert (await web.ask(quota("default", pods="20")))["status"]["reason"] == "AlreadyExists"
    assert web.caller.use(NAME) == {}


async def test_where_the_others_cannot_be_read_it_is_to_be_tried_again(web: Allocated) -> None:
    await web.limit("pods=50")
    web.error = Unavailable(0, "Unavailable", "no answer")
    code, message = await web.refused(quota("default", pods="1"))
    assert code == 503
    assert "the ResourceQuotas of namespace web cannot be read: Unavailable" in message


async def test_of_several_allocations_the_most_restrictive_decides(web: Allocated) -> None:
    await web.limit("pods=50")
    await web.limit("pods=5", "allocation.small")
    code, message = await web.refused(quota("default", pods="6"))
    assert (code, message.partition(",")[0]) == (403, "exceeded quota: resourcequotaallocation/small")
    assert web.caller.use(NAME) == {}
    assert (await web.ask(quota("default", pods="5")))["allowed"]
    assert web.caller.use(NAME) == web.caller.use("allocation.small") == nanos("pods=5")


async def test_a_limit_that_is_lowered_while_the_namespace_is_read_decides(web: Allocated) -> None:
    """The master has answered others a moment ago: by the old limit it fits, by the new one it does not."""
    world = web.caller.world
    for name in (NAME, "allocation.other"):
        await world.quota(name, limits="pods=10", granted="pods=4", used="pods=4", **ALLOCATION)
    waiting = asyncio.create_task(web.ask(quota("large", pods="5")))
    await world.asked(NAME)
    world.tell(NAME, answered=1, usage="pods=4")

    def lowered(_number: int) -> None:
        world.limit(NAME, {"pods": "4"})

    async def the_other_is_full() -> None:
        for number in itertools.count(1):
            await world.asked("allocation.other", number)
            world.tell("allocation.other", answered=number, usage="pods=10")

    web.on_read = lowered
    async with running(the_other_is_full()):
        code, message = await web.refused(quota("default", pods="2"))
        assert (code, message.partition("; short")[0]) == (
            403,
            "exceeded quota: resourcequotaallocation/ann, requested: pods=2, used: pods=4, limited: pods=4",
        )
        assert not (await waiting)["allowed"]


async def test_beside_an_allocation_the_number_of_resource_quotas_is_limited(web: Allocated) -> None:
    counting = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}
    await web.limit("pods=50")
    await web.limit("resourcequotas=1", "number", subject=counting)
    assert (await web.ask(quota("default", pods="5")))["allowed"]
    code, message = await web.refused(quota("terminating", pods="5"))
    assert (code, message.partition(",")[0]) == (403, "exceeded quota: number")
    assert web.caller.use(NAME) == nanos("pods=5")


async def test_a_dry_run_reserves_nothing(web: Allocated) -> None:
    await web.limit("pods=50")
    web.there = [quota("default", "7", pods="8")]
    assert (await web.ask(quota("terminating", pods="10"), dry_run=True))["allowed"]
    assert (web.caller.use(NAME), web.reads) == ({}, 1)


async def test_pods_are_no_concern_of_an_allocation(web: Allocated) -> None:
    await web.limit("pods=0")
    pod = {"metadata": named(), "spec": {"containers": [{"name": "web"}]}}
    assert (await web.caller.ask(pod))["allowed"]
    quota = web.caller.world.quota_cache.quota(NAME)
    assert quota is not None and quota.selector is not None
    limits = limits_of(quota, quota.selector)
    assert limits.asked == {Asked("", "resourcequotas", operation) for operation in ("CREATE", "UPDATE")}


async def test_a_namespace_with_very_large_quotas_is_not_read_to_its_end(
    web: Allocated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each admission there reads all of them, and others wait meanwhile."""
    monkeypatch.setitem(fakes.PLURALS, "resourcequotas", ("v1", "ResourceQuota"))
    await web.limit("pods=50")
    async with fakes.fake_api_server() as api:
        for number in range(3):
            annotations = {"a": "x" * (promises.MOST // 2)}
            await api.put("resourcequotas", "web", f"q{number}", metadata={"annotations": annotations})
        cluster = api.cluster()
        monkeypatch.setattr(web, "list", cluster.list)
        code, message = await web.refused(quota("default", pods="2"))
    assert code == 503
    assert "its resourcequotas take more than 1 MiB" in message
    assert web.caller.use(NAME) == {}


async def test_what_is_used_is_promised_already(web: Allocated) -> None:
    """Of a quota that was lowered below its use, and of another one of the namespace."""
    await web.limit("pods=10")
    lowered = {**quota("default", "7", pods="1"), "status": {"used": {"pods": "6"}}}
    raised = {**quota("default", "7", pods="6"), "status": {"used": {"pods": "6"}}}
    assert (await web.ask(raised, lowered))["allowed"]
    assert web.reads == 0, "nothing is added"
    more = {**quota("default", "7", pods="9"), "status": {"used": {"pods": "6"}}}
    assert (await web.ask(more, lowered))["allowed"]
    assert web.caller.use(NAME) == nanos("pods=3")
    web.there = [lowered]
    assert (await web.ask(quota("other", pods="8")))["allowed"]
    assert web.caller.use(NAME) == nanos("pods=5")


async def test_what_core_still_admits_by_is_promised_already(web: Allocated) -> None:
    """kube-controller-manager has not lowered the status yet."""
    await web.limit("pods=10")
    lowered = {**quota("default", "7", pods="1"), "status": {"hard": {"pods": "6"}}}
    raised = {**quota("default", "7", pods="6"), "status": {"hard": {"pods": "6"}}}
    assert (await web.ask(raised, lowered))["allowed"]
    assert web.reads == 0, "nothing is added"
    web.there = [lowered]
    assert (await web.ask(quota("other", pods="8")))["allowed"]
    assert (web.caller.use(NAME), web.kept.base) == (nanos("pods=2"), nanos("pods=6"))


TERMINATING = {"scopes": ["Terminating"]}
BY_SELECTOR = {"scopeSelector": {"matchExpressions": [{"scopeName": "Terminating", "operator": "Exists"}]}}


def scoped(found: dict, *several: dict) -> dict:
    return {**found, "spec": {key: value for each in (found["spec"], *several) for key, value in each.items()}}


@pytest.mark.parametrize("scope", [TERMINATING, BY_SELECTOR], ids=["scopes", "selector"])
async def test_an_allocation_with_scopes_counts_the_resource_quotas_that_have_them(web: Allocated, scope: dict) -> None:
    await web.limit("pods=10", **TERMINATING)
    web.there = [quota("default", "7", pods="8"), scoped(quota("other", "7", pods="2"), {"scopes": ["BestEffort"]})]
    assert (await web.ask(quota("another", pods="99")))["allowed"]
    assert not web.caller.world.account(NAME).reservations
    code, message = await web.refused(scoped(quota("terminating", pods="11"), scope))
    assert (code, "requested: pods=11, used: pods=0, limited: pods=10" in message) == (403, True)
    assert (await web.ask(scoped(quota("terminating", pods="10"), scope)))["allowed"]
    assert (web.kept.amount, web.kept.base) == (nanos("pods=10"), {}), "what has other scopes is no base"


async def test_a_resource_quota_that_gets_the_scopes_is_new_to_the_allocation(web: Allocated) -> None:
    """An API server lets the selector of scopes change. Else it would bring any amount into them, with no raise."""
    await web.limit("pods=10", **TERMINATING)
    before, after = quota("default", "41", pods="11"), scoped(quota("default", "41", pods="11"), BY_SELECTOR)
    assert (await web.refused(after, before))[0] == 403
    assert (await web.ask(before, after))["allowed"], "it leaves them"
    assert (await web.ask(scoped(quota("default", "41", pods="9"), BY_SELECTOR), before))["allowed"]
    assert (web.kept.amount, web.kept.generation) == (nanos("pods=9"), 42)


async def test_each_allocation_reads_what_others_promise_by_its_own_scopes_again(web: Allocated) -> None:
    await web.limit("pods=50")
    await web.limit("pods=50", "allocation.terminating", **TERMINATING)
    web.there = [quota("default", "7", pods="20"), scoped(quota("first", "7", pods="8"), TERMINATING)]

    def lowered(number: int) -> None:
        if number == 2:
            web.there = [quota("default", "7", pods="20"), scoped(quota("first", "8", pods="7"), TERMINATING)]

    asked = scoped(quota("second", pods="12"), TERMINATING)
    web.on_read = lowered
    assert (await web.refused(asked))[0] == 503, "the first of its scopes is lower, though another promises more"
    assert (await web.ask(asked))["allowed"]
    kept = {
        name: next(iter(web.caller.world.account(name).reservations.values()))
        for name in (NAME, "allocation.terminating")
    }
    assert (kept[NAME].amount, kept[NAME].base) == ({}, nanos("pods=12"))
    second = kept["allocation.terminating"]
    assert (second.amount, second.base) == (nanos("pods=5"), nanos("pods=7"))


async def test_the_api_server_asks_about_a_new_selector_of_scopes(web: Allocated) -> None:
    await web.limit("pods=10", **TERMINATING)
    found = web.caller.world.quota_cache.quota(NAME)
    assert found is not None and found.selector is not None
    assert limits_of(found, found.selector).read == {"scopeSelector", "scopes"}


async def test_messages_name_the_allocation_and_programs_find_its_quota(web: Allocated) -> None:
    await web.limit("pods=10", enforcement="warn")
    allowed = await web.ask(quota("default", pods="11"))
    assert allowed["warnings"] == [
        "resourcequotaallocation/ann: over by pods=1 (11/10); allowed because enforcement is warn"
    ]
    found = web.caller.world.quota_cache.quota(NAME)
    assert found is not None
    refusal = denial.cannot_decide(found, "the master did not answer in time")
    assert (refusal.text.partition(" cannot")[0], refusal.quota) == ("quota resourcequotaallocation/ann", NAME)


async def test_a_refusal_of_an_allocation_is_made_again_from_its_facts(web: Allocated) -> None:
    await web.limit("pods=10")
    page = Decisions()
    web.caller.endpoint._decisions = page
    await web.refused(quota("default", pods="11"))
    (record,) = [record_of(made) for made in page._latest()]
    (again,) = replay(record).quotas
    assert (again.name, again.as_then) == (NAME, True)
