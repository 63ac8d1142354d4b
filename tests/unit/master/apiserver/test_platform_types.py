"""What a change of limits, of a default quota or of a seed would do, as the HTTP API says it."""

from __future__ import annotations

from typing import Any

import msgspec

from common.api.labels import DEFAULT_LABEL
from common.api.types import DefaultQuota
from common.kube.client.meta import ObjectMeta
from master.apiserver import platform_types as types
from master.cache.objects import MasterQuota, Named, Override, OverrideStatus
from tests.unit.quota_examples import AWAY, CONNECTED, quota, seed

PROJECT = {"kind": "project", "name": "alpha"}


def counted(name: str, subject: str, limits: dict[str, Any], used: dict[str, Any], **status: Any) -> MasterQuota:
    return quota(name, {"kind": "project", "name": subject}, limits, globalUsage=used, **status)


def following(name: str, subject: str, used: dict[str, Any]) -> MasterQuota:
    found = counted(name, subject, {"cpu": 8}, used)
    metadata = msgspec.structs.replace(found.metadata, labels={DEFAULT_LABEL: "true"})
    return msgspec.structs.replace(found, metadata=metadata)


def test_what_is_used_beyond_a_new_limit_is_told_and_what_is_not_counted_is_no_zero() -> None:
    present = counted("q", "alpha", {"cpu": "64", "memory": "64Gi", "pods": 5}, {"cpu": "60500m", "memory": "1Gi"})
    found = types.preview(present, {"cpu": "60", "memory": "2Gi", "gpus": 1}, [])
    assert found.exceeded
    assert {each.type: (each.before, each.after, each.used, each.over) for each in found.changes} == {
        "cpu": ("64", "60", "60500m", "500m"),
        "memory": ("64Gi", "2Gi", "1Gi", ""),
        "gpus": ("unlimited", "1", "", ""),
        "pods": ("5", "unlimited", "", ""),
    }
    assert not types.preview(present, {"cpu": "61"}, []).exceeded


def test_a_preview_is_of_the_limits_in_force_with_what_is_raised_for_a_time() -> None:
    raises = [Override(until="2026-12-31T00:00:00Z", quota={"cpu": "16", "memory": "1Gi"})]
    present = counted(
        "q", "alpha", {"cpu": "8"}, {"cpu": "12"}, overrides=[OverrideStatus(until="t", quota={"cpu": 16})]
    )
    present = msgspec.structs.replace(present, spec={**present.spec, "overrides": []})
    found = types.preview(present, {"cpu": "9"}, raises)
    assert [(each.type, each.before, each.after, each.over) for each in found.changes] == [("cpu", "16", "16", "")]
    ended = types.preview(present, {"cpu": "8"}, [])
    assert [(each.before, each.after, each.over) for each in ended.changes] == [("16", "8", "4")]


def test_whom_a_default_touches_is_who_follows_it_and_who_has_no_quota() -> None:
    quotas = [
        following("project-a", "a", {"cpu": 6}),
        following("project-b", "b", {"cpu": 1}),
        counted("own", "c", {"cpu": 100}, {"cpu": 99}),
        msgspec.structs.replace(following("org-o", "o", {"cpu": 9}), spec={"subject": {"kind": "organization"}}),
    ]
    subjects = [Named(metadata=ObjectMeta(name=name)) for name in "abcde"]
    going = ObjectMeta(name="e", deletion_timestamp="2026-11-20T10:00:03Z")
    subjects[-1] = Named(metadata=going)
    found = types.default_preview("project", DefaultQuota(quota={"cpu": 8}), {"cpu": 4, "pods": 3}, quotas, subjects)
    assert (found.followers, found.quotas, found.without) == (2, ["project-a", "project-b"], ["d"])
    assert [(each.quota, each.subject_name, each.over) for each in found.over] == [("project-a", "a", {"cpu": "2"})]
    assert [(each.type, each.before, each.after) for each in found.changes] == [
        ("cpu", "8", "4"),
        ("pods", "unlimited", "3"),
    ]


def test_of_very_many_the_first_hundred_are_named_and_all_are_counted() -> None:
    quotas = [following(f"q{number:03}", f"s{number}", {"cpu": 9}) for number in range(150)]
    subjects = [Named(metadata=ObjectMeta(name=f"n{number:03}")) for number in range(130)]
    found = types.default_preview("project", None, {"cpu": 1}, quotas, subjects)
    assert (found.followers, len(found.quotas), len(found.over), found.over_omitted) == (150, 100, 100, 50)
    assert (len(found.without), found.without_omitted) == (100, 30)


def test_draining_frees_what_is_idle_and_not_what_is_used() -> None:
    def held(granted: dict[str, Any], used: dict[str, Any], name: str = "eu-1") -> dict[str, Any]:
        return {"name": name, "state": "Current", "granted": granted, "localUsage": used}

    quotas = [
        counted(
            "a", "a", {"cpu": 64}, {"cpu": 9}, seeds=[held({"cpu": "10"}, {"cpu": "4"}), held({"cpu": 9}, {}, "x")]
        ),
        counted("b", "b", {"cpu": 64}, {"cpu": 9}, seeds=[held({"cpu": "2"}, {"cpu": "2500m"})]),
        counted("c", "c", {"cpu": 64}, {"cpu": 9}, seeds=[held({"memory": "4Gi"}, {})], seedsOmitted=3),
        counted("d", "d", {"cpu": 64}, {"cpu": 9}, seeds=[held({"cpu": 1}, {}, "x")], seedsOmitted=2),
    ]
    found = types.seed_holdings(seed("eu-1", "2026-11-20T10:00:03Z", CONNECTED), quotas)
    assert found.frees == {"cpu": "6", "memory": "4Gi"}
    assert [(each.quota, each.held, each.used, each.idle) for each in found.holdings] == [
        ("a", {"cpu": "10"}, {"cpu": "4"}, {"cpu": "6"}),
        ("c", {"memory": "4Gi"}, {}, {"memory": "4Gi"}),
        ("b", {"cpu": "2"}, {"cpu": "2500m"}, {}),
    ]
    assert (found.holdings_omitted, found.incomplete) == (0, 1), "d may be held there, too"


def test_whether_a_seed_is_connected_may_not_be_known() -> None:
    for conditions, connected in (((CONNECTED,), True), ((AWAY,), False), ((), None)):
        assert types.seed_state(seed("eu-1", "", *conditions)).connected is connected
