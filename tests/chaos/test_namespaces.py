"""What surely counts of pods and core ResourceQuotas in namespaces whose labels move."""

from __future__ import annotations

import msgspec
import pytest

from common.quota import resources
from tests.chaos.namespaces import (
    ANN,
    BEHIND,
    BOB,
    CAT,
    Membership,
    NamespaceHoldings,
    NamespaceQuota,
    Pod,
    body,
    decoder_of,
    room,
    size_of_quota,
)
from tests.chaos.truth import Thing
from tests.clock import Clock


class Counted:
    """What is surely in user-1 of one quota."""

    def __init__(self, quota: NamespaceQuota) -> None:
        self.quota = quota
        self.clock = Clock()
        self.membership = Membership(self.clock)
        self.held = NamespaceHoldings(lambda: None, quota, "user-1", self.membership, self.clock)
        self._version = 0

    def make(self, name: str, namespace: str, cpu: str = "1") -> Thing:
        self.membership.sends(name)
        return self.show(name, namespace, cpu)

    def show(self, name: str, namespace: str, cpu: str, **metadata: str) -> Thing:
        self._version += 1
        wanted = body(self.quota, name, cpu)
        place = {"name": name, "uid": name, "namespace": namespace, "resourceVersion": str(self._version), **metadata}
        encoded = decoder_of(self.quota)
        thing: Thing = encoded.decode(msgspec.json.encode({**wanted, "metadata": place}))
        self.held.seen(thing)
        return thing

    @property
    def sum(self) -> str:
        return resources.text({name: amount for name, amount in self.held.sum.items() if amount})


def test_a_pod_in_a_namespace_that_stays_counts_until_its_deletion_is_sent() -> None:
    counted = Counted(ANN)
    counted.membership.made("user-1", "ann-1")
    assert isinstance(counted.make("p", "ann-1", "2"), Pod)
    assert counted.sum == "pods=1,requests.cpu=2"
    counted.held.deleting("p")
    assert counted.sum == ""


def test_a_pod_whose_deletion_stopped_half_way_counts_nothing() -> None:
    """Who deletes it gives up after the API server's first write: it stays, and core counts it no more."""
    counted = Counted(ANN)
    counted.membership.made("user-1", "ann-1")
    counted.make("p", "ann-1", "2")
    counted.show("p", "ann-1", "2", deletionTimestamp="2026-11-20T10:00:00Z")
    assert counted.sum == ""


def test_what_came_in_with_its_namespace_was_not_admitted() -> None:
    counted = Counted(BOB)
    counted.make("before", "bob-1")
    counted.membership.enters("user-1", "bob-1")
    counted.clock.now += BEHIND - 1
    counted.make("soon", "bob-1")
    counted.clock.now += 1
    counted.make("later", "bob-1")
    assert counted.held.sum["pods"] == resources.parse({"pods": "1"})["pods"]
    counted.membership.leaves("user-1", "bob-1")
    counted.held.look()
    assert counted.sum == ""
    counted.membership.enters("user-1", "bob-1")
    counted.held.look()
    assert counted.sum == "", "it came in once more, with all that it has"


def test_a_namespace_promises_its_largest_and_an_update_under_way_counts_with_the_smaller() -> None:
    counted = Counted(CAT)
    for namespace in ("cat-1", "cat-2"):
        counted.membership.made("user-1", namespace)
    counted.make("a", "cat-1", "5")
    counted.make("b", "cat-1", "3")
    counted.make("c", "cat-2", "4")
    assert counted.sum == "requests.cpu=9"
    counted.held.updating("a", size_of_quota("1"))
    assert counted.sum == "requests.cpu=7"
    counted.show("a", "cat-1", "1")
    counted.held.answered("a", size_of_quota("1"))
    assert counted.sum == "requests.cpu=7"


@pytest.mark.parametrize(("used", "left"), [({"pods": "23", "requests.cpu": "10"}, 1), ({"requests.cpu": "32"}, 0)])
def test_room_is_what_every_resource_leaves(used: dict[str, str], left: int) -> None:
    assert room(ANN, {**dict.fromkeys(ANN.limit.amounts, 0), **resources.parse(used)}) == left
