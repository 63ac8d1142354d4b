"""The policy, step by step (the numbers are those of master/grants/fair_share.py)."""

from __future__ import annotations

import pytest

from common.quota.account import Ask
from master.grants.allocation_state import SeedDemand
from master.grants.demand import HALF_LIFE, Demand
from master.grants.fair_share import STEPS, Idle, allot
from master.grants.headroom import SETTLED

LIMITS = {"cpu": 64, "memory": 256}


def seed(name, *, held=(0, 0), use=(0, 0), first=None, wanted=None, number=1, **more):
    ask = Ask(number=number, first=vector(first), wanted=vector(wanted or first)) if first else Ask()
    return SeedDemand(name=name, held=vector(held), use=vector(use), counted=vector(use), ask=ask, **more)


def vector(amounts):
    cpu, memory = amounts
    return {"cpu": cpu, "memory": memory}


def test_1_use_that_nobody_admitted_is_covered_even_past_the_limit():
    decided = allot(LIMITS, [seed("eu", held=(10, 40), use=(70, 40)), seed("us", held=(2, 8), use=(1, 4))])
    assert decided.grants == {"eu": {"cpu": 60}}
    assert decided.recalls == {"us": {"cpu": 1}}


def test_1_what_is_reserved_was_admitted_within_what_is_held_and_is_never_covered():
    use, counted = {"cpu": 5}, {"cpu": 3}  # an update that is counted in part, and reserved as a whole
    assert allot({"cpu": 4}, [SeedDemand(name="eu", held={"cpu": 3}, use=use, counted=counted)]).grants == {}


def test_1_resources_that_the_quota_does_not_limit_are_left_alone():
    use = {"cpu": 1, "nvidia.com/gpu": 8}
    assert allot({"cpu": 64}, [SeedDemand(name="eu", held={"cpu": 1}, use=use, counted=use)]).grants == {}


def on_surge(name, *, held, used, reserved=0, surge=3):
    """What it uses beyond what it holds may stand on surge."""
    use = {"cpu": used, "surge.cpu": reserved}
    return SeedDemand(name=name, held={"cpu": held, "surge.cpu": surge}, use=use, counted={"cpu": used})


WITH_SURGE = {"cpu": 10, "surge.cpu": 3}


@pytest.mark.parametrize("reserved", [0, 3])
def test_1_what_its_seed_has_surge_for_is_not_covered_past_the_limit(reserved):
    """Nor where the surge is reserved: a ledger that went back may have reservations of nothing."""
    assert allot(WITH_SURGE, [on_surge("eu", held=10, used=13, reserved=reserved)]).grants == {}
    assert allot(WITH_SURGE, [on_surge("eu", held=10, used=15)]).grants == {"eu": {"cpu": 2}}


def test_1_surge_that_was_taken_away_since_is_still_under_what_stands_on_it():
    assert allot({"cpu": 10}, [on_surge("eu", held=10, used=13)]).grants == {}


def test_1_what_stands_on_surge_is_covered_by_what_the_pool_has():
    seeds = [on_surge("eu", held=5, used=8), seed("us", held=(3, 0), use=(3, 0))]
    assert allot(WITH_SURGE, seeds).grants == {"eu": {"cpu": 2}}
    assert allot(WITH_SURGE, seeds, learning=True).grants == {}, "who is learning does not know what the pool has"


def test_1_what_others_hold_idle_is_recalled_for_what_stands_on_surge():
    decided = allot(WITH_SURGE, [on_surge("eu", held=5, used=8), seed("us", held=(5, 0), use=(3, 0))])
    assert (decided.grants, decided.recalls) == ({}, {"us": {"cpu": 2}})


def test_2_an_ask_gets_what_it_needs_in_whole_vectors_and_some_to_spare():
    decided = allot(LIMITS, [seed("eu", first=(2, 8))])
    granted = decided.grants["eu"]
    assert decided.answered == {"eu": 1}
    assert granted["cpu"] >= 2
    assert granted["memory"] == granted["cpu"] * 4
    assert granted["cpu"] <= 64 // 2 + 2


def test_2_what_the_asker_holds_idle_counts_towards_its_need():
    decided = allot({"cpu": 10}, [seed("eu", held=(7, 0), use=(6, 0), first=(4, 0)), seed("us", held=(0, 0))])
    assert decided.grants["eu"] == {"cpu": 3}


