"""Namespaces that a cluster needs to run are picked only by name."""

from __future__ import annotations

import pytest

from common.api.label_selector import LabelRequirement, LabelSelector
from seed.cache.selected import METADATA_NAME, picks

SYSTEM = {METADATA_NAME: "kube-system", "owner": "ann"}
WEB = {METADATA_NAME: "web", "owner": "ann"}


def named(*names: str, operator: str = "In") -> LabelSelector:
    return LabelSelector(match_expressions=(LabelRequirement(METADATA_NAME, operator, names),))


@pytest.mark.parametrize(
    ("selector", "web", "system"),
    [
        (LabelSelector(match_labels={"owner": "ann"}), True, False),
        (LabelSelector(match_labels={"owner": "bob"}), False, False),
        (LabelSelector(match_labels={METADATA_NAME: "kube-system"}), False, True),
        (named("kube-system", "web"), True, True),
        (named("web"), True, False),
        (named(operator="Exists"), True, False),
        (named("other", operator="NotIn"), True, False),
    ],
)
def test_a_protected_namespace_is_picked_where_the_selector_gives_its_name(
    selector: LabelSelector, web: bool, system: bool
) -> None:
    assert picks(selector, WEB, ["kube-system"]) == web
    assert picks(selector, SYSTEM, ["kube-system"]) == system
