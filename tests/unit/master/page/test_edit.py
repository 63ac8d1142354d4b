"""What forms send."""

from __future__ import annotations

from master.page.lookups import needed
from master.page.views.edit import wanted


def test_the_fields_of_the_form_are_the_limits() -> None:
    form = {"limit.cpu": " 32 ", "limit.memory": "", "new.name": "nvidia.com/gpu", "new.limit": "8", "csrf": "x"}
    assert wanted(form) == {"cpu": "32", "nvidia.com/gpu": "8"}
    assert wanted({"new.name": "x", "new.limit": ""}) == {}


def test_what_is_to_fit_is_read_with_what_makes_no_sense_left_out() -> None:
    assert needed({"need.cpu": " 8 ", "need.memory": "", "need.gpus": "0", "replicas": "4"}) == ({"cpu": "8"}, 4)
    assert needed({"replicas": "9" * 9}) == ({}, 1_000_000)
    assert needed({"replicas": "-1"}) == ({}, 1)
