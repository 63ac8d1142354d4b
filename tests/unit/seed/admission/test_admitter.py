from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence

import msgspec
import pytest

from common.api.labels import SETTINGS
from common.api.types import QuotaSettings, SeedCopy, WireIdle
from common.kube.client.errors import ApiError, Forbidden, Unavailable
from common.quota import account as accounts
from common.quota import fencing, reservations
from common.quota.account import Account, AccountKey, Ask, Reservation
from seed.accounts import capacity
from seed.admission import quota_claim
from seed.admission.types import Replaceable, Request, Verdict
from seed.ledger.store import Stored, StoreUnavailableError
from seed.model.consumer import Consumer
from tests.memory_store import MemoryStore
from tests.unit.fake_api_server import eventually, within
from tests.unit.seed_world import PROJECT, SeedWorld, amounts, nanos, seed_world

SILENT = 3.0  # seconds for one whom the master does not answer; enough to be heard by the ledger


def request(
    uid: str = "u", need: str = "cpu=8", *, seconds: float = 30.0, dry_run: bool = False, generation: int = 0
) -> Request:
    kept = Reservation(source="alpha/c1", object=f"ns/{uid}", amount=nanos(need), generation=generation)
    return Request(
        uid=uid,
        consumer=Consumer(PROJECT),
        need=nanos(need),
        reservation=kept,
        dry_run=dry_run,
        deadline=asyncio.get_running_loop().time() + seconds,
    )


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the master answered does not grow old while the machine has other things to do."""
    monkeypatch.setattr(capacity, "FRESH", 60.0)


def message(found: Verdict) -> str:
    assert found.refusal is not None
    return found.message.rpartition("; decision ")[0]


async def test_what_fits_is_reserved_in_every_quota_that_applies(world: SeedWorld) -> None:
    await world.quota("project-alpha", limits="cpu=64", granted="cpu=16")
    await world.quota("org-acme", limits="cpu=128", granted="cpu=16", kind="organization")
    found = await world.admission.decide(request())
    assert found.refusal is None
    for name in ("project-alpha", "org-acme"):
        assert accounts.use(world.account(name)) == nanos("cpu=8")


async def test_machines_of_two_clusters_from_one_snapshot_have_equal_uids_and_each_costs(world: SeedWorld) -> None:
    await world.quota(limits="cpu=24", granted="cpu=24")
    restored = request(need="cpu=16")
    copied = msgspec.structs.replace(restored.reservation, source="alpha/c2")
    assert (await world.admission.decide(restored)).refusal is None
    refused = await world.admission.decide(msgspec.structs.replace(restored, reservation=copied))
    assert "requested: cpu=16, used: cpu=16, limited: cpu=24; short by cpu=8" in message(refused)


async def shared(world: SeedWorld, uid: str = "u", **needs: str) -> Verdict:
    """Decided by what each quota counts of the object."""
    shares = {
        name: Reservation(source=f"namespaces:{name}-uid:alpha/c1", object=f"pods:web/{uid}", amount=nanos(need))
        for name, need in needs.items()
    }
    asked = msgspec.structs.replace(request(uid), consumer=Consumer("", "alpha/c1"), shares=shares)
    quotas = [quota for name in needs if (quota := world.quota_cache.quota(name)) is not None]
    return await world.admission.decide(asked, quotas=quotas)


NAMESPACES = {"subject": {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}}


async def test_quotas_that_count_different_parts_of_an_object_each_hold_their_own(world: SeedWorld) -> None:
    await world.quota("project-alpha", limits="cpu=1", granted="cpu=1")
    await world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", **NAMESPACES)
    await world.quota("web", limits="pods=1,limits.cpu=4", granted="pods=1,limits.cpu=4", **NAMESPACES)
    found = await shared(world, ann="requests.cpu=2", web="pods=1,limits.cpu=3")
    assert found.refusal is None
    assert {name: accounts.use(world.account(name)) for name in ("ann", "web", "project-alpha")} == {
        "ann": nanos("requests.cpu=2"),
        "web": nanos("pods=1,limits.cpu=3"),
        "project-alpha": {},
    }
    assert {source for source, _ in world.account("ann").reservations} == {"namespaces:ann-uid:alpha/c1"}


async def test_one_quota_that_denies_its_part_leaves_nothing_reserved_in_the_others(world: SeedWorld) -> None:
    await world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", **NAMESPACES)
    await world.quota("web", limits="pods=4", granted="pods=4", used="pods=4", **NAMESPACES)
    found = await shared(world, ann="requests.cpu=2", web="pods=1")
    assert "exceeded quota: web, requested: pods=1, used: pods=4, limited: pods=4; short by pods=1" in message(found)
    assert "machine" not in message(found)
    assert not world.account("ann").reservations


async def test_a_full_quota_refuses_before_another_of_the_namespace_reserves_anything(world: SeedWorld) -> None:
    """Clients that go on asking for the full one would keep the other full otherwise."""
    await world.quota("ann", limits="pods=8", granted="pods=8", **NAMESPACES)
    await world.quota("web", limits="pods=4", granted="pods=4", used="pods=4", **NAMESPACES)
    written = world.account("ann").sequence
    assert "exceeded quota: web" in message(await shared(world, ann="pods=1", web="pods=1"))
    assert world.account("ann").sequence == written


@pytest.mark.parametrize("why", ["full", "not open"])
async def test_a_quota_that_gives_a_machine_nothing_refuses_before_its_organizations_reserves_anything(
    world: SeedWorld, why: str
) -> None:
    """A project that goes on asking would keep its organization's quota full for all other projects."""
    await world.quota("org-acme", limits="cpu=16", granted="cpu=16", kind="organization")
    used = "cpu=8" if why == "full" else ""
    handle = await world.quota("project-alpha", limits="cpu=8", granted="cpu=8", used=used)
    if why == "not open":
        await handle.writer.change(lambda account: (fencing.fence(account, "n"), None))
    written = world.account("org-acme").sequence
    assert (await world.admission.decide(request())).refusal is not None
    assert world.account("org-acme").sequence == written