def test_2_of_several_askers_the_one_that_uses_least_comes_first():
    asking = [seed("eu", held=(40, 0), use=(40, 0), first=(20, 0)), seed("us", first=(20, 0), number=7)]
    decided = allot({"cpu": 64}, asking)
    assert decided.grants["us"]["cpu"] >= 20
    assert decided.answered == {"us": 7}  # what us does not use of it may still become eu's
    assert "eu" not in decided.grants


def test_3_idle_capacity_is_recalled_from_those_who_do_not_ask_and_the_ask_waits():
    seeds = [seed("eu", held=(60, 240), use=(40, 160)), seed("us", held=(4, 16), use=(4, 16), first=(8, 32))]
    decided = allot(LIMITS, seeds)
    assert decided.recalls == {"eu": {"cpu": 8, "memory": 32}}
    assert decided.grants == {}
    assert decided.answered == {}


def test_3_no_more_is_recalled_than_all_who_wait_need():
    seeds = [seed("eu", held=(64, 256), use=(0, 0)), seed("us", first=(8, 32), wanted=(24, 96))]
    assert allot(LIMITS, seeds).recalls == {"eu": {"cpu": 24, "memory": 96}}


def test_4_an_ask_that_fits_nowhere_is_answered_without_a_grant():
    seeds = [seed("eu", held=(40, 0), use=(40, 0)), seed("us", held=(20, 0), use=(20, 0), first=(8, 0), number=3)]
    decided = allot({"cpu": 64}, seeds)
    assert decided.answered == {"us": 3}
    assert decided.grants == {}


def test_4_an_ask_is_answered_with_who_holds_what_out_of_reach():
    seeds = [
        seed("eu", held=(60, 0), use=(40, 0), reachable=False),
        seed("us", held=(4, 0), use=(4, 0), first=(8, 0)),
    ]
    decided = allot({"cpu": 64}, seeds)
    assert decided.answered == {"us": 1}
    assert decided.unavailable == {"us": [Idle(seed="eu", idle={"cpu": 20})]}
    assert decided.recalls == {}


def test_an_ask_that_was_answered_asks_no_longer():
    decided = allot(LIMITS, [seed("eu", first=(2, 8), answered=1)])
    assert (decided.grants, decided.answered, decided.recalls) == ({}, {}, {})


def test_a_learning_master_covers_use_and_does_nothing_else():
    decided = allot(LIMITS, [seed("eu", use=(3, 0)), seed("us", first=(1, 1))], learning=True)
    assert decided.grants == {"eu": {"cpu": 3}}
    assert (decided.answered, decided.recalls) == ({}, {})


def test_a_lowered_limit_calls_idle_capacity_home():
    decided = allot({"cpu": 10}, [seed("eu", held=(10, 0), use=(4, 0)), seed("us", held=(5, 0), use=(5, 0))])
    assert decided.recalls == {"eu": {"cpu": 5}}


def test_a_seed_that_drains_gets_nothing_and_gives_all_it_does_not_use():
    decided = allot({"cpu": 64}, [seed("eu", held=(10, 0), use=(4, 0), first=(20, 0), draining=True)])
    assert decided.recalls == {"eu": {"cpu": 6}}
    assert (decided.grants, decided.answered) == ({}, {})


def test_nothing_is_recalled_from_a_seed_out_of_reach():
    assert allot({"cpu": 1}, [seed("eu", held=(10, 0), use=(4, 0), reachable=False)]).recalls == {}


def known(machine=(2, 8), *, peak=(0, 0), trough=(0, 0), held_at=0, asked_at=0, since=0):
    return Demand(
        machine=vector(machine),
        peak=vector(peak),
        trough=vector(trough),
        held_at=held_at,
        asked_at=asked_at,
        since=since,
    )


def waits(since):
    return known(asked_at=since)


def test_2_who_waits_since_an_earlier_decision_is_not_overtaken_by_a_smaller_share():
    seeds = [
        seed("eu", held=(40, 0), use=(40, 0), first=(20, 0), demand=waits(7)),
        seed("us", first=(20, 0), demand=waits(9)),
    ]
    assert list(allot({"cpu": 64}, seeds, now=9).answered) == ["eu"]


def test_2_of_two_that_are_new_the_smaller_share_by_weight_comes_first():
    seeds = [
        seed("eu", held=(30, 0), use=(30, 0), first=(14, 0), weight=2, demand=waits(9)),
        seed("us", held=(20, 0), use=(20, 0), first=(14, 0), demand=waits(9)),
    ]
    assert list(allot({"cpu": 64}, seeds, now=9).answered) == ["eu"]


