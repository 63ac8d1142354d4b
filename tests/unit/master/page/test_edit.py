"""What forms send."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.server.access_reviews import User
from master.apiserver.platform_types import GuaranteeChange, LimitPreview
from master.apiserver.problem import ProblemError
from master.apiserver.serializers import Quota
from master.page import editing
from master.page.fitting import needed
from master.page.handlers import Asked, Shown
from master.page.views.edit import guaranteeable, guaranteed, new_raise, wanted
from tests.unit.master.page.test_fitting import QUOTA, Api, html


def test_the_fields_of_the_form_are_the_limits() -> None:
    form = {"limit.cpu": " 32 ", "limit.memory": "", "new.name": "nvidia.com/gpu", "new.limit": "8", "csrf": "x"}
    assert wanted(form) == {"cpu": "32", "nvidia.com/gpu": "8"}
    assert wanted({"new.name": "x", "new.limit": ""}) == {}


def test_what_is_guaranteed_is_read_where_the_form_asks_for_it() -> None:
    assert guaranteed({"limit.cpu": "32"}) is None, "else saving would remove what the form does not show"
    assert guaranteed({"guarantees": "yes", "guaranteed.cpu": " 16 ", "guaranteed.memory": ""}) == {"cpu": "16"}
    assert guaranteed({"guarantees": "yes", "guaranteed.cpu": ""}) == {}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, ["cpu", "memory"]),
        ({"subjectKind": "organization"}, []),
        ({"subjectClusters": {"names": ["c1"]}}, []),
        ({"subjectSeeds": {"names": ["eu-1"]}}, []),
    ],
)
def test_the_form_asks_for_guarantees_where_there_can_be_one(more: dict[str, Any], names: list[str]) -> None:
    limits = {"cpu": "64", "memory": "128Gi", "pods": "9"}
    assert guaranteeable(msgspec.convert({**QUOTA, "quota": limits, **more}, Quota)) == names


async def edited(api: Api, **form: str) -> Shown | str:
    sent = {"version": "1", **{name.replace("__", "."): value for name, value in form.items()}}
    return await editing.limits(
        Asked(User(username="ann"), api, {"name": "project-alpha"}, form=sent if form else None)
    )


async def test_a_form_shows_and_previews_and_saves_what_is_guaranteed() -> None:
    guarantees = [GuaranteeChange(type="cpu", before="0", after="16")]
    preview = LimitPreview(quota="project-alpha", changes=[], guarantees=guarantees, exceeded=False)
    present = msgspec.convert({**QUOTA, "guaranteed": {"memory": "1Gi"}}, Quota)
    api = Api(preview_quota=preview, put_quota=present, get_quota=present)
    shown = await edited(api)
    assert isinstance(shown, Shown)
    assert '<input name="guaranteed.memory" value="1Gi"' in html(shown)
    sent = {"limit__cpu": "64", "guarantees": "yes", "guaranteed__cpu": "16", "guaranteed__memory": ""}
    shown = await edited(api, action="preview", **sent)
    assert isinstance(shown, Shown)
    assert api.asked["preview_quota"].guaranteed == {"cpu": "16"}
    text = html(shown)
    assert "Changes of what is guaranteed" in text and '<input name="guaranteed.cpu" value="16"' in text
    assert await edited(api, action="save", **sent) == "/quotas/project-alpha"
    assert api.asked["put_quota"].guaranteed == {"cpu": "16"}
    await edited(api, action="save", limit__cpu="64")
    assert api.asked["put_quota"].guaranteed is msgspec.UNSET


async def test_what_cannot_be_guaranteed_is_said_above_the_form_which_keeps_it() -> None:
    refused = ProblemError(422, "cpu: 65 is more than organization acme can guarantee")
    shown = await edited(Api(put_quota=refused), action="save", limit__cpu="64", guarantees="yes", guaranteed__cpu="65")
    assert isinstance(shown, Shown)
    text = html(shown)
    assert "cpu: 65 is more than organization acme can guarantee" in text
    assert '<input name="guaranteed.cpu" value="65"' in text


def test_what_is_to_fit_is_read_with_what_makes_no_sense_left_out() -> None:
    assert needed({"need.cpu": " 8 ", "need.memory": "", "need.gpus": "0", "replicas": "4"}) == ({"cpu": "8"}, 4)
    assert needed({"replicas": "9" * 9}) == ({}, 999_999)
    assert needed({"replicas": "-1"}) == ({}, 1)


def test_an_end_without_a_zone_is_in_utc_as_the_form_says() -> None:
    for given, time in (
        ("2026-12-31T08:30", "2026-12-31T08:30:00Z"),
        ("2026-12-31T08:30:15", "2026-12-31T08:30:15Z"),
        ("2026-12-31T08:30:15+01:00", "2026-12-31T08:30:15+01:00"),
        ("tomorrow", "tomorrow"),
    ):
        assert new_raise({"until": f" {given} "}).time == time
    assert not any(new_raise({"limit.cpu": "", "until": "", "reason": " ", "keep.0": "on"}))
    assert new_raise({"limit.cpu": "8", "reason": "launch"}) == ({"cpu": "8"}, "", "launch")
