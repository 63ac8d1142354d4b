"""What an edit of limits would mean."""

from __future__ import annotations

import pytest

from common.quota import resources
from common.quota.quantity import QuantityError
from master.page.lookups import needed
from master.page.views.edit import changes, wanted

BEFORE = {"cpu": "64", "memory": "256Gi", "machines": 20}


def test_the_fields_of_the_form_are_the_limits() -> None:
    form = {"limit.cpu": " 32 ", "limit.memory": "", "new.name": "nvidia.com/gpu", "new.limit": "8", "csrf": "x"}
    assert wanted(form) == {"cpu": "32", "nvidia.com/gpu": "8"}
    assert wanted({"new.name": "x", "new.limit": ""}) == {}


def test_what_would_be_over_its_limit_and_what_nobody_knows_is_said() -> None:
    used = resources.parse({"cpu": "60", "memory": "1Gi"})
    found = changes(BEFORE, {"cpu": "50", "machines": "20", "gpus": "4"}, used)
    assert [(each.resource, each.over and each.over.text, each.after and each.after.text) for each in found] == [
        ("cpu", "10 cores", "50 cores"), ("memory", None, None), ("gpus", None, "4"),
    ]  # fmt: skip
    assert found[2].used is None


@pytest.mark.parametrize("limit", ["many", "-1", "1" * 100])
def test_a_limit_that_is_none_is_refused_with_its_name(limit: str) -> None:
    with pytest.raises(QuantityError, match="cpu"):
        changes(BEFORE, {"cpu": limit}, {})


def test_what_is_to_fit_is_read_with_what_makes_no_sense_left_out() -> None:
    assert needed({"need.cpu": " 8 ", "need.memory": "", "need.gpus": "0", "replicas": "4"}) == ({"cpu": "8"}, 4)
    assert needed({"replicas": "9" * 9}) == ({}, 1_000_000)
    assert needed({"replicas": "-1"}) == ({}, 1)
