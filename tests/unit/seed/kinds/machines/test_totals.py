from __future__ import annotations

import json

import msgspec
import pytest

from common.kube.controller.store import Change
from common.quota import resources
from common.quota.names import MAX_DEVICES
from common.quota.quantity import UNIT
from seed.kinds.machines.totals import MAX_UNSIZED_NAMED, MachineTotals
from seed.machines.footprint import footprint
from seed.machines.machine_controller import Machine, MachineSpec
from seed.providers.size import Footprint
from tests.unit.seed_world import nanos


def machine(name: str = "m", cpu: str | None = "8", *, uid: str = "", generation: int = 1) -> Machine:
    provider = {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": cpu, "memory": "16Gi", "storage": "50Gi"}}
    if cpu is None:
        provider["cloudProvider"] = "unheard-of"
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": uid or f"{name}-uid", "generation": generation},
        "spec": {"providerSpec": {"value": provider}},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Machine)


def totals(*machines: Machine) -> MachineTotals:
    made = MachineTotals()
    for found in machines:
        made.apply(Change(None, found))
    return made


def test_machines_are_summed_and_count_themselves() -> None:
    assert totals(machine("a"), machine("b", "500m")).used == nanos("cpu=8500m,memory=32Gi,storage=100Gi,machines=2")


def test_a_deletion_frees_and_leaves_nothing_behind() -> None:
    made = totals(machine("a"), machine("b"))
    assert made.apply(Change(machine("a"), None))
    assert made.used == nanos("cpu=8,memory=16Gi,storage=50Gi,machines=1")
    assert made.apply(Change(machine("b"), None))
    assert made.used == {}
    assert len(made) == 0


@pytest.mark.parametrize(("cpu", "freed"), [("4", True), ("8", False), ("12", False)])
def test_an_update_counts_the_new_size_and_tells_whether_something_became_free(cpu: str, freed: bool) -> None:
    made = totals(machine("a", "8"))
    assert made.apply(Change(machine("a", "8"), machine("a", cpu, generation=2))) is freed
    assert made.used["cpu"] == nanos(f"cpu={cpu}")["cpu"]


def test_what_is_seen_is_told_with_its_generation_and_what_is_gone_is_remembered() -> None:
    made = totals(machine("a", generation=3), machine("b"))
    made.apply(Change(machine("b"), None))
    assert made.seen(["a-uid", "b-uid", "c-uid"]) == {"a-uid": 3}
    assert made.gone(["a-uid", "b-uid", "c-uid"]) == {"b-uid"}


def test_what_a_backup_brought_back_is_not_gone() -> None:
    made = totals(machine("a"))
    made.apply(Change(machine("a"), None))
    made.apply(Change(None, machine("a")))
    assert made.seen(["a-uid"]) == {"a-uid": 1}
    assert made.gone(["a-uid"]) == set()


def test_an_object_made_again_under_its_name_is_another_one() -> None:
    made = totals(machine("a", uid="first"))
    made.apply(Change(machine("a", uid="first"), None))
    made.apply(Change(None, machine("a", uid="second")))
    assert made.used["machines"] == UNIT
    assert made.seen(["first", "second"]) == {"second": 1}
    assert made.gone(["first", "second"]) == {"first"}


def test_deletions_are_not_remembered_for_ever() -> None:
    made = totals()
    made._remembered = 2
    for name in "abc":
        made.apply(Change(machine(name), None))
    assert made.gone(["a-uid", "b-uid", "c-uid"]) == {"b-uid", "c-uid"}


def test_a_machine_that_was_never_sized_counts_as_a_machine_and_is_named_with_the_reason() -> None:
    made = totals(machine("a"), machine("b", None))
    assert made.used == nanos("cpu=8,memory=16Gi,storage=50Gi,machines=2")
    assert made.unsized().counts == {"NotSized": 1}
    (text,) = made.unsized().named
    assert text.startswith('ns/b: cannot size machine: cloudProvider "unheard-of" is not supported')


def test_a_machine_that_cannot_be_sized_any_more_keeps_its_last_known_size() -> None:
    made = totals(machine("a", "8"))
    assert not made.apply(Change(machine("a", "8"), machine("a", None, generation=2)))
    assert made.used["cpu"] == nanos("cpu=8")["cpu"]
    made.apply(Change(machine("a", None), machine("a", "2", generation=3)))
    assert made.used["cpu"] == nanos("cpu=2")["cpu"]
    assert made.unsized().count == 0
    made.apply(Change(machine("a", "2"), None))
    assert made.used == {}


def test_a_machine_of_which_something_unexpected_fails_stays_in_the_sum_as_it_was() -> None:
    def size(found: Machine) -> Footprint:
        if found.metadata.generation == 2:
            raise ValueError("nobody expects this")
        return footprint(found)

    made = MachineTotals(size=size)
    versions = [machine("a", "8", generation=generation) for generation in (1, 2, 3)]
    made.apply(Change(None, versions[0]))
    with pytest.raises(ValueError, match="nobody"):
        made.apply(Change(versions[0], versions[1]))
    assert (made.used["cpu"], len(made)) == (nanos("cpu=8")["cpu"], 1)
    made.apply(Change(versions[1], versions[2]))
    assert made.used["cpu"] == nanos("cpu=8")["cpu"], "it counts once"


def test_a_new_connection_knows_the_sizes_of_the_one_before_but_counts_only_what_it_lists() -> None:
    before = totals(machine("a", "8"), machine("b", "8"))
    after = MachineTotals(before)
    assert after.used == {}
    after.apply(Change(None, machine("a", None, generation=2)))
    assert after.used == nanos("cpu=8,memory=16Gi,storage=50Gi,machines=1")


def test_only_a_few_of_many_unsized_machines_are_named() -> None:
    made = totals(*(machine(f"m{number}", None) for number in range(100)))
    assert made.unsized().count == 100
    assert len(made.unsized().named) == MAX_UNSIZED_NAMED


def test_the_sum_is_that_of_its_machines_whatever_the_order_of_changes() -> None:
    made = MachineTotals()
    there: dict[str, Machine] = {}
    for step in range(500):
        name = f"m{step * 7919 % 23}"
        old = there.pop(name, None)
        new = None if step % 5 == 0 else machine(name, str(step % 11 + 1), generation=step)
        if new is not None:
            there[name] = new
        made.apply(Change(old, new))
        assert made.used == totals(*there.values()).used
        assert resources.at_least_zero(made.used) == made.used


def test_a_machine_with_too_many_names_is_counted_by_some_and_named() -> None:
    found = machine("a")
    value = json.loads(bytes(found.spec.provider_spec))
    value["value"]["cloudProviderSpec"].update({f"example.com/device-{number}": 1 for number in range(81)})
    many = msgspec.structs.replace(found, spec=MachineSpec(provider_spec=msgspec.Raw(json.dumps(value).encode())))
    made = totals(many, machine("b"))
    assert len(made.used) == 4 + MAX_DEVICES
    assert made.used["cpu"] == nanos("cpu=16")["cpu"]
    assert made.unsized().counts == {"NotSized": 1}
    assert made.unsized().named == ["ns/a: cannot size machine: fake takes more than 16 kinds of devices: take fewer"]
    made.apply(Change(many, None))
    assert made.used == nanos("cpu=8,memory=16Gi,storage=50Gi,machines=1")
