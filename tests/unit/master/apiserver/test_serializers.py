from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.api.types import WireGuarantee
from common.kube.client.meta import ObjectMeta
from common.quota import resources
from common.quota.quantity import UNIT
from master.apiserver import capacity, guarantee_checks, serializers
from master.apiserver.capacity import Capacity
from master.apiserver.problem import ProblemError
from master.cache.allocations import Use
from master.cache.objects import MasterQuota, OverrideStatus, QuotaStatus
from master.cache.organization_limits import OrganizationLimits


def quota(
    limits: dict[str, str | int], used: dict[str, str | int] | None = None, name: str = "q", **status: Any
) -> MasterQuota:
    spec: dict[str, object] = {"subject": {"kind": "organization", "name": "acme"}, "quota": limits}
    return MasterQuota(
        metadata=ObjectMeta(name=name, uid=name, generation=1),
        spec=spec,
        status=QuotaStatus(global_usage=used or {}, **status),
    )


def wanted(**amounts: int) -> list[Capacity]:
    return [Capacity(type=name, amount=amount) for name, amount in amounts.items()]


def test_of_several_quotas_the_lowest_limit_and_the_most_use_are_shown() -> None:
    found = capacity.organization_quotas(
        [quota({"cpu": 4, "machines": 9}, {"cpu": 1}), quota({"cpu": 6}, {"cpu": 2})], {}
    )
    assert [(each.type, each.amount) for each in found.capacity] == [("cpu", 4), ("machines", 9)]
    assert [(each.type, each.amount) for each in found.free] == [("cpu", 2)], "machines are not counted yet"


def test_what_is_allocated_is_shown_at_once_and_split() -> None:
    """The status of the quota has the use of a moment ago. What no quota limits is shown as allocated alone."""
    present = quota({"servers": 10, "clusters": 5}, {"servers": 2, "clusters": 1})
    use = {"servers": Use(3, 5), "gpus": Use(1, 0), "licences": Use()}
    assert msgspec.to_builtins(capacity.organization_quotas([present], use)) == {
        "capacity": [{"type": "clusters", "amount": 5}, {"type": "servers", "amount": 10}],
        "free": [{"type": "clusters", "amount": 4}, {"type": "servers", "amount": 2}],
        "allocated": [
            {"type": "clusters", "amount": 1, "committed": 1, "reserved": 0},
            {"type": "gpus", "amount": 1, "committed": 1, "reserved": 0},
            {"type": "servers", "amount": 8, "committed": 3, "reserved": 5},
        ],
    }
    with pytest.raises(ProblemError) as refused:
        capacity.capacity_changes(present, wanted(servers=7, clusters=5), use)
    assert (refused.value.code, str(refused.value)) == (
        "capacity_below_allocated",
        "servers: capacity 7, allocated 8",
    )


@given(
    st.dictionaries(
        st.sampled_from(["cpu", "memory", "machines"]), st.integers(0, 10**6).map(lambda n: f"{n}m"), max_size=3
    ),
    st.dictionaries(st.sampled_from(["cpu", "memory", "machines"]), st.integers(0, 10**6).map(lambda n: f"{n}m")),
)
def test_what_is_read_can_be_sent_back_and_nothing_free_is_invented(
    limits: dict[str, str | int], used: dict[str, str | int]
) -> None:
    present = quota(limits, used)
    shown = capacity.organization_quotas([present], {})
    sent = [Capacity(type=each.type, amount=each.amount) for each in shown.capacity]
    assert capacity.capacity_changes(present, sent, {}) == {}
    exact, use = resources.parse(limits), resources.parse(used)
    for each in shown.free:
        assert each.amount * UNIT <= max(exact[each.type] - use[each.type], 0)


def test_limits_change_and_what_is_not_named_goes() -> None:
    present = quota({"cpu": "4", "machines": 3}, {"cpu": 1})
    assert capacity.capacity_changes(present, wanted(cpu=5), {}) == {"machines": None, "cpu": "5"}
    assert capacity.capacity_changes(None, wanted(memory=2**30), {}) == {"memory": "1Gi"}


