"""How often quotas refused: what is believed of the agents' answers, what is kept of it, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.api.refusal_counts import PART, CountedPart, QuotaRefusals, RefusalCounts, read
from common.api.types import Seed
from master.cache.informers import Caches
from master.history import recent_refusals, refusals, store
from master.history.forecast import DAY, Point
from master.history.recent_refusals import RecentRefusals
from master.history.refusal_poll import PATH
from master.history.refusals import ALL, NOTHING_KNOWN, Lately, PartTold, Refusals, RefusalTally, merged
from master.history.sampler import Sampler
from master.history.store import BUCKET, KEPT, History
from master.page.views import plots
from master.page.views.refusals import lately, sentence
from master.seeds.agent_pages import AgentPages, Found
from tests.stores import fill
from tests.unit.master.apiserver.test_auth import reviewer
from tests.unit.master.page.builders import NOW, quota, seed

BEGIN = 1000 * PART
QUOTAS = ("q", "r")


def told(life: str = "a", since: float = 0, begin: int = BEGIN, more: bool = False, **total: int) -> RefusalCounts:
    """Each was short of cpu. Also of the part before, in which nothing was refused."""
    quotas = {uid: QuotaRefusals(total=count, short={"cpu": count}) for uid, count in total.items()}
    before = CountedPart(begin=begin - PART)
    return RefusalCounts(life=life, since=since, parts=[before, CountedPart(begin=begin, quotas=quotas, more=more)])


def test_replicas_are_added_up_and_each_counts_with_what_it_told_last() -> None:
    tally = RefusalTally()
    for seed_name, said in (
        ("eu", told("a", q=2)),
        ("eu", told("b", q=1)),
        ("us", told("a", q=10)),
        ("eu", told("a", q=3, r=1, unknown=7)),
        ("eu", told("later", begin=BEGIN + 5 * PART, q=100)),
    ):
        tally.take(seed_name, said, QUOTAS, BEGIN + 1)
    assert tally.counts(BEGIN) == {("q", ALL): 14, ("q", "cpu"): 14, ("r", ALL): 1, ("r", "cpu"): 1}
    tally.forget(BEGIN + PART)
    assert tally.counts(BEGIN), "the part before is kept"
    tally.forget(BEGIN + 2 * PART)
    assert tally.counts(BEGIN) == {} and tally._kept == 0


def test_only_a_replica_that_ran_all_the_time_and_had_room_tells_all_of_a_part() -> None:
    both = {BEGIN, BEGIN - PART}
    for said, whole in (
        (told(), both),
        (told(since=BEGIN - PART), both),
        (told(since=BEGIN - PART + 1), {BEGIN}),
        (told(since=BEGIN + 1), set()),
        (told(more=True), {BEGIN - PART}),
        (told(begin=BEGIN + PART), {BEGIN}),
        (RefusalCounts(life="a", since=0), set()),
    ):
        assert RefusalTally().take("eu", said, QUOTAS, BEGIN + 60) == whole, said


def test_a_seed_whose_agents_begin_again_and_again_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_KEPT", 3)
    tally = RefusalTally()
    for life in range(3):
        assert tally.take("hostile", told(str(life), q=1), QUOTAS, BEGIN) == {BEGIN, BEGIN - PART}
    assert tally.take("hostile", told("3", q=1), QUOTAS, BEGIN) == {BEGIN - PART}, "what is not kept is not known"
    assert tally.take("hostile", told("2", q=5), QUOTAS, BEGIN) == {BEGIN, BEGIN - PART}
    assert tally.counts(BEGIN)["q", ALL] == 7


def test_what_was_told_once_is_not_lost_and_of_too_many_quotas_those_that_refused_most_are_kept() -> None:
    before, after = {("q", ALL): 9, ("q", "cpu"): 9}, {("q", ALL): 4, ("r", ALL): 5}
    assert merged(before, after, 3) == ({("q", ALL): 9, ("q", "cpu"): 9, ("r", ALL): 5}, True)
    assert merged(before, after, 2) == (before, False)
    made_up = {("s", name): 99 for name in (ALL, "a", "b", "c")}
    assert merged(before, made_up, 3) == (before, False), "a seed that makes up resources hides no other quota"


def history_of(file: Path, *parts: PartTold) -> History:
    history = History(file)
    for each in parts:
        history.add_refusals(each)
    return history


def test_refusals_are_kept_by_part_beside_what_is_known_already(tmp_path: Path) -> None:
    counts = {("q", ALL): 3, ("q", "cpu"): 2, ("r", ALL): 1}
    history = history_of(
        tmp_path / "history", PartTold(BEGIN, counts, True, True), PartTold(BEGIN, {("q", ALL): 1}, True, True)
    )
    history.close()
    history = History(tmp_path / "history")  # also after a restart
    assert history.refusals("q", 0) == Refusals({BEGIN: {ALL: 3, "cpu": 2}}, [BEGIN])
    assert history.refusals("s", 0) == Refusals({}, [BEGIN]), "it is known that it refused nothing"
    history.forget(BEGIN + KEPT + 1)
    assert history.refusals("q", 0) == NOTHING_KNOWN._replace(known=[])


@pytest.mark.parametrize(
    ("said", "known_now", "known_later"),
    [
        ([(True, False)], True, False),
        ([(False, False)], False, False),
        ([(True, False), (False, False)], False, False),
        ([(True, False), (False, True)], False, False),
        ([(True, False), (True, True), (False, True)], True, True),
        ([(False, False), (False, True), (True, True)], True, True),
    ],
)
def test_all_of_a_part_is_known_once_every_agent_told_it_after_its_end(
    tmp_path: Path, said: Sequence[tuple[bool, bool]], known_now: bool, known_later: bool
) -> None:
    """Each is whether all was told, and whether the part had ended."""
    history = history_of(tmp_path / "history", *(PartTold(BEGIN, {}, *each) for each in said))
    assert bool(history.refusals("q", BEGIN).known) == known_now
    assert bool(history.refusals("q", BEGIN + PART).known) == known_later


def test_a_part_with_more_than_is_kept_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_REFUSALS", 2)
    known = PartTold(BEGIN, {("q", ALL): 9}, True, True)
    history = history_of(tmp_path / "history", known)
    assert history.refusals("s", 0).known == [BEGIN]
    history.add_refusals(known._replace(counts={("r", ALL): 5, ("s", ALL): 1}))
    assert history.refusals("s", 0) == Refusals({}, []), "it refused, and nothing says so"
    assert history.refusals("q", 0).counts == {BEGIN: {ALL: 9}}


@pytest.mark.parametrize(
    ("parts", "counts", "whole"),
    [
        ([], {}, False),
        ([(BEGIN, {("q", ALL): 3, ("q", "cpu"): 3, ("r", ALL): 1}, True, True)], {"q": 3, "r": 1}, False),
        ([(BEGIN, {("q", ALL): 3}, True, True), (BEGIN + PART, {("q", ALL): 4}, True, False)], {"q": 7}, True),
        ([(BEGIN, {}, True, False), (BEGIN + PART, {}, True, False)], {}, False),
        ([(BEGIN - PART, {("q", ALL): 3}, True, True), (BEGIN + PART, {}, True, False)], {}, False),
    ],
)
def test_of_the_last_hours_it_is_known_how_often_each_quota_refused(
    tmp_path: Path, parts: Sequence[Any], counts: dict[str, int], whole: bool
) -> None:
    history = history_of(tmp_path / "history", *(PartTold(*each) for each in parts))
    assert history.lately(BEGIN + PART) == Lately(BEGIN, counts, whole)


def test_the_overview_names_the_quotas_that_refused_most_and_takes_nothing_for_none() -> None:
    known = [quota(name) for name in "abcdefg"]
    counts = {name: number for number, name in enumerate("abcdefg", 1)} | {"gone": 99}
    found = lately(Lately(BEGIN, counts, False), known)
    assert found.quotas == [("g", 7), ("f", 6), ("e", 5), ("d", 4), ("c", 3)]
    assert (found.omitted, found.whole, found.since) == (
        2,
        False,
        f"{datetime.fromtimestamp(BEGIN, UTC):%b %-d %H:%M} UTC",
    )
    for nothing in (None, Lately(BEGIN, {}, False), Lately(BEGIN, {"gone": 99}, False)):
        assert not lately(nothing, known).since
    assert lately(Lately(BEGIN, {}, True), known).since


class FakeAgents(AgentPages):
    """Answers by seed; None: it cannot be asked; an Exception is raised."""

    def __init__(self, caches: Caches, answers: Mapping[str, RefusalCounts | bytes | Exception | None]) -> None:
        super().__init__(caches, "seedquota")
        self.answers = answers
        self.asked: list[str] = []

    async def find(
        self, asked: Sequence[tuple[Seed, str]], user: str, question: bytes | None = None, *, again: bool = False
    ) -> Found:
        found = Found()
        assert again, "where it may not be asked, no API server refuses it every few minutes"
        for each, path in asked:
            name = each.metadata.name
            self.asked.append(name)
            assert (path, question) == (PATH, None)
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                found.not_asked[name] = "it does not answer"
            else:
                content = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
                found.answers.append((name, content))
        return found


@pytest.mark.parametrize(
    ("of_us", "known"),
    [
        (told(q=2), True),
        (told(since=BEGIN + 1, q=2), False),
        (None, False),
        (b"{", False),
        (ValueError("nobody thought of it"), False),
    ],
)
async def test_seeds_that_tell_nothing_keep_nobody_from_being_counted_and_nothing_is_taken_for_zero(
    tmp_path: Path, of_us: RefusalCounts | bytes | Exception | None, known: bool
) -> None:
    async with reviewer() as cluster:
        caches = Caches(cluster, "seedquota")
        connected, away = ("Connected", "True", "Connected"), ("Connected", "False", "Unreachable")
        fill(caches.quotas.store, {name: quota(name, used={"cpu": "1"}) for name in QUOTAS})
        fill(
            caches.seeds.store,
            {"eu": seed("eu", connected), "us": seed("us"), "gone": seed("gone", away, state="Lost")},
        )
        agents = FakeAgents(caches, {"eu": told(q=3), "us": of_us})
        sampler = Sampler(caches, tmp_path / "history", agents, lambda: datetime.fromtimestamp(BEGIN + 60, UTC))
        assert await sampler.refusals(quota("q")) == NOTHING_KNOWN
        await sampler._ask(0)
        total = 5 if isinstance(of_us, RefusalCounts) else 3
        found = await sampler.refusals(quota("q"))
        assert found.counts == {BEGIN: {ALL: total, "cpu": total}}
        assert (BEGIN in found.known) == known
        assert (await sampler.refusals(quota("r"))).counts == {} and sorted(agents.asked) == ["eu", "us"]
        fill(caches.seeds.store, {"eu": seed("eu", connected), "us": seed("us", away)})
        await sampler._ask(1)
        assert agents.asked[2:] == ["eu"], "a seed that is away is not waited for"
        assert BEGIN not in (await sampler.refusals(quota("q"))).known


async def test_for_a_prometheus_what_agents_told_is_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_refusals, "MAX_KEPT", 2)
    async with reviewer() as cluster:
        caches = Caches(cluster, "seedquota")
        fill(caches.quotas.store, {name: quota(name, used={"cpu": "1"}) for name in QUOTAS})
        fill(caches.seeds.store, {"eu": seed("eu")})
        agents, now = FakeAgents(caches, {"eu": told(q=3)}), [BEGIN + 60.0]
        recent = RecentRefusals(caches, agents, lambda: True, lambda: datetime.fromtimestamp(now[0], UTC))
        assert recent.of("q") == NOTHING_KNOWN._replace(known=[])
        await recent.ask()
        assert recent.of("q") == Refusals({BEGIN: {ALL: 3, "cpu": 3}}, [BEGIN, BEGIN - PART])
        assert recent.lately() == Lately(BEGIN - PART, {"q": 3}, whole=True)
        now[0] += PART  # BEGIN has ended since it was told
        assert recent.of("q") == Refusals({BEGIN: {ALL: 3, "cpu": 3}}, [])
        agents.answers = {"eu": None}
        await recent.ask()
        assert recent.lately() == Lately(BEGIN, {"q": 3}, whole=False)
        agents.answers = {"eu": told(q=3, r=1)}
        await recent.ask()
        assert recent.of("q").counts == {BEGIN: {ALL: 3, "cpu": 3}}
        assert recent.of("r") == Refusals({}, []), "it refused, and nothing says so"


def test_a_name_that_no_metric_can_have_is_not_read() -> None:
    for name in ("", "a\n", "a b", "\0", "é", "c" * 400):
        counts = RefusalCounts(life="a", since=0, parts=[CountedPart(0, {"q": QuotaRefusals(1, {name: 1})})])
        assert read(msgspec.json.encode(counts)) is None
    assert read(msgspec.json.encode(told(q=1))) is not None


LAST = int(NOW.timestamp()) // BUCKET * BUCKET
ALWAYS = range(LAST - KEPT, LAST + BUCKET, BUCKET)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (NOTHING_KNOWN, "Whether anything was refused is not known."),
        (Refusals({}, [LAST]), "Nothing was refused in the 2 hours of which all refusals are known."),
        (Refusals({}, ALWAYS), "Nothing was refused in the 30 days of which all refusals are known."),
        (Refusals({}, [LAST - 2 * KEPT]), "Whether anything was refused is not known."),
        (Refusals({LAST: {ALL: 1}}, ()), "Refused at least once on Nov 20. There may be others."),
        (
            Refusals({LAST: {ALL: 1200, "cpu": 1}, LAST - int(DAY): {ALL: 40}}, ALWAYS[-40:]),
            "Refused at least 1,240 times on 2 days, last Nov 20. All refusals are known of 3 days.",
        ),
    ],
)
def test_it_is_said_how_often_a_quota_refused_and_of_which_time_that_is_known(found: Refusals, said: str) -> None:
    assert sentence(found, NOW) == said


def test_a_plot_shows_what_was_refused_for_want_of_its_resource_and_says_it_in_words() -> None:
    points = [Point(LAST - BUCKET, 60, 64), Point(LAST, 64, 64)]
    counts = {
        LAST: {ALL: 5, "cpu": 2},
        LAST - BUCKET: {ALL: 1, "cpu": 1},
        LAST - int(DAY): {ALL: 3, "cpu": 3},
        LAST - 2 * int(DAY): {ALL: 9},
    }
    past = plots.past({"cpu": points, "memory": points}, Refusals(counts, ALWAYS[-100:]), NOW)
    cpu, memory = past.plots
    assert cpu.refused == "refused at least 6 times on 2 days, last Nov 20" and memory.refused == ""
    drawn = str(cpu.svg)
    assert drawn.count('class="refused"') == 2, "parts that follow each other are one"
    assert drawn.count('class="refused-unknown"') == 1
    assert "at least 3 refused, Nov 20 06:00 to Nov 20 10:00 UTC" in drawn or "at least 3 refused" in drawn
    assert f"; {cpu.refused}" in drawn.partition(">")[0], "whoever does not see it reads it"
    assert 'class="refused"' not in str(memory.svg)
    nothing = plots.past({"cpu": points}, NOTHING_KNOWN, NOW)
    assert 'class="refused' not in str(nothing.plots[0].svg), "unknown is said once"
    assert nothing.refused == "Whether anything was refused is not known."
    assert plots.past({}, NOTHING_KNOWN, NOW) == plots.Past([], "")
