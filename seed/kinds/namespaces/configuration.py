"""The configuration that makes a cluster ask about objects in namespaces: only about what some quota counts there.

Webhooks have the selectors of the quotas, so that an API server evaluates them itself: what is in other namespaces, and
of other kinds, never waits. All of them lead to the same URL, and about one creation one of them is called.

Where a label says whose a namespace is, one more asks about writes of that label by users who may not decide it
(project_label.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from common.api.label_selector import LabelRequirement, LabelSelector, well_formed
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.quota import object_names, scopes
from common.quota.object_names import PODS, RESOURCE_QUOTAS, GroupResource
from seed.kinds.namespaces import project_label
from seed.kinds.namespaces.evaluators.namespaced import CREATE, UPDATE, NamespacedEvaluator, Terms
from seed.kinds.namespaces.evaluators.persistent_volume_claims import CLASS_ANNOTATION
from seed.kinds.namespaces.evaluators.registry import evaluators_of
from seed.model.quota import Quota
from seed.model.selected_namespaces import METADATA_NAME, Exempt, picked_by_name
from seed.registration.configuration import (
    LABELS,
    MATCH_CONDITIONS,
    Rule,
    Webhook,
    WebhookConfiguration,
    WebhookServer,
    configuration,
    only_break_glass,
    rule,
    same,
)
from seed.registration.disjoint_selectors import EVERYTHING, Region, apart, region, requirements_of
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

OF_SCOPES = frozenset({"scopeSelector", "scopes"})
"""... of a core ResourceQuota, whether a quota with scopes counts it. An API server lets only the first one change."""

_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, Object)
"""What the canary is: everybody may create one (`system:basic-user`), and nothing is stored. Unlike a
SelfSubjectAccessReview, it may have labels."""

MAX_READ = 64
"""So many fields of `spec` a condition compares. An API server bounds what a condition costs."""

ANY = "*"

Versions = frozenset[tuple[str, str, str]]
"""In which objects are sent: group, resource, version. Others are sent as they are written."""

NO_VERSIONS: Final[Versions] = frozenset()


@dataclass(frozen=True, order=True)
class Asked:
    """About what. `resource` is with its subresource. The same is asked once, whatever the version."""

    group: str
    resource: str
    operation: str
    version: str = field(default=ANY, compare=False)


Rules = frozenset[Asked]


class Limits(msgspec.Struct, frozen=True):
    """What is counted in the namespaces of one selector. `read`: fields of `spec` beside READ_OF_UPDATES."""

    selector: LabelSelector
    asked: Rules
    versions: Versions = frozenset()
    read: frozenset[str] = frozenset()


def limits_of(quota: Quota, selector: LabelSelector, unserved: Set[GroupResource] = frozenset()) -> Limits:
    """`selector`: of the namespaces that the quota counts in the cluster. `unserved`: kinds that the cluster serves in
    another version than a quota names. By a rule of that version it would ask nothing; so it asks about each version,
    and what the quota cannot read is refused."""
    if quota.promises:
        writes = frozenset(Asked("", RESOURCE_QUOTAS.resource, each) for each in (CREATE, UPDATE))
        return Limits(selector, writes, read=OF_SCOPES if quota.scopes else frozenset())
    timed = any(scope.scope_name in (scopes.TERMINATING, scopes.NOT_TERMINATING) for scope in quota.scopes)
    evaluators = evaluators_of(Terms(limited=quota.of_objects))
    asked = {
        rule
        for counted, evaluator in evaluators.items()
        for rule in _asked(evaluator)
        # Only a pod's deadline can change without its subresources. ResourceQuotas count by number here.
        if rule != Asked("", PODS.resource, UPDATE) or timed
        if (counted, rule.operation) != (RESOURCE_QUOTAS, UPDATE)
    }
    versions = {
        (kind.group, kind.resource, evaluator.version)
        for kind, evaluator in evaluators.items()
        if evaluator.version and kind not in unserved
    }
    read = {found.path[1] for name in quota.of_objects if (found := object_names.field(name)) is not None}
    return Limits(selector, frozenset(asked), frozenset(versions), frozenset(read))


def _asked(evaluator: NamespacedEvaluator[Any]) -> Iterable[Asked]:
    of = evaluator.resource
    for part, operations in evaluator.asked_of.items():
        for operation in operations:
            yield Asked(of.group, f"{of.resource}/{part}" if part else of.resource, operation)


def desired(
    limits: Sequence[Limits], server: WebhookServer, caller: str, *, exempt: Exempt, shared: bool
) -> WebhookConfiguration:
    """`limits`: of the quotas that count namespaces of the cluster. `caller`: whom the token in the URL proves.
    `shared`: labels there say whose a namespace is. It holds a token: never log it."""
    entries, of_updates = _entries(limits, exempt), _of_updates(frozenset[str]().union(*(each.read for each in limits)))
    webhooks: list[Webhook] = []
    for number, (place, asked) in enumerate(entries):
        updates = frozenset(rule for rule in asked if _is_update(rule))
        parts: list[tuple[str, Rules, Mapping[str, str]]] = [("n", asked - updates, {}), ("u", updates, of_updates)]
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
    if shared:
        webhooks += configuration(
            NAME,
            f"{project_label.WEBHOOK}.{SUFFIX}",
            server,
            server.url(KIND, caller),
            rules=[rule("", ["*"], project_label.RESOURCES, CREATE, UPDATE, scope="Cluster")],
            conditions=project_label.CONDITIONS,
        ).webhooks
    if webhooks:
        webhooks.append(_canary(webhooks[0], version_of(webhooks)))
    return WebhookConfiguration(metadata=ObjectMeta(name=NAME, labels=LABELS), webhooks=webhooks)


@lru_cache(maxsize=256)
def _of_updates(read: frozenset[str]) -> Mapping[str, str]:
    """CEL: what leaves an object's use as it is never waits, such as the removal of its finalizers. A webhook of its
    own has it: for a condition an API server converts the whole object, which costs a tenth of creating a pod."""
    if len(read) > MAX_READ:
        return {}
    unchanged = same("spec", sorted(read.union(READ_OF_UPDATES)))
    return {"changes-use": f"!({unchanged} && {same('metadata.annotations', [CLASS_ANNOTATION])})"}


def _is_update(rule: Asked) -> bool:
    """Of an object itself: its subresources change nothing but what counts."""
    return rule.operation == UPDATE and "/" not in rule.resource


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
    return Sample(_REVIEWS, "", {"namespace": "default"}, name, labels={ANNOTATION: "true"})


def _canary(webhook: Webhook, version: str) -> Webhook:
    """It is called at the same URL, for nothing but canaries. Its name changes with what the others ask, so whoever is
    refused by it knows that the API server has taken up all of this configuration."""
    return {
        **only_break_glass(webhook),
        "name": f"canary-{version}.{SUFFIX}",
        "rules": [rule(_REVIEWS.group, [_REVIEWS.version], [_REVIEWS.plural], CREATE, scope="Cluster")],
        "namespaceSelector": {},
        "objectSelector": {"matchLabels": {ANNOTATION: "true"}},
    }


def _rules(asked: Rules) -> list[Rule]:
    """One for each group, version and set of operations."""
    operations: dict[tuple[str, str, str], set[str]] = {}
    for each in asked:
        operations.setdefault((each.group, each.version, each.resource), set()).add(each.operation)
    together: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (group, version, resource), found in operations.items():
        together.setdefault((group, version, tuple(sorted(found))), []).append(resource)
    return [
        rule(group, [version], sorted(resources), *found)
        for (group, version, found), resources in sorted(together.items())
    ]


def _entries(limits: Iterable[Limits], exempt: Exempt) -> list[tuple[Region, Rules]]:
    """What is asked in which namespaces; about one object in one namespace only once (disjoint_selectors.py).

    Quotas of one selector share an entry. So do those that ask the same of the values of one label. If there would be
    more than MAX_WEBHOOKS, all entries ask about all that some quota counts; if there would be too many still, one
    entry asks in all namespaces. An API server refuses a configuration with one selector that is not well formed: then
    nothing of it would be asked.
    """
    of_selector: dict[bytes, tuple[set[Asked], set[tuple[str, str, str]]]] = {}
    for limit in limits:
        if (selector := well_formed(limit.selector)) is not None:
            asked, versions = of_selector.setdefault(msgspec.json.encode(selector, order="sorted"), (set(), set()))
            asked.update(limit.asked)
            versions.update(limit.versions)
    wanted = sorted((selector, frozenset(asked), frozenset(found)) for selector, (asked, found) in of_selector.items())
    return _entries_of(tuple(each for each in wanted if each[1]), exempt)


@lru_cache(maxsize=256)
def _entries_of(selectors: tuple[tuple[bytes, Rules, Versions], ...], exempt: Exempt) -> list[tuple[Region, Rules]]:
    """Many clusters have the same quotas, and what is asked is compared again and again."""
    wanted = [(msgspec.json.decode(text, type=LabelSelector), asked, versions) for text, asked, versions in selectors]
    together = frozenset(rule for _, asked, _ in wanted for rule in asked)
    for some in (wanted, [(selector, together, NO_VERSIONS) for selector, _, _ in wanted]):
        shared = _sharing(some)
        if len(shared) > MAX_WEBHOOKS:
            continue
        places = [(_place(selector, exempt), _in_versions(asked, versions)) for selector, asked, versions in shared]
        found = apart([(place, asked) for place, asked in places if place is not None], MAX_WEBHOOKS)
        if found is not None:
            return found
    named = frozenset(name for selector, _, _ in wanted for name in picked_by_name(selector))
    rest = tuple(sorted(exempt.names - named if exempt.unless_named else exempt.names))
    return [((LabelRequirement(METADATA_NAME, "NotIn", rest),) if rest else EVERYTHING, together)]


def _in_versions(asked: Rules, versions: Versions) -> Rules:
    """An API server converts objects to the version of a rule, as long as no other rule has their own. What it sends
    of a subresource is of another kind."""
    of: dict[tuple[str, str], set[str]] = {}
    for group, resource, version in versions:
        of.setdefault((group, resource), set()).add(version)
    only = {kind: next(iter(found)) for kind, found in of.items() if len(found) == 1}
    return frozenset(replace(each, version=only.get((each.group, each.resource), ANY)) for each in asked)


def _sharing(wanted: Sequence[tuple[LabelSelector, Rules, Versions]]) -> list[tuple[LabelSelector, Rules, Versions]]:
    values: dict[tuple[str, Rules, Versions], set[str]] = {}
    for selector, asked, versions in wanted:
        if (label := _one_label(selector)) is not None:
            values.setdefault((label[0], asked, versions), set()).update(label[1])
    found = [
        (LabelSelector(match_expressions=(LabelRequirement(key, "In", tuple(sorted(picked))),)), asked, versions)
        for (key, asked, versions), picked in values.items()
    ]
    return found + [each for each in wanted if _one_label(each[0]) is None]


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
