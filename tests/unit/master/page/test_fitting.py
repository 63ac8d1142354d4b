"""The forms that ask what fits: what is asked of the HTTP API for them, and what the page says of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import pytest

from common.server.access_reviews import User
from master.apiserver.call import RouteResponse
from master.apiserver.conditions import Preconditions
from master.apiserver.machine_types import MachineTypes
from master.apiserver.manifests import ManifestFits
from master.apiserver.previews import FitsResult, WhereResult
from master.apiserver.problem import ProblemError
from master.apiserver.serializers import Quota
from master.page import fitting
from master.page.answering import Viewer
from master.page.handlers import Asked, Shown
from master.page.rendering import Renderer

NO_CONDITIONS = Preconditions()
EVIL = "<script>pwned</script>\"'&"
QUOTA = {
    "name": "project-alpha",
    "subjectKind": "project",
    "subjectName": "alpha",
    "subjectHumanReadableName": "",
    "isDefault": False,
    "enforcement": "deny",
    "quota": {"cpu": "64", "memory": "128Gi", "storage": "1Ti"},
    "guaranteed": {},
    "overrides": [],
    "asOf": "",
    "stale": False,
    "status": {"hard": {}, "globalUsage": {}, "reserved": {}, "guaranteed": {}, "guarantees": [], "kept": {}},
}
SHORT = {"quota": "project-alpha", "type": "cpu", "requested": "8", "used": "60", "kept": "16", "limit": "64"}
PLACE = {"seed": "eu-1", "state": "Current", "now": 1, "byRecall": 2, "limitedBy": "cpu of project-alpha"}
COMPARED: dict[str, Any] = {
    "shortages": [{**SHORT, "short": "4", "enforcement": "deny"}],
    "holders": [{"quota": "project-alpha", "type": "cpu", "seed": "us-1", "state": "Current", "idle": "3"}],
    "message": "project-alpha: cpu short by 4",
    "asOf": "",
    "stale": False,
    "items": [PLACE],
}


def a_type(place: str = "aws eu-central-1", cpu: str = "2") -> dict[str, Any]:
    size = {"cpu": cpu, "memory": "8Gi", "machines": "1", "instances.m5.large": "1"}
    found = {"name": "m5.large", "provider": "aws", "place": place, "resources": size, "seeds": ["eu-1"]}
    return {**found, "unknown": {"storage": "the type does not tell it"}}


def of_manifest(result: str = "DoesNotFit", **more: Any) -> dict[str, Any]:
    one = {"object": EVIL, "count": 3, "fitting": 2, "need": {"cpu": "2"}, "unknown": {}, "problem": ""}
    two = {**one, "object": "machine/m", "fitting": 0, "need": {}, "problem": f"cannot size machine: {EVIL}"}
    return {**COMPARED, "result": result, "seeds": ["eu-1"], "objects": [one, two], **more}


class Api:
    """Answers as the HTTP API does, and remembers what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "get_project_quota": msgspec.convert(QUOTA, Quota),
            "get_quota": msgspec.convert(QUOTA, Quota),
            "fits": msgspec.convert({**COMPARED, "fits": False, "fitting": 2}, FitsResult),
            "where": msgspec.convert({**COMPARED, "fits": False, "fitting": 2}, WhereResult),
            "list_machine_types": msgspec.convert(
                {"items": [a_type(), a_type("aws us-east-1", "4")], "more": False, "notAsked": ""}, MachineTypes
            ),
            "manifest_fits": msgspec.convert(
                {"answers": [of_manifest()], "more": True, "notAsked": f"us-1: {EVIL}"}, ManifestFits
            ),
            **answers,
        }
        self.asked: dict[str, Any] = {}

    async def __call__(
        self,
        handler: str,
        user: User,
        *,
        parameters: Mapping[str, str] = {},
        query: Mapping[str, str] = {},
        body: object = None,
        preconditions: Preconditions = NO_CONDITIONS,
    ) -> RouteResponse:
        self.asked[handler] = body if body is not None else dict(query)
        answer = self.answers[handler]
        if isinstance(answer, Exception):
            raise answer
        return RouteResponse(answer)

    async def form(self, kind: fitting.Kind = "project", sent: Mapping[str, str] | None = None, **query: str) -> str:
        name = "alpha" if kind == "project" else "project-alpha"
        asked = {each.replace("need_", "need."): value for each, value in query.items()}
        return html(await fitting.form(kind, Asked(User(username="ann"), self, {"name": name}, asked, sent)))


