"""Machines whose cloud has not told their size: counted at what is known, never so that something looks free."""

from __future__ import annotations

from common.kube.reflector import Change
from seed.machines.machine_controller import Machine
from seed.providers.size import Footprint, ProviderUnavailable
from seed.source import Tally
from tests.unit.fake_cloud import machine
from tests.unit.seed_world import nanos

SIZE = nanos("cpu=2,memory=8Gi,machines=1")


class Sizes:
    def __init__(self) -> None:
        self.told = False

    def __call__(self, _machine: Machine) -> Footprint:
        if not self.told:
            raise ProviderUnavailable("aws", "is being asked")
        return Footprint("aws", SIZE)


def test_what_is_waited_for_keeps_its_reservation_until_it_is_counted() -> None:
    sizes, subject = Sizes(), machine("aws", {})
    tally = Tally(size=sizes)
    tally.apply(Change(None, subject))
    assert tally.used == nanos("machines=1")
    assert tally.seen(["uid-m"]) == {}
    assert tally.unsized_reason() == "ProviderUnavailable"
    sizes.told = True
    tally.apply(Change(subject, subject))
    assert (tally.used, tally.waiting) == (SIZE, {})
    assert tally.seen(["uid-m"]) == {"uid-m": 0}


def test_the_first_list_of_a_new_leader_is_too_low_until_all_of_it_is_sized_or_gone() -> None:
    sizes = Sizes()
    tally = Tally(size=sizes)
    first, second = machine("aws", {}, "a"), machine("aws", {}, "b")
    for subject in (first, second):
        tally.apply(Change(None, subject))
    tally.listed()
    tally.apply(Change(None, machine("aws", {}, "later")))
    assert tally.too_low
    sizes.told = True
    tally.apply(Change(first, first))
    assert tally.too_low
    tally.apply(Change(second, None))
    assert not tally.too_low  # the later one was never counted: its reservation, if it has one, stands for it


def test_a_new_connection_goes_on_with_the_sizes_of_the_one_before() -> None:
    sizes, subject = Sizes(), machine("aws", {})
    sizes.told = True
    before = Tally(size=sizes)
    before.apply(Change(None, subject))
    sizes.told = False
    after = Tally(before, sizes)
    after.apply(Change(None, subject))
    after.listed()
    assert after.used == SIZE
    assert not after.too_low


def test_why_one_waits_is_told() -> None:
    tally = Tally(size=Sizes())
    tally.apply(Change(None, machine("aws", {})))
    tally.explain("uid-m", "aws eu-central-1 answered 500")
    assert tally.unsized() == ["kube-system/m: aws eu-central-1 answered 500"]
