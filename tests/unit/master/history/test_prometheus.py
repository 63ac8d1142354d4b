"""The use of the last thirty days, asked from a Prometheus. The real one is in tests/chart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.runtime import flags
from master.cache.objects import MasterQuota
from master.history import prometheus
from master.history.forecast import Point
from master.history.prometheus import AT_A_TIME, PrometheusHistory, points_of, selector
from master.history.prometheus_api import Points, PrometheusUnreachableError
from master.history.store import BUCKET
from master.page.views import plots
from tests.unit.master.page.builders import NOW, quota

END = (int(NOW.timestamp()) // BUCKET + 1) * BUCKET


class Asked:
    """A Prometheus that knows one value, and what it was asked."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.queries.append(request.query["query"])
        series = {"metric": {"resource": "cpu"}, "values": [[END, "4" if "used" in self.queries[-1] else "8"]]}
        body = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
        return web.json_response(body, status=self.status)


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[Asked, PrometheusHistory]]:
    asked, app = Asked(), web.Application()
    app.router.add_get("/prometheus/api/v1/query_range", asked.answer)
    async with TestServer(app) as server:
        yield asked, PrometheusHistory(str(server.make_url("/prometheus")), {"namespace": "a"}, lambda: NOW)


def named(name: str) -> MasterQuota:
    return quota(name, used={"cpu": "4"})


async def test_many_who_look_at_a_quota_ask_once_and_others_are_asked_about_apart() -> None:
    async with asking() as (asked, history):
        found = await asyncio.gather(*(history.points(named("q")) for _ in range(20)))
        assert all(each == {"cpu": [Point(END - BUCKET, 4.0, 8.0)]} for each in found)
        assert sorted(asked.queries) == [
            'max by (resource) (last_over_time(seedquota_limit{quota="q",namespace="a"}[7200s]))',
            'max by (resource) (max_over_time(seedquota_used{quota="q",namespace="a"}[7200s]))',
        ]
        await history.points(named("r"))
        assert len(asked.queries) == 4


async def test_of_refusals_nothing_is_known_and_the_plots_say_so() -> None:
    async with asking() as (_, history):
        shown = plots.past(await history.points(named("q")), await history.refusals(named("q")), NOW)
        assert shown.refused == "Whether anything was refused is not known."
        assert [each.resource for each in shown.plots] == ["cpu"] and "refused" not in str(shown.plots[0].svg)
        assert await history.lately() is None


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

    async def unreachable(*_: object) -> Points:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        raise PrometheusUnreachableError("Prometheus cannot be asked: TimeoutError")

    monkeypatch.setattr(prometheus, "query_range", unreachable)
    history = PrometheusHistory("http://127.0.0.1:1", {}, lambda: NOW)
    pages = await asyncio.gather(*(history.points(named(f"q{number}")) for number in range(10 * AT_A_TIME)))
    assert not any(pages) and asked <= 2 * AT_A_TIME
    assert await history.points(named("another")) == {} and asked <= 2 * AT_A_TIME


def test_what_was_before_the_quota_or_has_no_limit_is_no_point() -> None:
    used = {time: {"cpu": time, "memory": 1.0} for time in (BUCKET * 1.0, BUCKET * 2.0, BUCKET * 3.0)}
    limits = {time: {"cpu": 10.0} for time in used}
    found = points_of(used, limits, created=BUCKET - 1.0)
    assert found == {"cpu": [Point(BUCKET, BUCKET * 2.0, 10.0), Point(BUCKET * 2, BUCKET * 3.0, 10.0)]}


def test_a_name_or_label_ends_no_string_of_a_query() -> None:
    assert selector({"quota": 'a"} or vector(1) #', "b": "\\n"}) == r'{quota="a\"} or vector(1) #",b="\\n"}'


def test_labels_are_named_with_their_values() -> None:
    assert flags.labels("namespace=seedquota, cluster=a=b") == (("namespace", "seedquota"), ("cluster", "a=b"))
    for wrong in ("namespace", "=x", "a-b=c", "a="):
        with pytest.raises(ValueError, match="is not a label"):
            flags.labels(wrong)
    assert msgspec.json.encode("é").decode() == '"é"', "no escape that PromQL does not know"