def test_only_lowering_below_what_is_used_is_refused() -> None:
    present = quota({"cpu": 4, "machines": 3}, {"cpu": 8, "machines": 2})
    for amount in (4, 5, 7):
        capacity.capacity_changes(present, wanted(cpu=amount, machines=2), {})
    with pytest.raises(
        ProblemError, match="cpu: capacity 3, allocated 8; machines: capacity 1, allocated 2"
    ) as refused:
        capacity.capacity_changes(present, wanted(cpu=3, machines=1), {})
    assert refused.value.code == "capacity_below_allocated"
    with pytest.raises(ProblemError, match="gpus: capacity 0"):
        capacity.capacity_changes(quota({"cpu": 4}, {"cpu": 1, "gpus": 1}), wanted(gpus=0), {})


def test_a_version_changes_with_the_limits_and_not_with_the_use() -> None:
    one = quota({"cpu": 4}, {"cpu": 1})
    used = msgspec.structs.replace(one, status=QuotaStatus(global_usage={"cpu": 2}))
    metadata = msgspec.structs.replace(one.metadata, generation=2)
    changed = msgspec.structs.replace(one, metadata=metadata)
    assert serializers.version([one]) == serializers.version([used]) != serializers.version([changed])


@given(st.sets(st.text(alphabet="ab-.", min_size=1, max_size=4)), st.integers(1, 5))
def test_pages_together_are_everything_once(names: set[str], limit: int) -> None:
    found: list[str] = []
    after = ""
    for _ in range(len(names) + 1):
        page, rest = serializers.page(sorted(names), limit, after)
        assert len(page) <= limit
        found += page
        if not rest:
            break
        after = rest
    assert found == sorted(names)


@pytest.mark.parametrize("text", ["many", "-1", "1e99", "9" * 40])
def test_an_amount_that_is_none_is_pointed_to(text: str) -> None:
    with pytest.raises(ProblemError) as refused:
        serializers.amounts({"cpu": 1, "a/b": text}, "/quota")
    assert [each.pointer for each in refused.value.errors] == ["/quota/a~1b"]


def guaranteeing(used: dict[str, str | int], project: str = "alpha", **more: Any) -> MasterQuota:
    """Of an organization, which keeps 16 CPUs for alpha."""
    given = WireGuarantee(project=project, hard={"cpu": "16"}, used={"cpu": "3"})
    return quota({"cpu": "64", "memory": 9}, used, name="org-acme", hard={"cpu": "64"}, guarantees=[given], **more)


def free_and_kept(present: MasterQuota) -> tuple[int, int]:
    shown = msgspec.to_builtins(capacity.organization_quotas([present], {}))
    (free,), kept = shown["free"], shown.get("kept", [])
    return free["amount"], sum(each["amount"] for each in kept)


def test_what_is_kept_for_projects_is_shown_beside_what_is_free() -> None:
    assert free_and_kept(guaranteeing({"cpu": 40})) == (24, 13)
    assert free_and_kept(guaranteeing({"cpu": 60})) == (4, 4), "not more than is free"
    assert serializers.combined([guaranteeing({"cpu": 60})], "").status.kept == {"cpu": "4"}
    assert serializers.combined([guaranteeing({"cpu": 70})], "").status.kept == {}
    assert free_and_kept(guaranteeing({"cpu": 70})) == (0, 0)
    status = serializers.combined([guaranteeing({"cpu": 40})], "").status
    assert (status.guarantees[0].project, status.guarantees[0].hard, status.kept) == (
        "alpha",
        {"cpu": "16"},
        {"cpu": "13"},
    )


@given(st.integers(0, 70_000), st.integers(0, 16_000))
def test_of_what_is_free_no_more_is_kept_than_that_and_no_less_than_others_cannot_have(
    used: int, of_alpha: int
) -> None:
    given = WireGuarantee(project="alpha", hard={"cpu": "16"}, used={"cpu": f"{of_alpha}m"})
    present = quota({"cpu": "64"}, {"cpu": f"{used}m"}, hard={"cpu": "64"}, guarantees=[given])
    free, kept = free_and_kept(present)
    assert 0 <= kept <= free
    assert (free - kept) * 1000 <= max(64_000 - used - (16_000 - of_alpha), 0)


def test_what_is_set_to_be_guaranteed_is_shown_beside_what_is_in_force() -> None:
    spec: dict[str, object] = {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "64"}}
    mine = MasterQuota(metadata=ObjectMeta(name="q"), spec={**spec, "guaranteed": {"cpu": "20"}})
    for parents, in_force in (
        ([], {}),
        ([guaranteeing({})], {"cpu": "16"}),
        ([guaranteeing({}, project="beta")], {}),
        ([guaranteeing({}), quota({"cpu": "64"}, hard={"cpu": "64"})], {}),
    ):
        shown = serializers.combined([mine], "", parents=parents)
        assert (shown.guaranteed, shown.status.guaranteed) == ({"cpu": "20"}, in_force)


