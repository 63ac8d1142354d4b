"""Which scopes a quota may have, and what meets them. tests/integration/test_core_quotas.py asks real API servers."""

from __future__ import annotations

import pytest

from common.quota import scopes
from common.quota.scopes import ScopeRequirement, meets, problem, requirements


@pytest.mark.parametrize(
    ("operator", "values", "classes", "met"),
    [
        ("In", ("a", "b"), ("a",), True),
        ("In", ("a", "b"), ("c",), False),
        ("In", ("a",), (), False),
        ("In", ("a",), ("c", "a"), True),
        ("NotIn", ("a",), ("a",), False),
        ("NotIn", ("a",), ("b",), True),
        ("NotIn", ("a",), (), True),
        ("NotIn", ("a",), ("a", "b"), True),
        ("Exists", (), ("a",), True),
        ("Exists", (), (), False),
        ("DoesNotExist", (), (), True),
        ("DoesNotExist", (), ("a",), False),
        ("Other", (), (), False),
    ],
)
def test_classes_meet_a_requirement_as_labels_do(
    operator: str, values: tuple[str, ...], classes: tuple[str, ...], met: bool
) -> None:
    assert meets(ScopeRequirement(scopes.PRIORITY_CLASS, operator, values), classes) is met


def test_scopes_and_selector_are_one_list() -> None:
    selected = ScopeRequirement(scopes.PRIORITY_CLASS, "In", ("high",))
    assert requirements(["BestEffort"], [selected]) == (ScopeRequirement("BestEffort", "Exists"), selected)


@pytest.mark.parametrize(
    ("limited", "wanted", "text"),
    [
        (["pods", "requests.cpu"], [ScopeRequirement("Terminating")], ""),
        (["pods"], [ScopeRequirement("BestEffort")], ""),
        (["count/pods", "requests.example.com/gpu"], [ScopeRequirement("NotBestEffort")], ""),
        (["requests.storage"], [ScopeRequirement("VolumeAttributesClass", "In", ("fast",))], ""),
        (["cpu", "pods"], [ScopeRequirement("BestEffort")], "scope BestEffort cannot limit cpu"),
        (["services"], [ScopeRequirement("Terminating")], "scope Terminating cannot limit services"),
        (["ephemeral-storage"], [ScopeRequirement("Terminating")], "scope Terminating cannot limit ephemeral-storage"),
        (["count/services"], [ScopeRequirement("Terminating")], "scope Terminating cannot limit count/services"),
        (["pods"], [ScopeRequirement("VolumeAttributesClass")], "scope VolumeAttributesClass cannot limit pods"),
        (
            ["pods"],
            [ScopeRequirement("BestEffort"), ScopeRequirement("NotBestEffort")],
            "scopes BestEffort and NotBestEffort exclude each other",
        ),
        (["pods"], [ScopeRequirement("Later")], "scope 'Later' is not known"),
        (["pods"], [ScopeRequirement("PriorityClass", "Like")], "scope PriorityClass: operator 'Like' is not known"),
        (["pods"], [ScopeRequirement("PriorityClass", "In")], "scope PriorityClass: operator In needs values"),
        (
            ["pods"],
            [ScopeRequirement("PriorityClass", "Exists", ("high",))],
            "scope PriorityClass: operator Exists has no values",
        ),
        (["pods"], [ScopeRequirement("Terminating", "DoesNotExist")], "scope Terminating: the operator must be Exists"),
    ],
)
def test_scopes_that_cannot_be_say_why(limited: list[str], wanted: list[ScopeRequirement], text: str) -> None:
    assert problem(limited, wanted) == text
