"""What a UserCluster says of itself while little is known of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.api.types import Condition, UserCluster
from seed.controllers.user_cluster_conditions import copied, enforced_in_namespaces, judge, own_conditions
from seed.kinds.machines.totals import Unsized
from seed.registration.health import Proof
from seed.sizing.stamp_audit import Drift
from seed.usage.source import Problem
from seed.usage.unadmitted import ALARM_SECONDS, Unadmitted

CLUSTER = msgspec.convert({"metadata": {"name": "c1", "namespace": "alpha"}, "spec": {"project": "alpha"}}, UserCluster)
ALL_SIZED = Unsized({})
IN_PLACE: Any = SimpleNamespace(in_place=True, error=None, contested=False, wanted=lambda: True)
CONTESTED: Any = SimpleNamespace(in_place=True, error=None, contested=True, wanted=lambda: True)
WITHDRAWN: Any = SimpleNamespace(in_place=True, error=None, contested=True, wanted=lambda: False)


def conditions(
    source: SimpleNamespace,
    unsized: Unsized = ALL_SIZED,
    proof: Proof | None = None,
    *,
    unadmitted: Unadmitted | None = None,
    keeper: Any = IN_PLACE,
) -> dict[str, Condition]:
    totals = SimpleNamespace(unadmitted=unadmitted if unadmitted is not None else Unadmitted())
    found: Any = SimpleNamespace(drift=Drift(), totals=totals, **vars(source))
    return {each.type: each for each in judge(CLUSTER, found, keeper, proof, unsized)}


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


FOLLOWED = SimpleNamespace(problem=None, current=True, counted=True)
DENIED = Proof(True, "CanaryDenied", "")


def test_nothing_is_enforced_where_the_webhooks_are_withdrawn_whatever_was_proven() -> None:
    found = conditions(FOLLOWED, proof=DENIED, keeper=WITHDRAWN)
    for kind in ("Enforced", "Ready"):
        assert (found[kind].status, found[kind].reason) == ("False", "Uninstalled")


def test_machines_that_nobody_admitted_are_an_alarm_and_then_a_remark() -> None:
    unadmitted = Unadmitted()
    for uid in ("u1", "u2"):
        unadmitted.appeared(uid, f"kube-system/{uid}")
    unadmitted.judge(["u1", "u2"], sure=True)
    found = conditions(FOLLOWED, proof=DENIED, unadmitted=unadmitted)
    text = "2 machines were created past the webhook and never admitted, but counted: kube-system/u1, kube-system/u2"
    assert (found["Enforced"].status, found["Enforced"].reason) == ("False", "UsageNotAdmitted")
    assert found["Enforced"].message == text
    assert found["Ready"].status == "False"

    unadmitted.found_at -= ALARM_SECONDS
    found = conditions(FOLLOWED, proof=DENIED, unadmitted=unadmitted)
    assert (found["Enforced"].status, found["Enforced"].reason) == ("True", "CanaryDenied")
    assert found["Enforced"].message == text

    unadmitted.gone("u1")
    unadmitted.gone("u2")
    assert conditions(FOLLOWED, proof=DENIED, unadmitted=unadmitted)["Enforced"].message == ""


def test_what_is_wrong_now_comes_before_what_was_not_admitted() -> None:
    unadmitted = Unadmitted()
    unadmitted.appeared("u1", "kube-system/m")
    unadmitted.judge(["u1"], sure=True)
    admitted = Proof(False, "CanaryAdmitted", "a dry run was admitted")
    assert conditions(FOLLOWED, proof=admitted, unadmitted=unadmitted)["Enforced"].reason == "CanaryAdmitted"
    found = conditions(FOLLOWED, proof=DENIED, unadmitted=unadmitted, keeper=CONTESTED)["Enforced"]
    assert (found.status, found.reason) == ("False", "WebhookContested")
    assert found.message.endswith(
        "1 machine was created past the webhook and never admitted, but counted: kube-system/m"
    )


def test_an_api_that_the_tenant_serves_is_not_enforced() -> None:
    problem = Problem("APITakenOver", "the last count stays")
    found = conditions(SimpleNamespace(problem=problem, current=False, counted=True), proof=DENIED)
    for kind in ("Ready", "UsageCurrent", "Enforced"):
        assert (found[kind].status, found[kind].reason) == ("False", "APITakenOver")


REACHED = {"problem": None, "current": True, "counted": True, "on_seed": False}
AWAY = {"problem": Problem("Unreachable", "nobody listens"), "current": False, "counted": True, "on_seed": False}


@pytest.mark.parametrize(
    ("source", "written", "expected"),
    [
        (REACHED, True, ("True", "Written", "")),
        (REACHED, False, ("False", "NotWritten", "no right")),
        (REACHED, None, ("Unknown", "Connecting", "nothing was written through the present connection yet")),
        (AWAY, None, ("Unknown", "Unreachable", "nothing was written through the present connection yet")),
        ({**REACHED, "on_seed": True}, True, None),
    ],
)
def test_whether_the_local_quotas_are_written_is_said_where_there_is_a_user_cluster(
    source: dict[str, Any], written: bool | None, expected: tuple[str, str, str] | None
) -> None:
    of: Any = SimpleNamespace(drift=Drift(), totals=SimpleNamespace(unadmitted=Unadmitted()), **source)
    copies: Any = SimpleNamespace(written=written, problem="no right") if written is not None else None
    found = copied(of, copies)
    assert (found and (found.status, found.reason, found.message)) == expected
    if found is not None and source is REACHED:
        judged = judge(CLUSTER, of, IN_PLACE, None, ALL_SIZED, copies=found)
        assert judged[-1].type == "LocalQuotasWritten"
        assert (judged[0].type, judged[0].status) == ("Ready", "True"), "it is no part of Ready"


def test_what_cannot_be_written_in_namespaces_is_said_beside_what_can() -> None:
    in_namespaces: Any = SimpleNamespace(written=False, problem="no right")
    written: Any = SimpleNamespace(written=True, problem="")
    source: Any = SimpleNamespace(**REACHED)
    found = copied(source, written, in_namespaces)
    assert found is not None
    assert (found.status, found.message) == ("False", "in namespaces: no right")
    in_namespaces.written = None
    found = copied(source, written, in_namespaces)
    assert found is not None and found.status == "True", "no quota selects a namespace there"


@pytest.mark.parametrize(
    ("proof", "status", "ready"),
    [
        (Proof(True, "CanaryDenied"), "True", "True"),
        (Proof(None, "NotProven", "not yet"), "Unknown", "True"),
        (Proof(False, "WebhookMissing", "no right"), "False", "False"),
        (None, "Unknown", "True"),
    ],
)
def test_a_cluster_whose_namespaces_are_not_checked_is_not_ready(proof: Proof | None, status: str, ready: str) -> None:
    source: Any = SimpleNamespace(drift=Drift(), totals=SimpleNamespace(unadmitted=Unadmitted()), **REACHED)
    judged = judge(CLUSTER, source, IN_PLACE, DENIED, ALL_SIZED, in_namespaces=enforced_in_namespaces(source, proof))
    found = {each.type: each for each in judged}
    assert (found["NamespacesEnforced"].status, found["Ready"].status) == (status, ready)
    assert found["Enforced"].status == "True", "Machines are"


def test_a_seed_says_it_of_its_own_namespaces_where_quotas_limit_something_there() -> None:
    copies: Any = SimpleNamespace(written=True, problem="")
    assert own_conditions(None, copies) == []
    found = own_conditions(Proof(True, "CanaryDenied"), copies)
    assert [(each.type, each.status) for each in found] == [
        ("NamespacesEnforced", "True"),
        ("LocalQuotasWritten", "True"),
    ]
    copies.written = None
    assert [each.type for each in own_conditions(Proof(False, "NotServing"), copies)] == ["NamespacesEnforced"]
