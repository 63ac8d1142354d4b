"""What a UserCluster says of itself while little is known of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from common.api.types import Condition, UserCluster
from seed.controllers.user_cluster_conditions import judge
from seed.registration.health import Proof
from seed.sizing.stamp_audit import Drift
from seed.usage.machine_totals import Unsized
from seed.usage.source import Problem

CLUSTER = msgspec.convert({"metadata": {"name": "c1", "namespace": "alpha"}, "spec": {"project": "alpha"}}, UserCluster)
ALL_SIZED = Unsized({})
IN_PLACE: Any = SimpleNamespace(in_place=True, error=None)


def conditions(
    source: SimpleNamespace, unsized: Unsized = ALL_SIZED, proof: Proof | None = None
) -> dict[str, Condition]:
    found: Any = SimpleNamespace(drift=Drift(), **vars(source))
    return {each.type: each for each in judge(CLUSTER, found, IN_PLACE, proof, unsized)}


def test_of_a_cluster_that_was_never_reached_nothing_is_said_to_be_right() -> None:
    problem = Problem("Unreachable", "nobody listens")
    found = conditions(SimpleNamespace(problem=problem, current=False, counted=False))
    assert {kind: (each.status, each.reason) for kind, each in found.items()} == {
        "Ready": ("False", "Unreachable"),
        "UsageCurrent": ("False", "Unreachable"),
        "Enforced": ("Unknown", "Unreachable"),
        "MachinesSized": ("Unknown", "Unreachable"),
        "StampsCurrent": ("Unknown", "Unreachable"),
        "ProjectKnown": ("True", "ProjectFound"),
    }


def test_what_was_listed_once_stays_sized_while_the_cluster_is_away() -> None:
    problem = Problem("Unreachable", "nobody listens")
    found = conditions(SimpleNamespace(problem=problem, current=False, counted=True))
    assert (found["MachinesSized"].status, found["StampsCurrent"].status) == ("True", "True")


def test_one_machine_is_no_machines() -> None:
    source = SimpleNamespace(problem=None, current=True, counted=True)
    one, two = (conditions(source, Unsized({"NotSized": number}, ["kube-system/m: ..."])) for number in (1, 2))
    assert one["MachinesSized"].message.startswith("1 machine: ")
    assert two["MachinesSized"].message.startswith("2 machines: ")


def test_ready_is_no_contradiction_to_enforced() -> None:
    source = SimpleNamespace(problem=None, current=True, counted=True)
    found = conditions(source, proof=Proof(False, "CanaryAdmitted", "a dry run was admitted"))
    assert (found["Enforced"].status, found["Enforced"].reason) == ("False", "CanaryAdmitted")
    assert (found["Ready"].status, found["Ready"].reason) == ("False", "CanaryAdmitted")
    assert found["Ready"].message == "Enforced: a dry run was admitted"