def test_2_an_ask_without_room_is_refused_at_once_and_nothing_is_kept_for_it():
    seeds = [
        seed("eu", held=(40, 0), use=(40, 0), first=(30, 0), demand=waits(1)),
        seed("us", first=(24, 0), demand=waits(9)),
    ]
    decided = allot({"cpu": 64}, seeds, now=9)
    assert decided.answered == {"eu": 1, "us": 1}
    assert decided.grants == {"us": {"cpu": 24}}


def test_2_room_out_of_reach_does_not_refuse_what_fits_within_reach():
    seeds = [
        seed("ap", held=(20, 0), use=(0, 0), reachable=False),
        seed("eu", held=(44, 0), use=(24, 0)),
        seed("us", first=(20, 0)),
    ]
    decided = allot({"cpu": 64}, seeds)
    assert (decided.answered, decided.recalls) == ({}, {"eu": {"cpu": 20}})


def test_2_nothing_is_recalled_for_an_ask_that_what_is_within_reach_cannot_serve():
    seeds = [
        seed("ap", held=(20, 0), use=(0, 0), reachable=False),
        seed("eu", held=(44, 0), use=(25, 0)),
        seed("us", first=(20, 0)),
    ]
    decided = allot({"cpu": 64}, seeds)
    assert decided.unavailable == {"us": [Idle(seed="ap", idle={"cpu": 20})]}
    assert (decided.answered, decided.recalls) == ({"us": 1}, {})


def test_3_what_the_pool_has_is_kept_for_the_big_one_that_waits():
    big = seed("eu", held=(10, 0), use=(10, 0), first=(30, 0), demand=waits(1))
    small = seed("us", held=(30, 0), use=(30, 0), first=(1, 0), demand=waits(9))
    idle = seed("ap", held=(10, 0), use=(0, 0))
    decided = allot({"cpu": 64}, [big, small, idle], now=9)  # the pool has 14: with ap's 10 less than 30
    assert "eu" in decided.answered, "there is no room for it at all"
    decided = allot({"cpu": 74}, [big, small, idle], now=9)  # 24 in the pool, and the big one needs 6 of ap's 10
    assert (decided.grants, decided.answered) == ({}, {})
    assert decided.recalls == {"ap": {"cpu": 7}}, "1 of it for the small one"


def test_3_small_ones_are_served_from_what_the_big_one_does_not_need():
    big = seed("eu", first=(8, 200), demand=waits(1))
    small = seed("us", first=(2, 4), demand=waits(9))
    idle = seed("ap", held=(0, 100), use=(0, 0))
    decided = allot({"cpu": 64, "memory": 256}, [big, small, idle], now=9)
    assert (decided.answered, decided.grants) == ({}, {}), "all memory is kept: it waits for memory too"
    small = seed("us", first=(2, 0), demand=waits(9))
    decided = allot({"cpu": 64, "memory": 256}, [big, small, idle], now=9)
    assert decided.grants == {"us": {"cpu": 2}}


def test_3_whoever_idles_most_for_its_recent_demand_gives_first():
    seeds = [
        seed("ap", held=(20, 80), use=(10, 40), demand=known(peak=(10, 40), trough=(0, 0))),  # has just grown
        seed("eu", held=(20, 80), use=(10, 40), demand=known(peak=(10, 40), trough=(10, 40))),
        seed("us", held=(24, 96), use=(24, 96), first=(4, 16)),
    ]
    assert list(allot(LIMITS, seeds).recalls) == ["eu"]


def test_3_those_who_drain_give_before_those_who_do_not():
    seeds = [
        seed("ap", held=(30, 120), use=(10, 40)),
        seed("eu", held=(14, 56), use=(10, 40), draining=True),
        seed("us", held=(20, 80), use=(20, 80), first=(4, 16)),
    ]
    assert allot(LIMITS, seeds).recalls == {"eu": {"cpu": 4, "memory": 16}}


def test_3_whole_machines_are_recalled_where_there_are_some():
    seeds = [
        seed("ap", held=(8, 0), use=(0, 0)),  # cpus without memory
        seed("eu", held=(8, 32), use=(0, 0)),
        seed("us", held=(48, 224), use=(48, 224), first=(8, 32)),
    ]
    assert allot(LIMITS, seeds).recalls == {"eu": {"cpu": 8, "memory": 32}}


