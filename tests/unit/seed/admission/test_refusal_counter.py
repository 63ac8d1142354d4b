"""What a replica of the agent counts of refusals, and that the master reads it."""

from __future__ import annotations

import msgspec
import pytest

from common.api import refusal_counts
from common.api.refusal_counts import MAX_COUNT, PART, CountedPart, QuotaRefusals, RefusalCounts, read
from master.seeds.agent_pages import MAX_ANSWER
from seed.admission import decision_log, refusal_counter
from seed.admission.decision_log import Decisions
from seed.admission.refusal_counter import RefusalCounter
from seed.admission.types import Verdict
from tests.unit.seed.admission.test_explain import fits, full, keep, larger_than_the_limit
from tests.unit.seed_world import seed_world

BEGIN = 100 * PART


def counted(found: bytes | None) -> RefusalCounts:
    assert found is not None
    told = read(found)
    assert told is not None
    return told


async def refused() -> Verdict:
    async with seed_world() as world:
        return await full(world)


async def test_each_refusal_is_counted_under_its_quota_and_what_was_short_but_no_dry_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision_log, "RefusalCounter", lambda: RefusalCounter(lambda: BEGIN))
    decisions = Decisions()
    async with seed_world() as world:
        admitted = await fits(world)
        keep(world, decisions, admitted)
        verdict = await larger_than_the_limit(world)
        uid = verdict.attempts[0].snapshot.quota.key.uid
        for dry_run in (False, False, True):
            keep(world, decisions, verdict, dry_run=dry_run)
    (before, now) = counted(decisions.page(refusal_counts.PATH, {})).parts
    assert now.begin == before.begin + PART and before.quotas == {}, "a part in which nothing was refused is told"
    assert now.quotas == {uid: QuotaRefusals(total=2, short={"cpu": 2})} and not now.more


async def test_it_keeps_the_part_of_now_and_the_one_before_whatever_the_clock_does() -> None:
    at = BEGIN + 1.0
    counter = RefusalCounter(lambda: at)
    verdict = await refused()
    counter.count(verdict)
    for at, totals in (
        (BEGIN + PART + 1.0, [1, 0]),
        (BEGIN + 1.0, [0, 1]),
        (BEGIN + 2 * PART + 1.0, [0, 0]),
        (BEGIN + 1.0, [0, 0]),
    ):  # fmt: skip
        told = counted(counter.page())
        assert [sum(each.total for each in part.quotas.values()) for part in told.parts] == totals
        assert [part.begin for part in told.parts] == [int(at) // PART * PART - PART, int(at) // PART * PART]
        assert told.since == BEGIN + 1.0


@pytest.mark.parametrize(("bound", "value"), [("MAX_QUOTAS", 0), ("MAX_PART", 90), ("MAX_PART", 120)])
async def test_what_finds_no_room_is_not_counted_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(refusal_counter, bound, value)
    counter = RefusalCounter(lambda: BEGIN)
    counter.count(await refused())
    part = counted(counter.page()).parts[1]
    assert part.more
    assert [(each.total, each.short) for each in part.quotas.values()] == ([(1, {})] if value == 120 else [])


def test_as_many_quotas_as_are_counted_fit_into_what_the_master_reads() -> None:
    counter = RefusalCounter(lambda: BEGIN)
    for number in range(refusal_counts.MAX_QUOTAS):
        uid = f"00000000-0000-0000-0000-{number:012}"
        counter._add(uid, {f"requests.example.com/device-{each}" for each in range(number % 8)})
    (_, now) = counted(counter.page()).parts
    assert now.more, "the bytes are the bound"
    full_part = CountedPart(
        begin=BEGIN,
        quotas={
            uid: QuotaRefusals(total=MAX_COUNT, short=dict.fromkeys(each.short, MAX_COUNT))
            for uid, each in now.quotas.items()
        },
        more=True,
    )
    both = RefusalCounts(life="l" * 16, since=BEGIN, parts=[full_part, full_part])
    assert len(msgspec.json.encode(both)) < MAX_ANSWER


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b'{"life":"a"}',
        b'{"life":"","since":1}',
        b'{"life":"a","since":1,"parts":[{"begin":1,"quotas":{"u":{"total":0}}}]}',
        b'{"life":"a","since":1,"parts":[{"begin":1,"quotas":{"u":{"total":-1}}}]}',
        b'{"life":"a","since":1,"parts":[{"begin":1,"quotas":{"u":{"total":1e99}}}]}',
        b'{"life":"a","since":1,"parts":[{"begin":1},{"begin":1},{"begin":1}]}',
        b"\xff",
    ],
)
def test_what_is_no_count_is_not_read(content: bytes) -> None:
    assert read(content) is None