async def test_while_a_quota_waits_for_the_master_nothing_is_kept_in_the_others(world: SeedWorld) -> None:
    await world.quota("org-acme", limits="cpu=16", granted="cpu=16", kind="organization")
    await world.quota("project-alpha", limits="cpu=8", granted="cpu=4")
    waiting = asyncio.create_task(world.admission.decide(request()))
    await world.asked("project-alpha", number=1)
    assert world.account("org-acme").reservations == {}
    world.tell("project-alpha", answered=1, granted={"cpu": "8"})
    assert (await waiting).refusal is None
    assert accounts.use(world.account("org-acme")) == nanos("cpu=8")


async def test_requests_at_once_around_a_projects_last_unit_reserve_no_more_of_its_organizations(
    world: SeedWorld,
) -> None:
    """For a moment, there would seem to be nothing left for other projects."""
    await world.quota("org-acme", limits="cpu=16", granted="cpu=16", kind="organization")
    await world.quota("project-alpha", limits="cpu=9", granted="cpu=9", used="cpu=7")
    most: dict[str, int] = {}

    def written(name: str, account: Account | None) -> None:
        if account is not None:
            most[name] = max(most.get(name, 0), len(account.reservations))

    world.registry.on_account(written)
    found = await asyncio.gather(*(world.admission.decide(request(f"u{number}", "cpu=1")) for number in range(8)))
    assert [each.refusal is None for each in found] == [True, True, *[False] * 6]
    assert most == {"project-alpha": 2, "org-acme": 2}


async def test_a_quota_that_was_full_when_it_was_last_seen_refuses_nothing_that_fits_by_now() -> None:
    """Another replica has counted what is gone, and the watch has not told this one."""
    store = MemoryStore()
    async with seed_world(store) as world:
        await world.quota("ann", limits="pods=8", granted="pods=8", **NAMESPACES)
        await world.quota("web", limits="pods=4", granted="pods=4", used="pods=4", **NAMESPACES)
        account = world.account("web")
        counted = msgspec.structs.replace(account, used={key: {} for key in account.used}, sequence=9)
        store._stored[world.handle("web").key.uid] = Stored(counted, "of another replica")
        assert (await shared(world, ann="pods=1", web="pods=1")).refusal is None


async def test_a_request_that_is_repeated_at_a_full_quota_is_admitted_again(world: SeedWorld) -> None:
    await world.quota("ann", limits="pods=8", granted="pods=8", **NAMESPACES)
    await world.quota("web", limits="pods=1", granted="pods=1", **NAMESPACES)
    assert (await shared(world, ann="pods=1", web="pods=1")).refusal is None
    assert (await shared(world, ann="pods=1", web="pods=1")).refusal is None
    assert (await shared(world, "another", ann="pods=1", web="pods=1")).refusal is not None


async def test_what_is_larger_than_one_limit_is_never_reserved_in_the_other(world: SeedWorld) -> None:
    await world.quota("project-alpha", limits="cpu=64", granted="cpu=64")
    await world.quota("org-acme", limits="cpu=4", granted="cpu=4", kind="organization")
    written = world.account("project-alpha").sequence
    found = await world.admission.decide(request(need="cpu=8"))
    assert "exceeded quota: org-acme, requested: cpu=8, used: cpu=0, limited: cpu=4" in message(found)
    assert world.account("project-alpha").sequence == written


