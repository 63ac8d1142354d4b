"""In which order a seed opens accounts that nobody can use yet."""

from __future__ import annotations

from common.runtime.burst import GAP, MANY, PATIENCE, PAUSE
from seed.accounts.open_limiter import AT_ONCE, LOOK_AGAIN, TAKES, OpenLimiter


class Seed:
    def __init__(self) -> None:
        self.now = 100.0
        self.called: list[str] = []
        self.opening = OpenLimiter(self.called.append, clock=lambda: self.now)

    def begin(self, count: int, name: str = "first") -> None:
        assert {self.opening.wait(f"{name}-{number}") for number in range(count)} == {None}


def test_while_many_come_none_begins() -> None:
    seed = Seed()
    for number in range(MANY):
        seed.opening.seen(f"q-{number}", {"cpu": 1}, new=True)
    assert seed.opening.wait("a") == PAUSE
    seed.now += GAP
    assert seed.opening.wait("a") is None


def test_while_many_are_edited_none_begins() -> None:
    seed = Seed()
    for limit in (1, 1, 2):  # as they were found, with another status, edited
        assert seed.opening.wait("a") is None
        for number in range(MANY):
            seed.opening.seen(f"q-{number}", {"cpu": limit}, new=False)
    assert seed.opening.wait("a") == PAUSE
    seed.now += GAP
    assert seed.opening.wait("a") is None


def test_of_a_quota_that_went_nothing_is_remembered() -> None:
    seed = Seed()
    for number in range(MANY):
        seed.opening.seen(f"q-{number}", {"cpu": 1}, new=False)
        seed.opening.gone(f"q-{number}")
        seed.opening.seen(f"q-{number}", {"cpu": 2}, new=False)
    assert seed.opening.wait("a") is None


def test_one_that_went_keeps_nobody_waiting() -> None:
    seed = Seed()
    seed.begin(AT_ONCE)
    assert seed.opening.wait("a") == seed.opening.wait("b") == LOOK_AGAIN
    seed.opening.gone("a")
    seed.opening.gone("first-0")
    assert seed.called == ["b"]
    assert seed.opening.wait("b") is None


def test_a_few_at_a_time_and_who_waits_is_called_in_order() -> None:
    seed = Seed()
    seed.begin(AT_ONCE)
    assert seed.opening.wait("a") == seed.opening.wait("b") == LOOK_AGAIN
    assert seed.opening.wait("first-0") is None  # it was asked again before it was open
    seed.opening.ended("first-0")
    assert seed.called == ["a"]
    assert seed.opening.wait("a") is None
    assert seed.opening.wait("b") == LOOK_AGAIN
    seed.opening.ended("a")
    assert seed.called == ["a", "b"]


def test_what_did_not_wait_here_calls_nobody_when_it_is_open() -> None:
    seed = Seed()
    seed.begin(AT_ONCE)
    assert seed.opening.wait("a") == LOOK_AGAIN
    seed.opening.ended("in use")
    assert seed.called == []


def test_those_that_do_not_open_keep_nobody_waiting_for_ever() -> None:
    seed = Seed()
    seed.begin(AT_ONCE)
    assert seed.opening.wait("a") == LOOK_AGAIN
    seed.now += TAKES
    assert seed.opening.wait("a") is None
    assert TAKES < PATIENCE
