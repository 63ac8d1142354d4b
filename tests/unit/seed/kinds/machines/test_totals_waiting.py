"""Machines whose cloud has not told their size: counted at what is known, never so that something looks free."""

from __future__ import annotations

import asyncio

import pytest

from common.kube.controller.store import Change
from seed.kinds.machines import size_backfill
from seed.kinds.machines.size_backfill import SizeBackfill
from seed.kinds.machines.totals import MachineTotals
from seed.machines.machine_controller import Machine
from seed.providers.size import (
    CredentialsMissing,
    CredentialsRejected,
    FlavourUnknown,
    Footprint,
    NotSized,
    ProviderUnavailable,
)
from seed.sizing.stamp import spec_hash
from tests.unit.fake_api_server import eventually
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
    totals = MachineTotals(size=sizes)
    totals.apply(Change(None, subject))
    assert totals.used == nanos("machines=1")
    assert totals.seen(["uid-m"]) == {}
    assert totals.unsized().counts == {"ProviderUnavailable": 1}
    sizes.told = True
    totals.apply(Change(subject, subject))
    assert (totals.used, totals.waiting) == (SIZE, {})
    assert totals.seen(["uid-m"]) == {"uid-m": 0}


def test_a_new_connection_goes_on_with_the_sizes_of_the_one_before() -> None:
    sizes, subject = Sizes(), machine("aws", {})
    sizes.told = True
    before = MachineTotals(size=sizes)
    before.apply(Change(None, subject))
    sizes.told = False
    after = MachineTotals(before, sizes)
    after.apply(Change(None, subject))
    assert after.used == SIZE
    assert after.guessed == {}
    assert after.line is before.line


def test_why_one_waits_is_told() -> None:
    totals = MachineTotals(size=Sizes())
    totals.apply(Change(None, machine("aws", {})))
    totals.explain("uid-m", CredentialsRejected("aws eu-central-1", "refuses these credentials (401)"))
    assert totals.unsized().named == [
        "kube-system/m: cannot size machine now: aws eu-central-1 refuses these credentials (401)"
    ]
    assert totals.unsized().counts == {"CredentialsRejected": 1}


def test_the_condition_is_what_people_must_put_right_first() -> None:
    totals = MachineTotals(size=Sizes())
    errors: list[NotSized | ProviderUnavailable] = [
        ProviderUnavailable("aws", "answered 500"),
        NotSized("vsphere", "memoryMB is missing"),
        FlavourUnknown("aws", "has no type m5.larg"),
        CredentialsMissing("aws", "accessKeyId is missing"),
    ]
    seen = []
    for number, error in enumerate(errors):
        totals.apply(Change(None, machine("aws", {}, str(number))))
        totals.explain(f"uid-{number}", error)
        seen.append(totals.unsized().condition)
    assert seen == ["ProviderUnavailable", "NotSized", "FlavorUnknown", "CredentialsRejected"]
    assert totals.unsized().count == 4


def test_a_disk_of_unknown_size_is_told_only_where_a_quota_limits_storage() -> None:
    totals = MachineTotals()
    totals.apply(Change(None, machine("vsphere", {"cpus": 2, "memoryMB": 2048})))
    assert totals.used == nanos("cpu=2,memory=2Gi,machines=1")
    assert totals.unknown
    assert totals.unsized({"cpu"}).count == 0
    found = totals.unsized({"cpu", "storage"})
    assert found.counts == {"NotSized": 1}
    assert found.named == [
        "kube-system/m: cannot size machine: vsphere diskSizeGB is not set, so the disk is as big as the template's, "
        "which is not known: set it in the spec, because a quota limits storage"
    ]


async def test_what_thousands_of_waiting_machines_cost_grows_with_their_number_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a spec of its own, and no cloud answers. A tenant writes as many as it likes."""
    hashed, asked = 0, 0
    totals = MachineTotals(size=Sizes())
    subjects = [machine("aws", {"instanceType": f"t{number}"}, name=f"m{number}") for number in range(2000)]
    for subject in subjects:
        totals.apply(Change(None, subject))

    def counting(subject: Machine) -> str:
        nonlocal hashed
        hashed += 1
        return spec_hash(subject)

    async def ask(_machine: Machine, _deadline: float) -> None:
        nonlocal asked
        asked += 1
        raise ProviderUnavailable("aws", "must wait")

    monkeypatch.setattr(size_backfill, "spec_hash", counting)
    backfill = SizeBackfill(totals, ask, lambda _freed: None)
    running = asyncio.create_task(backfill.run())
    backfill.look()
    await eventually(lambda: asked == len(subjects))
    running.cancel()
    assert hashed <= 2 * len(subjects)
    assert totals.unsized().named == [
        f"kube-system/m{number}: cannot size machine now: aws must wait" for number in range(5)
    ]


async def test_a_machine_that_changed_while_a_cloud_was_asked_is_looked_at_again() -> None:
    sizes, subject, later = Sizes(), machine("aws", {"instanceType": "a"}), machine("aws", {"instanceType": "b"})
    totals = MachineTotals(size=sizes)
    totals.apply(Change(None, subject))
    asked: list[Machine] = []

    async def ask(found: Machine, _deadline: float) -> None:
        asked.append(found)
        if len(asked) == 1:
            totals.apply(Change(subject, later))
            backfill.look()
        else:
            sizes.told = True

    backfill = SizeBackfill(totals, ask, lambda _freed: None)
    running = asyncio.create_task(backfill.run())
    backfill.look()
    await eventually(lambda: totals.used == SIZE)
    running.cancel()
    assert asked == [subject, later]