async def test_a_limit_that_was_raised_while_the_request_was_read_refuses_nothing(world: SeedWorld) -> None:
    await world.quota("ann", limits="pods=1", granted="pods=1", **NAMESPACES)
    quotas = list(world.quota_cache.namespace_quotas())
    world.limit("ann", {"pods": "2"})
    world.tell("ann", granted={"pods": "2"})
    kept = Reservation(source="namespaces:ann-uid:alpha/c1", object="pods:web/u", amount=nanos("pods=2"))
    asked = msgspec.structs.replace(request(), consumer=Consumer("", "alpha/c1"), shares={"ann": kept})
    assert (await world.admission.decide(asked, quotas=quotas)).refusal is None


async def test_without_a_quota_everything_is_admitted(world: SeedWorld) -> None:
    assert (await world.admission.decide(request())).refusal is None


async def test_a_project_that_has_not_come_is_not_admitted_past_its_organizations_quota(world: SeedWorld) -> None:
    await world.quota("org-acme", limits="cpu=4", granted="cpu=4", kind="organization")
    world.forget_project()
    found = await world.admission.decide(request(need="cpu=1"))
    assert found.refusal is not None and found.refusal.code == 503
    assert "project alpha has not come from the master" in found.message


def set_default(world: SeedWorld, kind: str, enforcement: str = "deny") -> None:
    body = {
        "metadata": {"name": SETTINGS},
        "spec": {"defaults": {kind: {"quota": {"cpu": "4"}, "enforcement": enforcement}}},
    }
    world.quota_cache.settings.store._set(SETTINGS, msgspec.convert(body, QuotaSettings))


@pytest.mark.parametrize("kind", ["project", "organization"])
async def test_where_there_is_a_default_nothing_is_admitted_before_the_quota_has_come(
    world: SeedWorld, kind: str
) -> None:
    set_default(world, kind)
    found = await world.admission.decide(request())
    assert found.refusal is not None and found.refusal.code == 503
    assert "what limits project alpha has not come from the master" in found.message
    await world.quota("any", limits="cpu=64", granted="cpu=64", kind=kind)
    assert (await world.admission.decide(request())).refusal is None


async def test_a_project_that_is_not_here_may_have_an_organization_that_gets_a_default(world: SeedWorld) -> None:
    set_default(world, "organization")
    world.forget_project()
    found = await world.admission.decide(request())
    assert found.refusal is not None and found.refusal.code == 503


async def test_a_projects_own_quota_decides_on_while_its_project_is_missing_beside_a_default_for_projects(
    world: SeedWorld,
) -> None:
    set_default(world, "project")
    await world.quota(limits="cpu=8", granted="cpu=8")
    world.forget_project()
    assert (await world.admission.decide(request(need="cpu=8"))).refusal is None
    found = await world.admission.decide(request("next", need="cpu=1"))
    assert found.refusal is not None and found.refusal.code == 403


async def test_a_default_that_only_warns_is_not_waited_for(world: SeedWorld) -> None:
    set_default(world, "project", "warn")
    assert (await world.admission.decide(request())).refusal is None


