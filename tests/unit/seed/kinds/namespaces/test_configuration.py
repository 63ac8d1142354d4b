"""What a cluster is made to ask about objects in namespaces."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.api.types import ResourceQuota
from seed.kinds.namespaces.configuration import (
    MAX_READ,
    MAX_WEBHOOKS,
    READ_OF_UPDATES,
    desired,
    limits_of,
    sample_of,
)
from seed.kinds.namespaces.evaluators.persistent_volume_claims import ClaimSpec
from seed.kinds.namespaces.evaluators.resource_claims import ClaimSpec as DeviceClaimSpec
from seed.kinds.namespaces.evaluators.services import ServiceSpec
from seed.model.quota import Quota, parse_quota
from seed.model.selected_namespaces import OF_USER_CLUSTERS, Exempt
from seed.registration.configuration import WebhookConfiguration, WebhookServer

ANN = {"matchLabels": {"owner": "ann"}}
NOT_SYSTEM = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}


def quota(selector: dict, limits: str = "pods", **spec: object) -> Quota:
    body = {
        "metadata": {"name": "q", "uid": "copy", "labels": {"seedquota.io/uid": "u"}},
        "spec": {
            "subject": {"kind": "namespaces", "selector": selector},
            "quota": dict.fromkeys(limits.split(","), "1"),
            **spec,
        },
    }
    found = parse_quota(msgspec.convert(body, ResourceQuota), in_cluster=True)
    assert found is not None
    return found


def configured(
    *quotas: Quota,
    token: str = "t",
    break_glass_group: str = "sre",
    exempt: Exempt = OF_USER_CLUSTERS,
    shared: bool = False,
) -> WebhookConfiguration:
    server = WebhookServer(
        base_url="https://seed", token=lambda _kind: token, ca_bundle=b"ca", break_glass_group=break_glass_group
    )
    limits = [limits_of(quota, quota.selector) for quota in quotas if quota.selector is not None]
    return desired(limits, server, "u", exempt=exempt, shared=shared)


def asked(configuration: WebhookConfiguration) -> list[tuple[Any, list[tuple[str, list[str], list[str]]]]]:
    """By selector: group, resources, operations."""
    return [
        (
            webhook["namespaceSelector"],
            [(rule["apiGroups"][0], rule["resources"], rule["operations"]) for rule in webhook["rules"]],  # type: ignore[attr-defined]
        )
        for webhook in configuration.webhooks[:-1]
    ]


def test_only_what_is_limited_is_asked_about() -> None:
    limits = "requests.cpu,services.nodeports,count/deployments.apps,configmaps,requests.storage"
    (selector, rules), (same_selector, updates) = asked(configured(quota(ANN, limits)))
    expressions = [{"key": "owner", "operator": "In", "values": ["ann"]}, NOT_SYSTEM]
    assert selector == {"matchExpressions": expressions}
    assert rules == [
        ("", ["configmaps", "persistentvolumeclaims", "pods", "services"], ["CREATE"]),
        ("", ["pods/resize"], ["UPDATE"]),
        ("apps", ["deployments"], ["CREATE"]),
    ]
    assert same_selector == selector
    assert updates == [("", ["persistentvolumeclaims", "services"], ["UPDATE"])]


def test_no_condition_is_evaluated_of_what_is_created() -> None:
    creating, updating, _canary = configured(quota(ANN, "services"), break_glass_group="").webhooks
    assert "matchConditions" not in creating
    conditions = updating["matchConditions"]
    assert isinstance(conditions, list) and [condition["name"] for condition in conditions] == ["changes-use"]


def test_updates_of_pods_are_asked_about_only_where_a_deadline_decides_who_counts_them() -> None:
    (_, created), (_, updated) = asked(configured(quota(ANN, scopes=["NotTerminating"])))
    assert ("", ["pods"], ["CREATE"]) in created and ("", ["pods"], ["UPDATE"]) in updated


def test_the_updates_that_are_asked_about_are_all_that_evaluators_read() -> None:
    for spec in (ClaimSpec, DeviceClaimSpec, ServiceSpec):
        fields = {field.encode_name for field in msgspec.structs.fields(spec)}
        assert fields <= set(READ_OF_UPDATES), spec


FIELD = "sum.databases.v1.example.com/spec.replicas"


def rules(*quotas: Quota) -> list[tuple[list[str], list[str], list[str]]]:
    """Versions, resources and operations."""
    found = configured(*quotas).webhooks[:-1]
    return [
        (rule["apiVersions"], rule["resources"], rule["operations"])  # type: ignore[misc]
        for webhook in found
        for rule in webhook["rules"]  # type: ignore[attr-defined]
    ]


def test_fields_are_asked_for_in_their_version_and_what_scales_an_object_in_each() -> None:
    expected = [
        (["*"], ["databases/scale"], ["UPDATE"]),
        (["v1"], ["databases"], ["CREATE"]),
        (["v1"], ["databases"], ["UPDATE"]),
    ]
    assert rules(quota(ANN, FIELD)) == rules(quota(ANN, f"{FIELD},count/databases.example.com")) == expected


def test_updates_of_fields_are_asked_about() -> None:
    (condition,) = configured(quota(ANN, FIELD), break_glass_group="").webhooks[1]["matchConditions"]  # type: ignore[misc]
    assert "'replicas'" in condition["expression"]
    many = ",".join(f"sum.databases.v1.example.com/spec.f{number}" for number in range(MAX_READ + 1))
    assert "matchConditions" not in configured(quota(ANN, many), break_glass_group="").webhooks[1], "about all of them"


def test_a_quota_that_counts_another_field_is_proven_anew() -> None:
    one, other = quota(ANN, FIELD), quota(ANN, "sum.databases.v1.example.com/spec.size")
    assert one.selector is not None
    assert limits_of(one, one.selector) != limits_of(other, one.selector)
    assert sample_of(configured(one)) != sample_of(configured(other))


def test_nothing_is_asked_where_no_quota_counts() -> None:
    assert configured().webhooks == []
    assert sample_of(configured()) is None
    assert configured(quota(ANN, "nobody.counts")).webhooks == []


def test_quotas_of_one_label_that_ask_the_same_share_a_webhook_and_others_do_not() -> None:
    bob, eve = {"matchLabels": {"owner": "bob"}}, {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    found = asked(configured(quota(ANN), quota(bob), quota(eve), quota({"matchLabels": {"owner": "zoe"}}, "secrets")))
    values = [selector["matchExpressions"][0] for selector, _ in found]
    assert {"key": "owner", "operator": "In", "values": ["ann", "bob"]} in values
    assert {"key": "owner", "operator": "In", "values": ["zoe"]} in values
    assert {"key": "tier", "operator": "Exists"} in values
    assert len(found) == 3


def test_where_selectors_overlap_one_webhook_asks_about_one_object() -> None:
    """Of two calls about one creation, one may be refused and the other admitted by another replica."""
    shop = {"matchLabels": {"app": "shop"}}
    (first, pods), (second, rest), (both, more) = asked(configured(quota(shop), quota(ANN, "pods,secrets")))
    app, owner = (
        {"key": key, "operator": "In", "values": [value]} for key, value in (("app", "shop"), ("owner", "ann"))
    )
    assert first == {"matchExpressions": [app, NOT_SYSTEM]}
    assert second == {"matchExpressions": [owner, NOT_SYSTEM, {**app, "operator": "NotIn"}]}
    assert both == {"matchExpressions": [owner, NOT_SYSTEM, app]}
    assert [resources for _, resources, _ in (*pods, *rest, *more) if "/" not in resources[0]] == [
        ["pods"],
        ["pods", "secrets"],
        ["secrets"],
    ]


def test_of_what_is_in_no_selector_nothing_is_asked_while_few_selectors_overlap_in_many_ways() -> None:
    several = [
        "pods",
        "secrets",
        "services",
        "configmaps",
        "persistentvolumeclaims",
        "count/roles.rbac",
        "count/jobs.batch",
    ]
    limits = [",".join(several[: number + 1]) for number in range(len(several))]
    quotas = [quota({"matchLabels": {f"k{number}": "v"}}, some) for number, some in enumerate(limits)]
    found = asked(configured(*quotas))
    assert {rule[1][0] for _, rules in found for rule in rules} > {"configmaps", "roles"}
    assert all(any(each["operator"] == "In" for each in selector["matchExpressions"]) for selector, _ in found)


def test_more_selectors_than_an_api_server_should_evaluate_become_one_webhook() -> None:
    many = [
        quota({"matchExpressions": [{"key": f"k{number}", "operator": "Exists"}]}) for number in range(MAX_WEBHOOKS + 1)
    ]
    ((selector, rules),) = asked(configured(*many, quota(ANN, "secrets")))
    assert selector == {"matchExpressions": [NOT_SYSTEM]}
    assert ("", ["pods", "secrets"], ["CREATE"]) in rules


@pytest.mark.parametrize(
    ("selector", "is_excluded"),
    [
        ({"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}, False),
        (
            {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["kube-system"]}]},
            False,
        ),
        ({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]}, True),
        (ANN, True),
    ],
)
def test_kube_system_is_asked_about_only_where_a_selector_names_it(selector: dict, is_excluded: bool) -> None:
    ((found, _),) = asked(configured(quota(selector)))
    assert (NOT_SYSTEM in found["matchExpressions"]) == is_excluded


def test_no_quota_has_a_seed_ask_about_what_it_needs_to_start() -> None:
    exempt = Exempt(frozenset({"kube-system", "cni"}))
    name = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["cni"]}
    quotas = [
        quota({"matchExpressions": [name, {"key": f"k{number}", "operator": "Exists"}]})
        for number in range(MAX_WEBHOOKS + 1)
    ]
    assert asked(configured(quotas[0], exempt=exempt)) == []
    ((selector, _),) = asked(configured(*quotas, exempt=exempt))
    assert selector["matchExpressions"] == [{**NOT_SYSTEM, "values": ["cni", "kube-system"]}]


@pytest.mark.parametrize(
    ("selector", "same_as"),
    [
        ({"matchLabels": {"Owner Ann": "x"}}, None),
        ({"matchLabels": {"owner": "a b"}}, None),
        ({"matchExpressions": [{"key": "a b", "operator": "Exists"}]}, None),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["-"]}]}, None),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "-"]}]},
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
        ),
        ({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c d", "operator": "DoesNotExist"}]}, {"a": "b"}),
        (
            {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d e"]}]},
            {"a": "b"},
        ),
    ],
)
def test_a_selector_that_no_api_server_accepts_stops_no_other(selector: dict, same_as: dict | None) -> None:
    one = asked(configured(quota(ANN, "services"), quota(selector)))
    if same_as is None:
        assert one == asked(configured(quota(ANN, "services")))
    else:
        written = same_as if "matchExpressions" in same_as else {"matchLabels": same_as}
        assert one == asked(configured(quota(ANN, "services"), quota(written)))


def test_the_name_of_the_canary_tells_what_is_asked_and_nothing_else() -> None:
    def name(configuration: WebhookConfiguration) -> str:
        sample = sample_of(configuration)
        assert sample is not None
        return sample.webhook

    before = name(configured(quota(ANN)))
    assert name(configured(quota(ANN), token="another")) == before
    assert name(configured(quota(ANN, "pods,secrets"))) != before
    assert name(configured(quota({"matchLabels": {"owner": "bob"}}))) != before
    assert name(configured(quota(ANN), break_glass_group="")) != before, "a condition decides what is asked"
    canary = configured(quota(ANN)).webhooks[-1]
    assert canary["objectSelector"] == {"matchLabels": {"seedquota.io/canary": "true"}}


def test_everything_fails_closed_except_for_members_of_the_break_glass_group() -> None:
    for webhook in configured(quota(ANN, "pods,services")).webhooks:
        assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Fail", "NoneOnDryRun")
        assert "break-glass" in {condition["name"] for condition in webhook["matchConditions"]}  # type: ignore[attr-defined]


def test_where_labels_say_whose_a_namespace_is_writes_of_that_label_are_asked_about() -> None:
    guard, canary = configured(shared=True).webhooks
    assert guard["name"] == "project.namespaces.seedquota.io" and guard["namespaceSelector"] == {}
    (rule,) = guard["rules"]  # type: ignore[misc]
    assert rule["scope"] == "Cluster" and rule["operations"] == ["CREATE", "UPDATE"]
    assert rule["resources"] == ["namespaces", "namespaces/finalize", "namespaces/status"]
    conditions = [condition["name"] for condition in guard["matchConditions"]]  # type: ignore[attr-defined]
    assert conditions == ["break-glass", "may-not-assign"]
    assert [condition["name"] for condition in canary["matchConditions"]] == ["break-glass"]  # type: ignore[attr-defined]
    assert sample_of(configured(shared=True)) is not None and configured(shared=False).webhooks == []
