from __future__ import annotations

from common.runtime import log_limit
from common.runtime.log_limit import LineLimit

PLACE = ("logger", "request", 20)


def written(limit: LineLimit, caller: str, lines: int, now: float = 1000.0) -> int:
    return sum(limit.allows(PLACE, caller, now) for _ in range(lines))


def test_who_causes_many_lines_loses_only_its_own() -> None:
    limit = LineLimit()
    assert written(limit, "eve", 5000) == log_limit.BURST
    assert written(limit, "ann", 10) == 10
    assert written(limit, "eve", 5000, 1002.0) == 2 * log_limit.PER_SECOND


def test_all_callers_together_have_a_bound_and_each_place_its_own() -> None:
    limit = LineLimit()
    assert sum(written(limit, f"caller {number}", 10) for number in range(5000)) == log_limit.ALL_BURST
    assert limit.allows(("logger", "another", 20), "ann", 1000.0)
    assert len(limit._of_caller) == log_limit.MAX_CALLERS


def test_it_is_told_how_many_were_left_out() -> None:
    limit = LineLimit()
    written(limit, "eve", 150)
    assert limit.left_out(1000.0) == {PLACE: 50}
    written(limit, "eve", 10)
    assert limit.left_out(1001.0) == {}
    assert limit.left_out(1000.0 + log_limit.TOLD_SECONDS) == {PLACE: 10}
    assert limit.left_out(2000.0) == {}
