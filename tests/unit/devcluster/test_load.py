"""The judges of the whole-way tests and the demo must be able to say no."""

from __future__ import annotations

import msgspec

from common.quota import resources
from devcluster.load import Attempt, Outcome, Size, parse_refusal, unjustified

LIMITS = resources.parse({"cpu": "10", "memory": "100Gi", "storage": "1000Gi"})
REFUSAL = (
    'admission webhook "machines.seedquota.io" denied the request: exceeded quota: q, '
    "requested: cpu=4, used: cpu=8, limited: cpu=10; short by cpu=2; decision 01JD3Y6K"
)


def attempt(cpu: int, outcome: Outcome, at: float, message: str = "", lost: int = 0) -> Attempt:
    return Attempt(
        cluster="user-1",
        name="m",
        size=Size(str(cpu), "1Gi", "1Gi"),
        asked=at,
        sent=at,
        answered=at + 0.5,
        outcome=outcome,
        tries=1 + lost,
        lost=lost,
        status=0,
        message=message,
    )


def test_a_refusal_is_right_beside_what_had_been_admitted() -> None:
    admitted = attempt(8, Outcome.ADMITTED, 0)
    assert unjustified([admitted, attempt(4, Outcome.REFUSED, 1, REFUSAL)], LIMITS, {}) == []


def test_a_refusal_is_right_beside_what_was_there_before() -> None:
    assert unjustified([attempt(4, Outcome.REFUSED, 1, REFUSAL)], LIMITS, resources.parse({"cpu": "8"})) == []


def test_a_refusal_with_room_is_wrong_and_says_how_much() -> None:
    later = attempt(8, Outcome.ADMITTED, 9)
    ((_, why),) = unjustified([attempt(4, Outcome.REFUSED, 1, REFUSAL), later], LIMITS, {})
    assert "cpu=10" in why


def test_a_try_without_an_answer_may_have_taken_its_capacity() -> None:
    lost = attempt(8, Outcome.REFUSED, 0, REFUSAL.replace("cpu=4", "cpu=8"), lost=1)
    assert unjustified([lost, attempt(4, Outcome.REFUSED, 1, REFUSAL)], LIMITS, {}) == []


def test_a_refusal_whose_numbers_do_not_add_up_is_wrong() -> None:
    message = REFUSAL.replace("used: cpu=8", "used: cpu=6")
    ((_, why),) = unjustified([attempt(8, Outcome.ADMITTED, 0), attempt(4, Outcome.REFUSED, 1, message)], LIMITS, {})
    assert why == "its numbers do not add up"


def test_a_refusal_about_another_size_is_wrong() -> None:
    ((_, why),) = unjustified([attempt(8, Outcome.ADMITTED, 0), attempt(5, Outcome.REFUSED, 1, REFUSAL)], LIMITS, {})
    assert why == "it is about another size"


def test_a_message_without_numbers_is_no_refusal() -> None:
    assert parse_refusal("exceeded quota: q, and that is that") is None
    refusal = parse_refusal(REFUSAL)
    assert refusal is not None
    assert msgspec.to_builtins(refusal.used) == resources.parse({"cpu": "8"})
