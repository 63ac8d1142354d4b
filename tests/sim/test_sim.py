from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sim import mutants, runner, schedule
from tests.sim.failures import FOUND

SCHEDULES = 600
OF_NAMESPACES = 100  # ... of worlds with quotas of namespaces
OF_OTHERS = 50  # ... of each other world
QUICK = 120  # schedules in which the mutants below must be noticed; all of them: python -m tests.sim --mutants


def test_no_schedule_breaks_the_promise() -> None:
    total = runner.schedules(0, SCHEDULES, 1)
    assert total.failures == []
    assert total.admitted > 900
    assert total.refused > 300
    assert total.filled > 300


def test_no_schedule_of_namespaces_breaks_the_promise() -> None:
    total = runner.schedules(0, OF_NAMESPACES, 1, focus=("namespaces",))
    assert total.failures == []
    assert total.admitted > 200
    assert total.refused > 150
    assert total.filled > 60


@pytest.mark.parametrize("focus", ["kinds", "promises", "allocations", "tenancy", "parts", "members", "guarantees"])
def test_no_schedule_of_another_world_breaks_the_promise(focus: str) -> None:
    total = runner.schedules(0, OF_OTHERS, 1, focus=(focus,))
    assert total.failures == []
    assert total.admitted > 120
    assert total.refused > 90
    assert total.filled > 30


@pytest.mark.parametrize("number", FOUND)
def test_what_failed_once_does_not_fail_again(number: int) -> None:
    total = runner.some(number, 1)
    assert total.failures == []


def test_a_list_that_comes_while_a_part_is_counted_is_counted_too() -> None:
    """What is missing in a count has no event of its own if the kind has no objects."""
    assert runner.some(21045695, 1, ("kinds",)).failures == []


def test_a_schedule_is_known_by_its_number() -> None:
    with runner.quietly():
        first, again, other = schedule.run(7), schedule.run(7), schedule.run(8)
    assert [api.ledger for api in first.apis.values()] == [api.ledger for api in again.apis.values()]
    assert first.master.ledgers == again.master.ledgers
    assert first.master.ledgers != other.master.ledgers


@pytest.mark.parametrize("number", [23591014, 23591031, 23591057])
def test_a_schedule_does_not_depend_on_where_objects_are_in_memory(number: int) -> None:
    """A set of objects without a hash of their own has another order each time."""
    with runner.quietly():
        worlds = [schedule.run(number, focus=("members",)) for _ in range(4)]
    assert len({(world.truth.admitted, world.refused, world.truth.writes) for world in worlds}) == 1


@pytest.mark.parametrize(
    "name",
    [
        "answer before the write",
        "blind write, no compare-and-set",
        "lists from before the epoch",
        "release without the in-flight window",
        "return what is used",
        "a count drops what it has not seen",
        "a grant lifts the fence",
        "two quotas without cancel",
        "never give back",
        "grant what is not used",
        "what is silent is freed",
        "show before it is persisted",
        "labels that move are not followed",
        "labels are never read",
        "each call about a creation is decided by itself",
        "an update is reserved as of what it changes",
        "evidence of a namespace is the watch's",
        "what core still admits by is promised elsewhere",
        "what others promise stays",
        "the others are not read again",
        "bases stay in the count",
        "a cluster need not be counted before something is admitted there",
        "a namespace is of no project",
        "an organization is not asked",
        "projects' namespaces are not counted",
        "both sides are counted",
        "the catalogue drops nothing of Allocations",
        "only what is committed counts",
    ],
)
def test_a_broken_rule_is_noticed(name: str) -> None:
    mutant = mutants.BY_NAME[name]
    with runner.quietly():
        found = mutants.hunt(mutant, QUICK)
    assert found.what
    assert not found.unbroken


def test_each_mutant_changes_something_that_is_there() -> None:
    missing = [
        (mutant.name, name) for mutant in mutants.ALL for place, name, _ in mutant.patches if name not in vars(place)
    ]
    assert missing == []


def test_a_schedule_can_be_run_again_by_hand() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seed", "7"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("schedule 7: admitted ")
