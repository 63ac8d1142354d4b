from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kube.client.errors import ApiError, api_error
from common.quota.quantity import UNIT
from master.apiserver.allocation_refusals import problem_of
from seed.admission import denial
from seed.admission.refusal import Refusal
from seed.admission.types import Verdict
from seed.webhooks import review

NO_ROLE = b"""{"reason": "Forbidden", "message": "allocations.seedquota.io is forbidden: User \\"seedquota-master\\" \
cannot create resource \\"allocations\\" in API group \\"seedquota.io\\" in the namespace \\"org-acme\\""}"""
DECISION = "01JD3Y6K"
NAMES = ("servers", "clusters", "example.com/licences", "memory")


def through_the_api_server(refusal: Refusal) -> ApiError:
    """As it passes what a webhook says, and as the client reads that."""
    status = msgspec.json.decode(review.decided("1", Verdict(decision=DECISION, refusal=refusal)).body)["response"][
        "status"
    ]
    status["message"] = f'admission webhook "allocations.seedquota.io" denied the request: {status["message"]}'
    return api_error(refusal.code, msgspec.json.encode(status), "cluster master: create allocations")


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(st.integers(1, 2**53), st.integers(0, 2**53), st.integers(0, 2**53)),
        min_size=1,
    )
)
def test_the_webhooks_numbers_are_those_of_the_answer(found: dict[str, tuple[int, int, int]]) -> None:
    need, used, limits = ({name: amounts[at] * UNIT for name, amounts in found.items()} for at in range(3))
    short = {name: amounts for name, amounts in found.items() if amounts[0] + amounts[1] > amounts[2]}
    if not short:
        return
    refusal = denial.exceeded("org-acme", need, used, limits, {})
    problem = problem_of(through_the_api_server(refusal), "", lambda _quota: "acme").problem()
    assert (problem.status, problem.code, problem.quota, problem.decision) == (
        409,
        "quota_exceeded",
        "org-acme",
        DECISION,
    )
    assert {each.type: (each.requested, each.free, each.capacity) for each in problem.shortages} == {
        name: (requested, max(limit - use, 0), limit) for name, (requested, use, limit) in short.items()
    }


@pytest.mark.parametrize(
    ("requested", "creating", "retryable"),
    [(4, 3, True), (4, 2, False), (4, 0, False), (11, 10, False)],
)
def test_a_retry_is_worth_it_where_what_is_being_created_is_all_that_lacks(
    requested: int, creating: int, retryable: bool
) -> None:
    need, used, limits, being = ({"servers": amount * UNIT} for amount in (requested, 9, 10, creating))
    refusal = denial.exceeded("org-acme", need, used, limits, being, objects="allocations")
    problem = problem_of(through_the_api_server(refusal), "", str).problem()
    assert (problem.status, problem.retryable) == (409, retryable)
    assert [each.free for each in problem.shortages] == [1]


def test_what_is_wrong_is_where_the_body_has_it() -> None:
    refusal = denial.unknown_types([(1, "serverz")], ["servers"])
    problem = problem_of(through_the_api_server(refusal), "/2", str).problem()
    assert (problem.status, [each.pointer for each in problem.errors]) == (422, ["/2/spec/resources/1/type"])


def test_what_is_wrong_with_several_is_at_the_one_that_has_it() -> None:
    """They are asked for together, with each type once."""
    refusal = denial.unknown_types([(0, "serverz"), (1, "clusterz")], ["servers"])
    places = ["/0/spec/resources/2", "/3/spec/resources/0"]
    problem = problem_of(through_the_api_server(refusal), "/0", str, places).problem()
    assert [each.pointer for each in problem.errors] == ["/0/spec/resources/2/type", "/3/spec/resources/0/type"]


def test_what_may_be_decided_later_is_worth_a_retry() -> None:
    refusal = denial.unavailable("org-acme", "its ledger is not open yet")
    problem = problem_of(through_the_api_server(refusal), "", str)
    assert (problem.status, str(problem), problem.retryable) == (503, "its ledger is not open yet", True)
    assert ("Retry-After", "1") in problem.headers


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ApiError(500, "InternalError", 'failed calling webhook "allocations.seedquota.io"'), 503, "unavailable"),
        (api_error(404, b'{"reason": "NotFound", "message": "namespaces not found"}', "x"), 503, "unavailable"),
        (api_error(409, b'{"reason": "Conflict"}', "x"), 409, "contended"),
        (api_error(403, b'{"reason": "Forbidden", "message": "no"}', "x"), 403, "refused_by_api_server"),
        (api_error(403, NO_ROLE, "x"), 503, "unavailable"),
        (
            api_error(403, b'{"reason":"Forbidden","details":{"causes":[{"reason":"NamespaceTerminating"}]}}', "x"),
            409,
            "organization_deleted",
        ),
        (api_error(400, b'{"reason": "BadRequest", "message": "bad"}', "x"), 422, "invalid"),
        (api_error(503, b"", "x"), 503, "unavailable"),
    ],
)
def test_whatever_the_api_server_says_is_a_problem(error: ApiError, status: int, code: str) -> None:
    problem = problem_of(error, "", str)
    assert (problem.status, problem.code) == (status, code)
