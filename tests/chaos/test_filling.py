"""A quota is full only where a refusal is certain."""

from __future__ import annotations

import pytest

from devcluster.load import Attempt, Outcome, Size, Tenant
from tests.chaos.filling import Ask, Asked, End, fill, refusal
from tests.chaos.settle import one_machine

RELEASED = 0.05
FULL = "exceeded quota: q, requested: cpu=1, used: cpu=4, limited: cpu=4; short by cpu=1"


class Limit:
    """Units that are made while there are some. `lost`: tries of the next request that nobody decides, of which the
    first takes a unit for nothing, until somebody waits for it."""

    def __init__(self, units: int, lost: int = 0, message: str = FULL) -> None:
        self.units = units
        self.lost = lost
        self.message = message
        self.made = 0
        self.asked = 0

    async def ask(self) -> Asked:
        self.asked += 1
        lost, self.lost = self.lost, 0
        kept = 1 if lost else 0
        if self.units > kept:
            self.units -= 1
            self.made += 1
            return Asked(End.MADE, lost, "")
        return Asked(refusal(self.message), lost, self.message)


async def test_it_ends_when_all_have_been_refused_since_the_last_was_made() -> None:
    limit = Limit(5)
    asks: dict[str, Ask] = {"a": limit.ask, "b": limit.ask}
    assert await fill("q", asks, RELEASED) == []
    assert (limit.made, limit.asked) == (5, 7)


async def test_what_was_refused_before_another_unit_was_made_is_asked_again() -> None:
    ends = {"a": [End.REFUSED, End.MADE, End.REFUSED], "b": [End.MADE, End.REFUSED, End.REFUSED]}

    def asks(name: str) -> Ask:
        async def ask() -> Asked:
            return Asked(ends[name].pop(0), 0, "")

        return ask

    assert await fill("q", {name: asks(name) for name in ends}, RELEASED) == []
    assert ends == {"a": [], "b": [End.REFUSED]}


async def test_a_refusal_while_a_lost_try_may_have_taken_the_last_unit_is_not_believed() -> None:
    limit = Limit(1, lost=1)
    assert await fill("q", {"a": limit.ask}, RELEASED) == []
    assert limit.made == 1, "the unit that the lost try had kept"


@pytest.mark.parametrize(
    "message",
    [
        "forbidden",
        "exceeded quota: q, requested: cpu=1, used: cpu=3, limited: cpu=4; short by cpu=1",
    ],
)
async def test_what_is_no_refusal_by_a_full_quota_is_wrong(message: str) -> None:
    [wrong] = await fill("q", {"a": Limit(0, message=message).ask}, RELEASED)
    assert message in wrong


class Scripted(Tenant):
    """Is told these outcomes, each after so many tries."""

    def __init__(self, *told: tuple[Outcome, int, str]) -> None:
        self.told = list(told)

    async def create(self, size: Size, *, again: bool = True) -> Attempt:
        outcome, tries, message = self.told.pop(0)
        return Attempt(
            cluster="user-1",
            name="m",
            size=size,
            asked=0.0,
            sent=0.0,
            answered=0.0,
            outcome=outcome,
            tries=tries,
            lost=0,
            status=0,
            message=message,
        )


@pytest.mark.parametrize(
    ("told", "end", "lost"),
    [
        ([(Outcome.ADMITTED, 1, "")], End.MADE, 0),
        ([(Outcome.REFUSED, 1, FULL)], End.REFUSED, 0),
        ([(Outcome.REFUSED, 3, FULL)], End.REFUSED, 2),
        ([(Outcome.UNAVAILABLE, 11, "not now"), (Outcome.REFUSED, 2, FULL)], End.REFUSED, 12),
        ([(Outcome.UNAVAILABLE, 11, "not now")] * 6, End.WRONG, 66),
        ([(Outcome.REFUSED, 1, "exceeded quota: no numbers")], End.WRONG, 0),
        ([(Outcome.FAILED, 1, "internal error")], End.WRONG, 0),
    ],
)
async def test_a_machine_that_nobody_decided_is_asked_for_again(
    told: list[tuple[Outcome, int, str]], end: End, lost: int
) -> None:
    tenant = Scripted(*told)
    asked = await one_machine(tenant)
    assert (asked.end, asked.lost, tenant.told) == (end, lost, [])