def test_a_guarantee_changes_alone_and_all_of_it_can_go() -> None:
    assert serializers.guarantee_changes({"cpu": "16", "memory": "1Gi"}, {"cpu": "8"}) == {"memory": None, "cpu": "8"}
    assert serializers.guarantee_changes({"cpu": "16"}, {}) is None
    assert serializers.guarantee_changes({}, {}) == serializers.guarantee_changes({"cpu": 1}, {"cpu": 1}) == {}


LIMITS = OrganizationLimits(
    own=resources.parse({"cpu": "64", "memory": "8Gi"}), guaranteed={"beta": resources.parse({"cpu": "60"})}
)


@pytest.mark.parametrize(
    ("wanted", "before", "said"),
    [
        ({"cpu": "4"}, {}, ""),
        ({"cpu": "16"}, {"cpu": "16"}, ""),
        ({"storage": "1Ti"}, {}, ""),
        (
            {"cpu": "5", "memory": "1Gi"},
            {},
            "cpu: 5 is more than organization acme can guarantee (4 of its limit of 64",
        ),
        ({"memory": "9Gi"}, {}, "memory: 9Gi is more than organization acme can guarantee (8Gi of its limit of 8Gi"),
    ],
    ids=["fits", "stays", "not limited", "of others", "first of all"],
)
def test_what_an_organization_cannot_guarantee_is_refused_with_what_to_do(
    wanted: dict[str, str], before: dict[str, str], said: str
) -> None:
    def check() -> None:
        guarantee_checks.fits(resources.parse(wanted), resources.parse(before), "alpha", "acme", LIMITS)

    if not said:
        check()
        return
    with pytest.raises(ProblemError) as refused:
        check()
    assert (refused.value.status, refused.value.code) == (422, "guarantees_exceed_organization")
    (error,) = refused.value.errors
    assert error.pointer == f"/guaranteed/{said.partition(':')[0]}"
    assert said in error.detail and "guarantee less" in error.detail


def test_an_organization_has_so_many_guaranteed_amounts() -> None:
    others = {f"p{number}": resources.parse({"cpu": 1}) for number in range(15)}
    limits = OrganizationLimits(own=resources.parse({"cpu": 64, "memory": 64}), guaranteed=others)
    guarantee_checks.fits({"cpu": 1}, {}, "alpha", "acme", limits)
    guarantee_checks.fits({"cpu": 1, "memory": 0, "storage": 1}, {}, "alpha", "acme", limits)  # the others keep nothing
    with pytest.raises(ProblemError, match="would have 17 guaranteed amounts, and can have 16"):
        guarantee_checks.fits({"cpu": 1, "memory": 1}, {}, "alpha", "acme", limits)


def raised(state: str) -> MasterQuota:
    said = OverrideStatus(until="2026-12-31T00:00:00Z", quota={"cpu": "16"}, state=state)  # type: ignore[arg-type]
    found = quota({"cpu": 8}, {"cpu": 1}, overrides=[said])
    return msgspec.structs.replace(
        found, spec={**found.spec, "overrides": [{"until": said.until, "quota": said.quota}]}
    )


def test_a_limit_that_is_raised_for_a_time_is_not_made_the_limit_by_who_sends_back_what_was_read() -> None:
    present = raised("InForce")
    read = capacity.organization_quotas([present], {})
    assert [(each.type, each.amount) for each in (*read.capacity, *read.free)] == [("cpu", 16), ("cpu", 15)]
    assert capacity.capacity_changes(present, wanted(cpu=16), {}) == {}
    assert capacity.capacity_changes(present, wanted(cpu=12), {}) == {"cpu": "12"}
    shown = serializers.combined([present], "")
    assert (shown.quota, shown.status.hard, shown.overrides[0].quota) == ({"cpu": "8"}, {"cpu": "16"}, {"cpu": "16"})


def test_what_was_read_before_a_raise_ended_has_another_version() -> None:
    """Else who sends it back would set the raised limit for good."""
    versions = {serializers.version([raised(state)]) for state in ("InForce", "Ended")}
    assert len(versions) == 2
