"""What stays counted of Machines whose sizes a new leader does not know."""

from __future__ import annotations

from functools import partial

import msgspec

from common.kube.client.meta import ObjectMeta
from common.kube.client.resource import Broken
from common.kube.controller.store import Change
from common.quota.account import Reservation
from seed.kinds.machines.totals import MachineTotals
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.evaluators.pods import EVALUATOR, Pod
from seed.kinds.namespaces.kind_informer import Unread
from seed.kinds.namespaces.totals import ObjectTotals
from seed.machines.machine_controller import unread
from seed.usage import unsized
from tests.unit.seed.kinds.machines.test_totals import machine
from tests.unit.seed_world import nanos

first, then = partial(unsized.first, ahead={}), partial(unsized.then, ahead={})
PLAIN = "memory=16Gi,storage=50Gi"  # what each sized Machine has beside its cpu


def totals(before: MachineTotals | None = None, **cpus: str | None) -> MachineTotals:
    made = MachineTotals(before)
    for name, cpu in cpus.items():
        made.apply(Change(None, machine(name, cpu)))
    return made


def reserved(cpu: str, generation: int = 0, **more: str) -> Reservation:
    amount = nanos(f"cpu={cpu},machines=1") if not generation else nanos(f"cpu={cpu}")
    return Reservation(source="alpha/c1", object="ns/any", amount=amount, generation=generation, **more)


def cpu(rest: unsized.Rest, sum_: MachineTotals, reservations: dict[str, Reservation] | None = None) -> tuple[int, int]:
    """The cpus and the Machines that count."""
    used = unsized.used(rest, reservations or {}, sum_)
    return used.get("cpu", 0) // nanos("cpu=1")["cpu"], used.get("machines", 0) // nanos("machines=1")["machines"]


def test_what_was_counted_stays_until_the_last_unsized_machine_is_gone() -> None:
    present = totals(a=None, b=None, sized="8")
    rest = first(nanos("cpu=40,machines=3"), {}, present)
    assert cpu(rest, present) == (40, 3)
    present.apply(Change(machine("a", None), None))
    rest = then(rest, {}, present)
    assert cpu(rest, present) == (40, 3), "nobody knows how much of it was its own"
    present.apply(Change(machine("b", None), None))
    rest = then(rest, {}, present)
    assert cpu(rest, present) == (8, 1)


def test_sized_machines_come_and_go_beside_it() -> None:
    present = totals(a=None, sized="8")
    rest = first(nanos("cpu=40,machines=2"), {}, present)
    present.apply(Change(None, machine("new", "4")))
    rest = then(rest, {}, present)
    assert cpu(rest, present) == (44, 3)
    present.apply(Change(machine("sized", "8"), None))
    rest = then(rest, {}, present)
    assert cpu(rest, present) == (36, 2)


def test_one_that_is_sized_later_takes_its_own_part_out() -> None:
    present = totals(a=None, b=None)
    rest = first(nanos("cpu=40,machines=2"), {}, present)
    present.apply(Change(machine("a", None), machine("a", "16")))
    rest = then(rest, {}, present)
    assert cpu(rest, present) == (40, 2)
    present.apply(Change(machine("b", None), machine("b", "20")))
    rest = then(rest, {}, present)
    assert cpu(rest, present) == (36, 2), "what was there beside them has gone, as is known only now"


def test_what_is_reserved_was_not_counted_before() -> None:
    present = totals(a=None, new="8", updated="12")
    reservations = {"new-uid": reserved("8"), "updated-uid": reserved("4", generation=1)}
    rest = first(nanos("cpu=40,machines=2"), reservations, present)  # a: 32, updated: 8
    assert cpu(rest, present, reservations) == (52, 3)


def test_what_is_on_surge_was_not_counted_before() -> None:
    present = totals(a=None, lent="8")
    lent = Reservation(source="alpha/c1", object="ns/lent", amount=nanos("surge.cpu=8"), replaces="old-uid")
    rest = first(nanos("cpu=40,machines=1"), {"lent-uid": lent}, present)
    assert cpu(rest, present) == (48, 2)


