from __future__ import annotations

import json

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from master.apiserver.conditions import Preconditions
from master.apiserver.problem import ProblemError
from master.apiserver.reading import check_media_type, decode_body, read_conditions, read_query
from master.apiserver.route import Route
from master.apiserver.routes import ROUTES

BODIES = {route.handler: route for route in ROUTES}


def sent(*fields: tuple[str, str]) -> web.Request:
    return make_mocked_request("PUT", "/", CIMultiDict(fields))


def test_a_problem_has_the_fields_of_rfc_9457_and_unikorns_two() -> None:
    problem = ProblemError(409, "it is so", code="capacity_below_allocated").problem()
    assert msgspec.to_builtins(problem) == {
        "type": "https://seedquota.io/errors/capacity_below_allocated",
        "title": "Capacity below allocated",
        "status": 409,
        "code": "capacity_below_allocated",
        "detail": "it is so",
        "retryable": False,
        "error": "conflict",
        "error_description": "it is so",
    }


def test_only_what_may_go_well_later_is_retryable() -> None:
    assert [
        status for status in (400, 401, 403, 404, 409, 412, 422, 429, 503) if ProblemError(status, "").retryable
    ] == [
        429,
        503,
    ]
    assert ("Retry-After", "1") in ProblemError(503, "").headers


@pytest.mark.parametrize(
    ("handler", "body", "pointers"),
    [
        (
            "put_organization_quotas",
            '{"capacity": [{"type": "a", "amount": 1}, {"type": "b", "amount": "1"}]}',
            ["/capacity/1/amount"],
        ),
        ("put_organization_quotas", '{"capacity": [{"type": "a"}]}', ["/capacity/0"]),
        ("put_organization_quotas", '{"capacity": {}}', ["/capacity"]),
        ("put_organization_quotas", "[]", [""]),
        ("put_quota", '{"quota": {"a/b": []}}', ["/quota"]),
        ("create_quota", '{"subjectName": "A", "quota": {"cpu": 1}}', ["/subjectName"]),
        ("create_quota", '{"subjectName": "a", "quota": {"cpu": 1}, "what": 1}', [""]),
        ("calculate", '{"resources": {"cpu": 1}, "replicas": -1}', ["/replicas"]),
        ("fits", '{"project": "alpha", "resources": {}}', ["/resources"]),
        ("fits", '{"project": "a/b", "resources": {"cpu": 1}}', ["/project"]),
        ("fits", '{"project": "alpha", "apiVersion": "v1", "kind": "Pod"}', [""]),
        ("where", '{"project": "alpha", "resources": {"cpu": 1}, "replicas": 0}', ["/replicas"]),
    ],
)
def test_a_field_that_is_wrong_is_pointed_to(handler: str, body: str, pointers: list[str]) -> None:
    with pytest.raises(ProblemError) as refused:
        decode_body(BODIES[handler], body.encode())
    assert refused.value.status == 422
    assert [each.pointer for each in refused.value.errors] == pointers


@pytest.mark.parametrize(
    ("handler", "body", "key"),
    [
        ("create_quota", '{"subjectName": "a", "quota": {"cpu": 1, "memory": 1, "cpu": 9}}', "'cpu'"),
        ("create_quota", '{"subjectName": "a", "subjectName": "b", "quota": {"cpu": 1}}', "'subjectName'"),
        ("create_quota", '{"subjectName": "a", "quota": {"cpu": 1, "\\u0063pu": 9}}', "'cpu'"),
        ("put_organization_quotas", '{"capacity": [{"type": "a", "amount": 1, "amount": 2}]}', "'amount'"),
        ("put_quota", '{"quota": {"cpu": 1}, "status": [{"x": {"y": 1, "y": ' + "9" * 9999 + "}}]}", "'y'"),
        ("put_quota", '{"quota": {"cpu": 1}, "status": {"a": 1, "a": 1e9999}}', "'a'"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(handler: str, body: str, key: str) -> None:
    """Two readers could understand two limits. The last one would count here."""
    with pytest.raises(ProblemError, match="twice in one object") as refused:
        decode_body(BODIES[handler], body.encode())
    assert (refused.value.status, refused.value.code) == (400, "malformed")
    assert f"the key {key} twice" in str(refused.value)
    msgspec.json.encode(refused.value.problem())


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 200),
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON; charset=UTF-8"}, 200),
        ({"content-type": 'application/json;charset="utf-8"'}, 200),
        ({"content-type": "application/json", "content-encoding": "identity"}, 200),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/merge-patch+json"}, 415),
        ({"content-type": ""}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
    ],
)
def test_only_json_is_read(fields: dict[str, str], status: int) -> None:
    request = sent(*fields.items())
    if status == 200:
        check_media_type(request)
        return
    with pytest.raises(ProblemError) as refused:
        check_media_type(request)
    assert (refused.value.status, refused.value.code) == (415, "unsupported_media_type")
    assert refused.value.headers[0][0] in ("Accept", "Accept-Encoding"), "says what is taken"


def test_a_media_type_that_comes_twice_is_refused() -> None:
    with pytest.raises(ProblemError) as refused:
        check_media_type(sent(("Content-Type", "application/json"), ("Content-Type", "text/plain")))
    assert refused.value.status == 415


def test_conditions_are_read_where_a_route_has_them() -> None:
    fields = ("if-match", '"a"'), ("if-none-match", "*")
    assert read_conditions(BODIES["put_quota"], sent(*fields)) == Preconditions('"a"', "*")
    assert read_conditions(BODIES["list_quotas"], sent(*fields)) == Preconditions(None, "*")
    assert read_conditions(BODIES["create_quota"], sent(*fields)) == Preconditions()
    twice = sent(("If-Match", "a"), ("if-match", "b"))
    with pytest.raises(ProblemError, match="there must be one If-Match"):
        read_conditions(BODIES["put_quota"], twice)


@pytest.mark.parametrize(
    "raw",
    [
        "limit",
        "limit=x",
        "limit=1;2",
        "limit=-1",
        "limit=0",
        "limit=501",
        "limit=1&limit=2",
        "limit=\u0661",
        "a=1",
        "continue=",
        "continue=A",
        "continue=a%0a",
        "continue=a%00",
        "continue=!!",
        "subjectKind=seed",
        "&".join(["limit=1"] * 99),
    ],
)
def test_a_query_that_is_not_known_is_malformed(raw: str) -> None:
    with pytest.raises(ProblemError) as refused:
        read_query(BODIES["list_quotas"], raw)
    assert refused.value.status == 400


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["capacity", "quota", "type", "amount", "resources", "subjectName", "x"]), inner
        )
    ),
    max_leaves=12,
).map(lambda value: json.dumps(value).encode())


@given(st.sampled_from([route for route in ROUTES if route.body is not None]), _JSON | st.binary(max_size=64))
def test_any_body_is_read_or_refused_with_a_problem(route: Route, raw: bytes) -> None:
    try:
        decode_body(route, raw)
    except ProblemError as refused:
        assert refused.status in (400, 422)
        msgspec.json.encode(refused.problem())


def test_a_query_is_read() -> None:
    assert read_query(BODIES["list_quotas"], "limit=2&subjectKind=project&continue=a") == {
        "limit": "2",
        "subjectKind": "project",
        "continue": "a",
    }
