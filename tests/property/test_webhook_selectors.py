"""An API server asks once about each creation that some quota counts, and about no other."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from common.api import label_selector
from common.api.label_selector import LabelRequirement, LabelSelector
from common.api.types import ResourceQuota
from seed.kinds.namespaces.configuration import desired, limits_of
from seed.model.quota import Quota, parse_quota
from seed.model.selected_namespaces import METADATA_NAME, Exempt, picks
from seed.registration.configuration import WebhookServer
from seed.registration.disjoint_selectors import region, requirements_of

EXEMPT = Exempt(frozenset({"system"}))
KEYS = {"a": ["x", "y"], "b": ["x", "y"], METADATA_NAME: ["system", "web"]}
FIELDS = [f"sum.databases.{version}.example.com/spec.replicas" for version in ("v1", "v2")]
KINDS = ["pods", "secrets", "services", "count/databases.example.com", *FIELDS]
SERVER = WebhookServer(base_url="https://seed", token=lambda _kind: "t", ca_bundle=b"ca")


def labelled() -> list[dict[str, str]]:
    """Each namespace that there can be: names are always there."""
    found = []
    for values in product(*([None, *several] for several in KEYS.values())):
        labels = {key: value for key, value in zip(KEYS, values, strict=True) if value is not None}
        if METADATA_NAME in labels:
            found.append(labels)
    return found


def requirement(key: str) -> st.SearchStrategy[LabelRequirement]:
    some = st.lists(st.sampled_from(KEYS[key]), min_size=1, max_size=2, unique=True).map(tuple)
    valued = st.builds(LabelRequirement, st.just(key), st.sampled_from(["In", "NotIn"]), some)
    return valued | st.builds(LabelRequirement, st.just(key), st.sampled_from(["Exists", "DoesNotExist"]))


SELECTORS = st.builds(
    LabelSelector,
    match_labels=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), max_size=1),
    match_expressions=st.lists(st.sampled_from(list(KEYS)).flatmap(requirement), max_size=3).map(tuple),
)


def quota(selector: LabelSelector, kinds: set[str]) -> Quota:
    subject = {"kind": "namespaces", "selector": msgspec.to_builtins(selector)}
    body = {
        "metadata": {"name": "q", "uid": "copy", "labels": {"seedquota.io/uid": "u"}},
        "spec": {"subject": subject, "quota": dict.fromkeys(sorted(kinds), "1")},
    }
    found = parse_quota(msgspec.convert(body, ResourceQuota), in_cluster=True)
    assert found is not None
    return found


def picked(quota: Quota) -> LabelSelector:
    assert quota.selector is not None
    return quota.selector


def calls(quotas: list[Quota], labels: Mapping[str, str], exempt: Exempt) -> dict[tuple[str, str], int]:
    """By kind and operation, how many webhooks the API server calls."""
    found: dict[tuple[str, str], int] = {}
    limits = [limits_of(quota, picked(quota)) for quota in quotas]
    for webhook in desired(limits, SERVER, "c", exempt=exempt, shared=False).webhooks[:-1]:
        if not label_selector.matches(msgspec.convert(webhook["namespaceSelector"], LabelSelector), labels):
            continue
        for rule in webhook["rules"]:  # type: ignore[attr-defined]
            for resource, operation in product(rule["resources"], rule["operations"]):
                found[resource, operation] = found.get((resource, operation), 0) + 1
    return found


@given(st.lists(st.tuples(SELECTORS, st.sets(st.sampled_from(KINDS), min_size=1)), max_size=6), st.booleans())
@settings(max_examples=100, deadline=None)
def test_each_creation_that_a_quota_counts_is_asked_about_once(
    given: list[tuple[LabelSelector, set[str]]], unless_named: bool
) -> None:
    exempt = msgspec.structs.replace(EXEMPT, unless_named=unless_named)
    quotas = [quota(selector, kinds) for selector, kinds in given]
    for labels in labelled():
        selecting = [each for each in quotas if picks(picked(each), labels, exempt)]
        asked = (limits_of(each, picked(each)).asked for each in selecting)
        wanted = {(rule.resource, rule.operation) for each in asked for rule in each}
        assert calls(quotas, labels, exempt) == dict.fromkeys(wanted, 1)


@given(st.lists(st.sampled_from(list(KEYS)).flatmap(requirement), max_size=5))
def test_a_region_is_what_meets_all_that_it_is_made_of(given: list[LabelRequirement]) -> None:
    found = region(given)
    for labels in labelled():
        meets = label_selector.matches(LabelSelector(match_expressions=tuple(given)), labels)
        there = found is not None and label_selector.matches(LabelSelector(match_expressions=found), labels)
        assert meets == there
    if found is not None:
        assert region(requirements_of(LabelSelector(match_expressions=found))) == found
