"""What is sent about which quota, to whom, and only once."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from msgspec.structs import replace

from common.api.conditions import condition
from common.kube.client.meta import ObjectMeta
from master.cache.objects import MasterQuota, OverrideStatus, QuotaStatus, Summary
from master.notifications import forms
from master.notifications.active import Active, active
from master.notifications.interest import Scope, wanted
from master.notifications.objects import NotificationSpec, SecretName
from master.notifications.plan import MAX_NOTIFIED, MAX_TOLD, message_id, next_message

SINCE = "2026-12-01T12:00:00Z"


def lasts(event: str = "NearLimit", quota: str = "alpha", **more: object) -> Active:
    given = {"subject": f"project/{quota}", "since": SINCE, "message": "cpu 60/64", **more}
    return Active(quota=quota, event=event, **given)  # type: ignore[arg-type]


def status(*conditions: tuple[str, bool, str], overrides: tuple[OverrideStatus, ...] = ()) -> MasterQuota:
    found = [replace(condition(*each, "cpu 60/64"), last_transition_time=SINCE) for each in conditions]
    said = QuotaStatus(
        summary=Summary(subject="project/alpha in clusters tier=prod"), conditions=found, overrides=list(overrides)
    )
    of: dict[str, object] = {
        "subject": {"kind": "project", "name": "alpha", "clusters": {"matchLabels": {"tier": "prod"}}}
    }
    return MasterQuota(metadata=ObjectMeta(name="alpha"), spec=of, status=said)


@pytest.mark.parametrize(
    ("conditions", "events"),
    [
        ([], []),
        ([("NearLimit", True, "AboveWarnPercent")], ["NearLimit"]),
        ([("NearLimit", True, "Full"), ("Exceeded", True, "LimitLowered")], ["Exceeded", "Full", "NearLimit"]),
        ([("NearLimit", False, "BelowWarnPercent"), ("Exceeded", False, "WithinLimit")], []),
        ([("UsageCurrent", False, "SeedUnreachable")], ["SeedUnreachable"]),
        ([("UsageCurrent", False, "SourceUnreachable"), ("Ready", False, "Degraded")], []),
    ],
)
def test_what_lasts_is_what_conditions_say(conditions: list[tuple[str, bool, str]], events: list[str]) -> None:
    found = active(status(*conditions))
    assert [each.event for each in found] == events
    assert {each.subject for each in found} <= {"project/alpha"}, "whose it is, not which part"


def test_each_end_of_an_override_is_told_a_day_before_and_when_it_comes_and_not_long_after() -> None:
    until = "2026-12-31T00:00:00Z"
    said = [
        OverrideStatus(until=until, quota={"cpu": "128"}, reason="launch", state=state)
        for state in ("EndsSoon", "Ended")
    ]
    (soon,), (ended,) = (active(status(overrides=(each,))) for each in said)
    assert (soon.event, soon.message) == ("OverrideEnds", f"cpu=128 until {until} (launch): ends")
    assert ended.key != soon.key
    assert active(status(overrides=(replace(said[0], state="InForce"),))) == ()
    spec = NotificationSpec(events=["OverrideEnds"], form="slack", secret_ref=SecretName(name="hook"))
    at = datetime.fromisoformat(until).timestamp()
    told = [len(wanted(spec, Scope(), [ended], str, at + hours * 3600)) for hours in (1, 23, 25)]
    assert told == [1, 1, 0], "one that is made later need not tell of all that ever ended"


def test_an_organization_is_told_of_its_own_quotas_and_those_of_its_projects_alone() -> None:
    of = {"alpha": "acme", "beta": "other", "lone": ""}
    lasting = [
        *(lasts(quota=name) for name in of),
        lasts(quota="org", subject="organization/acme"),
        lasts(quota="theirs", subject="organization/other"),
        lasts(quota="spaces", subject="namespaces"),
        lasts("Full", quota="alpha"),
    ]

    def told(scope: Scope, **more: object) -> list[str]:
        spec = NotificationSpec(events=["NearLimit"], form="slack", secret_ref=SecretName(name="h"), **more)  # type: ignore[arg-type]
        return sorted(each.quota for each in wanted(spec, scope, lasting, lambda name: of.get(name, ""), 0.0))

    assert told(Scope("acme")) == ["alpha", "org"]
    assert told(Scope("acme"), projects=["alpha", "beta"]) == ["alpha"]
    assert told(Scope()) == ["alpha", "beta", "lone", "org", "spaces", "theirs"]
    assert told(Scope(), projects=["lone"]) == ["lone"]
    assert told(Scope("missing")) == []


def test_what_lasts_is_told_once_and_again_when_it_has_ended_and_begins_anew() -> None:
    first = next_message("slack", [], [lasts()])
    assert [each.key for each in first.begun] == [("alpha", "NearLimit", "")]
    assert next_message("slack", first.notified, [lasts(message="cpu 61/64")]).empty
    over = next_message("slack", first.notified, [])
    assert (over.empty, over.notified) == (True, [])
    assert not next_message("slack", over.notified, [lasts()]).empty


def test_a_quota_that_is_full_at_once_is_not_told_of_as_near_its_limit_beside() -> None:
    both = [lasts("NearLimit"), lasts("Full")]
    said = next_message("slack", [], both)
    assert [each.event for each in said.begun] == ["Full"]
    assert next_message("slack", said.notified, both).empty
    assert next_message("slack", said.notified, both[:1]).empty, "it is near its limit as before"


def test_a_message_holds_ten_and_the_rest_follows() -> None:
    many = [lasts(quota=f"q{number:03}") for number in range(MAX_NOTIFIED + 7)]
    notified, told = [], []
    for _ in range(MAX_NOTIFIED // MAX_TOLD):
        said = next_message("slack", notified, many)
        assert len(said.begun) == MAX_TOLD
        told += [each.quota for each in said.begun]
        notified = said.notified
    assert told == [each.quota for each in many[:MAX_NOTIFIED]]
    said = next_message("slack", notified, many)
    assert (said.empty, said.more, said.left_out, len(said.notified)) == (True, False, 7, MAX_NOTIFIED)
    assert len(next_message("cloudevents", [], many).begun) == 1


def test_only_alertmanager_is_told_what_has_ended_with_the_labels_of_what_began() -> None:
    begun = next_message("alertmanager", [], [lasts(), lasts("Full", quota="beta")])
    said = next_message("alertmanager", begun.notified, [lasts("Full", quota="beta")])
    assert [each.event for each in said.ended] == ["NearLimit"]
    bodies = [
        json.loads(forms.message("alertmanager", each, identity="i", name="org-acme/hook", now=SINCE).body)
        for each in (begun, said)
    ]
    assert [body["status"] for body in bodies] == ["firing", "resolved"]
    assert [body["version"] for body in bodies] == ["4", "4"]
    fired, over = bodies[0]["alerts"][0], bodies[1]["alerts"][0]
    assert over["labels"] == fired["labels"] == {"alertname": "NearLimit", "quota": "alpha", "subject": "project/alpha"}
    assert over["fingerprint"] == fired["fingerprint"]
    assert (fired["startsAt"], fired["endsAt"], over["endsAt"]) == (SINCE, "0001-01-01T00:00:00Z", SINCE)


def test_no_text_mentions_a_channel_of_slack_or_makes_a_link() -> None:
    said = next_message("slack", [], [lasts(message="<!channel> <https://evil.example|here> & more")])
    body = json.loads(forms.message("slack", said, identity="i", name="n", now=SINCE).body)
    assert body == {
        "text": "seedquota/alpha (project/alpha): NearLimit: "
        "&lt;!channel&gt; &lt;https://evil.example|here&gt; &amp; more"
    }


def test_a_cloud_event_has_what_the_specification_requires() -> None:
    said = next_message("cloudevents", [], [lasts()])
    message = forms.message("cloudevents", said, identity="i", name="n", now=SINCE)
    assert message.content_type == "application/cloudevents+json"
    assert json.loads(message.body) == {
        "specversion": "1.0",
        "id": "i",
        "source": "/apis/seedquota.io/v1alpha1/resourcequotas/alpha",
        "type": "io.seedquota.nearlimit.v1",
        "subject": "project/alpha",
        "time": SINCE,
        "datacontenttype": "application/json",
        "data": {"quota": "alpha", "subject": "project/alpha", "event": "NearLimit", "message": "cpu 60/64"},
    }


def test_a_message_that_is_tried_again_has_its_id_and_no_other_message_has_it() -> None:
    one = next_message("slack", [], [lasts()])
    assert message_id("u", 3, one) == message_id("u", 3, next_message("slack", [], [lasts(message="cpu 61/64")]))
    others = [
        message_id("u", 4, one),
        message_id("v", 3, one),
        message_id("u", 3, next_message("slack", [], [lasts("Full")])),
        message_id("u", 3, next_message("alertmanager", one.notified, [])),
    ]
    assert len({message_id("u", 3, one), *others}) == 5