@cache
def _renderer() -> Renderer:
    return Renderer()


def html(shown: Shown) -> str:
    usual = {"viewer": Viewer("ann", "c", ""), "title": shown.title, "here": "/", "active": "/projects", "about": ""}
    values = {**usual, "events": "", "version": "1", "command": shown.command, "call": shown.call, "yaml": ""}
    text = _renderer().html(shown.template, **{**values, **shown.values})
    assert EVIL not in text, "whatever is written is escaped"
    return " ".join(text.split())


async def test_a_machine_type_is_asked_about_by_what_seeds_know_and_an_amount_beside_it_counts_instead() -> None:
    api = Api()
    text = await api.form(type="m5.large", need_storage="50Gi", replicas="4")
    size = {"cpu": "2", "memory": "8Gi", "machines": "1", "instances.m5.large": "1", "storage": "50Gi"}
    for handler in ("fits", "where"):
        asked = api.asked[handler]
        assert (asked.project, asked.resources, asked.replicas) == ("alpha", size, 4)
    assert api.asked["list_machine_types"] == {"name": "m5.large"}
    assert "2 of 4 fit. project-alpha: cpu short by 4" in text
    assert "us-1 3 cpu of project-alpha" in text, "who holds idle capacity"
    assert "storage not known" not in text and "aws us-east-1</a>: cpu <strong>4</strong>" in text
    assert "storage not known" in await api.form(type="m5.large", place="aws us-east-1")
    assert api.asked["fits"].resources["cpu"] == "4"


async def test_a_type_that_no_seed_knows_is_said_and_not_asked_about() -> None:
    nothing = msgspec.convert({"items": [], "more": False, "notAsked": ""}, MachineTypes)
    api = Api(list_machine_types=nothing)
    text = await api.form(type=EVIL)
    assert "No seed knows a machine type" in text and "fits" not in api.asked


async def test_a_manifest_is_sent_as_it_is_and_each_object_is_answered() -> None:
    api = Api()
    text = await api.form(sent={"manifest": f"a: {EVIL}", "replicas": "3", "csrf": "c"})
    asked = api.asked["manifest_fits"]
    assert (asked.project, asked.manifest, asked.replicas) == ("alpha", f"a: {EVIL}", 3)
    assert "Does not fit." in text and "<strong>2</strong> of 3" in text and "POST /api/v1/fits/manifest" in text
    assert "Not every seed was asked: us-1:" in text and "Seeds know other sizes, too" in text
    assert "fits" not in api.asked
    unknown = msgspec.convert({"answers": [of_manifest("Unknown")], "more": False, "notAsked": ""}, ManifestFits)
    assert "Not known." in await Api(manifest_fits=unknown).form(sent={"manifest": "a: 1"})


@pytest.mark.parametrize(
    "sent", [{"manifest": " "}, {"manifest": "x" * 70_000}, {"manifest": "a: 1", "replicas": "-1"}, {"replicas": "1"}]
)
async def test_a_form_that_says_nothing_useful_asks_no_seed(sent: dict[str, str]) -> None:
    api = Api()
    assert 'role="alert"' in await api.form(sent=sent)
    assert "manifest_fits" not in api.asked


async def test_what_is_wrong_with_a_manifest_is_shown_above_it_and_it_is_kept() -> None:
    api = Api(manifest_fits=ProblemError(422, "it is not valid YAML (line 3)"))
    text = await api.form(sent={"manifest": "a: ["})
    assert "it is not valid YAML (line 3)" in text and "a: [" in text


async def test_a_quota_is_asked_about_alone_and_one_that_cannot_be_seen_is_not_there() -> None:
    api = Api()
    text = await api.form("quota", need_cpu="8")
    assert (api.asked["fits"].quota, api.asked["where"].quota) == ("project-alpha", "project-alpha")
    assert "Machine type" not in text and "Only this quota is asked" in text
    with pytest.raises(ProblemError) as caught:
        await Api(get_quota=ProblemError(403, "no")).form("quota")
    assert caught.value.status == 404


async def test_machine_types_are_searched_and_lead_to_the_form() -> None:
    for search, there in (("M5", True), ("c5", False), (EVIL, False)):
        names, query = {"name": "alpha"}, {"search": search}
        text = html(await fitting.machine_types(Asked(User(username="ann"), Api(), names, query)))
        assert ("fits?type=m5.large&amp;place=aws+eu-central-1" in text) == there, search
