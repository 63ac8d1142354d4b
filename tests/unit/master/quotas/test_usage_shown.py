"""What the status of a UserCluster says of its use: what fits, and what matters first."""

from __future__ import annotations

from common.quota.names import BASE, FURTHER
from seed.controllers.user_cluster_status import MAX_SHOWN, shown

USED = {f"example.com/device-{number:03}": 1 for number in range(200)} | {"cpu": 1, "machines": 1}


def test_the_base_names_what_is_limited_and_a_few_others_are_shown() -> None:
    found = shown(USED, ["example.com/device-150"])
    assert {"cpu", "machines", "example.com/device-150"} <= found.keys()
    assert len(found) == 3 + FURTHER


def test_no_more_is_shown_than_a_status_takes() -> None:
    found = shown(USED, list(USED))
    assert len(found) == MAX_SHOWN
    assert set(list(found)[:2]) <= BASE


def test_all_of_what_is_little_is_shown() -> None:
    used = {"cpu": 1, "nvidia.com/gpu": 2}
    assert shown(used, []) == used
