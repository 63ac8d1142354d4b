"""What a user cluster needs before it can have LocalResourceQuotas and LocalResourceQuotaAllocations.

These are their definitions, and the right to read them.

The definitions are those of charts/crds, which is not where the program runs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from common.api.labels import GROUP, MANAGED_BY_LABEL, SEED_MANAGER, VERSION
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from seed.projections.local_quota import LOCAL_ALLOCATIONS, LOCAL_QUOTAS

CUSTOM_RESOURCES = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, Object
)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, Object)

ROLE: Final[dict[str, object]] = {
    "metadata": {
        "name": "seedquota-local-quotas",
        "labels": {MANAGED_BY_LABEL: SEED_MANAGER, "rbac.authorization.k8s.io/aggregate-to-view": "true"},
    },
    "rules": [
        {
            "apiGroups": [GROUP],
            "resources": [LOCAL_QUOTAS.plural, LOCAL_ALLOCATIONS.plural],
            "verbs": ["get", "list", "watch"],
        }
    ],
}
"""Who may view a namespace may view what is in it of these. The API server asks the writer for the same rights."""


def _text(length: int, description: str) -> dict[str, object]:
    return {"type": "string", "maxLength": length, "description": description}


def _object(description: str, **properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
    }


def _amounts(description: str) -> dict[str, object]:
    values = {"x-kubernetes-int-or-string": True, "maxLength": 64}
    return {"type": "object", "description": description, "maxProperties": 80, "additionalProperties": values}


def _column(name: str, path: str, description: str, kind: str = "string", **more: int) -> dict[str, object]:
    return {"name": name, "type": kind, "jsonPath": path, "description": description, **more}


class _Words(NamedTuple):
    """What the descriptions of a kind say."""

    says: str
    total: str
    hard: str
    used: str
    here: str
    used_here: str
    usage: str
    in_here: str
    column_usage: str
    column_here: str


_OF_QUOTA = _Words(
    says="What a quota says in a cluster that it counts, or in a namespace: its limit, what is used in all of them "
    "together, and what of that is used here.",
    total="Of all clusters that the quota counts, together.",
    hard="The limit of each resource.",
    used="What is used, with what is being created.",
    here="Of this cluster alone; of a quota of kind namespaces, of this namespace alone.",
    used_here="What is used here, with what is being created here.",
    usage="Used and limit of each resource, such as cpu 60/64.",
    in_here="What is used here, such as cpu 24.",
    column_usage="Used and limit of each resource in all clusters together",
    column_here="What of it is used in this cluster or namespace",
)
_OF_ALLOCATION = _Words(
    says="What a ResourceQuotaAllocation says in a namespace that it selects: what core ResourceQuotas may promise in "
    "all of them together, what they promise, and what of that is promised here.",
    total="Of all namespaces of the allocation, in all clusters, together.",
    hard="How much ResourceQuotas may promise of each resource.",
    used="What they promise, with what is being admitted.",
    here="Of this namespace alone.",
    used_here="The largest amount of each resource in the ResourceQuotas of this namespace.",
    usage="Promised and limit of each resource, such as pods 30/50.",
    in_here="What is promised here, such as pods 20.",
    column_usage="Promised and limit of each resource in all namespaces together",
    column_here="What of it is promised in this namespace",
)


def _status(words: _Words) -> dict[str, object]:
    return {
        "total": _object(words.total, hard=_amounts(words.hard), used=_amounts(words.used)),
        "here": _object(words.here, used=_amounts(words.used_here)),
        "summary": _object(
            "The same in words, for the columns of kubectl get.",
            usage=_text(16384, words.usage),
            here=_text(16384, words.in_here),
        ),
        "currentTime": {
            "type": "string",
            "format": "date-time",
            "description": "When all amounts were last known to be current. Not set if that is not known.",
        },
        "stale": _text(1024, "Why an amount may be old. Not set while all are current."),
    }


def _schema(kind: str, words: _Words) -> dict[str, object]:
    restored = "Written by SeedQuota, which restores it about once a minute; nothing is decided by it."
    return {
        "type": "object",
        "description": f"{words.says} {restored}",
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": kind},
            "metadata": {"type": "object"},
            "status": {
                "type": "object",
                "description": "The amounts, as far as they are known.",
                "x-kubernetes-map-type": "atomic",
                "properties": _status(words),
            },
        },
    }


def _definition(resource: Resource[Object], short_name: str, words: _Words) -> dict[str, object]:
    age = "How long ago all of this was known to be current; more than three minutes is old"
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            _column("Usage", ".status.summary.usage", words.column_usage),
            _column("Here", ".status.summary.here", words.column_here),
            _column("Current", ".status.currentTime", age, "date"),
            _column("Stale", ".status.stale", "Why it may be old", priority=1),
        ],
        "schema": {"openAPIV3Schema": _schema(resource.kind, words)},
    }
    names = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "shortNames": [short_name],
        "categories": ["seedquota-all"],
    }
    return {
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


DEFINITIONS: Final = (
    _definition(LOCAL_QUOTAS, "lsq", _OF_QUOTA),
    _definition(LOCAL_ALLOCATIONS, "lsqa", _OF_ALLOCATION),
)
