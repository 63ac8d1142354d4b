"""The policy, step by step (the numbers are those of master/allotment.py)."""

from __future__ import annotations

from common.account import Ask
from master.allotment import Idle, Seat, allot

LIMITS = {"cpu": 64, "memory": 256}


def seat(name, *, held=(0, 0), use=(0, 0), first=None, wanted=None, number=1, **more):
    ask = Ask(number=number, first=vector(first), wanted=vector(wanted or first)) if first else Ask()
    return Seat(seed=name, held=vector(held), use=vector(use), ask=ask, **more)


def vector(amounts):
    cpu, memory = amounts
    return {"cpu": cpu, "memory": memory}


def test_1_use_that_nobody_admitted_is_covered_even_past_the_limit():
    decided = allot(LIMITS, [seat("eu", held=(10, 40), use=(70, 40)), seat("us", held=(2, 8), use=(1, 4))])
    assert decided.grants == {"eu": {"cpu": 60}}
    assert decided.recalls == {"us": {"cpu": 1}}


def test_1_resources_that_the_quota_does_not_limit_are_left_alone():
    use = {"cpu": 1, "nvidia.com/gpu": 8}
    assert allot({"cpu": 64}, [Seat(seed="eu", held={"cpu": 1}, use=use)]).grants == {}


def test_2_an_ask_gets_what_it_needs_in_whole_vectors_and_some_to_spare():
    decided = allot(LIMITS, [seat("eu", first=(2, 8))])
    granted = decided.grants["eu"]
    assert decided.answered == {"eu": 1}
    assert granted["cpu"] >= 2
    assert granted["memory"] == granted["cpu"] * 4
    assert granted["cpu"] <= 64 // 2 + 2


def test_2_what_the_asker_holds_idle_counts_towards_its_need():
    decided = allot({"cpu": 10}, [seat("eu", held=(7, 0), use=(6, 0), first=(4, 0)), seat("us", held=(0, 0))])
    assert decided.grants["eu"] == {"cpu": 3}


def test_2_of_several_askers_the_one_that_uses_least_comes_first():
    asking = [seat("eu", held=(40, 0), use=(40, 0), first=(20, 0)), seat("us", first=(20, 0), number=7)]
    decided = allot({"cpu": 64}, asking)
    assert decided.grants["us"]["cpu"] >= 20
    assert decided.answered == {"us": 7}  # what us does not use of it may still become eu's
    assert "eu" not in decided.grants


def test_3_idle_capacity_is_recalled_from_those_who_do_not_ask_and_the_ask_waits():
    seats = [seat("eu", held=(60, 240), use=(40, 160)), seat("us", held=(4, 16), use=(4, 16), first=(8, 32))]
    decided = allot(LIMITS, seats)
    assert decided.recalls == {"eu": {"cpu": 8, "memory": 32}}
    assert decided.grants == {}
    assert decided.answered == {}


def test_3_no_more_is_recalled_than_all_who_wait_need():
    seats = [seat("eu", held=(64, 256), use=(0, 0)), seat("us", first=(8, 32), wanted=(24, 96))]
    assert allot(LIMITS, seats).recalls == {"eu": {"cpu": 24, "memory": 96}}


def test_4_an_ask_that_fits_nowhere_is_answered_without_a_grant():
    seats = [seat("eu", held=(40, 0), use=(40, 0)), seat("us", held=(20, 0), use=(20, 0), first=(8, 0), number=3)]
    decided = allot({"cpu": 64}, seats)
    assert decided.answered == {"us": 3}
    assert decided.grants == {}


def test_4_an_ask_is_answered_with_who_holds_what_out_of_reach():
    seats = [
        seat("eu", held=(60, 0), use=(40, 0), reachable=False),
        seat("us", held=(4, 0), use=(4, 0), first=(8, 0)),
    ]
    decided = allot({"cpu": 64}, seats)
    assert decided.answered == {"us": 1}
    assert decided.unavailable == {"us": [Idle(seed="eu", idle={"cpu": 20})]}
    assert decided.recalls == {}


def test_an_ask_that_was_answered_asks_no_longer():
    decided = allot(LIMITS, [seat("eu", first=(2, 8), answered=1)])
    assert (decided.grants, decided.answered, decided.recalls) == ({}, {}, {})


def test_a_learning_master_covers_use_and_does_nothing_else():
    decided = allot(LIMITS, [seat("eu", use=(3, 0)), seat("us", first=(1, 1))], learning=True)
    assert decided.grants == {"eu": {"cpu": 3}}
    assert (decided.answered, decided.recalls) == ({}, {})


def test_a_lowered_limit_calls_idle_capacity_home():
    decided = allot({"cpu": 10}, [seat("eu", held=(10, 0), use=(4, 0)), seat("us", held=(5, 0), use=(5, 0))])
    assert decided.recalls == {"eu": {"cpu": 5}}


def test_a_seed_that_drains_gets_nothing_and_gives_all_it_does_not_use():
    decided = allot({"cpu": 64}, [seat("eu", held=(10, 0), use=(4, 0), first=(20, 0), draining=True)])
    assert decided.recalls == {"eu": {"cpu": 6}}
    assert (decided.grants, decided.answered) == ({}, {})


def test_nothing_is_recalled_from_a_seed_out_of_reach():
    assert allot({"cpu": 1}, [seat("eu", held=(10, 0), use=(4, 0), reachable=False)]).recalls == {}