def test_one_that_is_reserved_for_and_not_sized_is_held_by_its_reservation_alone() -> None:
    present = totals(a=None, new=None)
    reservations = {"new-uid": reserved("8")}
    rest = first(nanos("cpu=40,machines=1"), reservations, present)
    assert rest.uids == {"a-uid"}
    assert cpu(rest, present, reservations) == (40, 1)
    assert present.seen(reservations) == {}


def test_what_a_replica_admitted_from_its_block_and_has_not_named_was_not_counted_before() -> None:
    present = totals(a=None, ahead="8")
    block = nanos("cpu=8,machines=1")
    rest = unsized.first(nanos("cpu=40,machines=1"), {}, present, ahead=block)
    assert cpu(rest, present) == (48, 2)
    rest = then(rest, {"ahead-uid": reserved("8", late=True)}, present)
    assert cpu(rest, present) == (48, 2), "its name changes nothing"


def test_one_that_is_sized_before_a_replica_has_named_it_takes_nothing_out() -> None:
    present = totals(a=None, ahead=None)
    block = nanos("cpu=8,machines=1")
    rest = unsized.first(nanos("cpu=40,machines=1"), {}, present, ahead=block)
    present.apply(Change(machine("ahead", None), machine("ahead", "8")))
    rest = unsized.then(rest, {}, present, ahead=block)
    assert cpu(rest, present) == (48, 2)


def test_an_account_that_never_counted_the_source_has_nothing_to_keep() -> None:
    present = totals(a=None, sized="8")
    assert cpu(first({}, {}, present), present) == (8, 2)


def test_what_was_admitted_in_a_resource_that_others_have_more_of_is_never_below_nothing() -> None:
    present = totals(a=None, sized="64")
    rest = first(nanos("cpu=40,machines=2"), {}, present)
    assert cpu(rest, present) == (64, 2)
    present.apply(Change(machine("sized", "64"), None))
    assert cpu(then(rest, {}, present), present) == (0, 1)


def test_a_new_connection_changes_nothing() -> None:
    before = totals(a=None, b="8")
    rest = first(nanos("cpu=40,machines=2"), {}, before)
    after = totals(before, a=None, b=None)  # which is known from before
    assert after.line is before.line
    assert cpu(then(rest, {}, after), after) == (40, 2)


def test_a_new_leader_keeps_what_it_cannot_read() -> None:
    """Whoever makes a Machine unreadable gets nothing by a change of the leader."""
    present = totals(sized="8")
    unreadable = unread(Broken("ns/a", "a-uid", "7", "its status is no object"))
    present.apply(Change(None, unreadable))
    rest = first(nanos("cpu=40,machines=2"), {}, present)
    assert cpu(rest, present) == (40, 2)
    present.apply(Change(unreadable, machine("a", "16")))
    assert cpu(then(rest, {}, present), present) == (24, 2)


def pod(name: str, cpus: str) -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpus}}}
    metadata = {"name": name, "namespace": "web", "uid": f"{name}-uid", "resourceVersion": "7"}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [container]}}, Pod)


def test_a_new_leader_keeps_what_it_cannot_read_in_namespaces() -> None:
    present = ObjectTotals(Terms(limited=frozenset({"pods", "requests.cpu"})))
    present.put(EVALUATOR, pod("sized", "2"), 0.0)
    present.put_unread(Unread(metadata=ObjectMeta(name="a", namespace="web", uid="a-uid")))
    rest = first(nanos("requests.cpu=9,pods=3"), {}, present)
    assert unsized.used(rest, {}, present) == nanos("requests.cpu=9,pods=3")
    assert present.seen(["a-uid", "sized-uid"]) == {"sized-uid": 7} and present.by_namespace.keys() == {"web"}
    present.put(EVALUATOR, pod("a", "4"), 0.0)
    rest = then(rest, {}, present)
    assert unsized.used(rest, {}, present) == nanos("requests.cpu=6,pods=2")
    assert present.remove("a-uid") and not present.guessed
    assert unsized.used(then(rest, {}, present), {}, present) == nanos("requests.cpu=2,pods=1")
