from __future__ import annotations

import pytest

from common.quota import resources
from common.quota.quantity import UNIT, QuantityError


def test_a_list_is_parsed_by_name() -> None:
    assert resources.parse({"cpu": "1500m", "memory": "1Gi", "machines": 3}) == {
        "cpu": 1_500_000_000,
        "memory": 1024**3 * UNIT,
        "machines": 3 * UNIT,
    }


def test_a_malformed_amount_is_named_with_its_resource() -> None:
    with pytest.raises(QuantityError, match=r"^memory: '64x' is not a quantity"):
        resources.parse({"cpu": "1", "memory": "64x"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memory", "64Ki"),
        ("storage", "64Ki"),
        ("ephemeral-storage", "64Ki"),
        ("hugepages-2Mi", "64Ki"),
        ("requests.memory", "64Ki"),
        ("limits.ephemeral-storage", "64Ki"),
        ("requests.hugepages-1Gi", "64Ki"),
        ("gold.storageclass.storage.k8s.io/requests.storage", "64Ki"),
        ("cpu", "65536"),
        ("requests.cpu", "65536"),
        ("machines", "65536"),
        ("nvidia.com/gpu", "65536"),
        ("count/memory", "65536"),
        ("memorystick", "65536"),
    ],
)
def test_bytes_print_with_binary_suffixes_and_all_else_with_decimal_ones(name: str, expected: str) -> None:
    assert resources.render({name: 65536 * UNIT}) == {name: expected}


def test_text_is_the_grammar_of_quota_messages_sorted_by_name() -> None:
    assert resources.text(resources.parse({"memory": "16384Mi", "cpu": "8", "nvidia.com/gpu": 1})) == (
        "cpu=8,memory=16Gi,nvidia.com/gpu=1"
    )
    assert resources.text({}) == ""


def test_arithmetic_counts_missing_names_as_zero_and_leaves_operands_alone() -> None:
    a, b = {"cpu": 5, "memory": 7}, {"cpu": 8, "storage": 2}
    assert resources.add(a, b) == {"cpu": 13, "memory": 7, "storage": 2}
    assert resources.subtract(a, b) == {"cpu": -3, "memory": 7, "storage": -2}
    assert resources.total([a, b, b]) == {"cpu": 21, "memory": 7, "storage": 4}
    assert resources.total([]) == {}
    assert resources.maximum(a, b) == {"cpu": 8, "memory": 7, "storage": 2}
    assert resources.minimum(a, b) == {"cpu": 5, "memory": 0, "storage": 0}
    assert resources.at_least_zero(resources.subtract(a, b)) == {"cpu": 0, "memory": 7, "storage": 0}
    assert resources.only(a, ["memory", "gpus"]) == {"memory": 7}
    assert (a, b) == ({"cpu": 5, "memory": 7}, {"cpu": 8, "storage": 2})


@pytest.mark.parametrize(
    ("need", "free", "expected"),
    [
        ({"cpu": 8}, {"cpu": 8}, {}),
        ({"cpu": 8}, {"cpu": 4}, {"cpu": 4}),
        ({"cpu": 8}, {"cpu": -2}, {"cpu": 10}),
        ({"cpu": 8, "memory": 9}, {"memory": 1}, {"memory": 8}),
        ({"cpu": 0, "memory": -1}, {"cpu": -5, "memory": -5}, {}),
        ({}, {"cpu": -5}, {}),
    ],
)
def test_short_names_what_is_needed_limited_and_missing(
    need: dict[str, int], free: dict[str, int], expected: dict[str, int]
) -> None:
    assert resources.short(need, free) == expected


def test_lists_beside_each_other_have_each_resource_in_one_unit() -> None:
    lists = [resources.parse(found) for found in ({"cpu": 2000, "memory": "1Ti"}, {"cpu": 2003}, {"memory": "1Mi"}, {})]
    assert resources.texts(*lists) == ["cpu=2000,memory=1048576Mi", "cpu=2003", "memory=1Mi", ""]
    assert resources.texts({"cpu": 2_000 * UNIT}, {"cpu": 0}) == ["cpu=2k", "cpu=0"]
    assert resources.texts({"cpu": 1_500_000_000}, {"cpu": -UNIT}) == ["cpu=1500m", "cpu=-1000m"]


def test_bytes_of_which_one_is_no_multiple_of_1024_are_all_written_in_bytes() -> None:
    found = resources.texts({"memory": 64 * 1024 * UNIT}, {"memory": 1000 * UNIT}, {"memory": 1025 * UNIT})
    assert found == ["memory=65536", "memory=1000", "memory=1025"]
