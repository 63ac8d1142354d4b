"""What forms send."""

from __future__ import annotations

from master.page.fitting import needed
from master.page.views.edit import new_raise, wanted


def test_the_fields_of_the_form_are_the_limits() -> None:
    form = {"limit.cpu": " 32 ", "limit.memory": "", "new.name": "nvidia.com/gpu", "new.limit": "8", "csrf": "x"}
    assert wanted(form) == {"cpu": "32", "nvidia.com/gpu": "8"}
    assert wanted({"new.name": "x", "new.limit": ""}) == {}


def test_what_is_to_fit_is_read_with_what_makes_no_sense_left_out() -> None:
    assert needed({"need.cpu": " 8 ", "need.memory": "", "need.gpus": "0", "replicas": "4"}) == ({"cpu": "8"}, 4)
    assert needed({"replicas": "9" * 9}) == ({}, 999_999)
    assert needed({"replicas": "-1"}) == ({}, 1)


def test_an_end_without_a_zone_is_in_utc_as_the_form_says() -> None:
    for given, time in (
        ("2026-12-31T08:30", "2026-12-31T08:30:00Z"),
        ("2026-12-31T08:30:15", "2026-12-31T08:30:15Z"),
        ("2026-12-31T08:30:15+01:00", "2026-12-31T08:30:15+01:00"),
        ("tomorrow", "tomorrow"),
    ):
        assert new_raise({"until": f" {given} "}).time == time
    assert not any(new_raise({"limit.cpu": "", "until": "", "reason": " ", "keep.0": "on"}))
    assert new_raise({"limit.cpu": "8", "reason": "launch"}) == ({"cpu": "8"}, "", "launch")
