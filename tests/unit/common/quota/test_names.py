from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.quota import names


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "cpu",
        "intel.com/sriov_netdevice",
        f"{'p' * 63}.{'p' * 63}.{'p' * 63}.{'p' * 61}/{'n' * 63}",
        f"{'p' * 64}.example.com/n",
        "n" * 63,
        "a/b",
    ],
)
def test_qualified_names_are_valid(name: str) -> None:
    assert names.is_valid(name)
    assert len(name) <= names.MAX_NAME


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/gpu",
        "nvidia.com/",
        "a/b/c",
        "Nvidia.com/gpu",
        "nvidia..com/gpu",
        "-a/gpu",
        "nvidia.com/g pu",
        "nvidia.com/gpu\n",
        "nvidia.com/gpü",
        "n" * 64,
        f"{'p' * 254}/n",
        f"{'p.' * 127}/n",
        "surge.nvidia.com/gpu",
        "surge.cpu",
    ],
)
def test_other_names_are_not_and_none_looks_like_a_surge(name: str) -> None:
    assert not names.is_valid(name)


USED = {"b/b": 1, "cpu": 2, "a/a": 3, "memory": 4, "c/c": 5}


def test_what_is_limited_and_the_base_names_are_kept() -> None:
    assert names.kept(USED, {"a/a"}) == {"cpu": 2, "a/a": 3, "memory": 4}
    assert names.kept(USED, {"a/a": 0, "b/b": 0, "c/c": 0}) is USED


def test_a_few_others_are_kept_the_same_ones_while_they_stay() -> None:
    assert names.kept(USED, (), further=1) == {"b/b": 1, "cpu": 2, "memory": 4}
    assert names.kept({"z/z": 9, **USED}, {"z/z"}, further=1) == {"z/z": 9, "b/b": 1, "cpu": 2, "memory": 4}
    assert names.kept({**USED, "a": 9}, (), further=1) == {"b/b": 1, "cpu": 2, "memory": 4}
    many = {f"example.com/device-{number}": 1 for number in range(1000)}
    assert list(names.kept(many, (), names.FURTHER)) == list(many)[: names.FURTHER]


@pytest.mark.parametrize(
    ("machine_type", "name"),
    [
        ("m5.large", "instances.m5.large"),
        ("Standard_D4s_v5", "instances.standard_d4s_v5"),
        ("GPU A100/8x", "instances.gpu-a100-8x"),
        ("--(large)--", "instances.large"),
        ("x" * 60, f"instances.{'x' * 53}"),
        ("x" * 52 + " yz", f"instances.{'x' * 52}"),
        ("größe", "instances.gr-e"),
        ("///", ""),
        ("", ""),
    ],
)
def test_a_type_of_machines_is_counted_by_a_name_that_is_valid(machine_type: str, name: str) -> None:
    assert names.of_instances(machine_type) == name
    assert not name or (names.is_valid(name) and names.of_machines(name))


def test_a_type_is_kept_where_it_is_limited_and_takes_no_place_of_others() -> None:
    used = {"cpu": 1, **{f"instances.{number}": 1 for number in range(20)}, "a/a": 1}
    assert names.kept(used, {"instances.3"}, names.FURTHER) == {"cpu": 1, "instances.3": 1, "a/a": 1}


def test_further_names_are_bounded_in_characters_and_limited_ones_are_not() -> None:
    long = {f"{number}.{'x' * 200}.example.com/{'y' * 40}": 1 for number in range(8)}
    kept = names.kept(long, (), names.FURTHER)
    assert 0 < sum(map(len, kept)) <= names.FURTHER_CHARACTERS
    assert names.kept(long, long, names.FURTHER) == long


def test_a_claim_on_a_surge_that_is_gone_keeps_its_name_so_that_it_can_be_refused() -> None:
    assert names.kept({"surge.cpu": 1, "a/a": 1}, ()) == {"surge.cpu": 1}


def test_the_names_that_can_be_limited_are_those_of_the_crd() -> None:
    crd = (Path(__file__).parents[4] / "charts/crds/resourcequota.yaml").read_text()
    listed = re.search(r"r in \[([^\]]+)\]", crd)
    assert listed is not None
    assert tuple(re.findall(r"'(\w+)'", listed[1])) == names.PLAIN
    assert names.unknown(["cpu", "example.com/gpu", "instances.m5.large"]) == ""
    assert names.unknown(["cpu", "cpus"]).startswith("cpus is an unknown resource; known are cpu, memory")