async def test_a_quota_limits_on_while_its_copy_is_missing_until_the_master_lets_it_go(world: SeedWorld) -> None:
    await world.quota("project-alpha", limits="cpu=4", granted="cpu=4")
    world.remove("project-alpha", by_master=False)
    found = await world.admission.decide(request(need="cpu=8"))
    assert found.refusal is not None and found.refusal.code == 403
    assert (await world.admission.decide(request("u", "cpu=4"))).refusal is None
    assert accounts.use(world.account()) == nanos("cpu=4")
    await world.quota("project-alpha", limits="cpu=4", granted="cpu=4", used="cpu=4")
    world.remove("project-alpha")
    assert (await world.admission.decide(request("v", "cpu=8"))).refusal is None


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_quota_whose_copy_somebody_deleted_limits_for_ten_more_minutes_unless_it_comes_back(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    due: list[tuple[float, Callable[[], None]]] = []
    loop = asyncio.get_running_loop()

    def call_later(seconds: float, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        due.append((seconds, lambda: call(*arguments)))
        return loop.call_at(loop.time() + 3600, lambda: None)

    await world.quota("project-alpha", limits="cpu=4", granted="cpu=4")
    monkeypatch.setattr(loop, "call_later", call_later, raising=False)
    world.remove("project-alpha", by_master=False)
    monkeypatch.undo()
    ((seconds, let_go),) = due
    assert seconds == 600.0
    if comes_back:
        await world.quota("project-alpha", limits="cpu=4", granted="cpu=4")
    found = await world.admission.decide(request(need="cpu=8"))
    assert found.refusal is not None and found.refusal.code == 403
    let_go()
    found = await world.admission.decide(request("u", need="cpu=8"))
    assert (found.refusal is not None) == comes_back
    assert (world.quota_cache.quota("project-alpha") is not None) == comes_back


@pytest.mark.parametrize("tight", ["project-alpha", "org-acme"])
async def test_the_quota_that_denies_releases_what_the_other_reserved(world: SeedWorld, tight: str) -> None:
    limits = dict.fromkeys(("project-alpha", "org-acme"), "cpu=64") | {tight: "cpu=4"}
    await world.quota("project-alpha", limits=limits["project-alpha"], granted="cpu=64")
    await world.quota("org-acme", limits=limits["org-acme"], granted="cpu=64", kind="organization")
    found = await world.admission.decide(request())
    assert message(found) == (
        f"exceeded quota: {tight}, requested: cpu=8, used: cpu=0, limited: cpu=4; short by cpu=4; "
        "it can never fit: the request is larger than the limit"
    )
    for name in ("project-alpha", "org-acme"):
        assert world.account(name).reservations == {} == world.account(name).reserved


async def test_a_denied_update_leaves_the_creation_that_is_not_counted_yet(world: SeedWorld) -> None:
    await world.quota("project-alpha", limits="cpu=64", granted="cpu=64")
    await world.quota("org-acme", limits="cpu=10", granted="cpu=10", kind="organization")
    assert (await world.admission.decide(request("u", "cpu=8"))).refusal is None
    found = await world.admission.decide(request("u", "cpu=4", generation=2))
    assert found.refusal is not None
    for name in ("project-alpha", "org-acme"):
        assert accounts.use(world.account(name)) == nanos("cpu=8")


async def of_a_write_that_came_to_nothing(world: SeedWorld) -> None:
    """What is there uses 8 cpus of 16. An update to 16 was admitted, and was overtaken by another change."""
    await world.quota(limits="cpu=16", granted="cpu=16", used="cpu=8")
    assert (await world.admission.decide(request("u", "cpu=8", generation=2))).refusal is None


async def test_an_update_that_is_sent_again_is_not_refused_for_what_its_first_try_has_reserved(
    world: SeedWorld,
) -> None:
    await of_a_write_that_came_to_nothing(world)
    deciding = asyncio.create_task(world.admission.decide(request("u", "cpu=8", generation=3)))
    await asyncio.sleep(0.01)

    def counted(account: Account) -> tuple[Account, None]:
        return accounts.count(account, 1, "alpha/c1", nanos("cpu=8"), {"u": 2}), None

    await world.handle().writer.change(counted)
    assert (await deciding).refusal is None
    assert accounts.use(world.account()) == nanos("cpu=16")


async def test_an_update_cannot_be_decided_while_its_first_try_is_not_counted(world: SeedWorld) -> None:
    await of_a_write_that_came_to_nothing(world)
    found = await world.admission.decide(request("u", "cpu=8", generation=3, seconds=0.5))
    assert found.refusal is not None and found.refusal.code == 503
    assert message(found) == (
        "quota project-alpha cannot decide: what was admitted for this object before is being counted"
    )
    assert accounts.use(world.account()) == nanos("cpu=16")


@pytest.mark.parametrize(("need", "generation"), [("cpu=9", 3), ("cpu=8", 0)])
async def test_what_lacks_more_than_its_first_try_has_is_refused_at_once(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch, need: str, generation: int
) -> None:
    monkeypatch.setattr(quota_claim, "PAUSE", 3600.0)
    await of_a_write_that_came_to_nothing(world)
    found = await world.admission.decide(request("u" if generation else "other", need, generation=generation))
    assert found.refusal is not None and found.refusal.code == 403


async def test_a_final_refusal_says_more_than_one_that_is_worth_a_retry(world: SeedWorld) -> None:
    await world.quota("org-acme", limits="cpu=64", granted="cpu=64", kind="organization")
    await world.handle("org-acme").writer.change(lambda account: (fencing.fence(account, "n"), None))
    await world.quota("project-alpha", limits="cpu=4", granted="cpu=4")
    found = await world.admission.decide(request())
    assert found.refusal is not None
    assert found.refusal.code == 403


async def test_a_fenced_account_cannot_decide(world: SeedWorld) -> None:
    handle = await world.quota(limits="cpu=64", granted="cpu=64")
    await handle.writer.change(lambda account: (fencing.fence(account, "n"), None))
    found = await world.admission.decide(request())
    assert found.refusal is not None
    assert (found.refusal.code, found.refusal.retry_seconds) == (503, 1)
    assert message(found) == ("quota project-alpha cannot decide: its account is being rebuilt or waits for the master")


async def test_a_dry_run_decides_and_writes_nothing(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=50")
    sequence = world.account().sequence
    assert (await world.admission.decide(request(need="cpu=14", dry_run=True))).refusal is None
    denied = await world.admission.decide(request(need="cpu=15", dry_run=True))
    assert message(denied).startswith("exceeded quota: project-alpha, requested: cpu=15, used: cpu=50")
    assert world.account().sequence == sequence


async def test_a_dry_run_is_let_through_where_only_the_master_could_tell(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    assert (await world.admission.decide(request(dry_run=True))).refusal is None
    assert world.account().ask.number == 0


async def test_a_repeat_reserves_once(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=8")
    found = await asyncio.gather(*(world.admission.decide(request()) for _ in range(5)))
    assert [verdict.refusal for verdict in found] == [None] * 5
    assert accounts.use(world.account()) == nanos("cpu=8")


async def test_what_another_seed_holds_idle_is_fetched_within_the_call(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    deciding = asyncio.create_task(world.admission.decide(request()))
    await world.asked(number=1)
    assert not deciding.done()
    world.tell(granted={"cpu": "8"}, answered=1, usage="cpu=20")
    found = await deciding
    assert found.refusal is None
    assert found.waited
    assert accounts.use(world.account()) == nanos("cpu=8")


async def test_the_masters_answer_refuses_with_its_numbers(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    deciding = asyncio.create_task(world.admission.decide(request()))
    await world.asked(number=1)
    world.tell(answered=1, usage="cpu=60", reserved="cpu=2")
    assert message(await deciding) == (
        "exceeded quota: project-alpha, requested: cpu=8, used: cpu=60, limited: cpu=64; short by cpu=4; "
        "cpu=2 of used is machines being created; retrying helps only after something is deleted"
    )


async def test_a_storm_of_hopeless_requests_asks_the_master_once(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    first = asyncio.create_task(world.admission.decide(request()))
    await world.asked(number=1)
    world.tell(answered=1, usage="cpu=60")
    await first
    found = await asyncio.gather(*(world.admission.decide(request(f"u{number}")) for number in range(50)))
    assert {verdict.refusal.code for verdict in found if verdict.refusal is not None} == {403}
    assert world.account().ask.number == 1


async def test_our_own_use_alone_can_refuse_without_the_master(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
    async with within(1):
        found = await world.admission.decide(request())
    assert message(found).startswith("exceeded quota: project-alpha, requested: cpu=8, used: cpu=60")
    assert world.account().ask.number == 0


async def test_an_answer_that_brought_nothing_is_asked_again_until_it_does(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    deciding = asyncio.create_task(world.admission.decide(request()))
    for number in (1, 2):
        await world.asked(number=number)
        world.tell(answered=number, usage="cpu=4")
    await world.asked(number=3)
    world.tell(answered=3, granted={"cpu": "8"}, usage="cpu=4")
    assert (await deciding).refusal is None


async def test_a_master_that_is_silent_until_the_deadline_is_no_denial(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    started = time.monotonic()
    async with within(SILENT + 1):
        found = await world.admission.decide(request(seconds=SILENT))
    assert time.monotonic() - started >= SILENT
    assert found.refusal is not None
    assert (found.refusal.code, found.refusal.retry_seconds) == (503, 1)
    assert message(found) == "quota project-alpha cannot decide: the master did not answer in time"
    assert world.account().reservations == {}


async def test_capacity_out_of_reach_is_named_with_its_seed(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    deciding = asyncio.create_task(world.admission.decide(request()))
    await world.asked(number=1)
    world.tell(answered=1, usage="cpu=4", unavailable=[WireIdle(seed="us-1", idle={"cpu": "12"}, seconds=420)])
    assert message(await deciding) == (
        "quota project-alpha cannot decide: cpu=12 is free but held by seed us-1, unreachable for 7m"
    )


async def test_a_learning_master_is_named(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    world.tell(learning=True)
    found = await world.admission.decide(request(seconds=SILENT))
    assert message(found) == "quota project-alpha cannot decide: the master is learning what each seed holds"


async def test_a_seed_is_called_draining_only_by_an_answer(world: SeedWorld) -> None:
    """It drained before the master fell silent, or before it was declared lost."""
    await world.quota(limits="cpu=64", granted="cpu=4")
    world.tell(draining=True)
    found = await world.admission.decide(request(seconds=SILENT))
    assert message(found) == "quota project-alpha cannot decide: the master did not answer in time"
    deciding = asyncio.create_task(world.admission.decide(request("next")))
    await world.asked(number=2)
    world.tell(answered=2, usage="cpu=4", draining=True)
    assert message(await deciding) == (
        "quota project-alpha cannot decide: this seed is draining and gets no more capacity"
    )


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_seed_that_was_declared_lost_refuses_at_once_and_for_good(world: SeedWorld, dry_run: bool) -> None:
    """What it holds is given to others: nothing is admitted by it, and nobody waits for what never comes."""
    await world.quota(limits="cpu=64", granted="cpu=64")
    copies = world.quota_cache.seed.store
    body = {"metadata": {"name": "seed"}, "spec": {"copyOf": "u", "state": "Draining"}}
    copies._set("seed", msgspec.convert(body, SeedCopy))
    assert (await world.admission.decide(request("before"))).refusal is None
    body["spec"] = {"copyOf": "u", "state": "Lost", "confirmLost": "its machines are gone"}
    copies._set("seed", msgspec.convert(body, SeedCopy))
    found = await world.admission.decide(request(dry_run=dry_run))
    assert found.refusal is not None
    assert (found.refusal.code, found.refusal.retry_seconds, found.refusal.cause) == (403, 0, "SeedLost")
    assert len(world.account().reservations) == 1
    body["spec"] = {"kubeconfigSecretRef": {"name": "seed"}, "state": "Lost"}
    copies._set("seed", msgspec.convert(body, SeedCopy))
    assert (await world.admission.decide(request("own"))).refusal is None, "that is a master's Seed, not a copy"


class Slow(MemoryStore):
    """From `hangs` on, nothing is written any more; `broken`: it says so."""

    hangs = False
    broken = False

    async def save(self, key: AccountKey, *args: object) -> str:
        if self.broken:
            raise StoreUnavailableError("the ledger is away")
        if self.hangs and key.name == "project-alpha":
            await asyncio.Event().wait()
        return await super().save(key, *args)  # type: ignore[arg-type]


async def test_a_ledger_that_is_away_cannot_decide() -> None:
    store = Slow()
    async with seed_world(store) as world:
        await world.quota(limits="cpu=64", granted="cpu=64")
        store.broken = True
        found = await world.admission.decide(request())
        assert message(found) == "quota project-alpha cannot decide: the ledger does not answer"


async def test_a_ledger_that_hangs_is_answered_for_by_the_deadline() -> None:
    store = Slow()
    async with seed_world(store) as world:
        await world.quota("project-alpha", limits="cpu=64", granted="cpu=64")
        await world.quota("org-acme", limits="cpu=64", granted="cpu=64", kind="organization")
        store.hangs = True
        async with within(1):
            found = await world.admission.decide(request(seconds=0.1))
        assert message(found) == "quota project-alpha cannot decide: the ledger does not answer"
        await eventually(lambda: world.account("org-acme").reservations == {})


class Cut(MemoryStore):
    """From `cut` on, a write waits, and fails as soon as the store is known to be `away`."""

    cut = False
    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.away = asyncio.Event()

    async def save(self, key: AccountKey, *args: object) -> str:
        if self.cut:
            self.asked += 1
            await self.away.wait()
            raise StoreUnavailableError("the ledger is away")
        return await super().save(key, *args)  # type: ignore[arg-type]


async def test_what_a_request_gives_back_may_fail_after_it_was_cut_off() -> None:
    """asyncio logs the exception of a future that nobody has asked for as an error."""
    store, loop = Cut(), asyncio.get_running_loop()
    unheard: list[dict[str, object]] = []

    async def refuses() -> str:
        store.cut = True
        return "it belongs to another project"

    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    try:
        async with seed_world(store) as world:
            await world.quota(limits="cpu=64", granted="cpu=64")
            deciding = asyncio.create_task(world.admission.decide(request(), confirm=refuses))
            await eventually(lambda: store.asked)
            deciding.cancel()
            await asyncio.wait([deciding])
            assert deciding.cancelled()
            store.away.set()
            await world.handle().writer.change(lambda account: (account, None))  # what came before it has failed
        del deciding  # its frames hold what it waited for
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert unheard == []


async def test_a_quota_that_goes_while_a_request_waits_does_not_leave_it_hanging(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=4")
    deciding = asyncio.create_task(world.admission.decide(request(seconds=SILENT)))
    await world.asked(number=1)
    world.remove("project-alpha")
    async with within(SILENT + 1):
        found = await deciding
    assert found.refusal is not None
    assert found.refusal.code == 503


async def test_enforcement_warn_admits_what_does_not_fit_and_says_so(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60", enforcement="warn")
    found = await world.admission.decide(request())
    assert found.refusal is None
    assert found.warnings == (["seedquota/project-alpha: over by cpu=4 (68/64); allowed because enforcement is warn"])
    assert world.account().reservations == {}


async def test_enforcement_warn_never_waits_and_never_asks(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="", enforcement="warn")
    async with within(1):
        assert (await world.admission.decide(request())).refusal is None
    assert world.account().ask.number == 0


async def test_near_the_limit_an_admitted_request_is_warned(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=20")
    world.tell(usage="cpu=54")
    assert (await world.admission.decide(request(need="cpu=8"))).warnings == [
        "seedquota/project-alpha: cpu 62/64 (96%) after this"
    ]


async def test_only_what_the_request_needs_is_warned_of(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64,clusters=1", granted="cpu=64")
    world.tell(usage="cpu=8,clusters=2")
    assert (await world.admission.decide(request(need="cpu=8"))).warnings == []
    world.tell(usage="cpu=54,clusters=2")
    assert (await world.admission.decide(request("other", need="cpu=8"))).warnings == [
        "seedquota/project-alpha: cpu 62/64 (96%) after this"
    ]


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_dry_run_is_warned_of_the_same(world: SeedWorld, dry_run: bool) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=54")
    assert (await world.admission.decide(request(need="cpu=8", dry_run=dry_run))).warnings == [
        "seedquota/project-alpha: cpu 62/64 (96%) after this"
    ]


async def test_many_at_once_fill_the_quota_exactly(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64")
    found = await asyncio.gather(*(world.admission.decide(request(f"u{number}")) for number in range(20)))
    assert sum(verdict.refusal is None for verdict in found) == 8
    assert accounts.use(world.account()) == nanos("cpu=64")
    accounts.check(world.account())


def replacing(*uids: str) -> Replaceable:
    async def found(_anew: bool) -> Sequence[str]:
        return uids

    return found


def unreadable(error: ApiError) -> Replaceable:
    async def found(_anew: bool) -> Sequence[str]:
        raise error

    return found


async def full_with_surge(world: SeedWorld, surge: str = "cpu=8", granted: str = "cpu=16,surge.cpu=8") -> None:
    await world.quota(limits="cpu=16", surge=amounts(surge), granted=granted, used="cpu=16")
    world.tell(usage="cpu=16,surge.cpu=0")


async def test_a_rollouts_machine_is_admitted_on_surge_where_the_quota_is_full(world: SeedWorld) -> None:
    await full_with_surge(world)
    assert (await world.admission.decide(request("new"), replacing("old"))).refusal is None
    assert accounts.use(world.account()) == nanos("cpu=16,surge.cpu=8")
    assert world.account().reservations["alpha/c1", "new"].replaces == "old"


async def test_surge_is_for_those_that_replace_something(world: SeedWorld) -> None:
    await full_with_surge(world)
    for replaceable in (None, replacing()):
        refusal = (await world.admission.decide(request("new"), replaceable)).refusal
        assert refusal is not None and refusal.code == 403
    assert accounts.use(world.account()) == nanos("cpu=16")


async def test_what_was_lent_in_place_of_one_that_is_gone_is_taken_back_whichever_others_are_there(
    world: SeedWorld,
) -> None:
    """A count that saw it gone may have given its place away."""
    await full_with_surge(world)
    reads = iter([["old", "other"], ["other"]])

    async def replaceable(_anew: bool) -> Sequence[str]:
        return next(reads)

    refusal = (await world.admission.decide(request("new"), replaceable)).refusal
    assert refusal is not None and refusal.code == 503
    await eventually(lambda: not world.account().reservations)


async def test_while_there_is_room_in_the_quota_a_rollout_takes_none_of_the_surge(world: SeedWorld) -> None:
    await world.quota(limits="cpu=32", surge=amounts("cpu=8"), granted="cpu=32,surge.cpu=8", used="cpu=16")
    assert (await world.admission.decide(request("new"), replacing("old"))).refusal is None
    assert accounts.use(world.account()) == nanos("cpu=24")


async def test_two_at_once_replace_two(world: SeedWorld) -> None:
    await full_with_surge(world, "cpu=16", "cpu=16,surge.cpu=16")
    both = [world.admission.decide(request(uid), replacing("a", "b")) for uid in ("x", "y")]
    assert [found.refusal for found in await asyncio.gather(*both)] == [None, None]
    assert {kept.replaces for kept in world.account().reservations.values()} == {"a", "b"}
    refusal = (await world.admission.decide(request("z"), replacing("a", "b"))).refusal
    assert refusal is not None and refusal.code == 403


async def test_a_rollout_beyond_the_surge_is_refused_with_both_numbers(world: SeedWorld) -> None:
    await full_with_surge(world, "cpu=4", "cpu=16,surge.cpu=4")
    found = await world.admission.decide(request("new"), replacing("old"))
    assert "exceeded quota: project-alpha, requested: cpu=8, used: cpu=16, limited: cpu=16" in message(found)
    assert found.refusal is not None
    said = "its rollout may use surge, but of that too: requested surge.cpu=8, used surge.cpu=0, limited surge.cpu=4"
    assert said in found.message


async def test_beside_use_beyond_what_is_held_no_surge_is_lent_and_nobody_is_asked_for_more(world: SeedWorld) -> None:
    await world.quota(limits="cpu=16", surge=amounts("cpu=16"), granted="cpu=16,surge.cpu=12", used="cpu=20")
    world.tell(usage="cpu=20,surge.cpu=4")
    refusal = (await world.admission.decide(request("new"), replacing("old"))).refusal
    assert refusal is not None and refusal.code == 403
    assert "used: cpu=20, limited: cpu=16" in refusal.text
    assert refusal.surge == (
        "its rollout may not use surge now: surge.cpu=4 is taken by use beyond what this seed holds, and no more"
        " is lent until that is gone"
    )
    assert {cause.field for cause in refusal.causes} == {"cpu"}, "the numbers of the surge would not add up"
    assert world.account().ask == Ask()


async def test_surge_that_another_seed_holds_is_asked_for(world: SeedWorld) -> None:
    await full_with_surge(world, granted="cpu=16")
    deciding = asyncio.create_task(world.admission.decide(request("new"), replacing("old")))
    await world.asked()
    assert world.account().ask.first == nanos("surge.cpu=8")
    world.tell(granted=amounts("cpu=16,surge.cpu=8"), answered=1)
    assert (await deciding).refusal is None


async def test_what_waited_for_surge_is_not_lent_it_once_its_older_machine_was_counted_as_gone() -> None:
    there = ["old"]

    async def found(_anew: bool = False) -> Sequence[str]:
        return list(there)

    async with seed_world() as world:
        await full_with_surge(world, granted="cpu=16")
        deciding = asyncio.create_task(world.admission.decide(request("new"), found))
        await world.asked()
        there.clear()
        await world.handle().writer.change(
            lambda account: (accounts.count(account, 1, "alpha/c1", nanos("cpu=8"), {}), None)
        )
        assert (await world.admission.decide(request("other"))).refusal is None, "it takes the place"
        world.tell(granted=amounts("cpu=16,surge.cpu=8"), answered=1)
        refusal = (await deciding).refusal
        assert refusal is not None and refusal.code == 503
        await eventually(lambda: accounts.use(world.account()) == nanos("cpu=16"))


async def test_a_loan_that_cannot_be_confirmed_is_undone() -> None:
    async def found(anew: bool = False) -> Sequence[str]:
        if anew:
            raise Unavailable(0, "", "no")
        return ["old"]

    async with seed_world() as world:
        await full_with_surge(world)
        refusal = (await world.admission.decide(request("new"), found)).refusal
        assert refusal is not None and refusal.code == 503
        await eventually(lambda: accounts.use(world.account()) == nanos("cpu=16"))


@pytest.mark.parametrize(("error", "code"), [(Forbidden(403, "Forbidden", "no"), 403), (Unavailable(0, "", "no"), 503)])
async def test_a_rollout_that_cannot_be_read_is_worth_a_retry_unless_it_may_not_be_read(
    world: SeedWorld, error: ApiError, code: int
) -> None:
    await full_with_surge(world)
    refusal = (await world.admission.decide(request("new"), unreadable(error))).refusal
    assert refusal is not None and refusal.code == code


async def test_surge_that_was_taken_away_lends_nothing(world: SeedWorld) -> None:
    await full_with_surge(world)
    world.without_surge("project-alpha")
    refusal = (await world.admission.decide(request("new"), replacing("old"))).refusal
    assert refusal is not None and refusal.code == 403


async def test_a_source_that_has_its_share_is_told_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is refused for good in no case. Another one is admitted beside it."""
    monkeypatch.setattr(reservations, "MAX_RESERVATIONS", 100)
    async with seed_world() as world:
        await world.quota(limits="cpu=64", granted="cpu=64")
        found = [await world.admission.decide(request(f"u{number}", "cpu=1n")) for number in range(80)]
        refusals = [each.refusal for each in found if each.refusal is not None]
        assert 0 < len(refusals) < 80
        assert {refusal.code for refusal in refusals} == {503}
        assert all("it has its share" in refusal.text for refusal in refusals)
        other = request("other")
        modest = msgspec.structs.replace(other.reservation, source="alpha/c2")
        assert (await world.admission.decide(msgspec.structs.replace(other, reservation=modest))).refusal is None
