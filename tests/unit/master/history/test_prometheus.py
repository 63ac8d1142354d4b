"""The use of the last thirty days, asked from a Prometheus. The real one is in tests/chart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.runtime import flags
from master.cache.objects import MasterQuota
from master.history import prometheus
from master.history.forecast import Point
from master.history.prometheus import AT_A_TIME, PrometheusHistory, points_of, selector
from master.history.prometheus_api import PrometheusUnreachableError, Series
from master.history.recent_refusals import RecentRefusals
from master.history.refusal_metrics import families, read
from master.history.refusals import ALL, Lately, PartTold, Refusals
from master.history.store import BUCKET
from master.page.views import plots
from tests.unit.master.page.builders import NOW, quota

END = (int(NOW.timestamp()) // BUCKET + 1) * BUCKET


class Asked:
    """A Prometheus that knows one value, and what it was asked."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.status = 200
        self.without = ""  # in a query that it refuses

    async def answer(self, request: web.Request) -> web.Response:
        query = request.query["query"]
        self.queries.append(query)
        if self.without and self.without in query:
            return web.json_response({"status": "error", "error": "too many samples"}, status=422)
        metric = {"resource": "cpu", **({"part": "08:00"} if "refusals" in query else {})}
        series = {"metric": metric, "values": [[END, "4" if "used" in query else "8"]]}
        body = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
        return web.json_response(body, status=self.status)


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[Asked, PrometheusHistory]]:
    asked, app = Asked(), web.Application()
    app.router.add_get("/prometheus/api/v1/query_range", asked.answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/prometheus"))
        yield asked, PrometheusHistory(url, {"namespace": "a"}, remembering(), lambda: NOW)


def remembering(*parts: PartTold, leads: bool = True) -> RecentRefusals:
    """With these parts in memory. It cannot ask an agent."""
    recent = RecentRefusals(cast(Any, None), cast(Any, None), lambda: leads, lambda: NOW)
    recent._told = {part.begin: part for part in parts}
    recent._names = {"q": "q", "r": "r"}
    return recent


def named(name: str) -> MasterQuota:
    return quota(name, used={"cpu": "4"})


async def test_many_who_look_at_a_quota_ask_once_and_others_are_asked_about_apart() -> None:
    async with asking() as (asked, history):
        found = await asyncio.gather(*(history.points(named("q")) for _ in range(20)))
        assert all(each == {"cpu": [Point(END - BUCKET, 4.0, 8.0)]} for each in found)
        assert sorted(asked.queries) == [
            'max by (part) (max_over_time(seedquota_quota_refusals_known{namespace="a"}[7200s]))',
            'max by (resource) (last_over_time(seedquota_limit{quota="q",namespace="a"}[7200s]))',
            'max by (resource) (max_over_time(seedquota_used{quota="q",namespace="a"}[7200s]))',
            'max by (resource, part) (max_over_time(seedquota_quota_refusals{quota="q",namespace="a"}[7200s]))',
        ]
        await history.points(named("r"))
        assert len(asked.queries) == 8


async def test_refusals_are_read_beside_what_the_agents_told_since() -> None:
    async with asking() as (asked, history):
        history._recent._told = {END - BUCKET: PartTold(END - BUCKET, {("q", "cpu"): 3, ("q", ALL): 3}, True, False)}
        before, now = END - 2 * BUCKET, END - BUCKET
        found = await history.refusals(named("q"))
        assert found == Refusals({before: {"cpu": 8}, now: {"cpu": 3, ALL: 3}}, {before, now})
        assert "at least 11 refused" in str(plots.past(await history.points(named("q")), found, NOW).plots[0].svg)
        assert len(asked.queries) == 4
        assert await history.lately() == Lately(before, {"q": 3}, whole=False)


async def test_where_refusals_cannot_be_read_use_is_shown_and_they_are_not_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asking() as (asked, history):
        asked.without = "refusals{"
        shown = plots.past(await history.points(named("q")), await history.refusals(named("q")), NOW)
        assert shown.refused == "Whether anything was refused is not known."
        assert [each.resource for each in shown.plots] == ["cpu"] and "refused" not in str(shown.plots[0].svg)
        assert ["too many samples" in cast(Any, each).error for each in caplog.records] == [True]


async def test_without_an_answer_there_is_no_plot_and_it_is_asked_again_only_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking() as (asked, history):
        asked.status = 500
        assert [await history.points(named("q")) for _ in range(3)] == [{}, {}, {}]
        assert len(asked.queries) <= 2 and "the history cannot be read" in caplog.text
        monkeypatch.setattr(prometheus, "KEPT_SECONDS", -1.0)
        monkeypatch.setattr(prometheus, "FAILED_SECONDS", -1.0)
        history._kept.clear()
        assert await history.points(named("q")) == {}
        asked.status = 200
        assert await history.points(named("q")) != {}


async def test_where_nobody_answers_no_page_waits_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def unreachable(*_: object) -> list[Series]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        raise PrometheusUnreachableError("Prometheus cannot be asked: TimeoutError")

    monkeypatch.setattr(prometheus, "query_range", unreachable)
    history = PrometheusHistory("http://127.0.0.1:1", {}, remembering(), lambda: NOW)
    pages = await asyncio.gather(*(history.points(named(f"q{number}")) for number in range(10 * AT_A_TIME)))
    assert not any(pages) and asked <= 2 * AT_A_TIME
    assert await history.points(named("another")) == {} and asked <= 2 * AT_A_TIME


def test_what_was_before_the_quota_or_has_no_limit_is_no_point() -> None:
    used = {time: {"cpu": time, "memory": 1.0} for time in (BUCKET * 1.0, BUCKET * 2.0, BUCKET * 3.0)}
    limits = {time: {"cpu": 10.0} for time in used}
    found = points_of(used, limits, created=BUCKET - 1.0)
    assert found == {"cpu": [Point(BUCKET, BUCKET * 2.0, 10.0), Point(BUCKET * 2, BUCKET * 3.0, 10.0)]}


NOON = int(NOW.timestamp()) // 86400 * 86400 + 12 * 3600


def scraped(recent: RecentRefusals, metric: str, at: float) -> list[Series]:
    """What a query has at that time, if all of its samples are of the part before."""
    found = {family.name: family.samples for family in recent.collect()}[metric]
    return [Series({name: value for name, value in each.labels.items() if value}, [(at, each.value)]) for each in found]


@pytest.mark.parametrize(("at", "late"), [(NOON, False), (NOON + BUCKET, False), (NOON + BUCKET, True)])
def test_what_was_told_is_read_as_of_its_part_whenever_it_was_scraped(at: float, late: bool) -> None:
    """NOON is the end of the part that began at ten. The clock of Prometheus may also be behind."""
    begin = NOON - BUCKET
    counts = {("q", ALL): 3, ("q", "cpu"): 2, ("gone", ALL): 9}
    recent = remembering(PartTold(begin, counts, whole=True, ended=late), PartTold(begin - BUCKET, {}, False, True))
    found = read(*(scraped(recent, f"seedquota_quota_refusals{end}", at) for end in ("", "_known")), created=0.0)
    assert found.counts == {begin: {ALL: 3, "cpu": 2}}
    assert found.known == ({begin} if late else set()), "an agent may refuse more before the end"
    yesterday = read(scraped(recent, "seedquota_quota_refusals", at - 86400), (), created=0.0)
    assert list(yesterday.counts) == [begin - 86400]


def test_of_several_values_the_largest_is_known_and_nothing_of_a_former_quota_of_that_name() -> None:
    times = [(NOON, 2.0), (NOON + BUCKET, 5.0), (NOON - 86400, 7.0)]
    counts = [Series({"part": "10:00"}, times), Series({"part": "10:00", "resource": "cpu"}, times[:1])]
    known = [Series({"part": "10:00"}, [(NOON, 0.0), (NOON - 86400, 1.0)]), Series({"part": "9:99"}, times)]
    begin = NOON - BUCKET
    assert read(counts, known, 0.0) == Refusals({begin: {ALL: 5, "cpu": 2}, begin - 86400: {ALL: 7}}, {begin - 86400})
    assert read(counts, known, begin - 1.0) == Refusals({begin: {ALL: 5, "cpu": 2}}, set())
    assert read(counts, known, begin + 1.0) == Refusals({}, set())


def test_a_replica_that_does_not_lead_or_was_told_nothing_for_hours_has_no_metrics() -> None:
    known, old = PartTold(END - BUCKET, {("q", ALL): 3}, True, False), PartTold(END - 3 * BUCKET, {}, True, True)
    for recent, samples in (
        (remembering(known), 2),
        (remembering(known, leads=False), 0),
        (remembering(old), 0),
        (remembering(), 0),
    ):
        assert sum(len(family.samples) for family in recent.collect()) == samples
    assert remembering(old).of("q") == Refusals({}, [])
    assert not remembering(known).lately().whole


def test_a_metric_says_zero_of_no_quota_and_names_none_that_is_gone() -> None:
    told = PartTold(NOON, {("q", "cpu"): 1, ("gone", "cpu"): 1}, False, True)
    counts, known = families([told], {"q": "project-q"})
    assert [(each.labels, each.value) for each in counts.samples] == [
        ({"quota": "project-q", "resource": "cpu", "part": "12:00"}, 1)
    ]
    assert [(each.labels, each.value) for each in known.samples] == [({"part": "12:00"}, 0.0)]


def test_a_name_or_label_ends_no_string_of_a_query() -> None:
    assert selector({"quota": 'a"} or vector(1) #', "b": "\\n"}) == r'{quota="a\"} or vector(1) #",b="\\n"}'


def test_labels_are_named_with_their_values() -> None:
    assert flags.labels("namespace=seedquota, cluster=a=b") == (("namespace", "seedquota"), ("cluster", "a=b"))
    for wrong in ("namespace", "=x", "a-b=c", "a="):
        with pytest.raises(ValueError, match="is not a label"):
            flags.labels(wrong)
    assert msgspec.json.encode("é").decode() == '"é"', "no escape that PromQL does not know"
