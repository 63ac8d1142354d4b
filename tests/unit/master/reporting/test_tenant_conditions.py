from __future__ import annotations

import pytest

from common.api.types import ResourceQuotaSpec, Subject
from master.cache.objects import QuotaStatus
from master.reporting.tenant_conditions import MAX_USAGE, ready, usage

PROJECT = Subject(kind="project", name="alpha")


def quota(
    used: dict[str, str], hard: dict[str, str], enforcement: str = "deny"
) -> tuple[ResourceQuotaSpec, QuotaStatus]:
    spec = ResourceQuotaSpec(subject=PROJECT, quota=dict(hard), enforcement=enforcement)  # type: ignore[arg-type]
    return spec, QuotaStatus(hard=dict(hard), global_usage=dict(used))


@pytest.mark.parametrize(
    ("quotas", "shown"),
    [
        ([], ""),
        ([quota({}, {})], ""),
        ([quota({"cpu": "4"}, {"cpu": "8", "memory": "1Gi"})], "cpu 4/8, memory 0/1Gi"),
        ([quota({"cpu": "4"}, {"cpu": "8"}), quota({"memory": "1Gi"}, {"memory": "2Gi"})], "cpu 4/8, memory 1Gi/2Gi"),
        ([quota({"cpu": "4"}, {"cpu": "64"}), quota({"cpu": "4"}, {"cpu": "8"})], "cpu 4/8"),
        ([quota({"cpu": "4"}, {"cpu": "8"}), quota({"cpu": "4"}, {"cpu": "64"})], "cpu 4/8"),
        ([quota({"cpu": "9"}, {"cpu": "8"}, "warn"), quota({"cpu": "9"}, {"cpu": "64"})], "cpu 9/64"),
        ([quota({"cpu": "9"}, {"cpu": "8"}, "warn")], "cpu 9/8"),
        ([quota({"cpu": "4"}, {"cpu": "8", "gpus": "2"})], "cpu 4/8, gpus ?/2"),
        ([quota({"cpu": "4"}, {"cpu": "8", "pods": "2"})], "cpu 4/8, pods ?/2"),
        ([quota({"cpu": "4", "pods": "0"}, {"cpu": "8", "pods": "2"})], "cpu 4/8, pods 0/2"),
    ],
    ids=[
        "none",
        "new",
        "one",
        "of-others",
        "second",
        "first",
        "warns",
        "only-warns",
        "not-counted",
        "no-cluster",
        "in-clusters",
    ],
)
def test_of_several_quotas_each_resource_is_shown_under_the_limit_that_has_least_left(
    quotas: list[tuple[ResourceQuotaSpec, QuotaStatus]], shown: str
) -> None:
    assert usage(quotas) == shown


def test_the_columns_text_is_bounded_however_many_quotas_there_are() -> None:
    many = [quota({}, {f"a.example/{number}-{each}{'x' * 50}": "1" for each in range(64)}) for number in range(10)]
    assert len(usage(many)) == MAX_USAGE


def test_a_seed_that_never_connected_keeps_no_project_from_being_ready() -> None:
    found = ready("project", [], ["broken"])
    assert (found.status, found.reason) == ("True", "AllSeeds")
    assert found.message == "the project is on all seeds but broken, which never connected"
    assert ready("project", ["eu-1"], ["broken"]).reason == "SeedNotSynced"
