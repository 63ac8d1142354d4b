"""Namespaces that a cluster needs to run are exempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.api.label_selector import LabelRequirement, LabelSelector
from seed.model.selected_namespaces import METADATA_NAME, OF_USER_CLUSTERS, ByLabel, Exempt, picks

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
def test_an_exempt_namespace_is_picked_in_a_user_cluster_alone_and_by_its_name(
    selector: LabelSelector, web: bool, system: bool
) -> None:
    assert picks(selector, WEB, OF_USER_CLUSTERS) == web
    assert picks(selector, SYSTEM, OF_USER_CLUSTERS) == system
    on_the_seed = Exempt(frozenset({"kube-system", "cni"}))
    assert picks(selector, WEB, on_the_seed) == web
    assert not picks(selector, SYSTEM, on_the_seed), "no quota keeps the seed from starting, whatever it names"


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))
SELECTORS = st.builds(
    LabelSelector,
    match_labels=LABELS,
    match_expressions=st.lists(
        st.builds(LabelRequirement, st.sampled_from("abc"), st.sampled_from(("In", "NotIn")), st.just(("x",))),
        max_size=1,
    ).map(tuple),
)


@given(st.lists(SELECTORS, max_size=6), LABELS)
def test_what_picks_a_namespace_is_among_its_candidates_once(selectors: list[LabelSelector], labels: dict) -> None:
    named = {str(number): selector for number, selector in enumerate(selectors)}
    found = ByLabel(named.items()).candidates(labels)
    assert len(found) == len(set(found))
    assert {name for name, selector in named.items() if picks(selector, labels, Exempt())} <= set(found)


def test_selectors_of_other_owners_are_not_looked_at() -> None:
    owners = {f"owner-{number}": LabelSelector(match_labels={"owner": str(number)}) for number in range(1000)}
    assert ByLabel(owners.items()).candidates({"owner": "7", "team": "a"}) == ["owner-7"]