def test_3_fragments_of_several_make_a_machine():
    seeds = [
        seed("ap", held=(8, 0), use=(0, 0)),
        seed("eu", held=(0, 32), use=(0, 0)),
        seed("us", held=(56, 224), use=(56, 224), first=(8, 32)),
    ]
    assert allot(LIMITS, seeds).recalls == {"ap": {"cpu": 8}, "eu": {"memory": 32}}


def test_3_nothing_is_recalled_from_a_seed_that_was_granted_it_just_now():
    seeds = [
        seed("eu", held=(60, 0), use=(40, 0), just_granted=True),
        seed("us", held=(4, 0), use=(4, 0), first=(8, 0)),
    ]
    decided = allot({"cpu": 64}, seeds)
    assert (decided.recalls, decided.answered) == ({}, {})


def test_3_idle_capacity_of_those_first_in_line_is_theirs():
    seeds = [
        seed("eu", held=(30, 0), use=(20, 0), first=(24, 0), demand=waits(1)),
        seed("us", held=(20, 0), use=(20, 0), first=(4, 0), demand=waits(2)),
    ]
    decided = allot({"cpu": 64}, seeds, now=9)
    assert decided.grants == {"eu": {"cpu": 14}}
    assert (decided.answered, decided.recalls) == ({"eu": 1}, {})


def test_4_the_last_units_go_one_machine_at_a_time_to_the_smallest_share():
    seeds = [
        seed("ap", held=(12, 0), use=(12, 0), first=(1, 0), wanted=(30, 0)),
        seed("eu", held=(20, 0), use=(20, 0), first=(1, 0), wanted=(30, 0)),
        seed("us", held=(2, 0), use=(2, 0), first=(1, 0), wanted=(30, 0)),
    ]
    granted = allot(
        {"cpu": 64}, seeds
    ).grants  # 30 are left: 1 for eu, which has more, and 21 or 22 in all for each other
    assert {name: amounts["cpu"] for name, amounts in granted.items()} == {"ap": 10, "eu": 1, "us": 19}


def test_4_twice_the_weight_is_twice_the_share():
    seeds = [
        seed("eu", first=(1, 0), wanted=(60, 0), weight=2),
        seed("us", first=(1, 0), wanted=(60, 0)),
    ]
    granted = allot({"cpu": 60}, seeds).grants
    assert {name: amounts["cpu"] for name, amounts in granted.items()} == {"eu": 40, "us": 20}


def test_4_what_waits_behind_the_first_is_recalled_from_those_who_do_not_ask():
    seeds = [
        seed("ap", held=(30, 0), use=(0, 0)),
        seed("eu", held=(20, 0), use=(14, 0), first=(2, 0), wanted=(2, 0)),
        seed("us", held=(10, 0), use=(10, 0), first=(4, 0), wanted=(12, 0)),
    ]
    decided = allot({"cpu": 64}, seeds)
    assert decided.answered == {"eu": 1, "us": 1}
    assert decided.grants == {"us": {"cpu": 4}}
    assert decided.recalls == {"ap": {"cpu": 8}}


def test_4_a_storm_is_decided_in_few_steps():
    seeds = [seed(f"s{n}", first=(1, 4), wanted=(1000, 4000)) for n in range(3)]
    decided = allot({"cpu": 2000, "memory": 8000}, seeds)
    granted = [amounts["cpu"] for amounts in decided.grants.values()]
    assert sum(granted) == 2000
    assert max(granted) - min(granted) <= 3000 // STEPS + 1


def test_5_a_seed_that_grows_gets_headroom_before_it_asks():
    growing = seed("eu", held=(10, 40), use=(9, 36), demand=known(trough=(5, 20), peak=(9, 36)))
    decided = allot(LIMITS, [growing])
    assert decided.grants == {"eu": {"cpu": 5, "memory": 20}}, "three machines, of which it has half of one"


def test_5_no_headroom_comes_unasked_where_it_is_not_needed_or_the_pool_is_low():
    machine_left = seed("eu", held=(11, 44), use=(9, 36), demand=known(trough=(5, 20), peak=(9, 36)))
    constant = seed("eu", held=(10, 40), use=(9, 36), demand=known(trough=(9, 36), peak=(9, 36)))
    growing = seed("eu", held=(10, 40), use=(9, 36), demand=known(trough=(5, 20), peak=(9, 36)))
    full = seed("us", held=(40, 160), use=(40, 160))
    for seeds in ([machine_left], [constant], [growing, full], [seed("eu", held=(10, 40), use=(9, 36))]):
        assert allot(LIMITS, seeds).grants == {}


