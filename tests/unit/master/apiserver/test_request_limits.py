from __future__ import annotations

import pytest

from master.apiserver import request_limits as limits
from master.apiserver.problem import ProblemError
from master.apiserver.request_limits import Limits


def asked(limit: Limits, user: str, times: int) -> int:
    """How many were let in."""
    count = 0
    for _ in range(times):
        try:
            with limit.one(user):
                count += 1
        except ProblemError as refused:
            assert refused.status == 429
    return count


def test_a_user_has_a_rate_that_others_do_not_take_from() -> None:
    now = [0.0]
    limit = Limits(lambda: now[0])
    many = int(limits.BURST) + 50
    assert asked(limit, "ann", many) == limits.BURST
    assert asked(limit, "bob", 1) == 1
    now[0] += 1
    assert asked(limit, "ann", many) == limits.PER_SECOND
    now[0] += 3600
    assert asked(limit, "ann", many) == limits.BURST


def test_what_is_worked_on_is_bounded_by_user_and_for_all() -> None:
    limit = Limits()
    working = []

    def begin(user: str) -> None:
        one = limit.one(user)
        one.__enter__()
        working.append(one)

    for _ in range(limits.AT_A_TIME):
        begin("ann")
    with pytest.raises(ProblemError) as refused:
        begin("ann")
    assert refused.value.status == 429
    for number in range(limits.ALL_AT_A_TIME - limits.AT_A_TIME):
        begin(f"user {number}")
    begin("last")
    with pytest.raises(ProblemError) as refused:
        begin("last")
    assert refused.value.status == 503, "one of each user, whatever others do"
    for one in working:
        one.__exit__(None, None, None)
    begin("last")
    assert not any(count < 0 for count in limit._working.values())


def test_the_rates_of_many_users_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_USERS", 8)
    limit = Limits()
    for number in range(100):
        asked(limit, f"user {number}", 1)
    assert len(limit._requests) == 8
    assert not limit._working
