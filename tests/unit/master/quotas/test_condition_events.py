from __future__ import annotations

import pytest

from common.api.types import Condition
from master.quotas.condition_events import changed_limits, new_warnings


def conditions(near: str = "False", exceeded: str = "False", current: str = "AllReported", note: str = "m"):
    return [
        Condition(type="Ready", status="True", reason="Enforced"),
        Condition(type="NearLimit", status=near, reason="Full", message=f"near {note}"),
        Condition(type="Exceeded", status=exceeded, reason="LimitLowered", message=f"over {note}"),
        Condition(
            type="UsageCurrent",
            status="True" if current == "AllReported" else "False",
            reason=current,
            message=f"away {note}",
        ),
    ]


@pytest.mark.parametrize(
    ("worse", "event"),
    [
        ({"near": "True"}, ("NearLimit", "near m")),
        ({"exceeded": "True"}, ("Exceeded", "over m")),
        ({"current": "SeedUnreachable"}, ("SeedUnreachable", "away m")),
    ],
)
def test_each_trouble_is_an_event_when_it_begins_and_when_it_begins_again(worse: dict[str, str], event) -> None:
    calm, trouble = conditions(), conditions(**worse)
    assert new_warnings([], trouble) == new_warnings(calm, trouble) == [event]
    assert new_warnings(trouble, conditions(**worse, note="other")) == []
    assert new_warnings(trouble, calm) == []


def test_a_source_that_is_away_is_no_seed_that_is() -> None:
    assert new_warnings(conditions(), conditions(current="SourceUnreachable")) == []
    assert new_warnings(conditions(current="SourceUnreachable"), conditions(current="SeedUnreachable")) == [
        ("SeedUnreachable", "away m")
    ]


def test_a_quota_without_trouble_has_none() -> None:
    assert new_warnings([], conditions()) == []


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        ({"cpu": "64", "memory": "1Gi"}, {"cpu": "128", "memory": "1Gi"}, "cpu 64 to 128"),
        ({"cpu": "64"}, {"memory": "1Gi"}, "cpu 64 to unlimited, memory unlimited to 1Gi"),
        ({"cpu": "1"}, {"cpu": "1500m"}, "cpu 1 to 1500m"),
        ({"cpu": "1"}, {"cpu": "1000m"}, ""),
        ({}, {"cpu": "1"}, ""),
        ({"cpu": "many"}, {"cpu": "1"}, ""),
    ],
)
def test_limits_that_are_in_force_now_are_an_event_unless_the_quota_is_new(before, after, note: str) -> None:
    assert changed_limits(before, after) == note


def test_limits_that_begin_not_to_fit_are_an_event() -> None:
    unfit = [Condition(type="LimitsFit", status="False", reason="AboveParent", message="cpu=40")]
    fit = [Condition(type="LimitsFit", status="True", reason="Fits")]
    assert new_warnings(fit, unfit) == [("AboveParent", "cpu=40")]
    assert new_warnings(unfit, unfit) == new_warnings(unfit, fit) == []
