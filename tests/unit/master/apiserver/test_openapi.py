from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from openapi_spec_validator import validate

from master.apiserver import openapi
from master.apiserver.allocation_handlers import AllocationHandlers
from master.apiserver.cluster_handlers import ClusterHandlers
from master.apiserver.handlers import Handlers
from master.apiserver.manifest_handlers import ManifestHandlers
from master.apiserver.namespace_handlers import NamespaceHandlers
from master.apiserver.platform_handlers import PlatformHandlers
from master.apiserver.preview_handlers import PreviewHandlers
from master.apiserver.routes import ROUTES

DOCUMENT: Any = json.loads(msgspec.json.encode(openapi.document()))


def everything(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from everything(each)


STREAMS = [route.path for route in ROUTES if route.streams]


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_the_document_is_valid() -> None:
    validate(DOCUMENT)


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    used = {each["$ref"] for each in everything(DOCUMENT) if "$ref" in each}
    assert used == {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}


_CLASSES = (
    Handlers,
    AllocationHandlers,
    ClusterHandlers,
    ManifestHandlers,
    NamespaceHandlers,
    PlatformHandlers,
    PreviewHandlers,
)


def test_every_route_is_in_the_document_and_has_a_handler() -> None:
    assert {(route.path, route.method.lower()) for route in ROUTES} == {
        (path, method) for path, method, _ in operations()
    }
    for route in ROUTES:
        handlers = [each for each in _CLASSES if callable(getattr(each, route.handler, None))]
        assert len(handlers) == (not route.streams), route.handler
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)


def test_every_parameter_of_a_path_is_declared() -> None:
    for path, _, operation in operations():
        declared = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}


def test_every_answer_has_a_description_and_every_problem_the_one_type() -> None:
    for _, _, operation in operations():
        for status, answer in operation["responses"].items():
            assert answer["description"]
            if int(status) >= 400:
                schema = answer["content"]["application/problem+json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Problem"}


def test_whoever_changes_limits_may_say_which_and_must_have_a_body_unless_it_deletes() -> None:
    for path, method, operation in operations():
        unversioned = method == "post" or path in STREAMS
        assert any(each["name"] == "If-None-Match" for each in operation["parameters"]) == (not unversioned)
        assert ("304" in operation["responses"]) == (method == "get" and not unversioned)
        assert ("415" in operation["responses"]) == (method in ("put", "post"))
        conditional = any(each["name"] == "If-Match" for each in operation["parameters"])
        assert conditional == (method in ("put", "delete")) == ("412" in operation["responses"])
        assert ("requestBody" in operation) == (method in ("put", "post"))


def test_every_answer_of_a_read_has_its_version() -> None:
    for path, method, operation in operations():
        if method == "get" and path not in STREAMS:
            assert all("ETag" in operation["responses"][status]["headers"] for status in ("200", "304"))


def test_it_is_complete_for_readers_and_linters() -> None:
    """What the rules `spectral:oas` of Spectral 6 warn of in a document that is valid: info-contact, info-description,
    tag-description, operation-tags, operation-tag-defined, operation-description, operation-operationId,
    operation-success-response, oas3-unused-component (above), typed-enum, path-keys-no-trailing-slash."""
    info = DOCUMENT["info"]
    assert info["contact"]["name"] and info["contact"]["url"].startswith("https://") and info["description"]
    assert info["license"]["identifier"]
    tags = {tag["name"]: tag["description"] for tag in DOCUMENT["tags"]}
    assert len(tags) == len(DOCUMENT["tags"]) and all(tags.values())
    used = set()
    for path, _, operation in operations():
        assert operation["description"].endswith(".") and not operation["summary"].endswith(".")
        assert operation["description"] != operation["summary"] and operation["operationId"]
        assert len(operation["tags"]) == 1
        used.update(operation["tags"])
        assert any(status[0] in "23" for status in operation["responses"]), path
        assert path == "/" or not path.endswith("/")
    assert used == set(tags)
    for each in everything(DOCUMENT):
        if "enum" in each and "type" in each:
            assert each["type"] == "string" and all(isinstance(value, str) for value in each["enum"])
