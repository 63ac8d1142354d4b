"""Which limits are in force at which time, and when that changes next."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from common.kube.client.meta import ObjectMeta
from common.quota import resources
from master.cache.objects import MasterQuota, OverrideStatus, QuotaStatus
from master.grants.overrides import SOON, end, in_force, shown_overrides
from master.quotas.override_conditions import first_end, new_events, overridden

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0


def until(seconds: float) -> str:
    return datetime.fromtimestamp(NOON + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def override(seconds: float, reason: str = "", **amounts: object) -> dict[str, object]:
    return {"until": until(seconds), "quota": amounts, **({"reason": reason} if reason else {})}


def quota(*overrides: dict[str, object], before: tuple[OverrideStatus, ...] = (), **limits: object) -> MasterQuota:
    spec: dict[str, object] = {"subject": {"kind": "project", "name": "a"}, "quota": limits or {"cpu": "64"}}
    if overrides:
        spec["overrides"] = list(overrides)
    return MasterQuota(metadata=ObjectMeta(name="q"), spec=spec, status=QuotaStatus(overrides=list(before)))


def limits(found: MasterQuota, now: float, *before: OverrideStatus) -> object:
    return in_force(found, before, now).spec["quota"]


def test_of_what_the_master_has_not_decided_yet_nothing_is_said_but_that() -> None:
    said = OverrideStatus(until=until(HOUR), quota={"cpu": "128"}, state="EndsSoon")
    found = quota(
        override(HOUR, cpu="128"), override(HOUR, cpu="256"), override(HOUR, "launch", cpu="128"), before=(said,)
    )
    assert [(each.quota["cpu"], each.reason, state) for each, state in shown_overrides(found)] == [
        ("128", "", "EndsSoon"),
        ("256", "", "Pending"),
        ("128", "launch", "Pending"),
    ]
    assert shown_overrides(quota(before=(said,))) == [], "what was removed is gone at once"


def test_without_overrides_the_spec_is_what_it_is() -> None:
    plain = quota()
    assert in_force(plain, (), NOON).spec is plain.spec
    assert in_force(plain, (), NOON).next_change is None


def test_an_override_raises_until_its_end_and_not_in_that_moment_any_more() -> None:
    raised = quota(override(HOUR, cpu="128"))
    assert limits(raised, NOON) == {"cpu": "128"}
    assert limits(raised, NOON + HOUR - 0.001) == {"cpu": "128"}
    assert limits(raised, NOON + HOUR) == {"cpu": "64"}
    assert "overrides" not in in_force(raised, (), NOON).spec, "a seed gets no clock to read"


def test_of_several_the_largest_amount_of_each_resource_counts() -> None:
    raised = quota(
        override(HOUR, cpu="128", memory="1Gi"), override(2 * HOUR, cpu=96, memory="4096Mi"), cpu="64", memory="1Gi"
    )
    assert limits(raised, NOON) == {"cpu": "128", "memory": "4096Mi"}
    assert limits(raised, NOON + HOUR) == {"cpu": 96, "memory": "4096Mi"}
    assert limits(raised, NOON + 2 * HOUR) == {"cpu": "64", "memory": "1Gi"}


def test_it_never_lowers_and_limits_nothing_that_is_unlimited() -> None:
    """The limit was raised, or its resource removed, after the override was written."""
    assert limits(quota(override(HOUR, cpu="128", memory="1Gi"), cpu="256"), NOON) == {"cpu": "256"}


def test_the_next_change_is_a_day_before_an_end_or_the_end() -> None:
    raised = quota(override(3 * SOON, cpu="128"), override(2 * SOON, cpu="96"))
    found = in_force(raised, (), NOON)
    assert found.next_change == NOON + SOON
    later = in_force(raised, found.overrides, NOON + SOON)
    assert [each.state for each in later.overrides] == ["InForce", "EndsSoon"]
    assert later.next_change == NOON + 2 * SOON
    last = in_force(raised, later.overrides, NOON + 3 * SOON)
    assert ([each.state for each in last.overrides], last.next_change) == (["Ended", "Ended"], None)


def test_what_has_ended_stays_ended_when_a_clock_goes_back() -> None:
    raised = quota(override(HOUR, cpu="128"), override(3 * HOUR, cpu="96"))
    ended = in_force(raised, (), NOON + HOUR)
    assert [each.state for each in ended.overrides] == ["Ended", "EndsSoon"]
    back = in_force(raised, ended.overrides, NOON - 10 * SOON)
    assert [each.state for each in back.overrides] == ["Ended", "EndsSoon"], "by another leader's clock"
    assert back.spec["quota"] == {"cpu": "96"}


def test_an_override_that_is_extended_is_in_force_again() -> None:
    ended = in_force(quota(override(HOUR, cpu="128")), (), NOON + HOUR)
    assert limits(quota(override(4 * HOUR, cpu="128")), NOON + HOUR, *ended.overrides) == {"cpu": "128"}


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "2026-12-31T00:00:00", "2026-12-31T00:00:60Z", "0001-01-01T00:00:00+14:00"]
)
def test_an_end_that_is_no_time_has_passed(text: str) -> None:
    raised = quota({"until": text, "quota": {"cpu": "128"}})
    found = in_force(raised, (), NOON)
    assert (found.spec["quota"], found.overrides[0].state, found.next_change) == ({"cpu": "64"}, "Ended", None)


def test_an_end_has_the_zone_that_it_names() -> None:
    assert end("2026-12-01T13:00:00+01:00") == NOON


def test_people_read_what_is_raised_until_when_and_why() -> None:
    raised = quota(override(3 * SOON, cpu="96"), override(2 * SOON, "launch", cpu="128"))
    found = in_force(raised, (), NOON)
    (said,) = overridden(found.overrides, resources.parse({"cpu": "128"}))
    assert (said.status, said.reason) == ("True", "Raised")
    assert said.message == f"cpu=128 until {until(2 * SOON)} (launch); cpu=96 until {until(3 * SOON)}"
    assert first_end(found.overrides) == until(2 * SOON)
    soon = in_force(raised, found.overrides, NOON + SOON)
    assert overridden(soon.overrides, resources.parse({"cpu": "128"}))[0].reason == "EndsSoon"
    over = in_force(raised, soon.overrides, NOON + 4 * SOON)
    (said,) = overridden(over.overrides, {})
    assert (said.status, said.reason, first_end(over.overrides)) == ("False", "Ended", "")
    assert said.message.startswith(f"the last one ended at {until(3 * SOON)}")
    assert overridden(found.overrides, {})[0].reason == "RaisesNothing"
    assert overridden((), {}) == []


def test_each_end_has_an_event_a_day_before_and_when_it_comes_and_none_is_repeated() -> None:
    raised = quota(override(2 * SOON, "launch", cpu="128"))
    found = in_force(raised, (), NOON).overrides
    assert new_events((), found) == []
    soon = in_force(raised, found, NOON + SOON).overrides
    assert [reason for reason, _ in new_events(found, soon)] == ["OverrideEnds"]
    over = in_force(raised, soon, NOON + 2 * SOON).overrides
    assert [reason for reason, _ in new_events(soon, over)] == ["OverrideEnded"]
    assert new_events(over, over) == new_events(soon, soon) == []
    ((reason, note),) = new_events((), over)
    assert reason == "OverrideEnded"
    assert "had passed before" in note, "it was written too late"
    removed = in_force(quota(), soon, NOON + SOON).overrides
    assert new_events(soon, removed) == [], "somebody removed it, which LimitsChanged tells"
