from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from common.api.types import SecretRef, UserCluster, UserClusterSpec
from common.kube.client.meta import ObjectMeta
from common.runtime import flags
from common.server.serving_certificate import Certificates
from seed.build import wanted_of
from seed.kinds import registry
from seed.kinds.clusters.evaluator import kinds
from seed.kinds.machines import cluster_api_configuration as cluster_api
from seed.kinds.machines.configuration import desired, name_for, stamping
from seed.options import SeedOptions
from seed.registration.configuration import (
    ServicePort,
    Webhook,
    WebhookConfiguration,
    WebhookServer,
    has_break_glass,
    lost,
    through_service,
    token_of,
)
from seed.registration.token import WebhookKey, token
from seed.registration.wanted import WantedConfigurations


def of_kind(kind: str) -> str:
    return f"t-{kind}"


BREAK_GLASS = {"name": "break-glass", "expression": "!('seedquota:break-glass' in request.userInfo.groups)"}
KINDS = kinds("seedquota.io/project")
UID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"


def user_cluster(*, own_source: bool = False) -> UserCluster:
    return UserCluster(
        metadata=ObjectMeta(name="c1", namespace="alpha", uid=UID),
        spec=UserClusterSpec(project="alpha", kubeconfig_secret_ref=None if own_source else SecretRef(name="c1")),
    )


def wanted(**changes: object) -> Webhook:
    server = WebhookServer(base_url="https://seed.example.com:8443", token=of_kind, ca_bundle=b"CA\n")
    webhook, _ = desired(user_cluster(), structs.replace(server, **changes)).webhooks
    return webhook


def test_what_is_wanted_in_a_user_cluster() -> None:
    assert name_for(user_cluster()) == "seedquota-machines"
    assert wanted() == {
        "name": "machines.seedquota.io",
        "clientConfig": {"url": f"https://seed.example.com:8443/machines/{UID}/t-machines", "caBundle": "Q0EK"},
        "rules": [
            {
                "apiGroups": ["cluster.k8s.io"],
                "apiVersions": ["v1alpha1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["machines"],
                "scope": "Namespaced",
            }
        ],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 3,
        "admissionReviewVersions": ["v1"],
        "matchConditions": [
            {
                "name": "changes-size",
                "expression": "!(request.operation == 'UPDATE'"
                " && [has(object.spec) ? object.spec : {}].all(new,"
                " [has(oldObject.spec) ? oldObject.spec : {}].all(old,"
                " type(new) == map && type(old) == map && ['providerSpec'].all(name,"
                " (name in new) == (name in old) && (!(name in new) || new[name] == old[name]))))"
                " && [has(object.metadata.annotations) ? object.metadata.annotations : {}].all(new,"
                " [has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}].all(old,"
                " type(new) == map && type(old) == map && ['seedquota.io/footprint'].all(name,"
                " (name in new) == (name in old) && (!(name in new) || new[name] == old[name])))))",
            },
        ],
    }


def test_a_seed_that_is_its_own_source_is_asked_about_that_namespace_only() -> None:
    configuration = desired(
        user_cluster(own_source=True), WebhookServer(base_url="https://a", token=of_kind, ca_bundle=b"")
    )
    assert configuration.metadata.name == "seedquota-machines.alpha.c1"
    assert configuration.metadata.labels == {"app.kubernetes.io/managed-by": "seedquota"}
    assert configuration.webhooks[0]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "alpha"}}


def test_a_group_name_cannot_change_the_expression() -> None:
    expression = "!('a\\' in [\\'a\\'] || \\'b\\\\' in request.userInfo.groups)"
    conditions = wanted(break_glass_group="a' in ['a'] || 'b\\")["matchConditions"]
    assert isinstance(conditions, list)
    assert conditions[0] == {"name": "break-glass", "expression": expression}


