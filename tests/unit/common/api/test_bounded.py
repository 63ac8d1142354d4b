"""What the API server of a compromised seed may show: as much as the schema allows, although it holds to none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from common.api import account_waits
from common.api.bounded import LONGEST_MESSAGE, MAX_COUNT, MAX_NAMES
from common.api.conditions import check_reasons, condition
from common.api.types import SEED_COPIES, AccountWait, NamespaceUse
from common.kube.client.errors import Malformed
from common.kube.client.resource import Resource
from common.quota.names import MAX_HELD
from devcluster.objects import CHARTS
from master.cache.objects import QUOTA_COPIES
from master.quotas.namespace_lines import largest_of
from master.quotas.quota_view import SeedView

KEPT, LOOSE = {64, MAX_NAMES}, 512  # names in what is written into a ledger or a status, and in what is not
LARGEST = {"int32": 2**31 - 1, "int64": 2**63 - 1}
CASES = [
    pytest.param(QUOTA_COPIES, "resourcequota", ["status", "account"], id="report"),
    pytest.param(QUOTA_COPIES, "resourcequota", ["status", "grant"], id="grant"),
    pytest.param(SEED_COPIES, "seed", ["status"], id="agent"),
]


def status_of(crd: str) -> dict[str, Any]:
    (definition,) = yaml.safe_load_all((CHARTS / "crds" / f"{crd}.yaml").read_text())
    schema: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    return schema


def beyond(schema: dict[str, Any]) -> Iterator[tuple[object, bool]]:
    """Values of the schema that are as large as one may be, each with whether it is one beyond."""
    if "maxLength" in schema and "x-kubernetes-int-or-string" not in schema:
        for more in (0, 1):
            yield "a" * (schema["maxLength"] + more), bool(more)
    elif schema.get("format") in LARGEST:
        for more in (0, 1):
            yield LARGEST[schema["format"]] + more, bool(more)
    elif "additionalProperties" in schema:
        most = schema["maxProperties"] if schema["maxProperties"] in KEPT else LOOSE
        for more in (0, 1):
            yield {f"r{number}": "1" for number in range(most + more)}, bool(more)
        yield {"cpu": "1" * 65}, True
        yield {"cpu": 2**64}, True
        yield {"x" * 318: "1"}, True
    elif schema.get("type") == "array":
        yield from (([value], is_beyond) for value, is_beyond in beyond(schema["items"]))
    elif schema.get("type") == "object":
        required = dict.fromkeys(schema.get("required", ()), "x")
        for name, part in schema.get("properties", {}).items():
            yield from (({**required, name: value}, is_beyond) for value, is_beyond in beyond(part))


def shown(path: list[str], value: object) -> bytes:
    for name in reversed(path):
        value = {name: value}
    assert isinstance(value, dict)
    return json.dumps({"metadata": {"name": "q"}, "spec": {"subject": {"kind": "project"}}, **value}).encode()


@pytest.mark.parametrize(("resource", "crd", "path"), CASES)
def test_what_a_seed_shows_is_no_larger_than_its_schema_says(resource: Resource[Any], crd: str, path: list[str]):
    schema = status_of(crd)
    for name in path[1:]:
        schema = schema["properties"][name]
    parts = {name: part for name, part in schema["properties"].items() if name in FOREIGN[path[-1]]}
    assert parts
    for value, is_beyond in beyond({**schema, "properties": parts}):
        content = shown(path, value)
        if is_beyond:
            with pytest.raises(Malformed):
                resource.decode(content)
        elif '"status":' not in json.dumps(value):  # of a condition, which has three words
            resource.decode(content)


FOREIGN = {
    "account": {
        *("incarnation", "sequence", "master", "nonce", "granted", "returned", "used", "reserved", "ask", "stale"),
        *("unenforced", "clusters", "picked", "notCounted", "namespaces", "namespacesOmitted", "withoutQuota"),
        *("withoutQuotaOmitted", "enforcedGeneration", "enforcedRaised", "waitsFor", "withdrawn"),
    },
    "grant": {"incarnation", "account", "nonce", "granted", "returned", "recall", "answered", "seen", "withdrawn"},
    "status": {"version", "clusters", "exemptNamespaces"},
}


def test_a_counter_has_as_many_names_as_a_ledger():
    assert MAX_NAMES == MAX_HELD


def test_a_list_of_a_report_has_an_end():
    with pytest.raises(Malformed):
        QUOTA_COPIES.decode(shown(["status", "account"], {"unenforced": ["a"] * 33}))


@pytest.mark.parametrize("reason", ["", "two words", "a" * 10 + "\n", "ä"])
def test_a_reason_of_an_agent_is_a_word(reason: str):
    check_reasons([condition("WebhookServing", True, "Serving", "")])
    with pytest.raises(msgspec.ValidationError):
        check_reasons([condition("WebhookServing", True, reason, "")])


def test_a_message_is_no_longer_than_a_condition_takes():
    assert len(condition("Ready", False, "Degraded", "x" * 100_000).message) == LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("until", "kept"),
    [("2026-11-28T05:00:00Z", True), ("", True), ("2026-02-31T05:00:00Z", False), ("soon", False), ("2026", False)],
)
def test_a_time_that_is_none_is_not_written(until: str, kept: bool):
    wait = AccountWait(reason="InFlightWindow", until=until)
    assert account_waits.written(wait) == (wait if kept else AccountWait(reason="InFlightWindow"))


def test_what_several_seeds_leave_out_is_a_number_that_a_status_takes():
    seeds = {
        name: SeedView(name=name, namespaces=[NamespaceUse(cluster="c", namespace="n")], namespaces_omitted=MAX_COUNT)
        for name in ("eu-1", "us-1")
    }
    assert largest_of(seeds, {"pods": 1})[1] == MAX_COUNT
