"""What the master learns of a seed's needs from one decision to the next."""

from __future__ import annotations

import pytest

from common.quota import resources
from common.quota.account import Ask
from common.quota.quantity import UNIT
from master.grants.demand import FORGOTTEN_SHARE, HALF_LIFE, USUAL_FOR, Demand, lacking, learn, scaled, share, times

LIMITS = {"cpu": 4096, "memory": 16384}


def see(known: Demand | None, now: int, *, use=0, held=0, first=0, number=0, answered=0) -> Demand:
    ask = Ask(number=number, first=machine(first), wanted=machine(first)) if first else Ask(number=number)
    return learn(known, LIMITS, held=machine(held), use=machine(use), ask=ask, answered=answered, now=now)


def machine(cpu: int) -> dict[str, int]:
    return {"cpu": cpu, "memory": 4 * cpu}


def test_nothing_new_is_the_same_object() -> None:
    known = see(None, 1, use=5, held=9, first=2, number=1)
    assert see(known, 2, use=5, held=9, first=2, number=1) is known
    assert see(known, 10 * HALF_LIFE + 1, use=5, held=9, first=2, number=1).since == 10 * HALF_LIFE + 1


def test_the_largest_machine_asked_for_is_the_usual_one_until_it_is_long_ago() -> None:
    known = see(None, 0, first=8, number=1)
    assert see(known, 1, first=2, number=2).machine == machine(8)
    assert see(known, 1, first=16, number=2).machine == machine(16)
    assert see(known, USUAL_FOR + 1, first=2, number=2).machine == machine(2)


def test_an_ask_that_stands_there_unchanged_teaches_nothing_anew() -> None:
    known = see(see(None, 0, first=8, number=1), 1, first=2, number=2, answered=1)
    assert see(known, USUAL_FOR + 5, first=2, number=2, answered=2).machine == machine(8)


def test_a_machine_is_made_of_what_the_quota_limits() -> None:
    ask = Ask(number=1, first={"cpu": 1, "nvidia.com/gpu": 1, "memory": 0})
    assert learn(None, LIMITS, held={}, use={}, ask=ask, answered=0, now=0).machine == {"cpu": 1}


def test_growth_is_recent_demand_and_fades_by_half_lives() -> None:
    known = see(see(None, 0, use=100), 10, use=164)
    assert known.recent(machine(164)) == machine(64)
    half = see(known, HALF_LIFE, use=164)
    assert half.recent(machine(164)) == machine(32)
    assert see(half, 2 * HALF_LIFE, use=164).recent(machine(164)) == machine(16)


def test_what_use_fell_by_lately_may_come_back() -> None:
    known = see(see(None, 0, use=100), 10, use=40)
    assert known.recent(machine(40)) == machine(60)
    assert see(known, HALF_LIFE, use=40).recent(machine(40)) == machine(30)


def test_machines_replaced_one_by_one_are_no_growing_demand() -> None:
    known = see(None, 0, use=100)
    for round_ in range(1, 200):
        known = see(known, 10 * round_, use=100 - round_ % 2)
    assert known.recent(machine(99)) == machine(1)


def test_steady_change_forgets_as_time_passes_too() -> None:
    known = see(None, 0, use=4000)
    for second in range(1, 301):
        known = see(known, 1000 * second, use=100 + second % 2)
    assert known.recent(machine(100))["cpu"] <= 3900 // 2**9 + 1, "ten half-lives"


def test_what_is_left_of_a_demand_is_forgotten_in_the_end() -> None:
    much = {"cpu": FORGOTTEN_SHARE * 1000}
    known: Demand | None = None
    for halves in range(22):
        used = much if halves else {}
        known = learn(known, much, held={}, use=used, ask=Ask(), answered=0, now=halves * HALF_LIFE)
    assert known is not None
    assert known.recent(much) == {}


REAL = resources.parse({"cpu": "64", "memory": "256Gi", "storage": "1T", "machines": 20, "example.com/vgpu": 7})


@pytest.mark.parametrize("grown", [{}, {"cpu": "33300m", "memory": "100Gi", "storage": "77G", "example.com/vgpu": 5}])
def test_what_is_left_of_a_demand_is_in_the_units_that_people_write(grown: dict[str, str | int]) -> None:
    """What a seed holds beyond that is recalled: else it holds `33130126953n` of cpu."""
    before, use = resources.parse({"cpu": "40", "memory": "160Gi", "machines": 9}), resources.parse(grown)
    known = learn(None, REAL, held={}, use=before, ask=Ask(), answered=0, now=0)
    known = learn(known, REAL, held={}, use=use, ask=Ask(), answered=0, now=1)
    for halves in range(1, 40):
        known = learn(known, REAL, held={}, use=use, ask=Ask(), answered=0, now=halves * HALF_LIFE)
        left = known.recent(use)
        assert all(resources.alike(name, amount)[0][-1] not in "nu" for name, amount in left.items())
        steps = {"cpu": UNIT // 1000, "memory": UNIT << 20, "storage": UNIT << 9}
        assert [name for name, amount in left.items() if amount % steps.get(name, UNIT)] == []
        assert halves > 3 or left["cpu"]
    assert known.recent(use) == {}, "in the end nothing"


def test_an_ask_waits_since_it_was_first_seen_unanswered() -> None:
    known = see(see(None, 5, first=2, number=1), 9, first=2, number=2)
    assert known.asked_at == 5, "an ask that joins one that waits"
    assert see(known, 20, first=2, number=3, answered=2).asked_at == 20, "the one before it was answered"
    assert see(known, 20, first=2, number=1).asked_at == 20, "another life of the account"


def test_when_capacity_last_moved() -> None:
    known = see(None, 5, held=10)
    assert known.held_at == 5
    assert see(known, 9, held=10).held_at == 5
    assert see(known, 9, held=8).held_at == 9


def test_the_dominant_share_is_that_of_the_scarcest_resource_by_weight() -> None:
    limits = {"cpu": 10, "memory": 100, "none": 0}
    assert share({"cpu": 5, "memory": 60}, limits) == share({"memory": 60}, limits) > share({"cpu": 5}, limits)
    assert share({"cpu": 5, "none": 3}, limits) == share({"cpu": 10}, limits, weight=2)


def test_vectors() -> None:
    assert lacking({"cpu": 4, "memory": 2}, {"cpu": 1, "memory": 2, "storage": -3}) == {"cpu": 3}
    assert times({"cpu": 2, "memory": 3, "gpu": 0}, {"cpu": 9, "memory": 7}) == 2
    assert times({"cpu": 2}, {"cpu": -4}) == times({}, {"cpu": 4}) == 0
    assert scaled({"cpu": 2}, 3) == {"cpu": 6}
