"""The observer's arithmetic: it must never accuse wrongly, and never overlook what stays."""

from __future__ import annotations

import pytest

from common.quota import resources
from devcluster.load import Size
from tests.chaos.truth import Holdings, Limit, Machine, Overshoot, machine_decoder
from tests.clock import Clock

ONE, TWO, FOUR = (Size(cpu, "1Gi", "1Gi") for cpu in ("1", "2", "4"))


class Pair:
    """Two user clusters under one limit of 4 cpu."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.holdings = {name: Holdings(self._look, self.clock) for name in ("a", "b")}
        self.a, self.b = self.holdings.values()
        self.told: list[str] = []
        limit = Limit("quota", ("a", "b"), resources.parse({"cpu": "4"}))
        self.overshoot = Overshoot([limit], self.holdings)
        self.overshoot.on_first = lambda name, over: self.told.append(f"{name} {resources.text(over)}")

    def _look(self) -> None:
        self.overshoot.look()

    @property
    def cpu(self) -> str:
        return resources.text(resources.only(resources.total([self.a.sum, self.b.sum]), ["cpu"]))


@pytest.fixture
def pair() -> Pair:
    return Pair()


def machine(name: str, size: Size, version: int, uid: str = "") -> Machine:
    spec = f'{{"cpu":"{size.cpu}","memory":"{size.memory}","storage":"{size.storage}"}}'
    return machine_decoder.decode(
        f'{{"metadata":{{"name":"{name}","uid":"{uid or name}","resourceVersion":"{version}"}},'
        f'"spec":{{"providerSpec":{{"value":{{"cloudProviderSpec":{spec}}}}}}}}}'.encode()
    )


def test_what_two_clusters_hold_together_is_seen_and_told_once(pair: Pair) -> None:
    pair.a.seen(machine("m", FOUR, 1))
    assert pair.told == []
    pair.b.seen(machine("n", TWO, 1))
    pair.b.seen(machine("o", ONE, 2))
    pair.b.deleted(machine("o", ONE, 3))
    assert pair.told == ["quota cpu=2"]
    assert pair.overshoot.worst == {"quota": resources.parse({"cpu": "3"})}


def test_a_machine_whose_deletion_was_sent_makes_room_for_another(pair: Pair) -> None:
    pair.a.seen(machine("m", FOUR, 1))
    pair.a.deleting("m")
    pair.b.seen(machine("n", FOUR, 1))
    assert pair.told == []


def test_a_deletion_that_never_happened_counts_again(pair: Pair) -> None:
    pair.a.seen(machine("m", FOUR, 1))
    pair.a.deleting("m")
    pair.clock.now += 61
    pair.a.listed([machine("m", FOUR, 1)], 5)
    pair.b.seen(machine("n", ONE, 1))
    assert pair.told == ["quota cpu=1"]


def test_an_update_under_way_counts_with_the_smaller_size(pair: Pair) -> None:
    pair.a.seen(machine("m", FOUR, 1))
    pair.a.updating("m", ONE)
    assert pair.cpu == "cpu=1"
    pair.a.answered("m", ONE)
    assert pair.cpu == "cpu=4", "it was refused"
    pair.a.updating("m", TWO)
    pair.a.seen(machine("m", TWO, 2))
    pair.a.answered("m", TWO)
    assert pair.cpu == "cpu=2"


def test_of_two_updates_at_once_the_one_not_answered_still_counts(pair: Pair) -> None:
    pair.a.seen(machine("m", TWO, 1))
    pair.a.updating("m", FOUR)
    pair.a.updating("m", ONE)
    pair.a.seen(machine("m", FOUR, 2))
    pair.a.answered("m", FOUR)
    assert pair.cpu == "cpu=1"
    pair.a.answered("m", ONE)
    assert pair.cpu == "cpu=4"


def test_an_older_state_says_nothing(pair: Pair) -> None:
    pair.a.seen(machine("m", ONE, 7))
    pair.a.seen(machine("m", FOUR, 3))
    assert pair.cpu == "cpu=1"


def test_a_machine_that_was_deleted_does_not_come_back_by_a_late_answer(pair: Pair) -> None:
    pair.a.seen(machine("m", ONE, 1))
    pair.a.deleted(machine("m", ONE, 2))
    pair.a.seen(machine("m", ONE, 1))
    assert pair.a.names() == []
    pair.a.seen(machine("m", TWO, 4, uid="another"))
    assert pair.cpu == "cpu=2"


def test_a_list_drops_what_is_gone_and_keeps_what_came_after_it(pair: Pair) -> None:
    pair.a.seen(machine("old", ONE, 1))
    pair.a.seen(machine("new", TWO, 9))
    pair.a.listed([], 5)
    assert pair.a.names() == ["new"]


def test_what_was_the_same_before_and_after_a_restore_counts(pair: Pair) -> None:
    pair.a.seen(machine("m", TWO, 3))
    pair.a.restored()
    assert pair.cpu == ""
    pair.a.listed([machine("m", TWO, 3)], 100)
    assert pair.cpu == "cpu=2"


def test_what_a_restore_took_away_does_not_count(pair: Pair) -> None:
    pair.a.seen(machine("m", FOUR, 3))
    pair.a.restored()
    pair.a.seen(machine("n", TWO, 101))
    pair.a.listed([machine("n", TWO, 101)], 102)
    assert (pair.a.names(), pair.cpu, pair.told) == (["n"], "cpu=2", [])


def test_what_a_restore_brought_back_or_changed_does_not_count_but_can_be_deleted(pair: Pair) -> None:
    pair.a.seen(machine("gone", FOUR, 1))
    pair.a.deleted(machine("gone", FOUR, 2))
    pair.a.seen(machine("grown", FOUR, 5))
    pair.a.restored()
    pair.a.listed([machine("gone", FOUR, 1), machine("grown", ONE, 3)], 100)
    assert (sorted(pair.a.names()), pair.cpu) == (["gone", "grown"], "")
    assert pair.a.size("grown") == ONE
    pair.a.restored()
    pair.a.listed([machine("gone", FOUR, 1), machine("grown", ONE, 3)], 200)
    assert pair.cpu == "", "also not after another restore"


def test_a_deletion_under_way_while_it_is_restored_may_still_happen(pair: Pair) -> None:
    pair.a.seen(machine("m", TWO, 3))
    pair.a.deleting("m")
    pair.a.restored()
    pair.a.listed([machine("m", TWO, 3)], 100)
    assert pair.cpu == ""
    pair.clock.now += 61
    pair.a.listed([machine("m", TWO, 3)], 100)
    assert pair.cpu == "cpu=2"