def test_nobody_passes_where_break_glass_is_off() -> None:
    """A tenant who is admin of the user cluster may impersonate any group there."""
    server = WebhookServer(base_url="https://a", token=of_kind, ca_bundle=b"")
    webhooks = [webhook for made in (desired, stamping) for webhook in made(user_cluster(), server).webhooks]
    assert not [webhook for webhook in webhooks if "request.userInfo" in str(webhook.get("matchConditions"))]
    assert ["matchConditions" in webhook for webhook in webhooks] == [True, False, False], "an empty list is not kept"


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({}, []),
        ({"newField": "a later default"}, []),
        ({"matchConditions": []}, []),
        ({"failurePolicy": "Ignore"}, ["failurePolicy"]),
        ({"namespaceSelector": {"matchLabels": {"a": "b"}}}, ["namespaceSelector"]),
        ({"objectSelector": {"matchExpressions": []}}, ["objectSelector"]),
        ({"rules": []}, ["rules"]),
        ({"timeoutSeconds": 1}, ["timeoutSeconds"]),
        ({"clientConfig": {"url": "https://elsewhere"}}, ["clientConfig"]),
    ],
)
def test_what_was_lost_is_named_and_what_an_api_server_adds_is_not(change: Webhook, fields: list[str]) -> None:
    have = {**copy.deepcopy(wanted()), **change}
    assert lost([wanted()], [have]) == fields


def test_a_webhook_too_many_or_too_few_is_a_loss() -> None:
    assert lost([wanted()], []) == ["webhooks"]
    assert lost([wanted()], [wanted(), wanted()]) == ["webhooks"]


def test_a_token_is_32_hex_digits_and_another_for_each_cluster_webhook_and_key() -> None:
    key, other = b"k" * 32, b"l" * 32
    assert token(key, "machines", UID) == "2c7ea08a0e12273672ec4424f62805c5"  # printf | openssl dgst -sha256 -hmac
    made = {token(key, "machines", UID), token(key, "machines", UID + "0"), token(other, "machines", UID)}
    made |= {token(key, "stamp", UID), token(key, "scale", UID)}
    assert len(made) == 5


