"""What Allocations take, what a restore leaves too many of, and what is still free."""

from __future__ import annotations

import msgspec
import pytest

from common.quota import resources
from tests.chaos.allocations import Allocation, AllocationHoldings, Reply, Resource, decoder, excess, room, size_of
from tests.chaos.quotas import QUOTAS


def allocation(name: str, project: str, *taken: Resource, version: int = 1) -> Allocation:
    content = {"project": project, "resources": msgspec.to_builtins(taken)}
    metadata = {"name": name, "uid": name, "resourceVersion": str(version)}
    return decoder.decode(msgspec.json.encode({"metadata": metadata, "spec": content}))


def amounts(**counts: int) -> dict[str, int]:
    return resources.parse({"servers": "0", "gpus": "0"} | {name: str(count) for name, count in counts.items()})


def test_a_project_counts_its_own_committed_and_reserved() -> None:
    held = AllocationHoldings(lambda: None, "alpha")
    held.listed([allocation("a", "alpha", Resource("servers", 2, 3)), allocation("b", "beta", Resource("gpus", 1))], 9)
    assert held.sum == amounts(servers=5)
    assert held.names() == ["a"]


def test_what_is_too_much_for_a_project_or_for_the_organization_has_to_go() -> None:
    there = {
        "alpha": {"a": amounts(servers=18), "b": amounts(servers=3), "c": amounts(servers=2, gpus=10)},
        "beta": {"d": amounts(servers=9), "e": amounts(servers=8), "f": amounts(gpus=11), "g": amounts(gpus=10)},
    }
    assert excess(there) == [("alpha", "b"), ("beta", "d"), ("beta", "f")]


def test_room_is_what_any_project_can_still_allocate() -> None:
    free = {quota.name: {**quota.limit.amounts, "cpu": 0} for quota in QUOTAS}
    assert room(free) == 28 + 20
    free["org-acme"] |= amounts(servers=3)
    free["project-alpha"] |= amounts(servers=1)
    assert room(free) == 3, "beta has no limit of servers"
    free["org-acme"] |= amounts(servers=-2)
    assert room(free) == 0, "a restore may bring back more than the limit"


@pytest.mark.parametrize(
    ("reply", "kind", "decided"),
    [
        (Reply(201), "admitted", True),
        (Reply(409, b'{"code": "quota_exceeded"}'), "refused 409", True),
        (Reply(409, b'{"code": "contended"}'), "came to nothing", False),
        (Reply(409, b'{"code": "id_conflict"}'), "unexpected", True),
        (Reply(404), "came to nothing", True),
        (Reply(503, b'{"code": "unavailable"}'), "no decision", False),
        (Reply(0, error="TimeoutError"), "no decision", False),
        (Reply(500, b'{"code": "failed"}'), "unexpected", True),
    ],
)
def test_what_became_of_a_request(reply: Reply, kind: str, decided: bool) -> None:
    assert (reply.kind, reply.decided) == (kind, decided)


def test_a_refusal_has_numbers_that_add_up() -> None:
    short = b'{"code": "quota_exceeded", "shortages": [{"type": "servers", "requested": 3, "free": %d}]}'
    assert Reply(409, short % 2).problem.adds_up
    assert not Reply(409, short % 3).problem.adds_up
    assert size_of([Resource("servers", 1), Resource("gpus", 0, 2)]).amounts == amounts(servers=1, gpus=2)
