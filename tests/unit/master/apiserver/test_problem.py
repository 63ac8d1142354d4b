from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.apiserver.app import read_body, read_query
from master.apiserver.problem import ProblemError
from master.apiserver.routes import ROUTES, Route, find

BODIES = {route.handler: route for route in ROUTES}


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
        read_body(BODIES[handler], body.encode())
    assert refused.value.status == 422
    assert [each.pointer for each in refused.value.errors] == pointers


@pytest.mark.parametrize(
    "raw",
    [
        "limit",
        "limit=x",
        "limit=1;2",
        "limit=-1",
        "limit=\u0661",
        "a=1",
        "continue=",
        "continue=A",
        "continue=a%0a",
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
        read_body(route, raw)
    except ProblemError as refused:
        assert refused.status in (400, 422)
        msgspec.json.encode(refused.problem())


def test_a_query_is_read() -> None:
    assert read_query(BODIES["list_quotas"], "limit=2&subjectKind=project&continue=a") == {
        "limit": "2",
        "subjectKind": "project",
        "continue": "a",
    }


def test_a_path_leads_to_its_route_and_names_no_object_of_another_kind() -> None:
    route, parameters, _ = find("HEAD", "/api/v2/quotas/a%2Db")
    assert (route and route.handler, parameters) == ("get_quota", {"name": "a-b"})
    assert find("PATCH", "/api/v2/quotas/a")[2] == ["GET", "PUT", "DELETE"]
    for path in (
        "/api/v2/quotas/",
        "/api/v2/quotas/..",
        "/api/v2/quotas/a%2Fb",
        "/api/v2/quotas/a/b",
        "//",
        "/api/v2/quotas/A",
    ):
        assert find("GET", path) == (None, {}, []), path
