"""What is kept of the use of quotas, for how long, and what is told from it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from master.history import store
from master.history.forecast import DAY, Point, full_in, words
from master.history.refusals import NOTHING_KNOWN
from master.history.sampler import samples
from master.history.store import BUCKET, KEPT, History, Sample
from master.page.plots.line import LEFT, RIGHT, WIDTH, changes, line, runs
from master.page.views import plots
from tests.unit.master.page.builders import CURRENT, ENFORCED, NOW, quota

HOUR = 3600.0


def grown(days: float, by_day: float, start: float = 10.0, limit: float = 100.0) -> list[Point]:
    return [
        Point(number * BUCKET, start + by_day * number * BUCKET / DAY, limit)
        for number in range(int(days * DAY / BUCKET))
    ]


@pytest.mark.parametrize(
    ("points", "days"),
    [
        (grown(14, 5), 4.1),
        (grown(3, 2), 42.1),
        (grown(14, 0), None),
        (grown(14, -1), None),
        (grown(0.5, 5), None),
        (grown(14, 0.01), None),
        ([*grown(2, 5), Point(2 * DAY, 120, 100)], 0),
        ([], None),
    ],
)  # fmt: skip
def test_a_limit_is_reached_when_use_goes_on_to_grow_as_it_did(points: list[Point], days: float | None) -> None:
    found = full_in(points)
    assert found is None if days is None else found is not None and found / DAY == pytest.approx(days, abs=0.2)


def test_of_use_that_jumps_about_nothing_is_foretold() -> None:
    chance = random.Random(1)
    assert full_in([Point(number * BUCKET, chance.uniform(0, 90), 100) for number in range(100)]) is None


def test_when_a_quota_is_full_is_said_as_people_say_it() -> None:
    assert [words(each) for each in (0, HOUR, 30 * HOUR, 9.2 * DAY)] == [
        "full now", "full in about 1 hour", "full in about 30 hours", "full in about 9 days",
    ]  # fmt: skip


def test_of_what_is_sampled_in_two_hours_the_largest_use_and_the_last_limit_are_kept(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    for minute, used, limit in ((0, 3, 8), (5, 7, 8), (10, 5, 16), (130, 4, 16)):
        history.add(BUCKET * 100 + minute * 60, [Sample("uid", "cpu", used, limit)])
    history.add(BUCKET * 100, [Sample("other", "cpu", 1, 2)])
    assert history.points("uid") == {"cpu": [Point(BUCKET * 100, 7, 16), Point(BUCKET * 101, 4, 16)]}
    history.close()
    assert list(History(tmp_path / "history").points("uid")) == ["cpu"]  # also after a restart


def test_what_is_older_than_thirty_days_goes_with_the_quotas_that_are_gone(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.add(0, [Sample("gone", "cpu", 1, 2), Sample("there", "cpu", 1, 2)])
    history.add(KEPT + BUCKET, [Sample("there", "cpu", 1, 2)])
    history.forget(KEPT + BUCKET)
    assert history.points("gone") == {}
    assert len(history.points("there")["cpu"]) == 1


def test_no_more_series_are_kept_than_the_file_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_SERIES", 2)
    history = History(tmp_path / "history")
    given = [Sample(name, "cpu", 1, 2) for name in ("a", "b", "c")]
    assert history.add(0, given) == 1 and history.add(BUCKET, given) == 1
    assert history.points("c") == {} and len(history.points("a")["cpu"]) == 2
    history.forget(KEPT * 2)
    assert history.add(KEPT * 2, given[2:]) == 0


def test_only_what_is_known_now_is_sampled() -> None:
    stale = ("UsageCurrent", "False", "SeedUnreachable")
    found = samples(
        [
            quota("known", {"cpu": "64", "memory": "1Gi", "x.io/y": "1"}, {"cpu": "60500m", "memory": "1Mi"}),
            quota("stale", used={"cpu": "1"}, conditions=(ENFORCED, stale)),
            quota("never", used=None),
            quota("silent", used={"cpu": "1"}, conditions=(ENFORCED,)),
        ]
    )
    assert list(found) == [Sample("known", "cpu", 60.5, 64.0), Sample("known", "memory", 2.0**20, 2.0**30)]
    assert CURRENT[1] == "True"


def test_where_nothing_is_known_the_line_has_a_gap_and_changed_limits_are_marked() -> None:
    known = [Point(0, 1, 8), Point(BUCKET, 2, 8), Point(5 * BUCKET, 3, 16), Point(6 * BUCKET, 4, 16)]
    assert [len(run) for run in runs(known, BUCKET)] == [2, 2]
    assert [(mark.time, mark.limit) for mark in changes(known)] == [(5 * BUCKET, 16)]
    drawn = str(line(known, 30 * DAY, BUCKET, lambda amount: f"{amount:g} <cores>", 'a "title"'))
    assert drawn.count("<polyline") == 2 and drawn.count('class="mark"') == 1
    assert "&lt;cores&gt;" in drawn and "a &#34;title&#34;" in drawn and "style" not in drawn


def test_a_single_point_is_as_long_as_what_was_sampled() -> None:
    drawn = line([Point(29 * DAY, 2, 8)], 30 * DAY, BUCKET, str, "cpu")
    ((begin, end),) = re.findall(r'class="line-used" points="([0-9.]+),[0-9.]+ ([0-9.]+),', drawn)
    assert float(end) - float(begin) == pytest.approx(BUCKET / (30 * DAY) * (WIDTH - LEFT - RIGHT), abs=0.1)
    drawn = line([Point(30 * DAY - 1, 2, 8)], 30 * DAY, BUCKET, str, "cpu")
    assert f'points="{WIDTH - RIGHT}.0,' in drawn and f" {WIDTH - RIGHT}.0," in drawn, "not beyond now"


def test_a_plot_says_when_its_quota_is_full_and_of_how_many_days_it_knows() -> None:
    begin = NOW.timestamp() - 3 * DAY
    points = {"memory": [Point(begin + each.time, each.used * 2**30, each.limit * 2**30) for each in grown(3, 10)]}
    (plot,) = plots.past(points, NOTHING_KNOWN, NOW).plots
    assert plot.resource == "memory" and plot.forecast.startswith("full in about") and plot.days in (3, 4)
    assert "Gi of 100 Gi" in str(plot.svg)
