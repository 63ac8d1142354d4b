"""The configuration that makes a cluster ask about objects in namespaces: only about what some quota counts there.

Webhooks have the selectors of the quotas, so that an API server evaluates them itself: what is in other namespaces, and
of other kinds, never waits. All of them lead to the same URL, and about one creation one of them is called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from common.api.label_selector import LabelRequirement, LabelSelector, well_formed
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.quota import object_names, scopes
from common.quota.object_names import PODS, RESOURCE_QUOTAS, GroupResource
from seed.kinds.namespaces.evaluators.namespaced import CREATE, UPDATE
from seed.kinds.namespaces.evaluators.persistent_volume_claims import CLASS_ANNOTATION
from seed.kinds.namespaces.evaluators.registry import evaluator_of
from seed.model.quota import Quota
from seed.model.selected import METADATA_NAME, Exempt, picked_by_name
from seed.registration.apart import EVERYTHING, Region, apart, region, requirements_of
from seed.registration.configuration import (
    LABELS,
    MATCH_CONDITIONS,
    Rule,
    Webhook,
    WebhookConfiguration,
    WebhookServer,
    configuration,
    rule,
    same,
)
from seed.registration.probe import ANNOTATION, Sample

KIND = "namespaces"
"""The webhook's kind: the first part of its URL's path."""

NAME = "seedquota-namespaces"
SUFFIX = "namespaces.seedquota.io"
MAX_WEBHOOKS = 64  # in one configuration, and as many for updates: an API server evaluates each selector

READ_OF_UPDATES = (
    "activeDeadlineSeconds",
    "allocateLoadBalancerNodePorts",
    "devices",
    "hard",
    "ports",
    "resources",
    "storageClassName",
    "type",
    "volumeAttributesClassName",
)
"""The fields of `spec` that decide what an update of an object, not of its subresources, adds to what is used."""

_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, Object)
"""What the canary is: everybody may create one (`system:basic-user`), and nothing is stored. Unlike a
SelfSubjectAccessReview, it may have labels."""

_UNCHANGED = f"{same('spec', READ_OF_UPDATES)} && {same('metadata.annotations', [CLASS_ANNOTATION])}"
_OF_UPDATES = {"changes-use": f"!({_UNCHANGED})"}
"""CEL: what leaves an object's use as it is never waits, such as the removal of its finalizers. A webhook of its own
has it: for a condition an API server converts the whole object, which costs a tenth of creating a pod."""

Rules = frozenset[tuple[str, str, str]]
"""Of what is asked: group, resource with its subresource, operation."""


class Limits(msgspec.Struct, frozen=True):
    """What is counted in the namespaces of one selector."""

    selector: LabelSelector
    asked: Rules


def limits_of(quota: Quota) -> Limits:
    assert quota.selector is not None, "a quota of kind namespaces has one"
    if quota.promises:
        return Limits(
            quota.selector, frozenset(("", RESOURCE_QUOTAS.resource, operation) for operation in (CREATE, UPDATE))
        )
    timed = any(scope.scope_name in (scopes.TERMINATING, scopes.NOT_TERMINATING) for scope in quota.scopes)
    asked = {
        (counted.group, f"{counted.resource}/{part}" if part else counted.resource, operation)
        for counted in object_names.resources_of(quota.limits)
        for part, operation in _asked(counted)
        # Only a pod's deadline can change without its subresources. ResourceQuotas count by number here.
        if (counted, part, operation) != (PODS, "", UPDATE) or timed
        if (counted, operation) != (RESOURCE_QUOTAS, UPDATE)
    }
    return Limits(quota.selector, frozenset(asked))


def _asked(counted: GroupResource) -> Iterable[tuple[str, str]]:
    evaluator = evaluator_of(counted)
    if evaluator is None:
        return ()
    return ((part, operation) for part, operations in evaluator.asked_of.items() for operation in operations)


def desired(quotas: Sequence[Quota], server: WebhookServer, caller: str, *, exempt: Exempt) -> WebhookConfiguration:
    """`quotas`: those that count namespaces of the cluster. `caller`: whom the token in the URL proves.
    It holds a token: never log it."""
    entries = _entries([limits_of(quota) for quota in quotas], exempt)
    webhooks: list[Webhook] = []
    for number, (place, asked) in enumerate(entries):
        updates = frozenset(rule for rule in asked if _is_update(*rule))
        parts: list[tuple[str, Rules, Mapping[str, str]]] = [("n", asked - updates, {}), ("u", updates, _OF_UPDATES)]
        for prefix, rules, conditions in parts:
            if rules:
                webhooks += configuration(
                    NAME,
                    f"{prefix}{number}.{SUFFIX}",
                    server,
                    server.url(KIND, caller),
                    rules=_rules(rules),
                    namespaces=_wire(place),
                    conditions=conditions,
                ).webhooks
    if webhooks:
        webhooks.append(_canary(webhooks[0], version_of(webhooks)))
    return WebhookConfiguration(metadata=ObjectMeta(name=NAME, labels=LABELS), webhooks=webhooks)


def _is_update(group: str, resource: str, operation: str) -> bool:
    """Of an object itself: its subresources change nothing but what counts."""
    return operation == UPDATE and "/" not in resource


def version_of(webhooks: Sequence[Webhook]) -> str:
    """Of what is asked, without the URL: a token that is replaced changes nothing."""
    parts = [
        (webhook["rules"], webhook["namespaceSelector"], webhook.get(MATCH_CONDITIONS))
        for webhook in webhooks
        if "rules" in webhook
    ]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]


def sample_of(configured: WebhookConfiguration) -> Sample | None:
    """What proves that an API server asks as this configuration says; None if it asks nothing."""
    if not configured.webhooks:
        return None
    name = configured.webhooks[-1]["name"]
    assert isinstance(name, str)
    return Sample(_REVIEWS, "", {"namespace": "default"}, name, labels={ANNOTATION: "true"}, kind=_REVIEWS.kind)


def _canary(webhook: Webhook, version: str) -> Webhook:
    """It is called at the same URL, for nothing but canaries. Its name changes with what the others ask, so whoever is
    refused by it knows that the API server has taken up all of this configuration."""
    return {
        **webhook,
        "name": f"canary-{version}.{SUFFIX}",
        "rules": [rule(_REVIEWS.group, [_REVIEWS.version], [_REVIEWS.plural], CREATE, scope="Cluster")],
        "namespaceSelector": {},
        "objectSelector": {"matchLabels": {ANNOTATION: "true"}},
    }


def _rules(asked: Rules) -> list[Rule]:
    """One for each group and set of operations."""
    operations: dict[tuple[str, str], set[str]] = {}
    for group, resource, operation in asked:
        operations.setdefault((group, resource), set()).add(operation)
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), found in operations.items():
        together.setdefault((group, tuple(sorted(found))), []).append(resource)
    return [
        rule(group, ["*"], sorted(resources), *found)  # an object counts the same in each version
        for (group, found), resources in sorted(together.items())
    ]


def _entries(limits: Iterable[Limits], exempt: Exempt) -> list[tuple[Region, Rules]]:
    """What is asked in which namespaces; about one object in one namespace only once (apart.py).

    Quotas of one selector share an entry. So do those that ask the same of the values of one label. If there would be
    more than MAX_WEBHOOKS, all entries ask about all that some quota counts; if there would be too many still, one
    entry asks in all namespaces. An API server refuses a configuration with one selector that is not well formed: then
    nothing of it would be asked.
    """
    of_selector: dict[bytes, set[tuple[str, str, str]]] = {}
    for limit in limits:
        if (selector := well_formed(limit.selector)) is not None:
            of_selector.setdefault(msgspec.json.encode(selector, order="sorted"), set()).update(limit.asked)
    wanted = tuple((selector, frozenset(asked)) for selector, asked in sorted(of_selector.items()) if asked)
    return _entries_of(wanted, exempt)


@lru_cache(maxsize=256)
def _entries_of(selectors: tuple[tuple[bytes, Rules], ...], exempt: Exempt) -> list[tuple[Region, Rules]]:
    """Many clusters have the same quotas, and what is asked is compared again and again."""
    wanted = [(msgspec.json.decode(text, type=LabelSelector), asked) for text, asked in selectors]
    together = frozenset(rule for _, asked in wanted for rule in asked)
    for some in (wanted, [(selector, together) for selector, _ in wanted]):
        shared = _sharing(some)
        if len(shared) > MAX_WEBHOOKS:
            continue
        places = [(_place(selector, exempt), asked) for selector, asked in shared]
        found = apart([(place, asked) for place, asked in places if place is not None], MAX_WEBHOOKS)
        if found is not None:
            return found
    named = frozenset(name for selector, _ in wanted for name in picked_by_name(selector))
    rest = tuple(sorted(exempt.names - named if exempt.unless_named else exempt.names))
    return [((LabelRequirement(METADATA_NAME, "NotIn", rest),) if rest else EVERYTHING, together)]


def _sharing(wanted: Sequence[tuple[LabelSelector, Rules]]) -> list[tuple[LabelSelector, Rules]]:
    values: dict[tuple[str, Rules], set[str]] = {}
    for selector, asked in wanted:
        if (label := _one_label(selector)) is not None:
            values.setdefault((label[0], asked), set()).update(label[1])
    found = [
        (LabelSelector(match_expressions=(LabelRequirement(key, "In", tuple(sorted(picked))),)), asked)
        for (key, asked), picked in values.items()
    ]
    return found + [(selector, asked) for selector, asked in wanted if _one_label(selector) is None]


def _place(selector: LabelSelector, exempt: Exempt) -> Region | None:
    found = requirements_of(selector)
    if names := exempt.of(selector):
        found.append(LabelRequirement(METADATA_NAME, "NotIn", tuple(sorted(names))))
    return region(found)


def _one_label(selector: LabelSelector) -> tuple[str, Sequence[str]] | None:
    """The label and its values, if the selector asks nothing else."""
    match list(selector.match_labels.items()), selector.match_expressions:
        case [(key, value)], ():
            return key, (value,)
        case [], (LabelRequirement(operator="In") as only,):
            return only.key, only.values
    return None


def _wire(place: Region) -> dict[str, object]:
    expressions: list[object] = msgspec.json.decode(msgspec.json.encode(place))
    return {"matchExpressions": expressions} if expressions else {}
