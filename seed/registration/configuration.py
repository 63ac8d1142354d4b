"""What the configurations have in common that make a cluster ask us: each kind that is counted has its own.

A tenant who is admin of the user cluster can delete or change them. They are restored at once, and what was
created meanwhile is counted and shown.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec import structs

from common.api.labels import MANAGED_BY_LABEL
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource

log = logging.getLogger(__name__)

LABELS = {MANAGED_BY_LABEL: "seedquota"}

RETRY_SECONDS = (0.2, 10.0)  # first and longest pause after a refused write
MATCH_CONDITIONS = "matchConditions"
BREAK_GLASS = "break-glass"
SERVICE_PORT = 443

CREATE, UPDATE = "CREATE", "UPDATE"

Webhook = dict[str, object]
Rule = dict[str, object]


class WebhookConfiguration(Object, frozen=True, kw_only=True):
    webhooks: list[Webhook] = []


WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    False,
    WebhookConfiguration,
)

STAMPING_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
    WebhookConfiguration,
)


class ServicePort(msgspec.Struct, frozen=True):
    """Of a Service in the agents' own namespace."""

    name: str
    port: int = SERVICE_PORT


class WebhookServer(msgspec.Struct, frozen=True, kw_only=True):
    """How an API server reaches the webhooks. `token` returns the token of a kind of webhook: never log it.

    Members of `break_glass_group` are not asked about; empty: everybody is.
    """

    base_url: str
    token: Callable[[str], str]
    ca_bundle: bytes
    timeout_seconds: int = 3
    break_glass_group: str = ""

    def url(self, kind: str, caller: str = "") -> str:
        return "/".join((self.base_url, kind, *([caller] if caller else []), self.token(kind)))


def rule(
    group: str, versions: Iterable[str], resources: Iterable[str], *operations: str, scope: str = "Namespaced"
) -> Rule:
    return {
        "apiGroups": [group],
        "apiVersions": sorted(versions),
        "operations": list(operations),
        "resources": list(resources),
        "scope": scope,
    }


def configuration(
    name: str,
    webhook: str,
    server: WebhookServer,
    url: str,
    *,
    rules: Sequence[Rule],
    namespaces: Mapping[str, object] = MappingProxyType({}),
    conditions: Mapping[str, str] = MappingProxyType({}),
) -> WebhookConfiguration:
    """One that admits by these rules, in the `namespaces` of that selector. `conditions`: of CEL, by name.

    Everything is written out, also what is the API server's default, so that comparing finds what a tenant changed.
    """
    written: Webhook = {
        "name": webhook,
        "clientConfig": {"url": url, "caBundle": base64.b64encode(server.ca_bundle).decode()},
        "rules": list(rules),
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": dict(namespaces),
        "objectSelector": {},
        "sideEffects": "NoneOnDryRun",  # a dry run decides and writes nothing
        "timeoutSeconds": server.timeout_seconds,
        "admissionReviewVersions": ["v1"],
    }
    # Evaluated by the API server: both work with every one of our pods dead.
    matching: list[object] = []
    if server.break_glass_group:
        group = _cel_string(server.break_glass_group)
        matching.append({"name": BREAK_GLASS, "expression": f"!({group} in request.userInfo.groups)"})
    matching += [{"name": condition, "expression": expression} for condition, expression in conditions.items()]
    written = _with_conditions(written, matching)
    return WebhookConfiguration(metadata=ObjectMeta(name=name, labels=LABELS), webhooks=[written])


def through_service(
    configuration: WebhookConfiguration, base_url: str, namespace: str, service: ServicePort
) -> WebhookConfiguration:
    """As it is where the API server reaches the webhook through a Service of its own cluster, not by URL.

    An API server often cannot resolve names of its cluster's Services; what it reaches through them it finds itself.
    """
    webhooks: list[Webhook] = []
    for webhook in configuration.webhooks:
        client = webhook["clientConfig"]
        assert isinstance(client, dict), "as `configuration` writes it"
        path = str(client["url"]).removeprefix(base_url)
        reference = {"name": service.name, "namespace": namespace, "port": service.port, "path": path}
        webhooks.append({**webhook, "clientConfig": {"service": reference, "caBundle": client["caBundle"]}})
    return structs.replace(configuration, webhooks=webhooks)


def token_of(webhook: Webhook) -> str:
    """The last part of the path at which it is called."""
    client = webhook["clientConfig"]
    assert isinstance(client, dict), "as `configuration` writes it"
    called = client["url"] if "url" in client else client["service"]["path"]
    return str(called).rpartition("/")[2]


def has_break_glass(webhook: Webhook) -> bool:
    return bool(only_break_glass(webhook).get(MATCH_CONDITIONS))


def only_break_glass(webhook: Webhook) -> Webhook:
    conditions = webhook.get(MATCH_CONDITIONS, [])
    assert isinstance(conditions, list), "as API servers have them"
    return _with_conditions(webhook, [condition for condition in conditions if condition["name"] == BREAK_GLASS])


def _with_conditions(webhook: Webhook, conditions: Sequence[object]) -> Webhook:
    """An empty list is not written: an API server gives none back."""
    others = {name: value for name, value in webhook.items() if name != MATCH_CONDITIONS}
    return {**others, MATCH_CONDITIONS: list(conditions)} if conditions else others


def same(path: str, names: Sequence[str]) -> str:
    """CEL: these entries of the map at `path` are the same in the old and the new object. False where it is no map."""
    new, old = (f"[has({which}.{path}) ? {which}.{path} : {{}}]" for which in ("object", "oldObject"))
    quoted = ", ".join(_cel_string(name) for name in names)
    equal = "(name in new) == (name in old) && (!(name in new) || new[name] == old[name])"
    maps = "type(new) == map && type(old) == map"
    return f"{new}.all(new, {old}.all(old, {maps} && [{quoted}].all(name, {equal})))"


def _cel_string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def lost(want: list[Webhook], have: list[Webhook]) -> list[str]:
    """The fields in which `have` is not what was wanted. What an API server adds is no loss.

    matchConditions are not counted: API servers before 1.28 drop them, and without them we are asked about more.
    """
    if len(want) != len(have):
        return ["webhooks"]
    return [
        key
        for wanted, had in zip(want, have, strict=True)
        for key, value in wanted.items()
        if key != MATCH_CONDITIONS and not _contains(had.get(key), value)
    ]


def _contains(have: object, want: object) -> bool:
    if isinstance(want, dict) and isinstance(have, dict):
        # An empty selector takes everything: something in it is not an addition, it takes less.
        return bool(want or not have) and all(_contains(have.get(key), value) for key, value in want.items())
    if isinstance(want, list) and isinstance(have, list):
        return len(want) == len(have) and all(_contains(h, w) for h, w in zip(have, want, strict=True))
    return have == want
