"""Pages that show what was decided elsewhere: whatever people there wrote is text."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from common.server.access_reviews import User
from master.apiserver.allocation_types import Allocation
from master.apiserver.decisions import Decision, Refusals
from master.apiserver.problem import ProblemError
from master.page.handlers import Asked
from master.page.lookups import Lookups
from tests.unit.master.page.test_fitting import EVIL, Api, html

ID = "01JD3Y6K"
QUOTA = {
    "name": "project-alpha", "enforcement": "deny", "admits": False, "need": {EVIL: "1"}, "limits": {EVIL: EVIL},
    "used": {EVIL: EVIL}, "reason": EVIL, "message": EVIL,
}  # fmt: skip
RECORD: dict[str, Any] = {
    "time": EVIL, "result": "refused", "operation": EVIL, "dryRun": True, "user": EVIL, "cluster": EVIL, "object": EVIL,
    "project": EVIL, "need": {EVIL: EVIL}, "reason": EVIL, "message": EVIL, "quotas": [QUOTA],
}  # fmt: skip


def asking(answer: Any, handler: str, name: str = "", **query: str) -> Asked:
    return Asked(User(username="ann"), Api(**{handler: answer}), {"name": name}, query)


async def test_a_decision_is_shown_whole_and_as_text() -> None:
    given = {"decision": ID, "keptOn": "seed", "command": EVIL, "seed": EVIL, "record": RECORD, "notAsked": EVIL}
    shown = await Lookups().decision(asking(msgspec.convert(given, Decision), "get_decision", id=ID.lower()))
    assert shown.call == f"GET /api/v1/decisions/{ID}"
    assert html(shown).count("&lt;script&gt;pwned") > 15


@pytest.mark.parametrize("id", ["", "short", EVIL, ID])
async def test_without_a_decision_the_form_says_what_to_do_and_how_to_ask_elsewhere(id: str) -> None:
    shown = await Lookups().decision(asking(ProblemError(404, EVIL), "get_decision", id=id))
    text = html(shown)
    assert "kubectl seedquota explain DECISION" in text and "GET /api/v1/decisions/{decision}" in text
    assert ("eight letters" in text) == (id not in ("", ID)) and ("No agent keeps" in text) == (id == ID)


async def test_allocations_are_listed_as_people_say_them_and_as_text() -> None:
    one = {"type": "memory", "amount": (3 << 30) + 1, "committed": 3 << 30, "reserved": 1}
    metadata = {"id": "1", "projectID": "alpha", "organizationID": "acme", "createdBy": EVIL, "creationTimestamp": EVIL}
    given = {"metadata": {**metadata, "name": EVIL}, "spec": {"kind": EVIL, "id": EVIL, "resources": [one]}}
    shown = await Lookups().allocations(
        asking([msgspec.convert(given, Allocation)], "list_allocations", "acme", kind=EVIL)
    )
    text = html(shown)
    assert "<span>3 Gi</span>" in text and ">1 B</span>" in text
    assert shown.events.endswith("?organization=acme")
    with_project = asking([], "list_allocations", "acme", projectID="alpha")
    assert (await Lookups().allocations(with_project)).events == "", "that takes another right"


async def test_times_are_relative_with_the_exact_one_beside() -> None:
    at = "2026-11-20T09:53:00.250Z"
    record = {**RECORD, "time": at}
    decision = msgspec.convert(
        {"decision": ID, "keptOn": "seed", "command": "c", "seed": "eu-1", "record": record, "notAsked": ""}, Decision
    )
    refusals = msgspec.convert(
        {"items": [{"decision": ID, "seed": "eu-1", "record": record}], "more": False, "notAsked": ""}, Refusals
    )
    metadata = {"id": "1", "projectID": "alpha", "organizationID": "acme", "createdBy": "ann", "creationTimestamp": at}
    allocation = {"metadata": {**metadata, "name": "a"}, "spec": {"kind": "k", "id": "1", "resources": []}}
    for shown in (
        await Lookups().decision(asking(decision, "get_decision", id=ID)),
        await Lookups().refusals("project", asking(refusals, "list_refusals", "alpha")),
        await Lookups().allocations(asking([msgspec.convert(allocation, Allocation)], "list_allocations", "acme")),
    ):
        text = html(shown)
        assert re.search(rf"<time [^>]*>\d+d ago</time> <span class=\"exact\">{at}</span>", text), shown.title


async def test_refusals_are_listed_as_text() -> None:
    given = {"items": [{"decision": ID, "seed": EVIL, "record": RECORD}], "more": True, "notAsked": EVIL}
    shown = await Lookups().refusals(
        "quota", asking(msgspec.convert(given, Refusals), "list_refusals", "project-alpha")
    )
    text = html(shown)
    assert "&lt;script&gt;pwned" in text and f"id={ID}&amp;seed=%3Cscript%3E" in text