@pytest.mark.parametrize(("grew", "spare"), [(0, 16), (64, 16), (400, 100), (4_000, 450)])
def test_5_an_asker_gets_some_to_spare_by_what_waits_and_by_what_it_grew(grew: int, spare: int) -> None:
    """... and no more than half of the pool."""
    asking = seed("eu", held=(4_000, 0), use=(4_000, 0), first=(1, 0), demand=known(trough=(4_000 - grew, 0)))
    assert allot({"cpu": 4_902}, [asking]).grants == {"eu": {"cpu": 1 + spare}}


def test_5_nothing_to_spare_while_somebody_waits():
    seeds = [
        seed("ap", held=(30, 0), use=(10, 0)),
        seed("eu", first=(1, 0), demand=waits(9)),
        seed("us", held=(2, 0), use=(2, 0), first=(50, 0), demand=waits(9)),
    ]
    assert allot({"cpu": 64}, seeds, now=9).grants == {"eu": {"cpu": 1}}


def test_6_surplus_comes_home_when_the_pool_is_low_and_all_has_settled():
    idle = seed("eu", held=(50, 200), use=(10, 40), demand=known(peak=(10, 40), trough=(8, 32)))
    decided = allot(LIMITS, [idle], now=SETTLED)
    assert decided.recalls == {"eu": {"cpu": 36, "memory": 144}}, "but one machine, and what it grew by"
    early = allot(LIMITS, [idle], now=SETTLED - 3)
    assert (early.recalls, early.again) == ({}, 3)


def test_6_surplus_stays_where_it_is_when_there_is_little_of_it_or_the_pool_has_plenty():
    little = seed("eu", held=(50, 200), use=(42, 168), demand=known(peak=(42, 168), trough=(42, 168)))
    plenty = seed("eu", held=(32, 128), use=(2, 8), demand=known(peak=(2, 8), trough=(2, 8)))
    unknown = seed("eu", held=(50, 200), use=(10, 40))
    for seeds in ([little], [plenty], [unknown]):
        decided = allot(LIMITS, seeds, now=10 * SETTLED)
        assert (decided.recalls, decided.again) == ({}, None)


def test_6_a_look_is_due_when_demand_has_faded():
    idle = seed("eu", held=(50, 200), use=(10, 40), demand=known(peak=(46, 184), trough=(10, 40)))
    decided = allot(LIMITS, [idle], now=SETTLED)
    assert (decided.recalls, decided.again) == ({}, HALF_LIFE - SETTLED)


def test_6_surplus_goes_along_with_a_recall():
    seeds = [
        seed("eu", held=(60, 240), use=(40, 160), demand=known(peak=(40, 160), trough=(40, 160))),
        seed("us", held=(4, 16), use=(4, 16), first=(2, 8)),
    ]
    assert allot(LIMITS, seeds).recalls == {"eu": {"cpu": 18, "memory": 72}}


def test_6_a_fragment_that_makes_no_machine_goes_along_with_a_recall():
    seeds = [
        seed("eu", held=(60, 240), use=(57, 224), demand=known((4, 4), peak=(57, 224), trough=(57, 224))),
        seed("us", held=(4, 16), use=(4, 16), first=(2, 8)),
    ]
    assert allot(LIMITS, seeds).recalls == {"eu": {"cpu": 3, "memory": 16}}


def test_an_ask_of_a_seed_that_drains_is_told_apart():
    draining = seed("eu", held=(10, 0), use=(4, 0), first=(20, 0), number=5, draining=True)
    assert allot({"cpu": 64}, [draining]).draining == {"eu": 5}
    full = seed("us", held=(50, 0), use=(50, 0))
    decided = allot({"cpu": 64}, [draining, full])
    assert (decided.draining, decided.answered) == ({}, {"eu": 5}), "it would not fit anywhere: that is the reason"
    own = seed("eu", held=(10, 0), use=(4, 0), first=(6, 0), number=5, draining=True)
    assert allot({"cpu": 64}, [own]).answered == {"eu": 5}, "what it has already is enough"


def test_a_resource_below_its_limit_does_not_hold_up_another():
    seeds = [seed("eu", held=(10, 300), use=(10, 300)), seed("us", held=(2, 0), use=(2, 0), first=(2, 0))]
    assert allot(LIMITS, seeds).answered == {"us": 1}