def test_who_scales_is_advised_in_the_same_way_and_stopped_by_nobody_who_is_down() -> None:
    admitting, scale = desired(
        user_cluster(),
        WebhookServer(base_url="https://a", token=of_kind, ca_bundle=b"", break_glass_group="seedquota:break-glass"),
    ).webhooks
    assert scale == {
        **admitting,
        "name": "scale.seedquota.io",
        "clientConfig": {"url": f"https://a/scale/{UID}/t-scale", "caBundle": ""},
        "rules": [
            {
                "apiGroups": ["cluster.k8s.io"],
                "apiVersions": ["v1alpha1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["machinedeployments", "machinedeployments/scale", "machinesets", "machinesets/scale"],
                "scope": "Namespaced",
            }
        ],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "matchConditions": [BREAK_GLASS],
    }


def test_cluster_apis_deployments_are_asked_about_in_both_of_its_versions() -> None:
    admitting, scale = cluster_api.desired(
        WebhookServer(base_url="https://a", token=of_kind, ca_bundle=b"", timeout_seconds=3, break_glass_group="g")
    ).webhooks
    (rule,), (of_machines,) = scale["rules"], admitting["rules"]  # type: ignore[misc]
    assert scale["clientConfig"] == {"url": "https://a/scale/cluster-api/t-scale", "caBundle": ""}
    assert (rule["apiGroups"], rule["apiVersions"]) == (["cluster.x-k8s.io"], ["v1beta1", "v1beta2"])
    assert "machinedeployments/scale" in rule["resources"]
    assert "machines" in of_machines["resources"]
    way_in, changes = admitting["matchConditions"]  # type: ignore[misc]
    assert scale["matchConditions"] == [way_in], "who scales changes other fields"
    assert "['clusterName', 'infrastructureRef', 'failureDomain', 'replicas', 'template'].all(" in changes["expression"]


def test_the_stamping_webhook_is_asked_about_the_same_machines_and_stops_none() -> None:
    server = WebhookServer(
        base_url="https://a", token=of_kind, ca_bundle=b"", break_glass_group="seedquota:break-glass"
    )
    admitting = desired(user_cluster(), server)
    (webhook,) = stamping(user_cluster(), server).webhooks
    assert webhook["clientConfig"] == {"url": f"https://a/stamp/{UID}/t-stamp", "caBundle": ""}
    assert webhook["failurePolicy"] == "Ignore"
    assert {key: webhook[key] for key in ("rules", "namespaceSelector", "timeoutSeconds")} == {
        key: admitting.webhooks[0][key] for key in ("rules", "namespaceSelector", "timeoutSeconds")
    }
    assert webhook["matchConditions"] == [BREAK_GLASS], "also a Machine that was never stamped gets one when touched"


def test_through_a_service_the_path_and_all_else_are_the_same() -> None:
    configuration = desired(
        user_cluster(own_source=True), WebhookServer(base_url="https://a:8443", token=of_kind, ca_bundle=b"CA\n")
    )
    reached = through_service(configuration, "https://a:8443", "quotas", ServicePort("seedquota-seed", 8443))
    for kind, before, after in zip(("machines", "scale"), configuration.webhooks, reached.webhooks, strict=True):
        service = {"namespace": "quotas", "name": "seedquota-seed", "port": 8443, "path": f"/{kind}/{UID}/t-{kind}"}
        assert after == {**before, "clientConfig": {"service": service, "caBundle": "Q0EK"}}
        assert token_of(before) == token_of(after) == f"t-{kind}"


class Parts:
    """The key and the certificates."""

    ca_bundle = b"CA\n"

    def token(self, kind: str, _caller: str) -> str:
        return of_kind(kind)


@pytest.mark.parametrize("service", [None, ("quotas", ServicePort("seedquota-seed"))])
def test_only_the_seeds_own_api_server_goes_through_the_service(
    service: tuple[str, ServicePort] | None,
) -> None:
    parts: Any = Parts()
    wanted = WantedConfigurations(
        parts,
        parts,
        base_url="https://a",
        timeout_seconds=3,
        seed_break_glass_group="",
        user_cluster_break_glass_group="",
        seed_service=service,
    )
    theirs, own = user_cluster(), user_cluster(own_source=True)
    on_seed = [
        *(wanted.on_seed(kind.of_seed.caller, kind.of_seed.desired) for kind in registry.KINDS if kind.of_seed),
        wanted.for_cluster(own, desired),
        wanted.for_cluster(own, stamping),
    ]
    in_user_clusters = [wanted.for_cluster(theirs, desired), wanted.for_cluster(theirs, stamping)]
    assert {tuple(client) for client in clients(in_user_clusters)} == {("url", "caBundle")}
    assert {tuple(client) for client in clients(on_seed)} == {("service" if service else "url", "caBundle")}


def clients(configurations: list[WebhookConfiguration]) -> list[Any]:
    return [webhook["clientConfig"] for configuration in configurations for webhook in configuration.webhooks]


@pytest.mark.parametrize(("given", "on"), [([], False), (["--user-cluster-break-glass=on"], True)])
def test_break_glass_is_off_in_user_clusters_unless_it_is_switched_on(given: list[str], on: bool) -> None:
    needed = ["--seed-name=a", "--webhook-url=https://a"]
    options = flags.parse(SeedOptions, "seedquota-seed", "d", [*needed, *given], {})
    key = cast(WebhookKey, SimpleNamespace(token=lambda kind, _caller: kind))
    made = wanted_of(options, key, cast(Certificates, SimpleNamespace(ca_bundle=b"CA")))
    for configuration in (made.for_cluster(user_cluster(), desired), made.for_cluster(user_cluster(), stamping)):
        assert [has_break_glass(webhook) for webhook in configuration.webhooks] == [on] * len(configuration.webhooks)
