"""What accounts that admit nothing wait for, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from common.api import account_waits
from common.api.account_waits import WaitReason
from common.api.convert import report_to_wire
from common.api.types import AccountWait
from common.quota import fencing
from common.quota.account import Account, Grant
from common.quota.escrow import report
from seed.accounts import controller, open_limiter, plan
from seed.accounts.plan import Progress, SourceFacts, WaitsFor
from seed.accounts.waits import MAX_NAME, Waits
from seed.ledger.store import StoreUnavailableError
from seed.model.quota import Quota
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.seed.accounts.test_plan import AWAY, LISTED, LISTING, TERM, WINDOW, account, grant, in_doubt
from tests.unit.seed.accounts.test_usage_writer import KEY, Leading
from tests.unit.seed.admission.test_admitter import message, request
from tests.unit.seed_world import SeedWorld, nanos, seed_world

ANSWERED = grant(nonce="n", seen=40)
INTACT = grant(nonce="n", seen=40, unbroken=True)
LOST = Account(incarnation="a", epoch=TERM, nonce="n")
FENCED = Progress(claimed=TERM, life="a", fenced_since=1000.0)
THERE = SourceFacts("ns/d", countable=False, unreachable=False)


@pytest.mark.parametrize(
    ("present", "said", "seconds", "expected"),
    [
        (in_doubt(), grant(), 70.0, WaitsFor(WaitReason.MASTER_ANSWER)),
        (in_doubt(), grant(nonce="before", seen=40), 70.0, WaitsFor(WaitReason.MASTER_ANSWER)),
        (in_doubt(), ANSWERED, 20.0, WaitsFor(WaitReason.IN_FLIGHT_WINDOW, seconds=40.0)),
        (in_doubt(), INTACT, 0.0, WaitsFor(WaitReason.SOURCES, sources=("ns/b", "ns/d"))),
        (in_doubt(), ANSWERED, 60.0, WaitsFor(WaitReason.SOURCES, sources=("ns/b", "ns/d"))),
        (LOST, grant(nonce="n"), 60.0, WaitsFor(WaitReason.SOURCES, sources=("ns/b", "ns/c", "ns/d"))),
    ],
    ids=["asked", "asked again", "doubted", "intact", "after the window", "no count can be kept"],
)
def test_what_a_fenced_account_waits_for(present: Account, said: Grant, seconds: float, expected: WaitsFor) -> None:
    sources = (LISTED, LISTING, AWAY, THERE)
    found = plan.waits_for(present, said, FENCED, sources, window=WINDOW, now=1000.0 + seconds)
    assert found == expected


def test_a_store_that_does_not_answer_and_others_that_are_opened_first_are_told_before_all_else() -> None:
    def found(present: Account | None, **why: bool) -> WaitReason:
        return plan.waits_for(present, ANSWERED, FENCED, (), window=WINDOW, now=1000.0, **why).reason

    assert found(None) is WaitReason.TURN
    assert found(in_doubt(), turn=True) is WaitReason.TURN
    assert found(in_doubt(), ledger=True) is found(None, ledger=True) is WaitReason.LEDGER


def test_one_that_is_fenced_as_soon_as_it_is_claimed_admits_nothing_already() -> None:
    def admits_nothing(present: Account | None, *, since: int = TERM - 2, cold: bool = False) -> bool:
        found = plan.admits_nothing(present, TERM, since=since, cold=cold)
        if present is not None and not present.fenced and present.epoch != TERM:
            assert found == plan.claimed(present, TERM, since=since, cold=cold, nonce="n").fenced
        return found

    assert admits_nothing(None)
    assert admits_nothing(in_doubt())
    assert not admits_nothing(account(epoch=TERM), cold=True)
    assert not admits_nothing(account(epoch=TERM - 1))
    assert admits_nothing(account(epoch=TERM - 1), cold=True)
    assert admits_nothing(account(epoch=TERM - 1), since=TERM)


@asynccontextmanager
async def a_quota() -> AsyncIterator[Quota]:
    async with seed_world() as world:
        await world.quota(limits="cpu=64")
        quota = world.quota_cache.quota("project-alpha")
        assert quota is not None
        yield quota


async def test_the_longest_wait_of_each_reason_is_since_it_became_the_reason() -> None:
    now = 100.0
    waits = Waits(lambda: now)
    async with a_quota() as quota:
        other = msgspec.structs.replace(quota, key=msgspec.structs.replace(quota.key, name="other"))
        waits.note(quota, WaitsFor(WaitReason.SOURCES, sources=("a", "b")))
        now += 5
        waits.note(other, WaitsFor(WaitReason.SOURCES, sources=("a",)))
        waits.note(quota, WaitsFor(WaitReason.SOURCES, sources=("b",)))
        now += 1
        assert waits.longest() == dict.fromkeys(WaitReason, 0.0) | {WaitReason.SOURCES: 6.0}
        waits.note(quota, WaitsFor(WaitReason.MASTER_ANSWER))
        now += 2
        assert waits.longest() == dict.fromkeys(WaitReason, 0.0) | {
            WaitReason.SOURCES: 3.0,
            WaitReason.MASTER_ANSWER: 2.0,
        }
        waits.note(quota, None)
        waits.forget("other")
        assert waits.longest() == dict.fromkeys(WaitReason, 0.0)


async def test_a_quota_that_comes_waits_until_it_is_looked_at_and_inherits_nothing_from_one_of_its_name() -> None:
    now = 100.0
    waits = Waits(lambda: now)
    async with a_quota() as quota:
        waits.note(quota, WaitsFor(WaitReason.SOURCES))
        again = msgspec.structs.replace(quota, key=msgspec.structs.replace(quota.key, uid="again"))
        now += 10
        assert waits.of(again) is None
        waits.came(again)
        now += 1
        waits.came(again)
        assert waits.of(again) == AccountWait(reason="Turn")
        assert waits.seconds(again) == 1.0
        assert waits.longest()[WaitReason.SOURCES] == 0.0


async def test_what_is_said_of_sources_is_bounded_and_the_end_of_the_window_is_said_once() -> None:
    waits = Waits()
    async with a_quota() as quota:
        kinds = [f"{name}{'x' * MAX_NAME}" for name in "edcba"]
        waits.note(quota, WaitsFor(WaitReason.SOURCES, sources=tuple("edcba")), lambda _key: kinds)
        said = waits.of(quota)
        assert said is not None
        assert [name[0] for name in said.sources] == list("abc") and said.sources_omitted == 2
        assert [name[0] for name in said.kinds] == list("abc") and said.kinds_omitted == 2
        assert {len(name) for name in said.sources + said.kinds} == {MAX_NAME}
        waits.note(quota, WaitsFor(WaitReason.IN_FLIGHT_WINDOW, seconds=60.0))
        first = waits.of(quota)
        assert first is not None and first.until
        waits.note(quota, WaitsFor(WaitReason.IN_FLIGHT_WINDOW, seconds=1.0))
        assert waits.of(quota) == first, "each look would be a write"


@pytest.mark.parametrize(
    ("wait", "named", "unnamed"),
    [
        (
            AccountWait(reason="Sources", sources=("alpha/c1", "alpha/c2"), sources_omitted=3),
            "waits for new lists from alpha/c1, alpha/c2 and 3 more",
            "waits for new lists from 5 clusters",
        ),
        (
            AccountWait(
                reason="Sources",
                sources=("alpha/c1 (pods)",),
                kinds=("jobs.batch", "pods", "services"),
                kinds_omitted=1,
            ),
            "waits for new lists from alpha/c1 (pods)",
            "waits for new lists of jobs.batch, pods, services and 1 more from 1 cluster",
        ),
        (AccountWait(reason="Sources"), "waits for new lists from its clusters", None),
        (AccountWait(reason="MasterAnswer"), "waits for the answer of the master", None),
        (AccountWait(reason="Ledger"), "waits for its ledger, which cannot be read or written", None),
        (
            AccountWait(reason="InFlightWindow", until="2026-11-20T10:00:00Z"),
            "waits until 2026-11-20T10:00:00Z, since what was admitted before may appear until then",
            None,
        ),
        (AccountWait(reason="OfALaterRelease"), "waits (OfALaterRelease)", None),
    ],
)
def test_tenants_read_no_names_of_sources(wait: AccountWait, named: str, unnamed: str | None) -> None:
    assert account_waits.text(wait) == named
    assert account_waits.text(wait, named=False) == (unnamed or named)


def said(leader: Leading) -> AccountWait | None:
    """What the master reads; None before anything was published, too."""
    published = leader.cluster.published
    found = published[-1]["account"] if published else None
    return found["waitsFor"] if isinstance(found, dict) else getattr(found, "waits_for", None)


async def test_from_the_fence_to_the_opening_the_report_says_what_is_missing(world: SeedWorld) -> None:
    """After a cold start, with a window that ends when the test says so."""
    await world.quota(limits="cpu=64", granted="cpu=64")
    leader = Leading(world, term=2, cold=True, window=3600.0)
    async with running(leader.accounts.run()):
        await eventually(lambda: said(leader) == AccountWait(reason="MasterAnswer"))
        present = world.account()
        assert leader.cluster.published[-1]["account"].nonce == present.nonce, "in the write that asks"
        world.tell(nonce=present.nonce, seen=present.fenced_at)
        await eventually(lambda: (found := said(leader)) is not None and found.reason == "InFlightWindow")
        longest = leader.accounts.waits.longest()
        assert longest.pop(WaitReason.IN_FLIGHT_WINDOW) > 0 and not any(longest.values())
        leader.accounts._window = 0.0
        leader.accounts.look_at("project-alpha")
        await eventually(lambda: said(leader) == AccountWait(reason="Sources", sources=(KEY,)))
        leader.source.lists += 2
        await eventually(lambda: not world.account().fenced)
        await eventually(lambda: said(leader) is None)
        assert not any(leader.accounts.waits.longest().values())


async def test_a_store_that_does_not_answer_is_named_while_the_account_cannot_be_opened(
    world: SeedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await world.quota(limits="cpu=64", granted="cpu=64")
    await handle.writer.change(lambda present: (fencing.fence(present, "n"), None))
    leader = Leading(world)

    async def unavailable(*_: object) -> None:
        raise StoreUnavailableError("no answer")

    async with running(leader.accounts.run()):
        await eventually(lambda: said(leader) == AccountWait(reason="MasterAnswer"))
        monkeypatch.setattr(world.store, "save", unavailable)
        leader.source.lists += 2
        world.tell(nonce="n", seen=world.account().fenced_at)
        await eventually(lambda: said(leader) == AccountWait(reason="Ledger"))
        monkeypatch.undo()
        await eventually(lambda: not world.account().fenced)
        await eventually(lambda: said(leader) is None)


async def test_an_open_account_is_not_told_to_wait_while_the_store_does_not_answer(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64", granted="cpu=64")
    leader = Leading(world)
    quota = world.quota_cache.quota("project-alpha")
    assert quota is not None
    await leader.accounts._say_wait(quota, ledger=True)
    assert not any(leader.accounts.waits.longest().values()) and not leader.cluster.published


async def test_a_quota_whose_account_is_not_made_says_so_after_a_minute_and_never_in_place_of_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_limiter, "AT_ONCE", 0)
    monkeypatch.setattr(open_limiter, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(controller, "Waits", lambda: waits)
    now = 100.0
    waits = Waits(lambda: now)
    async with seed_world() as world:
        await world.quota(limits="cpu=64", granted="cpu=64")
        world.cluster_cache.user_clusters.store._remove(KEY)
        leader = Leading(world, term=2, cold=True)
        async with running(leader.accounts.run()):
            await eventually(lambda: waits.longest() == dict.fromkeys(WaitReason, 0.0) and waits._waiting)
            now += 100.0
            await asyncio.sleep(0.1)
            assert not leader.cluster.published, "there is an account, which another leader claimed"
            quota = world.quota_cache.quota("project-alpha")
            assert quota is not None
            await world.store.delete(quota.key)
            await eventually(lambda: said(leader) == AccountWait(reason="Turn"))
            assert leader.cluster.published[-1] == {"account": {"waitsFor": AccountWait(reason="Turn")}}
            number = len(leader.cluster.published)
            copy = world.copies["project-alpha"]
            of_before = report_to_wire(report(Account(incarnation="life", epoch=1, granted=nanos("cpu=64"))))
            world._put(msgspec.structs.replace(copy, status=msgspec.structs.replace(copy.status, account=of_before)))
            await asyncio.sleep(0.1)
            assert len(leader.cluster.published) <= number + 1
            number = len(leader.cluster.published)
            await asyncio.sleep(0.1)
            assert len(leader.cluster.published) == number


async def test_who_is_refused_meanwhile_reads_what_the_leader_says(world: SeedWorld) -> None:
    handle = await world.quota(limits="cpu=64", granted="cpu=64")
    await handle.writer.change(lambda present: (fencing.fence(present, "n"), None))
    copy = world.copies["project-alpha"]
    wire = report_to_wire(report(world.account()))
    wire = msgspec.structs.replace(wire, waits_for=AccountWait(reason="Sources", sources=("other/secret-name",)))
    world._put(msgspec.structs.replace(copy, status=msgspec.structs.replace(copy.status, account=wire)))
    found = await world.admission.decide(request())
    assert message(found) == (
        "quota project-alpha cannot decide: its account is not open yet: it waits for new lists from 1 cluster"
    )
